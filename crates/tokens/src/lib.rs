//! Tokens of service accounts, each bound to one pod: asked for once, kept in memory, and renewed well before they
//! expire. An API server that is away takes no token from anybody while the one there is still good, and a pod
//! that starts while it is away gets the token of the agent's former life.

mod issuer;
mod kept;
mod schedule;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use krablet_checkpoint::Shelf;
use krablet_linux::WallClock;
use krablet_pod::{PodRef, PodUid};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub use issuer::{Issuer, KubeIssuer, NotIssued};
pub use kept::kept_name;
pub use schedule::{Life, renew_at};

/// How soon a renewal that failed is tried again.
const RETRY: SignedDuration = SignedDuration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("failed to fetch token: {0}")]
    Fetch(String),
    #[error("token {key} expired and refresh failed: {cause}")]
    Expired { key: String, cause: String },
    #[error("cannot use TokenManager when kubelet is in standalone mode")]
    Standalone,
}

/// Which token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    pub pod: PodRef,
    pub service_account: String,
    /// None for the API server itself.
    pub audience: Option<String>,
    /// None for what the server likes best.
    pub expiration_seconds: Option<i64>,
}

impl Wanted {
    fn request(&self) -> TokenRequest {
        TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: self.audience.clone().map(|a| vec![a]),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: Some(self.pod.name.to_string()),
                    uid: Some(self.pod.uid.to_string()),
                }),
                expiration_seconds: self.expiration_seconds,
            }),
            ..TokenRequest::default()
        }
    }

    /// Fit for a log: says which token, and nothing of it.
    fn key(&self) -> String {
        let audiences = match &self.audience {
            Some(audience) => format!("[]string{{{audience:?}}}"),
            None => "[]string(nil)".to_owned(),
        };
        let PodRef {
            uid,
            namespace,
            name,
        } = &self.pod;
        let seconds = self.expiration_seconds.unwrap_or_default();
        format!(
            "{:?}/{:?}/{audiences}/{seconds}/v1.BoundObjectReference{{Kind:\"Pod\", APIVersion:\"v1\", Name:{:?}, UID:{:?}}}/\"\"",
            self.service_account,
            &**namespace,
            &**name,
            uid.as_str(),
        )
    }
}

/// A token that is good now.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub text: Arc<str>,
    /// When it is worth asking again; none if it never changes.
    pub renew_at: Option<Timestamp>,
}

/// Until the server answers again.
fn for_now(text: Arc<str>, now: Timestamp) -> Token {
    let renew_at = now.saturating_add(RETRY).unwrap_or(Timestamp::MAX);
    Token {
        text,
        renew_at: Some(renew_at),
    }
}

#[derive(Clone)]
struct Held {
    text: Arc<str>,
    expires: Timestamp,
    renew_at: Option<Timestamp>,
}

impl Held {
    fn token(&self) -> Token {
        Token {
            text: self.text.clone(),
            renew_at: self.renew_at,
        }
    }
}

/// The tokens of all pods. Clones share them.
#[derive(Clone)]
pub struct Tokens {
    inner: Arc<Inner>,
}

struct Inner {
    issuer: Arc<dyn Issuer>,
    clock: Arc<dyn WallClock>,
    /// Of pods that were not forgotten.
    held: Mutex<BTreeMap<PodUid, BTreeMap<Wanted, Held>>>,
    /// So that the tokens of a node are not all renewed at once.
    spread: Mutex<StdRng>,
    /// For a start without an API server.
    shelf: Option<Shelf>,
}

impl Tokens {
    pub fn new(
        issuer: Arc<dyn Issuer>,
        clock: Arc<dyn WallClock>,
        seed: u64,
        shelf: Option<Shelf>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                issuer,
                clock,
                held: Mutex::default(),
                spread: Mutex::new(StdRng::seed_from_u64(seed)),
                shelf,
            }),
        }
    }

    /// The token there is, or a new one if it is time for that.
    pub async fn get(&self, wanted: &Wanted) -> Result<Token, TokenError> {
        let inner = &*self.inner;
        let now = inner.clock.now();
        let held = inner
            .held()
            .get(&wanted.pod.uid)
            .and_then(|of_pod| of_pod.get(wanted).cloned());
        if let Some(held) = &held
            && held.renew_at.is_none_or(|at| now < at)
        {
            return Ok(held.token());
        }
        let asked = inner
            .issuer
            .issue(
                &wanted.pod.namespace,
                &wanted.service_account,
                wanted.request(),
            )
            .await;
        match (asked.and_then(|answer| inner.life(answer)), held) {
            (Ok(new), _) => {
                let token = new.token();
                inner.hold(wanted, new);
                Ok(token)
            }
            (Err(refused), None) => inner.of_former_life(wanted, refused, now).await,
            (Err(refused), Some(old)) if now > old.expires => Err(TokenError::Expired {
                key: wanted.key(),
                cause: refused.text,
            }),
            (Err(refused), Some(old)) => {
                let cause = refused.text;
                tracing::warn!(key = wanted.key(), err = cause, "Couldn't update token");
                Ok(for_now(old.text, now))
            }
        }
    }

    /// The pod is gone, and its tokens with it.
    pub fn forget(&self, uid: &PodUid) {
        self.inner.held().remove(uid);
        if let Some(shelf) = &self.inner.shelf {
            shelf.remove(&kept_name(uid));
        }
    }
}

impl Inner {
    fn held(&self) -> MutexGuard<'_, BTreeMap<PodUid, BTreeMap<Wanted, Held>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, wanted: &Wanted, new: Held) {
        let mut all = self.held();
        let of_pod = all.entry(wanted.pod.uid.clone()).or_default();
        of_pod.insert(wanted.clone(), new);
        if let Some(shelf) = &self.shelf {
            kept::put(shelf, &wanted.pod.uid, of_pod);
        }
    }

    /// Even one that has expired: it is of no use while the server is away, and the pod is to start. It is renewed as soon
    /// as the server is back.
    async fn of_former_life(
        &self,
        wanted: &Wanted,
        refused: NotIssued,
        now: Timestamp,
    ) -> Result<Token, TokenError> {
        let kept = match &self.shelf {
            Some(shelf) if refused.passing => kept::load(shelf, wanted).await,
            _ => None,
        };
        match kept {
            Some(text) => {
                let err = refused.text;
                tracing::warn!(
                    key = wanted.key(),
                    err,
                    "Token is used as it was last known"
                );
                Ok(for_now(text, now))
            }
            None => Err(TokenError::Fetch(refused.text)),
        }
    }

    fn life(&self, answer: TokenRequest) -> Result<Held, NotIssued> {
        let status = answer.status.unwrap_or_default();
        let (Some(text), Some(expires)) = (status.token, status.expiration_timestamp) else {
            return Err(NotIssued {
                text: "the answer holds no token".to_owned(),
                passing: false,
            });
        };
        let seconds = answer.spec.and_then(|s| s.expiration_seconds);
        let expires = expires.0;
        let share: f64 = {
            let mut spread = self.spread.lock().unwrap_or_else(PoisonError::into_inner);
            spread.random()
        };
        Ok(Held {
            text: text.into(),
            expires,
            renew_at: seconds.map(|seconds| renew_at(Life { expires, seconds }, share)),
        })
    }
}

#[cfg(test)]
mod tests;
