//! The way to the API server, with the credentials the node has or gets.

use std::sync::Arc;

use anyhow::{Context, Error, Result};
use async_trait::async_trait;
use bytes::Bytes;
use krablet_identity::rotation::{self, First, IdentityHandle, Rotation, RotationDeps};
use krablet_identity::{CertStore, Join, Renewal, Start, StartFiles, begin};
use krablet_kube::{
    Api, ApiError, Call, Credentials, Environment, HttpApi, HttpApiConfig, IdentityReceiver, Kube,
    Kubeconfig, Proxy, Rate, Server, Watch,
};
use tokio::sync::watch;
use tracing::{error, info};

use super::Ground;

/// Keeps the node's certificate alive, if it has one of its own.
pub struct Keeper(Option<Rotation>);

/// The way to the API server, who keeps the certificate, and what is counted of it.
pub type Built = (Kube, Keeper, Option<IdentityHandle>);

impl Keeper {
    /// Ends only when there is nothing more to hope for.
    pub async fn run(self) {
        match self.0 {
            Some(rotation) => {
                let e = rotation.run().await;
                error!(err = %e, "The node has no certificate to speak to the API server with");
            }
            None => std::future::pending().await,
        }
    }
}

/// Decides with what to begin; nothing is asked of the API server before the keeper runs.
pub async fn build(ground: &Ground<'_>) -> Result<Built> {
    let flags = &ground.loaded.flags;
    let store = CertStore::open(flags.cert_dir.clone().into(), ground.files.clone())
        .await
        .context("--cert-dir")?;
    let files = StartFiles {
        kubeconfig: flags.kubeconfig.clone().into(),
        bootstrap_kubeconfig: Some(&flags.bootstrap_kubeconfig)
            .filter(|path| !path.is_empty())
            .map(Into::into),
    };
    let rotate = ground.loaded.config.security.rotate_certificates;
    let begun = begin(&files, store, rotate, ground.clock.now()).await?;
    let (publish, published) = watch::channel(None);
    let (kube, first) = match begun.start {
        Start::Existing {
            kubeconfig,
            pair: None,
            ..
        } => {
            let credentials = Credentials::of(&kubeconfig, ground.clock.clone())?;
            let api = client(ground, &kubeconfig, credentials)?;
            return Ok((Kube::new(Arc::new(api)), Keeper(None), None));
        }
        Start::Existing {
            kubeconfig,
            pair,
            renew_now,
        } => {
            let credentials = Credentials::rotating_certificate(published);
            let api = client(ground, &kubeconfig, credentials)?;
            (Kube::new(Arc::new(api)), First::Pair { pair, renew_now })
        }
        Start::Bootstrap { kubeconfig } => {
            let credentials = Credentials::of(&kubeconfig, ground.clock.clone())?;
            let bootstrap = client(ground, &kubeconfig, credentials)?;
            let own = Credentials::rotating_certificate(published.clone());
            let api = AfterJoin {
                api: client(ground, &kubeconfig, own)?,
                identity: published,
            };
            let join = Join {
                kube: Kube::new(Arc::new(bootstrap)),
                node_name: ground.name.to_owned(),
                store: begun.store.clone(),
                kubeconfig: files.kubeconfig.clone(),
                cluster: kubeconfig.current()?.0.clone(),
                clock: ground.clock.clone(),
                seed: ground.seed,
            };
            (Kube::new(Arc::new(api)), First::Join(Box::new(join)))
        }
    };
    let changes = match begun.renewal {
        Renewal::Keep => None,
        _ => krablet_identity::watch(&begun.store.directories()).ok(),
    };
    let (rotation, handle) = rotation::build(
        RotationDeps {
            node_name: ground.name.to_owned(),
            renewal: begun.renewal,
            kube: kube.clone(),
            store: begun.store,
            publish,
            changes,
            clock: ground.clock.clone(),
            seed: ground.seed,
        },
        first,
    );
    Ok((kube, Keeper(Some(rotation)), Some(handle)))
}

fn client(
    ground: &Ground<'_>,
    kubeconfig: &Kubeconfig,
    credentials: Credentials,
) -> Result<HttpApi> {
    let node = &ground.loaded.config.node;
    let rate = Rate {
        qps: node.kube_api_qps.into(),
        burst: u32::try_from(node.kube_api_burst).unwrap_or_default(),
    };
    let server = Server::of(kubeconfig)?;
    let environment = Environment::of(|name| std::env::var(name).ok());
    let proxy = Proxy::of(kubeconfig, &environment).map_err(Error::msg)?;
    if let Some(proxy) = &proxy {
        info!(%server, %proxy, "The API server is reached through a proxy");
    }
    let config = HttpApiConfig::new(server, credentials, ground.clock.clone())
        .proxy(proxy)
        .rate(rate)
        .metrics(ground.calls_out.clone());
    Ok(HttpApi::new(config))
}

/// The API server as it is after the node has joined: calls wait for the first certificate.
struct AfterJoin {
    api: HttpApi,
    identity: IdentityReceiver,
}

impl AfterJoin {
    async fn joined(&self) -> Result<(), ApiError> {
        let mut identity = self.identity.clone();
        match identity.wait_for(Option::is_some).await {
            Ok(_) => Ok(()),
            Err(_) => Err(ApiError::Credentials("the node did not join".to_owned())),
        }
    }
}

#[async_trait]
impl Api for AfterJoin {
    async fn call(&self, call: Call) -> Result<Bytes, ApiError> {
        self.joined().await?;
        self.api.call(call).await
    }

    async fn watch(&self, call: Call) -> Result<Watch, ApiError> {
        self.joined().await?;
        self.api.watch(call).await
    }

    fn reconnect(&self) {
        self.api.reconnect();
    }
}
