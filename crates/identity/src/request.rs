//! Asking the API server for a certificate and waiting for it.

use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use krablet_kube::{ApiError, Call, Kube, Verb, WatchEvent, decode_watch_line, paths};
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio::time::{Instant, sleep, timeout};

use crate::csr::{self, NodeKey, Verdict};
use crate::names::Names;
use crate::schedule::Pauses;
use crate::{IdentityError, Pair};

/// So long a request may stay undecided before the try counts as failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// After so long a watch is begun anew, with a look first: a silent one may be dead.
const WATCH: Duration = Duration::from_secs(60);
/// What the server gets to end the watch itself.
const WATCH_GRACE: Duration = Duration::from_secs(10);

const ASK: &str = "create a certificate signing request";
const LOOK: &str = "read the certificate signing request";

/// How the object at the server is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// By key and node: a request from an earlier life is taken up again.
    Found,
    /// A new object each time.
    Generated,
}

/// A certificate for `key`.
pub(crate) async fn certificate(
    kube: &Kube,
    node: &str,
    key: &NodeKey,
    naming: Naming,
    now: Timestamp,
    dice: &mut StdRng,
) -> Result<Pair, IdentityError> {
    let name = (naming == Naming::Found).then(|| csr::request_name(&key.public_key(), node));
    let wanted = csr::signing_request(name.as_deref(), key.request(node)?);
    let path = paths::CERTIFICATE_SIGNING_REQUESTS.to_owned();
    let made = match (kube.create(path, &wanted).await, name) {
        (Ok(made), _) => made,
        (Err(e), Some(name)) if e.is_already_exists() => {
            take_up(kube, name, key, node, now).await?
        }
        (Err(e), _) => return Err(IdentityError::api(ASK)(e)),
    };
    wait(kube, made, key, "client", dice).await
}

/// A certificate for `key` to show to those who connect to the node under these names.
pub(crate) async fn serving_certificate(
    kube: &Kube,
    node: &str,
    key: &NodeKey,
    names: &Names,
    dice: &mut StdRng,
) -> Result<Pair, IdentityError> {
    let wanted = csr::serving_signing_request(key.serving_request(node, names)?);
    let path = paths::CERTIFICATE_SIGNING_REQUESTS.to_owned();
    let made = kube.create(path, &wanted).await;
    let made = made.map_err(IdentityError::api(ASK))?;
    wait(kube, made, key, "serving", dice).await
}

async fn wait(
    kube: &Kube,
    made: CertificateSigningRequest,
    key: &NodeKey,
    purpose: &str,
    dice: &mut StdRng,
) -> Result<Pair, IdentityError> {
    let name = made.metadata.name.clone().unwrap_or_default();
    tracing::info!(
        csr = name,
        "waiting for the {purpose} certificate to be issued"
    );
    let issued = match timeout(PATIENCE, issued(kube, made, dice)).await {
        Ok(issued) => issued?,
        Err(_) => {
            return Err(IdentityError::NotSigned {
                name,
                waited: PATIENCE,
            });
        }
    };
    Pair::from_pem(&issued, key.to_pem().as_bytes()).map_err(|e| IdentityError::Issued {
        name,
        why: e.to_string(),
    })
}

async fn take_up(
    kube: &Kube,
    name: String,
    key: &NodeKey,
    node: &str,
    now: Timestamp,
) -> Result<CertificateSigningRequest, IdentityError> {
    let found = look(kube, &name).await?;
    match csr::reusable(&found, key, node, now) {
        Ok(()) => {
            tracing::info!(
                csr = name,
                "taking up an earlier certificate signing request"
            );
            Ok(found)
        }
        Err(why) => Err(IdentityError::Stale { name, why }),
    }
}

async fn look(kube: &Kube, name: &str) -> Result<CertificateSigningRequest, IdentityError> {
    let path = paths::certificate_signing_request(name);
    kube.get(path).await.map_err(|e| match e.is_not_found() {
        true => IdentityError::Vanished { name: name.into() },
        false => IdentityError::api(LOOK)(e),
    })
}

/// Follows the object until it is decided. A watch that ends for whatever reason is followed by a
/// look at the object; only what that look says can end the wait.
async fn issued(
    kube: &Kube,
    made: CertificateSigningRequest,
    dice: &mut StdRng,
) -> Result<Vec<u8>, IdentityError> {
    let request = Request {
        name: made.metadata.name.clone().unwrap_or_default(),
        uid: made.metadata.uid.clone(),
    };
    let mut pauses = Pauses::default();
    let mut seen = made;
    loop {
        if let Some(chain) = request.decided(&seen)? {
            return Ok(chain);
        }
        let began = Instant::now();
        if let Some(chain) = request.watch(kube, &seen).await? {
            return Ok(chain);
        }
        if began.elapsed() >= WATCH {
            pauses.reset();
        } else {
            sleep(pauses.next(dice.random())).await;
        }
        seen = request.look_until_told(kube, &mut pauses, dice).await?;
    }
}

/// The object we wait for.
struct Request {
    name: String,
    uid: Option<String>,
}

impl Request {
    fn decided(&self, seen: &CertificateSigningRequest) -> Result<Option<Vec<u8>>, IdentityError> {
        if seen.metadata.uid != self.uid {
            let name = self.name.clone();
            return Err(IdentityError::Vanished { name });
        }
        match csr::verdict(seen) {
            Verdict::Issued(chain) => Ok(Some(chain)),
            Verdict::Against(error) => Err(error),
            Verdict::Waiting => Ok(None),
        }
    }

    async fn look_until_told(
        &self,
        kube: &Kube,
        pauses: &mut Pauses,
        dice: &mut StdRng,
    ) -> Result<CertificateSigningRequest, IdentityError> {
        loop {
            let error = match look(kube, &self.name).await {
                Err(e) if matches!(&e, IdentityError::Api { error, .. } if error.is_passing()) => e,
                told => return told,
            };
            tracing::debug!(csr = self.name, %error, "cannot look");
            let pause = pauses.next(dice.random());
            sleep(pause.max(error.retry_after().unwrap_or_default())).await;
        }
    }

    /// The certificate, if the watch brings it before it ends.
    async fn watch(
        &self,
        kube: &Kube,
        seen: &CertificateSigningRequest,
    ) -> Result<Option<Vec<u8>>, IdentityError> {
        let version = seen.metadata.resource_version.clone().unwrap_or_default();
        let path = paths::CERTIFICATE_SIGNING_REQUESTS.to_owned();
        let call = Call::new(Verb::Get, path)
            .query("watch", "true")
            .query("fieldSelector", format!("metadata.name={}", self.name))
            .query("resourceVersion", version)
            .query("timeoutSeconds", WATCH.as_secs().to_string());
        let follow = async {
            let mut lines = match kube.api().watch(call).await {
                Ok(lines) => lines,
                Err(error) => return Ok(self.ended(&error)),
            };
            while let Some(line) = lines.next().await {
                match line.and_then(|line| decode_watch_line(&line)) {
                    Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                        if let Some(chain) = self.decided(&object)? {
                            return Ok(Some(chain));
                        }
                    }
                    Ok(WatchEvent::Bookmark(_)) => {}
                    // The look that follows tells.
                    Ok(WatchEvent::Deleted(_)) => break,
                    Err(error) => return Ok(self.ended(&error)),
                }
            }
            Ok(None)
        };
        timeout(WATCH + WATCH_GRACE, follow)
            .await
            .unwrap_or(Ok(None))
    }

    fn ended(&self, error: &ApiError) -> Option<Vec<u8>> {
        tracing::debug!(csr = self.name, %error, "the watch ended");
        None
    }
}
