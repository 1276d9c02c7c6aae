//! Bearer tokens, by asking the API server whose they are.

use std::time::Duration;

use krablet_kube::Kube;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::reviews::Reviews;
use crate::verdicts::Verdicts;
use crate::{ReviewError, User};

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// Longer ones are nobody's.
const MAX_TOKEN: usize = 16 * 1024;

/// A token is never kept, only what it hashes to.
type Fingerprint = [u8; 32];

pub struct TokenReviews {
    reviews: Reviews,
    known: Verdicts<Fingerprint, Option<User>>,
    lasts: Duration,
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
            reviews: Reviews::new(kube),
            known: Verdicts::new(),
            lasts,
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
        let review = json!({
            "kind": "TokenReview",
            "apiVersion": "authentication.k8s.io/v1",
            "spec": {"token": token},
        });
        let AnswerStatus {
            authenticated,
            user,
            error,
        } = self.reviews.ask(TOKEN_REVIEWS, &review).await?;
        // An error beside a verdict says that the question could not be answered for good.
        if !authenticated && !error.is_empty() {
            return Err(ReviewError::Refused(error));
        }
        let verdict = authenticated.then_some(user);
        self.known.put(fingerprint, verdict.clone(), self.lasts);
        Ok(verdict)
    }
}
