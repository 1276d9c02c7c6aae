//! Bearer tokens, by asking the API server whose they are.

use std::net::IpAddr;
use std::time::Duration;

use krablet_kube::Kube;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::reviews::{Review, Reviews};
use crate::shares::Origin;
use crate::{ReviewError, User};

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// Longer ones are nobody's.
const MAX_TOKEN: usize = 16 * 1024;

/// A token is never kept, only what it hashes to.
type Fingerprint = [u8; 32];

pub struct TokenReviews {
    reviews: Reviews<Fingerprint, Option<User>>,
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
            lasts,
        }
    }

    /// Whose the token is that came from there; `None` if it is nobody's.
    pub(crate) async fn review(
        &self,
        token: &str,
        from: Option<IpAddr>,
    ) -> Result<Option<User>, ReviewError> {
        if token.len() > MAX_TOKEN {
            return Ok(None);
        }
        let fingerprint: Fingerprint = Sha256::digest(token.as_bytes()).into();
        let review = || Review {
            path: TOKEN_REVIEWS,
            body: json!({
                "kind": "TokenReview",
                "apiVersion": "authentication.k8s.io/v1",
                "spec": {"token": token},
            }),
            read: whose,
        };
        let lasts = |_: &_| self.lasts;
        let origin = from.map(Origin::from);
        let verdict = self.reviews.verdict(&fingerprint, origin, review, lasts);
        verdict.await
    }
}

fn whose(status: AnswerStatus) -> Result<Option<User>, ReviewError> {
    let AnswerStatus {
        authenticated,
        user,
        error,
    } = status;
    // An error beside a verdict says that the question could not be answered for good.
    if !authenticated && !error.is_empty() {
        return Err(ReviewError::Refused(error));
    }
    Ok(authenticated.then_some(user))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::parrot;

    fn review(answer: &[u8]) -> Result<Option<User>, ReviewError> {
        let reviews = TokenReviews::new(parrot::kube(answer), Duration::ZERO);
        parrot::block_on(reviews.review("token", None))
    }

    const FIELDS: &[&str] = &[
        "authenticated",
        "error",
        "user",
        "username",
        "groups",
        "extra",
        "uid",
        "status",
    ];

    proptest! {
        #[test]
        fn only_a_plain_yes_lets_anybody_in(status in parrot::status(FIELDS)) {
            let answer = json!({"status": status});
            let said_yes = answer["status"]["authenticated"] == Value::Bool(true);
            if let Ok(Some(_)) = review(answer.to_string().as_bytes()) {
                prop_assert!(said_yes, "{answer}");
            }
        }

        #[test]
        fn nobody_comes_in_by_noise(noise in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(!matches!(review(&noise), Ok(Some(_))));
        }
    }
}
