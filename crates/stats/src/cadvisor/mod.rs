//! `/metrics/cadvisor`: every cgroup of the node's pods, with the labels by which dashboards know them. Pure.

mod series;

use crate::reading::{
    Cgroup, Cpu, DeviceIo, FileSystem, Interface, Memory, Pod, Pressure, Psi, Snapshot, Tasks,
    Traffic,
};
use crate::resource::seconds;
use crate::text::{Labels, Metric, More, Text};
use series as s;

/// The page in pieces. Without a snapshot it says that there was an error.
pub fn cadvisor_metrics(
    snapshot: Option<&Snapshot>,
) -> impl Iterator<Item = String> + Send + use<> {
    let mut page = Page::new(snapshot.map(|s| s.at.as_millisecond()));
    let failed = if snapshot.is_some() { 0.0 } else { 1.0 };
    for metric in [&s::SCRAPE_ERROR, &s::MACHINE_SCRAPE_ERROR] {
        page.plain(metric, Labels::default(), failed);
    }
    if let Some(snapshot) = snapshot {
        page.machine(snapshot);
        page.node(snapshot);
        for system in &snapshot.systems {
            let who = page.labels(&system.path, None, ["", "", ""]);
            page.cgroup(who, &system.cgroup, snapshot);
            page.seen(who, system.started);
        }
        for pod in &snapshot.pods {
            page.pod(pod, snapshot);
        }
    }
    page.text.pieces()
}

struct Page {
    text: Text,
    at: Option<i64>,
    /// Labels that most cgroups have.
    total: More,
    /// Of page faults, then of major ones.
    failures: [[More; 2]; 2],
    open_files: More,
}

impl Page {
    fn new(at: Option<i64>) -> Self {
        let mut text = Text::default();
        let failures = ["pgfault", "pgmajfault"].map(|kind| {
            let scopes = ["container", "hierarchy"];
            scopes.map(|scope| text.more(&[("failure_type", kind), ("scope", scope)]))
        });
        Self {
            total: text.more(&[("cpu", "total")]),
            failures,
            open_files: text.more(&[("ulimit", "max_open_files")]),
            text,
            at,
        }
    }

    /// All six labels are always there; what is not known is empty. Of a container its name, id and image.
    fn labels(&mut self, path: &str, pod: Option<&Pod>, [name, id, image]: [&str; 3]) -> Labels {
        let (namespace, pod) = pod.map_or(("", ""), |p| (&*p.pod.namespace, &*p.pod.name));
        self.text.labels(&[
            ("container", name),
            ("id", path),
            ("image", image),
            ("name", id),
            ("namespace", namespace),
            ("pod", pod),
        ])
    }

    fn plain(&mut self, metric: &'static Metric, labels: Labels, value: f64) {
        self.text.put(metric, labels, value, None);
    }

    /// Of the moment of the reading.
    fn put(&mut self, metric: &'static Metric, labels: Labels, value: f64) {
        self.text.put(metric, labels, value, self.at);
    }

    fn count(&mut self, metric: &'static Metric, labels: Labels, count: u64) {
        self.put(metric, labels, count as f64);
    }

    fn machine(&mut self, snapshot: &Snapshot) {
        let facts = &snapshot.facts;
        let who = self.text.labels(&[
            ("boot_id", &facts.boot_id),
            ("machine_id", &facts.machine_id),
            ("system_uuid", &facts.system_uuid),
        ]);
        for (metric, value) in [
            (&s::MACHINE_CORES, u64::from(facts.cpus)),
            (&s::MACHINE_PHYSICAL_CORES, u64::from(facts.physical_cores)),
            (&s::MACHINE_SOCKETS, u64::from(facts.sockets)),
            (&s::MACHINE_MEMORY, facts.memory),
            (&s::MACHINE_SWAP, facts.swap),
        ] {
            self.plain(metric, who, value as f64);
        }
        let version = self.text.labels(&[
            ("cadvisorRevision", ""),
            ("cadvisorVersion", ""),
            ("dockerVersion", ""),
            ("kernelVersion", &facts.kernel_version),
            ("osVersion", &facts.os_image),
        ]);
        self.plain(&s::VERSION_INFO, version, 1.0);
    }

    fn node(&mut self, snapshot: &Snapshot) {
        let who = self.labels("/", None, ["", "", ""]);
        self.cgroup(who, &snapshot.node, snapshot);
        self.seen(who, snapshot.facts.booted);
        self.network(who, &snapshot.network);
        let image = snapshot.image_fs.as_ref().map(|(fs, _)| fs);
        let container = snapshot.container_fs.as_ref().map(|(fs, _)| fs);
        let mut told: Vec<&str> = Vec::new();
        for fs in [snapshot.root_fs.as_ref(), image, container]
            .into_iter()
            .flatten()
        {
            if !told.contains(&&*fs.device) {
                told.push(&fs.device);
                self.file_system(who, fs, fs.used);
            }
        }
    }

    fn pod(&mut self, pod: &Pod, snapshot: &Snapshot) {
        if let Some(cgroup) = &pod.cgroup {
            let who = self.labels(&pod.path, Some(pod), ["", "", ""]);
            self.cgroup(who, cgroup, snapshot);
            self.seen(who, pod.sandbox.as_ref().and_then(|s| s.started));
        }
        if let Some(sandbox) = &pod.sandbox {
            // Of a sandbox the runtime has no container's name to tell.
            let names = ["", &*sandbox.id, &*sandbox.image];
            let who = self.labels(&sandbox.path, Some(pod), names);
            self.cgroup(who, &sandbox.cgroup, snapshot);
            self.network(who, &pod.network);
            self.seen(who, sandbox.started);
        }
        let holder = snapshot.container_fs.as_ref();
        let holder = holder.or(snapshot.image_fs.as_ref());
        for container in &pod.containers {
            let names = [&*container.name, &container.id, &container.image];
            let who = self.labels(&container.path, Some(pod), names);
            self.cgroup(who, &container.cgroup, snapshot);
            self.seen(who, container.started);
            if let (Some((fs, _)), Some(written)) = (holder, container.writable) {
                self.file_system(who, fs, written.bytes);
            }
        }
    }

    fn seen(&mut self, who: Labels, started: Option<jiff::Timestamp>) {
        if let Some(at) = self.at {
            self.put(&s::LAST_SEEN, who, (at / 1000) as f64);
        }
        if let Some(started) = started {
            self.plain(&s::START_TIME, who, started.as_second() as f64);
        }
    }

    fn cgroup(&mut self, who: Labels, cgroup: &Cgroup, snapshot: &Snapshot) {
        if let Some(cpu) = &cgroup.cpu {
            self.cpu(who, cpu);
        }
        if let Some(memory) = &cgroup.memory {
            self.memory(who, memory);
        }
        if let Some(tasks) = &cgroup.tasks {
            self.tasks(who, tasks);
        }
        for io in &cgroup.io {
            self.io(who, io, &device_name(snapshot, io));
        }
        self.pressure(who, &cgroup.pressure);
    }

    fn cpu(&mut self, who: Labels, cpu: &Cpu) {
        self.put(&s::CPU_USER, who, seconds(cpu.user));
        self.put(&s::CPU_SYSTEM, who, seconds(cpu.system));
        self.put(&s::CPU_USAGE, who.and(self.total), seconds(cpu.usage));
        self.plain(&s::SPEC_CPU_PERIOD, who, cpu.period as f64);
        self.plain(&s::SPEC_CPU_SHARES, who, cpu.shares as f64);
        let Some(quota) = cpu.quota else {
            return;
        };
        self.plain(&s::SPEC_CPU_QUOTA, who, quota as f64);
        let throttling = cpu.throttling.unwrap_or_default();
        self.count(&s::CFS_PERIODS, who, throttling.periods);
        self.count(&s::CFS_THROTTLED_PERIODS, who, throttling.throttled_periods);
        let time = seconds(throttling.throttled_time);
        self.put(&s::CFS_THROTTLED_SECONDS, who, time);
    }

    fn memory(&mut self, who: Labels, memory: &Memory) {
        let parts = &memory.parts;
        for (metric, value) in [
            (&s::MEMORY_CACHE, parts.cache),
            (&s::MEMORY_RSS, memory.rss),
            (&s::MEMORY_KERNEL, parts.kernel),
            (&s::MEMORY_MAPPED_FILE, parts.mapped_file),
            (&s::MEMORY_SWAP, memory.swap),
            (&s::MEMORY_FAILCNT, memory.failures),
            (&s::MEMORY_USAGE, memory.usage),
            (&s::MEMORY_MAX_USAGE, memory.peak),
            (&s::MEMORY_WORKING_SET, memory.working_set),
            (&s::MEMORY_ACTIVE_FILE, parts.active_file),
            (&s::MEMORY_INACTIVE_FILE, parts.inactive_file),
            (&s::OOM_EVENTS, memory.oom_kills),
        ] {
            self.count(metric, who, value);
        }
        let counts = [memory.page_faults, memory.major_page_faults];
        for (scopes, count) in self.failures.into_iter().zip(counts) {
            for scope in scopes {
                self.count(&s::MEMORY_FAILURES, who.and(scope), count);
            }
        }
        // 0 is "without limit".
        for (metric, value) in [
            (&s::SPEC_MEMORY_LIMIT, memory.limits.memory.unwrap_or(0)),
            (&s::SPEC_MEMORY_SWAP_LIMIT, memory.limits.swap.unwrap_or(0)),
            (&s::SPEC_MEMORY_RESERVATION, memory.limits.reservation),
        ] {
            self.plain(metric, who, value as f64);
        }
    }

    fn tasks(&mut self, who: Labels, tasks: &Tasks) {
        self.count(&s::PROCESSES, who, tasks.processes);
        self.count(&s::THREADS, who, tasks.threads);
        self.count(&s::THREADS_MAX, who, tasks.threads_max);
        let Some(files) = &tasks.files else {
            return;
        };
        self.count(&s::FILE_DESCRIPTORS, who, files.descriptors);
        self.count(&s::SOCKETS, who, files.sockets);
        if let Some(limit) = files.limit {
            self.put(&s::ULIMITS, who.and(self.open_files), limit as f64);
        }
    }

    fn io(&mut self, who: Labels, io: &DeviceIo, device: &str) {
        let labels = who.and(self.text.more(&[("device", device)]));
        self.count(&s::FS_READS_BYTES, labels, io.read_bytes);
        self.count(&s::FS_WRITES_BYTES, labels, io.write_bytes);
        self.count(&s::FS_READS, labels, io.reads);
        self.count(&s::FS_WRITES, labels, io.writes);
        for (metric, cost) in [
            (&s::FS_IO_COST_USAGE, io.cost.usage),
            (&s::FS_IO_COST_WAIT, io.cost.wait),
            (&s::FS_IO_COST_IN_DEBT, io.cost.in_debt),
            (&s::FS_IO_COST_IN_DELAY, io.cost.in_delay),
        ] {
            if let Some(micros) = cost {
                self.put(metric, labels, micros as f64 / 1e6);
            }
        }
        let (major, minor) = (io.major.to_string(), io.minor.to_string());
        for (operation, bytes) in [("Read", io.read_bytes), ("Write", io.write_bytes)] {
            let more = self.text.more(&[
                ("device", device),
                ("major", &major),
                ("minor", &minor),
                ("operation", operation),
            ]);
            self.count(&s::BLKIO, who.and(more), bytes);
        }
    }

    fn pressure(&mut self, who: Labels, pressure: &Pressure) {
        let of: [(Option<Psi>, &'static Metric, &'static Metric); 3] = [
            (
                pressure.cpu,
                &s::PRESSURE_CPU_STALLED,
                &s::PRESSURE_CPU_WAITING,
            ),
            (
                pressure.memory,
                &s::PRESSURE_MEMORY_STALLED,
                &s::PRESSURE_MEMORY_WAITING,
            ),
            (
                pressure.io,
                &s::PRESSURE_IO_STALLED,
                &s::PRESSURE_IO_WAITING,
            ),
        ];
        let micros = |total: u64| total as f64 / 1e6;
        for (psi, stalled, waiting) in of {
            if let Some(psi) = psi {
                self.put(stalled, who, micros(psi.full.total));
                self.put(waiting, who, micros(psi.some.total));
            }
        }
    }

    fn network(&mut self, who: Labels, interfaces: &[Interface]) {
        const RECEIVED: [&Metric; 4] =
            [&s::RX_BYTES, &s::RX_PACKETS, &s::RX_ERRORS, &s::RX_DROPPED];
        const SENT: [&Metric; 4] = [&s::TX_BYTES, &s::TX_PACKETS, &s::TX_ERRORS, &s::TX_DROPPED];
        for interface in interfaces {
            let labels = who.and(self.text.more(&[("interface", &interface.name)]));
            let numbers = |t: Traffic| [t.bytes, t.packets, t.errors, t.dropped];
            for (metric, value) in RECEIVED.into_iter().zip(numbers(interface.received)) {
                self.count(metric, labels, value);
            }
            for (metric, value) in SENT.into_iter().zip(numbers(interface.sent)) {
                self.count(metric, labels, value);
            }
        }
    }

    fn file_system(&mut self, who: Labels, fs: &FileSystem, used: u64) {
        let labels = who.and(self.text.more(&[("device", &fs.device)]));
        self.count(&s::FS_INODES_FREE, labels, fs.inodes_free);
        self.count(&s::FS_INODES_TOTAL, labels, fs.inodes);
        self.count(&s::FS_LIMIT, labels, fs.capacity);
        self.count(&s::FS_USAGE, labels, used);
    }
}

fn device_name(snapshot: &Snapshot, io: &DeviceIo) -> String {
    let mut known = snapshot.devices.iter();
    let found = known.find(|(major, minor, _)| (*major, *minor) == (io.major, io.minor));
    match found {
        Some((_, _, name)) => format!("/dev/{name}"),
        None => format!("{}:{}", io.major, io.minor),
    }
}

#[cfg(test)]
mod tests;
