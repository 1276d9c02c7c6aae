//! A certificate chain with its private key: parsed, found to fit together, and written as PEM.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use krablet_kube::pem;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::X509Name;

use crate::IdentityError;

/// Every certificate of a node is in this group.
pub(crate) const NODES: &str = "system:nodes";

/// The name the API server knows a node's agent by.
pub(crate) fn node_user(node: &str) -> String {
    format!("system:node:{node}")
}

/// From when to when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

impl Validity {
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now > self.not_after
    }

    pub fn is_not_yet(&self, now: Timestamp) -> bool {
        now < self.not_before
    }
}

/// What of a distinguished name the API server looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    pub common_name: String,
    pub organizations: Vec<String>,
}

impl Subject {
    pub(crate) fn of(name: &X509Name<'_>) -> Self {
        let text = |a: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            a.as_str().unwrap_or_default().to_owned()
        };
        Self {
            common_name: name.iter_common_name().next().map(text).unwrap_or_default(),
            organizations: name.iter_organization().map(text).collect(),
        }
    }

    pub(crate) fn of_node(node: &str) -> Self {
        Self {
            common_name: node_user(node),
            organizations: vec![NODES.to_owned()],
        }
    }
}

struct Inner {
    certified: Arc<CertifiedKey>,
    key: PrivateKeyDer<'static>,
    subject: Subject,
    validity: Validity,
}

/// A certificate chain, leaf first, and the key the leaf is for. Clones share one.
#[derive(Clone)]
pub struct Pair {
    inner: Arc<Inner>,
}

impl fmt::Debug for Pair {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("subject", &self.inner.subject)
            .field("validity", &self.inner.validity)
            .finish_non_exhaustive()
    }
}

impl Pair {
    /// Of PEM texts; the two may be one and the same. What else is in them does not matter.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<_, _>>()
            .map_err(|e| wrong(format!("the certificate is no PEM: {e}")))?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| wrong("there is no private key in it".into()))?;
        Self::from_der(chain, key)
    }

    fn from_der(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, IdentityError> {
        let leaf = chain
            .first()
            .ok_or_else(|| wrong("there is no certificate in it".into()))?;
        let (subject, validity) = read_leaf(leaf)?;
        let signer = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key)
            .map_err(|_| wrong("the private key is of no known kind, or damaged".into()))?;
        let certified = CertifiedKey::new(chain, signer);
        certified
            .keys_match()
            .map_err(|_| wrong("the private key is not the certificate's".into()))?;
        let inner = Inner {
            certified: Arc::new(certified),
            key,
            subject,
            validity,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// As a TLS client shows it.
    pub fn certified(&self) -> &Arc<CertifiedKey> {
        &self.inner.certified
    }

    /// Of the leaf.
    pub fn validity(&self) -> Validity {
        self.inner.validity
    }

    /// The certificate names this node and makes it one of the nodes.
    pub fn is_for_node(&self, node: &str) -> bool {
        let subject = &self.inner.subject;
        subject.common_name == node_user(node) && subject.organizations.iter().any(|o| o == NODES)
    }

    pub fn same_certificate(&self, other: &Pair) -> bool {
        self.inner.certified.cert.first() == other.inner.certified.cert.first()
    }

    /// Certificates, leaf first, then the key. Holds the secret.
    pub(crate) fn to_pem(&self) -> String {
        let mut text = String::new();
        for certificate in &self.inner.certified.cert {
            text += &pem::encoded("CERTIFICATE", certificate);
        }
        text + &key_pem(&self.inner.key)
    }
}

fn wrong(why: String) -> IdentityError {
    IdentityError::Pair(why)
}

fn read_leaf(der: &[u8]) -> Result<(Subject, Validity), IdentityError> {
    let (_, leaf) = X509Certificate::from_der(der)
        .map_err(|e| wrong(format!("cannot read the certificate: {e}")))?;
    let time = |seconds: i64| {
        Timestamp::from_second(seconds)
            .map_err(|e| wrong(format!("the certificate's dates make no sense: {e}")))
    };
    let validity = Validity {
        not_before: time(leaf.validity().not_before.timestamp())?,
        not_after: time(leaf.validity().not_after.timestamp())?,
    };
    Ok((Subject::of(leaf.subject()), validity))
}

pub(crate) fn key_pem(key: &PrivateKeyDer<'_>) -> String {
    let label = match key {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        _ => "PRIVATE KEY",
    };
    pem::encoded(label, key.secret_der())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Authority, at};

    #[test]
    fn a_pair_survives_its_own_pem() {
        let pair = Authority::new().pair("node-1", at(0), at(3600));
        let text = pair.to_pem();
        let again = Pair::from_pem(text.as_bytes(), text.as_bytes()).unwrap();
        assert!(pair.same_certificate(&again));
        assert_eq!(again.to_pem(), text);
        assert_eq!(
            again.validity(),
            Validity {
                not_before: at(0),
                not_after: at(3600)
            }
        );
        assert!(again.is_for_node("node-1"));
        assert!(!again.is_for_node("node-2"));
    }

    #[test]
    fn a_pair_that_cannot_be_used_says_why() {
        let authority = Authority::new();
        let one = authority.pair("a", at(0), at(60)).to_pem();
        let other = authority.pair("a", at(0), at(60)).to_pem();
        let key_at = one.find("-----BEGIN PRIVATE").unwrap();
        let (certificate, key) = one.split_at(key_at);
        let cases = [
            ("", key, "there is no certificate in it"),
            (certificate, "", "there is no private key in it"),
            (certificate, &key[..60], "there is no private key in it"),
            (
                certificate,
                &other,
                "the private key is not the certificate's",
            ),
            (
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                key,
                "cannot read the certificate: ",
            ),
        ];
        for (certificate, key, why) in cases {
            let error = Pair::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with(why), "{error}, not {why}");
        }
        // Torn anywhere: never a pair, never a panic.
        for length in 0..one.len() - 1 {
            let torn = &one.as_bytes()[..length];
            let result = Pair::from_pem(torn, torn);
            assert!(result.is_err() || length >= one.trim_end().len());
        }
    }

    #[test]
    fn debug_shows_no_key() {
        let pair = Authority::new().pair("node-1", at(0), at(60));
        let shown = format!("{pair:?}");
        assert!(shown.contains("system:node:node-1"), "{shown}");
        assert!(!shown.to_lowercase().contains("key"), "{shown}");
    }
}
