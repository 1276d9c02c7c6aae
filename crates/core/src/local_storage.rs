//! Which pods keep more on the node's disk than they may: in a volume, in a container, or all together. Such a pod is evicted.

use krablet_pod::api::{Container, Pod, PodSpec, Volume};
use krablet_pod::quantity::Format;
use krablet_pod::resources::{self, Amounts};
use krablet_pod::storage::LocalUsage;
use krablet_pod::{Quantity, marks};

use crate::status::terminated_by_kubelet;
use crate::worker::StatusOverride;

/// Reason of the event and of the status of an evicted pod.
pub const EVICTED: &str = "Evicted";
/// The seconds a pod has that is ended because of what it keeps.
pub const EVICTION_GRACE: i64 = 1;

const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// What a pod may keep. There is at least one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageLimits {
    /// Of emptyDirs, by the volume's name.
    volumes: Vec<(String, Quantity)>,
    /// Of everything of the pod's on the node's disk.
    pod: Option<Quantity>,
    containers: Vec<(String, Quantity)>,
    /// Volumes that are on the node's disk and go with the pod.
    local: Vec<String>,
}

/// A limit that a pod has gone over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// What it is counted as.
    pub signal: &'static str,
    pub message: String,
}

impl StorageLimits {
    /// None for pods that may keep what they like, and for those that are never evicted.
    pub fn of(pod: &Pod) -> Option<Self> {
        if marks::is_critical(pod) {
            return None;
        }
        let spec = pod.spec.as_ref()?;
        let limits = Self {
            volumes: volumes(spec).filter_map(size_limit).collect(),
            pod: pod_limit(spec),
            containers: container_limits(spec),
            local: local_volumes(spec),
        };
        let limited =
            limits.pod.is_some() || !limits.volumes.is_empty() || !limits.containers.is_empty();
        limited.then_some(limits)
    }

    /// Whether what containers write beside their volumes matters.
    pub fn count_containers(&self) -> bool {
        self.pod.is_some() || !self.containers.is_empty()
    }

    /// The first limit that is exceeded: of a volume, of the whole pod, of a container. What is not known exceeds nothing.
    pub fn exceeded(&self, usage: &LocalUsage) -> Option<Exceeded> {
        let over = |used: Option<&u64>, limit: Quantity| used.is_some_and(|u| bytes(*u) > limit);
        let mut volumes = self.volumes.iter();
        if let Some((name, limit)) = volumes.find(|(n, l)| over(usage.volumes.get(n), *l)) {
            return Some(Exceeded {
                signal: "emptydirfs.limit",
                message: format!(
                    "Usage of EmptyDir volume {name:?} exceeds the limit \"{limit}\". "
                ),
            });
        }
        if let Some(limit) = self
            .pod
            .filter(|limit| over(Some(&self.total(usage)), *limit))
        {
            return Some(Exceeded {
                signal: "ephemeralpodfs.limit",
                message: format!(
                    "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
                ),
            });
        }
        let mut containers = self.containers.iter();
        let (name, limit) = containers.find(|(n, l)| over(usage.containers.get(n), *l))?;
        Some(Exceeded {
            signal: "ephemeralcontainerfs.limit",
            message: format!(
                "Container {name} exceeded its local ephemeral storage limit \"{limit}\". "
            ),
        })
    }

    fn total(&self, usage: &LocalUsage) -> u64 {
        let local = self.local.iter().filter_map(|name| usage.volumes.get(name));
        let all = usage.containers.values().chain(local);
        all.fold(usage.other, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// What the final status of a pod says that was evicted for what it keeps.
pub fn evicted(pod: &Pod, message: &str) -> StatusOverride {
    StatusOverride {
        phase: "Failed",
        reason: EVICTED.into(),
        message: message.into(),
        condition: Some(terminated_by_kubelet(pod, message)),
    }
}

fn bytes(n: u64) -> Quantity {
    Quantity::from_units(i64::try_from(n).unwrap_or(i64::MAX), Format::BinarySi)
}

fn volumes(spec: &PodSpec) -> impl Iterator<Item = &Volume> {
    spec.volumes.iter().flatten()
}

fn size_limit(volume: &Volume) -> Option<(String, Quantity)> {
    let limit = volume.empty_dir.as_ref()?.size_limit.as_ref()?;
    let limit: Quantity = limit.0.parse().ok()?;
    let limits = !limit.is_zero() && !limit.is_negative();
    limits.then(|| (volume.name.clone(), limit))
}

fn local_volumes(spec: &PodSpec) -> Vec<String> {
    let on_disk = |v: &Volume| {
        let empty_dir = v.empty_dir.as_ref();
        let medium = empty_dir.map(|e| e.medium.as_deref().unwrap_or_default());
        medium == Some("") || v.config_map.is_some() || v.git_repo.is_some()
    };
    let local = volumes(spec).filter(|v| on_disk(v));
    local.map(|v| v.name.clone()).collect()
}

fn of_container(container: &Container) -> Amounts {
    let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
    let mut limits = resources::parse(limits);
    limits.retain(|name, _| name == EPHEMERAL_STORAGE);
    limits
}

/// The overhead of its runtime counts only where there is a limit that it could add to.
fn pod_limit(spec: &PodSpec) -> Option<Quantity> {
    let sums = resources::aggregate(spec, |container, _| of_container(container));
    let limit = *sums.get(EPHEMERAL_STORAGE)?;
    let overhead = resources::parse(spec.overhead.as_ref());
    let more = overhead.get(EPHEMERAL_STORAGE).copied();
    Some(limit.saturating_add(more.unwrap_or(Quantity::ZERO)))
}

fn container_limits(spec: &PodSpec) -> Vec<(String, Quantity)> {
    let limited = spec.containers.iter().filter_map(|container| {
        let limit = *of_container(container).get(EPHEMERAL_STORAGE)?;
        (limit.value() != 0).then(|| (container.name.clone(), limit))
    });
    limited.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "generation": 3}, "spec": spec}))
            .unwrap()
    }

    fn container(name: &str, limit: Option<&str>) -> Value {
        match limit {
            Some(limit) => {
                json!({"name": name, "resources": {"limits": {"ephemeral-storage": limit, "cpu": "1"}}})
            }
            None => json!({"name": name}),
        }
    }

    fn usage(volumes: &[(&str, u64)], containers: &[(&str, u64)], other: u64) -> LocalUsage {
        let named = |all: &[(&str, u64)]| all.iter().map(|(n, b)| ((*n).to_owned(), *b)).collect();
        LocalUsage {
            volumes: named(volumes),
            containers: named(containers),
            other,
        }
    }

    #[test]
    fn who_has_limits_at_all() {
        let dir = |dir: Value| json!({"containers": [container("c", None)], "volumes": [{"name": "v", "emptyDir": dir}]});
        for (spec, limited, containers) in [
            (json!({"containers": [container("c", None)]}), false, false),
            (dir(json!({})), false, false),
            (dir(json!({"sizeLimit": "0"})), false, false),
            (dir(json!({"sizeLimit": "no number"})), false, false),
            (dir(json!({"sizeLimit": "1Mi"})), true, false),
            (
                dir(json!({"sizeLimit": "1Mi", "medium": "Memory"})),
                true,
                false,
            ),
            (
                json!({"containers": [container("c", Some("1Mi"))]}),
                true,
                true,
            ),
            (
                json!({"containers": [container("c", None)], "initContainers": [container("i", Some("1Mi"))]}),
                true,
                true,
            ),
            (
                json!({"containers": [container("c", Some("1Mi"))], "priority": 2_000_000_000}),
                false,
                false,
            ),
        ] {
            let found = StorageLimits::of(&pod(spec.clone()));
            assert_eq!(found.is_some(), limited, "{spec}");
            assert_eq!(
                found.is_some_and(|l| l.count_containers()),
                containers,
                "{spec}"
            );
        }
        let mut own = pod(dir(json!({"sizeLimit": "1Mi"})));
        own.metadata.annotations =
            Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
        assert_eq!(
            StorageLimits::of(&own),
            None,
            "static pods are never evicted"
        );
    }

    #[test]
    fn what_is_too_much() {
        let spec = json!({
            "containers": [container("a", Some("1Mi")), container("b", Some("2Mi")), container("free", None)],
            "initContainers": [container("init", Some("512Ki"))],
            "volumes": [
                {"name": "disk", "emptyDir": {"sizeLimit": "1Mi"}},
                {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "100"}},
                {"name": "free", "emptyDir": {}},
                {"name": "settings", "configMap": {"name": "c"}},
                {"name": "host", "hostPath": {"path": "/"}},
            ],
        });
        let limits = StorageLimits::of(&pod(spec)).unwrap();
        let mib = 1 << 20;
        for (volumes, containers, other, expected) in [
            (&[][..], &[][..], 0, None),
            (&[("disk", mib)][..], &[("a", mib), ("b", mib)][..], 0, None),
            (
                &[("disk", mib + 1)],
                &[("a", 9 * mib)],
                0,
                Some((
                    "emptydirfs.limit",
                    "Usage of EmptyDir volume \"disk\" exceeds the limit \"1Mi\". ",
                )),
            ),
            (
                &[("memory", 101)],
                &[],
                0,
                Some((
                    "emptydirfs.limit",
                    "Usage of EmptyDir volume \"memory\" exceeds the limit \"100\". ",
                )),
            ),
            // All together; what is in memory or on the host is not the pod's.
            (
                &[("free", 2 * mib), ("memory", 100), ("host", 9 * mib)],
                &[("free", mib)],
                0,
                None,
            ),
            (
                &[("free", 2 * mib), ("settings", 1)],
                &[("free", mib)],
                0,
                Some((
                    "ephemeralpodfs.limit",
                    "Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. ",
                )),
            ),
            (
                &[("free", 3 * mib)],
                &[],
                1,
                Some((
                    "ephemeralpodfs.limit",
                    "Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. ",
                )),
            ),
            (
                &[],
                &[("a", mib + 1)],
                0,
                Some((
                    "ephemeralcontainerfs.limit",
                    "Container a exceeded its local ephemeral storage limit \"1Mi\". ",
                )),
            ),
        ] {
            let found = limits.exceeded(&usage(volumes, containers, other));
            let found = found.as_ref().map(|e| (e.signal, e.message.as_str()));
            assert_eq!(found, expected, "{volumes:?} {containers:?} {other}");
        }
    }

    #[test]
    fn overhead_adds_to_a_limit_and_makes_none() {
        let spec = |limit| json!({"containers": [container("c", limit)], "overhead": {"ephemeral-storage": "1Mi"}});
        let limits = StorageLimits::of(&pod(spec(Some("1Mi")))).unwrap();
        assert_eq!(limits.pod.map(Quantity::value), Some(2 << 20));
        assert_eq!(StorageLimits::of(&pod(spec(None))), None);
    }

    #[test]
    fn what_is_told_of_an_evicted_pod() {
        let told = evicted(&pod(json!({"containers": []})), "too much. ");
        assert_eq!(
            (told.phase, &*told.reason, &*told.message),
            ("Failed", "Evicted", "too much. ")
        );
        let condition = told.condition.unwrap_or_default();
        assert_eq!(
            (&*condition.type_, &*condition.status),
            ("DisruptionTarget", "True")
        );
        assert_eq!(condition.reason.as_deref(), Some("TerminationByKubelet"));
        assert_eq!(condition.message.as_deref(), Some("too much. "));
        assert_eq!(condition.observed_generation, Some(3));
    }
}
