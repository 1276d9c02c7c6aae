//! Other credentials than a token to join with: what a node has, and what somebody renews for it.

use std::fs;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use k8s_openapi::jiff::Timestamp;
use krablet_e2e::Member;
use krablet_e2e::cluster_stage::{Joining, now};
use krablet_e2e::manifest::{single, tool};
use krablet_testbed::{
    ClientCertificate, ControlPlane, ControlPlaneOptions, Kubeconfig, Pair, User,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::hanging::connections;
use crate::join::ends;

/// How long the first certificate of a plugin lasts: long enough to join with.
const FIRST_LASTS: i64 = 30;

fn write_private(path: &Path, text: &str) {
    use std::io::Write;
    let mut options = fs::File::options();
    options.create(true).truncate(true).write(true).mode(0o600);
    let mut file = options.open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// A kubeconfig at this path, of a user with these fields.
fn write_kubeconfig(plane: &ControlPlane, path: &Path, user: Value) {
    let mut kubeconfig = plane.kubeconfig_value(&Kubeconfig::default()).unwrap();
    kubeconfig["users"][0]["user"] = user;
    write_private(path, &kubeconfig.to_string());
}

/// A node that joins by what is in its kubeconfig and by nothing else.
fn without_a_bootstrap() -> Joining {
    Joining {
        args: vec!["--bootstrap-kubeconfig=".to_owned()],
        ..Joining::default()
    }
}

async fn comes_and_goes(node: &Member, pod: &str) {
    node.run(&single(pod, tool("main", &["hold"]))).await;
    node.end(pod).await;
}

/// A node that was switched off for too long joins with the token it was given again.
pub async fn expired_certificate_joins_anew(main: &Member) {
    let name = "expired";
    let mut node = main.prepared_beside(name, Joining::default()).await;
    let who = ClientCertificate {
        starts_in: -7200,
        ends_in: -3600,
        ..ClientCertificate::node(name)
    };
    let pair = node.plane.client_certificate(&who).unwrap();
    let pki = node.dir().join("pki");
    let current = pki.join("kubelet-client-current.pem");
    let old = pki.join("kubelet-client-2020-01-01-00-00-00.pem");
    fs::create_dir_all(&pki).unwrap();
    write_private(&old, &format!("{}{}", pair.certificate, pair.key));
    symlink(&old, &current).unwrap();
    let user = json!({"client-certificate": current, "client-key": current});
    let kubeconfig = node.dir().join("kubelet.conf");
    write_kubeconfig(&node.plane, &kubeconfig, user);
    let expired = ends(&current);

    node.start().await;
    assert_ne!(fs::read_link(&current).unwrap(), old);
    assert!(ends(&current) > now());
    assert_eq!(ends(&old), expired, "the old one is left as it was");
    let log = node.stage.krablet.log();
    let told = "joining with the bootstrap kubeconfig: the client certificate expired at";
    assert_eq!(log.matches(told).count(), 1, "{log}");
    comes_and_goes(&node, "on-expired").await;
    // The next life has a certificate of its own.
    assert!(node.stage.krablet.terminate().await.unwrap().success());
    node.start().await;
    assert_eq!(node.stage.krablet.log().matches(told).count(), 1);
    comes_and_goes(&node, "on-expired-again").await;
    node.down().await;
}

/// What a plugin prints for this pair.
fn credential(pair: &Pair, expires: Timestamp) -> String {
    json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {
            "clientCertificateData": pair.certificate,
            "clientKeyData": pair.key,
            "expirationTimestamp": expires.to_string(),
        },
    })
    .to_string()
}

/// Gives the first credential once and the second from then on, and writes down what it was asked.
const PLUGIN: &str = r#"cd "$PLUGIN_DIR" || exit 1
printf '%s\n' "$KUBERNETES_EXEC_INFO" >> asked
if mkdir first.given 2> /dev/null; then cat first; else cat second; fi
"#;

/// Certificates from a command: the one it gave has an end, and it is asked for another.
pub async fn by_an_exec_plugin(main: &Member) {
    let name = "by-plugin";
    let mut node = main.prepared_beside(name, without_a_bootstrap()).await;
    let dir = node.stage.scratch("plugin");
    let (plugin, asked) = (dir.join("plugin.sh"), dir.join("asked"));
    fs::write(&plugin, PLUGIN).unwrap();
    let second = ClientCertificate::node(name);
    let first = ClientCertificate {
        ends_in: FIRST_LASTS,
        ..second.clone()
    };
    for (file, who) in [("first", &first), ("second", &second)] {
        let pair = node.plane.client_certificate(who).unwrap();
        let expires = Timestamp::from_second(now() + who.ends_in).unwrap();
        write_private(&dir.join(file), &credential(&pair, expires));
    }
    let over = now() + FIRST_LASTS;
    let user = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/bin/sh",
        "args": [plugin],
        "env": [{"name": "PLUGIN_DIR", "value": dir}],
        "interactiveMode": "Never",
        "provideClusterInfo": true,
    }});
    let kubeconfig = node.dir().join("kubelet.conf");
    write_kubeconfig(&node.plane, &kubeconfig, user);

    node.start().await;
    comes_and_goes(&node, "on-plugin").await;
    // By now the server would refuse the first.
    node.beats_after(over + 1).await;
    node.ready().await;
    comes_and_goes(&node, "on-plugin-again").await;
    let asked = fs::read_to_string(&asked).unwrap();
    let asked: Vec<Value> = asked
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
    for info in &asked {
        assert_eq!(info["kind"], "ExecCredential");
        assert_eq!(info["spec"]["interactive"], false);
        assert_eq!(info["spec"]["cluster"]["server"], node.plane.server_url());
    }
    assert!(!node.dir().join("pki/kubelet-client-current.pem").exists());
    node.down().await;
}

/// A directory for what the API server reads before there is a bed.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let name = format!("krablet-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Somebody puts another token into the file, and the API server takes no other any more.
pub async fn by_a_token_file() {
    let name = "by-token-file";
    let place = Place::new(name);
    let (tokens, own) = (place.file("tokens.csv"), place.file("token"));
    let give = |token: &str| {
        let user = format!("{token},system:node:{name},{name},system:nodes\n");
        write_private(&tokens, &user);
        // In one step, as those do who renew tokens.
        let new = place.file("token.new");
        write_private(&new, &format!("{token}\n"));
        fs::rename(&new, &own).unwrap();
    };
    give("the-first-token");
    let options = ControlPlaneOptions {
        apiserver_args: vec![format!("--token-auth-file={}", tokens.display())],
        ..ControlPlaneOptions::default()
    };
    let kubeconfig = place.file("kubeconfig");
    let mut node = Member::prepared_founding(options, name, |plane| {
        write_kubeconfig(plane, &kubeconfig, json!({"tokenFile": own}));
        Joining {
            kubeconfig: Some(kubeconfig.clone()),
            ..without_a_bootstrap()
        }
    })
    .await;
    node.start().await;
    comes_and_goes(&node, "on-first-token").await;

    give("the-second-token");
    node.plane.stop_apiserver().await.unwrap();
    node.plane.start_apiserver().await.unwrap();
    node.beats_after(now()).await;
    node.ready().await;
    comes_and_goes(&node, "on-second-token").await;
    let log = node.stage.krablet.log();
    for token in ["the-first-token", "the-second-token"] {
        assert!(!log.contains(token), "{log}");
    }
    node.down().await;
}

/// A proxy that makes tunnels for those who know the word.
async fn proxy(listener: TcpListener) {
    let mut tunnels = JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        tunnels.spawn(async move { tunnel(near).await.ok() });
        while tunnels.try_join_next().is_some() {}
    }
}

async fn tunnel(mut near: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(near.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let target = head
        .strip_prefix("CONNECT ")
        .and_then(|h| h.split(' ').next());
    // node:word
    let known = head.contains("\r\nProxy-Authorization: Basic bm9kZTp3b3Jk\r\n");
    let (Some(target), true) = (target, known) else {
        let refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
        return near.write_all(refusal).await;
    };
    let mut far = TcpStream::connect(target).await?;
    near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    copy_bidirectional(&mut near, &mut far).await.map(drop)
}

/// `proxy-url`: the node joins and lives through a proxy, in its next life too, and goes no other way.
pub async fn through_a_proxy(main: &Member) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut task = JoinSet::new();
    task.spawn(proxy(listener));
    let wish = Kubeconfig {
        user: User::Token(main.plane.bootstrap_token()),
        ..Kubeconfig::default()
    };
    let mut bootstrap = main.plane.kubeconfig_value(&wish).unwrap();
    let url = format!("http://node:word@{address}");
    bootstrap["clusters"][0]["cluster"]["proxy-url"] = json!(url);
    let file = main.stage.scratch("proxied").join("bootstrap.conf");
    write_private(&file, &bootstrap.to_string());
    let joining = Joining {
        bootstrap: Some(file.clone()),
        ..Joining::default()
    };
    let mut node = main.prepared_beside("through-a-proxy", joining).await;
    node.start().await;
    comes_and_goes(&node, "on-proxy").await;
    assert_eq!(connections(&node).len(), 0);
    let written = fs::read_to_string(node.dir().join("kubelet.conf")).unwrap();
    assert!(written.contains(&url), "{written}");

    fs::remove_file(&file).unwrap();
    assert!(node.stage.krablet.terminate().await.unwrap().success());
    node.start().await;
    comes_and_goes(&node, "on-proxy-again").await;
    assert_eq!(connections(&node).len(), 0);
    let log = node.stage.krablet.log();
    let told = format!("http://{address}");
    assert!(log.contains(&told), "{log}");
    assert!(!log.contains("node:word") && !log.contains("bm9kZTp3b3Jk"));
    node.down().await;
}
