//! Giving volumes to the group of their pod, as `fsGroup` asks.

use std::path::Path;

use krablet_linux::{GroupShare, Trees};

use crate::attempt::News;
use crate::empty_dir::group_of;
use crate::error::SetUpError;
use crate::plugin::VolumeRequest;

/// Who hears of a volume that takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slow {
    /// The pod, by events that name its own directory.
    IsToldOf(&'static str),
    /// The log alone, as with a kubelet.
    IsLogged,
}

/// Gives all of a volume to the pod's group, if it has one. A pod that is to end does not wait for it.
pub(crate) async fn give(
    trees: &dyn Trees,
    request: &VolumeRequest<'_>,
    top: &Path,
    slow: Slow,
) -> Result<(), SetUpError> {
    let Some(group) = request.fs_group() else {
        return Ok(());
    };
    let share = GroupShare {
        gid: group_of(group)?,
        read_only: false,
        only_if_top_differs: request.only_if_top_differs(),
    };
    let logged = logged(top, share.gid);
    let hears = |files: Option<u64>| match slow {
        Slow::IsLogged => logged(files),
        Slow::IsToldOf(plugin) => {
            let dir = Path::new(request.uid.as_str()).join(request.relative_dir(plugin));
            let dir = dir.display().to_string();
            (request.attempt.hear)(News::Ownership { dir, files });
        }
    };
    let shared = trees.share(top, share, &hears);
    request.attempt.wait_for(shared).await??;
    Ok(())
}

pub(crate) fn logged(top: &Path, gid: u32) -> impl Fn(Option<u64>) + Send + Sync {
    let path = top.display();
    move |files| match files {
        None => {
            tracing::warn!(%path, fsGroup = gid, "Setting volume ownership is taking longer than expected, consider using OnRootMismatch");
        }
        Some(files) => {
            tracing::warn!(%path, fsGroup = gid, files, "Setting volume ownership, processed files");
        }
    }
}
