//! The plain HTTP doors: `/healthz` on its own port, and the read-only port.

use axum::Router;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use http::{StatusCode, header};
use serde_json::json;

use crate::listen::Listener;
use crate::{NodeView, View};

const TEXT: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
const METRICS: [(header::HeaderName, &str); 1] = [(
    header::CONTENT_TYPE,
    "text/plain; version=0.0.4; charset=utf-8",
)];

/// The health port: `/healthz` and its single checks.
pub async fn serve_healthz(listener: Listener, view: View) {
    listener.serve(health_routes().with_state(view)).await;
}

/// The read-only port, without authentication: nothing here changes anything.
pub async fn serve_read_only(listener: Listener, view: View) {
    listener.serve(read_only_routes().with_state(view)).await;
}

type Route = (&'static str, fn() -> MethodRouter<View>);

const HEALTH_ROUTES: &[Route] = &[
    ("/healthz", || get(healthz)),
    ("/healthz/{check}", || get(one_check)),
];

/// On the read-only port, and on the HTTPS port for those who may.
pub(crate) const READ_ONLY_ROUTES: &[Route] = &[
    ("/pods", || get(pods)),
    ("/metrics", || get(metrics)),
    ("/metrics/probes", || get(probe_metrics)),
];

fn routes(tables: &[&[Route]]) -> Router<View> {
    let all = tables.iter().copied().flatten();
    all.fold(Router::new(), |router, (path, make)| {
        router.route(path, make())
    })
}

fn health_routes() -> Router<View> {
    routes(&[HEALTH_ROUTES])
}

pub(crate) fn read_only_routes() -> Router<View> {
    routes(&[HEALTH_ROUTES, READ_ONLY_ROUTES])
}

async fn healthz(State(view): State<View>, request: axum::extract::RawQuery) -> Response {
    let failing = view.failing_checks();
    let verbose = request
        .0
        .is_some_and(|q| q.split('&').any(|p| p.starts_with("verbose")));
    if failing.is_empty() && !verbose {
        return (TEXT, "ok").into_response();
    }
    let mut text = String::new();
    for name in view.check_names() {
        match failing.iter().find(|(failed, _)| failed == name) {
            Some((_, reason)) => text.push_str(&format!("[-]{name} failed: {reason}\n")),
            None => text.push_str(&format!("[+]{name} ok\n")),
        }
    }
    if failing.is_empty() {
        text.push_str("healthz check passed\n");
        return (TEXT, text).into_response();
    }
    text.push_str("healthz check failed\n");
    (StatusCode::INTERNAL_SERVER_ERROR, TEXT, text).into_response()
}

async fn one_check(State(view): State<View>, Path(check): Path<String>) -> Response {
    if !view.check_names().contains(&check.as_str()) {
        return (StatusCode::NOT_FOUND, TEXT, "404 page not found\n").into_response();
    }
    match view.failing_checks().into_iter().find(|(n, _)| *n == check) {
        None => (TEXT, "ok").into_response(),
        Some((_, reason)) => {
            let text = format!("internal server error: {reason}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, TEXT, text).into_response()
        }
    }
}

/// A v1 PodList, as clients of the kubelet expect it.
pub(crate) fn pod_list(view: &dyn NodeView) -> serde_json::Value {
    json!({
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {},
        "items": view.pods(),
    })
}

async fn pods(State(view): State<View>) -> Response {
    axum::Json(pod_list(&*view)).into_response()
}

async fn metrics(State(view): State<View>) -> Response {
    (METRICS, view.metrics()).into_response()
}

async fn probe_metrics(State(view): State<View>) -> Response {
    (METRICS, view.probe_metrics()).into_response()
}
