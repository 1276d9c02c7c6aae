//! The sources of the simulated node: sets of pods that change, and what delivers them to an agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use krablet_agent::AgentHandle;
use krablet_pod::api::{Pod, PodStatus};
use krablet_pod::marks::PodSource;
use krablet_pod::{PodRef, PodUid};
use krablet_sources::SourceSet;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::node;

/// What one source wants, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Set {
    pods: BTreeMap<String, Arc<Pod>>,
    /// What the API server was told of its pods.
    statuses: BTreeMap<PodUid, PodStatus>,
}

#[derive(Debug, Default)]
pub(crate) struct Wanted {
    sets: BTreeMap<PodSource, watch::Sender<Set>>,
}

impl Wanted {
    fn set(&mut self, source: PodSource) -> &watch::Sender<Set> {
        self.sets.entry(source).or_default()
    }

    pub(crate) fn get(&mut self, source: PodSource, name: &str) -> Option<Arc<Pod>> {
        self.set(source).borrow().pods.get(name).cloned()
    }

    pub(crate) fn all(&mut self, source: PodSource) -> Vec<Arc<Pod>> {
        self.set(source).borrow().pods.values().cloned().collect()
    }

    pub(crate) fn put(&mut self, source: PodSource, pod: Arc<Pod>) {
        let name = PodRef::of(&pod).name.to_string();
        self.set(source)
            .send_modify(|set| drop(set.pods.insert(name, pod)));
    }

    pub(crate) fn remove(&mut self, source: PodSource, name: &str) -> Option<Arc<Pod>> {
        let mut removed = None;
        self.set(source)
            .send_modify(|set| removed = set.pods.remove(name));
        removed
    }

    /// Not news by itself: told with the next set.
    pub(crate) fn tell_statuses(&mut self, statuses: BTreeMap<PodUid, PodStatus>) {
        let quietly = |set: &mut Set| {
            set.statuses.extend(statuses);
            false
        };
        self.set(PodSource::Api).send_if_modified(quietly);
    }

    pub(crate) fn watch(&mut self, source: PodSource) -> (PodSource, watch::Receiver<Set>) {
        (source, self.set(source).subscribe())
    }
}

fn source_set(source: PodSource, set: &Set) -> SourceSet {
    let with_status = |pod: &Arc<Pod>| match set.statuses.get(&PodRef::of(pod).uid) {
        Some(status) if source == PodSource::Api => {
            let mut pod = (**pod).clone();
            pod.status = Some(status.clone());
            Arc::new(pod)
        }
        _ => pod.clone(),
    };
    SourceSet {
        source,
        pods: set.pods.values().map(with_status).collect(),
        restored: false,
    }
}

/// Delivers what a source wants to one agent, until the agent is gone. The first set comes late;
/// later ones, if they `wait`, only once every source has spoken, for before that nothing may be ended.
pub(crate) async fn feed(
    (source, mut set): (PodSource, watch::Receiver<Set>),
    agent: AgentHandle,
    late: Duration,
    wait: bool,
) {
    sleep(late).await;
    loop {
        let now = source_set(source, &set.borrow_and_update());
        if agent.sets.send(now).await.is_err() || set.changed().await.is_err() {
            return;
        }
        while wait && !agent.desired.sources_ready(&node::sources()) {
            sleep(Duration::from_millis(100)).await;
        }
    }
}
