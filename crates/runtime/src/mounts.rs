//! What a container sees of its pod's volumes.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use krablet_cri::v1;
use krablet_linux::{EntryKind, Files};
use krablet_pod::api::{Container, Pod, VolumeMount};

use crate::env::{Envs, lookup};
use crate::expand::expand;

/// A volume that is ready on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSource {
    pub name: String,
    pub host_path: PathBuf,
    pub read_only: bool,
}

/// A mount whose host path may still have to be found below its volume.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlannedMount {
    pub mount: v1::Mount,
    pub sub_path: Option<SubPath>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubPath {
    pub volume: String,
    pub root: PathBuf,
    pub relative: PathBuf,
    /// Mode of a directory that has to be made.
    pub mode: u32,
}

pub(crate) fn plan(
    pod: &Pod,
    container: &Container,
    volumes: &[VolumeSource],
    envs: &Envs,
    recursive_read_only: bool,
) -> Result<Vec<PlannedMount>, String> {
    if let Some(device) = container.volume_devices.iter().flatten().next() {
        return Err(format!(
            "cannot find volume {:?} to pass into container {:?}",
            device.name, container.name
        ));
    }
    let mounts = container.volume_mounts.iter().flatten();
    mounts
        .map(|mount| {
            let volume = volumes
                .iter()
                .find(|v| v.name == mount.name)
                .ok_or_else(|| {
                    format!(
                        "cannot find volume {:?} to mount into container {:?}",
                        mount.name, container.name
                    )
                })?;
            plan_one(pod, mount, volume, envs, recursive_read_only)
        })
        .collect()
}

fn plan_one(
    pod: &Pod,
    mount: &VolumeMount,
    volume: &VolumeSource,
    envs: &Envs,
    recursive_read_only: bool,
) -> Result<PlannedMount, String> {
    let sub_path = sub_path(mount, envs)?.map(|relative| SubPath {
        volume: mount.name.clone(),
        root: volume.host_path.clone(),
        relative,
        mode: sub_path_mode(pod, &mount.name),
    });
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
        ..v1::Mount::default()
    };
    Ok(PlannedMount {
        mount: planned,
        sub_path,
    })
}

fn sub_path(mount: &VolumeMount, envs: &Envs) -> Result<Option<PathBuf>, String> {
    let set = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
    let text = match set(&mount.sub_path_expr) {
        Some(template) => {
            let mut missing = std::collections::BTreeSet::new();
            let text = expand(&template, |name| {
                let value = lookup(envs, name).filter(|v| !v.is_empty());
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

/// A directory made for a subPath is as open as the volume around it: anyone's in an emptyDir.
fn sub_path_mode(pod: &Pod, volume: &str) -> u32 {
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_ref());
    let is_empty_dir = volumes
        .into_iter()
        .flatten()
        .any(|v| v.name == volume && v.empty_dir.is_some());
    if is_empty_dir { 0o777 } else { 0o755 }
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

/// As many symlinks as a kernel would follow.
const MAX_LINKS: usize = 40;

/// Finds a subPath on the node, making its directory where nothing is, and never leaving the
/// volume by a symlink.
pub(crate) async fn resolve(files: &dyn Files, sub: &SubPath) -> io::Result<PathBuf> {
    let outside = || {
        io::Error::new(
            io::ErrorKind::PermissionDenied,
            "subPath leads outside its volume",
        )
    };
    let mut done: Vec<OsString> = Vec::new();
    let mut todo: VecDeque<OsString> = parts(&sub.relative);
    let mut links = 0;
    while let Some(part) = todo.pop_front() {
        if part == ".." {
            done.pop().ok_or_else(outside)?;
            continue;
        }
        let mut path = sub.root.join(done.iter().collect::<PathBuf>());
        path.push(&part);
        match files.lstat(&path).await {
            Ok(entry) if entry.kind == EntryKind::Symlink => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(outside());
                }
                let target = files.read_link(&path).await?;
                let target = match target.strip_prefix(&sub.root) {
                    Ok(inside) => {
                        done.clear();
                        inside
                    }
                    Err(_) if target.is_absolute() => return Err(outside()),
                    Err(_) => &target,
                };
                for part in parts(target).into_iter().rev() {
                    todo.push_front(part);
                }
            }
            Ok(_) => done.push(part),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if todo.iter().any(|p| p == "..") {
                    return Err(outside());
                }
                path.extend(todo);
                files.create_dir_all(&path, sub.mode).await?;
                return Ok(path);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(sub.root.join(done.iter().collect::<PathBuf>()))
}

/// Names and `..` of a path; nothing else of it matters here.
fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|c| match c {
            Component::Normal(name) => Some(name.to_os_string()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_linux::HostFiles;
    use krablet_pod::api::{EmptyDirVolumeSource, PodSpec, Volume};

    fn mount() -> VolumeMount {
        VolumeMount {
            name: "data".into(),
            mount_path: "/data".into(),
            ..VolumeMount::default()
        }
    }

    fn planned(mount: VolumeMount, rro: bool) -> Result<PlannedMount, String> {
        let container = Container {
            name: "c".into(),
            volume_mounts: Some(vec![mount]),
            ..Container::default()
        };
        let pod = Pod {
            spec: Some(PodSpec {
                volumes: Some(vec![Volume {
                    name: "data".into(),
                    empty_dir: Some(EmptyDirVolumeSource::default()),
                    ..Volume::default()
                }]),
                ..PodSpec::default()
            }),
            ..Pod::default()
        };
        let volumes = [VolumeSource {
            name: "data".into(),
            host_path: "/vol".into(),
            read_only: false,
        }];
        let envs = vec![("A".to_string(), "x".to_string())];
        plan(&pod, &container, &volumes, &envs, rro).map(|mut m| m.remove(0))
    }

    #[test]
    fn plain_mounts() {
        let got = planned(mount(), false).unwrap();
        assert_eq!(
            (&*got.mount.host_path, &*got.mount.container_path),
            ("/vol", "/data")
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
        assert_eq!(sub.mode, 0o777);
    }

    #[tokio::test]
    async fn a_sub_path_never_leaves_its_volume() {
        let base = tempfile::tempdir().unwrap();
        let root = base.path().join("vol");
        std::fs::create_dir_all(root.join("real")).unwrap();
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(target, root.join(name)).unwrap();
        };
        link("real", "inside");
        link("../..", "outside");
        link("/etc", "absolute");
        link("loop", "loop");
        let find = |relative: &str| {
            let sub = SubPath {
                volume: "data".into(),
                root: root.clone(),
                relative: relative.into(),
                mode: 0o755,
            };
            async move { resolve(&HostFiles, &sub).await.ok() }
        };
        assert_eq!(find("real").await, Some(root.join("real")));
        assert_eq!(find("inside/new").await, Some(root.join("real/new")));
        assert!(root.join("real/new").is_dir());
        for bad in ["outside", "absolute/x", "loop"] {
            assert_eq!(find(bad).await, None, "{bad}");
        }
    }
}
