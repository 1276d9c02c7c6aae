//! `/debug/`: the verbosity of the log, and what can be told of the process from within.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode, header};

use super::SharedDoor;
use super::answers::{not_found, refuse};

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

pub(super) async fn pprof_index(State(door): State<SharedDoor>) -> Response {
    match door.parts.debug.profiling {
        true => plain(INDEX.to_owned()),
        false => shut(),
    }
}

const INDEX: &str = "/debug/pprof/

cmdline  the command line, its words divided by zero bytes
heap     memory of the process, as the kernel counts it
tasks    tasks of the async runtime
";

pub(super) async fn pprof(State(door): State<SharedDoor>, Path(name): Path<String>) -> Response {
    if !door.parts.debug.profiling {
        return shut();
    }
    match name.as_str() {
        "cmdline" => {
            let words: Vec<_> = std::env::args_os().collect();
            let words = words.iter().map(|w| w.to_string_lossy());
            plain(words.collect::<Vec<_>>().join("\0"))
        }
        "heap" => match tokio::task::spawn_blocking(memory).await {
            Ok(Ok(text)) => plain(text),
            _ => refuse(StatusCode::INTERNAL_SERVER_ERROR, "/proc cannot be read\n"),
        },
        "tasks" => plain(tasks()),
        "profile" | "trace" | "symbol" | "allocs" | "block" | "goroutine" | "mutex"
        | "threadcreate" => refuse(
            StatusCode::NOT_IMPLEMENTED,
            format!("{name}: there is no such profile of this process; use perf on the node\n"),
        ),
        _ => refuse(StatusCode::NOT_FOUND, "Unknown profile\n"),
    }
}

fn shut() -> Response {
    refuse(
        StatusCode::METHOD_NOT_ALLOWED,
        "profiling endpoint is disabled.\n",
    )
}

fn plain(text: String) -> Response {
    let head = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (head, text).into_response()
}

/// The lines of `/proc/self/status` on memory and threads, then the sums over all mappings.
fn memory() -> std::io::Result<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let told = ["Vm", "Rss", "Threads", "voluntary", "nonvoluntary"];
    let lines = status
        .lines()
        .filter(|l| told.iter().any(|t| l.starts_with(t)));
    let mut text = lines.fold(String::new(), |text, line| text + line + "\n");
    // Kernels before 4.14 have none.
    let sums = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    text.extend(sums.lines().skip(1).map(|line| format!("{line}\n")));
    Ok(text)
}

fn tasks() -> String {
    let metrics = tokio::runtime::Handle::current().metrics();
    format!(
        "alive: {}\nqueued: {}\nworkers: {}\n",
        metrics.num_alive_tasks(),
        metrics.global_queue_depth(),
        metrics.num_workers()
    )
}
