//! The virtual machine boots, is what users have, and krablet runs pods in it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

#[path = "vm/classes.rs"]
mod classes;
#[path = "vm/disks.rs"]
mod disks;
#[path = "vm/features.rs"]
mod features;
#[path = "vm/joined.rs"]
mod joined;
#[path = "vm/labels.rs"]
mod labels;

use std::time::Duration;

use krablet_testbed::vm::{self, VmJob, VmReport};
use krablet_testbed::{images, krablet_program};
use serde_json::Value;

/// What every job begins with.
const PRELUDE: &str = r#"
    set -eu
    eventually() {
        tries=0
        until "$@"; do
            tries=$((tries + 1))
            if [ $tries -gt 900 ]; then echo "did not come true: $*"; return 1; fi
            sleep 0.2
        done
    }
"#;

const RUNTIME: &str = "/job/start-containerd";

/// Of any agent in a machine.
const CONFIG: &str = r#"
    mkdir -p /etc/manifests
    cat > /job/config.yaml <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: /etc/manifests
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: systemd
readOnlyPort: 10255
address: 127.0.0.1
podPidsLimit: 123
systemReserved: {memory: 256Mi}
END
"#;

/// Starts the agent, and says what one asks of it and its pods.
const AGENT: &str = r#"
    systemd-run --unit=krablet --property=Delegate=yes --property=StandardOutput=append:/job/out/krablet.log \
        --property=StandardError=append:/job/out/krablet.log \
        /job/krablet --config=/job/config.yaml --hostname-override=vm
    pods() { curl -sf http://127.0.0.1:10255/pods > /job/out/pods; }
    ready() { pods && jq -r ".items[] | select(.metadata.name == \"$1-vm\") | .status.conditions[] | \"\(.type)=\(.status)\"" /job/out/pods | grep -qx Ready=True; }
    gone() { pods && jq '.items | length' /job/out/pods | grep -qx 0; }
    no_tasks() { [ -z "$(ctr --namespace k8s.io tasks ls -q)" ]; }
    # Whether what jq finds in a pod by the second is the third.
    is() { pods && [ "$(jq -r ".items[] | select(.metadata.name == \"$1-vm\") | $2" /job/out/pods)" = "$3" ]; }
    # Writes the manifest of a pod with this name on the node's own network; further lines of its spec are read.
    manifest() {
        {
            cat <<END
apiVersion: v1
kind: Pod
metadata: {name: $1, namespace: default}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
END
            cat
        } > "/etc/manifests/.$1"
        mv "/etc/manifests/.$1" "/etc/manifests/$1.yaml"
    }
"#;

fn assert_done(report: &VmReport) {
    let journal = report.text("journal");
    assert_eq!(
        report.code,
        Some(0),
        "{}\n{journal}\n{}\n{}",
        report.output,
        report.text("krablet.log"),
        report.text("denials")
    );
}

/// What the machine has to be for the rest to mean something.
const MACHINE: &str = r#"
    test "$(cat /proc/1/comm)" = systemd
    test "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs
    ctr --namespace k8s.io images ls -q | tee /job/out/images
    ctr --namespace k8s.io run --rm --cgroup test.slice:lab:one --runc-systemd-cgroup \
        krablet.local/tool:v1 one /tool cat /proc/self/cgroup | tee /job/out/scope
"#;

/// One boot for all of it, as a boot is what costs: the machine, the runtime, then static pods of krablet under the systemd
/// cgroup driver, with their limits in place, and at last krablet as the kubelet of a node in a cluster.
#[tokio::test]
async fn krablet_runs_a_pod_under_systemd_and_cgroup_v2() {
    let pods = r#"
        cat /job/classes.yaml /job/features.yaml >> /job/config.yaml
        cp /job/web.yaml /etc/manifests/
        # One that uses much memory, and always the same: of that, two per cent say something.
        cat > /etc/manifests/steady.yaml <<END
apiVersion: v1
kind: Pod
metadata: {name: steady, namespace: default}
spec:
  terminationGracePeriodSeconds: 5
  containers:
    - name: holder
      image: krablet.local/tool:v1
      args: [eat-memory, "96"]
      resources: {requests: {memory: 16Mi}, limits: {memory: 160Mi}}
END
    "#;
    let script = r#"
        eventually ready web
        eventually ready steady
        find /sys/fs/cgroup/kubepods.slice -name 'cri-containerd-*.scope' | while read scope; do
            echo "$scope $(cat "$scope/memory.max") $(cat "$scope/cpu.weight")"
            for pid in $(cat "$scope/cgroup.procs"); do echo "oom $(cat /proc/$pid/comm) $(cat /proc/$pid/oom_score_adj)"; done
        done | tee /job/out/cgroups
        burstable=/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice
        slice_with() { basename "$(dirname "$(grep -lx "$1" $burstable/kubepods-burstable-pod*.slice/memory.max)")"; }
        slice=$(slice_with 67108864)
        show() { echo "$1 $(cat "$2/cpu.weight") $(cat "$2/cpu.max" | tr ' ' /) $(cat "$2/memory.max") $(cat "$2/pids.max")"; }
        {
            show pod "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/$slice"
            show class /sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice
            show lowest /sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice
            show all /sys/fs/cgroup/kubepods.slice
            echo total $(( $(awk '/MemTotal/ {print $2}' /proc/meminfo) * 1024 - 268435456 ))
            echo unit $(systemctl show "$slice" -p LoadState -p ActiveState -p Transient -p MemoryMax -p CPUWeight -p TasksMax)
        } | tee /job/out/limits
        # The same files by other means, before and after the agent tells of them.
        steady=$burstable/$(slice_with 167772160)
        scope=$(dirname "$(grep -lx 167772160 "$steady"/cri-containerd-*.scope/memory.max)")
        resident() { [ "$(awk '$1 == "anon" {print $2}' "$scope/memory.stat")" -gt 100663296 ]; }
        eventually resident
        reading() { for file in cpu.stat memory.current memory.stat memory.max pids.current; do sed "s/^/$file /" "$1/$file"; done; }
        reading "$scope" > /job/out/before
        reading "$steady" > /job/out/before-pod
        for page in stats/summary metrics/resource metrics/cadvisor; do
            curl -sf "http://127.0.0.1:10255/$page" > "/job/out/$(basename $page)"
        done
        reading "$scope" > /job/out/after
        reading "$steady" > /job/out/after-pod
        # What systemd was told of survives its looking at everything anew.
        systemctl daemon-reload
        show again "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/$slice" | tee -a /job/out/limits
        rm /etc/manifests/web.yaml /etc/manifests/steady.yaml
        eventually gone
        eventually no_tasks
        no_slice() { ! systemctl list-units --all --plain --no-legend 'kubepods-burstable-pod*' | grep -q slice; }
        eventually no_slice
    "#;
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut files = vec![
        (krablet_program().unwrap(), "krablet".to_owned()),
        (examples.join("web.yaml"), "web.yaml".to_owned()),
    ];
    let cluster = joined::Cluster::up().await;
    files.extend(cluster.files());
    let machine = vm::run(VmJob {
        files,
        script: format!(
            "{PRELUDE}{RUNTIME}{MACHINE}{}{}{}{CONFIG}{pods}{AGENT}{script}{}{}{}systemctl stop krablet{}{}",
            classes::MACHINE,
            disks::MACHINE,
            features::MACHINE,
            classes::SCRIPT,
            disks::SCRIPT,
            features::SCRIPT,
            vm::NETWORK,
            joined::SCRIPT
        ),
        timeout: Duration::from_secs(1800),
        ..VmJob::default()
    });
    let (report, driven) = cluster.drive(machine).await;
    eprintln!("from power-on to power-off: {:?}", report.elapsed);
    assert_done(&report);
    driven.unwrap();
    assert!(report.text("images").contains(images::PAUSE));
    assert!(
        report.text("scope").contains("test.slice/lab-one.scope"),
        "{}",
        report.text("scope")
    );
    let cgroups = report.text("cgroups");
    let limited = cgroups.lines().any(|line| {
        line.contains("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod")
            && line.contains(" 67108864 ")
    });
    assert!(
        limited,
        "the container's scope has its memory limit: {cgroups}"
    );
    assert!(
        cgroups.contains("oom pause -998"),
        "the sandbox is the last to be killed: {cgroups}"
    );
    assert_limits(&report.text("limits"));
    assert_figures(&report);
    classes::assert_held(&report);
    disks::assert_held(&report);
    features::assert_held(&report);
    joined::assert_held(&report);
    cluster.down().await;
}

/// A boot of its own, for a kernel obeys either AppArmor or SELinux.
#[tokio::test]
async fn labels_of_selinux_are_obeyed() {
    let machine = vm::run(VmJob {
        files: vec![(krablet_program().unwrap(), "krablet".to_owned())],
        script: format!(
            "{PRELUDE}{}{RUNTIME}{CONFIG}{AGENT}{}systemctl stop krablet",
            labels::machine(),
            labels::SCRIPT
        ),
        kernel: labels::KERNEL.to_owned(),
        timeout: Duration::from_secs(1800),
    });
    let report = machine.await.unwrap();
    eprintln!("from power-on to power-off: {:?}", report.elapsed);
    assert_done(&report);
    labels::assert_held(&report);
}

/// One number of a reading: that of a file, or that of a key in it.
fn read(reading: &str, file: &str, key: &str) -> u64 {
    let mut lines = reading.lines().filter_map(|line| line.strip_prefix(file));
    let found = lines.find_map(|line| line.trim_start().strip_prefix(key));
    let found = found.unwrap_or_else(|| panic!("{file} {key}: {reading}"));
    found.trim().parse().unwrap()
}

/// Whether a figure lies between two readings of what moves, give or take two per cent.
fn assert_between(told: u64, readings: [u64; 2], what: &str) {
    let [least, most] = [readings[0].min(readings[1]), readings[0].max(readings[1])];
    let range = least - least / 50..=most + most / 50;
    assert!(range.contains(&told), "{what}: {told} beside {readings:?}");
}

/// CPU time and memory of a container or a pod in the summary are what the files of its cgroup say. Gives the readings of
/// the CPU time in nanoseconds and of the working set.
fn assert_summed(report: &VmReport, told: &Value, suffix: &str) -> ([u64; 2], [u64; 2]) {
    let readings = ["before", "after"].map(|name| report.text(&format!("{name}{suffix}")));
    let of = |file: &str, key: &str| [0, 1].map(|n| read(&readings[n], file, key));
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{told}"));

    let spent = of("cpu.stat", "usage_usec ").map(|micro| micro * 1000);
    let told_spent = number(&told["cpu"]["usageCoreNanoSeconds"]);
    assert!(
        (spent[0]..=spent[1]).contains(&told_spent),
        "{told_spent} beside {spent:?}"
    );
    let used = of("memory.current ", "");
    let memory = &told["memory"];
    assert_between(number(&memory["usageBytes"]), used, "usage");
    let inactive = of("memory.stat", "inactive_file ");
    let working = [0, 1].map(|n| used[n] - inactive[n]);
    let told_working = number(&memory["workingSetBytes"]);
    assert_between(told_working, working, "working set");
    let limit = read(&readings[0], "memory.max ", "");
    assert_eq!(number(&memory["availableBytes"]), limit - told_working);
    let resident = of("memory.stat", "anon ");
    assert!(resident[0] > 96 << 20, "{resident:?}");
    assert_between(number(&memory["rssBytes"]), resident, "resident");
    (spent, working)
}

/// What the agent tells of the steady pod and of its container is what their cgroups' files say.
fn assert_figures(report: &VmReport) {
    let summary: Value = serde_json::from_str(&report.text("summary")).unwrap();
    let pods = summary["pods"].as_array().unwrap();
    let pod = pods
        .iter()
        .find(|p| p["podRef"]["name"] == "steady-vm")
        .unwrap();
    assert_summed(report, pod, "-pod");
    let (spent, working) = assert_summed(report, &pod["containers"][0], "");

    let sample = |page: &str, name: &str| {
        let page = report.text(page);
        let mut lines = page.lines().filter(|line| line.starts_with(name));
        let line =
            lines.find(|l| l.contains("container=\"holder\"") && l.contains("pod=\"steady-vm\""));
        let line = line.unwrap_or_else(|| panic!("no {name}: {page}"));
        let value = line.rsplit_once('}').unwrap().1.trim();
        value.split(' ').next().unwrap().parse::<f64>().unwrap()
    };
    for page in ["resource", "cadvisor"] {
        let told = sample(page, "container_memory_working_set_bytes");
        assert_between(told as u64, working, "working set for scrapers");
        let told = sample(page, "container_cpu_usage_seconds_total") * 1e9;
        let spent = (spent[0] as f64 - 1.0)..=(spent[1] as f64 + 1.0);
        assert!(spent.contains(&told), "{told} beside {spent:?}");
    }
    let limit = sample("cadvisor", "container_spec_memory_limit_bytes");
    assert_eq!(limit, f64::from(160 << 20));
    let threads = sample("cadvisor", "container_threads{");
    assert_eq!(
        threads as u64,
        read(&report.text("after"), "pids.current ", "")
    );
}

/// The slices of the pod, of its class and of all pods: weight, quota, memory, processes.
fn assert_limits(limits: &str) {
    let line = |name: &str| {
        let found = limits.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap_or_else(|| panic!("{name}: {limits}")).trim()
    };
    assert_eq!(line("pod "), "1 max/100000 67108864 123");
    assert_eq!(line("again "), line("pod "), "after systemd's reload");
    assert_eq!(line("class "), "1 max/100000 max max");
    assert_eq!(line("lowest "), "1 max/100000 max max");
    let all: Vec<&str> = line("all ").split(' ').collect();
    assert_eq!(all[2], line("total "), "{limits}");
    let unit = line("unit ");
    for property in [
        "LoadState=loaded",
        "ActiveState=active",
        "Transient=yes",
        "MemoryMax=67108864",
        "CPUWeight=1",
        "TasksMax=123",
    ] {
        assert!(unit.split(' ').any(|p| p == property), "{property}: {unit}");
    }
}
