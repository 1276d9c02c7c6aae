//! What single pods keep on the node's disk, for whoever holds them to their limits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use krablet_pod::observed::{ObservedContainer, ObservedPod};
use krablet_pod::storage::{ContainerUsage, LocalUsage};
use krablet_pod::{PodUid, paths};

use crate::collect::newest_running;
use crate::devices::{Device, Devices};
use crate::files::Kernel;
use crate::measure::{Asker, Measure};
use crate::reading::Volume;
use crate::runtime::Told;
use crate::{Pods, Stats, StatsConfig, StatsError, files, storage};

/// How old the figure of a volume or of a container may be: whoever asks every ten seconds gets a new one each time.
pub(crate) const FRESH: Duration = Duration::from_secs(9);

/// The volumes to be measured, by pod and by name.
pub type CountedVolumes = BTreeMap<PodUid, BTreeSet<String>>;

impl Stats {
    /// What these pods keep, with the last figure of each volume that counts; those of other volumes are not looked for. What
    /// containers wrote beside their volumes is only counted if `containers` says so, for the runtime has to be asked for it.
    /// Its answer is waited for, as long as it is to be expected.
    pub async fn local_usage(
        &self,
        of: CountedVolumes,
        containers: bool,
    ) -> Result<BTreeMap<PodUid, LocalUsage>, StatsError> {
        let told = match containers {
            true => self.told_lately().await,
            false => Arc::default(),
        };
        let mut observed = self.alive();
        observed.retain(|pod| of.contains_key(&pod.pod.uid));
        let look = Look {
            config: self.config.clone(),
            kernel: self.kernel.clone(),
            pods: self.pods.clone(),
            measure: self.measure.clone(),
            devices: self.devices.clone(),
            observed,
            told,
            of,
        };
        let (usage, one_disk) = self.limits.alone(move || look.take()).await?;
        if containers {
            self.note_disk(one_disk);
        }
        Ok(usage)
    }

    /// Nobody who scrapes waits meanwhile.
    async fn told_lately(&self) -> Arc<Told> {
        let coming = self.desk.lock().await.runtime.order(FRESH).await;
        if let Some(coming) = coming {
            coming.here().await;
        }
        self.desk.lock().await.runtime.containers(FRESH).await
    }

    /// A limit that is not enforced is worth a line, but not one every ten seconds.
    fn note_disk(&self, one_disk: Option<bool>) {
        let unknown = one_disk.is_none();
        if self.disk_unknown.swap(unknown, Ordering::Relaxed) != unknown && unknown {
            tracing::warn!(
                "The runtime does not say which disk containers write to: what they write there is not held against limits of single containers"
            );
        }
    }
}

/// What one look needs; it blocks on files, so it runs beside the async threads.
struct Look {
    config: Arc<StatsConfig>,
    kernel: Kernel,
    pods: Arc<dyn Pods>,
    measure: Arc<Measure>,
    devices: Arc<Devices>,
    observed: Vec<Arc<ObservedPod>>,
    told: Arc<Told>,
    of: CountedVolumes,
}

impl Look {
    /// With whether containers write to the node's own disk, if that is known. Where it is not, nobody is to be blamed.
    fn take(self) -> (BTreeMap<PodUid, LocalUsage>, Option<bool>) {
        let device = |path: &Path| self.devices.of(path, &self.kernel);
        let one_disk = writes_to_disk_of(self.config.root.path(), &self.told, device);
        let mut places = storage::places(&*self.pods, &self.observed);
        for (uid, places) in &mut places {
            let counted = self.of.get(uid);
            places.retain(|place| counted.is_some_and(|c| c.contains(&place.name)));
        }
        let mut volumes = storage::volumes(places, &self.measure, Asker::Limits);
        let usage = self.observed.iter().map(|pod| {
            let uid = pod.pod.uid.clone();
            let volumes = volumes.remove(&uid).unwrap_or_default();
            let usage = self.usage(pod, volumes, one_disk.unwrap_or(false));
            (uid, usage)
        });
        (usage.collect(), one_disk)
    }

    fn usage(&self, pod: &ObservedPod, volumes: Vec<Volume>, one_disk: bool) -> LocalUsage {
        let logs = paths::pod_log_dir(&self.config.pod_logs, &pod.pod);
        let hosts = self.config.root.etc_hosts(&pod.pod.uid);
        let mut other = files::file(&hosts).unwrap_or_default();
        other.add(files::files_in(&logs).unwrap_or_default());
        let volumes = volumes.into_iter();
        let containers = newest_running(pod).into_iter();
        LocalUsage {
            volumes: volumes.map(|v| (v.name, v.usage.bytes)).collect(),
            containers: containers
                .map(|c| (c.name.to_string(), self.container(c, &logs)))
                .collect(),
            other: other.bytes,
            one_disk,
        }
    }

    fn container(&self, container: &ObservedContainer, logs: &Path) -> ContainerUsage {
        let log = files::files_in(&logs.join(&*container.name));
        let figures = self.told.containers.get(container.id.as_str());
        let written = figures.and_then(|c| c.written);
        ContainerUsage {
            logs: log.map_or(0, |usage| usage.bytes),
            written: written.map_or(0, |usage| usage.bytes),
        }
    }
}

/// Where containers have a disk of their own, what they write there is nobody's concern here.
fn writes_to_disk_of(
    root: &Path,
    told: &Told,
    device: impl Fn(&Path) -> Option<Device>,
) -> Option<bool> {
    let (place, _) = told.writable.as_ref().or(told.images.as_ref())?;
    Some(device(place)?.is_disk_of(&device(root)?))
}

#[cfg(test)]
mod tests {
    use krablet_linux::CgroupVersion;

    use super::*;

    #[test]
    fn whose_disk_containers_write_to() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::of_this_machine(CgroupVersion::V2);
        let devices = Devices::default();
        let (here, proc) = (dir.path(), Path::new("/proc"));
        let nowhere = Path::new("/no/such/place");
        for (root, images, writable, expected) in [
            (here, Some(here), None, Some(true)),
            (here, Some(proc), None, Some(false)),
            // Where they write counts, not where their images are.
            (here, Some(here), Some(proc), Some(false)),
            (here, Some(proc), Some(here), Some(true)),
            (here, None, None, None),
            (here, Some(nowhere), None, None),
            (nowhere, Some(here), None, None),
        ] {
            let place = |path: &Path| (path.to_owned(), None);
            let told = Told {
                images: images.map(place),
                writable: writable.map(place),
                ..Told::default()
            };
            let found = writes_to_disk_of(root, &told, |path| devices.of(path, &kernel));
            assert_eq!(found, expected, "{root:?} {images:?} {writable:?}");
        }
    }
}
