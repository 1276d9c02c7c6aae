//! `/logs/`: the node's own log files, and the logs of its services for who queries them.

mod files;
mod journal;
mod query;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use tokio::sync::Semaphore;

use super::SharedDoor;
use crate::answers::refuse;

/// Programs that are run at a time to answer queries.
const MAX_QUERIES: usize = 4;

/// Where the node's logs are.
#[derive(Clone, Debug)]
pub struct NodeLogs {
    /// `/var/log`
    directory: PathBuf,
    /// The program that shows the journal, with what it is always told.
    journal: Vec<String>,
    slots: Arc<Semaphore>,
    /// `enableSystemLogHandler`
    pub served: bool,
    /// `enableSystemLogQuery`
    pub queried: bool,
}

impl Default for NodeLogs {
    fn default() -> Self {
        Self::new("/var/log".into(), vec!["journalctl".to_owned()])
    }
}

impl NodeLogs {
    pub fn new(directory: PathBuf, journal: Vec<String>) -> Self {
        Self {
            directory,
            journal,
            slots: Arc::new(Semaphore::new(MAX_QUERIES)),
            served: true,
            queried: false,
        }
    }
}

type Pairs = Query<Vec<(String, String)>>;

pub(super) async fn top(
    State(door): State<SharedDoor>,
    Query(pairs): Pairs,
    asked: HeaderMap,
) -> Response {
    answer(&door.parts.node_logs, String::new(), &pairs, &asked).await
}

pub(super) async fn below(
    State(door): State<SharedDoor>,
    Path(path): Path<String>,
    Query(pairs): Pairs,
    asked: HeaderMap,
) -> Response {
    answer(&door.parts.node_logs, path, &pairs, &asked).await
}

async fn answer(
    logs: &NodeLogs,
    mut path: String,
    pairs: &[(String, String)],
    asked: &HeaderMap,
) -> Response {
    let no_sense = |why: String| refuse(StatusCode::NOT_ACCEPTABLE, why + "\n");
    if !logs.served {
        let why = "logs endpoint is disabled.\n";
        return refuse(StatusCode::METHOD_NOT_ALLOWED, why);
    }
    let query = match logs.queried {
        true => query::parse(pairs),
        false => Ok(None),
    };
    match query {
        Err(why) => return refuse(StatusCode::BAD_REQUEST, why + "\n"),
        Ok(None) => {}
        Ok(Some(_)) if !path.is_empty() => {
            return no_sense("path not allowed in query mode".to_owned());
        }
        Ok(Some(query)) => {
            if let Err(why) = query.check() {
                return no_sense(why);
            }
            let Some(file) = query.files.first() else {
                return journal::answer(logs, &query).await;
            };
            if let Err(e) = files::look(&logs.directory, file).await {
                let file = serde_json::json!([file]);
                return no_sense(format!("query: Invalid value: {file}: {e}"));
            }
            path.clone_from(file);
        }
    }
    files::serve(&logs.directory, &path, asked).await
}
