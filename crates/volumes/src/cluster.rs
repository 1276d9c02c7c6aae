//! What volumes ask of the API server beside configMaps, secrets and tokens.

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use krablet_kube::{ApiError, Call, Kube, Verb};
use krablet_pod::api::{PersistentVolume, PersistentVolumeClaim};
use serde::Deserialize;

/// The boundary. Errors are what users read.
#[async_trait]
pub trait ClusterObjects: Send + Sync {
    async fn claim(&self, namespace: &str, name: &str) -> Result<PersistentVolumeClaim, String>;

    async fn persistent_volume(&self, name: &str) -> Result<PersistentVolume, String>;

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
pub struct KubeObjects(pub Kube);

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
        self.0.get(path).await.map_err(text)
    }

    async fn persistent_volume(&self, name: &str) -> Result<PersistentVolume, String> {
        let path = format!("/api/v1/persistentvolumes/{name}");
        self.0.get(path).await.map_err(text)
    }

    async fn trust_bundle(&self, name: &str) -> Result<Option<String>, String> {
        match self
            .0
            .get::<Bundle>(format!("{TRUST_BUNDLES}/{name}"))
            .await
        {
            Ok(bundle) => Ok(Some(bundle.spec.trust_bundle)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(text(e)),
        }
    }

    async fn trust_bundles(
        &self,
        signer: &str,
        labels: &LabelSelector,
    ) -> Result<Vec<String>, String> {
        let call = Call::new(Verb::Get, TRUST_BUNDLES.to_owned())
            .query("fieldSelector", format!("spec.signerName={signer}"))
            .query("labelSelector", selector_text(labels));
        let bundles: Bundles = self.0.object(call).await.map_err(text)?;
        let bundles = bundles.items.into_iter().map(|b| b.spec);
        let own = bundles.filter(|b| b.signer_name == signer);
        Ok(own.map(|b| b.trust_bundle).collect())
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
