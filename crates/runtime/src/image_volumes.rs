//! Images that containers see as volumes: brought like those that containers run from, mounted by the runtime.

use std::collections::BTreeMap;

use krablet_cri::v1;

use crate::images::PullPolicy;
use crate::mounts::image_of;
use crate::pod_runtime::PodRuntime;
use crate::start::{PodStart, StartFailure, Starting};

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
            let ready = self.ensure_image(pod, what, reference, policy).await?;
            let annotations = pod.pod.metadata.annotations.clone().unwrap_or_default();
            let spec = v1::ImageSpec {
                image: ready.reference,
                user_specified_image: reference.to_owned(),
                annotations: annotations.into_iter().collect(),
                ..v1::ImageSpec::default()
            };
            found.insert(mount.name.clone(), spec);
        }
        Ok(found)
    }
}
