//! The records as values: `ImagePullIntent` and `ImagePulledRecord` of `kubelet.config.k8s.io/v1beta1`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::keyring::{Coordinates, Credential, Source};

const WRITTEN: &str = "kubelet.config.k8s.io/v1beta1";
const READ: [&str; 2] = [WRITTEN, "kubelet.config.k8s.io/v1alpha1"];
const INTENT: &str = "ImagePullIntent";
const PULLED: &str = "ImagePulledRecord";
const FOREIGN: &str = "ForeignImage";
/// With more secrets than this, a match alone is no reason to write.
const MANY_SECRETS: usize = 100;

/// Whether a file holds what it is read as.
pub(super) trait Versioned {
    fn is_ours(&self) -> bool;
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Intent {
    kind: String,
    api_version: String,
    pub(super) image: String,
}

impl Intent {
    pub(super) fn new(image: &str) -> Self {
        Self {
            kind: INTENT.to_owned(),
            api_version: WRITTEN.to_owned(),
            image: image.to_owned(),
        }
    }
}

impl Versioned for Intent {
    fn is_ours(&self) -> bool {
        self.kind == INTENT && READ.contains(&self.api_version.as_str())
    }
}

/// Of a name that was pulled while an image from elsewhere was there by it. No kubelet has that: it refuses an intent that
/// says more than the name. One that comes after us finds no intent, and takes what is there as from elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Foreign {
    kind: String,
    pub(super) image: String,
    pub(super) image_ref: String,
}

impl Foreign {
    pub(super) fn new(image: &str, id: &str) -> Self {
        Self {
            kind: FOREIGN.to_owned(),
            image: image.to_owned(),
            image_ref: id.to_owned(),
        }
    }
}

impl Versioned for Foreign {
    fn is_ours(&self) -> bool {
        self.kind == FOREIGN
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct PulledRecord {
    kind: String,
    api_version: String,
    last_updated_time: String,
    pub(super) image_ref: String,
    /// By the image's name in pod specs, without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) credential_mapping: BTreeMap<String, Credentials>,
}

impl Versioned for PulledRecord {
    fn is_ours(&self) -> bool {
        self.kind == PULLED && READ.contains(&self.api_version.as_str())
    }
}

/// What an image was pulled with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Credentials {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<UsedSecret>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<UsedAccount>,
    /// None were needed, or all pods of the node have them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) node_pods_accessible: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct UsedSecret {
    uid: String,
    namespace: String,
    name: String,
    credential_hash: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UsedAccount {
    uid: String,
    namespace: String,
    name: String,
}

impl UsedSecret {
    fn place(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }
}

impl UsedAccount {
    fn place(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }
}

fn place(of: &Coordinates) -> (&str, &str, &str) {
    (&of.namespace, &of.name, &of.uid)
}

impl Credentials {
    /// Of a pull; without a credential everybody may have the image.
    pub(super) fn of(used: Option<&Credential>) -> Self {
        match used.and_then(|credential| Some((credential, credential.source.as_ref()?))) {
            None => Self {
                node_pods_accessible: true,
                ..Self::default()
            },
            Some((credential, Source::Secret(from))) => Self {
                kubernetes_secrets: vec![UsedSecret {
                    uid: from.uid.clone(),
                    namespace: from.namespace.clone(),
                    name: from.name.clone(),
                    credential_hash: credential.hash.clone(),
                }],
                ..Self::default()
            },
            Some((_, Source::ServiceAccount(from))) => Self {
                kubernetes_service_accounts: vec![UsedAccount {
                    uid: from.uid.clone(),
                    namespace: from.namespace.clone(),
                    name: from.name.clone(),
                }],
                ..Self::default()
            },
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kubernetes_secrets.is_empty()
            && self.kubernetes_service_accounts.is_empty()
            && !self.node_pods_accessible
    }

    /// The first of these credentials that the image was pulled with: the same content, or the same secret
    /// with other content, or the same service account. And whether that is worth writing down.
    pub(super) fn find<'a>(&self, held: &'a [Credential]) -> Option<(&'a Credential, bool)> {
        let few = self.kubernetes_secrets.len() < MANY_SECRETS;
        let secret = held.iter().find_map(|credential| {
            let Some(Source::Secret(from)) = &credential.source else {
                return None;
            };
            self.kubernetes_secrets.iter().find_map(|used| {
                let same_content =
                    !used.credential_hash.is_empty() && used.credential_hash == credential.hash;
                let same_secret = used.place() == place(from);
                match (same_content, same_secret) {
                    (true, same_secret) => Some((credential, few && !same_secret)),
                    (false, true) if few => Some((credential, true)),
                    _ => None,
                }
            })
        });
        secret.or_else(|| {
            // A pod has one service account.
            let own = held.iter().find_map(|credential| match &credential.source {
                Some(Source::ServiceAccount(from)) => Some((credential, place(from))),
                _ => None,
            });
            let (credential, from) = own?;
            let known = self.kubernetes_service_accounts.iter();
            let mut known = known.filter(|used| used.place() == from);
            known.next().map(|_| (credential, false))
        })
    }

    /// Takes in what is new; false if nothing is.
    fn merge(&mut self, new: Credentials) -> bool {
        if self.node_pods_accessible || new.is_empty() {
            return false;
        }
        if new.node_pods_accessible {
            *self = new;
            return true;
        }
        let mut changed = false;
        for secret in new.kubernetes_secrets {
            let same = self
                .kubernetes_secrets
                .iter()
                .position(|s| s.place() == secret.place());
            match same.and_then(|at| self.kubernetes_secrets.get_mut(at)) {
                Some(old) if *old == secret => continue,
                Some(old) => *old = secret,
                None => self.kubernetes_secrets.push(secret),
            }
            changed = true;
        }
        for account in new.kubernetes_service_accounts {
            if !self.kubernetes_service_accounts.contains(&account) {
                self.kubernetes_service_accounts.push(account);
                changed = true;
            }
        }
        self.kubernetes_secrets
            .sort_by(|a, b| a.place().cmp(&b.place()));
        self.kubernetes_service_accounts
            .sort_by(|a, b| a.place().cmp(&b.place()));
        changed
    }
}

impl PulledRecord {
    /// Without credentials it says only that an agent pulled the image.
    pub(super) fn new(
        id: &str,
        name: &str,
        credentials: Option<Credentials>,
        now: Timestamp,
    ) -> Self {
        Self {
            kind: PULLED.to_owned(),
            api_version: WRITTEN.to_owned(),
            last_updated_time: in_seconds(now),
            image_ref: id.to_owned(),
            credential_mapping: credentials
                .map(|c| (name.to_owned(), c))
                .into_iter()
                .collect(),
        }
    }

    /// The record with these credentials too; `None` if it has them.
    pub(super) fn merged(
        mut self,
        name: &str,
        credentials: Option<Credentials>,
        now: Timestamp,
    ) -> Option<Self> {
        let known = self.credential_mapping.entry(name.to_owned()).or_default();
        if !known.merge(credentials?) {
            return None;
        }
        self.last_updated_time = in_seconds(now);
        self.api_version = WRITTEN.to_owned();
        Some(self)
    }

    /// Whether it was written before the second of that moment. Records tell whole seconds: one of the same second may be
    /// younger than the moment.
    pub(super) fn is_before(&self, moment: Timestamp) -> bool {
        let written: Result<Timestamp, _> = self.last_updated_time.parse();
        written.is_ok_and(|at| at.as_second() < moment.as_second())
    }
}

fn in_seconds(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_the_same_second_are_not_older() {
        // (written, the time in the record, the moment, before?)
        let cases = [
            ("12:26:40.5", "12:26:40", "12:26:40", false),
            ("12:26:40.5", "12:26:40", "12:26:40.4", false),
            ("12:26:40.5", "12:26:40", "12:26:40.999999999", false),
            ("12:26:40.5", "12:26:40", "12:26:41", true),
            ("12:26:40.5", "12:26:40", "12:26:39.9", false),
            ("12:26:39.9", "12:26:39", "12:26:40", true),
            ("12:26:39.9", "12:26:39", "12:26:40.1", true),
        ];
        let moment = |time: &str| -> Timestamp { format!("2024-10-21T{time}Z").parse().unwrap() };
        for (written, told, until, expected) in cases {
            let record = PulledRecord::new("id", "r.io/a", None, moment(written));
            assert_eq!(record.last_updated_time, format!("2024-10-21T{told}Z"));
            assert_eq!(
                record.is_before(moment(until)),
                expected,
                "{written} {until}"
            );
        }
    }
}
