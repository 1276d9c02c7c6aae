//! The plain HTTP doors: `/healthz` on its own port, and the read-only port.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get};
use http::{StatusCode, header};
use krablet_metrics::HttpMetrics;
use serde_json::json;

use crate::counting::Counting;
use crate::health::{HealthRecord, Report};
use crate::listen::Listener;
use crate::stats::{self, Statistics};
use crate::{NodeView, View, answers};

const TEXT: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
pub(crate) const METRICS: [(header::HeaderName, &str); 1] = [(
    header::CONTENT_TYPE,
    "text/plain; version=0.0.4; charset=utf-8",
)];

/// The health port: `/healthz` and its single checks.
pub async fn serve_healthz(listener: Listener, view: View, record: HealthRecord) {
    let health = Health { view, record };
    let router = routes(&[HEALTH_ROUTES]).with_state(health);
    listener.serve_everybody(router).await;
}

/// The read-only port, without authentication: nothing here changes anything.
pub async fn serve_read_only(listener: Listener, parts: OpenParts, requests: HttpMetrics) {
    let shut = SHUT.iter().fold(Router::new(), |router, path| {
        router.route(path, any(answers::debugging_disabled))
    });
    let router = parts.routes().merge(shut).fallback(answers::not_found);
    let router = Counting::read_only(requests).around(router);
    listener.serve_everybody(router).await;
}

/// What the read-only port tells, and the HTTPS port to those who may.
pub struct OpenParts {
    pub view: View,
    pub record: HealthRecord,
    /// `None` on a node without cgroups of its own.
    pub statistics: Option<Arc<dyn Statistics>>,
}

impl OpenParts {
    pub(crate) fn routes(self) -> Router {
        let Self {
            view,
            record,
            statistics,
        } = self;
        let open = routes(&[READ_ONLY_ROUTES]).with_state(view.clone());
        let health = routes(&[HEALTH_ROUTES, RECORD_ROUTES]);
        open.merge(health.with_state(Health { view, record }))
            .merge(routes(&[stats::ROUTES]).with_state(statistics))
    }
}

/// What is never open without authentication: who asks is told so.
const SHUT: [&str; 10] = [
    "/run/{*rest}",
    "/exec/{*rest}",
    "/attach/{*rest}",
    "/portForward/{*rest}",
    "/containerLogs/{*rest}",
    "/runningpods/",
    "/debug/pprof/",
    "/debug/pprof/{*rest}",
    "/logs/",
    "/logs/{*rest}",
];

pub(crate) type Route<S> = (&'static str, fn() -> MethodRouter<S>);

/// The node's health, and how often it was told.
#[derive(Clone)]
pub(crate) struct Health {
    view: View,
    record: HealthRecord,
}

pub(crate) const HEALTH_ROUTES: &[Route<Health>] = &[
    ("/healthz", || get(healthz)),
    ("/healthz/{check}", || get(one_check)),
];

/// Not on the health port.
pub(crate) const RECORD_ROUTES: &[Route<Health>] = &[("/metrics/slis", || get(slis))];

/// On the read-only port, and on the HTTPS port for those who may.
pub(crate) const READ_ONLY_ROUTES: &[Route<View>] = &[
    ("/pods", || get(pods)),
    ("/metrics", || get(metrics)),
    ("/metrics/probes", || get(probe_metrics)),
];

fn routes<S: Clone + Send + Sync + 'static>(tables: &[&[Route<S>]]) -> Router<S> {
    let all = tables.iter().copied().flatten();
    all.fold(Router::new(), |router, (path, make)| {
        router.route(path, make())
    })
}

async fn healthz(
    State(health): State<Health>,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    let view = &health.view;
    let report = Report::of(view.check_names(), view.failing_checks(), &pairs);
    health.record.tell(&report.made, &report.failed);
    if !report.failed.is_empty() {
        // Who may look at the single checks is told why, and who reads the log.
        tracing::info!(failed = ?report.failed, "healthz check failed");
        return (StatusCode::INTERNAL_SERVER_ERROR, TEXT, report.text()).into_response();
    }
    match pairs.iter().any(|(key, _)| key == "verbose") {
        true => (TEXT, report.text()).into_response(),
        false => (TEXT, "ok").into_response(),
    }
}

async fn one_check(State(health): State<Health>, Path(check): Path<String>) -> Response {
    let view = &health.view;
    if !view.check_names().contains(&check.as_str()) {
        return answers::not_found().await;
    }
    match view.failing_checks().into_iter().find(|(n, _)| *n == check) {
        None => (TEXT, "ok").into_response(),
        Some((_, reason)) => {
            let text = format!("internal server error: {reason}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, TEXT, text).into_response()
        }
    }
}

async fn slis(State(health): State<Health>) -> Response {
    (METRICS, health.record.metrics()).into_response()
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
    (METRICS, view.metrics().await).into_response()
}

async fn probe_metrics(State(view): State<View>) -> Response {
    (METRICS, view.probe_metrics()).into_response()
}
