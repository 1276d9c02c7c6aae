//! Statistics: `/stats/summary` and the pages that scrapers of cgroups read.

use async_trait::async_trait;
use axum::Router;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{StatusCode, header};

use super::answers::{not_found, refuse};
use super::{Route, SharedDoor};

/// What the door tells of the node's figures, ready to be sent.
#[async_trait]
pub trait Statistics: Send + Sync {
    /// JSON of the summary, or why there is none.
    async fn summary(&self, only_cpu_and_memory: bool) -> Result<Vec<u8>, String>;
    /// The text of `/metrics/resource`.
    async fn resource_metrics(&self) -> String;
    /// The text of `/metrics/cadvisor`.
    async fn cadvisor_metrics(&self) -> String;
}

/// Open whether or not debugging handlers are.
pub(super) const ROUTES: &[Route] = &[
    ("/stats/summary", || get(summary).post(summary)),
    ("/metrics/resource", || get(resource)),
    ("/metrics/cadvisor", || get(cadvisor)),
];

pub(super) fn routes() -> Router<SharedDoor> {
    ROUTES.iter().fold(Router::new(), |router, (path, make)| {
        router.route(path, make())
    })
}

const JSON: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];
const METRICS: [(header::HeaderName, &str); 1] = [(
    header::CONTENT_TYPE,
    "text/plain; version=0.0.4; charset=utf-8",
)];

async fn summary(
    State(door): State<SharedDoor>,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    let Some(statistics) = &door.parts.statistics else {
        return not_found().await;
    };
    match statistics.summary(only_cpu_and_memory(&pairs)).await {
        Ok(json) => (JSON, json).into_response(),
        Err(why) => refuse(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("Internal Error: {why}"),
        ),
    }
}

/// Said once, and nothing but `true`: as the kubelet takes it.
fn only_cpu_and_memory(pairs: &[(String, String)]) -> bool {
    let mut named = pairs
        .iter()
        .filter(|(name, _)| name == "only_cpu_and_memory");
    let first = named.next();
    named.next().is_none() && first.is_some_and(|(_, value)| value == "true")
}

async fn resource(State(door): State<SharedDoor>) -> Response {
    match &door.parts.statistics {
        Some(statistics) => (METRICS, statistics.resource_metrics().await).into_response(),
        None => not_found().await,
    }
}

async fn cadvisor(State(door): State<SharedDoor>) -> Response {
    match &door.parts.statistics {
        Some(statistics) => (METRICS, statistics.cadvisor_metrics().await).into_response(),
        None => not_found().await,
    }
}

#[cfg(test)]
pub(super) mod tests;
