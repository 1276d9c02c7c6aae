//! What a container sees of its pod's volumes.

use std::path::PathBuf;

use krablet_cri::v1;
use krablet_pod::api::{Container, ImageVolumeSource, Pod, VolumeDevice, VolumeMount};
use krablet_pod::paths;

use crate::env::Envs;
use crate::expand::expand;

/// A volume that is ready on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeSource {
    pub name: String,
    /// What its directories are called: a persistent volume goes by its own name.
    pub spec_name: String,
    pub host_path: PathBuf,
    pub read_only: bool,
    /// The runtime may label it for SELinux.
    pub relabel: bool,
    /// It is a device, not a file system.
    pub block: bool,
    /// A group that the pod's processes have to be in.
    pub group: Option<i64>,
}

/// A mount whose host path may still have to be found below its volume.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlannedMount {
    pub mount: v1::Mount,
    pub sub_path: Option<SubPath>,
    /// The volume is an image, by this name in the pod's spec.
    pub image: Option<String>,
}

/// A part of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubPath {
    pub volume: String,
    pub top: PathBuf,
    pub relative: PathBuf,
    /// Where it is shown, relative to the pod's directory.
    pub point: PathBuf,
}

/// Everything of volumes that a container gets.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub mounts: Vec<PlannedMount>,
    pub devices: Vec<v1::Device>,
}

pub(crate) fn plan(
    pod: &Pod,
    container: &Container,
    volumes: &[VolumeSource],
    envs: &Envs,
    recursive_read_only: bool,
) -> Result<Plan, String> {
    let devices = container.volume_devices.iter().flatten();
    let devices = devices
        .map(|device| plan_device(container, device, volumes))
        .collect::<Result<_, _>>()?;
    let mounts = container.volume_mounts.iter().flatten().enumerate();
    let mounts = mounts
        .map(|(index, mount)| {
            let volume = volumes
                .iter()
                .find(|v| v.name == mount.name && !v.block)
                .ok_or_else(|| {
                    format!(
                        "cannot find volume {:?} to mount into container {:?}",
                        mount.name, container.name
                    )
                })?;
            let sub_path = sub_path(mount, envs)?;
            let mut planned = plan_one(mount, volume, recursive_read_only)?;
            match (image_of(pod, &mount.name), sub_path) {
                (Some(_), relative) => {
                    let relative = relative.unwrap_or_default();
                    planned.mount.host_path.clear();
                    planned.mount.image_sub_path = relative.to_string_lossy().into_owned();
                    planned.image = Some(mount.name.clone());
                }
                (None, relative) => {
                    planned.sub_path = relative.map(|relative| SubPath {
                        volume: mount.name.clone(),
                        top: volume.host_path.clone(),
                        relative,
                        point: paths::sub_path(&volume.spec_name, &container.name, index),
                    });
                }
            }
            Ok(planned)
        })
        .collect::<Result<_, String>>()?;
    Ok(Plan { mounts, devices })
}

/// The image that a volume of the pod is.
pub(crate) fn image_of<'a>(pod: &'a Pod, volume: &str) -> Option<&'a ImageVolumeSource> {
    let volumes = pod.spec.as_ref()?.volumes.as_ref()?;
    let volume = volumes.iter().find(|v| v.name == volume)?;
    volume.image.as_ref()
}

fn plan_device(
    container: &Container,
    device: &VolumeDevice,
    volumes: &[VolumeSource],
) -> Result<v1::Device, String> {
    let path = &device.device_path;
    if !path.starts_with('/') {
        return Err(format!(
            "error DevicePath `{path}` must be an absolute path"
        ));
    }
    let volume = volumes.iter().find(|v| v.name == device.name && v.block);
    let volume = volume.ok_or_else(|| {
        format!(
            "cannot find volume {:?} to pass into container {:?}",
            device.name, container.name
        )
    })?;
    Ok(v1::Device {
        container_path: path.clone(),
        host_path: volume.host_path.to_string_lossy().into_owned(),
        permissions: if volume.read_only { "r" } else { "mrw" }.to_owned(),
    })
}

fn plan_one(
    mount: &VolumeMount,
    volume: &VolumeSource,
    recursive_read_only: bool,
) -> Result<PlannedMount, String> {
    let container_path = match mount.mount_path.starts_with('/') {
        true => mount.mount_path.clone(),
        false => format!("/{}", mount.mount_path),
    };
    let planned = v1::Mount {
        container_path,
        host_path: volume.host_path.to_string_lossy().into_owned(),
        readonly: mount.read_only.unwrap_or(false) || volume.read_only,
        recursive_read_only: is_recursive_read_only(mount, recursive_read_only)?,
        propagation: propagation(mount)? as i32,
        selinux_relabel: volume.relabel,
        ..v1::Mount::default()
    };
    Ok(PlannedMount {
        mount: planned,
        sub_path: None,
        image: None,
    })
}

fn sub_path(mount: &VolumeMount, envs: &Envs) -> Result<Option<PathBuf>, String> {
    let set = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
    let text = match set(&mount.sub_path_expr) {
        Some(template) => {
            let mut missing = std::collections::BTreeSet::new();
            let text = expand(&template, |name| {
                let value = envs.text(name).filter(|v| !v.is_empty());
                if value.is_none() {
                    missing.insert(name.to_string());
                }
                value
            });
            if !missing.is_empty() {
                let names: Vec<_> = missing.into_iter().collect();
                return Err(format!("missing value for {}", names.join(", ")));
            }
            Some(text).filter(|t| !t.is_empty())
        }
        None => set(&mount.sub_path),
    };
    let Some(text) = text else {
        return Ok(None);
    };
    if text.starts_with('/') {
        return Err(format!(
            "error SubPath `{text}` must not be an absolute path"
        ));
    }
    if text.split('/').any(|part| part == "..") {
        return Err(format!(
            "unable to provision SubPath `{text}`: must not contain '..'"
        ));
    }
    Ok(Some(PathBuf::from(text)))
}

fn propagation(mount: &VolumeMount) -> Result<v1::MountPropagation, String> {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(v1::MountPropagation::PropagationPrivate),
        Some("HostToContainer") => Ok(v1::MountPropagation::PropagationHostToContainer),
        Some("Bidirectional") => Ok(v1::MountPropagation::PropagationBidirectional),
        Some(other) => Err(format!("invalid MountPropagation mode: {other:?}")),
    }
}

fn is_recursive_read_only(mount: &VolumeMount, supported: bool) -> Result<bool, String> {
    let failed = |why: String| Err(format!("failed to resolve recursive read-only mode: {why}"));
    let name = &mount.name;
    let mode = match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok(false),
        Some(mode) => mode,
    };
    if mount.read_only != Some(true) {
        return failed(format!(
            "volume {name:?} requested recursive read-only mode, but it is not read-only"
        ));
    }
    if let Some(other) = mount.mount_propagation.as_deref().filter(|p| *p != "None") {
        return failed(format!(
            "volume {name:?} requested recursive read-only mode, but it is not compatible with propagation {other:?}"
        ));
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => failed(format!(
            "volume {name:?} requested recursive read-only mode, but it is not supported by the runtime"
        )),
        other => failed(format!("unknown recursive read-only mode {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_pod::api::{PodSpec, Volume};
    use std::path::Path;

    fn mount() -> VolumeMount {
        VolumeMount {
            name: "data".into(),
            mount_path: "/data".into(),
            ..VolumeMount::default()
        }
    }

    fn pod() -> Pod {
        let volumes = serde_json::json!([
            {"name": "data", "emptyDir": {}},
            {"name": "art", "image": {"reference": "img:1"}},
        ]);
        let volumes: Vec<Volume> = serde_json::from_value(volumes).unwrap();
        Pod {
            spec: Some(PodSpec {
                volumes: Some(volumes),
                ..PodSpec::default()
            }),
            ..Pod::default()
        }
    }

    fn volumes() -> [VolumeSource; 3] {
        let of = |name: &str, block| VolumeSource {
            name: name.into(),
            spec_name: format!("{name}-spec"),
            host_path: format!("/vol/{name}").into(),
            block,
            ..VolumeSource::default()
        };
        [of("data", false), of("art", false), of("disk", true)]
    }

    fn all_planned(container: Container, rro: bool) -> Result<Plan, String> {
        let envs = Envs::from_iter([("A", "x")]);
        plan(&pod(), &container, &volumes(), &envs, rro)
    }

    fn planned(mount: VolumeMount, rro: bool) -> Result<PlannedMount, String> {
        let container = Container {
            name: "c".into(),
            volume_mounts: Some(vec![mount]),
            ..Container::default()
        };
        all_planned(container, rro).map(|mut plan| plan.mounts.remove(0))
    }

    #[test]
    fn plain_mounts() {
        let got = planned(mount(), false).unwrap();
        assert_eq!(
            (&*got.mount.host_path, &*got.mount.container_path),
            ("/vol/data", "/data")
        );
        assert!(!got.mount.readonly && got.sub_path.is_none());

        let got = planned(
            VolumeMount {
                mount_path: "rel".into(),
                read_only: Some(true),
                mount_propagation: Some("Bidirectional".into()),
                ..mount()
            },
            false,
        )
        .unwrap();
        assert_eq!(got.mount.container_path, "/rel");
        assert!(got.mount.readonly);
        assert_eq!(got.mount.propagation, 2);
    }

    #[test]
    fn what_cannot_be_mounted_says_why() {
        let cases = [
            (
                VolumeMount {
                    name: "none".into(),
                    ..mount()
                },
                "cannot find volume \"none\" to mount into container \"c\"",
            ),
            (
                VolumeMount {
                    sub_path: Some("a/../b".into()),
                    ..mount()
                },
                "unable to provision SubPath `a/../b`: must not contain '..'",
            ),
            (
                VolumeMount {
                    sub_path: Some("/a".into()),
                    ..mount()
                },
                "error SubPath `/a` must not be an absolute path",
            ),
            (
                VolumeMount {
                    sub_path_expr: Some("$(B)/$(A)/$(C)".into()),
                    ..mount()
                },
                "missing value for B, C",
            ),
            (
                VolumeMount {
                    mount_propagation: Some("Odd".into()),
                    ..mount()
                },
                "invalid MountPropagation mode: \"Odd\"",
            ),
            (
                VolumeMount {
                    recursive_read_only: Some("Enabled".into()),
                    read_only: Some(true),
                    ..mount()
                },
                "failed to resolve recursive read-only mode: volume \"data\" requested recursive read-only mode, but it is not supported by the runtime",
            ),
        ];
        for (mount, message) in cases {
            assert_eq!(planned(mount, false), Err(message.into()));
        }
    }

    #[test]
    fn sub_paths_are_expanded() {
        let got = planned(
            VolumeMount {
                sub_path_expr: Some("d/$(A)".into()),
                recursive_read_only: Some("IfPossible".into()),
                read_only: Some(true),
                ..mount()
            },
            true,
        )
        .unwrap();
        assert!(got.mount.recursive_read_only);
        let sub = got.sub_path.unwrap();
        assert_eq!(sub.relative, Path::new("d/x"));
        assert_eq!(sub.point, Path::new("volume-subpaths/data-spec/c/0"));
    }

    #[test]
    fn an_image_is_named_and_not_looked_for_on_disk() {
        let got = planned(
            VolumeMount {
                name: "art".into(),
                sub_path: Some("models".into()),
                ..mount()
            },
            false,
        )
        .unwrap();
        assert_eq!(got.image.as_deref(), Some("art"));
        assert_eq!(
            (&*got.mount.host_path, &*got.mount.image_sub_path),
            ("", "models")
        );
        assert_eq!(got.sub_path, None);
    }

    #[test]
    fn devices() {
        let with = |name: &str, path: &str| {
            let device = VolumeDevice {
                name: name.into(),
                device_path: path.into(),
            };
            let container = Container {
                name: "c".into(),
                volume_devices: Some(vec![device]),
                ..Container::default()
            };
            all_planned(container, false).map(|mut plan| plan.devices.remove(0))
        };
        let got = with("disk", "/dev/x").unwrap();
        assert_eq!(
            (&*got.host_path, &*got.container_path, &*got.permissions),
            ("/vol/disk", "/dev/x", "mrw")
        );
        assert_eq!(
            with("disk", "dev/x").unwrap_err(),
            "error DevicePath `dev/x` must be an absolute path"
        );
        assert_eq!(
            with("data", "/dev/x").unwrap_err(),
            "cannot find volume \"data\" to pass into container \"c\""
        );
        let as_mount = VolumeMount {
            name: "disk".into(),
            ..mount()
        };
        assert!(planned(as_mount, false).is_err());
    }
}
