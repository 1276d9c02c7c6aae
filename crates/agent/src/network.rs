//! Whether the runtime's pod network is ready. Asked only when a sandbox is about to be made, and
//! remembered for a moment, so a burst of pods asks once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use krablet_cri::RuntimeService;
use tokio::time::Instant;

const REMEMBER: Duration = Duration::from_secs(1);
const NETWORK_READY: &str = "NetworkReady";

/// Ready or why not, and when that was asked.
type Answer = (Instant, Result<(), String>);

#[derive(Clone)]
pub(crate) struct NetworkReadiness {
    runtime: Arc<dyn RuntimeService>,
    last: Arc<Mutex<Option<Answer>>>,
}

impl NetworkReadiness {
    pub(crate) fn new(runtime: Arc<dyn RuntimeService>) -> Self {
        Self {
            runtime,
            last: Arc::default(),
        }
    }

    /// Ready, or why not.
    pub(crate) async fn check(&self) -> Result<(), String> {
        let last = self.last().clone();
        if let Some((at, answer)) = last
            && at.elapsed() < REMEMBER
        {
            return answer;
        }
        let answer = self.ask().await;
        *self.last() = Some((Instant::now(), answer.clone()));
        answer
    }

    async fn ask(&self) -> Result<(), String> {
        let response = self.runtime.status().await.map_err(|e| e.to_string())?;
        let conditions = response.status.map(|s| s.conditions).unwrap_or_default();
        match conditions.iter().find(|c| c.r#type == NETWORK_READY) {
            Some(c) if !c.status => Err(format!(
                "container runtime network not ready: NetworkReady=false reason:{} message:{}",
                c.reason, c.message
            )),
            _ => Ok(()),
        }
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Option<Answer>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
