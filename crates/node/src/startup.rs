//! How a new node came to be: when it was first to be registered, when it was, and when it was ready.

use std::sync::{Arc, Mutex, PoisonError};

use krablet_pod::api::Node;
use tokio::time::Instant;

use crate::conditions::READY;

/// Clones tell of the same node.
#[derive(Clone, Debug, Default)]
pub struct Startup(Arc<Mutex<Course>>);

/// Each comes after the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartupMoments {
    pub attempted: Option<Instant>,
    pub registered: Option<Instant>,
    pub ready: Option<Instant>,
}

#[derive(Debug, Default)]
struct Course {
    moments: StartupMoments,
    /// The node was there before this life of the agent: it is not a start of the node that is looked at.
    known: bool,
}

impl Startup {
    pub fn moments(&self) -> StartupMoments {
        let course = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        course.moments
    }

    pub(crate) fn attempt(&self) {
        self.note(|moments| {
            moments.attempted.get_or_insert_with(Instant::now);
        });
    }

    /// There was a Node object already.
    pub(crate) fn found(&self) {
        let mut course = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        course.known |= course.moments.registered.is_none();
    }

    /// A new Node object was made.
    pub(crate) fn made(&self, node: &Node) {
        self.note(|moments| {
            moments.registered.get_or_insert_with(Instant::now);
        });
        self.told(node);
    }

    /// This is what the Node object says now.
    pub(crate) fn told(&self, node: &Node) {
        if !is_ready(node) {
            return;
        }
        self.note(|moments| {
            if moments.registered.is_some() {
                moments.ready.get_or_insert_with(Instant::now);
            }
        });
    }

    fn note(&self, change: impl FnOnce(&mut StartupMoments)) {
        let mut course = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !course.known {
            change(&mut course.moments);
        }
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|c| c.type_ == READY && c.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn node(ready: &str) -> Node {
        let conditions = serde_json::json!([{"type": "Ready", "status": ready}]);
        serde_json::from_value(serde_json::json!({"status": {"conditions": conditions}})).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_node_starts_once() {
        let startup = Startup::default();
        let begun = Instant::now();
        let second = Duration::from_secs(1);
        // Before the node is made, nothing that is said of it counts.
        startup.told(&node("True"));
        for _ in 0..2 {
            startup.attempt();
            tokio::time::advance(second).await;
            startup.made(&node("False"));
            tokio::time::advance(second).await;
            startup.told(&node("False"));
            startup.told(&node("True"));
        }
        let expected = StartupMoments {
            attempted: Some(begun),
            registered: Some(begun + second),
            ready: Some(begun + 2 * second),
        };
        assert_eq!(startup.moments(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_was_there_does_not_start() {
        let startup = Startup::default();
        startup.attempt();
        startup.found();
        startup.made(&node("True"));
        assert_eq!(startup.moments().registered, None);
        let made = Startup::default();
        made.attempt();
        made.made(&node("True"));
        made.found();
        assert!(made.moments().ready.is_some());
    }
}
