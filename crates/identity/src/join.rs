//! Joining: a certificate is asked for with the bootstrap credentials, stored, and named in the
//! kubeconfig. Cut off anywhere, it is taken up again: the key waits in a file, and the request at
//! the server is found by its name.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use krablet_kube::Kube;
use krablet_kube::kubeconfig::{Bootstrapped, Cluster};
use krablet_linux::WallClock;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::{Instant, sleep};

use crate::request::{self, Naming};
use crate::schedule::Pauses;
use crate::{CertStore, IdentityError, Pair};

/// What does not pass by itself may still be put right by somebody in this time (a role binding
/// that comes later, a clock that gets set); then the reason is given back.
const HOPE: Duration = Duration::from_secs(5 * 60);

/// What joining needs.
pub struct Join {
    /// With the credentials of the bootstrap kubeconfig.
    pub kube: Kube,
    pub node_name: String,
    pub store: CertStore,
    /// The kubeconfig to write, and the cluster it is for: that of the bootstrap kubeconfig.
    pub kubeconfig: PathBuf,
    pub cluster: Cluster,
    pub clock: Arc<dyn WallClock>,
    pub seed: u64,
}

impl Join {
    /// Ends with the node's certificate, in the store and named in the kubeconfig, or with the
    /// reason why waiting makes no sense. An API server that is not there is waited for.
    pub async fn run(self) -> Result<Pair, IdentityError> {
        let mut dice = StdRng::seed_from_u64(self.seed);
        let mut pauses = Pauses::default();
        let mut hopeless_since: Option<Instant> = None;
        let mut told = String::new();
        loop {
            let error = match self.attempt(&mut dice).await {
                Ok(pair) => return Ok(pair),
                Err(e) if e.is_refusal() => return Err(e),
                Err(e) => e,
            };
            if error.is_passing() {
                hopeless_since = None;
            } else if hopeless_since.get_or_insert_with(Instant::now).elapsed() >= HOPE {
                return Err(error);
            }
            let text = error.to_string();
            if told != text {
                tracing::warn!("no client certificate yet, trying again: {text}");
                told = text;
            }
            let pause = pauses.next(dice.random());
            sleep(pause.max(error.retry_after().unwrap_or_default())).await;
        }
    }

    async fn attempt(&self, dice: &mut StdRng) -> Result<Pair, IdentityError> {
        let key = self.store.waiting_key().await?;
        let (node, now) = (&self.node_name, self.clock.now());
        let got = request::certificate(&self.kube, node, &key, Naming::Found, now, dice).await;
        if let Err(IdentityError::Stale { .. } | IdentityError::Issued { .. }) = got {
            // Nothing will come of this key: the next try makes another.
            self.store.forget_waiting_key().await?;
        }
        let pair = got?;
        self.store.update(&pair, self.clock.now()).await?;
        let bootstrapped = Bootstrapped {
            cluster: &self.cluster,
            pem: &self.store.current_path(),
        };
        let files = self.store.files();
        bootstrapped.write(files.as_ref(), &self.kubeconfig).await?;
        if let Err(error) = self.store.forget_waiting_key().await {
            tracing::warn!(%error, "cannot remove the key of the request");
        }
        tracing::info!(
            expires = %pair.validity().not_after,
            kubeconfig = %self.kubeconfig.display(),
            "joined: the node has a client certificate"
        );
        Ok(pair)
    }
}
