//! The door of this room: everything one pod needs of the runtime goes through [`PodRuntime`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use krablet_core::Mono;
use krablet_core::backoff::{Backoff, BackoffKey, CrashLoop};
use krablet_pod::api::{Container, Pod};
use krablet_pod::observed::{ObservedContainer, ObservedPod};
use krablet_pod::{PodRef, PodUid, containers, paths};
use tokio::sync::watch;

use crate::config::{RuntimeConfig, RuntimeDeps};
use crate::gate::{Crowd, StartGate, StopGate};
use crate::hooks::Hooks;
use crate::images::Images;
use crate::rotation::log_restart_count;

/// Clones share one state.
#[derive(Clone)]
pub struct PodRuntime {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub config: RuntimeConfig,
    pub deps: RuntimeDeps,
    pub images: Images,
    pub hooks: Hooks,
    pub gate: StartGate,
    pub stops: StopGate,
    crowd: Crowd,
    /// Held by who gives a range of ids away.
    pub id_ranges: tokio::sync::Mutex<()>,
    crash_loop: Mutex<CrashLoop>,
}

impl PodRuntime {
    pub fn build(config: RuntimeConfig, deps: RuntimeDeps) -> Self {
        let crowd = Crowd::default();
        Self {
            inner: Arc::new(Inner {
                images: Images::new(&config.images, &deps),
                hooks: Hooks::new(&deps),
                gate: StartGate::new(config.starts_in_flight, crowd.clone()),
                stops: StopGate::new(config.starts_in_flight, crowd.clone()),
                crowd,
                id_ranges: tokio::sync::Mutex::default(),
                crash_loop: Mutex::new(CrashLoop::new(config.restart_back_off)),
                config,
                deps,
            }),
        }
    }

    /// Other than zero while more pods begin or end than can at a time.
    pub fn crowds(&self) -> watch::Receiver<usize> {
        self.inner.crowd.gates()
    }

    /// How often containers the runtime knows nothing of were started before, as their logs tell: a
    /// wiped runtime does not set the counts back.
    pub async fn restart_counts_from_logs(
        &self,
        pod: &Pod,
        observed: &ObservedPod,
    ) -> BTreeMap<String, u32> {
        let dir = paths::pod_log_dir(&self.inner.config.paths.pod_logs, &PodRef::of(pod));
        let mut counts = BTreeMap::new();
        for c in pod.spec.iter().flat_map(containers::all) {
            let name = &c.container.name;
            if observed.newest(name).is_none()
                && let Some(count) = log_restart_count(&*self.inner.deps.files, &dir, name).await
            {
                counts.insert(name.clone(), count);
            }
        }
        counts
    }

    /// Forgets the back-off of pods that are gone, and what no longer makes anyone wait.
    pub fn forget_pods(&self, keep: impl Fn(&PodUid) -> bool) {
        let now = self.inner.now();
        self.inner.crash_loop(|table| {
            table.retain(&keep);
            table.gc(now);
        });
        self.inner.images.forget(keep);
    }
}

impl Inner {
    pub(crate) fn now(&self) -> Mono {
        Mono(self.deps.epoch.elapsed())
    }

    fn crash_loop<T>(&self, work: impl FnOnce(&mut CrashLoop) -> T) -> T {
        work(
            &mut self
                .crash_loop
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// May a container whose newest exited instance is `exited` be started now?
    pub(crate) fn check_restart(
        &self,
        pod: &PodUid,
        container: &Container,
        exited: &ObservedContainer,
    ) -> Backoff {
        let finished = exited.exit.as_ref().map_or(0, |e| e.finished_at);
        let wall = self.deps.clock.now().as_nanosecond();
        let age = wall.saturating_sub(i128::from(finished)).max(0);
        let age = Duration::from_nanos(u64::try_from(age).unwrap_or(u64::MAX));
        let key = BackoffKey::new(pod, container);
        let now = self.now();
        self.crash_loop(|table| table.check(&key, &exited.id, age, now))
    }
}
