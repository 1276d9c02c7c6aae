//! Whether the node can run pods, as others tell it, and the words in which it says so.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::watch;

/// What stands in the way of pods. Each part is told by whoever knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub runtime: RuntimeHealth,
    pub observer: ObserverHealth,
    /// While one of these two is in trouble: what may be behind it.
    pub owed: Option<OwedAnswer>,
    /// Why volumes cannot be served.
    pub storage: Option<String>,
    /// Why the node takes no more pods: it is being shut down.
    pub shutdown: Option<String>,
}

/// Where those who know write, each its own part, and the node reads. Clones share one.
#[derive(Clone, Default)]
pub struct HealthBoard(Arc<watch::Sender<Health>>);

impl HealthBoard {
    /// Wakes nobody for what they know.
    pub fn set(&self, change: impl FnOnce(&mut Health)) {
        self.0.send_if_modified(|health| {
            let before = health.clone();
            change(health);
            *health != before
        });
    }

    pub fn subscribe(&self) -> watch::Receiver<Health> {
        self.0.subscribe()
    }
}

/// What came of asking the runtime for its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RuntimeHealth {
    /// It was not asked yet.
    #[default]
    Unknown,
    Answers(RuntimeConditions),
    /// It does not answer.
    Silent {
        /// The call, and what came instead of an answer.
        error: String,
        since: Timestamp,
        /// It has not answered for so long that it counts as down.
        down: bool,
        /// What it said last in this life of the agent.
        last: Option<RuntimeConditions>,
    },
}

/// The two conditions every runtime reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConditions {
    pub runtime: Option<RuntimeCondition>,
    pub network: Option<RuntimeCondition>,
}

impl RuntimeConditions {
    /// Both hold.
    pub fn ready() -> Self {
        let holds = || {
            Some(RuntimeCondition {
                status: true,
                ..RuntimeCondition::default()
            })
        };
        Self {
            runtime: holds(),
            network: holds(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeCondition {
    pub status: bool,
    pub reason: String,
    pub message: String,
}

/// Whether what the runtime holds can be seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ObserverHealth {
    /// Nothing was seen yet.
    #[default]
    Unknown,
    Sees,
    /// One pod that cannot be seen is no reason: this is for when none can.
    Blind {
        /// Which call, on which pod.
        culprit: String,
        since: Timestamp,
    },
}

/// The runtime was asked something about a pod and has not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwedAnswer {
    pub call: &'static str,
    /// Namespace and name.
    pub pod: String,
    pub since: Timestamp,
}

impl Health {
    /// The runtime does not answer, or cannot be seen through.
    pub fn is_runtime_in_trouble(&self) -> bool {
        matches!(self.runtime, RuntimeHealth::Silent { .. })
            || matches!(self.observer, ObserverHealth::Blind { .. })
    }

    /// Everybody who has to has told something.
    pub(crate) fn is_settled(&self) -> bool {
        let runtime = match &self.runtime {
            RuntimeHealth::Unknown => false,
            RuntimeHealth::Answers(_) => true,
            RuntimeHealth::Silent { down, last, .. } => *down || last.is_some(),
        };
        runtime && self.observer != ObserverHealth::Unknown
    }

    /// What is known to be wrong, leaving out what is only not known yet.
    pub(crate) fn known_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let RuntimeHealth::Silent {
            error,
            since,
            down: true,
            ..
        } = &self.runtime
        {
            problems.push(format!(
                "container runtime is down: {error}, since {}",
                moment(*since)
            ));
        }
        // Who looks through a runtime that has just fallen silent sees nothing; that is one problem,
        // and it has its own patience.
        let clouded = matches!(
            self.runtime,
            RuntimeHealth::Unknown | RuntimeHealth::Silent { down: false, .. }
        );
        if let ObserverHealth::Blind { culprit, since } = &self.observer
            && !clouded
        {
            let since = moment(*since);
            problems.push(format!("PLEG is not healthy: {culprit}, since {since}"));
        }
        if let Some(owed) = self.owed.as_ref().filter(|_| !problems.is_empty()) {
            let OwedAnswer { call, pod, since } = owed;
            let since = moment(*since);
            problems.push(format!("{call} of pod {pod}: no answer since {since}"));
        }
        let said = match &self.runtime {
            RuntimeHealth::Answers(said) => Some(said),
            RuntimeHealth::Silent { last, .. } => last.as_ref(),
            RuntimeHealth::Unknown => None,
        };
        if let Some(said) = said {
            problems.extend(not_ready(
                "container runtime not ready",
                "RuntimeReady",
                &said.runtime,
            ));
            let what = "container runtime network not ready";
            problems.extend(not_ready(what, "NetworkReady", &said.network));
        }
        problems.extend(self.storage.clone());
        problems.extend(self.shutdown.clone());
        problems
    }

    /// In a kubelet's words, what is not known yet.
    pub(crate) fn unknowns(&self) -> Vec<String> {
        let mut unknown = Vec::new();
        if self.is_settled() {
            return unknown;
        }
        let unheard = match &self.runtime {
            RuntimeHealth::Unknown => Some(String::new()),
            RuntimeHealth::Silent {
                error, last: None, ..
            } => Some(format!(": {error}")),
            _ => None,
        };
        if let Some(why) = unheard {
            let what = "container runtime status check may not have completed yet";
            unknown.push(format!("{what}{why}"));
        }
        if self.observer == ObserverHealth::Unknown {
            unknown.push("PLEG is not healthy: pleg has yet to be successful".to_owned());
        }
        unknown
    }
}

fn not_ready(what: &str, kind: &str, condition: &Option<RuntimeCondition>) -> Option<String> {
    match condition {
        Some(condition) if condition.status => None,
        Some(condition) => Some(format!(
            "{what}: {kind}=false reason:{} message:{}",
            condition.reason, condition.message
        )),
        None => Some(format!("{what}: <nil>")),
    }
}

/// Whole seconds: a message that stays the same is not sent again.
fn moment(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Several problems in one line, each once: `[a, b]`.
pub(crate) fn one_line(problems: &[String]) -> String {
    let mut seen: Vec<&str> = Vec::new();
    for problem in problems {
        if !seen.contains(&problem.as_str()) {
            seen.push(problem);
        }
    }
    match seen.as_slice() {
        [one] => (*one).to_owned(),
        several => format!("[{}]", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(runtime: bool, network: Option<&str>) -> RuntimeHealth {
        let mut said = RuntimeConditions::ready();
        if !runtime {
            said.runtime = None;
        }
        if let Some(message) = network {
            said.network = Some(RuntimeCondition {
                status: false,
                reason: "NetworkPluginNotReady".to_owned(),
                message: message.to_owned(),
            });
        }
        RuntimeHealth::Answers(said)
    }

    fn silent(down: bool, last: Option<RuntimeConditions>) -> RuntimeHealth {
        RuntimeHealth::Silent {
            error: "Status: no answer within 10s".to_owned(),
            since: Timestamp::UNIX_EPOCH,
            down,
            last,
        }
    }

    fn told(health: &Health) -> (bool, String) {
        let mut problems = health.known_problems();
        problems.extend(health.unknowns());
        (health.is_settled(), one_line(&problems))
    }

    #[test]
    fn problems_are_told_in_a_kubelets_words_with_the_culprit() {
        let health = |runtime, observer| Health {
            runtime,
            observer,
            ..Health::default()
        };
        let blind = ObserverHealth::Blind {
            culprit: "ListPodSandbox: no answer within 30s".to_owned(),
            since: Timestamp::UNIX_EPOCH,
        };
        let sees = || ObserverHealth::Sees;
        let ready = || Some(RuntimeConditions::ready());
        let cases = [
            (health(silent(false, ready()), blind.clone()), true, "[]"),
            (
                health(silent(false, None), blind.clone()),
                false,
                "container runtime status check may not have completed yet: Status: no answer within 10s",
            ),
            (
                health(answers(true, None), blind.clone()),
                true,
                "PLEG is not healthy: ListPodSandbox: no answer within 30s, since 1970-01-01T00:00:00Z",
            ),
            (
                health(RuntimeHealth::Unknown, ObserverHealth::Unknown),
                false,
                "[container runtime status check may not have completed yet, PLEG is not healthy: pleg has yet to be successful]",
            ),
            (health(answers(true, None), sees()), true, "[]"),
            (
                health(answers(true, Some("cni plugin not initialized")), sees()),
                true,
                "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized",
            ),
            (
                health(answers(false, None), sees()),
                true,
                "container runtime not ready: <nil>",
            ),
            (
                health(silent(false, Some(RuntimeConditions::ready())), sees()),
                true,
                "[]",
            ),
            (
                health(silent(false, None), sees()),
                false,
                "container runtime status check may not have completed yet: Status: no answer within 10s",
            ),
            (
                health(silent(true, None), blind),
                true,
                "[container runtime is down: Status: no answer within 10s, since 1970-01-01T00:00:00Z, PLEG is not healthy: ListPodSandbox: no answer within 30s, since 1970-01-01T00:00:00Z]",
            ),
        ];
        for (health, settled, words) in cases {
            assert_eq!(told(&health), (settled, words.to_owned()));
        }
    }

    #[test]
    fn a_pod_whose_call_is_not_answered_is_named_beside_what_is_wrong() {
        let owing = |runtime| Health {
            runtime,
            observer: ObserverHealth::Sees,
            owed: Some(OwedAnswer {
                call: "StopContainer",
                pod: "ns/web".to_owned(),
                since: Timestamp::UNIX_EPOCH,
            }),
            ..Health::default()
        };
        let down = "[container runtime is down: Status: no answer within 10s, since 1970-01-01T00:00:00Z, \
                    StopContainer of pod ns/web: no answer since 1970-01-01T00:00:00Z]";
        for (runtime, trouble, words) in [
            (silent(true, Some(RuntimeConditions::ready())), true, down),
            // By itself it is no reason.
            (silent(false, Some(RuntimeConditions::ready())), true, "[]"),
            (answers(true, None), false, "[]"),
        ] {
            let health = owing(runtime);
            assert_eq!(health.is_runtime_in_trouble(), trouble);
            assert_eq!(told(&health), (true, words.to_owned()));
        }
    }
}
