//! A whole node on files of the test's own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use krablet_cri::{ImageService, StatsService, v1};
use krablet_linux::facts::MemoryFacts;
use krablet_linux::{CgroupDriver, CgroupNames, CgroupVersion, SystemClock, Threads};
use krablet_pod::observed::{ContainerMemory, ContainerState};
use krablet_pod::paths::RootDir;
use krablet_pod::{PodRef, Ticket};

use super::*;
use crate::{CountedVolumes, Stats, StatsDeps, SystemCgroups, VolumePlace};

struct House {
    volume: PathBuf,
    /// Called before the volumes are told of.
    at_volumes: Box<dyn Fn() + Send + Sync>,
}

impl Pods for House {
    fn observed(&self) -> Vec<Arc<ObservedPod>> {
        let pod = PodRef {
            uid: "u-1".into(),
            namespace: "ns".into(),
            name: "p".into(),
        };
        let container = |id: &str, state| ObservedContainer {
            id: id.into(),
            name: "main".into(),
            sandbox_id: "sandbox1".into(),
            state,
            attempt: 0,
            created_at: 5_000_000_000,
            started_at: 6_000_000_000,
            exit: None,
            image: "busybox".into(),
            image_ref: "busybox@sha".into(),
            user: None,
            resources: None,
            memory: ContainerMemory::default(),
            log_path: String::new(),
        };
        let sandbox = ObservedSandbox {
            id: "sandbox1".into(),
            ready: true,
            attempt: 0,
            created_at: 4_000_000_000,
            ips: Vec::new(),
            host_network: false,
            source: None,
        };
        let alive = ObservedPod {
            sandboxes: vec![sandbox],
            containers: vec![
                container("container1", ContainerState::Running),
                container("container0", ContainerState::Exited),
            ],
            ..ObservedPod::absent(pod.clone(), Ticket(1))
        };
        let gone = PodRef {
            uid: "u-2".into(),
            ..pod
        };
        let gone = ObservedPod::absent(gone, Ticket(1));
        vec![Arc::new(alive), Arc::new(gone)]
    }

    fn started(&self, _: &PodUid) -> Option<Timestamp> {
        Timestamp::from_second(3).ok()
    }

    fn volumes(&self, _: &PodUid) -> Vec<VolumePlace> {
        (self.at_volumes)();
        vec![VolumePlace {
            name: "scratch".into(),
            path: self.volume.clone(),
            claim: Some(("ns".into(), "claim".into())),
            ephemeral: true,
        }]
    }
}

struct Runtime;

#[async_trait]
impl StatsService for Runtime {
    async fn list_container_stats(&self) -> krablet_cri::Result<Vec<v1::ContainerStats>> {
        Ok(vec![v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes {
                id: "container1".into(),
                ..Default::default()
            }),
            cpu: Some(v1::CpuUsage {
                usage_core_nano_seconds: Some(v1::UInt64Value { value: 1 }),
                usage_nano_cores: Some(v1::UInt64Value { value: 42 }),
                ..Default::default()
            }),
            writable_layer: Some(v1::FilesystemUsage {
                used_bytes: Some(v1::UInt64Value { value: 777 }),
                ..Default::default()
            }),
            ..Default::default()
        }])
    }

    async fn pod_sandbox_info(&self, _: &str) -> krablet_cri::Result<BTreeMap<String, String>> {
        let info = r#"{"pid": 99, "image": "pause:3"}"#;
        Ok(BTreeMap::from([("info".to_owned(), info.to_owned())]))
    }
}

/// Never answers.
struct Images;

#[async_trait]
impl ImageService for Images {
    async fn list_images(&self) -> krablet_cri::Result<Vec<v1::Image>> {
        std::future::pending().await
    }
    async fn image_status(&self, _: v1::ImageSpec) -> krablet_cri::Result<Option<v1::Image>> {
        std::future::pending().await
    }
    async fn pull_image(
        &self,
        _: v1::ImageSpec,
        _: Option<v1::AuthConfig>,
        _: Option<v1::PodSandboxConfig>,
    ) -> krablet_cri::Result<String> {
        std::future::pending().await
    }
    async fn remove_image(&self, _: v1::ImageSpec) -> krablet_cri::Result<()> {
        std::future::pending().await
    }
    async fn image_fs_info(&self) -> krablet_cri::Result<v1::ImageFsInfoResponse> {
        std::future::pending().await
    }
}

fn write(dir: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

fn stats(dir: &Path, version: CgroupVersion, driver: CgroupDriver) -> Stats {
    let house = House {
        volume: dir.join("volume"),
        at_volumes: Box::new(|| ()),
    };
    stats_of(house, dir, version, driver, Threads::of_the_pool)
}

fn stats_of(
    house: House,
    dir: &Path,
    version: CgroupVersion,
    driver: CgroupDriver,
    threads: fn(usize) -> Threads,
) -> Stats {
    write(
        dir,
        &[
            ("proc/stat", "cpu  1 1 1 1 1 1 1 1\nbtime 1000\n"),
            ("proc/meminfo", "MemTotal: 100 kB\nMemFree: 40 kB\n"),
            ("proc/loadavg", "0 0 0 1/55 7\n"),
            ("proc/self/cgroup", "4:memory:/agent\n0::/agent\n"),
            (
                "proc/99/net/dev",
                "eth0: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0\n",
            ),
            ("volume/file", "some bytes"),
            ("logs/ns_p_u-1/main/0.log", "a line\n"),
        ],
    );
    let names = CgroupNames::new(driver, "", true);
    let config = StatsConfig {
        node_name: "n".into(),
        root: RootDir::new(dir),
        pod_logs: dir.join("logs"),
        version,
        pod_path: Arc::new(move |uid, class| names.pod(uid, class)),
        systems: SystemCgroups::default(),
        started: Timestamp::UNIX_EPOCH,
    };
    let deps = StatsDeps {
        pods: Arc::new(house),
        runtime: Arc::new(Runtime),
        images: Arc::new(Images),
        machine: Arc::new(MemoryFacts::default()),
        clock: Arc::new(SystemClock),
        measured: krablet_metrics::VolumeMetrics::default().measured,
    };
    let kernel = Kernel {
        version,
        cgroup: dir.join("cgroup"),
        proc: dir.join("proc"),
        sys: dir.join("sys"),
    };
    Stats::of(config, deps, kernel, threads)
}

fn v2_files(dir: &Path) {
    let pod = "cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice";
    for (place, usage) in [
        ("cgroup/kubepods.slice".to_owned(), 40),
        (pod.to_owned(), 30),
        (format!("{pod}/cri-containerd-container1.scope"), 20),
        (format!("{pod}/cri-containerd-sandbox1.scope"), 10),
        ("cgroup/agent".to_owned(), 5),
    ] {
        let cpu = format!("usage_usec {usage}\n");
        let memory = format!("{usage}\n");
        write(
            &dir.join(place),
            &[
                ("cpu.stat", &cpu),
                ("memory.current", &memory),
                ("cgroup.procs", "1\n"),
            ],
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_of_version_2_with_systemd() {
    let dir = tempfile::tempdir().unwrap();
    v2_files(dir.path());
    let stats = stats(dir.path(), CgroupVersion::V2, CgroupDriver::Systemd);
    let read = stats.snapshot(Depth::Full).await.unwrap();
    // The root's own files are missing, so the machine's tell.
    assert_eq!(read.node.memory.as_ref().unwrap().usage, 60 * 1024);
    assert_eq!(read.node.cpu.as_ref().unwrap().usage, 50_000_000);
    assert_eq!(read.facts.booted, Timestamp::from_second(1000).ok());
    let names: Vec<_> = read.systems.iter().filter_map(|s| s.name).collect();
    assert_eq!(names, ["kubelet", "pods"]);
    assert_eq!(read.pods.len(), 1, "what is gone is not told of");
    let pod = &read.pods[0];
    let memory = |cgroup: &Cgroup| cgroup.memory.as_ref().unwrap().usage;
    assert_eq!(memory(pod.cgroup.as_ref().unwrap()), 30);
    let container = &pod.containers[0];
    assert_eq!(memory(&container.cgroup), 20);
    assert!(container.path.ends_with("/cri-containerd-container1.scope"));
    assert_eq!(container.writable.unwrap().bytes, 777);
    assert_eq!(container.logs.unwrap().inodes, 1);
    assert_eq!(container.started, Timestamp::from_second(6).ok());
    // There is no second reading yet: the rate is the runtime's.
    assert_eq!(container.cgroup.cpu.as_ref().unwrap().nano_cores, Some(42));
    let sandbox = pod.sandbox.as_ref().unwrap();
    assert_eq!((memory(&sandbox.cgroup), &*sandbox.image), (10, "pause:3"));
    assert_eq!(pod.network[0].sent.bytes, 20);
    assert!(read.root_fs.as_ref().unwrap().capacity > 0);
    assert_eq!(read.image_fs, None, "the runtime did not say where");
}

#[tokio::test(start_paused = true)]
async fn a_node_of_version_1_read_for_cpu_and_memory_alone() {
    let dir = tempfile::tempdir().unwrap();
    let pod = "kubepods/besteffort/podu-1";
    for (place, usage) in [
        ("", "90"),
        (pod, "30"),
        (&format!("{pod}/container1"), "20"),
    ] {
        let cpuacct = dir.path().join("cgroup/cpuacct").join(place);
        let memory = dir.path().join("cgroup/memory").join(place);
        write(&cpuacct, &[("cpuacct.usage", usage)]);
        write(&memory, &[("memory.usage_in_bytes", usage)]);
    }
    let stats = stats(dir.path(), CgroupVersion::V1, CgroupDriver::Cgroupfs);
    let read = stats.snapshot(Depth::CpuAndMemory).await.unwrap();
    assert_eq!(read.node.cpu.as_ref().unwrap().usage, 90);
    let container = &read.pods[0].containers[0];
    assert_eq!(container.cgroup.cpu.as_ref().unwrap().usage, 20);
    assert_eq!(container.path, format!("/{pod}/container1"));
    assert_eq!((container.logs, container.writable), (None, None));
    assert!(read.pods[0].network.is_empty() && read.pods[0].volumes.is_empty());
    assert_eq!(read.root_fs, None);
}

#[tokio::test(start_paused = true)]
async fn who_asks_soon_again_gets_the_same_reading() {
    let dir = tempfile::tempdir().unwrap();
    v2_files(dir.path());
    let stats = stats(dir.path(), CgroupVersion::V2, CgroupDriver::Systemd);
    let (one, two) = tokio::join!(stats.snapshot(Depth::Full), stats.snapshot(Depth::Full));
    let one = one.unwrap();
    assert!(Arc::ptr_eq(&one, &two.unwrap()));
    let less = stats.snapshot(Depth::CpuAndMemory).await.unwrap();
    assert!(Arc::ptr_eq(&one, &less), "the whole has the part in it");
}

#[tokio::test(start_paused = true)]
async fn volumes_are_told_as_soon_as_they_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    v2_files(dir.path());
    let stats = stats(dir.path(), CgroupVersion::V2, CgroupDriver::Systemd);
    let wanted = BTreeSet::from([dir.path().join("volume")]);
    let first = stats.snapshot(Depth::Full).await.unwrap();
    assert!(first.pods[0].volumes.is_empty());
    let measured = async {
        while stats.measure.figures(Asker::Scrapes, &wanted).is_empty() {
            tokio::task::yield_now().await;
        }
    };
    let minute = Duration::from_secs(60);
    tokio::time::timeout(minute, measured).await.unwrap();
    stats.desk.lock().await.latest = None;
    let second = stats.snapshot(Depth::Full).await.unwrap();
    let volume = &second.pods[0].volumes[0];
    assert_eq!((&*volume.name, volume.usage.inodes), ("scratch", 2));

    // The pages of the agent itself tell the same of claims, and what logs take.
    let storage = stats.storage().await.unwrap();
    // How full the disk is may be another number by now.
    let claims: Vec<_> = storage
        .claims
        .iter()
        .map(|((namespace, name), of)| (&**namespace, &**name, &*of.name, of.usage))
        .collect();
    assert_eq!(claims, [("ns", "claim", "scratch", volume.usage)]);
    let log = &storage.logs[0];
    assert_eq!(
        (&*log.pod.name, &*log.container, log.usage.inodes),
        ("p", "main", 1)
    );
    assert_eq!(storage.logs.len(), 1);
}

/// The disk with the records of volumes does not answer.
async fn readings_hang(dir: &Path) {
    v2_files(dir);
    let (hangs, mut hung) = tokio::sync::mpsc::unbounded_channel();
    let (back, away) = std::sync::mpsc::channel::<()>();
    let away = Mutex::new(away);
    let house = House {
        volume: dir.join("volume"),
        at_volumes: Box::new(move || {
            hangs.send(()).unwrap();
            let _ = away.lock().unwrap().recv();
        }),
    };
    let (version, driver) = (CgroupVersion::V2, CgroupDriver::Systemd);
    let stats = stats_of(house, dir, version, driver, Threads::new);
    for _ in 0..crate::MOST_READINGS {
        // Whoever asks goes away.
        tokio::select! {
            biased;
            _ = stats.snapshot(Depth::Summary) => panic!("it hangs"),
            Some(()) = hung.recv() => {}
        }
    }
    let refused = stats.storage().await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "reading statistics: 4 calls to file systems have not come back"
    );
    tokio::task::spawn_blocking(|| ()).await.unwrap();
    stats.snapshot(Depth::CpuAndMemory).await.unwrap();
    drop(back);
    while stats.storage().await.is_err() {
        tokio::task::yield_now().await;
    }
    stats.local_usage(counted(&[]), false).await.unwrap();
}

#[test]
fn readings_that_hang_keep_no_thread_of_the_pool_and_are_only_so_many() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(1)
        .enable_time()
        .start_paused(true)
        .build();
    runtime.unwrap().block_on(readings_hang(dir.path()));
}

/// Says how often it was asked.
#[derive(Default)]
struct Counting(AtomicU64);

#[async_trait]
impl StatsService for Counting {
    async fn list_container_stats(&self) -> krablet_cri::Result<Vec<v1::ContainerStats>> {
        let mut stats = Runtime.list_container_stats().await?;
        let value = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        for one in &mut stats {
            one.writable_layer = Some(v1::FilesystemUsage {
                used_bytes: Some(v1::UInt64Value { value }),
                ..Default::default()
            });
        }
        Ok(stats)
    }

    async fn pod_sandbox_info(&self, id: &str) -> krablet_cri::Result<BTreeMap<String, String>> {
        Runtime.pod_sandbox_info(id).await
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_as_old_as_its_question() {
    let service = Arc::new(Counting::default());
    let mut runtime = crate::runtime::Runtime::new(service, Arc::new(Images));
    let mut told = Vec::new();
    for wait in [0, 5, 31, 5, 31, 3600, 1] {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        let figures = runtime.figures(&BTreeSet::new()).await;
        told.push(figures.containers["container1"].written.unwrap().bytes);
    }
    // The third asks and does not wait, the fourth has its answer, the fifth asks again. After an hour nobody
    // has fetched that answer, and it is not good any more.
    assert_eq!(told, [1, 1, 1, 2, 2, 4, 4]);
}

#[tokio::test(start_paused = true)]
async fn who_may_not_have_old_figures_waits_for_new_ones() {
    let service = Arc::new(Counting::default());
    let mut runtime = crate::runtime::Runtime::new(service, Arc::new(Images));
    let age = Duration::from_secs(9);
    let mut told = Vec::new();
    // Each answer takes three seconds, for that is how long images are waited for.
    for wait in [0, 5, 1, 10, 10] {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        if let Some(coming) = runtime.order(age).await {
            coming.here().await;
        }
        let figures = runtime.containers(age).await;
        told.push(figures.containers["container1"].written.unwrap().bytes);
    }
    assert_eq!(told, [1, 1, 2, 3, 4]);
    // A scrape that comes soon after has them too, and one that comes later asks for what it does not wait for.
    let mut scraped = Vec::new();
    for wait in [20, 10, 5] {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        let figures = runtime.figures(&BTreeSet::new()).await;
        scraped.push(figures.containers["container1"].written.unwrap().bytes);
    }
    assert_eq!(scraped, [4, 4, 5]);
}

fn counted(volumes: &[&str]) -> CountedVolumes {
    let volumes = volumes.iter().map(|name| (*name).to_owned());
    BTreeMap::from([(PodUid::from("u-1"), volumes.collect())])
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_who_waits_for_the_runtime() {
    let dir = tempfile::tempdir().unwrap();
    let stats = stats(dir.path(), CgroupVersion::V2, CgroupDriver::Systemd);
    let mut asking = std::pin::pin!(stats.local_usage(counted(&[]), true));
    assert!(futures::poll!(&mut asking).is_pending());
    assert!(stats.desk.try_lock().is_ok());
    assert_eq!(asking.await.unwrap()["u-1"].containers["main"].written, 777);
}

#[tokio::test(start_paused = true)]
async fn what_a_limited_pod_keeps() {
    let dir = tempfile::tempdir().unwrap();
    let stats = stats(dir.path(), CgroupVersion::V2, CgroupDriver::Systemd);
    write(
        dir.path(),
        &[("pods/u-1/etc-hosts", "127.0.0.1 localhost\n")],
    );
    let none = CountedVolumes::new();
    assert!(stats.local_usage(none, true).await.unwrap().is_empty());
    let kept = async |containers| {
        loop {
            let of = counted(&["scratch", "of a name that it does not have"]);
            let mut all = stats.local_usage(of, containers).await.unwrap();
            let usage = all.remove("u-1").unwrap();
            if !usage.volumes.is_empty() {
                return usage;
            }
            tokio::task::yield_now().await;
        }
    };
    let minute = Duration::from_secs(60);
    let usage = tokio::time::timeout(minute, kept(true)).await.unwrap();
    let log = files::files_in(&dir.path().join("logs/ns_p_u-1/main")).unwrap();
    let container = usage.containers["main"];
    assert_eq!((container.logs, container.written), (log.bytes, 777));
    assert!(!usage.one_disk, "the runtime did not say where");
    assert!(stats.disk_unknown.load(Ordering::SeqCst));
    assert!(usage.volumes["scratch"] >= 10 && log.bytes > 0 && usage.other > 0);
    // Neither is asked for what does not count: the figure of the volume is forgotten.
    let less = stats.local_usage(counted(&[]), false).await.unwrap();
    let less = &less["u-1"];
    assert_eq!(less.containers["main"].written, 0);
    assert!(less.volumes.is_empty());
    let scratch = BTreeSet::from([dir.path().join("volume")]);
    assert!(stats.measure.figures(Asker::Scrapes, &scratch).is_empty());
}
