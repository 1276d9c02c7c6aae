//! Node-local marks on pods: where a pod came from, and what it is to the node.

use crate::api::Pod;

/// Annotation: source of the pod (`file`, `http`, `api`).
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Annotation: when this agent first saw the pod.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// Annotation on a mirror pod: the hash of the static pod it mirrors.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// Annotation: hash of a static pod's manifest.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// Pods at or above this priority count as critical.
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Where desired pods come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodSource {
    File,
    Http,
    Api,
}

impl PodSource {
    pub fn as_str(self) -> &'static str {
        match self {
            PodSource::File => "file",
            PodSource::Http => "http",
            PodSource::Api => "api",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "file" => Some(PodSource::File),
            "http" => Some(PodSource::Http),
            "api" => Some(PodSource::Api),
            _ => None,
        }
    }

    /// The source a pod carries in its annotation.
    pub fn of(pod: &Pod) -> Option<Self> {
        annotation(pod, CONFIG_SOURCE).and_then(Self::parse)
    }
}

pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(key))
        .map(String::as_str)
}

/// A static pod is one the node itself decided on: from any source but the API server.
pub fn is_static(pod: &Pod) -> bool {
    PodSource::of(pod).is_some_and(|s| s != PodSource::Api)
}

pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

/// Critical pods are never evicted and may pre-empt: static, mirror, and high-priority ones.
pub fn is_critical(pod: &Pod) -> bool {
    is_static(pod)
        || is_mirror(pod)
        || pod
            .spec
            .as_ref()
            .and_then(|s| s.priority)
            .is_some_and(|p| p >= SYSTEM_CRITICAL_PRIORITY)
}
