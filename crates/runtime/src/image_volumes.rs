//! Images that containers need: those they run from, and those they see as volumes, which are brought like the others
//! and mounted by the runtime.

use std::collections::BTreeMap;

use krablet_cri::v1;
use tokio::time::Instant;

use crate::images::{PullPolicy, ReadyImage};
use crate::mounts::image_of;
use crate::pod_runtime::PodRuntime;
use crate::start::{PodStart, StartFailure, Starting};

/// A container had to have an image.
#[derive(Clone, Copy, Debug)]
pub struct ImageWait {
    pub since: Instant,
    pub until: Instant,
    /// It is on the node now, or was all the time.
    pub got: bool,
}

/// What the runtime is to mount, by the name of the pod's volume.
pub(crate) type ImageVolumes = BTreeMap<String, v1::ImageSpec>;

impl PodRuntime {
    /// Brings the images that are volumes of this container.
    pub(crate) async fn image_volumes(
        &self,
        pod: &mut PodStart<'_>,
        what: &Starting<'_>,
    ) -> Result<ImageVolumes, StartFailure> {
        let mut found = ImageVolumes::new();
        for mount in what.container.volume_mounts.iter().flatten() {
            let Some(source) = image_of(pod.pod, &mount.name) else {
                continue;
            };
            if found.contains_key(&mount.name) {
                continue;
            }
            let reference = source.reference.as_deref().unwrap_or_default();
            let policy = PullPolicy::of(source.pull_policy.as_deref(), reference);
            let ready = self.need_image(pod, what, reference, policy).await?;
            let annotations = pod.pod.metadata.annotations.clone().unwrap_or_default();
            let spec = v1::ImageSpec {
                image: ready.reference,
                user_specified_image: reference.to_owned(),
                annotations: annotations.into_iter().collect(),
                ..v1::ImageSpec::default()
            };
            found.insert(mount.name.clone(), spec);
        }
        let metrics = &self.inner.deps.metrics;
        metrics.image_volumes.requested.add(found.len() as u64);
        Ok(found)
    }

    /// An image that the container needs, and how long it took to have it.
    pub(crate) async fn need_image(
        &self,
        pod: &mut PodStart<'_>,
        what: &Starting<'_>,
        image: &str,
        policy: PullPolicy,
    ) -> Result<ReadyImage, StartFailure> {
        let since = Instant::now();
        let ready = self.ensure_image(pod, what, image, policy).await;
        pod.image_waits.push(ImageWait {
            since,
            until: Instant::now(),
            got: ready.is_ok(),
        });
        ready
    }
}
