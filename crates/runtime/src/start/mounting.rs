//! What a container's mounts show, brought into place: parts of volumes, its hosts file, the file for its last words.

use std::io;
use std::path::{Path, PathBuf};

use krablet_cri::v1;
use krablet_linux::{PartError, PartStep};
use krablet_pod::api::Container;
use krablet_pod::{PodRef, hash};

use crate::config::Paths;
use crate::hostname::pod_hostname;
use crate::hosts;
use crate::image_volumes::ImageVolumes;
use crate::mounts::{PlannedMount, SubPath};
use crate::pod_runtime::PodRuntime;
use crate::security::is_host_network;

use super::PodStart;

/// The node's hosts file is no larger than this: lists of blocked hosts have megabytes.
const HOSTS_LIMIT: usize = 64 << 20;
const POD_DIR_MODE: u32 = 0o750;

impl PodRuntime {
    pub(super) async fn prepare_mounts(
        &self,
        pod: &PodStart<'_>,
        container: &Container,
        planned: Vec<PlannedMount>,
        image_volumes: &ImageVolumes,
    ) -> Result<Vec<v1::Mount>, String> {
        let mut all = Vec::with_capacity(planned.len() + 2);
        for PlannedMount {
            mut mount,
            sub_path,
            image,
        } in planned
        {
            mount.image = image.and_then(|volume| image_volumes.get(&volume).cloned());
            if let Some(part) = sub_path {
                let point = self.show_part(pod, container, &part).await?;
                mount.host_path = point.to_string_lossy().into_owned();
            }
            all.push(mount);
        }
        let own_hosts = all.iter().any(|m| m.container_path == hosts::ETC_HOSTS);
        if !own_hosts && (!pod.ips.is_empty() || is_host_network(pod.pod)) {
            all.push(self.hosts_mount(pod).await?);
        }
        all.extend(self.termination_message_mount(pod, container).await);
        Ok(all)
    }

    /// Where the part of a volume is shown.
    async fn show_part(
        &self,
        pod: &PodStart<'_>,
        container: &Container,
        part: &SubPath,
    ) -> Result<PathBuf, String> {
        let PodRef { uid, .. } = &pod.pod_ref;
        let point = self.inner.config.paths.root.pod(uid).join(&part.point);
        let host = &self.inner.deps.mounts;
        let shown = host.bind_below(&part.top, &part.relative, &point).await;
        match shown {
            Ok(()) => Ok(point),
            Err(PartError { step, error }) => {
                let (volume, container) = (&part.volume, &container.name);
                let what = aim(step);
                tracing::error!(pod = %pod.pod_ref, podUID = %uid, containerName = container, volumeMountName = volume, %error, "Failed to {what} for volumeMount of the container");
                Err(not_shown(step, volume, container))
            }
        }
    }

    async fn hosts_mount(&self, pod: &PodStart<'_>) -> Result<v1::Mount, String> {
        let files = &*self.inner.deps.files;
        let config = &self.inner.config;
        let spec = pod.pod.spec.as_ref();
        let aliases = spec
            .and_then(|s| s.host_aliases.as_deref())
            .unwrap_or_default();
        let content = if is_host_network(pod.pod) {
            let node_file = &config.paths.node_hosts;
            let bytes = files.read(node_file, HOSTS_LIMIT).await;
            let bytes = bytes.map_err(|e| format!("open {}: {e}", node_file.display()))?;
            hosts::of_node(&bytes, aliases)
        } else {
            let name = pod_hostname(pod.pod, &config.dns)?;
            hosts::managed(&pod.ips, &name.hostname, &name.domain, aliases).into_bytes()
        };
        let path = config.paths.root.etc_hosts(&pod.pod_ref.uid);
        write_if_changed(files, &path, &content)
            .await
            .map_err(|e| format!("open {}: {e}", path.display()))?;
        Ok(v1::Mount {
            container_path: hosts::ETC_HOSTS.into(),
            host_path: path.to_string_lossy().into_owned(),
            selinux_relabel: true,
            ..v1::Mount::default()
        })
    }

    /// A file of its own for each instance. Without it the container runs all the same.
    async fn termination_message_mount(
        &self,
        pod: &PodStart<'_>,
        container: &Container,
    ) -> Option<v1::Mount> {
        let inside = container.termination_message_path.as_deref();
        let inside = inside.filter(|p| !p.is_empty())?;
        let Paths { root, .. } = &self.inner.config.paths;
        let dir = root.container(&pod.pod_ref.uid, &container.name);
        let path = dir.join(self.fresh_name(pod, &container.name));
        let files = &self.inner.deps.files;
        let made = async {
            files.create_dir_all(&dir, POD_DIR_MODE).await?;
            files.touch(&path, 0o666).await
        };
        if let Err(error) = made.await {
            tracing::error!(pod = %pod.pod_ref, podUID = %pod.pod_ref.uid, path = %path.display(), %error, "Error on creating termination-log file");
            return None;
        }
        let slash = if inside.starts_with('/') { "" } else { "/" };
        Some(v1::Mount {
            container_path: format!("{slash}{inside}"),
            host_path: path.to_string_lossy().into_owned(),
            selinux_relabel: true,
            ..v1::Mount::default()
        })
    }

    /// Eight hex digits that no earlier instance had: the moment goes into them.
    fn fresh_name(&self, pod: &PodStart<'_>, container: &str) -> String {
        let seed = self.inner.config.seed;
        let now = self.inner.deps.clock.now().as_nanosecond();
        let text = format!("{seed}/{now}/{}/{container}", pod.pod_ref.uid);
        format!("{:08x}", hash::fnv1a32(text.bytes()))
    }
}

fn aim(step: PartStep) -> &'static str {
    match step {
        PartStep::Make => "create subPath directory",
        PartStep::Show => "prepare subPath",
    }
}

/// What users read of it. What lies on the node is none of the pod's business, so the reason is not told.
fn not_shown(step: PartStep, volume: &str, container: &str) -> String {
    let what = aim(step);
    format!("failed to {what} for volumeMount {volume:?} of container {container:?}")
}

/// Running containers keep the file they were given, so it is replaced only when it must.
async fn write_if_changed(
    files: &dyn krablet_linux::Files,
    path: &Path,
    bytes: &[u8],
) -> io::Result<()> {
    // A longer one is another one.
    if let Ok(old) = files.read(path, bytes.len()).await
        && old == bytes
    {
        return Ok(());
    }
    let written = files.write_whole(path, bytes, hosts::HOSTS_FILE_MODE).await;
    match (written, path.parent()) {
        (Err(e), Some(dir)) if e.kind() == io::ErrorKind::NotFound => {
            files.create_dir_all(dir, POD_DIR_MODE).await?;
            files.write_whole(path, bytes, hosts::HOSTS_FILE_MODE).await
        }
        (written, _) => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_not_shown_is_told_by_the_step_that_failed() {
        for (step, told) in [
            (
                PartStep::Make,
                "failed to create subPath directory for volumeMount \"data\" of container \"main\"",
            ),
            (
                PartStep::Show,
                "failed to prepare subPath for volumeMount \"data\" of container \"main\"",
            ),
        ] {
            assert_eq!(not_shown(step, "data", "main"), told);
        }
    }
}
