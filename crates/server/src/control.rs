//! The socket of krablet's own commands: rows for `krablet pods`, events for `krablet events`. With
//! `watch` the answer is a stream of JSON lines that ends when the client goes.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header;
use krablet_events::{Event, Subject};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::listen::Listener;
use crate::rows::pod_rows;
use crate::{View, web};

/// A watched table is sent at most this often.
const FRAME: Duration = Duration::from_millis(200);

/// An event as it is sent to `krablet events`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventLine {
    pub sequence: u64,
    pub first_seen: String,
    pub last_seen: String,
    pub count: u32,
    /// `Normal` or `Warning`.
    pub kind: String,
    pub reason: String,
    /// `node`, or `namespace/name`.
    pub object: String,
    pub field_path: String,
    pub message: String,
}

impl From<&Event> for EventLine {
    fn from(e: &Event) -> Self {
        Self {
            sequence: e.sequence,
            first_seen: e.first_seen.to_string(),
            last_seen: e.last_seen.to_string(),
            count: e.count,
            kind: e.kind.as_str().to_owned(),
            reason: e.reason.to_string(),
            object: match &e.subject {
                Subject::Node => "node".to_owned(),
                Subject::Volume { name, .. } => format!("persistentvolume/{name}"),
                Subject::Pod(pod) | Subject::Container(pod, _, _) => pod.to_string(),
            },
            field_path: e.subject.field_path(),
            message: e.message.clone(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
struct Options {
    #[serde(default)]
    watch: bool,
    #[serde(default)]
    since: u64,
}

/// Serves krablet's own commands.
pub async fn serve_control(listener: Listener, view: View) {
    let router = Router::new()
        .route("/v1/rows", get(rows))
        .route("/v1/events", get(events))
        .route("/v1/pods", get(pods))
        .with_state(view);
    listener.serve(router).await;
}

async fn pods(State(view): State<View>) -> Response {
    axum::Json(web::pod_list(&*view)).into_response()
}

async fn rows(State(view): State<View>, Query(options): Query<Options>) -> Response {
    let table = move |view: &View| {
        // In this order, or a pod that is let go in between would be in neither.
        let (pods, ending) = (view.pods(), view.ending());
        line(&pod_rows(&pods, &ending, view.events(), view.now()))
    };
    if !options.watch {
        return json_lines(Body::from(table(&view)));
    }
    let mut bells = vec![view.pod_changes(), view.events().newest()];
    bells.extend(view.ends());
    let frames = futures::stream::unfold(
        (view, bells, true),
        move |(view, mut bells, first)| async move {
            if !first {
                any_bell(&mut bells).await?;
                tokio::time::sleep(FRAME).await;
            }
            for bell in &mut bells {
                bell.mark_unchanged();
            }
            let frame = table(&view);
            Some((Ok::<_, Infallible>(frame), (view, bells, false)))
        },
    );
    json_lines(Body::from_stream(frames))
}

async fn events(State(view): State<View>, Query(options): Query<Options>) -> Response {
    if !options.watch {
        return json_lines(Body::from(event_lines(&view, options.since)));
    }
    let bell = view.events().newest();
    let start = (view, vec![bell], options.since, true);
    let lines = futures::stream::unfold(start, |(view, mut bells, mut since, first)| async move {
        if !first {
            any_bell(&mut bells).await?;
        }
        for bell in &mut bells {
            bell.mark_unchanged();
        }
        let news = view.events().since(since);
        since = news.last().map_or(since, |e| e.sequence);
        let text: String = news.iter().map(|e| line(&EventLine::from(e))).collect();
        Some((Ok::<_, Infallible>(text), (view, bells, since, false)))
    });
    json_lines(Body::from_stream(lines))
}

fn event_lines(view: &View, since: u64) -> String {
    view.events()
        .since(since)
        .iter()
        .map(|e| line(&EventLine::from(e)))
        .collect()
}

fn line(value: &impl Serialize) -> String {
    let mut text = serde_json::to_string(value).unwrap_or_default();
    text.push('\n');
    text
}

/// Waits until one of the bells rings; none when nobody can ring any more.
async fn any_bell(bells: &mut [watch::Receiver<u64>]) -> Option<()> {
    let rings = bells.iter_mut().map(|b| Box::pin(b.changed()));
    let (rung, _, _) = futures::future::select_all(rings).await;
    rung.ok()
}

fn json_lines(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
