//! What pods keep on disks: the figures of their volumes and logs, without those of their cgroups.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use krablet_pod::observed::ObservedPod;
use krablet_pod::{PodRef, PodUid, paths};

use crate::collect::newest_running;
use crate::files;
use crate::measure::{Asker, Measure, Measured};
use crate::reading::{Usage, Volume};
use crate::{Pods, VolumePlace};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Storage {
    /// Volumes with a claim behind them, by the claim's namespace and name; one of them where several pods share it.
    pub claims: BTreeMap<(String, String), Volume>,
    pub logs: Vec<ContainerLog>,
}

/// What the log of a running container takes, with its older parts.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerLog {
    pub pod: PodRef,
    pub container: Arc<str>,
    pub usage: Usage,
}

impl Storage {
    /// Reads files, so it runs beside the async threads.
    pub(crate) fn read(
        pods: &dyn Pods,
        observed: &[Arc<ObservedPod>],
        measure: &Measure,
        pod_logs: &Path,
    ) -> Self {
        let volumes = volumes(places(pods, observed), measure, Asker::Scrapes);
        let with_claim = |volume: Volume| Some((volume.claim.clone()?, volume));
        Self {
            claims: volumes
                .into_values()
                .flatten()
                .filter_map(with_claim)
                .collect(),
            logs: observed
                .iter()
                .flat_map(|pod| logs(pod, pod_logs))
                .collect(),
        }
    }
}

fn logs(observed: &ObservedPod, pod_logs: &Path) -> Vec<ContainerLog> {
    let directory = paths::pod_log_dir(pod_logs, &observed.pod);
    let log = |name: &Arc<str>| {
        Some(ContainerLog {
            pod: observed.pod.clone(),
            container: name.clone(),
            usage: files::files_in(&directory.join(&**name))?,
        })
    };
    let running = newest_running(observed);
    running.into_iter().filter_map(|c| log(&c.name)).collect()
}

pub(crate) type Places = BTreeMap<PodUid, Vec<VolumePlace>>;

/// Where the volumes of these pods are.
pub(crate) fn places(pods: &dyn Pods, observed: &[Arc<ObservedPod>]) -> Places {
    let of = |pod: &Arc<ObservedPod>| {
        let uid = pod.pod.uid.clone();
        let places = pods.volumes(&uid);
        (uid, places)
    };
    observed.iter().map(of).collect()
}

/// The last figures of these volumes; those that are old are measured anew meanwhile.
pub(crate) fn volumes(
    places: Places,
    measure: &Measure,
    asker: Asker,
) -> BTreeMap<PodUid, Vec<Volume>> {
    let wanted: BTreeSet<PathBuf> = places
        .values()
        .flatten()
        .map(|place| place.path.clone())
        .collect();
    let known = measure.figures(asker, &wanted);
    let found = |places: Vec<VolumePlace>| {
        let volumes = places.into_iter().filter_map(|place| {
            let measured = known.get(&place.path)?;
            Some(volume(place, measured))
        });
        volumes.collect()
    };
    places
        .into_iter()
        .map(|(uid, places)| (uid, found(places)))
        .collect()
}

fn volume(place: VolumePlace, measured: &Measured) -> Volume {
    Volume {
        name: place.name,
        claim: place.claim,
        ephemeral: place.ephemeral,
        file_system: measured.file_system.clone(),
        usage: measured.usage,
        at: measured.at,
    }
}
