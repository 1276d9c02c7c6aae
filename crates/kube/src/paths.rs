//! Where objects live on an API server.

use std::fmt::Display;

pub const NODES: &str = "/api/v1/nodes";
/// Pods of all namespaces.
pub const PODS: &str = "/api/v1/pods";
pub const CERTIFICATE_SIGNING_REQUESTS: &str =
    "/apis/certificates.k8s.io/v1/certificatesigningrequests";
pub const RUNTIME_CLASSES: &str = "/apis/node.k8s.io/v1/runtimeclasses";
pub const CLUSTER_TRUST_BUNDLES: &str = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
/// Of all namespaces.
pub const POD_CERTIFICATE_REQUESTS: &str =
    "/apis/certificates.k8s.io/v1beta1/podcertificaterequests";
/// Where the leases of nodes are.
pub const NODE_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

pub fn node(name: impl Display) -> String {
    format!("{NODES}/{name}")
}

pub fn node_status(name: impl Display) -> String {
    format!("{NODES}/{name}/status")
}

pub fn pods(namespace: impl Display) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

pub fn pod(namespace: impl Display, name: impl Display) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

pub fn pod_status(namespace: impl Display, name: impl Display) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}/status")
}

pub fn service_account(namespace: impl Display, name: impl Display) -> String {
    format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}")
}

pub fn pod_certificate_requests(namespace: impl Display) -> String {
    format!("/apis/certificates.k8s.io/v1beta1/namespaces/{namespace}/podcertificaterequests")
}

pub fn events(namespace: impl Display) -> String {
    format!("/api/v1/namespaces/{namespace}/events")
}

pub fn event(namespace: impl Display, name: impl Display) -> String {
    format!("/api/v1/namespaces/{namespace}/events/{name}")
}

pub fn node_lease(name: impl Display) -> String {
    format!("{NODE_LEASES}/{name}")
}

pub fn certificate_signing_request(name: impl Display) -> String {
    format!("{CERTIFICATE_SIGNING_REQUESTS}/{name}")
}

/// Services of all namespaces.
pub const SERVICES: &str = "/api/v1/services";

pub fn config_maps(namespace: impl Display) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

pub fn secrets(namespace: impl Display) -> String {
    format!("/api/v1/namespaces/{namespace}/secrets")
}
