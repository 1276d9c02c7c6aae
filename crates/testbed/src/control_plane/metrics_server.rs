//! A metrics-server behind the API server, so that `kubectl top` has somebody to ask. A process beside the control plane,
//! with the account and the rights its own manifests would give it: nodes know it by its token.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::components::write_command;
use super::{ControlPlane, Kubeconfig, User};
use crate::bed::tail;
use crate::parts::{self, Part};
use crate::ports;

const NAME: &str = "metrics-server";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const API: &str = "v1beta1.metrics.k8s.io";
const ACCOUNTS: &str = "/api/v1/namespaces/kube-system/serviceaccounts";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

impl ControlPlane {
    /// Starts it and makes it known. It answers once it has seen the nodes twice.
    pub async fn start_metrics_server(&self) -> Result<()> {
        let ensure = || parts::ensure(&[Part::MetricsServer]);
        let bins = tokio::task::spawn_blocking(ensure).await??;
        let address = self.site.address;
        let address = address.context("this machine has no address others could use")?;
        let port = ports::steady()?;
        for (path, object) in rights() {
            self.place(&path, &object).await?;
        }
        let wish = Kubeconfig {
            user: User::Token(self.metrics_server_token().await?),
            ..Kubeconfig::default()
        };
        let kubeconfig = self.kubeconfig_with(NAME, &wish)?;
        let certificates = self.site.dir.join("metrics-server-pki");
        let arguments = arguments(&kubeconfig, &certificates, port);
        write_command(&self.site.dir, NAME, &bins.path(NAME)?, &arguments)?;
        for (path, object) in service(address, port) {
            self.place(&path, &object).await?;
        }
        self.ask(format!("start {NAME}")).await.map(drop)
    }

    /// As a pod of its account would be given one, for an hour.
    async fn metrics_server_token(&self) -> Result<String> {
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        });
        let path = format!("{ACCOUNTS}/{NAME}/token");
        let answer = self.create(&path, &request).await?;
        let token = answer["status"]["token"].as_str();
        Ok(token.context("no token in the answer")?.to_owned())
    }

    /// Ends it, and nobody is sent to it any more.
    pub async fn stop_metrics_server(&self) -> Result<()> {
        self.delete(&format!("{API_SERVICES}/{API}")).await?;
        for path in [
            "/api/v1/namespaces/kube-system/services",
            "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices",
        ] {
            self.delete(&format!("{path}/{NAME}")).await?;
        }
        self.ask(format!("stop {NAME}")).await.map(drop)
    }

    /// The last lines it has logged.
    pub fn metrics_server_logs(&self) -> String {
        tail(&self.site.dir.join(format!("{NAME}.log")), 60)
    }
}

fn arguments(kubeconfig: &Path, certificates: &Path, port: u16) -> Vec<String> {
    let kubeconfig = kubeconfig.display();
    vec![
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        format!("--cert-dir={}", certificates.display()),
        format!("--secure-port={port}"),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--kubelet-use-node-status-port".to_owned(),
        // Nodes show certificates that they signed themselves.
        "--kubelet-insecure-tls".to_owned(),
        // It must be longer than the ten seconds a node is waited for.
        "--metric-resolution=15s".to_owned(),
    ]
}

/// What its own manifests ask for: an account, and what it may.
fn rights() -> Vec<(String, Value)> {
    let account = json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": NAME, "namespace": "kube-system"},
    });
    let subjects = json!([{"kind": "ServiceAccount", "name": NAME, "namespace": "kube-system"}]);
    let binding = |kind: &str, name: &str, role_kind: &str, role: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role},
            "subjects": subjects,
        })
    };
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": NAME},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
        ],
    });
    let cluster = format!("{RBAC}/clusterrolebindings");
    let reader = "extension-apiserver-authentication-reader";
    vec![
        (ACCOUNTS.to_owned(), account),
        (format!("{RBAC}/clusterroles"), role),
        (
            cluster.clone(),
            binding("ClusterRoleBinding", NAME, "ClusterRole", NAME),
        ),
        (
            cluster,
            binding(
                "ClusterRoleBinding",
                "metrics-server:system:auth-delegator",
                "ClusterRole",
                "system:auth-delegator",
            ),
        ),
        (
            format!("{RBAC}/namespaces/kube-system/rolebindings"),
            binding("RoleBinding", NAME, "Role", reader),
        ),
    ]
}

/// A service without pods: the process is named as what stands behind it.
fn service(address: Ipv4Addr, port: u16) -> Vec<(String, Value)> {
    vec![
        (
            "/api/v1/namespaces/kube-system/services".to_owned(),
            json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": NAME},
                "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]},
            }),
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices".to_owned(),
            json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": NAME,
                    "labels": {"kubernetes.io/service-name": NAME},
                },
                "addressType": "IPv4",
                "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
                "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
            }),
        ),
        (
            API_SERVICES.to_owned(),
            json!({
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": API},
                "spec": {
                    "group": "metrics.k8s.io",
                    "version": "v1beta1",
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "insecureSkipTLSVerify": true,
                    "service": {"namespace": "kube-system", "name": NAME, "port": 443},
                },
            }),
        ),
    ]
}
