//! As whom a pod asks for its images.

use std::sync::Arc;

use krablet_events::{Subject, reason};
use krablet_images::ForPod;
use krablet_pod::PodRef;
use krablet_pod::api::{Pod, Secret};

use crate::pod_runtime::PodRuntime;

/// What of a pod matters to registries and to those who know credentials for them.
#[derive(Default)]
pub(crate) struct PullIdentity {
    pub pod: ForPod,
    /// Its pull secrets, as far as they could be had.
    pub secrets: Vec<Arc<Secret>>,
}

impl PodRuntime {
    /// A secret that cannot be had is told and done without: the image may be there, or be for everybody.
    pub(crate) async fn pull_identity(&self, pod: &Pod) -> PullIdentity {
        let pod_ref = PodRef::of(pod);
        let spec = pod.spec.as_ref();
        let account = spec.and_then(|s| s.service_account_name.clone());
        let mut identity = PullIdentity {
            pod: ForPod {
                namespace: pod_ref.namespace.to_string(),
                name: pod_ref.name.to_string(),
                uid: pod_ref.uid.to_string(),
                service_account: account.unwrap_or_default(),
            },
            secrets: Vec::new(),
        };
        let deps = &self.inner.deps;
        let mut missing = Vec::new();
        let named = spec.and_then(|s| s.image_pull_secrets.as_deref());
        // An entry without a name is allowed and means nothing.
        let named = named.unwrap_or_default().iter().map(|s| s.name.as_str());
        for name in named.filter(|name| !name.is_empty()) {
            match deps.objects.secret(&pod_ref.namespace, name).await {
                Ok(secret) => identity.secrets.push(secret),
                Err(error) => {
                    tracing::info!(pod = %pod_ref, podUID = %pod_ref.uid, secret = name, %error, "Unable to retrieve pull secret, the image pull may not succeed.");
                    missing.push(name);
                }
            }
        }
        if !missing.is_empty() {
            let text = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            deps.recorder.warning(
                Subject::Pod(pod_ref),
                reason::FAILED_TO_RETRIEVE_PULL_SECRET,
                text,
            );
        }
        identity
    }
}
