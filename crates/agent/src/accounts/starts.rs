//! What does not count in how long a pod took to start: the time its images took, the time its init containers ran.

use std::time::Duration;

use krablet_pod::api::{ContainerStatus, Pod, PodStatus, Volume};
use krablet_pod::containers::{init_containers, is_sidecar};
use krablet_runtime::ImageWait;
use tokio::time::Instant;

/// How long a pod has waited for images.
#[derive(Debug, Default)]
pub(super) struct ImageTime {
    past: Duration,
    /// Since when it waits for one that could not be had, the time between tries included.
    since: Option<Instant>,
}

impl ImageTime {
    /// The containers of a pod start one after another, and so do these.
    pub(super) fn add(&mut self, wait: ImageWait) {
        let since = self.since.take().unwrap_or(wait.since);
        match wait.got {
            true => self.past += wait.until.saturating_duration_since(since),
            false => self.since = Some(since),
        }
    }

    pub(super) fn total(&self) -> Duration {
        self.past
    }
}

/// How long the init containers of a pod ran that had to end before the others could start.
pub(super) fn init_time(pod: &Pod, status: &PodStatus) -> Duration {
    let spec = pod.spec.as_ref();
    let waited_for = |c: &&ContainerStatus| {
        let all = spec.map_or(&[][..], |s| init_containers(s));
        all.iter().any(|i| i.name == c.name && !is_sidecar(i))
    };
    let statuses = status.init_container_statuses.iter().flatten();
    let ran = statuses.filter(waited_for).filter_map(|c| {
        let ended = c.state.as_ref()?.terminated.as_ref()?;
        let (from, to) = (ended.started_at.as_ref()?, ended.finished_at.as_ref()?);
        Duration::try_from(to.0.duration_since(from.0)).ok()
    });
    ran.sum()
}

/// Whether a pod has volumes that are made by others, and take the time they take.
pub(super) fn is_stateful(pod: &Pod) -> bool {
    let own = |v: &Volume| {
        v.secret.is_some()
            || v.config_map.is_some()
            || v.downward_api.is_some()
            || v.empty_dir.is_some()
            || v.projected.is_some()
    };
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_ref());
    !volumes.into_iter().flatten().all(own)
}

/// Whether a pod has no network of its own.
pub(super) fn has_host_network(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.and_then(|s| s.host_network).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({"spec": spec})).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn waits_for_images() {
        type Waits = &'static [(u64, u64, bool)];
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let cases: [(Waits, u64); 5] = [
            (&[], 0),
            (&[(0, 3, true), (5, 6, true)], 4),
            // Until it is there, it is waited for.
            (&[(1, 2, false), (10, 10, false), (20, 22, true)], 21),
            // Two that could not be had: they are waited for at the same time.
            (
                &[(1, 2, false), (2, 4, false), (9, 9, true), (9, 11, true)],
                10,
            ),
            (&[(1, 2, false)], 0),
        ];
        for (waits, expected) in cases {
            let mut time = ImageTime::default();
            for (since, until, got) in waits {
                time.add(ImageWait {
                    since: at(*since),
                    until: at(*until),
                    got: *got,
                });
            }
            assert_eq!(time.total().as_secs(), expected, "{waits:?}");
        }
    }

    #[test]
    fn init_containers_that_ended() {
        let pod = pod(serde_json::json!({"containers": [], "initContainers": [
            {"name": "a"}, {"name": "b"}, {"name": "side", "restartPolicy": "Always"},
        ]}));
        let ended = |name: &str, from: &str, to: &str| {
            serde_json::json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 0, "startedAt": from, "finishedAt": to}}})
        };
        let (zero, two, five) = (
            "2026-01-01T00:00:00Z",
            "2026-01-01T00:00:02Z",
            "2026-01-01T00:00:05Z",
        );
        let status = serde_json::from_value(serde_json::json!({"initContainerStatuses": [
            ended("a", zero, two), ended("b", two, five), ended("side", zero, five),
        ]}));
        assert_eq!(init_time(&pod, &status.unwrap()).as_secs(), 5);
        assert_eq!(init_time(&pod, &PodStatus::default()), Duration::ZERO);
    }

    #[test]
    fn pods_with_volumes_of_others() {
        for (volumes, expected) in [
            (serde_json::json!([]), false),
            (
                serde_json::json!([{"name": "a", "emptyDir": {}}, {"name": "b", "projected": {}}]),
                false,
            ),
            (
                serde_json::json!([{"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": {"path": "/"}}]),
                true,
            ),
            (
                serde_json::json!([{"name": "a", "persistentVolumeClaim": {"claimName": "x"}}]),
                true,
            ),
        ] {
            let pod = pod(serde_json::json!({"containers": [], "volumes": volumes}));
            assert_eq!(is_stateful(&pod), expected, "{volumes}");
        }
        assert!(!is_stateful(&Pod::default()));
    }
}
