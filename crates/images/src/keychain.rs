//! Everything that may hold credentials for an image, asked in its order: the pod's secrets, the node's
//! files, the plugins.

use std::sync::Arc;

use krablet_metrics::ImageMetrics;
use krablet_pod::api::Secret;
use sha2::{Digest, Sha256};

use crate::keyring::{Credential, Keyring, hex};
use crate::node_config::NodeConfig;
use crate::provider::{ForPod, Provider};
use crate::secrets::{BadSecret, keyring_of};

#[derive(Default)]
pub struct Keychain {
    node: Option<NodeConfig>,
    providers: Vec<Provider>,
    metrics: ImageMetrics,
}

impl Keychain {
    pub fn new(node: NodeConfig, providers: Vec<Provider>, metrics: ImageMetrics) -> Self {
        Self {
            node: Some(node),
            providers,
            metrics,
        }
    }

    /// Where what plugins do is counted.
    pub fn metrics(&self) -> &ImageMetrics {
        &self.metrics
    }

    /// Whether there are plugins to ask.
    pub fn has_providers(&self) -> bool {
        !self.providers.is_empty()
    }

    /// Credentials that need nobody to be asked.
    pub async fn at_hand(
        &self,
        repository: &str,
        secrets: &[Arc<Secret>],
    ) -> Result<Vec<Credential>, BadSecret> {
        let mut found = keyring_of(secrets)?.lookup(repository);
        if let Some(node) = &self.node {
            found.extend(node.keyring().await.lookup(repository));
        }
        Ok(found)
    }

    /// Credentials plugins know.
    pub async fn from_providers(&self, repository: &str, pod: &ForPod) -> Vec<Credential> {
        let mut ring = Keyring::default();
        for provider in &self.providers {
            if let Some((logins, source)) = provider.provide(repository, pod).await {
                ring.add(source.as_ref(), &logins);
            }
        }
        ring.lookup(repository)
    }
}

/// A short text that changes when the credentials do, and tells nothing of them.
pub fn fingerprint(credentials: &[Credential]) -> String {
    let mut all = Sha256::new();
    for credential in credentials {
        all.update(&credential.hash);
    }
    hex(all.finalize().get(..8).unwrap_or_default())
}
