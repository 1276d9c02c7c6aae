//! Authorities that the cluster trusts, for the pods that want to know them: bundles of certificates, watched from the moment
//! the first pod asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use krablet_checkpoint::Shelf;
use krablet_kube::{Api, ApiError, OnDemand, OnDemandTask, ReflectorConfig, on_demand, paths};
use krablet_pod::PodUid;
use krablet_pod::api::ClusterTrustBundleProjection;
use serde::Deserialize;

use crate::anchors;
use crate::cluster::or_kept;

/// A ClusterTrustBundle, as far as we ask.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TrustBundle {
    pub metadata: Metadata,
    pub spec: BundleSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Metadata {
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BundleSpec {
    pub signer_name: String,
    pub trust_bundle: String,
}

/// All bundles of the cluster, from when one is wanted.
pub fn trust_bundles_of(
    api: Arc<dyn Api>,
    seed: u64,
) -> (OnDemand<TrustBundle>, OnDemandTask<TrustBundle>) {
    let config = ReflectorConfig {
        path: paths::CLUSTER_TRUST_BUNDLES.to_owned(),
        query: Vec::new(),
        slim: Box::new(|_: &mut TrustBundle, _| ()),
        seed,
    };
    on_demand(api, config)
}

/// Clones share what they know.
#[derive(Clone)]
pub struct TrustBundles {
    inner: Arc<Inner>,
}

struct Inner {
    bundles: OnDemand<TrustBundle>,
    /// Where what pods were shown is kept for a start without an API server.
    shelf: Option<Shelf>,
    /// Pods that were shown some.
    shown_to: Mutex<BTreeSet<PodUid>>,
}

impl TrustBundles {
    pub fn new(bundles: OnDemand<TrustBundle>, shelf: Option<Shelf>) -> Self {
        Self {
            inner: Arc::new(Inner {
                bundles,
                shelf,
                shown_to: Mutex::default(),
            }),
        }
    }

    /// The certificates a pod is to be shown, in PEM, or what users read instead.
    pub(crate) async fn show(
        &self,
        pod: &PodUid,
        source: &ClusterTrustBundleProjection,
    ) -> Result<String, String> {
        self.inner.shown_to().insert(pod.clone());
        let optional = source.optional.unwrap_or(false);
        let found = match (&source.name, &source.signer_name) {
            (Some(name), _) => {
                let found = self.inner.known(bundle_name(name), |all| named(all, name));
                let found = found
                    .await
                    .map_err(|e| format!("while getting ClusterTrustBundle: {e}"))?;
                if found.is_none() && !optional {
                    return Err(format!(
                        "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {name:?} not found"
                    ));
                }
                found.into_iter().collect()
            }
            (None, Some(signer)) => {
                let found = match &source.label_selector {
                    // No selector selects nothing; an empty one selects everything.
                    None => Vec::new(),
                    Some(labels) => {
                        let name = bundles_name(signer, labels);
                        let found = self.inner.known(name, |all| signed_by(all, signer, labels));
                        found
                            .await
                            .map_err(|e| format!("while listing ClusterTrustBundles: {e}"))?
                    }
                };
                if found.is_empty() && !optional {
                    return Err("combination of signerName and labelSelector matched zero ClusterTrustBundles".to_owned());
                }
                found
            }
            (None, None) => {
                return Err(
                    "ClusterTrustBundle projection requires either name or signerName to be set"
                        .to_owned(),
                );
            }
        };
        Ok(anchors::normalized(&found))
    }

    pub(crate) fn forget(&self, uid: &PodUid) {
        self.inner.shown_to().remove(uid);
    }

    /// Tells of all pods that were shown some whenever there are others. Never ends.
    pub async fn watch(self, ring: impl Fn(BTreeSet<PodUid>)) {
        let mut bundles = self.inner.bundles.clone();
        loop {
            bundles.changed().await;
            let pods = self.inner.shown_to().clone();
            ring(pods);
        }
    }
}

impl Inner {
    fn shown_to(&self) -> MutexGuard<'_, BTreeSet<PodUid>> {
        self.shown_to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is chosen of all bundles; of an earlier life's if the API server is away and has not been heard in this one.
    async fn known<T>(
        &self,
        name: String,
        choose: impl FnOnce(&[Arc<TrustBundle>]) -> T,
    ) -> Result<T, String>
    where
        T: serde::Serialize + serde::de::DeserializeOwned,
    {
        let all: Result<_, ApiError> = self.bundles.all().await;
        or_kept(self.shelf.as_ref(), name, all.map(|all| choose(&all))).await
    }
}

fn named(all: &[Arc<TrustBundle>], name: &str) -> Option<String> {
    let found = all.iter().find(|b| b.metadata.name == name)?;
    Some(found.spec.trust_bundle.clone())
}

fn signed_by(all: &[Arc<TrustBundle>], signer: &str, labels: &LabelSelector) -> Vec<String> {
    let own = all.iter().filter(|b| b.spec.signer_name == signer);
    let chosen = own.filter(|b| selects(labels, &b.metadata.labels));
    chosen.map(|b| b.spec.trust_bundle.clone()).collect()
}

fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut plain = selector.match_labels.iter().flatten();
    let mut rules = selector.match_expressions.iter().flatten();
    plain.all(|(key, value)| labels.get(key) == Some(value)) && rules.all(|r| holds(r, labels))
}

fn holds(rule: &LabelSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&rule.key);
    let listed = |value: &String| rule.values.iter().flatten().any(|v| v == value);
    match rule.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

pub(crate) fn bundle_name(name: &str) -> String {
    format!("clustertrustbundle {name}")
}

pub(crate) fn bundles_name(signer: &str, labels: &LabelSelector) -> String {
    format!("clustertrustbundles of {signer} {}", selector_text(labels))
}

/// A selector as users write it.
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
    use serde_json::{Value, json};

    fn selector(value: Value) -> LabelSelector {
        serde_json::from_value(value).unwrap()
    }

    fn bundle(name: &str, signer: &str, labels: Value) -> Arc<TrustBundle> {
        let object = json!({"metadata": {"name": name, "labels": labels}, "spec": {"signerName": signer, "trustBundle": name}});
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn bundles_are_chosen_by_name_or_by_signer_and_labels() {
        let all = [
            bundle("a", "x/ca", json!({"kind": "old", "n": "1"})),
            bundle("b", "x/ca", json!({"kind": "new"})),
            bundle("c", "y/ca", json!({"kind": "new"})),
            bundle("d", "", json!({})),
        ];
        assert_eq!(named(&all, "d").as_deref(), Some("d"));
        assert_eq!(named(&all, "e"), None);
        let rule = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (labels, expected) in [
            (json!({}), &["a", "b"][..]),
            (json!({"matchLabels": {"kind": "new"}}), &["b"]),
            (json!({"matchLabels": {"kind": "new", "n": "1"}}), &[]),
            (rule("kind", "In", &["new", "odd"]), &["b"]),
            (rule("kind", "NotIn", &["new"]), &["a"]),
            (rule("n", "NotIn", &["2"]), &["a", "b"]),
            (rule("n", "Exists", &[]), &["a"]),
            (rule("n", "DoesNotExist", &[]), &["b"]),
            (rule("n", "Odd", &[]), &[]),
        ] {
            let chosen = signed_by(&all, "x/ca", &selector(labels.clone()));
            assert_eq!(chosen, expected, "{labels}");
        }
    }

    #[test]
    fn selectors_in_names() {
        let selector = selector(json!({
            "matchLabels": {"a": "1", "b": "2"},
            "matchExpressions": [
                {"key": "c", "operator": "In", "values": ["x", "y"]},
                {"key": "d", "operator": "NotIn", "values": ["z"]},
                {"key": "e", "operator": "Exists"},
                {"key": "f", "operator": "DoesNotExist"},
            ],
        }));
        assert_eq!(
            selector_text(&selector),
            "a=1,b=2,c in (x,y),d notin (z),e,!f"
        );
        assert_eq!(selector_text(&LabelSelector::default()), "");
    }
}
