//! Which of a pod's volumes its containers use, and where.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use krablet_pod::api::{PodSpec, VolumeDevice, VolumeMount};
use krablet_pod::containers::{all, ephemeral_containers};

use crate::error::SetUpError;

/// A volume that nobody uses is not set up.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Used<'a> {
    pub mounts: BTreeSet<&'a str>,
    pub devices: BTreeSet<&'a str>,
}

impl Used<'_> {
    pub fn has(&self, name: &str) -> bool {
        self.mounts.contains(name) || self.devices.contains(name)
    }
}

type Uses<'a> = (&'a [VolumeMount], &'a [VolumeDevice]);

/// What each container uses.
fn by_container(spec: &PodSpec) -> impl Iterator<Item = Uses<'_>> {
    let ordinary = all(spec).map(|c| {
        let c = c.container;
        (c.volume_mounts.as_deref(), c.volume_devices.as_deref())
    });
    let ephemeral = ephemeral_containers(spec)
        .iter()
        .map(|c| (c.volume_mounts.as_deref(), c.volume_devices.as_deref()));
    ordinary
        .chain(ephemeral)
        .map(|(m, d)| (m.unwrap_or_default(), d.unwrap_or_default()))
}

pub(crate) fn used(spec: &PodSpec) -> Used<'_> {
    let mut found = Used::default();
    for (mounts, devices) in by_container(spec) {
        found.mounts.extend(mounts.iter().map(|m| m.name.as_str()));
        found
            .devices
            .extend(devices.iter().map(|d| d.name.as_str()));
    }
    found
}

/// Directories that must be in a volume nobody can write to, because other volumes are mounted in it.
pub(crate) fn nested_mount_points(
    volume: &str,
    spec: &PodSpec,
) -> Result<BTreeSet<PathBuf>, SetUpError> {
    let mut found = BTreeSet::new();
    for (mounts, _) in by_container(spec) {
        let points: BTreeSet<PathBuf> = mounts.iter().map(|m| clean(&m.mount_path)).collect();
        for own in mounts.iter().filter(|m| m.name == volume) {
            let top = clean(&own.mount_path);
            if top.starts_with("..") {
                return Err(SetUpError::MountPoint(own.mount_path.clone()));
            }
            let mut inside: Vec<&Path> = Vec::new();
            let below = points.iter().filter_map(|p| p.strip_prefix(&top).ok());
            for point in below.filter(|p| !p.as_os_str().is_empty()) {
                // What is mounted in one of them is that one's own business.
                if !inside.iter().any(|outer| point.starts_with(outer)) {
                    inside.push(point);
                }
            }
            found.extend(inside.into_iter().map(Path::to_owned));
        }
    }
    Ok(found)
}

/// Without `.`, and without `..` as far as that goes.
pub(crate) fn clean(path: &str) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if clean.file_name().is_some() => {
                clean.pop();
            }
            Component::ParentDir if clean.has_root() => {}
            other => clean.push(other),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(mounts: &[(&str, &str)]) -> PodSpec {
        let mounts: Vec<_> = mounts
            .iter()
            .map(|(name, path)| serde_json::json!({"name": name, "mountPath": path}))
            .collect();
        serde_json::from_value(serde_json::json!({
            "containers": [{"name": "c", "volumeMounts": mounts,
                            "volumeDevices": [{"name": "disk", "devicePath": "/dev/x"}]}],
            "ephemeralContainers": [{"name": "e", "volumeMounts": [{"name": "late", "mountPath": "/l"}]}],
        }))
        .unwrap()
    }

    #[test]
    fn what_containers_use() {
        let spec = spec(&[("a", "/a"), ("b", "/b"), ("a", "/again")]);
        let used = used(&spec);
        assert_eq!(used.mounts, BTreeSet::from(["a", "b", "late"]));
        assert_eq!(used.devices, BTreeSet::from(["disk"]));
        assert!(used.has("disk") && !used.has("none"));
    }

    #[test]
    fn mount_points_inside_a_volume() {
        type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);
        let cases: [Case; 5] = [
            (&[("v", "/dir")], &[]),
            (&[("v", "/dir"), ("o", "/dir/nested")], &["nested"]),
            (
                &[
                    ("v", "/dir"),
                    ("o", "/dir/nested"),
                    ("p", "/dir/nested-vol"),
                    ("q", "/dir/nested/double"),
                    ("r", "/dir/nested2"),
                ],
                &["nested", "nested-vol", "nested2"],
            ),
            (&[("v", "/dir/"), ("o", "/dir/./a/../b/c")], &["b/c"]),
            (&[("v", "/dir/a"), ("o", "/dir"), ("p", "/dirt")], &[]),
        ];
        for (mounts, expected) in cases {
            let found = nested_mount_points("v", &spec(mounts)).unwrap();
            let found: Vec<_> = found.iter().map(|p| p.to_str().unwrap()).collect();
            assert_eq!(found, expected, "{mounts:?}");
        }
        assert!(nested_mount_points("v", &spec(&[("v", "../x")])).is_err());
    }
}
