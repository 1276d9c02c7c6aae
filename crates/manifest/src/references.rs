//! References to API objects, which a static pod may not have: it must start before there is an API server.

use krablet_pod::api::{Pod, PodSpec, Volume, VolumeProjection};

use crate::containers;
use crate::problem::{Path, list, text};

/// The kinds of objects a pod refers to, each with the field that does, in the order they are met.
#[must_use]
pub fn api_references(pod: &Pod) -> Vec<(&'static str, String)> {
    let mut found = Found(Vec::new());
    let Some(spec) = &pod.spec else {
        return found.0;
    };
    let path = Path::root("spec");
    if !text(&spec.service_account_name).is_empty() {
        found.add("serviceaccounts", &path.child("serviceAccountName"));
    } else if !text(&spec.service_account).is_empty() {
        found.add("serviceaccounts", &path.child("serviceAccount"));
    }
    for i in 0..list(&spec.image_pull_secrets).len() {
        found.add("secrets", &path.child("imagePullSecrets").index(i));
    }
    environment(&mut found, &path, spec);
    if !list(&spec.resource_claims).is_empty() {
        found.add("resourceclaims", &path.child("resourceClaims"));
    }
    for (i, volume) in list(&spec.volumes).iter().enumerate() {
        self::volume(&mut found, &path.child("volumes").index(i), volume);
    }
    found.0
}

struct Found(Vec<(&'static str, String)>);

impl Found {
    fn add(&mut self, resource: &'static str, path: &Path) {
        self.0.push((resource, path.to_string()));
    }
}

fn environment(found: &mut Found, path: &Path, spec: &PodSpec) {
    for (path, container) in containers::all(path, spec) {
        for (i, source) in list(&container.env_from).iter().enumerate() {
            let path = path.child("envFrom").index(i);
            if source.secret_ref.is_some() {
                found.add("secrets", &path.child("secretRef"));
            }
            if source.config_map_ref.is_some() {
                found.add("configmaps", &path.child("configMapRef"));
            }
        }
        for (i, variable) in list(&container.env).iter().enumerate() {
            let Some(source) = &variable.value_from else {
                continue;
            };
            let path = path.child("env").index(i).child("valueFrom");
            if source.secret_key_ref.is_some() {
                found.add("secrets", &path.child("secretKeyRef"));
            }
            if source.config_map_key_ref.is_some() {
                found.add("configmaps", &path.child("configMapKeyRef"));
            }
        }
    }
}

fn volume(found: &mut Found, path: &Path, volume: &Volume) {
    let whole = [
        ("configmaps", "configMap", volume.config_map.is_some()),
        ("secrets", "secret", volume.secret.is_some()),
        ("csidrivers", "csi", volume.csi.is_some()),
        ("endpoints", "glusterfs", volume.glusterfs.is_some()),
        (
            "persistentvolumeclaims",
            "persistentVolumeClaim",
            volume.persistent_volume_claim.is_some(),
        ),
        (
            "persistentvolumeclaims",
            "ephemeral",
            volume.ephemeral.is_some(),
        ),
        ("secrets", "azureFile", volume.azure_file.is_some()),
    ];
    for (resource, field, present) in whole {
        if present {
            found.add(resource, &path.child(field));
        }
    }
    let with_secret = [
        (
            "cephfs",
            volume
                .cephfs
                .as_ref()
                .is_some_and(|s| s.secret_ref.is_some()),
        ),
        (
            "cinder",
            volume
                .cinder
                .as_ref()
                .is_some_and(|s| s.secret_ref.is_some()),
        ),
        (
            "flexVolume",
            volume
                .flex_volume
                .as_ref()
                .is_some_and(|s| s.secret_ref.is_some()),
        ),
        (
            "rbd",
            volume.rbd.as_ref().is_some_and(|s| s.secret_ref.is_some()),
        ),
        ("scaleIO", volume.scale_io.is_some()),
        (
            "iscsi",
            volume
                .iscsi
                .as_ref()
                .is_some_and(|s| s.secret_ref.is_some()),
        ),
        (
            "storageos",
            volume
                .storageos
                .as_ref()
                .is_some_and(|s| s.secret_ref.is_some()),
        ),
    ];
    for (field, present) in with_secret {
        if present {
            found.add("secrets", &path.child(field).child("secretRef"));
        }
    }
    let sources = volume
        .projected
        .iter()
        .flat_map(|projected| list(&projected.sources));
    for (i, source) in sources.enumerate() {
        projection(
            found,
            &path.child("projected").child("sources").index(i),
            source,
        );
    }
}

fn projection(found: &mut Found, path: &Path, source: &VolumeProjection) {
    for (resource, field, present) in [
        ("configmaps", "configMap", source.config_map.is_some()),
        ("secrets", "secret", source.secret.is_some()),
        (
            "serviceaccounts",
            "serviceAccountToken",
            source.service_account_token.is_some(),
        ),
        (
            "clustertrustbundles",
            "clusterTrustBundle",
            source.cluster_trust_bundle.is_some(),
        ),
        (
            "podcertificates",
            "podCertificate",
            source.pod_certificate.is_some(),
        ),
    ] {
        if present {
            found.add(resource, &path.child(field));
        }
    }
}
