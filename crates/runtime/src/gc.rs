//! Garbage collection in the runtime: dead containers with their logs, dead sandboxes, logs of
//! pods that are gone, links to logs that are no more. What goes is chosen by the pure core; here
//! it is done. What fails is told and tried again in the next round.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt;
use futures::stream;
use krablet_core::gc::{self, DeadContainer, Fate, GcInputs, GcPolicy};
use krablet_cri::RuntimeService;
use krablet_linux::{EntryKind, Files, WallClock};
use krablet_pod::observed::ObservedPod;
use krablet_pod::paths::legacy_log_symlink;
use krablet_pod::{ContainerId, PodRef, PodUid, SandboxId};
use tracing::field::display;

use crate::remove::{instance_logs, never_started};

/// Pods cleaned at once. One whose removal hangs keeps the others of its round waiting no longer
/// than this many of its kind.
const WIDTH: usize = 4;
/// Grace for a container whose state is not known.
const STOP_GRACE_SECONDS: i64 = 2;

#[derive(Clone, Debug)]
pub struct GcSettings {
    pub policy: GcPolicy,
    /// `/var/log/pods`.
    pub pod_logs: PathBuf,
    /// `/var/log/containers`.
    pub container_logs: PathBuf,
}

/// Keeps a pod that comes back from beginning anew while its remains are being removed.
pub type Claim = Box<dyn Any + Send>;

/// What a round of collection is told.
#[derive(Clone, Copy)]
pub struct GcRound<'a> {
    /// What the runtime holds, proven by a list.
    pub pods: &'a [Arc<ObservedPod>],
    pub fate: &'a (dyn Fn(&PodUid) -> Fate + Sync),
    /// The exit of this container stands in a status that was stored.
    pub recorded: &'a (dyn Fn(&ContainerId) -> bool + Sync),
    /// Asked before anything of a pod goes; `None`: it is wanted after all. The claim is kept until
    /// that is done.
    pub claim: &'a (dyn Fn(&PodUid) -> Option<Claim> + Sync),
    pub sources_ready: bool,
    /// Disk is short: terminated pods lose their content too.
    pub evict_terminated: bool,
}

/// What a round did. All zero and empty on a quiet node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcReport {
    pub containers: BTreeSet<ContainerId>,
    pub sandboxes: BTreeSet<SandboxId>,
    pub log_dirs: usize,
    pub links: usize,
    /// In words for the log and the event `ContainerGCFailed`.
    pub failures: Vec<String>,
}

/// Whose remains could not be removed, as far as that is known.
#[derive(Clone, Copy, Default)]
struct Whose<'a> {
    pod: Option<&'a PodRef>,
    uid: Option<&'a PodUid>,
    container: Option<&'a DeadContainer>,
}

impl<'a> Whose<'a> {
    fn pod(pod: &'a PodRef) -> Self {
        Self {
            pod: Some(pod),
            uid: Some(&pod.uid),
            container: None,
        }
    }

    fn container(dead: &'a DeadContainer) -> Self {
        Self {
            container: Some(dead),
            ..Self::pod(&dead.pod)
        }
    }
}

impl GcReport {
    fn fail(&mut self, whose: Whose<'_>, text: String) {
        let (pod, uid) = (whose.pod.map(display), whose.uid.map(display));
        let name = whose.container.map(|c| &*c.name);
        let id = whose.container.map(|c| display(&c.id));
        tracing::error!(
            pod,
            podUID = uid,
            containerName = name,
            containerID = id,
            err = text,
            "Garbage collection failed, will retry"
        );
        self.failures.push(text);
    }
}

#[derive(Clone)]
pub struct ContainerGc {
    settings: GcSettings,
    runtime: Arc<dyn RuntimeService>,
    files: Arc<dyn Files>,
    clock: Arc<dyn WallClock>,
}

impl ContainerGc {
    pub fn new(
        settings: GcSettings,
        runtime: Arc<dyn RuntimeService>,
        files: Arc<dyn Files>,
        clock: Arc<dyn WallClock>,
    ) -> Self {
        Self {
            settings,
            runtime,
            files,
            clock,
        }
    }

    /// One round over everything: containers, then the sandboxes they leave empty, then logs.
    pub async fn run(&self, round: &GcRound<'_>) -> GcReport {
        let mut report = GcReport::default();
        let dead = gc::dead_containers(&self.inputs(round));
        self.remove_containers(round, dead, &mut report).await;
        let dead = gc::dead_sandboxes(&self.inputs(round), &report.containers);
        self.remove_sandboxes(round, dead, &mut report).await;
        self.remove_log_dirs(round, &mut report).await;
        self.remove_links(round, &mut report).await;
        report
    }

    fn inputs<'a>(&self, round: &GcRound<'a>) -> GcInputs<'a> {
        GcInputs {
            pods: round.pods,
            fate: round.fate,
            recorded: round.recorded,
            sources_ready: round.sources_ready,
            evict_terminated: round.evict_terminated,
            policy: self.settings.policy,
            now: i64::try_from(self.clock.now().as_nanosecond()).unwrap_or(i64::MAX),
        }
    }

    /// One pod's containers in the order chosen, a few pods at once.
    async fn remove_containers(
        &self,
        round: &GcRound<'_>,
        dead: Vec<DeadContainer>,
        report: &mut GcReport,
    ) {
        let mut by_pod: BTreeMap<PodUid, Vec<DeadContainer>> = BTreeMap::new();
        for container in dead {
            let pod = container.pod.uid.clone();
            by_pod.entry(pod).or_default().push(container);
        }
        let mut done = stream::iter(by_pod)
            .map(|(pod, containers)| async move {
                let mut results = Vec::new();
                let Some(_claim) = (round.claim)(&pod) else {
                    return results;
                };
                for container in containers {
                    let result = self.remove_container(&container).await;
                    results.push((container, result));
                }
                results
            })
            .buffer_unordered(WIDTH);
        while let Some(results) = done.next().await {
            for (container, result) in results {
                match result {
                    Ok(()) => {
                        report.containers.insert(container.id);
                    }
                    Err(text) => report.fail(Whose::container(&container), text),
                }
            }
        }
    }

    /// The log goes first: once the runtime forgot the container, nothing would lead to it.
    async fn remove_container(&self, dead: &DeadContainer) -> Result<(), String> {
        let id = dead.id.as_str();
        let failed = |what: &str, why: &dyn std::fmt::Display| {
            format!(
                "failed to {what} container {:?} ({id}) of pod {}: {why}",
                dead.name, dead.pod
            )
        };
        if dead.stop_first {
            match self.runtime.stop_container(id, STOP_GRACE_SECONDS).await {
                Err(e) if !e.is_not_found() => return Err(failed("stop", &e)),
                _ => {}
            }
        }
        if dead.never_started {
            match never_started(&*self.runtime, &dead.id).await {
                Ok(true) => {}
                // It ran after all: the next round knows how it ended.
                Ok(false) => return Ok(()),
                Err(e) => return Err(failed("look at", &e)),
            }
        }
        self.remove_logs(dead)
            .await
            .map_err(|e| failed("remove the log of", &e))?;
        match self.runtime.remove_container(id).await {
            Err(e) if !e.is_not_found() => Err(failed("remove", &e)),
            _ => Ok(()),
        }
    }

    async fn remove_logs(&self, dead: &DeadContainer) -> io::Result<()> {
        for path in instance_logs(&*self.files, Path::new(&dead.log_path)).await? {
            self.files.remove_file(&path).await?;
        }
        let dir = &self.settings.container_logs;
        let link = legacy_log_symlink(dir, &dead.pod, &dead.name, &dead.id);
        self.files.remove_file(&link).await
    }

    async fn remove_sandboxes(
        &self,
        round: &GcRound<'_>,
        dead: Vec<(PodRef, SandboxId)>,
        report: &mut GcReport,
    ) {
        let mut done = stream::iter(dead)
            .map(|(pod, id)| async move {
                let _claim = (round.claim)(&pod.uid)?;
                let result = self.remove_sandbox(&pod, &id).await;
                Some((pod, id, result))
            })
            .buffered(WIDTH);
        while let Some(removed) = done.next().await {
            let Some((pod, id, result)) = removed else {
                continue;
            };
            match result {
                Ok(()) => {
                    report.sandboxes.insert(id);
                }
                Err(text) => report.fail(Whose::pod(&pod), text),
            }
        }
    }

    /// A sandbox that is not ready may still hold its network: stopping gives that back.
    async fn remove_sandbox(&self, pod: &PodRef, id: &SandboxId) -> Result<(), String> {
        let failed = |what: &str, e: krablet_cri::Error| {
            format!("failed to {what} sandbox {id} of pod {pod}: {e}")
        };
        match self.runtime.stop_pod_sandbox(id.as_str()).await {
            Err(e) if !e.is_not_found() => return Err(failed("stop", e)),
            _ => {}
        }
        match self.runtime.remove_pod_sandbox(id.as_str()).await {
            Err(e) if !e.is_not_found() => Err(failed("remove", e)),
            _ => Ok(()),
        }
    }

    async fn remove_log_dirs(&self, round: &GcRound<'_>, report: &mut GcReport) {
        let dir = &self.settings.pod_logs;
        let names = match self.names(dir, EntryKind::Directory).await {
            Ok(names) => names,
            Err(e) => {
                let text = format!("failed to read the pod logs directory: {e}");
                return report.fail(Whose::default(), text);
            }
        };
        let listed = names.iter().map(String::as_str);
        for (uid, name) in gc::gone_log_dirs(listed, round.fate, round.sources_ready) {
            let Some(_claim) = (round.claim)(&uid) else {
                continue;
            };
            match self.files.remove_tree(&dir.join(name)).await {
                Ok(()) => report.log_dirs += 1,
                Err(e) => {
                    let whose = Whose {
                        uid: Some(&uid),
                        ..Whose::default()
                    };
                    report.fail(whose, format!("failed to remove pod logs: {e}"));
                }
            }
        }
    }

    async fn remove_links(&self, round: &GcRound<'_>, report: &mut GcReport) {
        let dir = &self.settings.container_logs;
        let names = match self.names(dir, EntryKind::Symlink).await {
            Ok(names) => names,
            Err(e) => {
                let text = format!("failed to read the links to logs: {e}");
                return report.fail(Whose::default(), text);
            }
        };
        let mut dangling = Vec::new();
        for name in &names {
            match self.files.stat(&dir.join(name)).await {
                Err(e) if e.kind() == io::ErrorKind::NotFound => dangling.push(name.as_str()),
                _ => {}
            }
        }
        for name in gc::dead_symlinks(dangling, round.pods) {
            match self.files.remove_file(&dir.join(name)).await {
                Ok(()) => report.links += 1,
                Err(e) => {
                    let text = format!("failed to remove a link to a log: {e}");
                    report.fail(Whose::default(), text);
                }
            }
        }
    }

    /// Names of the entries of one kind; none if the directory is absent.
    async fn names(&self, dir: &Path, kind: EntryKind) -> io::Result<Vec<String>> {
        let entries = match self.files.list(dir).await {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let of_kind = entries.iter().filter(|e| e.kind == kind);
        let names = of_kind.filter_map(|e| e.path.file_name()?.to_str().map(str::to_owned));
        Ok(names.collect())
    }
}

#[cfg(test)]
pub(crate) mod tests;
