//! How long a container is given to end, and in which order the containers of a pod are stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use krablet_pod::api::{Container, Pod, PodSpec, Probe};
use krablet_pod::containers;
use krablet_pod::observed::ContainerMemory;

use crate::actions::KillReason;

/// No container is stopped with less: it spares many a needless SIGKILL.
pub const MINIMUM_GRACE_SECONDS: i64 = 2;

/// The grace period of a container of a known pod, before any override.
///
/// The grace of the deletion request counts first, then that of the failed probe if it has one of
/// its own, then the pod's.
pub fn container_grace(pod: &Pod, container: Option<&Container>, reason: KillReason) -> i64 {
    if let Some(deletion) = pod.metadata.deletion_grace_period_seconds {
        return deletion;
    }
    let spec = pod.spec.as_ref();
    let Some(of_pod) = spec.and_then(|s| s.termination_grace_period_seconds) else {
        return MINIMUM_GRACE_SECONDS;
    };
    let of_probe = |probe: Option<&Probe>| probe?.termination_grace_period_seconds;
    let probe = match reason {
        KillReason::StartupProbe => container.and_then(|c| of_probe(c.startup_probe.as_ref())),
        KillReason::LivenessProbe => container.and_then(|c| of_probe(c.liveness_probe.as_ref())),
        _ => None,
    };
    probe.unwrap_or(of_pod)
}

/// The grace period of a container whose pod is not known, from what its annotations remember.
pub fn remembered_grace(memory: &ContainerMemory) -> i64 {
    memory
        .deletion_grace_seconds
        .or(memory.termination_grace_seconds)
        .unwrap_or(MINIMUM_GRACE_SECONDS)
}

/// The time a container has left, as it is used up: first by its preStop hook, then by waiting
/// for its turn, the rest by the stop itself. Whole seconds count; begun ones are given free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace {
    seconds: i64,
}

impl Grace {
    /// `by_request` overrides what the specification says (hard eviction, shutdown, restart).
    pub fn new(of_container: i64, by_request: Option<i64>) -> Self {
        Self {
            seconds: by_request.unwrap_or(of_container),
        }
    }

    /// How long a preStop hook may run; `None`: no time, it is not run at all.
    pub fn for_pre_stop(self) -> Option<Duration> {
        self.left()
    }

    /// How long to wait for the containers that stop before this one; `None`: do not wait.
    pub fn for_turn(self) -> Option<Duration> {
        self.left()
    }

    fn left(self) -> Option<Duration> {
        u64::try_from(self.seconds)
            .ok()
            .filter(|s| *s > 0)
            .map(Duration::from_secs)
    }

    /// What is left after time was spent on a hook or on waiting.
    pub fn after(self, spent: Duration) -> Self {
        let spent = i64::try_from(spent.as_secs()).unwrap_or(i64::MAX);
        Self {
            seconds: self.seconds.saturating_sub(spent),
        }
    }

    /// The timeout of the runtime's stop call, never under the minimum.
    pub fn stop_timeout_seconds(self) -> i64 {
        self.seconds.max(MINIMUM_GRACE_SECONDS)
    }
}

/// For each running container the running ones that must have ended before it is told to stop.
/// Empty for all but sidecars: those wait for every regular container and for every sidecar that
/// comes after them, at most as long as their grace lasts.
pub fn stop_order<'a>(
    spec: &'a PodSpec,
    running: &BTreeSet<&'a str>,
) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut order: BTreeMap<&str, Vec<&str>> =
        running.iter().map(|name| (*name, Vec::new())).collect();
    let regular = spec.containers.iter().map(|c| c.name.as_str());
    let mut before: Vec<&str> = regular.filter(|name| running.contains(name)).collect();
    for sidecar in containers::init_containers(spec)
        .iter()
        .rev()
        .filter(|c| containers::is_sidecar(c))
    {
        if let Some(waits_for) = order.get_mut(sidecar.name.as_str()) {
            waits_for.clone_from(&before);
            before.push(&sidecar.name);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::testkit::pod;

    #[test]
    fn whose_grace_counts() {
        use KillReason::{LivenessProbe, SpecChanged, StartupProbe, Unknown};
        for (pod_text, reason, expected) in [
            ("c:a", Unknown, 2),
            ("grace=30 c:a", Unknown, 30),
            ("grace=0 c:a", Unknown, 0),
            ("grace=30 deletegrace=5 c:a", Unknown, 5),
            ("grace=30 deletegrace=0 c:a", Unknown, 0),
            ("grace=30 c:a/live=7/startup=9", LivenessProbe, 7),
            ("grace=30 c:a/live=7/startup=9", StartupProbe, 9),
            ("grace=30 c:a/live=7/startup=9", SpecChanged, 30),
            ("grace=30 c:a/live/startup", LivenessProbe, 30),
            ("grace=30 c:a/live=60", LivenessProbe, 60),
            ("grace=30 deletegrace=5 c:a/live=7", LivenessProbe, 5),
            ("c:a/live=7", LivenessProbe, 2),
        ] {
            let pod = pod(pod_text);
            let container = &pod.spec.as_ref().unwrap().containers[0];
            let got = container_grace(&pod, Some(container), reason);
            assert_eq!(got, expected, "{pod_text} {reason:?}");
        }
        assert_eq!(
            container_grace(&pod("grace=30 c:a"), None, LivenessProbe),
            30
        );
    }

    #[test]
    fn orphans_are_remembered() {
        let memory = |deletion, termination| ContainerMemory {
            deletion_grace_seconds: deletion,
            termination_grace_seconds: termination,
            ..ContainerMemory::default()
        };
        assert_eq!(remembered_grace(&memory(Some(1), Some(30))), 1);
        assert_eq!(remembered_grace(&memory(None, Some(30))), 30);
        assert_eq!(remembered_grace(&memory(None, None)), 2);
    }

    #[test]
    fn grace_is_used_up_but_never_under_the_floor() {
        let millis = Duration::from_millis;
        let grace = Grace::new(30, None);
        assert_eq!(grace.for_pre_stop(), Some(Duration::from_secs(30)));
        let grace = grace.after(millis(10_900));
        assert_eq!(grace.for_turn(), Some(Duration::from_secs(20)));
        assert_eq!(grace.after(millis(5_000)).stop_timeout_seconds(), 15);
        assert_eq!(grace.after(millis(19_999)).stop_timeout_seconds(), 2);
        let spent = grace.after(millis(60_000));
        assert_eq!((spent.for_turn(), spent.stop_timeout_seconds()), (None, 2));
        let none = Grace::new(30, Some(0));
        assert_eq!(
            (none.for_pre_stop(), none.stop_timeout_seconds()),
            (None, 2)
        );
        assert_eq!(Grace::new(0, Some(60)).stop_timeout_seconds(), 60);
        assert_eq!(Grace::new(-1, None).for_pre_stop(), None);
    }

    #[test]
    fn sidecars_stop_last_in_reverse() {
        for (pod_text, running, expected) in [
            ("c:a c:b", "a b", "a<- b<-"),
            (
                "i:s* i:x i:t* c:a c:b",
                "s t a b",
                "a<- b<- s<-a,b,t t<-a,b",
            ),
            ("i:s* i:t* i:u* c:a", "s u a", "a<- s<-a,u u<-a"),
            ("i:s* i:t* c:a", "s t", "s<-t t<-"),
            ("i:s* i:x c:a", "s x", "s<- x<-"),
            ("i:s* c:a e:d", "s a d", "a<- d<- s<-a"),
            ("c:a", "", ""),
        ] {
            let spec = pod(pod_text).spec.unwrap();
            let order = stop_order(&spec, &running.split_whitespace().collect());
            let lines: Vec<String> = order
                .iter()
                .map(|(name, before)| format!("{name}<-{}", before.join(",")))
                .collect();
            assert_eq!(lines.join(" "), expected, "{pod_text} {running}");
        }
    }
}
