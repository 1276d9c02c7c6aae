//! The HTTPS door: everything the agent can be asked, for those who may ask it.

mod checkpoint;
mod debug;
mod guard;
mod logs;
mod node_logs;
mod place;
mod pprof;
mod query;
mod state;
mod streams;
mod tls;
mod zpages;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, any, get, post};
use http::{StatusCode, Uri, header};
use krablet_access::{Authenticator, Authorizer};
use krablet_cri::{RuntimeService, StreamingService};
use krablet_logs::LogWatch;
use krablet_metrics::HttpMetrics;
use krablet_pod::PodUid;
use krablet_pod::api::PodStatus;
use krablet_pod::observed::ObservedPod;

use crate::counting::{Counting, Pages};
use crate::listen::Listener;
use crate::stats::{self, Statistics};
use crate::web::{HEALTH_ROUTES, OpenParts, READ_ONLY_ROUTES, RECORD_ROUTES};
use crate::{HealthRecord, View, answers};

pub use checkpoint::{Checkpointer, Checkpoints};
pub use debug::{Debug, SetVerbosity};
pub use node_logs::NodeLogs;
pub use tls::{ServingPair, TlsLimits};
pub use zpages::{About, Version};

pub(crate) use guard::Peer;
use streams::Streams;

/// What the HTTPS door sees of the node beyond what everybody may see.
pub trait Inside: Send + Sync {
    /// What the runtime was last seen to hold of a pod.
    fn observed(&self, uid: &PodUid) -> Option<Arc<ObservedPod>>;
    /// The same of all pods.
    fn all_observed(&self) -> Vec<Arc<ObservedPod>>;
    /// What this node says of a pod now.
    fn status(&self, uid: &PodUid) -> Option<Arc<PodStatus>>;
    /// The configuration in force, as `/configz` tells it.
    fn configuration(&self) -> serde_json::Value;
    /// The UID the API server knows a pod by; a static pod has the one of its mirror pod.
    fn api_uid(&self, uid: &PodUid) -> Option<PodUid>;
}

/// Who may come in, and by which rules.
pub struct Access {
    pub authenticator: Authenticator,
    pub authorizer: Authorizer,
}

pub struct SecureParts {
    pub view: View,
    pub inside: Arc<dyn Inside>,
    pub access: Access,
    pub runtime: Arc<dyn RuntimeService>,
    pub streaming: Arc<dyn StreamingService>,
    /// `enableDebuggingHandlers`
    pub debugging: bool,
    /// `streamingConnectionIdleTimeout`
    pub idle: Duration,
    pub record: HealthRecord,
    pub node_logs: NodeLogs,
    /// The gate `PodLogsQuerySplitStreams`: one stream of a container's log alone.
    pub split_logs: bool,
    pub about: About,
    pub debug: Debug,
    /// `None` with the gate `ContainerCheckpoint` off.
    pub checkpoints: Option<Checkpoints>,
    /// `None` on a node without cgroups of its own.
    pub statistics: Option<Arc<dyn Statistics>>,
    pub requests: HttpMetrics,
}

/// What handlers share.
pub(crate) struct Door {
    pub(crate) parts: SecureParts,
    pub(crate) log_watch: LogWatch,
    pub(crate) streams: Streams,
}

pub(crate) type SharedDoor = Arc<Door>;

/// Serves until dropped; the error says which setting it cannot be served by.
pub async fn serve_secure(
    listener: Listener,
    pair: &ServingPair,
    limits: &TlsLimits,
    parts: SecureParts,
) -> Result<(), String> {
    let (config, unknown) = tls::server_config(pair, limits)?;
    unknown.warn();
    let door = Arc::new(Door {
        log_watch: LogWatch::default(),
        streams: Streams::new(parts.idle),
        parts,
    });
    let router = router(&door);
    listener.serve_tls(Arc::new(config), router).await;
    Ok(())
}

fn router(door: &SharedDoor) -> Router {
    let parts = &door.parts;
    let open = OpenParts {
        view: parts.view.clone(),
        record: parts.record.clone(),
        statistics: parts.statistics.clone(),
    };
    let debug = match parts.debugging {
        true => debug_routes(),
        false => debug_routes().layer(axum::middleware::from_fn(async |_: Request, _: Next| {
            answers::debugging_disabled().await
        })),
    };
    let guarded = axum::middleware::from_fn_with_state(door.clone(), guard::guard);
    let router = debug
        .with_state(door.clone())
        .merge(open.routes())
        .fallback(nowhere)
        .layer(guarded);
    let pages = Pages {
        debugging: parts.debugging,
        checkpoint: parts.checkpoints.is_some(),
        flagz: parts.about.flags.is_some(),
        statusz: parts.about.status.is_some(),
    };
    Counting::secure(parts.requests.clone(), pages).around(router)
}

type Route = (&'static str, fn() -> MethodRouter<SharedDoor>);

/// What is shut with `enableDebuggingHandlers: false`.
const DEBUG_ROUTES: &[Route] = &[
    ("/configz", || get(state::configz)),
    ("/runningpods/", || get(state::running_pods)),
    ("/containerLogs/{namespace}/{pod}/{container}", || {
        get(logs::container_logs)
    }),
    ("/exec/{namespace}/{pod}/{container}", || {
        get(streams::exec).post(streams::exec)
    }),
    ("/exec/{namespace}/{pod}/{uid}/{container}", || {
        get(streams::exec).post(streams::exec)
    }),
    ("/attach/{namespace}/{pod}/{container}", || {
        get(streams::attach).post(streams::attach)
    }),
    ("/attach/{namespace}/{pod}/{uid}/{container}", || {
        get(streams::attach).post(streams::attach)
    }),
    ("/run/{namespace}/{pod}/{container}", || post(streams::run)),
    ("/run/{namespace}/{pod}/{uid}/{container}", || {
        post(streams::run)
    }),
    ("/portForward/{namespace}/{pod}", || {
        get(streams::port_forward).post(streams::port_forward)
    }),
    ("/portForward/{namespace}/{pod}/{uid}", || {
        get(streams::port_forward).post(streams::port_forward)
    }),
    ("/logs/", || get(node_logs::top)),
    ("/logs/{*path}", || get(node_logs::below)),
    ("/checkpoint/{namespace}/{pod}/{container}", || {
        post(checkpoint::checkpoint)
    }),
    ("/flagz", || get(zpages::flagz)),
    ("/statusz", || get(zpages::statusz)),
    ("/debug/flags/v", || any(debug::verbosity)),
    ("/debug/pprof/", || get(pprof::index)),
    ("/debug/pprof/{*name}", || get(pprof::page)),
];

/// What is asked for without the slash at its end is there with it, as the kubelet says.
async fn nowhere(uri: Uri) -> Response {
    const DIRECTORIES: [&str; 3] = ["/logs", "/runningpods", "/debug/pprof"];
    if !DIRECTORIES.contains(&uri.path()) {
        return answers::not_found().await;
    }
    let query = uri.query().map(|query| format!("?{query}"));
    let place = format!("{}/{}", uri.path(), query.unwrap_or_default());
    (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, place)]).into_response()
}

/// Every path there is at this door.
fn all_paths() -> impl Iterator<Item = &'static str> {
    let debug = DEBUG_ROUTES.iter().map(|(path, _)| *path);
    let open = READ_ONLY_ROUTES.iter().map(|(path, _)| *path);
    let health = HEALTH_ROUTES.iter().chain(RECORD_ROUTES);
    let stats = stats::ROUTES.iter().map(|(path, _)| *path);
    debug
        .chain(open)
        .chain(stats)
        .chain(health.map(|(path, _)| *path))
}

fn debug_routes() -> Router<SharedDoor> {
    DEBUG_ROUTES
        .iter()
        .fold(Router::new(), |router, (path, make)| {
            router.route(path, make())
        })
}

#[cfg(test)]
mod tests;
