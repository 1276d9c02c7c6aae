//! `/debug/pprof/`: what can be told of the process from within.

use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use krablet_profile::{ProfileError, Recording, Taken};
use tokio::time::Instant;

use super::SharedDoor;
use crate::answers::refuse;

/// Where nobody says how long.
const USUAL_SECONDS: u64 = 30;
const MOST_SECONDS: u64 = 300;

pub(super) async fn index(State(door): State<SharedDoor>) -> Response {
    match door.parts.debug.profiling {
        true => plain(INDEX.to_owned()),
        false => shut(),
    }
}

const INDEX: &str = "/debug/pprof/

cmdline  the command line, its words divided by zero bytes
heap     memory of the process, as the kernel counts it
profile  where processor time goes, in the format of pprof; ?seconds=N
symbol   how many names of addresses are known: none
tasks    tasks of the async runtime
";

type Pairs = Vec<(String, String)>;

pub(super) async fn page(
    State(door): State<SharedDoor>,
    Path(name): Path<String>,
    Query(pairs): Query<Pairs>,
) -> Response {
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
        "profile" => profile(&door, seconds(&pairs)).await,
        // Who asks for names goes on with a binary that has them.
        "symbol" => plain("num_symbols: 0\n".to_owned()),
        "tasks" => plain(tasks()),
        "trace" | "allocs" | "block" | "goroutine" | "mutex" | "threadcreate" => refuse(
            StatusCode::NOT_IMPLEMENTED,
            format!("{name}: there is no such profile of this process; use perf on the node\n"),
        ),
        _ => refuse(StatusCode::NOT_FOUND, "Unknown profile\n"),
    }
}

/// What is no number above zero stands for the usual time, as Go takes it.
fn seconds(pairs: &Pairs) -> u64 {
    let given = pairs.iter().find(|(name, _)| name == "seconds");
    let given = given.and_then(|(_, value)| value.parse().ok());
    given.filter(|n| *n > 0).unwrap_or(USUAL_SECONDS)
}

async fn profile(door: &SharedDoor, seconds: u64) -> Response {
    if seconds > MOST_SECONDS {
        let why = format!("profile duration exceeds {MOST_SECONDS} seconds\n");
        return refuse(StatusCode::BAD_REQUEST, why);
    }
    let begun = (door.parts.view.now(), Instant::now());
    // Whoever goes away meanwhile ends it.
    let recording = match Recording::begin() {
        Ok(recording) => recording,
        Err(e) => return cannot(&e),
    };
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let samples = recording.finish();
    let taken = Taken {
        at_nanos: i64::try_from(begun.0.as_nanosecond()).unwrap_or_default(),
        nanos: i64::try_from(begun.1.elapsed().as_nanos()).unwrap_or_default(),
    };
    let packed = tokio::task::spawn_blocking(move || {
        krablet_profile::encode(&samples, &krablet_profile::mappings()?, taken)
    });
    match packed.await {
        Ok(Ok(packed)) => (ATTACHED, packed).into_response(),
        Ok(Err(e)) => cannot(&e),
        Err(_) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "cut off\n"),
    }
}

const ATTACHED: [(header::HeaderName, &str); 3] = [
    (header::CONTENT_TYPE, "application/octet-stream"),
    (
        header::CONTENT_DISPOSITION,
        "attachment; filename=\"profile\"",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
];

fn cannot(why: &ProfileError) -> Response {
    let why = format!("Could not enable CPU profiling: {why}\n");
    refuse(StatusCode::INTERNAL_SERVER_ERROR, why)
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
