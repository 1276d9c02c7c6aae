use std::os::unix::fs::PermissionsExt as _;

use krablet_linux::HostFiles;
use serde_json::json;

use super::*;

const FILE: &str = "/etc/kubernetes/kubelet.conf";

fn parse(text: &str) -> Result<Kubeconfig, KubeconfigError> {
    Kubeconfig::parse(Path::new(FILE), text.as_bytes())
}

/// One cluster `c`, one user `u`, one context, with these bodies.
fn with(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
         clusters: [{{name: c, cluster: {cluster}}}]\n\
         users: [{{name: u, user: {user}}}]\n\
         contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n"
    )
}

const SERVER: &str = "{server: https://a:6443}";

#[test]
fn the_file_of_a_kubeadm_join() {
    let text = "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: Y2E=\n    \
        server: https://10.0.0.1:6443\n  name: default-cluster\ncontexts:\n- context:\n    cluster: default-cluster\n    \
        namespace: default\n    user: default-auth\n  name: default-context\ncurrent-context: default-context\nkind: Config\n\
        preferences: {}\nusers:\n- name: default-auth\n  user:\n    client-certificate: pki/current.pem\n    \
        client-key: /k/current.pem\n";
    let config = parse(text).unwrap();
    let (cluster, user) = config.current().unwrap();
    assert_eq!(cluster.server, "https://10.0.0.1:6443");
    assert_eq!(
        cluster.certificate_authority,
        Some(Pem::Data(b"ca".to_vec()))
    );
    let beside = PathBuf::from("/etc/kubernetes/pki/current.pem");
    assert_eq!(user.client_certificate, Some(Pem::File(beside)));
    let absolute = PathBuf::from("/k/current.pem");
    assert_eq!(user.client_key, Some(Pem::File(absolute)));
}

#[test]
fn json_is_read_as_well() {
    let config = json!({
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {
            "server": "https://a", "tls-server-name": "b",
            "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "z"}}],
        }}],
        "users": [{"name": "u", "user": {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1beta1", "command": "./bin/login",
            "args": ["--now"], "env": [{"name": "A", "value": "b"}], "provideClusterInfo": true,
        }}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    });
    let config = parse(&config.to_string()).unwrap();
    let (cluster, user) = config.current().unwrap();
    assert_eq!(cluster.exec_extension, Some(json!({"audience": "z"})));
    assert_eq!(cluster.tls_server_name.as_deref(), Some("b"));
    let exec = user.exec.as_ref().unwrap();
    assert_eq!(exec.command, "/etc/kubernetes/./bin/login");
    assert_eq!(exec.interactive_mode, InteractiveMode::IfAvailable);
    assert_eq!(exec.env, [("A".to_owned(), Secret::new("b"))]);
}

#[test]
fn complaints_name_file_and_field() {
    let exec = |body: &str| with(SERVER, &format!("{{exec: {{{body}}}}}"));
    let cases = [
        (String::new(), "the file is empty"),
        ("[]".into(), "want a mapping, found a list"),
        ("kind: Pod".into(), "kind: want Config, found \"Pod\""),
        (
            "clusters: {}".into(),
            "clusters: want a list, found a mapping",
        ),
        (
            "clusters: [{name: a}]".into(),
            "clusters[0].cluster: missing",
        ),
        ("{}".into(), "current-context: missing"),
        (
            "current-context: x".into(),
            "current-context: there is no context \"x\"",
        ),
        (
            "current-context: x\ncontexts: [{name: x, context: {user: u}}]".into(),
            "contexts[0].context.cluster: missing",
        ),
        (
            with(SERVER, "{}").replace("user: u}", "user: v}"),
            "contexts[0].context.user: there is no user \"v\"",
        ),
        (
            "users: [{name: a}, {name: a}]".into(),
            "users[1]: the name \"a\" is used before",
        ),
        (with("{}", "{}"), "clusters[0].cluster.server: missing"),
        (
            with("{server: a, proxy-url: 'socks5://me:secret@p'}", "{}"),
            "clusters[0].cluster.proxy-url: socks5: a proxy of this kind is not supported, only http and https are",
        ),
        (
            with(
                "{server: a, certificate-authority: b, insecure-skip-tls-verify: true}",
                "{}",
            ),
            "clusters[0].cluster.insecure-skip-tls-verify: not allowed together with a certificate authority",
        ),
        (
            with(SERVER, "{client-key-data: '%'}"),
            "users[0].user.client-key-data: not base64",
        ),
        (
            with(SERVER, "{token: 12345}"),
            "users[0].user.token: want text, found a number",
        ),
        (
            with(SERVER, "{client-certificate: a}"),
            "users[0].user.client-key: missing, there is a client certificate",
        ),
        (
            with(SERVER, "{token: a, username: b}"),
            "users[0].user.token: not allowed together with username and password",
        ),
        (
            with(SERVER, "{auth-provider: {name: gcp}}"),
            "users[0].user.auth-provider: not supported",
        ),
        (exec("apiVersion: a"), "users[0].user.exec.command: missing"),
        (exec("command: a"), "users[0].user.exec.apiVersion: missing"),
        (
            exec("command: a, apiVersion: client.authentication.k8s.io/v1alpha1"),
            "users[0].user.exec.apiVersion: want client.authentication.k8s.io/v1 or client.authentication.k8s.io/v1beta1",
        ),
        (
            exec("command: a, apiVersion: client.authentication.k8s.io/v1"),
            "users[0].user.exec.interactiveMode: missing",
        ),
    ];
    for (text, expected) in cases {
        let error = parse(&text).and_then(|config| config.current().map(|_| ()));
        let error = error.expect_err(expected).to_string();
        assert_eq!(error, format!("{FILE}: {expected}"), "{text}");
    }
}

#[test]
fn secrets_stay_out_of_debug() {
    let user = "{token: s3cret, password: s3cret, client-key-data: czNjcmV0, client-certificate: a, \
        exec: {command: a, apiVersion: client.authentication.k8s.io/v1beta1, env: [{name: A, value: s3cret}]}}";
    let server = "{server: a, proxy-url: 'http://me:s3cret@p'}";
    let config = parse(&with(server, user)).unwrap();
    let shown = format!("{config:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(
        !shown.contains("czNjcmV0") && !shown.contains("115, 51"),
        "{shown}"
    );
}

#[tokio::test]
async fn what_is_written_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/kubelet.conf");
    let clusters = [
        Cluster {
            server: "https://10.0.0.1:6443".into(),
            certificate_authority: Some(Pem::Data(b"ca".to_vec())),
            ..Cluster::default()
        },
        Cluster {
            server: "https://[::1]:6443".into(),
            certificate_authority: Some(Pem::File("/with space: and # mark".into())),
            tls_server_name: Some("12".into()),
            proxy_url: Some(Secret::new("http://me:s3cret@proxy:3128")),
            ..Cluster::default()
        },
        Cluster {
            server: "http://127.0.0.1:8080".into(),
            insecure_skip_tls_verify: true,
            ..Cluster::default()
        },
    ];
    for cluster in clusters {
        let pem = Path::new("/var/lib/kubelet/pki/kubelet-client-current.pem");
        let written = Bootstrapped {
            cluster: &cluster,
            pem,
        };
        written.write(&HostFiles, &path).await.unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let config = Kubeconfig::read(&path).unwrap();
        let (read, user) = config.current().unwrap();
        let expected = Cluster {
            name: "default-cluster".into(),
            ..cluster
        };
        assert_eq!(*read, expected);
        assert_eq!(user.client_certificate, Some(Pem::File(pem.into())));
        assert_eq!(user.client_key, Some(Pem::File(pem.into())));
    }
    let missing = Kubeconfig::read(&directory.path().join("none"));
    assert!(missing.is_err_and(|e| e.is_not_found()));
}
