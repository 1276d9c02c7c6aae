//! Logs of services: from the journal for those that write to it, from files for the others.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use http::{StatusCode, header};
use krablet_logs::Found;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::NodeLogs;
use super::files::{look, pieces};
use super::query::{NodeLogQuery, Options};
use crate::secure::answers::refuse;

/// One answer may take so long.
const DEADLINE: Duration = Duration::from_secs(30);
/// Names of units that are looked through for one.
const MAX_UNITS: u64 = 4 << 20;

type Pieces = BoxStream<'static, io::Result<Bytes>>;

pub(super) async fn answer(logs: &NodeLogs, query: &NodeLogQuery) -> Response {
    let Ok(slot) = logs.slots.clone().try_acquire_owned() else {
        let why = "too many log queries are under way on this node, try again later";
        return refuse(StatusCode::TOO_MANY_REQUESTS, why);
    };
    let deadline = Instant::now() + DEADLINE;
    let known = known_units(&logs.journal, deadline).await;
    let (units, others) = split(&query.services, &known);
    let mut parts = Vec::new();
    if !units.is_empty() {
        parts.push(journal(&logs.journal, &query.options.arguments(&units)));
    }
    if !others.is_empty() && query.options != Options::default() {
        parts.push(text(format!(
            "\noptions present and query resolved to log files for [{}]\ntry without specifying options\n",
            others.join(" ")
        )));
    } else {
        for service in &others {
            parts.push(log_file(logs, service).await);
        }
    }
    let all = stream::iter(parts)
        .flatten()
        .take_until(sleep_until(deadline));
    let all = all.map(move |piece| {
        let _held = &slot;
        piece
    });
    let plain = [(header::CONTENT_TYPE, "text/plain;charset=UTF-8")];
    (plain, Body::from_stream(all)).into_response()
}

/// Those the journal knows, and those that may have a file.
fn split(services: &[String], known: &str) -> (Vec<String>, Vec<String>) {
    let is_unit = |service: &&String| known.contains(&format!("{service}.service"));
    let (units, others): (Vec<&String>, Vec<&String>) = services.iter().partition(is_unit);
    let own = |list: Vec<&String>| list.into_iter().cloned().collect();
    (own(units), own(others))
}

/// Nothing where there is no journal.
async fn known_units(program: &[String], deadline: Instant) -> String {
    let ask = async {
        let arguments = ["--field", "_SYSTEMD_UNIT"].map(str::to_owned);
        let (_child, out, _) = start(program, &arguments)?;
        let mut known = String::new();
        out.take(MAX_UNITS).read_to_string(&mut known).await?;
        io::Result::Ok(known)
    };
    match timeout_at(deadline, ask).await {
        Ok(Ok(known)) => known,
        _ => String::new(),
    }
}

type Reader = Box<dyn AsyncRead + Send + Unpin>;

/// Whoever lets the child go ends it.
fn start(program: &[String], arguments: &[String]) -> io::Result<(Child, Reader, Reader)> {
    let (program, always) = program.split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut child = Command::new(program)
        .args(always)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    Ok((child, Box::new(out), Box::new(err)))
}

fn journal(program: &[String], arguments: &[String]) -> Pieces {
    match start(program, arguments) {
        Ok((child, out, err)) => {
            let both = stream::select(pieces(out), pieces(err));
            both.map(move |piece| {
                let _held = &child;
                piece
            })
            .boxed()
        }
        Err(_) => text("\nerror: journal output not available\n".to_owned()),
    }
}

/// The places a service's own file is looked for, in this order.
async fn log_file(logs: &NodeLogs, service: &str) -> Pieces {
    let names = [
        service.to_owned(),
        format!("{service}.log"),
        format!("{service}/{service}.log"),
    ];
    for name in names {
        match look(&logs.directory, &name).await {
            Ok(Found::File(found)) => {
                return pieces(tokio::fs::File::from_std(found.file)).boxed();
            }
            Ok(Found::Directory(_)) => {}
            Err(e) if is_absent(&e) => {}
            Err(e) => return text(format!("\nerror getting log for {service}: {e}\n")),
        }
    }
    text(format!("\nlog not found for {service}\n"))
}

fn is_absent(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn text(words: String) -> Pieces {
    stream::iter([Ok(words.into())]).boxed()
}
