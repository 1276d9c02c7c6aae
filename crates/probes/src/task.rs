//! The task: starts what is due, takes in what ended.

use std::collections::HashMap;
use std::sync::Arc;

use krablet_core::probe::Outcome;
use krablet_cri::RuntimeService;
use krablet_events::{Recorder, Subject};
use krablet_net::Net;
use krablet_pod::PodRef;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::sleep_until;
use tracing::{debug, warn};

use crate::execute::{Report, execute};
use crate::table::{Class, Ended, Key, Start};
use crate::{ProbesConfig, Shared};

/// Runs the probes. Dropping it ends those under way.
pub struct Probes {
    config: ProbesConfig,
    shared: Arc<Shared>,
    runtime: Arc<dyn RuntimeService>,
    net: Arc<dyn Net>,
    recorder: Recorder,
    tasks: JoinSet<Report>,
    /// By task; looked up only.
    running: HashMap<Id, (PodRef, Key, u64, Class)>,
    network: usize,
    exec: usize,
}

impl Probes {
    pub(crate) fn new(
        config: ProbesConfig,
        shared: Arc<Shared>,
        runtime: Arc<dyn RuntimeService>,
        net: Arc<dyn Net>,
        recorder: Recorder,
    ) -> Self {
        Self {
            config,
            shared,
            runtime,
            net,
            recorder,
            tasks: JoinSet::new(),
            running: HashMap::new(),
            network: 0,
            exec: 0,
        }
    }

    pub async fn run(mut self) {
        loop {
            let free_network = self.config.network_at_once.saturating_sub(self.network);
            let free_exec = self.config.exec_at_once.saturating_sub(self.exec);
            let now = self.shared.now();
            let (starts, next) = self.shared.table().take_due(now, free_network, free_exec);
            starts.into_iter().for_each(|start| self.start(start));
            // Without anything due the bell alone wakes us.
            let wake_at = self.shared.instant(next.unwrap_or_default());
            tokio::select! {
                biased;
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended),
                () = self.shared.wake.notified() => {}
                () = sleep_until(wake_at), if next.is_some() => {}
            }
        }
    }

    fn places(&mut self, class: Class) -> &mut usize {
        match class {
            Class::Network => &mut self.network,
            Class::Exec => &mut self.exec,
        }
    }

    fn start(&mut self, start: Start) {
        let Start {
            key,
            run,
            class,
            job,
        } = start;
        let pod = job.pod.clone();
        let runtime = self.runtime.clone();
        let net = self.net.clone();
        let task = self
            .tasks
            .spawn(async move { execute(&job, &*runtime, &*net).await });
        *self.places(class) += 1;
        let running = (pod, key.clone(), run, class);
        self.running.insert(task.id(), running);
        self.shared.table().attach(&key, run, task);
    }

    fn ended(&mut self, ended: Result<(Id, Report), JoinError>) {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(e) => e.id(),
        };
        let Some((pod, key, run, class)) = self.running.remove(&id) else {
            return;
        };
        let places = self.places(class);
        *places = places.saturating_sub(1);
        let report = match ended {
            Ok((_, report)) => report,
            Err(e) => {
                if e.is_panic() {
                    warn!(pod = %pod, podUID = %pod.uid, containerName = &*key.container, "A probe panicked: {e}");
                }
                // Ended from outside, or broken: no result.
                Report {
                    outcome: Outcome::Error,
                    event: None,
                }
            }
        };
        self.conclude(&key, run, report);
    }

    fn conclude(&self, key: &Key, run: u64, report: Report) {
        let now = self.shared.now();
        let finished = self.shared.table().finish(key, run, report.outcome, now);
        let Some(Ended {
            pod,
            kind,
            changed,
            told,
        }) = finished
        else {
            return;
        };
        if changed {
            self.shared.updated.notify_one();
        }
        debug!(pod = %pod, podUID = %pod.uid, containerName = &*key.container, probeType = key.kind.as_str(), outcome = ?report.outcome, "Probed");
        if let Some((reason, message)) = report.event.filter(|_| told) {
            let subject = Subject::container(&pod, kind, &key.container);
            self.recorder.warning(subject, reason, message);
        }
    }
}
