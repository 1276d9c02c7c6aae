//! `/debug/flags/v`: the verbosity of the log.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::{Method, StatusCode};

use super::SharedDoor;
use crate::answers::{not_found, refuse};

/// A number has no more letters.
const MAX_BODY: usize = 64;

/// Sets how much the agent writes to its log.
pub type SetVerbosity = Arc<dyn Fn(u32) + Send + Sync>;

/// What of `/debug/` is open.
#[derive(Clone, Default)]
pub struct Debug {
    /// `enableProfilingHandler`
    pub profiling: bool,
    /// `enableDebugFlagsHandler`
    pub flags: bool,
    /// `None` where it cannot be set while the agent runs.
    pub verbosity: Option<SetVerbosity>,
}

pub(super) async fn verbosity(
    State(door): State<SharedDoor>,
    method: Method,
    body: Body,
) -> Response {
    let debug = &door.parts.debug;
    let Some(set) = &debug.verbosity else {
        return not_found().await;
    };
    if !debug.flags {
        return refuse(
            StatusCode::METHOD_NOT_ALLOWED,
            "flags endpoint is disabled.\n",
        );
    }
    if method != Method::PUT {
        return refuse(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n");
    }
    let Ok(body) = axum::body::to_bytes(body, MAX_BODY).await else {
        return refuse(StatusCode::BAD_REQUEST, "error reading request body\n");
    };
    let text = String::from_utf8_lossy(&body);
    match text.parse::<u32>() {
        Ok(level) => {
            set(level);
            tracing::info!(level, "The verbosity of the log was set");
            let said = format!("successfully set klog.logging.verbosity to {level}\n");
            refuse(StatusCode::OK, said)
        }
        Err(_) => {
            let text = serde_json::json!(text);
            let why = format!("strconv.ParseUint: parsing {text}: invalid syntax\n");
            refuse(StatusCode::BAD_REQUEST, why)
        }
    }
}
