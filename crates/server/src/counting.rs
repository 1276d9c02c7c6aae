//! Requests are counted by what was asked for and how. A client chooses its words freely, so they are brought down to
//! those that are known here, whoever it is and whether or not it is let in.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use http::Method;
use krablet_metrics::{HttpMetrics, RequestLabels};
use tokio::time::Instant;

use crate::guests::{Held, OnLooker};

/// What is not told apart.
const OTHER: &str = "other";

/// Upstream's choice; `PATCH` is not among them.
const METHODS: [&str; 8] = [
    "OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT",
];

/// Told apart on every port, whether or not they are open there.
const ALWAYS: [&str; 14] = [
    "healthz",
    "pods",
    "stats",
    "metrics",
    "metrics/cadvisor",
    "metrics/probes",
    "metrics/resource",
    "run",
    "exec",
    "attach",
    "portForward",
    "containerLogs",
    "runningpods",
    "logs",
];

/// Those whose length says nothing about how the node does. Upstream means ports to be among them as well, but looks for
/// them under another spelling than that of their path: they are told as not long-running, and so here.
const LONG_RUNNING: [&str; 3] = ["exec", "attach", "debug"];

/// What of a port decides which paths are told apart.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pages {
    /// The other ones are there only with this one.
    pub(crate) debugging: bool,
    pub(crate) checkpoint: bool,
    pub(crate) flagz: bool,
    pub(crate) statusz: bool,
}

impl Pages {
    fn paths(self) -> Vec<&'static str> {
        let own = match self.debugging {
            true => vec![
                ("debug", true),
                ("configz", true),
                ("checkpoint", self.checkpoint),
                ("flagz", self.flagz),
                ("statusz", self.statusz),
            ],
            // Nobody finds anything under this name, but upstream knows it where debugging is off.
            false => vec![("pprof", true)],
        };
        let own = own.into_iter().filter(|(_, there)| *there);
        ALWAYS
            .into_iter()
            .chain(own.map(|(path, _)| path))
            .collect()
    }
}

fn method_label(method: &Method) -> &'static str {
    let known = METHODS.into_iter().find(|known| *known == method.as_str());
    known.unwrap_or(OTHER)
}

/// The first part of a path; of those below `/metrics/` the first two.
fn root(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    let parts = if path.starts_with("metrics/") { 2 } else { 1 };
    let end = path.match_indices('/').nth(parts - 1);
    end.map_or(path, |(end, _)| &path[..end])
}

fn path_label(path: &str, known: &[&'static str]) -> &'static str {
    let root = root(path);
    let known = known.iter().copied().find(|known| *known == root);
    known.unwrap_or(OTHER)
}

/// How the requests of one port are counted.
#[derive(Clone)]
pub(crate) struct Counting {
    metrics: HttpMetrics,
    server_type: &'static str,
    paths: Arc<[&'static str]>,
}

impl Counting {
    pub(crate) fn read_only(metrics: HttpMetrics) -> Self {
        Self::new(metrics, "readonly", Pages::default())
    }

    pub(crate) fn secure(metrics: HttpMetrics, pages: Pages) -> Self {
        Self::new(metrics, "readwrite", pages)
    }

    fn new(metrics: HttpMetrics, server_type: &'static str, pages: Pages) -> Self {
        Self {
            metrics,
            server_type,
            paths: pages.paths().into(),
        }
    }

    /// Outermost, so that those are counted as well who are not let in.
    pub(crate) fn around(self, router: Router) -> Router {
        router.layer(from_fn_with_state(self, count))
    }

    fn labels(&self, method: &Method, path: &str) -> RequestLabels {
        let path = path_label(path, &self.paths);
        RequestLabels {
            long_running: LONG_RUNNING.contains(&path),
            method: method_label(method),
            path,
            server_type: self.server_type,
        }
    }

    fn begin(&self, labels: RequestLabels) -> Ongoing {
        self.metrics.begin(labels);
        Ongoing(Arc::new(Begun {
            metrics: self.metrics.clone(),
            labels,
            since: Instant::now(),
        }))
    }
}

/// A request is over when nobody holds one of these any more: its answer does until it is sent, and who joins streams has
/// to take the one that comes with the request.
#[derive(Clone)]
pub(crate) struct Ongoing(#[allow(dead_code, reason = "held for its end")] Arc<Begun>);

/// Nothing but its end matters.
impl OnLooker for Ongoing {}

struct Begun {
    metrics: HttpMetrics,
    labels: RequestLabels,
    since: Instant,
}

/// A client may go at any moment, and what it asked for is dropped then.
impl Drop for Begun {
    fn drop(&mut self) {
        self.metrics.end(self.labels, self.since.elapsed());
    }
}

async fn count(State(counting): State<Counting>, mut request: Request, next: Next) -> Response {
    let labels = counting.labels(request.method(), request.uri().path());
    let ongoing = counting.begin(labels);
    request.extensions_mut().insert(ongoing.clone());
    let response = next.run(request).await;
    response.map(|body| Body::new(Held::new(body, Some(ongoing))))
}

#[cfg(test)]
mod tests;
