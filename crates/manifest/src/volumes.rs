//! Volumes of a pod: names and sources.

use std::collections::{BTreeMap, BTreeSet};

use krablet_pod::api::{
    DownwardAPIVolumeFile, EmptyDirVolumeSource, HostPathVolumeSource, KeyToPath,
    ProjectedVolumeSource, Volume,
};

use crate::problem::{Path, Report, list, text};
use crate::{disks, env, names, resources};

const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];
pub(crate) const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const MODE_RULE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// The volumes containers may mount, by name; of two with one name the first.
pub(crate) type Known<'v> = BTreeMap<&'v str, &'v Volume>;

pub(crate) fn volumes<'v>(report: &mut Report, path: &Path, volumes: &'v [Volume]) -> Known<'v> {
    let mut known = Known::new();
    let mut names_seen = BTreeSet::new();
    for (i, volume) in volumes.iter().enumerate() {
        let path = path.index(i);
        source(report, &path, volume);
        match volume.name.as_str() {
            "" => report.required(&path.child("name"), ""),
            name => report.invalid_each(&path.child("name"), name, names::dns_label(name)),
        }
        if !names_seen.insert(volume.name.as_str()) {
            report.duplicate(&path.child("name"), &volume.name);
        }
        known.entry(volume.name.as_str()).or_insert(volume);
    }
    known
}

/// The kinds of source a volume names, by field. A volume must have exactly one.
pub(crate) fn sources(volume: &Volume) -> Vec<&'static str> {
    [
        ("emptyDir", volume.empty_dir.is_some()),
        ("hostPath", volume.host_path.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        (
            "awsElasticBlockStore",
            volume.aws_elastic_block_store.is_some(),
        ),
        ("secret", volume.secret.is_some()),
        ("nfs", volume.nfs.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("flocker", volume.flocker.is_some()),
        (
            "persistentVolumeClaim",
            volume.persistent_volume_claim.is_some(),
        ),
        ("rbd", volume.rbd.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
        (
            "photonPersistentDisk",
            volume.photon_persistent_disk.is_some(),
        ),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("projected", volume.projected.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("csi", volume.csi.is_some()),
        ("ephemeral", volume.ephemeral.is_some()),
        ("image", volume.image.is_some()),
    ]
    .into_iter()
    .filter_map(|(field, present)| present.then_some(field))
    .collect()
}

fn source(report: &mut Report, path: &Path, volume: &Volume) {
    match sources(volume).split_first() {
        None => report.required(path, "must specify a volume type"),
        Some((_, others)) => {
            for field in others {
                report.forbidden(
                    &path.child(field),
                    "may not specify more than 1 volume type",
                );
            }
        }
    }
    if let Some(source) = &volume.empty_dir {
        empty_dir(report, &path.child("emptyDir"), source);
    }
    if let Some(source) = &volume.host_path {
        host_path(report, &path.child("hostPath"), source);
    }
    if let Some(source) = &volume.projected {
        projected(report, &path.child("projected"), source);
    }
    if let Some(source) = &volume.downward_api {
        let path = path.child("downwardAPI");
        mode(report, &path.child("defaultMode"), source.default_mode);
        downward_files(report, &path.child("items"), list(&source.items));
    }
    if let Some(source) = &volume.image {
        let path = path.child("image");
        if text(&source.reference).is_empty() {
            report.required(&path.child("reference"), "");
        }
        report.one_of(
            &path.child("pullPolicy"),
            text(&source.pull_policy),
            &PULL_POLICIES,
        );
    }
    object_source(report, path, volume);
    network_source(report, path, volume);
}

/// Sources that are API objects. No static pod may have them, but a pod of the API server may.
fn object_source(report: &mut Report, path: &Path, volume: &Volume) {
    if let Some(source) = &volume.secret {
        let path = path.child("secret");
        if text(&source.secret_name).is_empty() {
            report.required(&path.child("secretName"), "");
        }
        mode(report, &path.child("defaultMode"), source.default_mode);
        keys(report, &path.child("items"), list(&source.items));
    }
    if let Some(source) = &volume.config_map {
        let path = path.child("configMap");
        need(report, &path, &[("name", &source.name)]);
        mode(report, &path.child("defaultMode"), source.default_mode);
        keys(report, &path.child("items"), list(&source.items));
    }
    if let Some(source) = &volume.persistent_volume_claim {
        need(
            report,
            &path.child("persistentVolumeClaim"),
            &[("claimName", &source.claim_name)],
        );
    }
    if let Some(source) = &volume.csi {
        need(report, &path.child("csi"), &[("driver", &source.driver)]);
    }
}

fn network_source(report: &mut Report, path: &Path, volume: &Volume) {
    if let Some(source) = &volume.nfs {
        let path = path.child("nfs");
        need(
            report,
            &path,
            &[("server", &source.server), ("path", &source.path)],
        );
        if !source.path.is_empty() && !source.path.starts_with('/') {
            report.invalid(
                &path.child("path"),
                &source.path,
                "must be an absolute path",
            );
        }
    }
    if let Some(source) = &volume.iscsi {
        disks::iscsi(report, &path.child("iscsi"), source);
    }
    if let Some(source) = &volume.fc {
        disks::fibre_channel(report, &path.child("fc"), source);
    }
    if let Some(source) = &volume.git_repo {
        let path = path.child("gitRepo");
        need(report, &path, &[("repository", &source.repository)]);
        descending(report, &path.child("directory"), text(&source.directory));
    }
}

fn need(report: &mut Report, path: &Path, fields: &[(&str, &String)]) {
    for (field, value) in fields {
        if value.is_empty() {
            report.required(&path.child(field), "");
        }
    }
}

/// The medium is told here although the API server lets any word pass: the volume could never be set up.
fn empty_dir(report: &mut Report, path: &Path, source: &EmptyDirVolumeSource) {
    let medium = text(&source.medium);
    let page = medium.strip_prefix("HugePages-");
    let known = matches!(medium, "" | "Memory" | "HugePages")
        || page.is_some_and(|size| size.parse::<krablet_pod::Quantity>().is_ok());
    if !known {
        let media = ["", "HugePages", "HugePages-<size>", "Memory"];
        report.unsupported(&path.child("medium"), medium, &media);
    }
    if let Some(limit) = &source.size_limit {
        let path = path.child("sizeLimit");
        let amount = resources::quantity(report, &path, limit);
        if amount.is_some_and(|amount| amount.is_negative()) {
            report.forbidden(&path, "SizeLimit field must be a valid resource quantity");
        }
    }
}

fn host_path(report: &mut Report, path: &Path, source: &HostPathVolumeSource) {
    if source.path.is_empty() {
        return report.required(&path.child("path"), "");
    }
    no_backsteps(report, &path.child("path"), &source.path);
    let kind = text(&source.type_);
    if !HOST_PATH_TYPES.contains(&kind) {
        report.unsupported(&path.child("type"), kind, &HOST_PATH_TYPES);
    }
}

fn projected(report: &mut Report, path: &Path, volume: &ProjectedVolumeSource) {
    mode(report, &path.child("defaultMode"), volume.default_mode);
    let mut paths = BTreeSet::new();
    for (i, source) in list(&volume.sources).iter().enumerate() {
        let path = path.child("sources").index(i);
        let mut found = 0;
        let mut files: Vec<&str> = Vec::new();
        if let Some(secret) = &source.secret {
            found += 1;
            need(report, &path.child("secret"), &[("name", &secret.name)]);
            keys(
                report,
                &path.child("secret").child("items"),
                list(&secret.items),
            );
            files.extend(list(&secret.items).iter().map(|item| item.path.as_str()));
        }
        if let Some(map) = &source.config_map {
            found += 1;
            need(report, &path.child("configMap"), &[("name", &map.name)]);
            keys(
                report,
                &path.child("configMap").child("items"),
                list(&map.items),
            );
            files.extend(list(&map.items).iter().map(|item| item.path.as_str()));
        }
        if let Some(downward) = &source.downward_api {
            found += 1;
            downward_files(
                report,
                &path.child("downwardAPI").child("items"),
                list(&downward.items),
            );
            files.extend(list(&downward.items).iter().map(|item| item.path.as_str()));
        }
        if let Some(token) = &source.service_account_token {
            found += 1;
            let path = path.child("serviceAccountToken");
            need(report, &path, &[("path", &token.path)]);
            files.push(&token.path);
        }
        found += usize::from(source.cluster_trust_bundle.is_some());
        found += usize::from(source.pod_certificate.is_some());
        for file in files.into_iter().filter(|file| !file.is_empty()) {
            if !paths.insert(file) {
                report.invalid(&path, file, "conflicting duplicate paths");
            }
        }
        if found == 0 {
            // The API server lets it pass and the node refuses it.
            report.required(&path, "must specify a projection source");
        }
        if found > 1 {
            report.forbidden(&path, "may not specify more than 1 volume type per source");
        }
    }
}

fn downward_files(report: &mut Report, path: &Path, files: &[DownwardAPIVolumeFile]) {
    for (i, file) in files.iter().enumerate() {
        let path = path.index(i);
        if file.path.is_empty() {
            report.required(&path.child("path"), "");
        }
        not_reserved(report, &path.child("path"), &file.path);
        match (&file.field_ref, &file.resource_field_ref) {
            (Some(_), Some(_)) => report.invalid(
                &path,
                "resource",
                "fieldRef and resourceFieldRef can not be specified simultaneously",
            ),
            (Some(field), None) => {
                env::field_ref(report, &path.child("fieldRef"), field, &env::VOLUME_FIELDS)
            }
            (None, Some(field)) => {
                env::resource_ref(report, &path.child("resourceFieldRef"), field, true)
            }
            (None, None) => {
                report.required(&path, "one of fieldRef and resourceFieldRef is required")
            }
        }
        mode(report, &path.child("mode"), file.mode);
    }
}

fn keys(report: &mut Report, path: &Path, items: &[KeyToPath]) {
    for (i, item) in items.iter().enumerate() {
        let path = path.index(i);
        need(report, &path, &[("key", &item.key), ("path", &item.path)]);
        not_reserved(report, &path.child("path"), &item.path);
        mode(report, &path.child("mode"), item.mode);
    }
}

fn mode(report: &mut Report, path: &Path, mode: Option<i32>) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        report.invalid(path, &mode, MODE_RULE);
    }
}

pub(crate) fn no_backsteps(report: &mut Report, path: &Path, file: &str) {
    if file.split('/').any(|part| part == "..") {
        report.invalid(path, file, "must not contain '..'");
    }
}

/// A path that stays below where it begins.
pub(crate) fn descending(report: &mut Report, path: &Path, file: &str) {
    if file.starts_with('/') {
        report.invalid(path, file, "must be a relative path");
    }
    no_backsteps(report, path, file);
}

/// Names that begin with `..` belong to the atomic writer of these volumes.
fn not_reserved(report: &mut Report, path: &Path, file: &str) {
    descending(report, path, file);
    if file.starts_with("..") && !file.starts_with("../") && file != ".." {
        report.invalid(path, file, "must not start with '..'");
    }
}
