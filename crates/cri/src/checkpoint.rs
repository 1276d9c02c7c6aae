//! Writing a container to a file.

use std::path::Path;
use std::time::Duration;

use crate::client::RuntimeClient;
use crate::service::Result;
use crate::{Call, v1};

impl RuntimeClient {
    /// `seconds`: what it may take; 0 leaves that to the runtime, and to the usual deadline of calls.
    pub async fn checkpoint_container(
        &self,
        container_id: &str,
        location: &Path,
        seconds: i64,
    ) -> Result<()> {
        let mut rpc = self.rpc();
        let request = v1::CheckpointContainerRequest {
            container_id: container_id.to_owned(),
            location: location.to_string_lossy().into_owned(),
            timeout: seconds,
        };
        let given = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        let deadline = self.caller().deadlines.request.max(given);
        let call = |r| async move { rpc.checkpoint_container(r).await };
        let call = self.caller().call_within(
            Call::CheckpointContainer,
            container_id,
            Some(deadline),
            request,
            call,
        );
        call.await.map(drop)
    }
}
