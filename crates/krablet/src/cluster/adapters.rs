//! The runtime in the words of the node.

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use krablet_cri::v1;
use krablet_cri::{ImageClient, ImageService, RuntimeClient, RuntimeService};
use krablet_node::{
    Handler, Image, Images, RuntimeCondition, RuntimeConditions, RuntimeFacts, RuntimeReport,
    RuntimeStatus,
};
use tokio::time::Instant;

/// Calls may take minutes (`runtimeRequestTimeout`), but a runtime that does not say for so long how it is counts as
/// down.
const LIMIT: Duration = Duration::from_secs(30);

pub struct RuntimeReports(pub RuntimeClient);

#[async_trait]
impl RuntimeStatus for RuntimeReports {
    async fn report(&self) -> Result<RuntimeReport, String> {
        let end = Instant::now() + LIMIT;
        let version = named("Version", end, self.0.version()).await?;
        let answer = named("Status", end, self.0.status()).await?;
        Ok(RuntimeReport {
            conditions: conditions(answer.status.unwrap_or_default()),
            facts: RuntimeFacts {
                name: version.runtime_name,
                version: version.runtime_version,
                handlers: answer.runtime_handlers.into_iter().map(handler).collect(),
                supplemental_groups_policy: answer
                    .features
                    .map(|features| features.supplemental_groups_policy),
            },
        })
    }
}

/// The answer, or what came in its place, with the name of the call.
async fn named<T>(
    call: &str,
    end: Instant,
    answer: impl Future<Output = Result<T, krablet_cri::Error>>,
) -> Result<T, String> {
    match tokio::time::timeout_at(end, answer).await {
        Ok(answer) => answer.map_err(|e| format!("{call}: {e}")),
        Err(_) => Err(format!("{call}: no answer within {LIMIT:?}")),
    }
}

fn conditions(status: v1::RuntimeStatus) -> RuntimeConditions {
    let find = |wanted: &str| {
        let found = status.conditions.iter().find(|c| c.r#type == wanted);
        found.map(|c| RuntimeCondition {
            status: c.status,
            reason: c.reason.clone(),
            message: c.message.clone(),
        })
    };
    RuntimeConditions {
        runtime: find("RuntimeReady"),
        network: find("NetworkReady"),
    }
}

fn handler(handler: v1::RuntimeHandler) -> Handler {
    let features = handler.features.unwrap_or_default();
    Handler {
        name: handler.name,
        recursive_read_only_mounts: features.recursive_read_only_mounts,
        user_namespaces: features.user_namespaces,
    }
}

pub struct HeldImages(pub ImageClient);

#[async_trait]
impl Images for HeldImages {
    async fn images(&self) -> Result<Vec<Image>, String> {
        let images = self.0.list_images().await.map_err(|e| e.to_string())?;
        let image = |image: v1::Image| Image {
            digests: image.repo_digests,
            tags: image.repo_tags,
            size: image.size,
        };
        Ok(images.into_iter().map(image).collect())
    }
}

#[cfg(test)]
mod tests {
    use krablet_cri::{Code, Error};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_told_with_the_name_of_the_call() {
        let end = Instant::now() + LIMIT;
        let hangs = std::future::pending::<Result<(), Error>>();
        let told = named("Version", end, hangs).await;
        assert_eq!(told.unwrap_err(), "Version: no answer within 30s");
        let refused = Error::new("Status", Code::Unavailable, "connection refused");
        let told = named("Status", end, async { Err::<(), _>(refused) }).await;
        assert_eq!(
            told.unwrap_err(),
            "Status: rpc error: code = Unavailable desc = connection refused"
        );
    }
}
