//! What the API server knows of certificates for pods: requests, and what their signers said.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;

/// A PodCertificateRequest, as far as we ask.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Request {
    pub metadata: Metadata,
    pub status: Status,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Metadata {
    pub name: String,
    pub namespace: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    pub conditions: Vec<Condition>,
    pub certificate_chain: String,
    pub begin_refresh_at: Option<Time>,
    pub not_after: Option<Time>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub reason: String,
    pub message: String,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Issued(Chain),
    Refused(Refusal),
}

/// A certificate with those between it and its authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) text: String,
    pub(crate) begin_refresh_at: Timestamp,
    pub(crate) not_after: Timestamp,
}

/// For good: this certificate is not asked for again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) how: How,
    pub(crate) reason: String,
    pub(crate) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Denied,
    Failed,
}

impl Request {
    /// None as long as the signer has not decided.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        self.status.conditions.iter().find_map(|condition| {
            let refused = |how| {
                Some(Verdict::Refused(Refusal {
                    how,
                    reason: condition.reason.clone(),
                    message: condition.message.clone(),
                }))
            };
            match condition.kind.as_str() {
                "Denied" => refused(How::Denied),
                "Failed" => refused(How::Failed),
                "Issued" => Some(self.status.issued()),
                _ => None,
            }
        })
    }
}

impl Status {
    fn issued(&self) -> Verdict {
        let text = krablet_kube::pem::certificates_only(&self.certificate_chain);
        match (&self.begin_refresh_at, &self.not_after) {
            (Some(begin), Some(end)) if !text.is_empty() => Verdict::Issued(Chain {
                text,
                begin_refresh_at: begin.0,
                not_after: end.0,
            }),
            _ => Verdict::Refused(Refusal {
                how: How::Failed,
                reason: "Incomplete".to_owned(),
                message: "it was issued without a certificate, or without its times".to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn verdict(status: Value) -> Option<Verdict> {
        let request = json!({"metadata": {"name": "req-1", "namespace": "ns"}, "spec": {"podName": "web"}, "status": status});
        let request: Request = serde_json::from_value(request).unwrap();
        request.verdict()
    }

    #[test]
    fn what_became_of_a_request() {
        let chain = krablet_kube::pem::encoded("CERTIFICATE", b"leaf");
        let condition =
            |kind: &str| json!([{"type": kind, "status": "True", "reason": "R", "message": "m"}]);
        let whole = json!({"conditions": condition("Issued"), "certificateChain": format!("x: y\n{chain}"),
                           "beginRefreshAt": "1970-01-01T00:10:00Z", "notBefore": "1970-01-01T00:00:00Z", "notAfter": "1970-01-01T01:00:00Z"});
        let refused = |how| {
            Some(Verdict::Refused(Refusal {
                how,
                reason: "R".into(),
                message: "m".into(),
            }))
        };
        let at = |second| Timestamp::from_second(second).unwrap();
        for (status, expected) in [
            (json!({}), None),
            (json!({"conditions": condition("Odd")}), None),
            (
                json!({"conditions": condition("Denied")}),
                refused(How::Denied),
            ),
            (
                json!({"conditions": condition("Failed")}),
                refused(How::Failed),
            ),
            (
                whole.clone(),
                Some(Verdict::Issued(Chain {
                    text: chain.clone(),
                    begin_refresh_at: at(600),
                    not_after: at(3600),
                })),
            ),
        ] {
            assert_eq!(verdict(status.clone()), expected, "{status}");
        }
        for lacking in ["certificateChain", "beginRefreshAt", "notAfter"] {
            let mut status = whole.clone();
            status.as_object_mut().unwrap().remove(lacking);
            let Some(Verdict::Refused(refusal)) = verdict(status) else {
                panic!("{lacking}");
            };
            assert_eq!(
                (refusal.how, refusal.reason.as_str()),
                (How::Failed, "Incomplete")
            );
        }
    }
}
