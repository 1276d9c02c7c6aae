//! Credentials for registries: the node's files, and the plugins the user has set up.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use krablet_config::Gate;
use krablet_images::provider::{Account, NoAccounts, ServiceAccounts, Token, TokenAsk, load};
use krablet_images::{Hidden, Keychain, NodeConfig, SearchPaths};
use krablet_kube::{Kube, paths};
use krablet_linux::WallClock;
use krablet_metrics::ImageMetrics;
use krablet_pod::api::ServiceAccount;
use serde_json::{Value, json};

use crate::cluster::Ground;

/// Everything that may hold credentials on this node. A mistake in the plugins' configuration is the
/// user's to mend before anything starts.
pub async fn build(ground: &Ground<'_>, kube: Option<&Kube>) -> Result<Arc<Keychain>> {
    let flags = &ground.loaded.flags.runtime;
    let (config, bin_dir) = (
        &flags.image_credential_provider_config,
        &flags.image_credential_provider_bin_dir,
    );
    let metrics = ImageMetrics::default();
    let mut providers = Vec::new();
    if !config.is_empty() || !bin_dir.is_empty() {
        let accounts: Arc<dyn ServiceAccounts> = match kube {
            Some(kube) => Arc::new(KubeAccounts {
                kube: kube.clone(),
                clock: ground.clock.clone(),
            }),
            None => Arc::new(NoAccounts),
        };
        let gate = Gate::KubeletServiceAccountTokenForCredentialProviders;
        let tokens = ground.loaded.gates.enabled(gate);
        providers = load(
            &*ground.files,
            config.as_ref(),
            bin_dir.as_ref(),
            tokens,
            &accounts,
            &metrics,
        )
        .await
        .context("failed to register CRI auth plugins")?;
    }
    let places = SearchPaths {
        root_dir: ground.root.path().to_owned(),
        working_dir: std::env::current_dir().unwrap_or_default(),
        home: std::env::var_os("HOME")
            .map(PathBuf::from)
            .unwrap_or_default(),
    };
    let node = NodeConfig::new(places, ground.files.clone());
    Ok(Arc::new(Keychain::new(node, providers, metrics)))
}

/// Service accounts as the API server has them.
struct KubeAccounts {
    kube: Kube,
    clock: Arc<dyn WallClock>,
}

#[async_trait]
impl ServiceAccounts for KubeAccounts {
    async fn account(&self, namespace: &str, name: &str) -> Result<Account, String> {
        let account: Result<ServiceAccount, _> =
            self.kube.get(paths::service_account(namespace, name)).await;
        let metadata = account.map_err(|e| e.to_string())?.metadata;
        Ok(Account {
            uid: metadata.uid.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
        })
    }

    async fn token(&self, ask: TokenAsk) -> Result<Token, String> {
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {"uid": ask.account_uid},
            "spec": {
                "audiences": [ask.audience],
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": ask.pod_name,
                    "uid": ask.pod_uid,
                },
            },
        });
        let path = paths::service_account(&ask.namespace, &ask.account) + "/token";
        let mut answer: Value = self
            .kube
            .create(path, &request)
            .await
            .map_err(|e| e.to_string())?;
        let Value::String(text) = answer["status"]["token"].take() else {
            return Err("the API server's answer has no token".to_owned());
        };
        let expires = answer["status"]["expirationTimestamp"].as_str();
        let expires = expires.and_then(|text| text.parse::<jiff::Timestamp>().ok());
        let lifetime = expires.map(|at| at.duration_since(self.clock.now()));
        Ok(Token {
            text: Hidden::new(text),
            lifetime: lifetime
                .and_then(|left| Duration::try_from(left).ok())
                .unwrap_or_default(),
        })
    }
}
