//! The boundary: one call, one watch.

use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;

use crate::ApiError;

/// How long an ordinary call may take, connecting included.
const CALL_DEADLINE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    StrategicMerge,
    Merge,
    Json,
}

impl PatchKind {
    pub fn content_type(self) -> &'static str {
        match self {
            PatchKind::StrategicMerge => "application/strategic-merge-patch+json",
            PatchKind::Merge => "application/merge-patch+json",
            PatchKind::Json => "application/json-patch+json",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Of one object, or of a list.
    Get,
    Create,
    Update,
    Patch(PatchKind),
    Delete,
}

/// Who goes first when calls wait for their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// The lease and the node's own status.
    Heartbeat,
    /// Statuses that others wait for: ready, ended.
    Urgent,
    Normal,
    /// Events, which nobody waits for.
    Background,
}

/// Which calls wait for their turn together. Each pace has the whole rate to itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// The agent's own work.
    #[default]
    Own,
    /// Reviews of who comes to the agent's door. How many there are is up to strangers, and none of them is to take the
    /// agent's own turn.
    Reviews,
}

/// How much of an object an answer is to hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    #[default]
    Whole,
    /// `metadata` and nothing else; a server that cannot do so answers with all of it.
    Metadata,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub verb: Verb,
    /// From the root of the server, as [`crate::paths`] makes them.
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    pub body: Option<Bytes>,
    pub detail: Detail,
    pub priority: Priority,
    pub pace: Pace,
    /// Counted from the moment the call's turn has come.
    pub deadline: Duration,
}

impl Call {
    pub fn new(verb: Verb, path: String) -> Self {
        Self {
            verb,
            path,
            query: Vec::new(),
            body: None,
            detail: Detail::default(),
            priority: Priority::Normal,
            pace: Pace::default(),
            deadline: CALL_DEADLINE,
        }
    }

    pub fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Some(body.into());
        self
    }

    pub fn detail(mut self, detail: Detail) -> Self {
        self.detail = detail;
        self
    }

    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

/// The lines of a watch, each a JSON object with `type` and `object`. Ends when the server closes it;
/// dropping it ends the request.
pub type Watch = BoxStream<'static, Result<Bytes, ApiError>>;

#[async_trait::async_trait]
pub trait Api: Send + Sync {
    /// The body of a successful answer.
    async fn call(&self, call: Call) -> Result<Bytes, ApiError>;

    /// Opens a watch: a `Get` of a list with `watch=true` in its query.
    async fn watch(&self, call: Call) -> Result<Watch, ApiError>;

    /// The next call opens a connection of its own, for the one there is seems dead. What is under
    /// way on the old one may still end.
    fn reconnect(&self);
}
