//! The HTTPS door as those find it who may come in, and those who may not.

mod checkpoint;
mod counted;
mod followers;
mod fuzz;
mod rights;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use krablet_access::{SubjectReviews, TokenReviews};
use krablet_cri::{CallLog, Deadlines, Endpoint, RuntimeClient};
use krablet_kube::{Api, ApiError, Call, Kube, Watch};
use krablet_pod::PodUid;
use krablet_pod::observed::ObservedPod;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;
use crate::stats::tests::Spoken;

#[path = "../../tests/node/mod.rs"]
mod node;

/// Every token is its user's name, and the name says what he may: `right` everything, `only:VERB:SUBRESOURCE` that one
/// thing, `not:VERB:SUBRESOURCE…` everything but that.
struct Server;

fn may(name: &str, verb: &str, subresource: &str) -> bool {
    let words: Vec<&str> = name.split(':').collect();
    match *words.as_slice() {
        ["right"] => true,
        ["only", is, what] => is == verb && what == subresource,
        ["not", is, ref what @ ..] => is != verb || !what.contains(&subresource),
        _ => false,
    }
}

#[async_trait::async_trait]
impl Api for Server {
    async fn call(&self, call: Call) -> Result<Bytes, ApiError> {
        let body: Value = serde_json::from_slice(&call.body.unwrap()).unwrap();
        let spec = &body["spec"];
        let status = match spec["token"].as_str() {
            Some("nonsense") => json!({"authenticated": false}),
            Some(name) => json!({"authenticated": true, "user": {"username": name}}),
            None => {
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                let wanted = &spec["resourceAttributes"];
                let (verb, what) = (text(&wanted["verb"]), text(&wanted["subresource"]));
                json!({"allowed": may(&text(&spec["user"]), &verb, &what)})
            }
        };
        Ok(json!({"status": status}).to_string().into())
    }

    async fn watch(&self, _: Call) -> Result<Watch, ApiError> {
        Err(ApiError::Connection("nothing to watch".into()))
    }

    fn reconnect(&self) {}
}

struct NoCheckpoints;

#[async_trait::async_trait]
impl Checkpointer for NoCheckpoints {
    async fn checkpoint(&self, _: &str, _: &std::path::Path, _: i64) -> Result<(), String> {
        Err("it cannot".to_owned())
    }
}

struct Nothing;

impl Inside for Nothing {
    fn observed(&self, _: &PodUid) -> Option<Arc<ObservedPod>> {
        None
    }
    fn all_observed(&self) -> Vec<Arc<ObservedPod>> {
        Vec::new()
    }
    fn status(&self, _: &PodUid) -> Option<Arc<PodStatus>> {
        None
    }
    fn configuration(&self) -> Value {
        json!({"port": 10250})
    }
    fn api_uid(&self, _: &PodUid) -> Option<PodUid> {
        None
    }
}

fn door(debugging: bool) -> Router {
    door_with(debugging, |_| {})
}

fn door_with(debugging: bool, shape: impl FnOnce(&mut SecureParts)) -> Router {
    router(&Arc::new(door_of(debugging, shape)))
}

fn door_of(debugging: bool, shape: impl FnOnce(&mut SecureParts)) -> Door {
    let kube = Kube::new(Arc::new(Server));
    let minute = Duration::from_secs(60);
    let endpoint = Endpoint::parse("unix:///nonexistent/runtime.sock").unwrap();
    let runtime = RuntimeClient::new(&endpoint, Deadlines::default(), CallLog::default());
    let runtime = Arc::new(runtime);
    let mut parts = SecureParts {
        view: node::Quiet::with(vec![node::pod("p", "u", "c")]),
        inside: Arc::new(Nothing),
        access: Access {
            authenticator: Authenticator {
                tokens: Some(TokenReviews::new(kube.clone(), minute)),
                ..Authenticator::default()
            },
            authorizer: Authorizer::Webhook(SubjectReviews::new(kube, "n".into(), minute, minute)),
        },
        runtime: runtime.clone(),
        streaming: runtime,
        debugging,
        idle: minute,
        record: HealthRecord::default(),
        node_logs: NodeLogs::new("/nonexistent".into(), Vec::new()),
        split_logs: false,
        about: About {
            flags: Some([("v".to_owned(), "2".to_owned())].into()),
            status: Some(Version::default()),
        },
        debug: Debug {
            profiling: true,
            flags: true,
            verbosity: Some(Arc::new(|_| {})),
        },
        checkpoints: Some(Checkpoints {
            directory: "/nonexistent".into(),
            runtime: Arc::new(NoCheckpoints),
        }),
        statistics: Some(Arc::new(Spoken { works: true })),
        requests: HttpMetrics::default(),
    };
    shape(&mut parts);
    Door {
        log_watch: LogWatch::default(),
        streams: Streams::new(parts.idle),
        parts,
    }
}

/// What somebody shows of himself.
#[derive(Default)]
struct Shown {
    token: Option<String>,
    /// A token among the protocols of a WebSocket.
    offered: Option<String>,
    peer: Peer,
}

async fn ask(router: &Router, method: &Method, path: &str, token: Option<&str>) -> (u16, String) {
    let shown = Shown {
        token: token.map(str::to_owned),
        ..Shown::default()
    };
    ask_as(router, method, path, &shown).await
}

async fn ask_as(router: &Router, method: &Method, path: &str, shown: &Shown) -> (u16, String) {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(token) = &shown.token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    if let Some(token) = &shown.offered {
        let token = URL_SAFE_NO_PAD.encode(token);
        let protocols = format!("v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.{token}");
        request = request
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Protocol", protocols);
    }
    let request = request.extension(shown.peer.clone());
    let request = request.body(Body::empty()).unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8_lossy(&body).into_owned())
}

/// A path as a client would write it.
fn example(route: &str) -> String {
    let names = [
        ("{namespace}", "ns"),
        ("{pod}", "p"),
        ("{uid}", "u"),
        ("{container}", "c"),
        ("{check}", "ping"),
        ("{*path}", "syslog"),
        ("{*name}", "heap"),
    ];
    let path = names.iter().fold(route.to_owned(), |path, (name, value)| {
        path.replace(name, value)
    });
    assert!(!path.contains('{'), "{route}: no example for a part of it");
    path
}

#[tokio::test]
async fn what_those_find_who_may() {
    let router = door(true);
    let cases = [
        (
            "GET",
            "/configz",
            200,
            r#"{"kubeletconfig":{"port":10250}}"#,
        ),
        (
            "GET",
            "/runningpods/",
            200,
            r#"{"apiVersion":"v1","items":[],"kind":"PodList","metadata":{}}"#,
        ),
        ("GET", "/unknown", 404, "404 page not found\n"),
        (
            "GET",
            "/containerLogs/ns/other/c",
            404,
            r#"pod "other" does not exist"#,
        ),
        (
            "GET",
            "/containerLogs/ns/p/x",
            404,
            r#"container "x" not found in pod "p""#,
        ),
        (
            "GET",
            "/containerLogs/ns/p/c",
            400,
            r#"container "c" in pod "p" is not available"#,
        ),
        (
            "GET",
            "/containerLogs/ns/p/c?tailLines=x",
            400,
            r#"{"message": "Unable to decode query."}"#,
        ),
        (
            "GET",
            "/containerLogs/ns/p/c?tailLines=-1",
            422,
            r#"{"message": "Invalid request."}"#,
        ),
        (
            "POST",
            "/exec/ns/p/c",
            400,
            "you must specify at least 1 of stdin, stdout, stderr",
        ),
        (
            "POST",
            "/exec/ns/other/c?output=1",
            404,
            "pod does not exist",
        ),
        ("POST", "/exec/ns/p/c?output=1", 404, "pod not found"),
        ("POST", "/portForward/ns/p/other", 404, "pod not found"),
        ("POST", "/configz", 405, ""),
        ("GET", "/healthz/ping", 200, "ok"),
        ("GET", "/healthz/other", 404, "404 page not found\n"),
        ("GET", "/logs/none", 404, "404 page not found\n"),
        ("GET", "/logs", 307, ""),
        ("GET", "/logs/../configz", 404, "404 page not found\n"),
        (
            "GET",
            "/logs/%2e%2e/%2e%2e/etc/passwd",
            404,
            "404 page not found\n",
        ),
        ("POST", "/checkpoint/ns/other/c", 404, "pod does not exist"),
        (
            "POST",
            "/checkpoint/ns/p/x",
            404,
            "container x does not exist",
        ),
        (
            "POST",
            "/checkpoint/ns/p/c?timeout=x",
            404,
            "cannot parse value of timeout parameter",
        ),
        (
            "POST",
            "/checkpoint/ns/p/c",
            500,
            "checkpointing of ns/p/c failed (container c not found)",
        ),
        ("GET", "/debug/flags/v", 406, "unsupported http method\n"),
        (
            "PUT",
            "/debug/flags/v",
            400,
            "strconv.ParseUint: parsing \"\": invalid syntax\n",
        ),
        ("GET", "/debug/pprof/other", 404, "Unknown profile\n"),
    ];
    for (method, path, code, text) in cases {
        let method: Method = method.parse().unwrap();
        let found = ask(&router, &method, path, Some("right")).await;
        assert_eq!(found, (code, text.to_owned()), "{method} {path}");
    }
}

#[tokio::test]
async fn one_stream_of_a_log_needs_its_gate() {
    let told = async |open, path: &str| {
        let router = door_with(true, |parts| parts.split_logs = open);
        ask(&router, &Method::GET, path, Some("right")).await
    };
    let gate = "Please enable PodLogsQuerySplitStreams feature gate in kubelet";
    let shut = format!("unable to return the given log stream: \"Stdout\". {gate}");
    let not_there = r#"container "c" in pod "p" is not available"#;
    for (open, stream, code, text) in [
        (false, "Stdout", 400, shut.as_str()),
        (false, "All", 400, not_there),
        (false, "other", 422, r#"{"message": "Invalid request."}"#),
        (true, "Stdout", 400, not_there),
    ] {
        let path = format!("/containerLogs/ns/p/c?stream={stream}");
        let found = told(open, &path).await;
        assert_eq!(found, (code, text.to_owned()), "{open} {stream}");
    }
    let (code, _) = told(false, "/containerLogs/ns/p/x?stream=Stdout").await;
    assert_eq!(code, 404, "what is not there is not there");
}

#[tokio::test]
async fn debugging_handlers_can_be_shut() {
    let router = door(false);
    for (route, _) in DEBUG_ROUTES {
        let (code, why) = ask(&router, &Method::GET, &example(route), Some("right")).await;
        let disabled = StatusCode::METHOD_NOT_ALLOWED.as_u16();
        assert_eq!(
            (code, &*why),
            (disabled, "Debug endpoints are disabled."),
            "{route}"
        );
        let (code, _) = ask(&router, &Method::GET, &example(route), None).await;
        assert_eq!(code, 401, "{route}");
    }
    let (code, _) = ask(&router, &Method::GET, "/pods", Some("right")).await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn the_verbosity_is_set() {
    let level = Arc::new(std::sync::atomic::AtomicU32::new(2));
    let told = level.clone();
    let set: SetVerbosity = Arc::new(move |v| told.store(v, std::sync::atomic::Ordering::Relaxed));
    let router = door_with(true, |parts| parts.debug.verbosity = Some(set));
    let put = |text: &'static str| {
        let request = Request::put("/debug/flags/v").header("Authorization", "Bearer right");
        let request = request.body(Body::from(text)).unwrap();
        let router = router.clone();
        async move { router.oneshot(request).await.unwrap().status().as_u16() }
    };
    assert_eq!(put("6").await, 200);
    assert_eq!(level.load(std::sync::atomic::Ordering::Relaxed), 6);
    assert_eq!(put("-1").await, 400);
    assert_eq!(put("many").await, 400);
    let long = "1".repeat(1000);
    assert_eq!(put(long.leak()).await, 400);
    assert_eq!(level.load(std::sync::atomic::Ordering::Relaxed), 6);
}

#[tokio::test]
async fn pages_about_the_process() {
    let router = door(true);
    let get = async |path: &str| ask(&router, &Method::GET, path, Some("right")).await;
    let (code, page) = get("/flagz").await;
    assert!(code == 200 && page.ends_with("\nv=2\n"), "{page}");
    let (code, page) = get("/statusz").await;
    assert!(
        code == 200 && page.contains("/checkpoint /configz"),
        "{page}"
    );
    let (code, page) = get("/debug/pprof/heap").await;
    assert!(code == 200 && page.contains("VmRSS:"), "{page}");
    let (code, page) = get("/debug/pprof/tasks").await;
    assert!(code == 200 && page.starts_with("alive: "), "{page}");
    assert_eq!(get("/debug/pprof/").await.0, 200);
    assert_eq!(get("/debug/pprof/trace").await.0, 501);
    assert_eq!(get("/debug/pprof/symbol").await.1, "num_symbols: 0\n");
    assert!(
        get("/debug/pprof/cmdline")
            .await
            .1
            .contains("krablet_server")
    );
}

#[tokio::test(start_paused = true)]
async fn a_profile_of_the_processor_one_at_a_time() {
    let router = door(true);
    let get = async |path: &str| {
        let right = ("Authorization", "Bearer right");
        let request = Request::get(path).header(right.0, right.1);
        let request = request.body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        let code = answer.status().as_u16();
        (code, answer.into_body().collect().await.unwrap().to_bytes())
    };
    let begun = tokio::time::Instant::now();
    let (first, second) = tokio::join!(
        get("/debug/pprof/profile?seconds=2"),
        get("/debug/pprof/profile")
    );
    assert_eq!(begun.elapsed().as_secs(), 2);
    let expected = "Could not enable CPU profiling: cpu profiling already in use\n";
    assert_eq!((second.0, &second.1[..]), (500, expected.as_bytes()));
    assert_eq!(first.0, 200);
    let profile = krablet_profile::proto::Profile::unpack(&first.1).unwrap();
    assert_eq!(profile.duration_nanos, 2_000_000_000);
    let own = std::env::current_exe().unwrap();
    let own = own.to_string_lossy();
    assert!(
        profile
            .mapping
            .iter()
            .any(|m| profile.text(m.filename) == own)
    );
    // Nonsense stands for half a minute.
    assert_eq!(get("/debug/pprof/profile?seconds=x").await.0, 200);
    assert_eq!(begun.elapsed().as_secs(), 32);
    assert_eq!(get("/debug/pprof/profile?seconds=301").await.0, 400);
}

#[tokio::test]
async fn single_doors_can_be_shut() {
    let router = door_with(true, |parts| {
        parts.node_logs.served = false;
        parts.debug.profiling = false;
        parts.debug.flags = false;
        parts.about = About::default();
        parts.checkpoints = None;
    });
    for (method, path, code, text) in [
        ("GET", "/logs/", 405, "logs endpoint is disabled.\n"),
        ("GET", "/logs/syslog", 405, "logs endpoint is disabled.\n"),
        (
            "GET",
            "/debug/pprof/heap",
            405,
            "profiling endpoint is disabled.\n",
        ),
        (
            "PUT",
            "/debug/flags/v",
            405,
            "flags endpoint is disabled.\n",
        ),
        ("GET", "/flagz", 404, "404 page not found\n"),
        ("GET", "/statusz", 404, "404 page not found\n"),
        ("POST", "/checkpoint/ns/p/c", 404, "404 page not found\n"),
    ] {
        let method: Method = method.parse().unwrap();
        let found = ask(&router, &method, path, Some("right")).await;
        assert_eq!(found, (code, text.to_owned()), "{method} {path}");
    }
}

#[tokio::test]
async fn what_is_told_in_figures() {
    let with = |statistics: Option<Arc<dyn Statistics>>| {
        door_with(false, |parts| parts.statistics = statistics)
    };
    let working = with(Some(Arc::new(Spoken { works: true })));
    let broken = with(Some(Arc::new(Spoken { works: false })));
    let absent = with(None);
    let less = "/stats/summary?only_cpu_and_memory=true";
    let cases = [
        (&working, "GET", "/stats/summary", 200, r#"{"only":false}"#),
        (&working, "POST", less, 200, r#"{"only":true}"#),
        (&working, "GET", "/metrics/resource", 200, "resource 1\n"),
        (&working, "GET", "/metrics/cadvisor", 200, "cadvisor 1\n"),
        (&broken, "GET", less, 500, "Internal Error: out of order"),
        (&absent, "GET", less, 404, "404 page not found\n"),
        (
            &absent,
            "GET",
            "/metrics/cadvisor",
            404,
            "404 page not found\n",
        ),
    ];
    for (router, method, path, code, text) in cases {
        let method: Method = method.parse().unwrap();
        let found = ask(router, &method, path, Some("right")).await;
        assert_eq!(found, (code, text.to_owned()), "{method} {path}");
    }
}
