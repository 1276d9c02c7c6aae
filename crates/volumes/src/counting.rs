//! What is counted of volumes: how long they took to set up and to take away, and how many there are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use krablet_metrics::VolumeMetrics;
use krablet_pod::PodRef;
use krablet_pod::api::{Pod, PodSpec};
use krablet_podcerts::PodCertificates;

use crate::plugin::{Source, VolumeRequest};
use crate::record::{DEVICES, RecordedVolume};
use crate::used::used;
use crate::volumes::{SUB_PATH, Volumes, volumes_of};

/// Where a volume of an unknown kind comes from.
const UNKNOWN: &str = "N/A";
/// Volumes that pods are to have.
const DESIRED: &str = "desired_state_of_world";
/// Volumes that stand.
const ACTUAL: &str = "actual_state_of_world";

/// Numbers of volumes, by the name of their plugin and their state.
pub type Census = BTreeMap<(&'static str, &'static str), u64>;

impl Volumes {
    /// How many volumes stand, and how many these pods are to have.
    pub fn census(&self, wanted: &[Arc<Pod>]) -> Census {
        let mut census = Census::new();
        let ready = self.ready();
        for mounted in ready.values().flat_map(|r| r.mounts.values()) {
            *census.entry((mounted.plugin, ACTUAL)).or_default() += 1;
        }
        let empty = PodSpec::default();
        for pod in wanted {
            let used = used(pod.spec.as_ref().unwrap_or(&empty));
            let stands = ready.get(&PodRef::of(pod).uid);
            for volume in volumes_of(pod).iter().filter(|v| used.has(&v.name)) {
                // What is behind a claim is known once it stands.
                let mounted = stands.and_then(|r| r.mounts.get(&volume.name));
                let by_spec = || {
                    let source = Source::Inline(volume);
                    let plugin = self.plugins.iter().find(|p| p.supports(&source));
                    plugin.map_or(UNKNOWN, |p| p.name())
                };
                let plugin = mounted.map_or_else(by_spec, |m| m.plugin);
                *census.entry((plugin, DESIRED)).or_default() += 1;
            }
        }
        census
    }

    /// How many certificates of pods are in which state, by signer.
    pub fn certificate_states(&self) -> BTreeMap<(String, &'static str), usize> {
        let certificates = self.deps.certificates.as_ref();
        certificates
            .map(PodCertificates::states)
            .unwrap_or_default()
    }

    /// A sweep found so many directories of pods that are gone, and could not remove so many of them.
    pub fn swept(&self, found: u64, failed: u64) {
        self.deps.metrics.swept(found, failed);
    }

    /// A volume was to be set up.
    pub(crate) fn count_set_up(
        &self,
        request: &VolumeRequest<'_>,
        plugin: &str,
        took: Duration,
        done: bool,
    ) {
        let metrics = &self.deps.metrics;
        if request.source.is_block() {
            // Upstream tells the time of the whole only of file systems.
            return count(metrics, "map_volume", plugin, took, done);
        }
        count(metrics, "volume_mount", plugin, took, done);
        let stands = || self.waiting.stands(request.uid, &request.volume.name);
        if let Some(waited) = done.then(stands).flatten() {
            let labels = ["overall_volume_mount", plugin];
            metrics.totals.observe_duration(&labels, waited);
        }
    }
}

fn count(metrics: &VolumeMetrics, operation: &str, plugin: &str, took: Duration, done: bool) {
    let status = match done {
        true => "success",
        false => "fail-unknown",
    };
    // Nothing here was moved from one kind of volume to another.
    let labels = ["false", operation, status, plugin];
    metrics.operations.observe_duration(&labels, took);
}

/// The volumes of a pod while they are taken away.
pub(crate) struct Taking<'a> {
    volumes: Vec<Taken<'a>>,
    /// What was done for all of them together.
    together: Duration,
}

struct Taken<'a> {
    volume: &'a RecordedVolume,
    point: PathBuf,
    took: Duration,
    failed: bool,
}

impl<'a> Taking<'a> {
    pub(crate) fn new(pod_dir: &Path, recorded: &'a [RecordedVolume]) -> Self {
        let volumes = recorded.iter().filter(|v| v.plugin != SUB_PATH);
        let volumes = volumes.map(|volume| Taken {
            volume,
            point: pod_dir.join(&volume.path),
            took: Duration::ZERO,
            failed: false,
        });
        Self {
            volumes: volumes.collect(),
            together: Duration::ZERO,
        }
    }

    /// Something was done at the place where a volume stands.
    pub(crate) fn note(&mut self, point: &Path, took: Duration, done: bool) {
        for taken in self.volumes.iter_mut().filter(|v| v.point == point) {
            taken.took += took;
            taken.failed |= !done;
        }
    }

    pub(crate) fn note_all(&mut self, took: Duration) {
        self.together += took;
    }

    /// One that waits for another is counted when all are gone.
    pub(crate) fn count(self, metrics: &VolumeMetrics, all_gone: bool) {
        let ended = self.volumes.iter().filter(|v| v.failed || all_gone);
        for taken in ended {
            let operation = match taken.volume.path.starts_with(DEVICES) {
                true => "unmap_volume",
                false => "volume_unmount",
            };
            let took = taken.took + self.together;
            let plugin = &taken.volume.plugin;
            count(metrics, operation, plugin, took, !taken.failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(name: &str, plugin: &str, place: &str) -> RecordedVolume {
        RecordedVolume {
            name: name.to_owned(),
            plugin: plugin.to_owned(),
            path: Path::new(place).join(name),
            mounted: true,
            outside: None,
        }
    }

    /// Each count with its labels and the seconds it is of.
    fn told(metrics: &VolumeMetrics) -> Vec<String> {
        let all = metrics.operations.get().into_iter();
        let lines = all.map(|(labels, seen)| {
            format!("{} {}x {}s", labels.join(" "), seen.count(), seen.sum())
        });
        lines.collect()
    }

    #[test]
    fn volumes_that_are_taken_away() {
        let volumes = [
            recorded("a", "kubernetes.io/nfs", "volumes"),
            recorded("b", "kubernetes.io/iscsi", "volumeDevices"),
            recorded("c", SUB_PATH, "volume-subpaths"),
        ];
        let second = Duration::from_secs(1);
        let dir = Path::new("/pod");
        let cases: [(bool, bool, &[&str]); 3] = [
            (
                true,
                true,
                &[
                    "false unmap_volume success kubernetes.io/iscsi 1x 2s",
                    "false volume_unmount success kubernetes.io/nfs 1x 3s",
                ],
            ),
            (
                false,
                false,
                &["false volume_unmount fail-unknown kubernetes.io/nfs 1x 3s"],
            ),
            (true, false, &[]),
        ];
        for (unmounted, all_gone, expected) in cases {
            let metrics = VolumeMetrics::default();
            let mut taking = Taking::new(dir, &volumes);
            taking.note(Path::new("/pod/volumes/a"), second, unmounted);
            taking.note(Path::new("/pod/volume-subpaths/c"), second, false);
            taking.note_all(2 * second);
            taking.count(&metrics, all_gone);
            assert_eq!(told(&metrics), expected, "{unmounted} {all_gone}");
        }
    }
}
