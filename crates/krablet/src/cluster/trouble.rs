//! What is wrong between the agent and the runtime, in the words of the node: whether what the runtime holds can be seen,
//! and, while it is in trouble, which pod it was asked about and has not answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use krablet_agent::AgentHandle;
use krablet_cri::{CallLog, InFlight};
use krablet_linux::WallClock;
use krablet_node::{HealthBoard, ObserverHealth, OwedAnswer};
use krablet_observer::{ObserverHandle, RuntimeHealth};
use krablet_pod::observed::ObservedPod;
use tokio::time::{Instant, timeout};

/// Calls of pods may take as long without being anybody's trouble.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct RuntimeTrouble {
    pub board: HealthBoard,
    pub calls: CallLog,
    pub clock: Arc<dyn WallClock>,
}

impl RuntimeTrouble {
    pub async fn run(self, agent: AgentHandle) {
        tokio::join!(
            self.watch_observer(&agent.observer),
            self.watch_calls(&agent.observer)
        );
    }

    async fn watch_observer(&self, observer: &ObserverHandle) {
        let mut health = observer.health();
        loop {
            let seen = health.borrow_and_update().clone();
            let now = self.clock.now();
            self.board
                .set(|board| board.observer = sight(&seen, &board.observer, now));
            if health.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Looks at the calls while there is trouble, and at no other time.
    async fn watch_calls(&self, observer: &ObserverHandle) {
        let mut health = self.board.subscribe();
        loop {
            let in_trouble = health.borrow_and_update().is_runtime_in_trouble();
            let found = in_trouble.then(|| self.look(observer)).flatten();
            self.board.set(|board| match in_trouble {
                true => note(found, &mut board.owed),
                false => board.owed = None,
            });
            let changed = match in_trouble {
                true => timeout(PATIENCE, health.changed()).await.unwrap_or(Ok(())),
                false => health.changed().await,
            };
            if changed.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn look(&self, observer: &ObserverHandle) -> Option<OwedAnswer> {
        let calls = self.calls.snapshot().in_flight;
        owed(&calls, &observer.all(), Instant::now(), self.clock.now())
    }
}

/// What is asked again and again is told of with its beginning, and not as something new each time; what is known stays
/// while nothing else is found.
fn note(found: Option<OwedAnswer>, known: &mut Option<OwedAnswer>) {
    let same = |found: &OwedAnswer| {
        let known = known.as_ref();
        known.is_some_and(|known| (known.call, &known.pod) == (found.call, &found.pod))
    };
    if let Some(found) = found.filter(|found| !same(found)) {
        *known = Some(found);
    }
}

/// What the node is told of what the observer sees.
fn sight(seen: &RuntimeHealth, before: &ObserverHealth, now: Timestamp) -> ObserverHealth {
    // What came instead of the last list says which call it is; when it began to fail is known better than now.
    let trouble = match (&seen.error, &seen.overdue) {
        (Some(error), _) => Some((error.clone(), now)),
        (None, Some(overdue)) => {
            let since = now.saturating_sub(overdue.since.elapsed());
            Some((overdue.culprit.clone(), since.unwrap_or(now)))
        }
        (None, None) => None,
    };
    match (trouble, before) {
        (None, _) if seen.last_ok.is_none() => ObserverHealth::Unknown,
        (None, _) => ObserverHealth::Sees,
        (Some((culprit, _)), ObserverHealth::Blind { since, .. }) => ObserverHealth::Blind {
            culprit,
            since: *since,
        },
        (Some((culprit, since)), _) => ObserverHealth::Blind { culprit, since },
    }
}

/// The call about a pod that has gone without an answer for longest. Calls come in the order they were made.
fn owed(
    calls: &[InFlight],
    pods: &[Arc<ObservedPod>],
    instant: Instant,
    now: Timestamp,
) -> Option<OwedAnswer> {
    let mut names = BTreeMap::new();
    for pod in pods {
        let sandboxes = pod.sandboxes.iter().map(|s| s.id.as_str());
        let containers = pod.containers.iter().map(|c| c.id.as_str());
        for id in sandboxes.chain(containers).chain([pod.pod.uid.as_str()]) {
            names.insert(id, format!("{}/{}", pod.pod.namespace, pod.pod.name));
        }
    }
    calls.iter().find_map(|call| {
        let age = instant.saturating_duration_since(call.since);
        let pod = names.get(call.object.as_str()).cloned();
        // A sandbox that is being made is called by its pod's name.
        let pod = pod.or_else(|| {
            (call.call == krablet_cri::Call::RunPodSandbox).then(|| call.object.clone())
        })?;
        (age >= PATIENCE).then(|| OwedAnswer {
            call: call.call.name(),
            pod,
            since: now.saturating_sub(age).unwrap_or(now),
        })
    })
}

#[cfg(test)]
mod tests {
    use krablet_cri::Call;
    use krablet_observer::Overdue;
    use krablet_pod::observed::ObservedSandbox;
    use krablet_pod::{PodRef, Ticket};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_pod_that_has_waited_longest_is_named() {
        let begun = Instant::now();
        let call = |call, object: &str, after| InFlight {
            call,
            object: object.to_owned(),
            since: begun + Duration::from_secs(after),
        };
        let pod = Arc::new(ObservedPod {
            pod: PodRef::new("u", "ns", "web"),
            ticket: Ticket(1),
            sandboxes: vec![ObservedSandbox {
                id: "s".into(),
                ready: true,
                attempt: 0,
                created_at: 0,
                ips: Vec::new(),
                host_network: false,
                source: None,
            }],
            containers: Vec::new(),
        });
        let calls = [
            call(Call::GetContainerEvents, "", 0),
            call(Call::PullImage, "registry.example/slow:1", 0),
            call(Call::StopPodSandbox, "s", 2),
            call(Call::RemovePodSandbox, "s", 3),
            call(Call::ListContainers, "u", 4),
            call(Call::RunPodSandbox, "ns/new", 4),
        ];
        let now = Timestamp::from_second(1_000).unwrap();
        let told = |calls: &[InFlight], after| {
            let instant = begun + Duration::from_secs(after);
            let owed = owed(calls, std::slice::from_ref(&pod), instant, now);
            owed.map(|o| (o.call, o.pod, o.since.as_second()))
        };
        let stop = ("StopPodSandbox", "ns/web".to_owned(), 982);
        assert_eq!(told(&calls, 20), Some(stop));
        let look = ("ListContainers", "ns/web".to_owned(), 984);
        assert_eq!(told(&calls[4..], 20), Some(look));
        let start = ("RunPodSandbox", "ns/new".to_owned(), 984);
        assert_eq!(told(&calls[5..], 20), Some(start));
        assert_eq!(told(&calls, 11), None, "it may take so long");
        assert_eq!(told(&calls[..2], 600), None, "about no pod");
    }

    #[test]
    fn what_is_owed_is_told_with_its_beginning() {
        let answer = |pod: &str, since| {
            Some(OwedAnswer {
                call: "StopContainer",
                pod: pod.to_owned(),
                since: Timestamp::from_second(since).unwrap(),
            })
        };
        let mut known = None;
        for (found, expected) in [
            (answer("ns/a", 5), answer("ns/a", 5)),
            // Asked once more; between two calls; about another pod.
            (answer("ns/a", 35), answer("ns/a", 5)),
            (None, answer("ns/a", 5)),
            (answer("ns/b", 40), answer("ns/b", 40)),
        ] {
            note(found, &mut known);
            assert_eq!(known, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_seen_is_told_with_its_beginning() {
        let at = |s| Timestamp::from_second(s).unwrap();
        let blind = |culprit: &str, since| ObserverHealth::Blind {
            culprit: culprit.to_owned(),
            since: at(since),
        };
        let mut health = RuntimeHealth::default();
        let before = ObserverHealth::Unknown;
        assert_eq!(sight(&health, &before, at(9)), ObserverHealth::Unknown);
        health.last_ok = Some(Instant::now());
        assert_eq!(sight(&health, &before, at(9)), ObserverHealth::Sees);
        health.overdue = Some(Overdue {
            culprit: "a list".to_owned(),
            since: Instant::now(),
        });
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(sight(&health, &before, at(9)), blind("a list", 4));
        let earlier = blind("another", 2);
        assert_eq!(sight(&health, &earlier, at(9)), blind("a list", 2));
    }
}
