use std::time::Duration;

use axum::routing::get;
use bytes::Bytes;
use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use proptest::prelude::*;
use tower::ServiceExt as _;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

const SHUT: Pages = Pages {
    debugging: false,
    checkpoint: true,
    flagz: true,
    statusz: true,
};
const BARE: Pages = Pages {
    debugging: true,
    checkpoint: false,
    flagz: false,
    statusz: false,
};
const FULL: Pages = Pages {
    debugging: true,
    ..SHUT
};

#[test]
fn methods() {
    for known in METHODS {
        assert_eq!(method_label(&known.parse().unwrap()), known);
    }
    for unknown in ["PATCH", "get", "PROPFIND", "other"] {
        assert_eq!(method_label(&unknown.parse().unwrap()), OTHER, "{unknown}");
    }
}

#[test]
fn roots_of_paths() {
    let cases = [
        ("/", ""),
        ("", ""),
        ("*", "*"),
        ("/pods", "pods"),
        ("pods", "pods"),
        ("/pods/", "pods"),
        ("//pods", ""),
        ("/exec/ns/p/c", "exec"),
        ("/metrics", "metrics"),
        ("/metrics/", "metrics/"),
        ("/metrics//", "metrics/"),
        ("/metrics/cadvisor", "metrics/cadvisor"),
        ("/metrics/cadvisor/more/of/it", "metrics/cadvisor"),
        ("/metricsandmore/x", "metricsandmore"),
        ("/stats/summary", "stats"),
    ];
    for (path, expected) in cases {
        assert_eq!(root(path), expected, "{path:?}");
    }
}

#[test]
fn paths_are_told_apart_where_upstream_does() {
    // On a port with everything, with debugging handlers but nothing optional, and without them.
    let cases = [
        ("/healthz/ping", ["healthz"; 3]),
        ("/pods", ["pods"; 3]),
        ("/stats/summary", ["stats"; 3]),
        ("/metrics", ["metrics"; 3]),
        ("/metrics/cadvisor", ["metrics/cadvisor"; 3]),
        ("/metrics/probes", ["metrics/probes"; 3]),
        ("/metrics/resource", ["metrics/resource"; 3]),
        ("/metrics/slis", [OTHER; 3]),
        ("/run/ns/p/c", ["run"; 3]),
        ("/exec/ns/p/c", ["exec"; 3]),
        ("/attach/ns/p/c", ["attach"; 3]),
        ("/portForward/ns/p", ["portForward"; 3]),
        ("/portforward/ns/p", [OTHER; 3]),
        ("/containerLogs/ns/p/c", ["containerLogs"; 3]),
        ("/runningpods/", ["runningpods"; 3]),
        ("/logs/syslog", ["logs"; 3]),
        ("/configz", ["configz", "configz", OTHER]),
        ("/debug/pprof/heap", ["debug", "debug", OTHER]),
        ("/pprof", [OTHER, OTHER, "pprof"]),
        ("/checkpoint/ns/p/c", ["checkpoint", OTHER, OTHER]),
        ("/flagz", ["flagz", OTHER, OTHER]),
        ("/statusz", ["statusz", OTHER, OTHER]),
        ("/", [OTHER; 3]),
        ("/%65xec/ns/p/c", [OTHER; 3]),
        ("/anything/else", [OTHER; 3]),
    ];
    for (path, expected) in cases {
        let label = |pages: Pages| path_label(path, &pages.paths());
        assert_eq!([FULL, BARE, SHUT].map(label), expected, "{path}");
    }
}

#[test]
fn what_may_take_long() {
    let metrics = HttpMetrics::default();
    let secure = Counting::secure(metrics.clone(), FULL);
    let read_only = Counting::read_only(metrics);
    let cases = [
        ("/exec/ns/p/c", true, true),
        ("/attach/ns/p/c", true, true),
        ("/debug/pprof/profile", true, false),
        ("/portForward/ns/p", false, false),
        ("/run/ns/p/c", false, false),
        ("/containerLogs/ns/p/c", false, false),
        ("/pods", false, false),
    ];
    for (path, on_secure, on_read_only) in cases {
        let secure = secure.labels(&Method::POST, path);
        let read_only = read_only.labels(&Method::POST, path);
        let found = (secure.long_running, read_only.long_running);
        assert_eq!(found, (on_secure, on_read_only), "{path}");
        let types = (secure.server_type, read_only.server_type);
        assert_eq!(types, ("readwrite", "readonly"));
    }
}

proptest! {
    #[test]
    fn words_of_clients_are_never_told(method in "[A-Za-z!#$-]{1,20}", path in "\\PC{0,40}") {
        let counting = Counting::secure(HttpMetrics::default(), FULL);
        let labels = counting.labels(&method.parse().unwrap(), &path);
        prop_assert!(labels.method == OTHER || METHODS.contains(&labels.method));
        prop_assert!(labels.path == OTHER || FULL.paths().contains(&labels.path));
    }
}

/// How many began, how many are under way, how many are over, and how long these took.
fn told(metrics: &HttpMetrics) -> (u64, u64, u64, f64) {
    let counts = metrics.get().into_values().next().unwrap_or_default();
    let over = &counts.durations;
    (counts.begun, counts.in_flight, over.count(), over.sum())
}

fn ask() -> Request {
    Request::get("/pods").body(Body::empty()).unwrap()
}

/// Thinks for a second, and then says a word a second.
fn slow(metrics: &HttpMetrics) -> Router {
    let words = |left: u32| async move {
        tokio::time::sleep(SECOND).await;
        let word = Ok::<_, axum::Error>(Bytes::from_static(b"word"));
        left.checked_sub(1).map(|left| (word, left))
    };
    let page = move || async move {
        tokio::time::sleep(SECOND).await;
        Body::from_stream(futures::stream::unfold(2, words))
    };
    Counting::read_only(metrics.clone()).around(Router::new().route("/pods", get(page)))
}

#[tokio::test(start_paused = true)]
async fn a_request_is_over_when_its_answer_is_taken() {
    let metrics = HttpMetrics::default();
    let router = slow(&metrics);
    let answer = router.clone().oneshot(ask()).await.unwrap();
    assert_eq!(told(&metrics), (1, 1, 0, 0.0));
    let mut body = answer.into_body();
    assert!(body.frame().await.is_some());
    assert_eq!(told(&metrics), (1, 1, 0, 0.0));
    assert!(body.frame().await.is_some());
    assert!(body.frame().await.is_none());
    assert_eq!(told(&metrics), (1, 0, 1, 4.0));
}

#[tokio::test(start_paused = true)]
async fn a_request_is_over_when_its_client_goes() {
    let metrics = HttpMetrics::default();
    let router = slow(&metrics);
    let mut given_up = Box::pin(router.clone().oneshot(ask()));
    assert!((&mut given_up).now_or_never().is_none());
    assert_eq!(told(&metrics), (1, 1, 0, 0.0));
    drop(given_up);
    assert_eq!(told(&metrics), (1, 0, 1, 0.0));
    let answer = router.oneshot(ask()).await.unwrap();
    drop(answer);
    assert_eq!(told(&metrics), (2, 0, 2, 1.0));
}
