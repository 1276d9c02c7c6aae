//! The kubelet's own record of resources, read when a node is taken over and kept right while it
//! is ours, so that it can be handed back.
//!
//! `allocated_pods_state` holds what each pod was admitted with, `actuated_pods_state` what its
//! containers were started with. Both are `{"data":"<JSON>","checksum":n}`, the checksum being the
//! 32-bit FNV-1a of the printed form of the string. A kubelet that finds one of them damaged does
//! not start; one that finds no file starts with no record. Then running containers whose resize
//! policy is RestartContainer may be restarted, since they seem to be of another size: a reason to
//! write both, and to write them right.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use krablet_linux::Files;
use krablet_pod::api::ResourceRequirements;
use krablet_pod::hash::fnv1a32;
use krablet_pod::{ActuatedContainer, Actuation, AdmittedPods, Allocation, ByName, PodUid};
use serde::{Deserialize, Serialize, Serializer};

use crate::error::{CheckpointError, Flaw};
use crate::file::{LastWritten, Loaded, load};
use crate::saver::{Saved, Store};

pub const ALLOCATED: &str = "allocated_pods_state";
pub const ACTUATED: &str = "actuated_pods_state";

#[derive(Serialize, Deserialize)]
struct Envelope {
    data: String,
    checksum: u64,
}

/// Fields that other releases have are ignored, and those they lack are empty, as the kubelet does.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    entries: BTreeMap<PodUid, Entry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    #[serde(rename = "ContainerResources")]
    containers: Option<ByName<ResourceRequirements>>,
    #[serde(rename = "PodLevelResources")]
    pod: Option<ResourceRequirements>,
}

/// The same to be written: each entry is made when its turn comes.
#[derive(Serialize)]
struct Written<E: Serialize> {
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<E>,
}

#[derive(Serialize)]
struct WrittenEntry<'a> {
    #[serde(rename = "ContainerResources")]
    containers: Cow<'a, ByName<ResourceRequirements>>,
    #[serde(rename = "PodLevelResources")]
    pod: Option<&'a ResourceRequirements>,
}

/// Writes the entries of a map as they come.
struct Entries<'a, F> {
    pods: &'a AdmittedPods,
    entry: F,
}

impl<'a, F: Fn(&'a PodUid, &'a Allocation) -> WrittenEntry<'a>> Serialize for Entries<'a, F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let pods = self.pods.pods.iter();
        serializer.collect_map(pods.map(|(uid, own)| (uid, (self.entry)(uid, own))))
    }
}

/// What the pods were admitted with, from `<dir>/allocated_pods_state`, and what they were given where
/// that is something else. A damaged file is set aside, which also lets a kubelet start again.
pub async fn allocated_pods(files: &dyn Files, dir: &Path) -> Loaded<AdmittedPods> {
    let mut loaded = read(files, &dir.join(ALLOCATED)).await;
    if let Loaded::Valid(pods) = &mut loaded
        && let Some(given) = actuated_pods(files, dir).await.valid()
    {
        pods.actuated = under_way(pods, given);
    }
    loaded
}

/// Of the pods whose containers were last given something else than what they are promised.
fn under_way(promised: &AdmittedPods, given: AdmittedPods) -> BTreeMap<PodUid, Actuation> {
    let mut under_way = BTreeMap::new();
    for (uid, given) in given.pods {
        let given = Arc::unwrap_or_clone(given);
        let promise = promised.pods.get(&uid).map(|own| Actuation::of(own));
        let containers = given.containers.into_iter().map(|(name, resources)| {
            let id = None;
            (name, ActuatedContainer { id, resources })
        });
        let actuation = Actuation {
            containers: containers.collect(),
            pod: given.pod,
        };
        if promise.is_some_and(|promise| promise != actuation) {
            under_way.insert(uid, actuation);
        }
    }
    under_way
}

/// What the pods' containers were started with, from `<dir>/actuated_pods_state`.
pub async fn actuated_pods(files: &dyn Files, dir: &Path) -> Loaded<AdmittedPods> {
    read(files, &dir.join(ACTUATED)).await
}

async fn read(files: &dyn Files, path: &Path) -> Loaded<AdmittedPods> {
    load(files, path, |bytes| {
        decode(bytes).map_err(|flaw| flaw.to_string())
    })
    .await
}

fn decode(bytes: &[u8]) -> Result<AdmittedPods, Flaw> {
    let envelope: Envelope =
        serde_json::from_slice(bytes).map_err(|e| Flaw::Malformed(e.to_string()))?;
    if envelope.checksum != checksum(&envelope.data) {
        return Err(Flaw::Checksum);
    }
    let data: Data = serde_json::from_slice(envelope.data.as_bytes())
        .map_err(|e| Flaw::Content(e.to_string()))?;
    let pods = data.entries.into_iter().map(|(uid, entry)| {
        let allocation = Allocation {
            containers: entry.containers.unwrap_or_default(),
            pod: entry.pod,
        };
        (uid, Arc::new(allocation))
    });
    Ok(AdmittedPods {
        pods: pods.collect(),
        ..AdmittedPods::default()
    })
}

fn encode<'a>(
    pods: &'a AdmittedPods,
    entry: impl Fn(&'a PodUid, &'a Allocation) -> WrittenEntry<'a>,
) -> Result<Vec<u8>, CheckpointError> {
    let entries = (!pods.pods.is_empty()).then_some(Entries { pods, entry });
    let data = serde_json::to_string(&Written { entries })?;
    let checksum = checksum(&data);
    Ok(serde_json::to_vec(&Envelope { data, checksum })?)
}

/// What is hashed is the string as it is printed with its type before it.
fn checksum(data: &str) -> u64 {
    u64::from(fnv1a32("(string)".bytes().chain(data.bytes())))
}

fn allocated(allocation: &Allocation) -> WrittenEntry<'_> {
    WrittenEntry {
        containers: Cow::Borrowed(&allocation.containers),
        pod: allocation.pod.as_ref(),
    }
}

/// What a resize has not reached yet is as it was.
fn actuated<'a>(allocation: &'a Allocation, given: Option<&'a Actuation>) -> WrittenEntry<'a> {
    let mut containers = Actuation::of(allocation).containers;
    if let Some(given) = given {
        let told = given.containers.iter();
        containers.extend(told.map(|(name, c)| (name.clone(), c.clone())));
    }
    let containers = containers.into_iter();
    WrittenEntry {
        containers: Cow::Owned(containers.map(|(name, c)| (name, c.resources)).collect()),
        pod: given.map_or(allocation.pod.as_ref(), |given| given.pod.as_ref()),
    }
}

/// Both files, kept as the kubelet would keep them.
pub struct KubeletRecord {
    files: Arc<dyn Files>,
    allocated: PathBuf,
    actuated: PathBuf,
    last_allocated: LastWritten,
    last_actuated: LastWritten,
}

impl KubeletRecord {
    /// `dir` is the kubelet's root directory.
    pub fn new(files: Arc<dyn Files>, dir: &Path) -> Self {
        Self {
            files,
            allocated: dir.join(ALLOCATED),
            actuated: dir.join(ACTUATED),
            last_allocated: LastWritten::default(),
            last_actuated: LastWritten::default(),
        }
    }

    /// Writes both. A crash between the two leaves two whole files, one of them a moment older.
    pub async fn save(&mut self, pods: &AdmittedPods) -> Result<Saved, CheckpointError> {
        let files = &*self.files;
        let bytes = encode(pods, |_, a| allocated(a))?;
        let first = self.last_allocated.write(files, &self.allocated, &bytes);
        let first = first.await?;
        let bytes = encode(pods, |uid, a| actuated(a, pods.actuated.get(uid)))?;
        let second = self.last_actuated.write(files, &self.actuated, &bytes);
        match (first, second.await?) {
            (Saved::Unchanged, Saved::Unchanged) => Ok(Saved::Unchanged),
            _ => Ok(Saved::Written),
        }
    }
}

#[async_trait]
impl Store<AdmittedPods> for KubeletRecord {
    async fn save(&mut self, value: &AdmittedPods) -> Result<Saved, CheckpointError> {
        KubeletRecord::save(self, value).await
    }

    fn path(&self) -> &Path {
        &self.allocated
    }
}
