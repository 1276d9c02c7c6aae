//! Images as volumes: the runtime holds and mounts them, nothing of them is on our side.

use async_trait::async_trait;

use crate::error::SetUpError;
use crate::plugin::{MountedVolume, Source, Standing, VolumePlugin, VolumeRequest};
use crate::record::RecordedVolume;

const NAME: &str = "kubernetes.io/image";

pub struct Image;

#[async_trait]
impl VolumePlugin for Image {
    fn name(&self) -> &'static str {
        NAME
    }

    fn supports(&self, source: &Source<'_>) -> bool {
        matches!(source, Source::Inline(volume) if volume.image.is_some())
    }

    fn plan(&self, _: &VolumeRequest<'_>) -> Result<Option<RecordedVolume>, SetUpError> {
        Ok(None)
    }

    async fn set_up(&self, request: &VolumeRequest<'_>) -> Result<Standing, SetUpError> {
        Ok(MountedVolume {
            spec_name: request.name().to_owned(),
            host_path: request.dir(NAME),
            read_only: true,
            se_linux_relabel: true,
            block: false,
            group: request.source.group(),
            plugin: NAME,
        }
        .into())
    }
}
