//! Where desired pods come from: a directory or file of manifests, a URL, the API server. Each source
//! delivers its whole set whenever it may have changed; one merge turns the sets into ordered updates.
//!
//! A source is whatever sends [`SourceSet`]s to the merge; so the pods an earlier life of the agent
//! remembers join here, too.

mod api;
mod file;
mod http;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use krablet_core::merge::{Merge, PodUpdate};
use krablet_events::{Recorder, Subject, reason};
use krablet_pod::api::Pod;
use krablet_pod::marks::{self, PodSource};
use krablet_pod::{PodRef, PodUid};
use tokio::sync::mpsc;
use tracing::info;

pub use api::ApiSource;
pub use file::{FileSource, FileSourceConfig};
pub use http::{UrlSource, UrlSourceConfig};

/// Sets that wait to be merged. Each source has at most one in flight, so this never fills up.
const SET_QUEUE: usize = 8;
/// Updates that wait for the sync loop; a source that is ahead of it waits.
const UPDATE_QUEUE: usize = 50;

/// Where a manifest was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    File(PathBuf),
    Url(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File(path) => path.display().fmt(f),
            Origin::Url(url) => f.write_str(url),
        }
    }
}

/// Turns a manifest's bytes into static pods of this node, or says in one line why not.
pub type Decode = Arc<dyn Fn(&[u8], &Origin) -> Result<Vec<Pod>, String> + Send + Sync>;

/// Knows the pods another agent left running on this node.
#[async_trait::async_trait]
pub trait TakeOver: Send + Sync {
    /// The UID under which this very pod already runs, if its manifest has not changed since.
    async fn running_as(&self, pod: &Pod, manifest_changed: Timestamp) -> Option<PodUid>;
}

/// Pods that another agent already runs from this manifest go on under the UID they have.
async fn taken_over(
    pods: Vec<Pod>,
    take_over: Option<&dyn TakeOver>,
    origin: &Origin,
    changed: Timestamp,
) -> Vec<Arc<Pod>> {
    let mut taken = Vec::with_capacity(pods.len());
    for mut pod in pods {
        if let Some(take_over) = take_over
            && let Some(uid) = take_over.running_as(&pod, changed).await
        {
            info!(pod = %PodRef::of(&pod), podUID = %uid, manifest = %origin, "Adopting the running static pod of this manifest");
            pod.metadata.uid = Some(uid.to_string());
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(marks::CONFIG_HASH.into(), uid.to_string());
        }
        taken.push(Arc::new(pod));
    }
    taken
}

/// The whole set of pods that a source wants now.
#[derive(Clone, Debug)]
pub struct SourceSet {
    pub source: PodSource,
    pub pods: Vec<Arc<Pod>>,
    /// Pods of an earlier life of this agent, to hold until the source itself speaks.
    pub restored: bool,
}

/// The merge of all sources.
pub struct Sources {
    merge: Merge,
    sets: mpsc::Receiver<SourceSet>,
    updates: mpsc::Sender<PodUpdate>,
    recorder: Recorder,
    clock: Arc<dyn krablet_linux::WallClock>,
}

/// The ends of the merge that others hold.
pub struct SourcesEnds {
    /// Sources send their sets here.
    pub sets: mpsc::Sender<SourceSet>,
    /// The sync loop takes ordered updates here.
    pub updates: mpsc::Receiver<PodUpdate>,
}

impl Sources {
    pub fn build(
        recorder: Recorder,
        clock: Arc<dyn krablet_linux::WallClock>,
    ) -> (Self, SourcesEnds) {
        let (set_sender, sets) = mpsc::channel(SET_QUEUE);
        let (updates, update_receiver) = mpsc::channel(UPDATE_QUEUE);
        let sources = Self {
            merge: Merge::default(),
            sets,
            updates,
            recorder,
            clock,
        };
        let ends = SourcesEnds {
            sets: set_sender,
            updates: update_receiver,
        };
        (sources, ends)
    }

    /// Merges until the last source or the sync loop is gone.
    pub async fn run(mut self) {
        while let Some(set) = self.sets.recv().await {
            let seen = self.clock.now().to_string();
            let merged = match set.restored {
                true => self.merge.restore(set.source, set.pods, &seen),
                false => self.merge.set(set.source, set.pods, &seen),
            };
            for duplicate in merged.duplicates {
                self.recorder.warning(
                    Subject::Pod(duplicate.pod.clone()),
                    reason::FAILED_VALIDATION,
                    duplicate.message(),
                );
            }
            for update in merged.updates {
                if self.updates.send(update).await.is_err() {
                    return;
                }
            }
        }
    }
}
