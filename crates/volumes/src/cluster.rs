//! What volumes ask of the API server beside configMaps, secrets and tokens.

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use krablet_checkpoint::Shelf;
use krablet_kube::{ApiError, Call, Kube, Verb};
use krablet_pod::api::{PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::info;

use crate::claims::claim_of;

/// The boundary. Errors are what users read.
#[async_trait]
pub trait ClusterObjects: Send + Sync {
    async fn claim(&self, namespace: &str, name: &str) -> Result<PersistentVolumeClaim, String>;

    async fn persistent_volume(&self, name: &str) -> Result<PersistentVolume, String>;

    /// One that a persistent volume refers to. Asked for when it is needed, and not kept.
    async fn secret(&self, namespace: &str, name: &str) -> Result<Secret, String>;

    /// The certificates of one bundle in PEM; none if there is no such bundle.
    async fn trust_bundle(&self, name: &str) -> Result<Option<String>, String>;

    /// Those of every bundle of a signer that has these labels.
    async fn trust_bundles(
        &self,
        signer: &str,
        labels: &LabelSelector,
    ) -> Result<Vec<String>, String>;
}

const TRUST_BUNDLES: &str = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";

/// The real one. Claims and volumes are asked for when a pod with such a volume is set up, and only then.
pub struct KubeObjects {
    pub kube: Kube,
    /// Where they are kept for a start without an API server.
    pub shelf: Option<Shelf>,
}

impl KubeObjects {
    /// The answer, or what was known before if there is none because the server is away.
    async fn or_kept<T: Serialize + DeserializeOwned>(
        &self,
        name: String,
        answer: Result<T, ApiError>,
    ) -> Result<T, String> {
        let Some(shelf) = &self.shelf else {
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

fn bundle_name(name: &str) -> String {
    format!("clustertrustbundle {name}")
}

fn bundles_name(signer: &str, labels: &LabelSelector) -> String {
    format!("clustertrustbundles of {signer} {}", selector_text(labels))
}

#[derive(Deserialize)]
struct Bundle {
    spec: BundleSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BundleSpec {
    #[serde(default)]
    signer_name: String,
    #[serde(default)]
    trust_bundle: String,
}

#[derive(Deserialize)]
struct Bundles {
    #[serde(default)]
    items: Vec<Bundle>,
}

fn text(error: ApiError) -> String {
    error.to_string()
}

#[async_trait]
impl ClusterObjects for KubeObjects {
    async fn claim(&self, namespace: &str, name: &str) -> Result<PersistentVolumeClaim, String> {
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}");
        let answer = self.kube.get(path).await;
        self.or_kept(claim_name(namespace, name), answer).await
    }

    async fn persistent_volume(&self, name: &str) -> Result<PersistentVolume, String> {
        let answer = self.kube.get(format!("/api/v1/persistentvolumes/{name}"));
        let answer = answer.await;
        self.or_kept(volume_name(name), answer).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Secret, String> {
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        self.kube.get(path).await.map_err(text)
    }

    async fn trust_bundle(&self, name: &str) -> Result<Option<String>, String> {
        let answer = self.kube.get::<Bundle>(format!("{TRUST_BUNDLES}/{name}"));
        let answer = match answer.await {
            Ok(bundle) => Ok(Some(bundle.spec.trust_bundle)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        };
        self.or_kept(bundle_name(name), answer).await
    }

    async fn trust_bundles(
        &self,
        signer: &str,
        labels: &LabelSelector,
    ) -> Result<Vec<String>, String> {
        let call = Call::new(Verb::Get, TRUST_BUNDLES.to_owned())
            .query("fieldSelector", format!("spec.signerName={signer}"))
            .query("labelSelector", selector_text(labels));
        let answer = self.kube.object::<Bundles>(call).await.map(|bundles| {
            let bundles = bundles.items.into_iter().map(|b| b.spec);
            let own = bundles.filter(|b| b.signer_name == signer);
            own.map(|b| b.trust_bundle).collect()
        });
        self.or_kept(bundles_name(signer, labels), answer).await
    }
}

/// A selector as it stands in a query.
fn selector_text(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten();
    let labels = labels.map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(|e| {
        let values = e.values.as_deref().unwrap_or_default().join(",");
        let key = &e.key;
        match e.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        }
    });
    labels.chain(expressions).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_in_queries() {
        let selector = serde_json::from_value(serde_json::json!({
            "matchLabels": {"a": "1", "b": "2"},
            "matchExpressions": [
                {"key": "c", "operator": "In", "values": ["x", "y"]},
                {"key": "d", "operator": "NotIn", "values": ["z"]},
                {"key": "e", "operator": "Exists"},
                {"key": "f", "operator": "DoesNotExist"},
            ],
        }))
        .unwrap();
        assert_eq!(
            selector_text(&selector),
            "a=1,b=2,c in (x,y),d notin (z),e,!f"
        );
        assert_eq!(selector_text(&LabelSelector::default()), "");
    }
}
