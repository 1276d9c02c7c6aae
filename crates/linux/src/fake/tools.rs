//! [`Tools`] that only write down what was run.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::lock;
use crate::tools::{ToolOutput, Tools};

/// Given a command line, what the program answers.
type Answer = Arc<dyn Fn(&str) -> io::Result<ToolOutput> + Send + Sync>;

/// Programs that do nothing and answer as told. Clones share what was run.
#[derive(Clone)]
pub struct FakeTools {
    ran: Arc<Mutex<Vec<String>>>,
    answer: Answer,
}

impl Default for FakeTools {
    /// Every program succeeds and says nothing.
    fn default() -> Self {
        Self::answering(|_| {
            Ok(ToolOutput {
                code: Some(0),
                text: String::new(),
            })
        })
    }
}

impl FakeTools {
    pub fn answering(
        answer: impl Fn(&str) -> io::Result<ToolOutput> + Send + Sync + 'static,
    ) -> Self {
        Self {
            ran: Arc::default(),
            answer: Arc::new(answer),
        }
    }

    /// Command lines, in order.
    pub fn ran(&self) -> Vec<String> {
        lock(&self.ran).clone()
    }
}

#[async_trait]
impl Tools for FakeTools {
    async fn run(
        &self,
        program: &str,
        arguments: &[String],
        _: Duration,
    ) -> io::Result<ToolOutput> {
        tokio::task::yield_now().await;
        let line = format!("{program} {}", arguments.join(" "));
        lock(&self.ran).push(line.clone());
        (self.answer)(&line)
    }
}
