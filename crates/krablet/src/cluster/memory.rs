//! What survives the agent: who was let in, and what the API server wanted last.

use std::path::PathBuf;

use krablet_checkpoint::{AdmittedPods, Checkpoint, DesiredPods, Saver, State, saver};
use tokio::task::JoinSet;
use tracing::info;

use super::Ground;

/// A value of an earlier life, and where its successors go.
pub struct Memory<T> {
    pub value: T,
    pub saver: Saver<T>,
}

pub async fn admitted(ground: &Ground<'_>, tasks: &mut JoinSet<()>) -> Memory<AdmittedPods> {
    open(ground, "admitted_pods.json", tasks).await
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
    tasks.spawn(async move {
        task.run().await;
        std::future::pending::<()>().await;
    });
    Memory { value, saver }
}
