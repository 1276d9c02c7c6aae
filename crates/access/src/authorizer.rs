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
}

impl Authorizer {
    /// Lets the user pass if any one of the subresources is his.
    pub async fn authorize(&self, user: &User, wanted: &Attributes) -> Result<(), Denied> {
        let Authorizer::Webhook(reviews) = self else {
            return Ok(());
        };
        for subresource in &wanted.subresources {
            match reviews.review(user, wanted.verb, subresource).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
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
            read: |status: AnswerStatus| Ok(status.allowed),
        };
        let lasts = |allowed: &bool| match allowed {
            true => self.allowed_lasts,
            false => self.denied_lasts,
        };
        self.reviews.verdict(&question, review, lasts).await
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
