//! Sandboxes and containers that were started or could not be, as metrics tell them.

use krablet_cri::v1;
use krablet_metrics::{ImageVolumeMetrics, RuntimeMetrics};
use krablet_pod::api::Pod;
use krablet_pod::containers::ContainerKind;

/// What runtimes say when an image cannot be mounted into a container.
const IMAGE_VOLUME_MOUNT_FAILED: &str = "ImageVolumeMountFailed";

pub(crate) fn sandbox_begun(metrics: &RuntimeMetrics, pod: &Pod) {
    metrics.started_pods.add(1);
    metrics.started_userns_pods.add(own_users(pod));
}

pub(crate) fn sandbox_failed(metrics: &RuntimeMetrics, pod: &Pod) {
    metrics.started_pods_errors.add(1);
    metrics.started_userns_pods_errors.add(own_users(pod));
}

/// 1 for a pod in a user namespace of its own.
fn own_users(pod: &Pod) -> u64 {
    let host_users = pod.spec.as_ref().and_then(|s| s.host_users);
    u64::from(host_users == Some(false))
}

/// How many mounts of images a container has.
pub(crate) fn image_mounts(config: &v1::ContainerConfig) -> u64 {
    let images = config.mounts.iter().filter(|m| m.image.is_some());
    images.count() as u64
}

/// A container with so many of them was created, or could not be, and why. What else the runtime may have had against
/// it says nothing of its images.
pub(crate) fn container_created(metrics: &ImageVolumeMetrics, mounts: u64, refused: Option<&str>) {
    match refused {
        None => metrics.mounted.add(mounts),
        Some(why) if why.contains(IMAGE_VOLUME_MOUNT_FAILED) => metrics.errors.add(mounts),
        Some(_) => {}
    }
}

/// What is known of an image that a container needs; nothing if it could not be found out, or nobody asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ensured {
    pub(crate) present: Option<bool>,
    pub(crate) pull_required: Option<bool>,
}

pub(crate) fn image_ensured(metrics: &RuntimeMetrics, policy: &str, ensured: Ensured) {
    let word = |known: Option<bool>| match known {
        Some(true) => "true",
        Some(false) => "false",
        None => "unknown",
    };
    let labels = [word(ensured.present), policy, word(ensured.pull_required)];
    metrics.ensured_images.add(&labels, 1);
}

pub(crate) fn container_started(metrics: &RuntimeMetrics, kind: ContainerKind) {
    metrics.started_containers.add(&[container_type(kind)], 1);
}

pub(crate) fn container_failed(metrics: &RuntimeMetrics, kind: ContainerKind, code: &str) {
    metrics
        .started_containers_errors
        .add(&[code, container_type(kind)], 1);
}

fn container_type(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Init => "init_container",
        ContainerKind::Regular => "container",
        ContainerKind::Ephemeral => "ephemeral_container",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_containers_need() {
        let metrics = RuntimeMetrics::default();
        let cases = [
            ("always", None, Some(true), "unknown always true"),
            (
                "ifnotpresent",
                Some(false),
                Some(true),
                "false ifnotpresent true",
            ),
            (
                "ifnotpresent",
                Some(true),
                Some(false),
                "true ifnotpresent false",
            ),
            ("never", Some(false), None, "false never unknown"),
        ];
        for (policy, present, pull_required, _) in cases {
            let ensured = Ensured {
                present,
                pull_required,
            };
            image_ensured(&metrics, policy, ensured);
        }
        let told: Vec<String> = metrics
            .ensured_images
            .get()
            .into_iter()
            .map(|(labels, count)| format!("{} {count}", labels.join(" ")))
            .collect();
        let mut expected = cases.map(|(_, _, _, labels)| format!("{labels} 1"));
        expected.sort();
        assert_eq!(told, expected);
    }
    use krablet_pod::api::PodSpec;

    #[test]
    fn image_volumes() {
        let mount = |image: bool| v1::Mount {
            image: image.then(v1::ImageSpec::default),
            ..v1::Mount::default()
        };
        let config = v1::ContainerConfig {
            mounts: vec![mount(true), mount(false), mount(true)],
            ..v1::ContainerConfig::default()
        };
        let mounts = image_mounts(&config);
        for (refused, expected) in [
            (None, (2, 0)),
            (Some("ImageVolumeMountFailed: no layers"), (0, 2)),
            (Some("no such runtime"), (0, 0)),
        ] {
            let metrics = ImageVolumeMetrics::default();
            container_created(&metrics, mounts, refused);
            let counted = (metrics.mounted.get(), metrics.errors.get());
            assert_eq!(counted, expected, "{refused:?}");
        }
    }

    #[test]
    fn pods_with_users_of_their_own() {
        for (host_users, expected) in [(None, 0), (Some(true), 0), (Some(false), 1)] {
            let metrics = RuntimeMetrics::default();
            let pod = Pod {
                spec: Some(PodSpec {
                    host_users,
                    ..PodSpec::default()
                }),
                ..Pod::default()
            };
            sandbox_begun(&metrics, &pod);
            sandbox_failed(&metrics, &pod);
            assert_eq!(metrics.started_pods.get(), 1);
            assert_eq!(metrics.started_pods_errors.get(), 1);
            assert_eq!(metrics.started_userns_pods.get(), expected);
            assert_eq!(metrics.started_userns_pods_errors.get(), expected);
        }
    }
}
