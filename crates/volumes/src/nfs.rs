//! NFS, mounted by the host's own tools.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krablet_linux::{Files, Mounts, Tools};

use crate::error::SetUpError;
use crate::listing::is_mounted;
use crate::node_mount::POINT_MODE;
use crate::plugin::{MountedVolume, Source, Standing, VolumePlugin, VolumeRequest};
use crate::record::RecordedVolume;
use crate::tool::{mount_arguments, run};

const NAME: &str = "kubernetes.io/nfs";
/// A server that is away is asked again later.
const DEADLINE: Duration = Duration::from_secs(120);

pub struct Nfs {
    pub files: Arc<dyn Files>,
    pub mounts: Arc<dyn Mounts>,
    pub tools: Arc<dyn Tools>,
}

/// What is mounted, and how.
struct Export {
    source: String,
    read_only: bool,
}

fn export(source: &Source<'_>) -> Option<Export> {
    let nfs = match source {
        Source::Inline(volume) => volume.nfs.as_ref(),
        Source::Persistent { .. } => source.persistent()?.nfs.as_ref(),
    }?;
    let server = match nfs.server.contains(':') && !nfs.server.starts_with('[') {
        true => format!("[{}]", nfs.server),
        false => nfs.server.clone(),
    };
    Some(Export {
        source: format!("{server}:{}", nfs.path),
        read_only: nfs.read_only.unwrap_or(false) || source.is_read_only_claim(),
    })
}

#[async_trait]
impl VolumePlugin for Nfs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn supports(&self, source: &Source<'_>) -> bool {
        export(source).is_some() && !source.is_block()
    }

    fn plan(&self, request: &VolumeRequest<'_>) -> Result<Option<RecordedVolume>, SetUpError> {
        Ok(Some(request.recorded(NAME)))
    }

    async fn set_up(&self, request: &VolumeRequest<'_>) -> Result<Standing, SetUpError> {
        let dir = request.dir(NAME);
        let export = export(&request.source).ok_or(SetUpError::UnsupportedKind("nfs"))?;
        if !is_mounted(&*self.mounts, &dir).await? {
            self.files.create_dir_all(&dir, POINT_MODE).await?;
            let mut options = request.source.mount_options();
            if export.read_only {
                options.push("ro".to_owned());
            }
            let arguments = mount_arguments(Some("nfs"), &options, &export.source, &dir);
            run(&*self.tools, "mount", &arguments, DEADLINE).await?;
        }
        Ok(MountedVolume {
            spec_name: request.name().to_owned(),
            host_path: dir,
            read_only: export.read_only,
            se_linux_relabel: false,
            block: false,
            group: request.source.group(),
            plugin: NAME,
        }
        .into())
    }
}
