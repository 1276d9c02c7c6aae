//! What single pods keep on the node's disk, for whoever holds them to their limits.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use krablet_pod::observed::{ObservedContainer, ObservedPod};
use krablet_pod::storage::{ContainerUsage, LocalUsage};
use krablet_pod::{PodUid, paths};

use crate::collect::newest_running;
use crate::measure::Measure;
use crate::runtime::Told;
use crate::{Pods, Stats, StatsConfig, StatsError, files, storage};

/// How long the figure of a volume stands: whoever asks every ten seconds gets a new one each time.
pub(crate) const FRESH: Duration = Duration::from_secs(9);

impl Stats {
    /// What these pods keep, with the last figure of each volume; those of other pods' volumes are forgotten. What containers
    /// wrote beside their volumes is only counted if `containers` says so, for the runtime has to be asked for it.
    pub async fn local_usage(
        &self,
        of: &BTreeSet<PodUid>,
        containers: bool,
    ) -> Result<BTreeMap<PodUid, LocalUsage>, StatsError> {
        let mut observed = self.alive();
        observed.retain(|pod| of.contains(&pod.pod.uid));
        let told = match containers {
            true => self.desk.lock().await.runtime.containers().await,
            false => Arc::default(),
        };
        let (config, pods, measure) =
            (self.config.clone(), self.pods.clone(), self.watched.clone());
        let read = move || read(&config, &*pods, &observed, &measure, &told);
        Ok(tokio::task::spawn_blocking(read).await?)
    }
}

fn read(
    config: &StatsConfig,
    pods: &dyn Pods,
    observed: &[Arc<ObservedPod>],
    measure: &Measure,
    told: &Told,
) -> BTreeMap<PodUid, LocalUsage> {
    let mut volumes = storage::volumes(pods, observed, measure);
    let one_disk = writes_to_disk_of(config.root.path(), told);
    let of = |pod: &Arc<ObservedPod>| {
        let uid = pod.pod.uid.clone();
        let logs = paths::pod_log_dir(&config.pod_logs, &pod.pod);
        let container = |container: &ObservedContainer| {
            let log = files::files_in(&logs.join(&*container.name));
            let figures = told.containers.get(container.id.as_str());
            let written = figures.and_then(|c| c.written);
            let usage = ContainerUsage {
                logs: log.map_or(0, |usage| usage.bytes),
                written: written.map_or(0, |usage| usage.bytes),
            };
            (container.name.to_string(), usage)
        };
        let volumes = volumes.remove(&uid).unwrap_or_default().into_iter();
        let mut other = files::file(&config.root.etc_hosts(&uid)).unwrap_or_default();
        other.add(files::files_in(&logs).unwrap_or_default());
        let usage = LocalUsage {
            volumes: volumes.map(|v| (v.name, v.usage.bytes)).collect(),
            containers: newest_running(pod).into_iter().map(container).collect(),
            other: other.bytes,
            one_disk,
        };
        (uid, usage)
    };
    observed.iter().map(of).collect()
}

/// Whether containers write to the disk that the agent's directory is on. Where they have a disk of their own, what they
/// write there is nobody's concern here; where it is not known, nobody is to be blamed.
fn writes_to_disk_of(root: &Path, told: &Told) -> bool {
    let device = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
    let place = told.writable.as_ref().or(told.images.as_ref());
    let writes = place.and_then(|(path, _)| device(path));
    writes.is_some() && writes == device(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_disk_containers_write_to() {
        let dir = tempfile::tempdir().unwrap();
        let told = |place: Option<&Path>| Told {
            images: place.map(|path| (path.to_owned(), None)),
            ..Told::default()
        };
        assert!(writes_to_disk_of(dir.path(), &told(Some(dir.path()))));
        let elsewhere = told(Some(Path::new("/proc")));
        assert!(!writes_to_disk_of(dir.path(), &elsewhere));
        assert!(!writes_to_disk_of(dir.path(), &told(None)));
        let gone = told(Some(Path::new("/no/such/place")));
        assert!(!writes_to_disk_of(Path::new("/nor/this"), &gone));
    }
}
