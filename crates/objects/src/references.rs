//! What a pod refers to. Pure.

use std::collections::{BTreeMap, BTreeSet};

use krablet_pod::api::{EnvFromSource, EnvVar, Pod, PodSpec, ProjectedVolumeSource, Volume};
use krablet_pod::containers;

use crate::{Kind, ObjectKey};

/// The configMaps and secrets in a pod's environments, volumes and pull secrets.
pub fn references(pod: &Pod) -> BTreeSet<ObjectKey> {
    uses(pod).into_keys().collect()
}

/// For how long a pod needs an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Use {
    /// At the start of a container or the pull of an image.
    Once,
    /// A volume follows the object as long as the pod runs.
    Lasting,
}

pub(crate) type Uses = BTreeMap<ObjectKey, Use>;

/// The same, with what they are for.
pub(crate) fn uses(pod: &Pod) -> Uses {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut found = Found {
        namespace,
        purpose: Use::Once,
        uses: Uses::new(),
    };
    if let Some(spec) = &pod.spec {
        found.in_spec(spec);
    }
    found.uses
}

struct Found<'a> {
    namespace: &'a str,
    /// Of whatever is found next.
    purpose: Use,
    uses: Uses,
}

impl Found<'_> {
    fn config_map(&mut self, name: &str) {
        self.add(Kind::ConfigMap, name);
    }

    fn secret(&mut self, name: &str) {
        self.add(Kind::Secret, name);
    }

    fn add(&mut self, kind: Kind, name: &str) {
        // An empty name refers to nothing; the API allows it in pull secrets.
        if !name.is_empty() {
            let key = ObjectKey::new(kind, self.namespace, name);
            let purpose = self.uses.entry(key).or_insert(self.purpose);
            *purpose = self.purpose.max(*purpose);
        }
    }

    fn in_spec(&mut self, spec: &PodSpec) {
        for pull in spec.image_pull_secrets.iter().flatten() {
            self.secret(&pull.name);
        }
        for c in containers::all(spec) {
            self.in_env(&c.container.env, &c.container.env_from);
        }
        for e in containers::ephemeral_containers(spec) {
            self.in_env(&e.env, &e.env_from);
        }
        self.purpose = Use::Lasting;
        for volume in spec.volumes.iter().flatten() {
            self.in_volume(volume);
        }
    }

    fn in_env(&mut self, env: &Option<Vec<EnvVar>>, env_from: &Option<Vec<EnvFromSource>>) {
        for from in env_from.iter().flatten() {
            if let Some(r) = &from.config_map_ref {
                self.config_map(&r.name);
            }
            if let Some(r) = &from.secret_ref {
                self.secret(&r.name);
            }
        }
        for source in env.iter().flatten().filter_map(|v| v.value_from.as_ref()) {
            if let Some(r) = &source.config_map_key_ref {
                self.config_map(&r.name);
            }
            if let Some(r) = &source.secret_key_ref {
                self.secret(&r.name);
            }
        }
    }

    fn in_volume(&mut self, volume: &Volume) {
        if let Some(v) = &volume.config_map {
            self.config_map(&v.name);
        }
        if let Some(name) = volume.secret.as_ref().and_then(|v| v.secret_name.as_ref()) {
            self.secret(name);
        }
        if let Some(projected) = &volume.projected {
            self.in_projection(projected);
        }
        self.in_driver(volume);
    }

    fn in_projection(&mut self, projected: &ProjectedVolumeSource) {
        for source in projected.sources.iter().flatten() {
            if let Some(r) = &source.config_map {
                self.config_map(&r.name);
            }
            if let Some(r) = &source.secret {
                self.secret(&r.name);
            }
        }
    }

    /// Secrets that a volume's driver is handed.
    fn in_driver(&mut self, volume: &Volume) {
        let local = [
            volume.cephfs.as_ref().and_then(|v| v.secret_ref.as_ref()),
            volume.cinder.as_ref().and_then(|v| v.secret_ref.as_ref()),
            volume
                .flex_volume
                .as_ref()
                .and_then(|v| v.secret_ref.as_ref()),
            volume.rbd.as_ref().and_then(|v| v.secret_ref.as_ref()),
            volume.scale_io.as_ref().map(|v| &v.secret_ref),
            volume.iscsi.as_ref().and_then(|v| v.secret_ref.as_ref()),
            volume
                .storageos
                .as_ref()
                .and_then(|v| v.secret_ref.as_ref()),
            volume
                .csi
                .as_ref()
                .and_then(|v| v.node_publish_secret_ref.as_ref()),
        ];
        for r in local.into_iter().flatten() {
            self.secret(&r.name);
        }
        if let Some(v) = &volume.azure_file {
            self.secret(&v.secret_name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: serde_json::Value) -> Pod {
        let pod = serde_json::json!({"metadata": {"namespace": "ns", "name": "p"}, "spec": spec});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn every_place_that_can_refer() {
        let env = |name: &str| {
            serde_json::json!({
                "name": name,
                "envFrom": [
                    {"configMapRef": {"name": format!("{name}-from-cm")}},
                    {"secretRef": {"name": format!("{name}-from-s")}},
                ],
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"configMapKeyRef": {"name": format!("{name}-cm"), "key": "k"}}},
                    {"name": "C", "valueFrom": {"secretKeyRef": {"name": format!("{name}-s"), "key": "k"}}},
                ],
            })
        };
        let pod = pod(serde_json::json!({
            "imagePullSecrets": [{"name": "pull"}, {"name": ""}, {}],
            "initContainers": [env("init")],
            "containers": [env("main")],
            "ephemeralContainers": [env("debug")],
            "volumes": [
                {"name": "a", "configMap": {"name": "v-cm"}},
                {"name": "b", "secret": {"secretName": "v-s"}},
                {"name": "c", "projected": {"sources": [
                    {"configMap": {"name": "p-cm"}},
                    {"secret": {"name": "p-s"}},
                    {"serviceAccountToken": {"path": "token"}},
                    {"downwardAPI": {}},
                ]}},
                {"name": "d", "csi": {"driver": "x", "nodePublishSecretRef": {"name": "csi"}}},
                {"name": "e", "iscsi": {"iqn": "i", "lun": 0, "targetPortal": "t", "secretRef": {"name": "iscsi"}}},
                {"name": "f", "emptyDir": {}},
                {"name": "g", "azureFile": {"shareName": "x", "secretName": "azure"}},
                {"name": "h", "secret": {"secretName": "pull"}},
            ],
        }));
        let shown: Vec<String> = uses(&pod)
            .iter()
            .map(|(key, purpose)| format!("{key} {purpose:?}"))
            .collect();
        assert_eq!(
            shown,
            [
                "configmap ns/debug-cm Once",
                "configmap ns/debug-from-cm Once",
                "configmap ns/init-cm Once",
                "configmap ns/init-from-cm Once",
                "configmap ns/main-cm Once",
                "configmap ns/main-from-cm Once",
                "configmap ns/p-cm Lasting",
                "configmap ns/v-cm Lasting",
                "secret ns/azure Lasting",
                "secret ns/csi Lasting",
                "secret ns/debug-from-s Once",
                "secret ns/debug-s Once",
                "secret ns/init-from-s Once",
                "secret ns/init-s Once",
                "secret ns/iscsi Lasting",
                "secret ns/main-from-s Once",
                "secret ns/main-s Once",
                "secret ns/p-s Lasting",
                "secret ns/pull Lasting",
                "secret ns/v-s Lasting",
            ]
        );
        assert_eq!(references(&pod).len(), 20);
        assert!(references(&Pod::default()).is_empty());
    }
}
