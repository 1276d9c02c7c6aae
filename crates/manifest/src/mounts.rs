//! Volumes in a container: mounts and block devices.

use std::collections::BTreeSet;

use krablet_pod::api::{Container, VolumeMount};

use crate::problem::{Path, Report, list, on, text};
use crate::volumes::{Known, descending};

pub(crate) fn check(report: &mut Report, path: &Path, container: &Container, known: &Known<'_>) {
    mounts(report, &path.child("volumeMounts"), container, known);
    devices(report, &path.child("volumeDevices"), container, known);
}

fn mounts(report: &mut Report, path: &Path, container: &Container, known: &Known<'_>) {
    let devices = list(&container.volume_devices);
    let device_names: BTreeSet<&str> = devices.iter().map(|d| d.name.as_str()).collect();
    let device_paths: BTreeSet<&str> = devices.iter().map(|d| d.device_path.as_str()).collect();
    let mut points = BTreeSet::new();
    for (i, mount) in list(&container.volume_mounts).iter().enumerate() {
        let path = path.index(i);
        if mount.name.is_empty() {
            report.required(&path.child("name"), "");
        }
        if !known.contains_key(mount.name.as_str()) {
            report.not_found(&path.child("name"), &mount.name);
        }
        if mount.mount_path.is_empty() {
            report.required(&path.child("mountPath"), "");
        }
        if !points.insert(mount.mount_path.as_str()) {
            report.invalid(
                &path.child("mountPath"),
                &mount.mount_path,
                "must be unique",
            );
        }
        if device_names.contains(mount.name.as_str()) {
            report.invalid(
                &path.child("name"),
                &mount.name,
                "must not already exist in volumeDevices",
            );
        }
        if device_paths.contains(mount.mount_path.as_str()) {
            let detail = "must not already exist as a path in volumeDevices";
            report.invalid(&path.child("mountPath"), &mount.mount_path, detail);
        }
        sub_path(report, &path, mount);
        propagation(report, &path, mount, container);
        recursive_read_only(report, &path.child("recursiveReadOnly"), mount);
    }
}

fn sub_path(report: &mut Report, path: &Path, mount: &VolumeMount) {
    let fixed = text(&mount.sub_path);
    let expression = text(&mount.sub_path_expr);
    if !fixed.is_empty() {
        descending(report, &path.child("subPath"), fixed);
    }
    if !expression.is_empty() {
        let path = path.child("subPathExpr");
        if !fixed.is_empty() {
            report.invalid(
                &path,
                expression,
                "subPathExpr and subPath are mutually exclusive",
            );
        }
        descending(report, &path, expression);
    }
}

fn propagation(report: &mut Report, path: &Path, mount: &VolumeMount, container: &Container) {
    let Some(mode) = &mount.mount_propagation else {
        return;
    };
    let path = path.child("mountPropagation");
    let modes = ["Bidirectional", "HostToContainer", "None"];
    if !modes.contains(&mode.as_str()) {
        report.unsupported(&path, mode, &modes);
    }
    let privileged = container
        .security_context
        .as_ref()
        .is_some_and(|context| on(context.privileged));
    if mode == "Bidirectional" && !privileged {
        report.forbidden(
            &path,
            "Bidirectional mount propagation is available only to privileged containers",
        );
    }
}

fn recursive_read_only(report: &mut Report, path: &Path, mount: &VolumeMount) {
    match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !on(mount.read_only) {
                report.forbidden(path, "may only be specified when readOnly is true");
            }
            if mount
                .mount_propagation
                .as_deref()
                .is_some_and(|mode| mode != "None")
            {
                report.forbidden(
                    path,
                    "may only be specified when mountPropagation is None or not specified",
                );
            }
        }
        Some(other) => report.unsupported(path, other, &["Disabled", "Enabled", "IfPossible"]),
    }
}

fn devices(report: &mut Report, path: &Path, container: &Container, known: &Known<'_>) {
    let mounts = list(&container.volume_mounts);
    let mount_names: BTreeSet<&str> = mounts.iter().map(|m| m.name.as_str()).collect();
    let mount_paths: BTreeSet<&str> = mounts.iter().map(|m| m.mount_path.as_str()).collect();
    let (mut names_seen, mut paths_seen) = (BTreeSet::new(), BTreeSet::new());
    for (i, device) in list(&container.volume_devices).iter().enumerate() {
        let path = path.index(i);
        let (name, place) = (device.name.as_str(), device.device_path.as_str());
        if name.is_empty() {
            report.required(&path.child("name"), "");
        }
        match known.get(name) {
            None => report.not_found(&path.child("name"), name),
            Some(volume) if volume.persistent_volume_claim.is_none() && volume.ephemeral.is_none() => report.invalid(
                &path.child("name"),
                name,
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
            ),
            Some(_) => {}
        }
        if place.is_empty() {
            report.required(&path.child("devicePath"), "");
        }
        if place.split('/').any(|part| part == "..") {
            report.invalid(
                &path.child("devicePath"),
                place,
                "can not contain backsteps ('..')",
            );
        }
        if !names_seen.insert(name) {
            report.invalid(&path.child("name"), name, "must be unique");
        }
        if !paths_seen.insert(place) {
            report.invalid(&path.child("devicePath"), place, "must be unique");
        }
        if mount_names.contains(name) {
            report.invalid(
                &path.child("name"),
                name,
                "must not already exist in volumeMounts",
            );
        }
        if mount_paths.contains(place) {
            let detail = "must not already exist as a path in volumeMounts";
            report.invalid(&path.child("devicePath"), place, detail);
        }
    }
}
