//! The runtime in the words of the node.

use async_trait::async_trait;
use krablet_cri::v1;
use krablet_cri::{ImageClient, ImageService, RuntimeClient, RuntimeService};
use krablet_node::{
    Handler, Image, Images, RuntimeCondition, RuntimeConditions, RuntimeFacts, RuntimeReport,
    RuntimeStatus,
};

pub struct RuntimeReports(pub RuntimeClient);

#[async_trait]
impl RuntimeStatus for RuntimeReports {
    async fn report(&self) -> Result<RuntimeReport, String> {
        let version = self.0.version().await.map_err(|e| e.to_string())?;
        let answer = self.0.status().await.map_err(|e| e.to_string())?;
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
