//! What volumes ask of the API server beside configMaps, secrets and tokens.

use async_trait::async_trait;
use krablet_checkpoint::Shelf;
use krablet_kube::{ApiError, Kube};
use krablet_pod::api::{PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::info;

use crate::claims::claim_of;
use crate::trust::{bundle_name, bundles_name};

/// The boundary. Errors are what users read.
#[async_trait]
pub trait ClusterObjects: Send + Sync {
    async fn claim(&self, namespace: &str, name: &str) -> Result<PersistentVolumeClaim, String>;

    async fn persistent_volume(&self, name: &str) -> Result<PersistentVolume, String>;

    /// One that a persistent volume refers to. Asked for when it is needed, and not kept.
    async fn secret(&self, namespace: &str, name: &str) -> Result<Secret, String>;
}

/// The real one. Claims and volumes are asked for when a pod with such a volume is set up, and only then.
pub struct KubeObjects {
    pub kube: Kube,
    /// Where they are kept for a start without an API server.
    pub shelf: Option<Shelf>,
}

/// The answer, or what was known before if there is none because the server is away.
pub(crate) async fn or_kept<T: Serialize + DeserializeOwned>(
    shelf: Option<&Shelf>,
    name: String,
    answer: Result<T, ApiError>,
) -> Result<T, String> {
    let Some(shelf) = shelf else {
        return answer.map_err(text);
    };
    match answer {
        Ok(object) => {
            shelf.put(&name, &object);
            Ok(object)
        }
        Err(error) if error.is_passing() => {
            let kept = shelf.load(&name).await;
            if kept.is_some() {
                info!("The API server is away: {name} is used as it was last known");
            }
            kept.ok_or_else(|| text(error))
        }
        Err(error) => Err(text(error)),
    }
}

/// What lies on the shelf for the volumes of a pod.
pub async fn kept_names(pod: &Pod, shelf: &Shelf) -> Vec<String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let mut names = Vec::new();
    for volume in volumes {
        if let Some(claim) = claim_of(pod, volume) {
            let name = claim_name(namespace, &claim.name);
            let kept: Option<PersistentVolumeClaim> = shelf.load(&name).await;
            let bound = kept.and_then(|claim| claim.spec?.volume_name);
            names.extend(bound.map(|name| volume_name(&name)));
            names.push(name);
        }
        let sources = volume.projected.iter();
        let sources = sources.flat_map(|p| p.sources.iter().flatten());
        names.extend(sources.filter_map(|s| {
            let bundle = s.cluster_trust_bundle.as_ref()?;
            let labels = bundle.label_selector.clone().unwrap_or_default();
            let signer = bundle.signer_name.as_deref();
            bundle
                .name
                .as_deref()
                .map(bundle_name)
                .or_else(|| Some(bundles_name(signer?, &labels)))
        }));
    }
    names
}

fn claim_name(namespace: &str, name: &str) -> String {
    format!("persistentvolumeclaim {namespace}/{name}")
}

fn volume_name(name: &str) -> String {
    format!("persistentvolume {name}")
}

fn text(error: ApiError) -> String {
    error.to_string()
}

#[async_trait]
impl ClusterObjects for KubeObjects {
    async fn claim(&self, namespace: &str, name: &str) -> Result<PersistentVolumeClaim, String> {
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}");
        let answer = self.kube.get(path).await;
        or_kept(self.shelf.as_ref(), claim_name(namespace, name), answer).await
    }

    async fn persistent_volume(&self, name: &str) -> Result<PersistentVolume, String> {
        let answer = self.kube.get(format!("/api/v1/persistentvolumes/{name}"));
        let answer = answer.await;
        or_kept(self.shelf.as_ref(), volume_name(name), answer).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Secret, String> {
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        self.kube.get(path).await.map_err(text)
    }
}
