//! Bearer tokens, by asking the API server whose they are.

use std::sync::Arc;
use std::time::Duration;

use krablet_kube::{Call, Kube, Verb};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::verdicts::Verdicts;
use crate::{ReviewError, User};

pub(crate) const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// Reviews under way at a time; who comes then is told to come again.
pub(crate) const AT_ONCE: usize = 32;
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);
/// Longer ones are nobody's.
const MAX_TOKEN: usize = 16 * 1024;

/// A token is never kept, only what it hashes to.
type Fingerprint = [u8; 32];

pub struct TokenReviews {
    kube: Kube,
    known: Verdicts<Fingerprint, Option<User>>,
    lasts: Duration,
    turns: Arc<Semaphore>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    status: AnswerStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AnswerStatus {
    authenticated: bool,
    user: User,
    error: String,
}

impl TokenReviews {
    /// `lasts`: `authentication.webhook.cacheTTL`.
    pub fn new(kube: Kube, lasts: Duration) -> Self {
        Self {
            kube,
            known: Verdicts::new(),
            lasts,
            turns: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Whose the token is; `None` if it is nobody's.
    pub(crate) async fn review(&self, token: &str) -> Result<Option<User>, ReviewError> {
        if token.len() > MAX_TOKEN {
            return Ok(None);
        }
        let fingerprint: Fingerprint = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.known.get(&fingerprint) {
            return Ok(known);
        }
        let _turn = self.turns.try_acquire().map_err(|_| ReviewError::Busy)?;
        let body = json!({
            "kind": "TokenReview",
            "apiVersion": "authentication.k8s.io/v1",
            "spec": {"token": token},
        });
        let call = Call::new(Verb::Create, TOKEN_REVIEWS.to_owned())
            .body(body.to_string())
            .deadline(DEADLINE);
        let answer: Answer = self.kube.object(call).await?;
        let AnswerStatus {
            authenticated,
            user,
            error,
        } = answer.status;
        // An error beside a verdict says that the question could not be answered for good.
        if !authenticated && !error.is_empty() {
            return Err(ReviewError::Refused(error));
        }
        let verdict = authenticated.then_some(user);
        self.known.put(fingerprint, verdict.clone(), self.lasts);
        Ok(verdict)
    }
}
