//! Who gets in at the node's own port: known to a real API server or to the clients' authority, allowed by the former, and
//! nobody else. While there is no API server, its last words hold for as long as they may.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use krablet_e2e::cluster_stage::Joining;
use krablet_e2e::{LONG, Member};
use krablet_net::trust::AnyCertificate;
use krablet_testbed::{ClientCertificate, ControlPlaneOptions, Kubeconfig, User};
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::server_more::address;

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// One who knocks, and what he has to show.
pub(crate) struct Guest {
    tls: Arc<ClientConfig>,
    header: String,
}

impl Guest {
    fn nobody() -> Self {
        Self::showing(None, String::new())
    }

    fn token(token: &str) -> Self {
        Self::showing(None, format!("Authorization: Bearer {token}\r\n"))
    }

    /// As a WebSocket in a browser shows its token.
    fn protocol(token: &str) -> Self {
        let token = BASE64_URL_SAFE_NO_PAD.encode(token);
        Self::showing(
            None,
            format!(
                "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: \
                 v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.{token}\r\n"
            ),
        )
    }

    /// The pair that a kubeconfig of this user would have in it.
    pub(crate) fn certificate(node: &Member, user: User) -> Self {
        let wish = Kubeconfig {
            user,
            ..Kubeconfig::default()
        };
        let file = node.plane.kubeconfig_value(&wish).unwrap();
        let part = |name: &str| {
            let text = file["users"][0]["user"][name].as_str().unwrap();
            BASE64_STANDARD.decode(text).unwrap()
        };
        let certificate = CertificateDer::from_pem_slice(&part("client-certificate-data")).unwrap();
        let key = PrivateKeyDer::from_pem_slice(&part("client-key-data")).unwrap();
        Self::showing(Some((certificate, key)), String::new())
    }

    fn showing(
        pair: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
        header: String,
    ) -> Self {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            // Nodes show certificates that they signed themselves.
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)));
        let config = match pair {
            Some((certificate, key)) => config
                .with_client_auth_cert(vec![certificate], key)
                .unwrap(),
            None => config.with_no_client_auth(),
        };
        Self {
            tls: Arc::new(config),
            header,
        }
    }
}

/// A user of that name in the group that may do everything.
pub(crate) fn master(name: &str) -> ClientCertificate {
    ClientCertificate::new(name, "system:masters")
}

/// Where a node listens. To be found out while there is an API server.
pub(crate) struct Door {
    host: String,
    port: u16,
}

impl Door {
    pub(crate) async fn of(node: &Member) -> Self {
        let (host, port) = address(node).await;
        Self { host, port }
    }

    pub(crate) async fn connect(&self, guest: &Guest) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect((&*self.host, self.port)).await.unwrap();
        let name = ServerName::try_from("node").unwrap();
        let connector = TlsConnector::from(guest.tls.clone());
        connector.connect(name, stream).await.unwrap()
    }

    /// The code and the text of the answer to a question such as `GET /pods`, on a connection of its own.
    async fn ask(&self, guest: &Guest, question: &str) -> (u16, String) {
        let answer = tokio::time::timeout(LONG, async {
            let mut stream = self.connect(guest).await;
            let request = format!(
                "{question} HTTP/1.1\r\nHost: node\r\nContent-Length: 0\r\nConnection: close\r\n{}\r\n",
                guest.header
            );
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            answer
        });
        let answer = answer.await.expect("an answer");
        let answer = String::from_utf8_lossy(&answer);
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, text.to_owned())
    }

    /// Waits until that is the answer; others before it are none that were wrong, only old.
    pub(crate) async fn becomes(&self, node: &Member, guest: &Guest, question: &str, code: u16) {
        let what = format!("{question} is answered with {code}");
        node.wait("door", &what, async || {
            match self.ask(guest, question).await {
                (found, _) if found == code => Ok(()),
                (found, text) => Err(format!("{found} {text:.200}")),
            }
        })
        .await;
    }
}

fn user_name(account: &str) -> String {
    format!("system:serviceaccount:default:{account}")
}

/// A new ServiceAccount that may do this at nodes, by verbs and subresources; the API server knows of it.
async fn account(node: &Member, name: &str, rights: &[(&str, &str)]) {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
    node.plane.create(ACCOUNTS, &account).await.unwrap();
    let rule = |(verb, subresource): &(&str, &str)| {
        let resource = format!("nodes/{subresource}");
        json!({"apiGroups": [""], "resources": [resource], "verbs": [verb]})
    };
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": rights.iter().map(rule).collect::<Vec<_>>(),
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    });
    for (kind, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let path = format!("{RBAC}/{kind}");
        node.plane.create(&path, &object).await.unwrap();
    }
    // Else the first no would be remembered by the node.
    for (verb, subresource) in rights {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user_name(name),
                "resourceAttributes": {"verb": verb, "resource": "nodes", "subresource": subresource},
            },
        });
        node.wait(name, "the API server knows its rights", async || {
            let answer = node.plane.create(REVIEWS, &review).await;
            let answer = answer.map_err(|e| format!("{e:#}"))?;
            match answer["status"]["allowed"] == true {
                true => Ok(()),
                false => Err(answer["status"].to_string()),
            }
        })
        .await;
    }
}

/// As `kubectl create token` asks for one; for the API server if `audiences` is null.
async fn token(node: &Member, account: &str, audiences: Value) -> String {
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": audiences},
    });
    let path = format!("{ACCOUNTS}/{account}/token");
    let answer = node.plane.create(&path, &request).await.unwrap();
    answer["status"]["token"].as_str().unwrap().to_owned()
}

/// An account with these rights and its token.
async fn holder(node: &Member, name: &str, rights: &[(&str, &str)]) -> Guest {
    account(node, name, rights).await;
    Guest::token(&token(node, name, Value::Null).await)
}

const QUESTIONS: [&str; 6] = [
    "GET /metrics",
    "GET /pods",
    "GET /configz",
    "GET /stats/summary",
    "POST /run/default/nobody/main?cmd=true",
    "GET /nowhere",
];
/// The answers to who may ask everything: nobody is no pod.
const ALL: [u16; 6] = [200, 200, 200, 200, 404, 404];

/// Everybody asks for everything.
pub async fn who_gets_in(node: &Member) {
    let door = Door::of(node).await;
    let everything = [
        ("get", "metrics"),
        ("get", "stats"),
        ("get", "proxy"),
        ("create", "proxy"),
    ];
    let certificate = |user| Guest::certificate(node, user);
    let past = ClientCertificate {
        starts_in: -7200,
        ends_in: -3600,
        ..master("door-past")
    };
    let plain = ClientCertificate::new("door-plain", "");
    let all = holder(node, "door-all", &everything).await;
    let vault = token(node, "door-all", json!(["vault"])).await;
    let all_again = token(node, "door-all", Value::Null).await;
    let metrics = holder(node, "door-metrics", &[("get", "metrics")]).await;
    let pods = holder(node, "door-pods", &[("get", "pods")]).await;
    let proxy = holder(node, "door-proxy", &[("get", "proxy")]).await;
    let nothing = holder(node, "door-nothing", &[]).await;
    let foreign = certificate(User::ForeignCertificate(master("kubernetes-admin")));
    let own = certificate(User::Certificate(master("door-master")));
    let (_, why) = door.ask(&metrics, "GET /pods").await;
    let user = user_name("door-metrics");
    let told =
        format!("Forbidden (user={user}, verb=get, resource=nodes, subresource(s)=[pods proxy])\n");
    assert_eq!(why, told);
    let cases = [
        ("nobody", Guest::nobody(), [401; 6]),
        ("a certificate of another authority", foreign, [401; 6]),
        (
            "one that has ended",
            certificate(User::Certificate(past)),
            [401; 6],
        ),
        (
            "a token that is none",
            Guest::token("door.all.token"),
            [401; 6],
        ),
        ("a token for somebody else", Guest::token(&vault), [401; 6]),
        ("the same by a WebSocket", Guest::protocol(&vault), [401; 6]),
        (
            "a certificate",
            certificate(User::Certificate(plain)),
            [403; 6],
        ),
        ("a token", nothing, [403; 6]),
        ("for metrics", metrics, [200, 403, 403, 403, 403, 403]),
        ("for pods", pods, [403, 200, 403, 403, 403, 403]),
        ("for reading", proxy, [403, 200, 200, 403, 403, 404]),
        ("a token for all", all, ALL),
        ("by a WebSocket", Guest::protocol(&all_again), ALL),
        ("a certificate for all", own, ALL),
    ];
    for (who, guest, codes) in &cases {
        for (question, code) in QUESTIONS.iter().zip(codes) {
            let (found, text) = door.ask(guest, question).await;
            assert_eq!(found, *code, "{question} with {who}: {text:.500}");
            match code {
                401 => assert_eq!(text, "Unauthorized", "{question} with {who}"),
                403 => assert!(text.starts_with("Forbidden (user="), "{who}: {text}"),
                _ => {}
            }
        }
    }
}

/// What can be seen of a file that nobody writes to: content, mode, owner, last change.
fn seen(path: &Path) -> (Vec<u8>, u32, u32, SystemTime) {
    let found = std::fs::metadata(path).unwrap();
    let content = std::fs::read(path).unwrap();
    let changed = found.modified().unwrap();
    (content, found.mode() & 0o777, found.uid(), changed)
}

/// What the API server said holds for as long as is set, and without its word nobody gets in.
pub async fn without_an_api_server() {
    let options = ControlPlaneOptions {
        scheduler: false,
        ..ControlPlaneOptions::default()
    };
    let node = Member::founding(options, "remembers").await;
    let clients = node.plane.dir().join("clients.crt");
    std::fs::copy(node.plane.ca_file(), &clients).unwrap();
    let joining = Joining {
        config: json!({
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true, "cacheTTL": "1s"},
                "x509": {"clientCAFile": clients},
            },
            "authorization": {
                "mode": "Webhook",
                "webhook": {"cacheAuthorizedTTL": "1s", "cacheUnauthorizedTTL": "1s"},
            },
        }),
        ..Joining::default()
    };
    let mut forgets = node.prepared_beside("forgets", joining).await;
    let files = [clients, forgets.dir().join("config.yaml")];
    for file in &files {
        std::fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
    }
    let before = files.each_ref().map(|file| seen(file));
    forgets.start().await;
    rights_end(&forgets).await;
    is_cut_off(&node, &forgets).await;
    assert_eq!(files.each_ref().map(|file| seen(file)), before);
    forgets.down().await;
    node.down().await;
}

/// Rights that are taken, and then the account as well.
async fn rights_end(node: &Member) {
    let door = Door::of(node).await;
    let name = "leaves";
    let leaves = holder(node, name, &[("get", "metrics")]).await;
    assert_eq!(door.ask(&leaves, "GET /metrics").await.0, 200);
    let binding = format!("{RBAC}/clusterrolebindings/{name}");
    node.plane.delete(&binding).await.unwrap();
    door.becomes(node, &leaves, "GET /metrics", 403).await;
    let account = format!("{ACCOUNTS}/{name}");
    node.plane.delete(&account).await.unwrap();
    door.becomes(node, &leaves, "GET /metrics", 401).await;
}

/// One node remembers what it was told for minutes, as nodes do, the other for a second.
async fn is_cut_off(remembers: &Member, forgets: &Member) {
    let plane = &remembers.plane;
    let (long, short) = (Door::of(remembers).await, Door::of(forgets).await);
    let rights = [("get", "metrics"), ("get", "stats")];
    let known = holder(remembers, "known", &rights).await;
    let stranger = holder(remembers, "stranger", &rights).await;
    let certificate = |user| Guest::certificate(remembers, user);
    let master = certificate(User::Certificate(master("door-master")));
    let plain = certificate(User::Certificate(ClientCertificate::new("door-plain", "")));
    let foreign = certificate(User::ForeignCertificate(self::master("door-master")));
    for door in [&short, &long] {
        for guest in [&known, &master] {
            let (code, text) = door.ask(guest, "GET /metrics").await;
            assert_eq!(code, 200, "{text:.500}");
        }
    }
    plane.kill_apiserver().await.unwrap();

    let unknown = |user: &str, verb: &str, subresource: &str| {
        let text = format!(
            "Authorization error (user={user}, verb={verb}, resource=nodes, subresource={subresource})"
        );
        (500, text)
    };
    for (who, guest) in [("known", &known), ("master", &master)] {
        let (code, text) = long.ask(guest, "GET /metrics").await;
        assert_eq!(code, 200, "{who}: {text:.500}");
    }
    let user = user_name("known");
    for (who, guest, question, expected) in [
        (
            "known",
            &known,
            "GET /stats/summary",
            unknown(&user, "get", "stats"),
        ),
        ("known", &known, "GET /pods", unknown(&user, "get", "pods")),
        (
            "master",
            &master,
            "POST /run/a/b/c",
            unknown("door-master", "create", "proxy"),
        ),
        (
            "plain",
            &plain,
            "GET /metrics",
            unknown("door-plain", "get", "metrics"),
        ),
        (
            "stranger",
            &stranger,
            "GET /metrics",
            (401, "Unauthorized".to_owned()),
        ),
        (
            "foreign",
            &foreign,
            "GET /metrics",
            (401, "Unauthorized".to_owned()),
        ),
        (
            "nobody",
            &Guest::nobody(),
            "GET /metrics",
            (401, "Unauthorized".to_owned()),
        ),
    ] {
        let found = long.ask(guest, question).await;
        assert_eq!(found, expected, "{question} by {who}");
    }
    short.becomes(forgets, &known, "GET /metrics", 401).await;
    short.becomes(forgets, &master, "GET /metrics", 500).await;

    plane.start_apiserver().await.unwrap();
    long.becomes(remembers, &stranger, "GET /metrics", 200)
        .await;
    long.becomes(remembers, &known, "GET /stats/summary", 200)
        .await;
    for guest in [&known, &master] {
        short.becomes(forgets, guest, "GET /metrics", 200).await;
    }
}
