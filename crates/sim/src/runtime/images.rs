//! The calls of CRI's image service. Every image the weather knows can be pulled.

use std::sync::Arc;

use async_trait::async_trait;
use krablet_cri::{Code, Error, ImageService, Result, v1};

use super::{Shared, SimRuntime, lock};

fn image(name: &str) -> v1::Image {
    v1::Image {
        id: format!("sha256:{name}"),
        repo_tags: vec![name.to_owned()],
        size: 1 << 20,
        uid: Some(v1::Int64Value { value: 0 }),
        ..Default::default()
    }
}

impl SimRuntime {
    /// Puts an image on the node.
    pub fn load_image(&self, name: &str) {
        lock(&self.shared.machine).images.insert(name.to_owned());
    }
}

#[async_trait]
impl ImageService for SimRuntime {
    async fn list_images(&self) -> Result<Vec<v1::Image>> {
        self.read(self.info("ListImages", ""), |machine| {
            Ok(machine.images.iter().map(|name| image(name)).collect())
        })
        .await
    }

    async fn image_status(&self, spec: v1::ImageSpec) -> Result<Option<v1::Image>> {
        let name = spec.image;
        self.read(self.info("ImageStatus", &name), |machine| {
            let id = name.strip_prefix("sha256:").unwrap_or(&name);
            Ok(machine.images.contains(id).then(|| image(id)))
        })
        .await
    }

    async fn pull_image(
        &self,
        spec: v1::ImageSpec,
        _auth: Option<v1::AuthConfig>,
        _sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String> {
        let name = spec.image;
        let info = self.info("PullImage", &name);
        let deadline = self.shared.options.deadline;
        self.change(info, deadline, |shared: Arc<Shared>| async move {
            if !shared.options.weather.has_image(&name) {
                let text = format!("failed to resolve {name}");
                return Err(Error::new("PullImage", Code::NotFound, text));
            }
            lock(&shared.machine).images.insert(name.clone());
            Ok(format!("sha256:{name}"))
        })
        .await
    }

    async fn remove_image(&self, spec: v1::ImageSpec) -> Result<()> {
        let name = spec.image;
        let info = self.info("RemoveImage", &name);
        let deadline = self.shared.options.deadline;
        self.change(info, deadline, |shared: Arc<Shared>| async move {
            lock(&shared.machine).images.remove(&name);
            Ok(())
        })
        .await
    }

    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse> {
        self.read(self.info("ImageFsInfo", ""), |_| {
            let usage = v1::FilesystemUsage {
                fs_id: Some(v1::FilesystemIdentifier {
                    mountpoint: "/var/lib/sim".to_owned(),
                }),
                ..Default::default()
            };
            Ok(v1::ImageFsInfoResponse {
                image_filesystems: vec![usage],
                ..Default::default()
            })
        })
        .await
    }
}
