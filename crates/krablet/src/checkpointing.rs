//! Asks the runtime to write a container to a file.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use krablet_cri::RuntimeClient;
use krablet_server::Checkpointer;

pub struct ByRuntime(pub Arc<RuntimeClient>);

#[async_trait]
impl Checkpointer for ByRuntime {
    async fn checkpoint(
        &self,
        container: &str,
        location: &Path,
        seconds: i64,
    ) -> Result<(), String> {
        let done = self.0.checkpoint_container(container, location, seconds);
        done.await.map_err(|e| e.to_string())
    }
}
