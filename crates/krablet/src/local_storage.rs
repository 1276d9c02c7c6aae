//! Pods that keep more on the node's disk than they may are evicted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use krablet_agent::{AgentHandle, Eviction};
use krablet_core::local_storage::StorageLimits;
use krablet_pod::{PodRef, PodUid};
use tokio::time::sleep;

use crate::stats::Figures;

/// Between two looks at what pods with limits keep. No file system tells when a directory has grown.
const PERIOD: Duration = Duration::from_secs(10);

/// Looks again and again, and only at pods with limits.
pub async fn watch(handle: AgentHandle, figures: Arc<Figures>) {
    let mut looked = false;
    loop {
        sleep(PERIOD).await;
        let limited = limited(&handle);
        // Once more after the last of them, so that nothing of it is remembered.
        if looked || !limited.is_empty() {
            look(&handle, &figures, &limited).await;
        }
        looked = !limited.is_empty();
    }
}

type Limited = BTreeMap<PodUid, StorageLimits>;

fn limited(handle: &AgentHandle) -> Limited {
    let pods = handle.desired.all_allocated();
    let limited = pods.iter().filter_map(|pod| {
        let limits = StorageLimits::of(pod)?;
        Some((PodRef::of(pod).uid, limits))
    });
    limited.collect()
}

async fn look(handle: &AgentHandle, figures: &Figures, limited: &Limited) {
    let containers = limited.values().any(StorageLimits::count_containers);
    let pods: BTreeSet<PodUid> = limited.keys().cloned().collect();
    for (pod, usage) in figures.local_usage(&pods, containers).await {
        let limits = limited.get(&pod);
        if let Some(why) = limits.and_then(|limits| limits.exceeded(&usage)) {
            // The loop ends with the agent, and this with it.
            let _ = handle.evictions.send(Eviction { pod, why }).await;
        }
    }
}
