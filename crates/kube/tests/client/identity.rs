//! Who we are to the server, and how that changes.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use krablet_kube::{Api as _, ApiError, Credentials, HttpApi, Kubeconfig};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{ADDRESS, World, certificates::Authority, get, words};

/// Credentials of a kubeconfig with this user, in this directory.
fn credentials(world: &World, directory: &Path, user: Value) -> Credentials {
    let config = json!({
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": ADDRESS}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    });
    let path = directory.join("kubeconfig");
    let config = Kubeconfig::parse(&path, config.to_string().as_bytes()).unwrap();
    Credentials::of(&config, Arc::new(world.clock.clone())).unwrap()
}

/// The token a call went with, and whether the server took it.
async fn token(world: &World, api: &HttpApi) -> (String, bool) {
    let taken = api.call(get("/a")).await.is_ok();
    let token = world.server.last().authorization.unwrap_or_default();
    (token, taken)
}

#[tokio::test(start_paused = true)]
async fn a_new_certificate_drops_no_watch() {
    let world = World::new();
    let (first, second) = (
        world.authority.client().identity(),
        world.authority.client().identity(),
    );
    let (sender, receiver) = watch::channel(None);
    let api = world.api(Credentials::rotating_certificate(receiver));
    let none = api.call(get("/a")).await;
    let missing = ApiError::Credentials("there is no client certificate yet".into());
    assert_eq!(none, Err(missing));
    sender.send_replace(Some(first.clone()));
    let mut watching = api.watch(get("/watch")).await.unwrap();
    assert!(api.call(get("/a")).await.is_ok());
    assert_eq!(world.server.last().peer.as_ref(), first.cert.first());
    let hanging = api.call(get("/hang").deadline(Duration::from_secs(9)));
    let rotate = async {
        sender.send_replace(Some(second.clone()));
        let calls = (0..20).map(|_| api.call(get("/a")));
        let calls = futures::future::join_all(calls).await;
        assert!(calls.iter().all(Result::is_ok));
    };
    let (hanging, ()) = tokio::join!(hanging, rotate);
    // Nobody cut it off: it lasted until its own deadline.
    assert_eq!(hanging, Err(ApiError::Deadline(Duration::from_secs(9))));
    assert_eq!(world.server.last().peer.as_ref(), second.cert.first());
    assert_eq!(world.server.dialled(), 2);
    let lines = world.server.watch(0).await;
    lines.send(Bytes::from_static(b"{}\n")).await.unwrap();
    assert_eq!(watching.next().await, Some(Ok(Bytes::from_static(b"{}"))));
    drop(watching);
    let mut open = world.server.open.subscribe();
    open.wait_for(|open| *open == 1).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_certificate_the_server_refuses() {
    let world = World::new();
    let stranger = Authority::new().client().identity();
    let api = world.api(Credentials::certificate(stranger));
    let error = api.call(get("/a")).await.unwrap_err();
    assert!(matches!(error, ApiError::Tls(_)), "{error:?}");
    let expected = "https://api:6443: the server refuses our client certificate: ";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[tokio::test(start_paused = true)]
async fn certificate_files_are_read_again() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let pem = directory.path().join("current.pem");
    let pair = world.authority.client();
    std::fs::write(&pem, format!("{}{}", pair.certificate, pair.key)).unwrap();
    let user = json!({"client-certificate": "current.pem", "client-key": "current.pem"});
    let api = world.api(credentials(&world, directory.path(), user));
    assert!(api.call(get("/a")).await.is_ok());
    tokio::time::advance(Duration::from_secs(61)).await;
    assert!(api.call(get("/a")).await.is_ok());
    assert_eq!(world.server.dialled(), 1, "the same certificate");
    let next = world.authority.client();
    std::fs::write(&pem, format!("{}{}", next.certificate, next.key)).unwrap();
    tokio::time::advance(Duration::from_secs(61)).await;
    assert!(api.call(get("/a")).await.is_ok());
    let shown = world.server.last().peer;
    assert_eq!(shown.as_ref(), next.identity().cert.first());
    // In the middle of being replaced: the last good one stands.
    std::fs::write(&pem, "").unwrap();
    tokio::time::advance(Duration::from_secs(61)).await;
    assert!(api.call(get("/a")).await.is_ok());
    assert_eq!(world.server.dialled(), 2);
}

#[tokio::test(start_paused = true)]
async fn token_files_are_read_again() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    let user = json!({"tokenFile": "token"});
    let api = world.api(credentials(&world, directory.path(), user));
    let error = words(api.call(get("/a")).await.err());
    let expected = format!(
        "the token file {}: No such file or directory (os error 2)",
        file.display()
    );
    assert_eq!(error, expected);
    std::fs::write(&file, "one\n").unwrap();
    assert_eq!(token(&world, &api).await, ("Bearer one".into(), true));
    std::fs::write(&file, "two").unwrap();
    assert_eq!(
        token(&world, &api).await,
        ("Bearer one".into(), true),
        "kept"
    );
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(
        token(&world, &api).await,
        ("Bearer two".into(), true),
        "a minute later"
    );
    *world.server.wanted.lock().unwrap() = Some("Bearer three".into());
    std::fs::write(&file, "three").unwrap();
    assert_eq!(token(&world, &api).await, ("Bearer two".into(), false));
    assert_eq!(
        token(&world, &api).await,
        ("Bearer three".into(), true),
        "refused before"
    );
    // A file that is gone for a moment does no harm.
    std::fs::remove_file(&file).unwrap();
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(token(&world, &api).await, ("Bearer three".into(), true));
    assert_eq!(world.server.dialled(), 1, "tokens need no new connection");
}

#[tokio::test(start_paused = true)]
async fn tokens_and_passwords() {
    let world = World::new();
    let here = Path::new("/nowhere");
    let api = world.api(credentials(&world, here, json!({"token": "t"})));
    assert_eq!(token(&world, &api).await.0, "Bearer t");
    let user = json!({"username": "u", "password": "p"});
    let api = world.api(credentials(&world, here, user));
    assert_eq!(token(&world, &api).await.0, "Basic dTpw");
    let api = world.api(credentials(&world, here, json!({})));
    assert_eq!(token(&world, &api).await.0, "");
}

/// A plugin that counts its runs in a file beside it.
fn plugin(directory: &Path, status: &str) {
    let script = format!(
        "#!/bin/sh\necho >> \"$0.runs\"\nn=$(wc -l < \"$0.runs\")\n\
         printf '%s' \"$KUBERNETES_EXEC_INFO\" > \"$0.info\"\n\
         printf '%s\\n' '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{{'\"{status}\"'}}}}'\n"
    );
    // Renamed into place: a script that is still open for writing cannot be run.
    let (draft, path) = (directory.join("draft"), directory.join("login"));
    std::fs::write(&draft, script).unwrap();
    std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(draft, path).unwrap();
}

fn exec(command: &str) -> Value {
    json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": command,
        "interactiveMode": "Never",
        "provideClusterInfo": true,
        "installHint": "See the handbook.",
    }})
}

#[tokio::test]
async fn exec_plugins_are_run_when_need_be() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let status = r#"\"token\":\"t$n\",\"expirationTimestamp\":\"2030-01-01T01:00:00Z\""#;
    plugin(directory.path(), status);
    let api = world.api(credentials(&world, directory.path(), exec("./login")));
    let calls = (0..5).map(|_| api.call(get("/a")));
    let calls = futures::future::join_all(calls).await;
    assert!(calls.iter().all(Result::is_ok), "{calls:?}");
    assert_eq!(
        token(&world, &api).await,
        ("Bearer t1".into(), true),
        "run once for all"
    );
    world.clock.advance(Duration::from_secs(3600));
    assert_eq!(
        token(&world, &api).await,
        ("Bearer t2".into(), true),
        "expired"
    );
    world.clock.set("2030-01-01T00:30:00Z".parse().unwrap());
    *world.server.wanted.lock().unwrap() = Some("Bearer t3".into());
    assert_eq!(token(&world, &api).await, ("Bearer t2".into(), false));
    assert_eq!(
        token(&world, &api).await,
        ("Bearer t3".into(), true),
        "refused before"
    );
    let info = std::fs::read(directory.path().join("login.info")).unwrap();
    let info: Value = serde_json::from_slice(&info).unwrap();
    assert_eq!(
        info["spec"],
        json!({"interactive": false, "cluster": {"server": ADDRESS}})
    );
}

#[tokio::test]
async fn exec_plugins_may_give_certificates() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let pair = world.authority.client();
    let escaped = |pem: &str| pem.replace('\n', r"\\n");
    let (certificate, key) = (escaped(&pair.certificate), escaped(&pair.key));
    let status =
        format!(r#"\"clientCertificateData\":\"{certificate}\",\"clientKeyData\":\"{key}\""#);
    plugin(directory.path(), &status);
    let api = world.api(credentials(&world, directory.path(), exec("./login")));
    let answer = api.call(get("/a")).await;
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(
        world.server.last().peer.as_ref(),
        pair.identity().cert.first()
    );
}

#[tokio::test]
async fn exec_plugins_that_fail() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let ask = async |command: &str| {
        let api = world.api(credentials(&world, directory.path(), exec(command)));
        words(api.call(get("/a")).await.err())
    };
    let missing = ask("krablet-no-such-command").await;
    let expected = "exec plugin krablet-no-such-command: not found. See the handbook.";
    assert_eq!(missing, expected);
    plugin(
        directory.path(),
        r#"\"\"";echo no ticket >&2; exit 3; echo ""#,
    );
    let failed = ask("./login").await;
    let path = directory.path().join("./login");
    let expected = format!(
        "exec plugin {}: failed: exit status: 3: no ticket",
        path.display()
    );
    assert_eq!(failed, expected);
    let quiet = ask("true").await;
    let expected = "exec plugin true: printed no ExecCredential (line 1, column 0)";
    assert_eq!(quiet, expected);
}
