//! Which pods keep more on the node's disk than they may: in a volume, in a container, or all together. Such a pod is evicted.

use std::collections::BTreeSet;

use krablet_pod::api::{Container, Pod, PodSpec, Volume};
use krablet_pod::quantity::Format;
use krablet_pod::resources::{self, Amounts};
use krablet_pod::storage::{LocalUsage, is_local};
use krablet_pod::{Quantity, marks};

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
    /// Volumes whose bytes are the pod's own.
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

    /// The volumes whose bytes matter. To measure a volume costs something, so nobody is to do it for the others.
    pub fn counted_volumes(&self) -> BTreeSet<&str> {
        let limited = self.volumes.iter().map(|(name, _)| name);
        let local = self.pod.iter().flat_map(|_| &self.local);
        limited.chain(local).map(String::as_str).collect()
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
        let kept = |name: &String| {
            let kept = usage.containers.get(name)?;
            Some(match usage.one_disk {
                true => kept.sum(),
                false => kept.logs,
            })
        };
        let mut containers = self.containers.iter();
        let (name, limit) = containers.find(|(n, l)| over(kept(n).as_ref(), *l))?;
        Some(Exceeded {
            signal: "ephemeralcontainerfs.limit",
            message: format!(
                "Container {name} exceeded its local ephemeral storage limit \"{limit}\". "
            ),
        })
    }

    fn total(&self, usage: &LocalUsage) -> u64 {
        let local = self.local.iter().filter_map(|name| usage.volumes.get(name));
        let containers = usage.containers.values().map(|c| c.sum());
        let all = containers.chain(local.copied());
        all.fold(usage.other, u64::saturating_add)
    }
}

/// What the final status of a pod says that was evicted for what it keeps. It has no condition of a disruption: whoever counts
/// failures is to count this one, for it is the pod's own.
pub fn evicted(message: &str) -> StatusOverride {
    StatusOverride {
        phase: "Failed",
        reason: EVICTED.into(),
        message: message.into(),
        condition: None,
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
    let local = volumes(spec).filter(|v| is_local(v));
    local.map(|v| v.name.clone()).collect()
}

fn of_container(container: &Container) -> Amounts {
    let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
    let mut limits = resources::parse(limits);
    limits.retain(|name, _| name == EPHEMERAL_STORAGE);
    limits
}

/// The overhead of its runtime counts only where there is a limit that it could add to; one of nothing stays one of nothing.
fn pod_limit(spec: &PodSpec) -> Option<Quantity> {
    let sums = resources::aggregate(spec, |container, _| of_container(container));
    let limit = *sums.get(EPHEMERAL_STORAGE)?;
    let overhead = resources::parse(spec.overhead.as_ref());
    Some(match overhead.get(EPHEMERAL_STORAGE) {
        Some(more) if !limit.is_zero() => limit.saturating_add(*more),
        _ => limit,
    })
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
    use krablet_pod::storage::ContainerUsage;
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
        // A byte of it is in the log.
        let container = |bytes: u64| ContainerUsage {
            logs: 1,
            written: bytes.saturating_sub(1),
        };
        let containers = containers.iter();
        LocalUsage {
            volumes: volumes.iter().map(|(n, b)| ((*n).to_owned(), *b)).collect(),
            containers: containers
                .map(|(n, b)| ((*n).to_owned(), container(*b)))
                .collect(),
            other,
            one_disk: true,
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
    fn a_container_that_writes_to_another_disk() {
        let spec =
            json!({"containers": [container("a", Some("1Mi")), container("b", Some("8Mi"))]});
        let limits = StorageLimits::of(&pod(spec)).unwrap();
        let mut kept = usage(&[], &[("a", 2 << 20)], 0);
        assert!(limits.exceeded(&kept).is_some());
        kept.one_disk = false;
        assert_eq!(limits.exceeded(&kept), None);
        // All together it is the pod's, wherever it is.
        kept = usage(&[], &[("a", 10 << 20)], 0);
        kept.one_disk = false;
        let found = limits.exceeded(&kept).map(|e| e.signal);
        assert_eq!(found, Some("ephemeralpodfs.limit"));
    }

    #[test]
    fn overhead_adds_to_a_limit_and_makes_none() {
        for (limit, expected) in [
            (None, None),
            (Some("1Mi"), Some(2 << 20)),
            (Some("0"), Some(0)),
        ] {
            let spec = json!({"containers": [container("c", limit)], "overhead": {"ephemeral-storage": "1Mi"}});
            let limits = StorageLimits::of(&pod(spec));
            let found = limits.and_then(|limits| limits.pod).map(Quantity::value);
            assert_eq!(found, expected, "{limit:?}");
        }
    }

    #[test]
    fn which_volumes_are_to_be_measured() {
        let of = |limit, volumes: Value| {
            let spec = json!({"containers": [container("c", limit)], "volumes": volumes});
            let limits = StorageLimits::of(&pod(spec)).unwrap();
            let names: Vec<String> = limits
                .counted_volumes()
                .into_iter()
                .map(str::to_owned)
                .collect();
            names.join(" ")
        };
        let volumes = json!([
            {"name": "sized", "emptyDir": {"sizeLimit": "1Mi"}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "free", "emptyDir": {}},
            {"name": "settings", "configMap": {"name": "c"}},
            {"name": "secret", "secret": {"secretName": "s"}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "nfs", "nfs": {"server": "s", "path": "/"}},
        ]);
        assert_eq!(of(None, volumes.clone()), "memory sized");
        assert_eq!(of(Some("1Mi"), volumes), "free memory settings sized");
        assert_eq!(of(Some("1Mi"), json!([])), "");
    }

    #[test]
    fn what_is_told_of_an_evicted_pod() {
        let told = evicted("too much. ");
        assert_eq!(
            (told.phase, &*told.reason, &*told.message, told.condition),
            ("Failed", "Evicted", "too much. ", None)
        );
    }
}
