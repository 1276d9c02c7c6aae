//! What survives the agent: who was let in, and what the API server wanted last.

use std::path::PathBuf;

use krablet_checkpoint::upstream::{self, KubeletRecord};
use krablet_checkpoint::{AdmittedPods, Checkpoint, DesiredPods, Saver, SaverTask, State, saver};
use tokio::task::JoinSet;
use tracing::info;

use super::Ground;

/// A value of an earlier life, and where its successors go.
pub struct Memory<T> {
    pub value: T,
    pub saver: Saver<T>,
}

/// Who was let in, by this agent or by a kubelet before it, and where that is written down: for the
/// next life of this agent, and for a kubelet that may take its place again.
pub async fn admitted(
    ground: &Ground<'_>,
    tasks: &mut JoinSet<()>,
) -> (AdmittedPods, Vec<Saver<AdmittedPods>>) {
    let own: Memory<AdmittedPods> = open(ground, "admitted_pods.json", tasks).await;
    let mut admitted = own.value;
    let root = ground.root.path();
    // A kubelet's record is right about resources that were changed while it was in charge.
    if let Some(theirs) = upstream::allocated_pods(&*ground.files, root).await.valid() {
        admitted.absorb(theirs);
    }
    let (record, task) = saver(KubeletRecord::new(ground.files.clone(), root));
    keep(task, tasks);
    (admitted, vec![own.saver, record])
}

pub async fn desired(ground: &Ground<'_>, tasks: &mut JoinSet<()>) -> Memory<DesiredPods> {
    let memory: Memory<DesiredPods> = open(ground, "desired_pods.json", tasks).await;
    if !memory.value.pods.is_empty() {
        info!(
            pods = memory.value.pods.len(),
            "Pods of the API server are known from before; they run whether it answers or not"
        );
    }
    memory
}

async fn open<T: State + Default>(
    ground: &Ground<'_>,
    name: &str,
    tasks: &mut JoinSet<()>,
) -> Memory<T> {
    let path: PathBuf = ground.root.path().join("krablet").join(name);
    let mut file = Checkpoint::<T>::new(ground.files.clone(), path);
    // What cannot be used is set aside, and told, by the file itself.
    let value = file.load().await.valid().unwrap_or_default();
    let (saver, task) = saver(file);
    keep(task, tasks);
    Memory { value, saver }
}

fn keep<T: Send + Sync + 'static>(task: SaverTask<T>, tasks: &mut JoinSet<()>) {
    tasks.spawn(async move {
        task.run().await;
        std::future::pending::<()>().await;
    });
}
