//! One reading of the whole node: which cgroup is whose, and all of them read in one go.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use krablet_linux::cgroup_names::CLASSES;
use krablet_pod::observed::{ObservedContainer, ObservedPod, ObservedSandbox};
use krablet_pod::qos::QosClass;
use krablet_pod::{PodUid, paths};
use tokio::time::Instant;

use crate::devices::Devices;
use crate::files::{self, Kernel, Paper};
use crate::home::Home;
use crate::measure::{Asker, Measure, file_system};
use crate::rates::Rates;
use crate::reading::{
    Cgroup, Container, Depth, Facts, FileSystem, Interface, Pod, Snapshot, System, Usage, Volume,
};
use crate::runtime::{Place, Told};
use crate::settings::{Settings, Stamp};
use crate::{Pods, StatsConfig, storage};

/// The class that a pod's cgroup is in, and its name there. It is only held open while it is read.
type Places<'a> = BTreeMap<PodUid, (&'a Home<'a>, String)>;

/// So many pods are worth a thread of their own.
const WORTH_A_READER: usize = 16;
/// Statistics are not worth more of a machine.
const MOST_READERS: usize = 4;

/// What one reading needs; it blocks on files, so it runs beside the async threads.
pub(crate) struct Reading {
    pub config: Arc<StatsConfig>,
    pub kernel: Kernel,
    pub pods: Arc<dyn Pods>,
    pub observed: Vec<Arc<ObservedPod>>,
    pub told: Arc<Told>,
    pub facts: Arc<Facts>,
    pub rates: Arc<Mutex<Rates>>,
    pub settings: Arc<Mutex<Settings>>,
    pub measure: Arc<Measure>,
    pub devices: Arc<Devices>,
    pub depth: Depth,
    pub now: Timestamp,
    /// What stands before and behind the id in the name of a container's cgroup, as far as one was seen.
    pub scheme: Mutex<Option<(String, String)>>,
}

impl Reading {
    pub fn take(self) -> Snapshot {
        let full = self.depth >= Depth::Summary;
        let classes = CLASSES.map(|class| Some(self.kernel.home(&self.class(class)?)));
        let places = self.pod_cgroups(&classes);
        let volumes = match full {
            true => {
                let places = storage::places(&*self.pods, &self.observed);
                storage::volumes(places, &self.measure, Asker::Scrapes)
            }
            false => BTreeMap::new(),
        };
        let fs = |place: Option<&Place>| {
            let (path, usage) = place.filter(|_| full)?;
            Some((self.named_fs(path)?, *usage))
        };
        let mut snapshot = Snapshot {
            at: self.now,
            facts: self.facts.clone(),
            node: self.rated("/", self.kernel.node(self.depth)),
            network: match full {
                true => self.kernel.network(1, &mut Paper::default()),
                false => Vec::new(),
            },
            root_fs: match full {
                true => self.named_fs(self.config.root.path()),
                false => None,
            },
            image_fs: fs(self.told.images.as_ref()),
            container_fs: fs(self.told.writable.as_ref()),
            processes: match full {
                true => self.kernel.process_limits(),
                false => Default::default(),
            },
            systems: self.systems(),
            pods: Vec::new(),
            devices: match full {
                true => self.kernel.devices(),
                false => Vec::new(),
            },
        };
        files::bound_node(&mut snapshot);
        snapshot.pods = self.all_pods(&places, &volumes);
        self.rates().sweep(Instant::now());
        self.settings().sweep(Instant::now());
        snapshot
    }

    /// In their order, read by as many as have something to do: whoever asked waits for the last.
    fn all_pods(&self, places: &Places<'_>, volumes: &BTreeMap<PodUid, Vec<Volume>>) -> Vec<Pod> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let readers = (self.observed.len() / WORTH_A_READER).clamp(1, cores.min(MOST_READERS));
        let share = self.observed.len().div_ceil(readers).max(1);
        let read = |pods: &[Arc<ObservedPod>]| -> Vec<Pod> {
            let paper = &mut Paper::default();
            let pods = pods.iter();
            pods.map(|pod| self.pod(pod, places, volumes, paper))
                .collect()
        };
        let mut shares = self.observed.chunks(share);
        let own = shares.next().unwrap_or_default();
        std::thread::scope(|scope| {
            let others: Vec<_> = shares.map(|pods| scope.spawn(move || read(pods))).collect();
            let mut all = read(own);
            for other in others {
                match other.join() {
                    Ok(pods) => all.extend(pods),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            all
        })
    }

    /// The file system of a path with the name of its device.
    fn named_fs(&self, path: &Path) -> Option<FileSystem> {
        let mut fs = file_system(path).ok()?;
        fs.device = self.devices.of(path, &self.kernel)?.name;
        Some(fs)
    }

    fn rates(&self) -> std::sync::MutexGuard<'_, Rates> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settings(&self) -> std::sync::MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the rate to a fresh reading.
    fn rated(&self, path: &str, mut cgroup: Cgroup) -> Cgroup {
        if let Some(cpu) = &mut cgroup.cpu {
            cpu.nano_cores = self.rates().note(path, Instant::now(), cpu.usage);
        }
        cgroup
    }

    /// Of a pod, or one of its containers.
    fn cgroup(&self, home: &Home<'_>, stamp: Stamp, paper: &mut Paper) -> Option<Cgroup> {
        let mut kept = self.settings().take(home.path(), stamp, Instant::now());
        let found = home.cgroup(self.depth, Some(&mut kept), paper)?;
        self.settings().give_back(home.path(), kept);
        Some(self.rated(home.path(), found))
    }

    /// The cgroup that all pods of a class are in.
    fn class(&self, class: QosClass) -> Option<String> {
        let pod = (self.config.pod_path)(&"0".into(), class);
        let (parent, _) = pod.rsplit_once('/')?;
        Some(parent.to_owned())
    }

    /// Where each pod's cgroup is, whatever class it was made in.
    fn pod_cgroups<'h>(&self, classes: &'h [Option<Home<'h>>]) -> Places<'h> {
        let mut found = BTreeMap::new();
        for (class, parent) in CLASSES.into_iter().zip(classes) {
            let Some(parent) = parent else {
                continue;
            };
            let children = self.kernel.children(parent.path());
            let children: BTreeSet<String> = children.into_iter().collect();
            for observed in &self.observed {
                let uid = &observed.pod.uid;
                let path = (self.config.pod_path)(uid, class);
                let name = path.rsplit('/').next().unwrap_or_default();
                if children.contains(name) {
                    found.insert(uid.clone(), (parent, name.to_owned()));
                }
            }
        }
        found
    }

    fn systems(&self) -> Vec<System> {
        let config = &self.config;
        let given = |name: &str| Some(name.to_owned()).filter(|n| !n.is_empty());
        let own = given(&config.systems.kubelet).or_else(|| self.kernel.own_cgroup());
        let mut wanted = vec![
            (Some("kubelet"), own, Some(config.started)),
            (Some("runtime"), given(&config.systems.runtime), None),
            (Some("misc"), given(&config.systems.misc), None),
        ];
        let [all, burstable, best_effort] = CLASSES.map(|class| self.class(class));
        wanted.push((Some("pods"), all, None));
        if self.depth == Depth::Full {
            wanted.push((None, burstable, None));
            wanted.push((None, best_effort, None));
        }
        let paper = &mut Paper::default();
        let read = |(name, path, started): (_, Option<String>, Option<Timestamp>)| {
            // What runs in the root has no cgroup of its own.
            let path = path.filter(|path| path.len() > 1)?;
            let found = self.kernel.home(&path).cgroup(self.depth, None, paper)?;
            Some(System {
                name,
                started: started.or_else(|| self.kernel.made(&path)),
                cgroup: self.rated(&path, found),
                path,
            })
        };
        wanted.into_iter().filter_map(read).collect()
    }

    fn pod(
        &self,
        observed: &ObservedPod,
        places: &Places<'_>,
        volumes: &BTreeMap<PodUid, Vec<Volume>>,
        paper: &mut Paper,
    ) -> Pod {
        let uid = &observed.pod.uid;
        let full = self.depth >= Depth::Summary;
        let home = places.get(uid).map(|(class, name)| class.below(name));
        let home = home.as_ref();
        let stamp = Stamp::of(observed);
        let below = |id: &str| self.container_home(home?, id);
        let logs = paths::pod_log_dir(&self.config.pod_logs, &observed.pod);
        let containers = newest_running(observed).into_iter().map(|container| {
            let home = below(container.id.as_str());
            self.container(home.as_ref(), (container, stamp), &logs, paper)
        });
        let containers = containers.collect();
        let ready = observed.ready_sandboxes().next().map(|sandbox| {
            let home = full.then(|| below(sandbox.id.as_str())).flatten();
            self.sandbox(home.as_ref(), (sandbox, stamp), paper)
        });
        let (sandbox, network) = ready.unzip();
        let mut other = Usage::default();
        if full {
            let hosts = self.config.root.etc_hosts(uid);
            other.add(files::files_in(&logs).unwrap_or_default());
            other.add(files::file(&hosts).unwrap_or_default());
        }
        Pod {
            pod: observed.pod.clone(),
            started: self.pods.started(uid),
            path: home.map_or_else(String::new, |home| home.path().to_owned()),
            cgroup: home.and_then(|home| self.cgroup(home, stamp, paper)),
            network: network.unwrap_or_default(),
            sandbox,
            containers,
            volumes: volumes.get(uid).cloned().unwrap_or_default(),
            other,
        }
    }

    /// All containers' cgroups are named in one way, so the first one tells the others; to list a cgroup costs as much
    /// as to read three files of it.
    fn container_home<'h>(&self, pod: &'h Home<'_>, id: &str) -> Option<Home<'h>> {
        let scheme = || self.scheme.lock().unwrap_or_else(PoisonError::into_inner);
        let likely = scheme()
            .as_ref()
            .map(|(before, behind)| format!("{before}{id}{behind}"));
        let likely = likely.map(|name| pod.below(&name));
        if let Some(found) = likely.filter(Home::exists) {
            return Some(found);
        }
        let children = self.kernel.children(pod.path());
        let found = children
            .iter()
            .find_map(|name| Some((name, name.split_once(id)?)));
        let (name, (before, behind)) = found?;
        *scheme() = Some((before.to_owned(), behind.to_owned()));
        Some(pod.below(name))
    }

    fn container(
        &self,
        home: Option<&Home<'_>>,
        (container, stamp): (&ObservedContainer, Stamp),
        logs: &Path,
        paper: &mut Paper,
    ) -> Container {
        let id = container.id.as_str();
        let told = self.told.containers.get(id);
        let cgroup = home.and_then(|home| self.cgroup(home, stamp, paper));
        let mut cgroup =
            cgroup.unwrap_or_else(|| told.map(|t| t.cgroup.clone()).unwrap_or_default());
        if let (Some(cpu), Some(told)) = (&mut cgroup.cpu, told) {
            // Until there are two readings of our own, the runtime's rate has to do.
            let theirs = told.cgroup.cpu.as_ref().and_then(|c| c.nano_cores);
            cpu.nano_cores = cpu.nano_cores.or(theirs);
        }
        match (self.depth, home, &mut cgroup.tasks) {
            (Depth::Full, Some(home), Some(tasks)) => tasks.files = home.open_files(paper),
            (Depth::Summary, Some(home), tasks) => *tasks = home.tasks(paper),
            _ => {}
        }
        let started = match container.started_at {
            0 => container.created_at,
            at => at,
        };
        Container {
            name: container.name.clone(),
            id: id.to_owned(),
            image: container.image.to_string(),
            path: home.map_or_else(String::new, |home| home.path().to_owned()),
            started: nanos(started),
            cgroup,
            writable: told.and_then(|t| t.written),
            logs: match self.depth >= Depth::Summary {
                true => files::files_in(&logs.join(&*container.name)),
                false => None,
            },
        }
    }

    /// With the network it holds for the pod.
    fn sandbox(
        &self,
        home: Option<&Home<'_>>,
        (sandbox, stamp): (&ObservedSandbox, Stamp),
        paper: &mut Paper,
    ) -> (Container, Vec<Interface>) {
        let id = sandbox.id.as_str();
        let told = self.told.sandboxes.get(id);
        let cgroup = match (self.depth, home) {
            (Depth::CpuAndMemory, _) | (_, None) => None,
            (Depth::Summary, Some(home)) => Some(Cgroup {
                tasks: home.tasks(paper),
                ..Cgroup::default()
            }),
            (Depth::Full, Some(home)) => self.cgroup(home, stamp, paper),
        };
        let network = match self.depth >= Depth::Summary {
            true => self.network(told.and_then(|t| t.pid), home, paper),
            false => Vec::new(),
        };
        let found = Container {
            id: id.to_owned(),
            image: told.map(|t| t.image.clone()).unwrap_or_default(),
            path: home.map_or_else(String::new, |home| home.path().to_owned()),
            started: nanos(sandbox.created_at),
            cgroup: cgroup.unwrap_or_default(),
            ..Container::default()
        };
        (found, network)
    }

    fn network(
        &self,
        told: Option<u32>,
        home: Option<&Home<'_>>,
        paper: &mut Paper,
    ) -> Vec<Interface> {
        let process = told.or_else(|| home?.first_process(paper));
        process.map_or_else(Vec::new, |process| self.kernel.network(process, paper))
    }
}

/// One instance of each container; while one ends and the next starts there may be two.
pub(crate) fn newest_running(observed: &ObservedPod) -> Vec<&ObservedContainer> {
    let mut found: Vec<&ObservedContainer> = Vec::new();
    for container in observed.running() {
        if !found.iter().any(|other| other.name == container.name) {
            found.push(container);
        }
    }
    found
}

fn nanos(at: i64) -> Option<Timestamp> {
    let at = Timestamp::from_nanosecond(i128::from(at)).ok()?;
    (at > Timestamp::UNIX_EPOCH).then_some(at)
}

#[cfg(test)]
#[path = "collect_tests.rs"]
mod tests;
