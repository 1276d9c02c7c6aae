//! A certificate authority and what it signs, all of it in memory and in PEM.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, PublicKeyData,
};

const DAY: i64 = 24 * 3600;
const YEAR: i64 = 365 * DAY;

/// A certificate with its private key, both in PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// Who a client certificate is to speak for, and when.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    /// The user's name.
    pub common_name: String,
    /// The user's group; empty for none.
    pub organization: String,
    /// When it begins to be valid, in seconds from now.
    pub starts_in: i64,
    /// When it ceases to be valid, in seconds from now.
    pub ends_in: i64,
}

impl ClientCertificate {
    /// A user of that name in that group, from an hour ago for a year.
    pub fn new(common_name: &str, organization: &str) -> Self {
        Self {
            common_name: common_name.to_owned(),
            organization: organization.to_owned(),
            starts_in: -3600,
            ends_in: YEAR,
        }
    }

    /// The node of that name, with a kubelet's rights.
    pub fn node(name: &str) -> Self {
        Self::new(&format!("system:node:{name}"), "system:nodes")
    }
}

/// A certificate authority.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(common_name: &str) -> Result<Self> {
        let mut params = params(common_name, "", -DAY, 10 * YEAR);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
            KeyUsagePurpose::KeyCertSign,
        ];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)
            .context("signing the authority's own certificate")?;
        Ok(Self { issuer })
    }

    /// Its own certificate and key.
    pub fn pair(&self) -> Pair {
        Pair {
            certificate: pem("CERTIFICATE", self.issuer.der()),
            key: key_pem(self.issuer.key()),
        }
    }

    pub fn certificate(&self) -> String {
        pem("CERTIFICATE", self.issuer.der())
    }

    pub fn client(&self, wish: &ClientCertificate) -> Result<Pair> {
        let mut params = params(
            &wish.common_name,
            &wish.organization,
            wish.starts_in,
            wish.ends_in,
        );
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    /// A server's certificate for these names and addresses.
    pub fn server(&self, common_name: &str, names: Vec<String>) -> Result<Pair> {
        let mut params = params(common_name, "", -3600, YEAR);
        params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Pair> {
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Pair {
            certificate: pem("CERTIFICATE", certificate.der()),
            key: key_pem(&key),
        })
    }
}

fn params(
    common_name: &str,
    organization: &str,
    starts_in: i64,
    ends_in: i64,
) -> CertificateParams {
    let mut subject = DistinguishedName::new();
    if !organization.is_empty() {
        subject.push(DnType::OrganizationName, organization);
    }
    subject.push(DnType::CommonName, common_name);
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + since_epoch(starts_in);
    params.not_after = epoch + since_epoch(ends_in);
    params
}

/// The time that many seconds from now.
fn since_epoch(offset: i64) -> Duration {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Duration::from_secs(now.as_secs().saturating_add_signed(offset))
}

/// A key that signs tokens, not certificates: the private half and the public one.
pub fn token_key() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    let public = pem("PUBLIC KEY", &key.subject_public_key_info());
    Ok((key_pem(&key), public))
}

fn key_pem(key: &KeyPair) -> String {
    pem("PRIVATE KEY", key.serialized_der())
}

/// Bytes in PEM's clothes, sixty-four characters a line.
pub fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, next) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = next;
    }
    pem.push_str(&format!("-----END {label}-----\n"));
    pem
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};

    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let authority = Authority::new("kubernetes").unwrap();
        let pair = authority.client(&ClientCertificate::node("n1")).unwrap();
        let read = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
        assert_eq!(pem("CERTIFICATE", &read), pair.certificate);
        PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
        let lines = pair.certificate.lines();
        assert!(lines.map(str::len).all(|length| length <= 64));
        assert_ne!(authority.certificate(), pair.certificate);
    }
}
