//! A control plane comes up, gives nodes their rights and no more, survives what tests do to it, and
//! leaves nothing behind, however it ends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use krablet_testbed::{
    ClientCertificate, Component, ControlPlane, ControlPlaneOptions, Kubeconfig, Trust, User,
    eventually, eventually_or, leftovers, sweep,
};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

const LONG: Duration = Duration::from_secs(120);

/// Only what every control plane has: enough where no controller is needed.
fn bare() -> ControlPlaneOptions {
    ControlPlaneOptions {
        controller_manager: false,
        scheduler: false,
        ..ControlPlaneOptions::default()
    }
}

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
}

/// A request for the certificate of a node, in PEM.
fn certificate_request(name: &str) -> String {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, format!("system:node:{name}"));
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    let request = params.serialize_request(&KeyPair::generate().unwrap());
    let text = STANDARD.encode(request.unwrap().der());
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n")
}

#[tokio::test]
async fn nodes_get_their_rights_and_no_more() {
    let plane = ControlPlane::up(ControlPlaneOptions::default())
        .await
        .unwrap();
    own_node_only(&plane).await;
    token_gets_a_certificate(&plane).await;
    wrong_ones_are_refused(&plane).await;
    controllers_and_scheduler_work(&plane).await;
    let name = plane.name().to_owned();
    plane.down().await.unwrap();
    assert_eq!(leftovers(&name), Vec::<String>::new());
}

async fn own_node_only(plane: &ControlPlane) {
    let kubeconfig = plane.node_kubeconfig("alpha").unwrap();
    let mode = std::fs::metadata(&kubeconfig).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let create = ["create", "-f", "-"];
    plane
        .kubectl_as(&kubeconfig, &create, Some(&node("alpha").to_string()))
        .await
        .unwrap();
    let other = plane
        .kubectl_as(&kubeconfig, &create, Some(&node("beta").to_string()))
        .await
        .unwrap_err();
    assert!(other.to_string().contains("is not allowed"), "{other}");
    let label = [
        "label",
        "node",
        "alpha",
        "node-restriction.kubernetes.io/mine=yes",
    ];
    let label = plane.kubectl_as(&kubeconfig, &label, None).await;
    assert!(label.unwrap_err().to_string().contains("forbidden"));
    let nodes = plane.kubectl_json(&["get", "nodes"]).await.unwrap();
    assert_eq!(nodes["items"].as_array().unwrap().len(), 1);
}

async fn token_gets_a_certificate(plane: &ControlPlane) {
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": "joining"},
        "spec": {
            "request": STANDARD.encode(certificate_request("gamma")),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"],
        },
    });
    let kubeconfig = plane.bootstrap_kubeconfig();
    plane
        .kubectl_as(
            &kubeconfig,
            &["create", "-f", "-"],
            Some(&request.to_string()),
        )
        .await
        .unwrap();
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests/joining";
    let signed = eventually_or(
        LONG,
        "the request is approved and signed",
        || plane.logs(Component::ControllerManager),
        async || {
            let request = plane.get_json(path).await.map_err(|e| e.to_string())?;
            match request["status"]["certificate"].as_str() {
                Some(certificate) => Ok(STANDARD.decode(certificate).unwrap()),
                None => Err(request["status"].to_string()),
            }
        },
    )
    .await;
    let signed = String::from_utf8(signed).unwrap();
    assert!(
        signed.starts_with("-----BEGIN CERTIFICATE-----"),
        "{signed}"
    );
    let nodes = plane.kubectl_as(&kubeconfig, &["get", "nodes"], None).await;
    assert!(nodes.is_err(), "a token is good for joining only");
}

async fn wrong_ones_are_refused(plane: &ControlPlane) {
    let node = ClientCertificate::node("alpha");
    let expired = ClientCertificate {
        ends_in: -10,
        ..node.clone()
    };
    let trust = Trust::Cluster;
    for (name, trust, user, word) in [
        (
            "expired",
            trust,
            User::Certificate(expired),
            // The server does not say more to somebody it cannot place.
            "Unauthorized",
        ),
        (
            "foreign",
            trust,
            User::ForeignCertificate(node.clone()),
            "Unauthorized",
        ),
        (
            "wrong-authority",
            Trust::Foreign,
            User::Certificate(node),
            "unknown authority",
        ),
        (
            "guessed",
            trust,
            User::Token("abcdef.0123456789abcdef".to_owned()),
            "Unauthorized",
        ),
    ] {
        let wish = Kubeconfig {
            trust,
            user,
            ..Kubeconfig::default()
        };
        let kubeconfig = plane.kubeconfig_with(name, &wish).unwrap();
        let arguments = ["get", "--raw", "/api/v1/nodes/alpha"];
        let outcome = plane.kubectl_as(&kubeconfig, &arguments, None).await;
        let why = outcome.unwrap_err().to_string();
        assert!(why.contains(word), "{name}: {why}");
    }
}

async fn controllers_and_scheduler_work(plane: &ControlPlane) {
    let template = json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {
            // The node is not ready, and nobody is there to say otherwise.
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "krablet.local/tool:v1"}],
        },
    });
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template,
        },
    });
    plane.kubectl_apply(&deployment).await.unwrap();
    let capacity = json!({"status": {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "110"}}});
    plane
        .patch("/api/v1/nodes/alpha/status", &capacity)
        .await
        .unwrap();
    eventually_or(
        LONG,
        "three pods are bound to the node",
        || plane.evidence(),
        async || {
            let pods = plane
                .get_json("/api/v1/namespaces/default/pods")
                .await
                .map_err(|e| e.to_string())?;
            let bound = pods["items"].as_array().unwrap().iter();
            match bound
                .filter(|pod| pod["spec"]["nodeName"] == "alpha")
                .count()
            {
                3 => Ok(()),
                _ => Err(pods.to_string()),
            }
        },
    )
    .await;
}

#[tokio::test]
async fn the_server_goes_away_and_comes_back() {
    let plane = ControlPlane::up(ControlPlaneOptions::default())
        .await
        .unwrap();
    let url = plane.server_url();
    let here = async |name: &str| {
        let answer = plane
            .request("GET", &format!("/api/v1/nodes/{name}"), None)
            .await;
        answer.unwrap().status
    };
    plane.create("/api/v1/nodes", &node("kept")).await.unwrap();

    plane.stop_apiserver().await.unwrap();
    assert!(plane.pid(Component::Apiserver).is_none());
    assert!(plane.get_json("/api/v1/nodes").await.is_err());
    plane.start_apiserver().await.unwrap();
    assert_eq!(here("kept").await, 200);

    plane.kill_apiserver().await.unwrap();
    plane.kill(Component::Etcd).await.unwrap();
    plane.start(Component::Etcd).await.unwrap();
    plane.start_apiserver().await.unwrap();
    assert_eq!(here("kept").await, 200);

    plane.pause_apiserver().unwrap();
    let silent =
        tokio::time::timeout(Duration::from_secs(1), plane.get_json("/api/v1/nodes")).await;
    assert!(silent.is_err(), "a paused server says nothing: {silent:?}");
    plane.resume_apiserver().unwrap();
    assert_eq!(here("kept").await, 200);
    // One that is paused can be stopped too.
    plane.pause_apiserver().unwrap();
    plane.stop_apiserver().await.unwrap();

    plane.wipe_etcd().await.unwrap();
    assert_eq!(plane.server_url(), url);
    assert_eq!(here("kept").await, 404);
    token_gets_a_certificate(&plane).await;
    plane.down().await.unwrap();
}

/// One that has ended and that nobody has reaped yet does not run.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[tokio::test]
async fn planes_are_apart_and_go_with_a_panic_or_a_sweep() {
    let (one, two) = tokio::join!(ControlPlane::up(bare()), ControlPlane::up(bare()));
    let (one, two) = (one.unwrap(), two.unwrap());
    one.create("/api/v1/nodes", &node("mine")).await.unwrap();
    let nodes = two.get_json("/api/v1/nodes").await.unwrap();
    assert_eq!(nodes["items"], json!([]));
    let (panicked, kept) = (one.name().to_owned(), two.name().to_owned());
    let pids = [Component::Etcd, Component::Apiserver].map(|part| one.pid(part).unwrap());
    assert!(!leftovers(&panicked).is_empty(), "one in use is seen");
    let test = tokio::spawn(async move {
        let _one = one;
        panic!("a failed assertion, as far as the control plane can tell");
    });
    assert!(test.await.unwrap_err().is_panic());
    assert_eq!(leftovers(&panicked), Vec::<String>::new());
    assert!(!pids.into_iter().any(runs));
    two.get_json("/api/v1/nodes").await.unwrap();
    // One whose keeper was killed is swept, even when a part of it does not hear anything.
    two.pause_apiserver().unwrap();
    let keeper = i32::try_from(two.keeper_pid()).unwrap();
    kill_process(Pid::from_raw(keeper).unwrap(), Signal::KILL).unwrap();
    assert!(two.down().await.is_err(), "the keeper is gone");
    assert!(!leftovers(&kept).is_empty());
    tokio::task::spawn_blocking(sweep).await.unwrap().unwrap();
    nothing_is_left(&kept).await;
}

async fn nothing_is_left(name: &str) {
    eventually(LONG, "all is cleaned up", async || match leftovers(name) {
        left if left.is_empty() => Ok(()),
        left => Err(left.join("\n")),
    })
    .await;
}

#[tokio::test]
async fn nothing_is_left_after_the_owner_is_killed() {
    let mut owner = Command::new(env!("CARGO_BIN_EXE_krablet-lab"))
        .arg("cluster")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let mut names = Vec::new();
    for whose in ["control plane", "bed"] {
        let line = lines.next_line().await.unwrap();
        let line = line.unwrap_or_else(|| panic!("krablet-lab names the {whose}"));
        names.push(line.split(' ').next().unwrap().to_owned());
    }
    for name in &names {
        assert!(!leftovers(name).is_empty(), "{name} is up");
    }
    let pid = i32::try_from(owner.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    owner.wait().await.unwrap();
    for name in names {
        nothing_is_left(&name).await;
    }
}
