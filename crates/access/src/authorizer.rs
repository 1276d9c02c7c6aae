//! Whether somebody may.

use std::time::Duration;

use krablet_kube::Kube;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::reviews::{Review, Reviews};
use crate::{Attributes, Denied, ReviewError, User};

const SUBJECT_ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

pub enum Authorizer {
    AlwaysAllow,
    Webhook(SubjectReviews),
}

type Question = (User, &'static str, &'static str);

/// Asks the API server.
pub struct SubjectReviews {
    reviews: Box<Reviews<Question, bool>>,
    node_name: String,
    allowed_lasts: Duration,
    denied_lasts: Duration,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AnswerStatus {
    allowed: bool,
    denied: bool,
}

impl Authorizer {
    /// Lets the user pass if any one of the subresources is his. A right that he is known to have spares the question for
    /// those before it, and lets him in while nobody answers such questions.
    pub async fn authorize(&self, user: &User, wanted: &Attributes) -> Result<(), Denied> {
        let Authorizer::Webhook(reviews) = self else {
            return Ok(());
        };
        if reviews.is_known_to_have(user, wanted) {
            return Ok(());
        }
        for subresource in &wanted.subresources {
            match reviews.review(user, wanted.verb, subresource).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(ReviewError::Busy) => return Err(Denied::Busy),
                Err(why) => {
                    let (name, verb) = (&user.name, wanted.verb);
                    tracing::error!(user = name, verb, subresource, err = %why, "Authorization error");
                    return Err(Denied::Unknown(format!(
                        "Authorization error (user={name}, verb={verb}, resource=nodes, subresource={subresource})"
                    )));
                }
            }
        }
        Err(Denied::Forbidden(format!(
            "Forbidden (user={}, verb={}, resource=nodes, subresource(s)=[{}])\n",
            user.name,
            wanted.verb,
            wanted.subresources.join(" "),
        )))
    }
}

impl SubjectReviews {
    /// `authorization.webhook.cacheAuthorizedTTL`, `cacheUnauthorizedTTL`.
    pub fn new(
        kube: Kube,
        node_name: String,
        allowed_lasts: Duration,
        denied_lasts: Duration,
    ) -> Self {
        Self {
            reviews: Box::new(Reviews::new(kube)),
            node_name,
            allowed_lasts,
            denied_lasts,
        }
    }

    fn is_known_to_have(&self, user: &User, wanted: &Attributes) -> bool {
        let question = |subresource: &&'static str| (user.clone(), wanted.verb, *subresource);
        let mut questions = wanted.subresources.iter().map(question);
        questions.any(|question| self.reviews.known(&question) == Some(true))
    }

    async fn review(
        &self,
        user: &User,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, ReviewError> {
        let question = (user.clone(), verb, subresource);
        let review = || Review {
            path: SUBJECT_ACCESS_REVIEWS,
            body: self.body(user, verb, subresource),
            read: may,
        };
        let lasts = |allowed: &bool| match allowed {
            true => self.allowed_lasts,
            false => self.denied_lasts,
        };
        self.reviews.verdict(&question, None, review, lasts).await
    }

    fn body(&self, user: &User, verb: &str, subresource: &str) -> Value {
        json!({
            "kind": "SubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "spec": {
                "user": user.name,
                "uid": user.uid,
                "groups": user.groups,
                "extra": user.extra,
                "resourceAttributes": {
                    "verb": verb,
                    "version": "v1",
                    "resource": "nodes",
                    "subresource": subresource,
                    "name": self.node_name,
                },
            },
        })
    }
}

/// A yes and a no in one are no answer.
fn may(status: AnswerStatus) -> Result<bool, ReviewError> {
    match (status.allowed, status.denied) {
        (true, true) => Err(ReviewError::Refused(
            "the access review was answered with both a yes and a no".to_owned(),
        )),
        (allowed, _) => Ok(allowed),
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use proptest::prelude::*;

    use super::*;
    use crate::{attributes, parrot};

    /// What becomes of one who wants the pods of a node, if this is the answer.
    fn authorize(answer: &[u8]) -> Result<(), Denied> {
        let (kube, never) = (parrot::kube(answer), Duration::ZERO);
        let door = Authorizer::Webhook(SubjectReviews::new(kube, "n1".into(), never, never));
        let user = User {
            name: "eve".to_owned(),
            ..User::default()
        };
        let wanted = attributes(&Method::GET, "/pods");
        parrot::block_on(door.authorize(&user, &wanted))
    }

    #[test]
    fn a_yes_beside_a_no_is_neither() {
        let no = "Forbidden (user=eve, verb=get, resource=nodes, subresource(s)=[pods proxy])\n";
        let neither = "Authorization error (user=eve, verb=get, resource=nodes, subresource=pods)";
        let cases = [
            (json!({"allowed": true}), "yes"),
            (json!({"allowed": true, "denied": false}), "yes"),
            (json!({"allowed": false}), no),
            (json!({"denied": true}), no),
            (json!({"allowed": false, "denied": true}), no),
            (json!({}), no),
            (json!(null), no),
            (json!([true]), no),
            (json!({"allowed": true, "denied": true}), neither),
            (json!({"allowed": "true"}), neither),
            (json!({"allowed": true, "denied": "no"}), neither),
            (json!({"allowed": true, "denied": null}), neither),
        ];
        for (status, expected) in cases {
            let found = authorize(json!({"status": status}).to_string().as_bytes());
            let found = found.map_or_else(|why| why.to_string(), |()| "yes".to_owned());
            assert_eq!(found, expected, "{status}");
        }
    }

    const FIELDS: &[&str] = &["allowed", "denied", "reason", "evaluationError", "status"];

    proptest! {
        #[test]
        fn only_a_plain_yes_gives_a_right(status in parrot::status(FIELDS)) {
            let said = |field: &str| status.get(field) == Some(&Value::Bool(true));
            let plain = said("allowed") && !said("denied");
            if authorize(json!({"status": status}).to_string().as_bytes()).is_ok() {
                prop_assert!(plain, "{status}");
            }
        }

        #[test]
        fn nobody_comes_in_by_noise(noise in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(authorize(&noise).is_err());
        }
    }
}
