//! What only the runtime knows: what containers have written, where images stand, the process behind a sandbox. Asked
//! rarely, within a deadline, and never twice for what cannot change. A runtime takes its time to add up what its
//! containers have written, so whoever scrapes gets what it said last, and asks for the next one; who holds containers to
//! limits says how old it may be, and waits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use krablet_cri::{ImageService, StatsService, v1};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::reading::{Cgroup, Cpu, Memory, Usage};

/// How long the runtime's figures stand for a scrape, whether it answered or not.
const FRESH: Duration = Duration::from_secs(30);
/// How old figures may be for a scrape not to wait for newer ones.
const OLD: Duration = Duration::from_secs(120);
/// How long anybody waits for the runtime.
const PATIENCE: Duration = Duration::from_secs(3);
/// Sandboxes asked for at the same time.
const AT_ONCE: usize = 8;

/// Everything the runtime has told.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// By container id.
    pub containers: BTreeMap<String, ContainerFigures>,
    /// Where images stand, and what they take.
    pub images: Option<Place>,
    /// Where containers write.
    pub writable: Option<Place>,
    /// By sandbox id.
    pub sandboxes: BTreeMap<String, Sandbox>,
}

pub type Place = (PathBuf, Option<Usage>);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerFigures {
    pub written: Option<Usage>,
    /// For containers whose cgroup is not where it should be.
    pub cgroup: Cgroup,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    pub pid: Option<u32>,
    pub image: String,
}

pub struct Runtime {
    service: Arc<dyn StatsService>,
    images: Arc<dyn ImageService>,
    told: Arc<Told>,
    /// When it was asked for the figures that stand.
    asked: Option<Instant>,
    asking: Option<Asking>,
    next_sandboxes: Instant,
}

struct Asking {
    since: Instant,
    answer: JoinHandle<Answer>,
    coming: Coming,
}

/// Figures that are on their way.
#[derive(Clone)]
pub struct Coming(watch::Receiver<()>);

impl Coming {
    /// Waits until they are here, or will not come: no longer than the runtime is waited for at all.
    pub async fn here(mut self) {
        // Nothing is ever sent. Whoever asks holds the other end until there is an answer.
        let _ = self.0.changed().await;
    }
}

/// Nothing of what was not answered.
#[derive(Default)]
struct Answer {
    stats: Option<Vec<v1::ContainerStats>>,
    fs: Option<v1::ImageFsInfoResponse>,
}

async fn ask(service: Arc<dyn StatsService>, images: Arc<dyn ImageService>) -> Answer {
    let stats = timeout(PATIENCE, service.list_container_stats());
    let fs = timeout(PATIENCE, images.image_fs_info());
    let (stats, fs) = tokio::join!(stats, fs);
    Answer {
        stats: stats.ok().and_then(Result::ok),
        fs: fs.ok().and_then(Result::ok),
    }
}

impl Runtime {
    pub fn new(service: Arc<dyn StatsService>, images: Arc<dyn ImageService>) -> Self {
        Self {
            service,
            images,
            told: Arc::default(),
            asked: None,
            asking: None,
            next_sandboxes: Instant::now(),
        }
    }

    /// The newest figures that can be had soon; those of sandboxes that are gone are forgotten.
    pub async fn figures(&mut self, sandboxes: &BTreeSet<String>) -> Arc<Told> {
        let now = Instant::now();
        self.refresh(now).await;
        if self.told.sandboxes.keys().any(|id| !sandboxes.contains(id)) {
            let told = Arc::make_mut(&mut self.told);
            told.sandboxes.retain(|id, _| sandboxes.contains(id));
        }
        self.meet(sandboxes, now).await;
        self.told.clone()
    }

    /// Asks for figures if those that stand are older than this. What to wait for before they are fetched, which need not
    /// be where others wait too.
    pub async fn order(&mut self, age: Duration) -> Option<Coming> {
        let now = Instant::now();
        self.ask_if_older(age, now).await;
        let asking = self.asking.as_ref().filter(|_| self.older_than(age, now));
        asking.map(|asking| asking.coming.clone())
    }

    /// The figures of containers that were ordered, or the newest there are; sandboxes are as they were.
    pub async fn containers(&mut self, age: Duration) -> Arc<Told> {
        if self.older_than(age, Instant::now()) {
            self.collect().await;
        }
        self.told.clone()
    }

    async fn refresh(&mut self, now: Instant) {
        self.ask_if_older(FRESH, now).await;
        if self.older_than(OLD, now) {
            self.collect().await;
        }
    }

    async fn ask_if_older(&mut self, age: Duration, now: Instant) {
        if self.asking.as_ref().is_some_and(|a| a.answer.is_finished()) {
            self.collect().await;
        }
        if self.older_than(age, now) && self.asking.is_none() {
            let (done, coming) = watch::channel(());
            let asked = ask(self.service.clone(), self.images.clone());
            let answer = tokio::spawn(async move {
                let answer = asked.await;
                drop(done);
                answer
            });
            self.asking = Some(Asking {
                since: now,
                answer,
                coming: Coming(coming),
            });
        }
    }

    fn older_than(&self, age: Duration, now: Instant) -> bool {
        self.asked
            .is_none_or(|at| now.saturating_duration_since(at) >= age)
    }

    /// The answer to what was asked last is as old as the question, however late it is fetched.
    async fn collect(&mut self) {
        if let Some(Asking { since, answer, .. }) = &mut self.asking {
            let answer = answer.await.unwrap_or_default();
            self.asked = Some(*since);
            self.asking = None;
            self.take(answer);
        }
    }

    fn take(&mut self, answer: Answer) {
        let told = Arc::make_mut(&mut self.told);
        if let Some(stats) = answer.stats {
            told.containers = stats.into_iter().filter_map(container).collect();
        }
        if let Some(fs) = answer.fs {
            told.images = fs.image_filesystems.first().and_then(place);
            told.writable = fs.container_filesystems.first().and_then(place);
        }
    }

    /// Asks for sandboxes that are new. If one did not answer, they are left in peace for a while.
    async fn meet(&mut self, sandboxes: &BTreeSet<String>, now: Instant) {
        let unknown: Vec<String> = sandboxes
            .iter()
            .filter(|id| !self.told.sandboxes.contains_key(*id))
            .cloned()
            .collect();
        if unknown.is_empty() || now < self.next_sandboxes {
            return;
        }
        let told = Arc::make_mut(&mut self.told);
        let service = &self.service;
        let asked = futures::stream::iter(unknown).map(|id| async move {
            let info = service.pod_sandbox_info(&id).await;
            (id, info.map(|info| sandbox(&info)))
        });
        let mut answers = std::pin::pin!(asked.buffer_unordered(AT_ONCE));
        let all = async {
            let mut whole = true;
            while let Some((id, found)) = answers.next().await {
                match found {
                    Ok(found) => drop(told.sandboxes.insert(id, found)),
                    Err(_) => whole = false,
                }
            }
            whole
        };
        if !timeout(PATIENCE, all).await.unwrap_or(false) {
            self.next_sandboxes = now + FRESH;
        }
    }
}

fn value(of: Option<&v1::UInt64Value>) -> Option<u64> {
    of.map(|v| v.value)
}

fn usage(fs: &v1::FilesystemUsage) -> Option<Usage> {
    Some(Usage {
        bytes: value(fs.used_bytes.as_ref())?,
        inodes: value(fs.inodes_used.as_ref()).unwrap_or_default(),
    })
}

fn place(fs: &v1::FilesystemUsage) -> Option<Place> {
    let point = &fs.fs_id.as_ref()?.mountpoint;
    (!point.is_empty()).then(|| (point.into(), usage(fs)))
}

fn container(stats: v1::ContainerStats) -> Option<(String, ContainerFigures)> {
    let id = stats.attributes?.id;
    let cpu = stats.cpu.as_ref().and_then(|cpu| {
        Some(Cpu {
            usage: value(cpu.usage_core_nano_seconds.as_ref())?,
            nano_cores: value(cpu.usage_nano_cores.as_ref()),
            ..Cpu::default()
        })
    });
    let memory = stats.memory.as_ref().and_then(|memory| {
        let working_set = value(memory.working_set_bytes.as_ref())?;
        Some(Memory {
            usage: value(memory.usage_bytes.as_ref()).unwrap_or(working_set),
            working_set,
            rss: value(memory.rss_bytes.as_ref()).unwrap_or_default(),
            page_faults: value(memory.page_faults.as_ref()).unwrap_or_default(),
            major_page_faults: value(memory.major_page_faults.as_ref()).unwrap_or_default(),
            ..Memory::default()
        })
    });
    let figures = ContainerFigures {
        written: stats.writable_layer.as_ref().and_then(usage),
        cgroup: Cgroup {
            cpu,
            memory,
            ..Cgroup::default()
        },
    };
    Some((id, figures))
}

/// containerd and CRI-O both tell these two under `info`, as JSON.
fn sandbox(info: &BTreeMap<String, String>) -> Sandbox {
    let told: serde_json::Value = info
        .get("info")
        .and_then(|text| serde_json::from_slice(text.as_bytes()).ok())
        .unwrap_or_default();
    let pid = told["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    Sandbox {
        pid: pid.filter(|pid| *pid > 0),
        image: told["image"].as_str().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_runtime_tells() {
        let number = |value| Some(v1::UInt64Value { value });
        let stats = v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes {
                id: "c1".into(),
                ..Default::default()
            }),
            cpu: Some(v1::CpuUsage {
                usage_core_nano_seconds: number(5),
                usage_nano_cores: number(2),
                ..Default::default()
            }),
            memory: Some(v1::MemoryUsage {
                working_set_bytes: number(7),
                ..Default::default()
            }),
            writable_layer: Some(v1::FilesystemUsage {
                used_bytes: number(4096),
                inodes_used: number(3),
                ..Default::default()
            }),
            ..Default::default()
        };
        let (id, figures) = container(stats).unwrap();
        assert_eq!(id, "c1");
        let (bytes, inodes) = (4096, 3);
        assert_eq!(figures.written, Some(Usage { bytes, inodes }));
        assert_eq!(figures.cgroup.cpu.unwrap().nano_cores, Some(2));
        assert_eq!(figures.cgroup.memory.unwrap().usage, 7);
        assert_eq!(container(v1::ContainerStats::default()), None);
    }

    #[test]
    fn a_sandbox_in_the_runtimes_words() {
        let of = |text: &str| sandbox(&BTreeMap::from([("info".to_owned(), text.to_owned())]));
        let found = of(r#"{"pid": 12, "image": "pause:3", "more": {}}"#);
        assert_eq!((found.pid, &*found.image), (Some(12), "pause:3"));
        assert_eq!(of(r#"{"pid": 0}"#), Sandbox::default());
        assert_eq!(of("no JSON"), Sandbox::default());
        assert_eq!(sandbox(&BTreeMap::new()), Sandbox::default());
    }
}
