//! What survives the agent: who was let in, and what the API server wanted last.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use krablet_agent::{KEPT_CLASSES, Keepsakes};
use krablet_checkpoint::upstream::{self, KubeletRecord};
use krablet_checkpoint::{
    AdmittedPods, Checkpoint, DesiredPods, KnownServices, Saver, State, saver, shelf,
};
use krablet_pod::PodRef;
use krablet_pod::api::{Pod, Service};
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
    savers: &mut JoinSet<()>,
) -> (AdmittedPods, Vec<Saver<AdmittedPods>>) {
    let own: Memory<AdmittedPods> = open(ground, "admitted_pods.json", savers).await;
    let mut admitted = own.value;
    let root = ground.root.path();
    // A kubelet's record is right about resources that were changed while it was in charge.
    if let Some(theirs) = upstream::allocated_pods(&*ground.files, root).await.valid() {
        admitted.absorb(theirs);
    }
    let (record, task) = saver(KubeletRecord::new(ground.files.clone(), root));
    savers.spawn(task.run());
    (admitted, vec![own.saver, record])
}

pub async fn desired(ground: &Ground<'_>, savers: &mut JoinSet<()>) -> Memory<DesiredPods> {
    let memory: Memory<DesiredPods> = open(ground, "desired_pods.json", savers).await;
    if !memory.value.pods.is_empty() {
        info!(
            pods = memory.value.pods.len(),
            "Pods of the API server are known from before; they run whether it answers or not"
        );
    }
    memory
}

pub async fn services(ground: &Ground<'_>, savers: &mut JoinSet<()>) -> krablet_objects::Memory {
    let memory: Memory<KnownServices> = open(ground, "services.json", savers).await;
    let known = memory.value.services;
    let saver = memory.saver;
    let save = move |services: &[Arc<Service>]| {
        saver.set(KnownServices {
            services: services.to_vec(),
        });
    };
    krablet_objects::Memory {
        // Every cluster has at least one.
        known: (!known.is_empty()).then(|| known.into()),
        save: Some(Box::new(save)),
    }
}

/// What these pods needed of the API server when it was last there; what only others needed is removed.
pub async fn keepsakes(
    ground: &Ground<'_>,
    pods: &[Arc<Pod>],
    savers: &mut JoinSet<()>,
) -> Keepsakes {
    let at = |name: &str| ground.root.path().join("krablet").join(name);
    let (open, task) = shelf(ground.files.clone(), at("kept"));
    savers.spawn(task.run());
    let (secret, task) = shelf(ground.files.clone(), at("kept-secrets"));
    savers.spawn(task.run());
    let mut needed = BTreeSet::from([KEPT_CLASSES.to_owned()]);
    let mut secrets = BTreeSet::new();
    let allowed = ground.loaded.flags.checkpoint_secrets;
    for pod in pods {
        let (hidden, shown) = krablet_objects::kept_names(pod);
        needed.extend(shown);
        needed.extend(krablet_volumes::kept_names(pod, &open).await);
        if allowed {
            secrets.extend(hidden);
            let uid = PodRef::of(pod).uid;
            secrets.insert(krablet_tokens::kept_name(&uid));
            secrets.insert(krablet_podcerts::kept_name(&uid));
        }
    }
    open.keep_only(&needed).await;
    secret.keep_only(&secrets).await;
    Keepsakes {
        open: Some(open),
        secret: allowed.then_some(secret),
    }
}

async fn open<T: State + Default>(
    ground: &Ground<'_>,
    name: &str,
    savers: &mut JoinSet<()>,
) -> Memory<T> {
    let path: PathBuf = ground.root.path().join("krablet").join(name);
    let mut file = Checkpoint::<T>::new(ground.files.clone(), path);
    // What cannot be used is set aside, and told, by the file itself.
    let value = file.load().await.valid().unwrap_or_default();
    let (saver, task) = saver(file);
    savers.spawn(task.run());
    Memory { value, saver }
}
