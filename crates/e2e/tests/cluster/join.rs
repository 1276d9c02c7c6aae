//! How a node comes to be one of the cluster, and how it keeps its identity.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use krablet_e2e::cluster_stage::{Joining, condition};
use krablet_e2e::manifest::{single, tool};
use krablet_e2e::stage::options;
use krablet_e2e::{LONG, Member, status};
use krablet_testbed::{ControlPlaneOptions, Kubeconfig, Trust, User};
use serde_json::{Value, json};
use x509_parser::pem::Pem;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// When the certificate in this file ends, in seconds of the epoch.
pub fn ends(pem: &Path) -> i64 {
    let text = std::fs::read(pem).unwrap();
    let mut blocks = Pem::iter_from_buffer(&text).map(Result::unwrap);
    let certificate = blocks.find(|block| block.label == "CERTIFICATE").unwrap();
    let certificate = certificate.parse_x509().unwrap();
    certificate.validity().not_after.timestamp()
}

/// The requests for certificates of this node.
async fn requests(node: &Member) -> Vec<CertificateSigningRequest> {
    node.list(REQUESTS).await.unwrap()
}

/// The certificate, the Node object and the lease of a node that came with a token.
pub async fn by_token(node: &Member) {
    let dir = node.dir();
    let current = dir.join("pki/kubelet-client-current.pem");
    let target = std::fs::read_link(&current).unwrap();
    let target = target.file_name().unwrap().to_string_lossy().into_owned();
    assert!(target.starts_with("kubelet-client-2"), "{target}");
    for file in [&current, &dir.join("kubelet.conf")] {
        assert_eq!(mode(file), 0o600, "{}", file.display());
    }
    let text = std::fs::read_to_string(dir.join("kubelet.conf")).unwrap();
    assert!(text.contains(&current.display().to_string()), "{text}");
    assert!(!text.contains(&node.plane.bootstrap_token()), "{text}");

    let request = requests(node)
        .await
        .into_iter()
        .find(|r| {
            let user = r.spec.username.clone().unwrap_or_default();
            user.starts_with("system:bootstrap:")
        })
        .unwrap();
    assert_eq!(request.spec.signer_name, SIGNER);
    let found = request.status.unwrap();
    assert!(found.certificate.is_some());
    let reason = found.conditions.unwrap().remove(0).reason;
    assert_eq!(reason.as_deref(), Some("AutoApproved"));

    let object = node.ready().await;
    describes_the_machine(&object, &node.name);
    conditions_are_told(&object);
    lease_is_renewed(node, &object).await;
}

fn describes_the_machine(object: &Node, name: &str) {
    let labels = object.metadata.labels.as_ref().unwrap();
    assert_eq!(labels["kubernetes.io/hostname"], name);
    assert_eq!(labels["kubernetes.io/os"], "linux");
    assert!(labels.contains_key("kubernetes.io/arch"));
    let found = object.status.as_ref().unwrap();
    let (capacity, allocatable) = (
        found.capacity.as_ref().unwrap(),
        found.allocatable.as_ref().unwrap(),
    );
    for resource in ["cpu", "memory", "ephemeral-storage", "pods"] {
        assert!(capacity.contains_key(resource), "{capacity:?}");
        assert!(allocatable.contains_key(resource), "{allocatable:?}");
    }
    assert_eq!(allocatable["pods"].0, "110");
    let addresses = found.addresses.as_ref().unwrap();
    assert!(
        addresses
            .iter()
            .any(|a| a.type_ == "Hostname" && a.address == name)
    );
    assert!(addresses.iter().any(|a| a.type_ == "InternalIP"));
    let info = found.node_info.as_ref().unwrap();
    let version = &info.kubelet_version;
    assert!(version.starts_with("v1.36.4+krablet."), "{version}");
    assert!(info.container_runtime_version.starts_with("containerd://"));
    assert!(
        !info.machine_id.is_empty() && !info.boot_id.is_empty() && !info.kernel_version.is_empty()
    );
    let images = found.images.as_ref().unwrap();
    let names = images.iter().flat_map(|i| i.names.iter().flatten());
    assert!(
        names
            .into_iter()
            .any(|n| n == krablet_testbed::images::TOOL)
    );
    assert!(
        found
            .daemon_endpoints
            .as_ref()
            .unwrap()
            .kubelet_endpoint
            .is_some()
    );
}

fn conditions_are_told(object: &Node) {
    for (kind, status, reason) in [
        ("Ready", "True", "KubeletReady"),
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
    ] {
        let found = condition(object, kind).unwrap();
        let reason_found = found.reason.as_deref().unwrap();
        assert_eq!((found.status.as_str(), reason_found), (status, reason));
    }
}

async fn lease_is_renewed(node: &Member, object: &Node) {
    let lease = node.lease().await.unwrap();
    let owner = lease.metadata.owner_references.unwrap().remove(0);
    assert_eq!(
        (owner.kind.as_str(), Some(&owner.uid)),
        ("Node", object.metadata.uid.as_ref())
    );
    let before = lease.spec.unwrap();
    assert_eq!(before.holder_identity.as_ref(), Some(&node.name));
    assert_eq!(before.lease_duration_seconds, Some(40));
    node.wait("lease", "is renewed", async || {
        let renewed = node.lease().await?.spec.unwrap_or_default().renew_time;
        match renewed > before.renew_time {
            true => Ok(()),
            false => Err(format!("{renewed:?}")),
        }
    })
    .await;
}

/// What the agent logs of a watch that was lost and of a request that came to nothing.
const FAILURES: &[&str] = &[
    "Unauthorized",
    "list or watch failed",
    "watch is silent",
    "Failed to update status for pod",
    "Unable to update node status",
    "the node lease, will retry",
];

/// A server that takes its time on a busy machine, and says so, has dropped nothing.
const BUSY: &[&str] = &[
    "no answer within",
    "etcdserver",
    "timed out",
    "try again",
    "Too many requests",
    "has been modified",
];

fn is_failure(line: &str) -> bool {
    let says = |words: &&str| line.contains(words);
    FAILURES.iter().any(says) && !BUSY.iter().any(says)
}

/// Certificates of one minute: a new one is there before the old one ends, and nobody notices.
pub async fn certificate_is_renewed_under_a_watch() {
    let options = ControlPlaneOptions {
        signing_duration: Some(Duration::from_secs(60)),
        ..ControlPlaneOptions::default()
    };
    let node = Member::founding(options, "renewing").await;
    let current = node.dir().join("pki/kubelet-client-current.pem");
    let (first, end) = (std::fs::read_link(&current).unwrap(), ends(&current));
    let kept = node.run(&single("kept", tool("main", &["hold"]))).await;
    let log = node.stage.krablet.log().len();
    node.wait(
        "certificate",
        "is replaced",
        async || match std::fs::read_link(&current).unwrap() {
            next if next != first => Ok(()),
            _ => Err(format!("{}", first.display())),
        },
    )
    .await;
    assert_eq!(mode(&current), 0o600);
    assert!(ends(&current) > end);
    node.run(&single("comes-after", tool("main", &["hold"])))
        .await;
    node.wait(
        "lease",
        "is renewed after the first certificate's end",
        async || {
            let renewed = node.lease().await?.spec.unwrap_or_default().renew_time;
            match renewed.is_some_and(|time| time.0.as_second() > end) {
                true => Ok(()),
                false => Err("not yet".to_owned()),
            }
        },
    )
    .await;
    node.run(&single("comes-later", tool("main", &["hold"])))
        .await;
    let by_node = format!("system:node:{}", node.name);
    let asked = requests(&node).await;
    assert!(
        asked
            .iter()
            .any(|r| r.spec.username.as_ref() == Some(&by_node))
    );
    let log = node.stage.krablet.log().split_off(log);
    let dropped: Vec<&str> = log.lines().filter(|line| is_failure(line)).collect();
    assert_eq!(dropped, Vec::<&str>::new(), "{log}");
    let id = |pod| status::id(status::container(pod, "main").unwrap());
    assert_eq!(id(&kept), id(&node.running("kept").await));
    for name in ["kept", "comes-after", "comes-later"] {
        node.end(name).await;
    }
    node.down().await;
}

/// What `kubeadm init` leaves: a kubeconfig with the pair in it.
pub async fn embedded_pair_is_adopted(main: &Member) {
    let name = "adopted";
    let kubeconfig = main.plane.node_kubeconfig(name).unwrap();
    let joining = Joining {
        kubeconfig: Some(kubeconfig.clone()),
        ..Joining::default()
    };
    let mut node = main.prepared_beside(name, joining).await;
    node.start().await;
    let current = node.dir().join("pki/kubelet-client-current.pem");
    // Whoever made it may have been generous, so it is replaced by one that was asked for.
    node.wait("certificate", "is replaced", async || {
        let own = format!("system:node:{name}");
        let asked = requests(&node).await;
        let issued = asked.iter().any(|r| {
            let issued = r.status.as_ref().is_some_and(|s| s.certificate.is_some());
            issued && r.spec.username.as_ref() == Some(&own)
        });
        let files = std::fs::read_dir(node.dir().join("pki")).unwrap().flatten();
        let pairs = files.filter(|f| {
            f.file_name()
                .to_string_lossy()
                .starts_with("kubelet-client-2")
        });
        match (issued, pairs.count()) {
            (true, 2) => Ok(()),
            state => Err(format!("{state:?}")),
        }
    })
    .await;
    assert_eq!(mode(&current), 0o600);
    node.run(&single("on-adopted", tool("main", &["hold"])))
        .await;
    node.end("on-adopted").await;
    node.down().await;
}

/// A server of another authority is not spoken to. It may be put right, so it is tried again.
pub async fn wrong_authority_is_told_and_retried(main: &Member) {
    let token = User::Token(main.plane.bootstrap_token());
    let wish = |trust| Kubeconfig {
        trust,
        user: token.clone(),
        ..Kubeconfig::default()
    };
    let file = "wrong-authority";
    let bootstrap = main
        .plane
        .kubeconfig_with(file, &wish(Trust::Foreign))
        .unwrap();
    let joining = Joining {
        bootstrap: Some(bootstrap),
        ..Joining::default()
    };
    let mut node = main.prepared_beside("mistrustful", joining).await;
    node.stage.start().await;
    node.wait("certificate", "the reason is told once", async || {
        let log = node.stage.krablet.log();
        let lines: Vec<&str> = log
            .lines()
            .filter(|line| line.contains("no client certificate yet, trying again"))
            .collect();
        match lines.as_slice() {
            [line] if line.contains("is signed by an unknown authority") => Ok(()),
            _ => Err(lines.join("\n")),
        }
    })
    .await;
    assert!(node.stage.krablet.is_running());
    // Static pods do not need the cluster.
    let name = "needs-no-cluster";
    node.stage
        .apply(name, &single(name, tool("main", &["hold"])));
    let pod = node
        .wait(name, "runs", async || {
            let pod = node.stage.krablet.pod("needs-no-cluster-mistrustful").await;
            let pod = pod.map_err(|e| e.to_string())?;
            status::all_running(&pod)?;
            Ok(pod)
        })
        .await;
    node.stage.remove(name);
    node.wait(name, "ends", async || {
        match node.alive(&status::uid(&pod)).await {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        }
    })
    .await;
    node.down().await;
}

/// Somebody says no: the reason is told, and the agent ends.
pub async fn refused_request_is_told(main: &Member) {
    let (id, secret) = ("abcdef", "0123456789abcdef");
    let group = "system:bootstrappers:unapproved";
    let token = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": format!("bootstrap-token-{id}")},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": id,
            "token-secret": secret,
            "usage-bootstrap-authentication": "true",
            "auth-extra-groups": group,
        },
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "unapproved"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-bootstrapper"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
    });
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    main.plane
        .create("/api/v1/namespaces/kube-system/secrets", &token)
        .await
        .unwrap();
    main.plane.create(roles, &binding).await.unwrap();
    let wish = Kubeconfig {
        user: User::Token(format!("{id}.{secret}")),
        ..Kubeconfig::default()
    };
    let bootstrap = main.plane.kubeconfig_with("unapproved", &wish).unwrap();
    let joining = Joining {
        bootstrap: Some(bootstrap),
        ..Joining::default()
    };
    let mut node = main.prepared_beside("refused", joining).await;
    node.stage.krablet.start().unwrap();
    let user = format!("system:bootstrap:{id}");
    let request = node
        .wait("certificate", "is asked for", async || {
            let asked = requests(&node).await;
            let own = asked
                .into_iter()
                .find(|r| r.spec.username.as_ref() == Some(&user));
            own.and_then(|r| r.metadata.name)
                .ok_or_else(|| "not yet".to_owned())
        })
        .await;
    node.kubectl(&["certificate", "deny", &request]).await;
    let ended = node.stage.krablet.wait(LONG).await.unwrap();
    assert_eq!(ended.code(), Some(1));
    let log = node.stage.krablet.log();
    let told = format!("certificate signing request {request} was denied, reason: KubectlDeny");
    assert_eq!(log.matches(&told).count(), 1, "{log}");
    node.stage.bed.down().await.unwrap();
}

/// What no waiting can heal.
pub async fn bad_kubeconfigs_end_it_with_one_line(node: &Member) {
    let dir = node.stage.scratch("bad-kubeconfigs");
    let path = dir.join("kubelet.conf");
    let cut = "apiVersion: v1\nkind: Config\nclusters: [{name: a";
    let dangling = "apiVersion: v1\nkind: Config\ncurrent-context: away\n";
    for (text, name, word) in [
        (None, "without-one", "no bootstrap kubeconfig is given"),
        (Some(cut), "with-half-of-one", "kubelet.conf"),
        (Some(dangling), "with-an-empty-one", "away"),
    ] {
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        }
        let mut wish = options(Value::Null);
        wish.name = name.to_owned();
        wish.args = vec![
            format!("--kubeconfig={}", path.display()),
            format!("--cert-dir={}", dir.join("pki").display()),
        ];
        let mut agent = node.stage.bed.prepare_krablet(wish).unwrap();
        agent.start().unwrap();
        let ended = agent.wait(LONG).await.unwrap();
        let log = agent.log();
        assert_eq!(ended.code(), Some(1), "{log}");
        let errors: Vec<&str> = log.lines().filter(|line| line.starts_with('E')).collect();
        assert_eq!(errors.len(), 1, "one clear line: {log}");
        assert!(errors[0].contains(word), "{word} is missing in {log}");
    }
}
