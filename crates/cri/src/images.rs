//! The gRPC client of the image side, which may be another process than the runtime.

use async_trait::async_trait;
use tonic::transport::Channel;

use crate::calls::{Call, CallLog};
use crate::client::{Caller, Deadlines, MAX_MESSAGE, gone_is_done};
use crate::endpoint::Endpoint;
use crate::service::{ImageService, Result};
use crate::v1::image_service_client::ImageServiceClient;
use crate::{Code, Error, v1};

/// The image service behind a socket. Clones share the connection.
#[derive(Clone)]
pub struct ImageClient {
    caller: Caller,
    calls: ImageServiceClient<Channel>,
}

impl ImageClient {
    /// Nothing is sent before the first call.
    pub fn new(endpoint: &Endpoint, deadlines: Deadlines, log: CallLog) -> Self {
        Self {
            caller: Caller { deadlines, log },
            calls: ImageServiceClient::new(endpoint.channel())
                .max_decoding_message_size(MAX_MESSAGE),
        }
    }

    fn rpc(&self) -> ImageServiceClient<Channel> {
        self.calls.clone()
    }
}

#[async_trait]
impl ImageService for ImageClient {
    async fn list_images(&self) -> Result<Vec<v1::Image>> {
        let mut rpc = self.rpc();
        let request = v1::ListImagesRequest::default();
        let call = |r| async move { rpc.list_images(r).await };
        let answer = self.caller.call(Call::ListImages, "", request, call);
        Ok(answer.await?.images)
    }

    async fn image_status(&self, image: v1::ImageSpec) -> Result<Option<v1::Image>> {
        let mut rpc = self.rpc();
        let name = image.image.clone();
        let request = v1::ImageStatusRequest {
            image: Some(image),
            verbose: false,
        };
        let call = |r| async move { rpc.image_status(r).await };
        let answer = self.caller.call(Call::ImageStatus, &name, request, call);
        Ok(answer.await?.image)
    }

    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String> {
        let mut rpc = self.rpc();
        let name = image.image.clone();
        let request = v1::PullImageRequest {
            image: Some(image),
            auth,
            sandbox_config,
        };
        let call = |r| async move { rpc.pull_image(r).await };
        let answer = self
            .caller
            .call_within(Call::PullImage, &name, None, request, call)
            .await?;
        if answer.image_ref.is_empty() {
            let text = "image_ref is not set";
            return Err(Error::new(Call::PullImage.name(), Code::Internal, text));
        }
        Ok(answer.image_ref)
    }

    async fn remove_image(&self, image: v1::ImageSpec) -> Result<()> {
        let mut rpc = self.rpc();
        let name = image.image.clone();
        let request = v1::RemoveImageRequest { image: Some(image) };
        let call = |r| async move { rpc.remove_image(r).await };
        gone_is_done(
            self.caller
                .call(Call::RemoveImage, &name, request, call)
                .await,
        )
    }

    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse> {
        let mut rpc = self.rpc();
        let request = v1::ImageFsInfoRequest {};
        let call = |r| async move { rpc.image_fs_info(r).await };
        self.caller.call(Call::ImageFsInfo, "", request, call).await
    }
}
