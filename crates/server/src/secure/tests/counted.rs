//! Everybody who comes to the door is counted, by words that are known.

use super::*;

/// A line for each set of labels.
fn told(metrics: &HttpMetrics) -> Vec<String> {
    let line = |(labels, counts): (krablet_metrics::RequestLabels, _)| {
        let krablet_metrics::RequestCounts {
            begun, in_flight, ..
        } = counts;
        let long = if labels.long_running { " long" } else { "" };
        let (method, path, server) = (labels.method, labels.path, labels.server_type);
        format!("{server} {method} {path}{long}: {begun}, {in_flight} under way")
    };
    metrics.get().into_iter().map(line).collect()
}

#[tokio::test]
async fn those_who_are_let_in_and_those_who_are_not() {
    let metrics = HttpMetrics::default();
    let router = door_with(true, |parts| parts.requests = metrics.clone());
    for (method, path, token, code) in [
        ("GET", "/pods", Some("right"), 200),
        ("GET", "/pods", None, 401),
        ("GET", "/pods", Some("only:get:stats"), 403),
        ("HEAD", "/healthz", Some("right"), 200),
        ("POST", "/exec/ns/other/c?output=1", Some("right"), 404),
        ("GET", "/unknown", Some("right"), 404),
        ("GET", "/unknown/too", None, 401),
        ("PATCH", "/configz", Some("right"), 405),
        ("BREW", "/configz", Some("right"), 405),
        ("GET", "/debug/pprof/heap", Some("right"), 200),
    ] {
        let method: Method = method.parse().unwrap();
        let (found, _) = ask(&router, &method, path, token).await;
        assert_eq!(found, code, "{method} {path}");
    }
    let expected = [
        "readwrite GET other: 2, 0 under way",
        "readwrite GET pods: 3, 0 under way",
        "readwrite HEAD healthz: 1, 0 under way",
        "readwrite other configz: 2, 0 under way",
        "readwrite GET debug long: 1, 0 under way",
        "readwrite POST exec long: 1, 0 under way",
    ];
    assert_eq!(told(&metrics), expected);
}

#[tokio::test]
async fn what_is_shut_is_told_as_upstream_does() {
    let metrics = HttpMetrics::default();
    let router = door_with(false, |parts| parts.requests = metrics.clone());
    for path in ["/configz", "/debug/pprof/heap", "/exec/ns/p/c", "/logs/"] {
        let (code, _) = ask(&router, &Method::GET, path, Some("right")).await;
        assert_eq!(code, 405, "{path}");
    }
    let expected = [
        "readwrite GET logs: 1, 0 under way",
        "readwrite GET other: 2, 0 under way",
        "readwrite GET exec long: 1, 0 under way",
    ];
    assert_eq!(told(&metrics), expected);
}
