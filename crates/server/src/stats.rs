//! Statistics: `/stats/summary` and the pages that scrapers of cgroups read.

use std::convert::Infallible;
use std::sync::Arc;

use async_trait::async_trait;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{StatusCode, header};

use crate::answers::{not_found, refuse};
use crate::web::{METRICS, Route};

/// What the door tells of the node's figures, ready to be sent.
#[async_trait]
pub trait Statistics: Send + Sync {
    /// JSON of the summary, or why there is none.
    async fn summary(&self, only_cpu_and_memory: bool) -> Result<Vec<u8>, String>;
    /// The text of `/metrics/resource`.
    async fn resource_metrics(&self) -> String;
    /// The text of `/metrics/cadvisor`.
    async fn cadvisor_metrics(&self) -> Pieces;
}

/// A long text whose pieces are made while it is sent.
pub type Pieces = Box<dyn Iterator<Item = String> + Send>;

/// `None` on a node without cgroups of its own.
pub(crate) type Figures = Option<Arc<dyn Statistics>>;

/// Open whether or not debugging handlers are, and on the read-only port.
pub(crate) const ROUTES: &[Route<Figures>] = &[
    ("/stats/summary", || get(summary).post(summary)),
    ("/metrics/resource", || get(resource)),
    ("/metrics/cadvisor", || get(cadvisor)),
];

const JSON: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];

async fn summary(
    State(figures): State<Figures>,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    let Some(statistics) = &figures else {
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

async fn resource(State(figures): State<Figures>) -> Response {
    match &figures {
        Some(statistics) => (METRICS, statistics.resource_metrics().await).into_response(),
        None => not_found().await,
    }
}

async fn cadvisor(State(figures): State<Figures>) -> Response {
    match &figures {
        Some(statistics) => {
            let pieces = statistics.cadvisor_metrics().await;
            let pieces = pieces.map(|piece| Ok::<_, Infallible>(Bytes::from(piece)));
            let body = Body::from_stream(futures::stream::iter(pieces));
            (METRICS, body).into_response()
        }
        None => not_found().await,
    }
}

#[cfg(test)]
pub(crate) mod tests;
