//! What the HTTPS door shows and asks in a handshake.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use krablet_access::AnyClient;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SupportedCipherSuite, SupportedProtocolVersion, version};

/// The pair shown to clients; a new one takes effect with the next handshake. As long as there is none, handshakes fail.
/// Clones share it.
#[derive(Clone)]
pub struct ServingPair {
    provider: Arc<CryptoProvider>,
    shown: Arc<RwLock<Option<Arc<CertifiedKey>>>>,
}

impl Default for ServingPair {
    /// None yet.
    fn default() -> Self {
        Self {
            provider: Arc::new(aws_lc_rs::default_provider()),
            shown: Arc::default(),
        }
    }
}

impl fmt::Debug for ServingPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServingPair")
    }
}

impl ServingPair {
    /// From the texts of a certificate file, the chain after it if there is one, and of a key file.
    pub fn new(certificate: &[u8], key: &[u8]) -> Result<Self, String> {
        let new = Self::default();
        new.replace(certificate, key)?;
        Ok(new)
    }

    /// What cannot be used leaves the old pair in place.
    pub fn replace(&self, certificate: &[u8], key: &[u8]) -> Result<(), String> {
        let new = Arc::new(pair(&self.provider, certificate, key)?);
        self.show(new);
        Ok(())
    }

    /// One whose key was found to be that of the certificate.
    pub fn show(&self, pair: Arc<CertifiedKey>) {
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = Some(pair);
    }
}

impl ResolvesServerCert for ServingPair {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let shown = self.shown.read();
        shown.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn pair(provider: &CryptoProvider, certificate: &[u8], key: &[u8]) -> Result<CertifiedKey, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|e| format!("certificate: {e}"))?;
    if chain.is_empty() {
        return Err("certificate: there is none".to_owned());
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| format!("private key: {e}"))?;
    let pair = CertifiedKey::from_der(chain, key, provider).map_err(|e| e.to_string())?;
    match pair.keys_match() {
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err("the private key is not that of the certificate".to_owned())
        }
        _ => Ok(pair),
    }
}

/// `tlsMinVersion`, `tlsCipherSuites` and `tlsCurvePreferences`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsLimits {
    pub min_version: String,
    pub cipher_suites: Vec<String>,
    /// Groups for the exchange of keys, by their IANA numbers.
    pub groups: Vec<i32>,
}

/// What was valid, but is not known here and will not be offered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unknown {
    suites: Vec<String>,
    groups: Vec<i32>,
}

impl Unknown {
    pub(crate) fn warn(&self) {
        let Self { suites, groups } = self;
        if !suites.is_empty() {
            let suites = suites.join(", ");
            tracing::warn!(
                suites,
                "tlsCipherSuites: these are not offered, for they are not known to be safe"
            );
        }
        if !groups.is_empty() {
            tracing::warn!(
                ?groups,
                "tlsCurvePreferences: these are not offered, for the TLS library does not know them"
            );
        }
    }
}

/// The suites that are wanted, and the names of those that are not known here.
fn choose_suites(
    all: &[SupportedCipherSuite],
    wanted: &[String],
) -> (Vec<SupportedCipherSuite>, Vec<String>) {
    if wanted.is_empty() {
        return (all.to_vec(), Vec::new());
    }
    let known = |suite: &SupportedCipherSuite| format!("{:?}", suite.suite());
    // Those of TLS 1.3 are not chosen, there or here.
    let chosen = all
        .iter()
        .filter(|suite| suite.tls13().is_some() || wanted.contains(&known(suite)));
    let unknown = wanted
        .iter()
        .filter(|name| !all.iter().any(|s| known(s) == **name));
    (chosen.copied().collect(), unknown.cloned().collect())
}

type Group = &'static dyn SupportedKxGroup;

/// The same of groups. Which goes before which is the library's choice, whatever the order they are listed in, as it is
/// Go's in the kubelet.
fn choose_groups(usual: &[Group], wanted: &[i32]) -> (Vec<Group>, Vec<i32>) {
    if wanted.is_empty() {
        return (usual.to_vec(), Vec::new());
    }
    let number = |group: &Group| i32::from(u16::from(group.name()));
    let all = aws_lc_rs::ALL_KX_GROUPS;
    let chosen = all.iter().filter(|group| wanted.contains(&number(group)));
    let unknown = wanted
        .iter()
        .filter(|wanted| !all.iter().any(|group| number(group) == **wanted));
    (chosen.copied().collect(), unknown.copied().collect())
}

/// What is not known here is told to the caller.
pub(crate) fn server_config(
    pair: &ServingPair,
    limits: &TlsLimits,
) -> Result<(ServerConfig, Unknown), String> {
    let usual = &pair.provider;
    let (cipher_suites, suites) = choose_suites(&usual.cipher_suites, &limits.cipher_suites);
    let (kx_groups, groups) = choose_groups(&usual.kx_groups, &limits.groups);
    if kx_groups.is_empty() {
        return Err("tlsCurvePreferences: the TLS library knows none of these".to_owned());
    }
    let unknown = Unknown { suites, groups };
    let provider = Arc::new(CryptoProvider {
        cipher_suites,
        kx_groups,
        ..(**usual).clone()
    });
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions(&limits.min_version))
        .map_err(|e| e.to_string())?;
    let mut config = builder
        .with_client_cert_verifier(Arc::new(AnyClient(provider)))
        .with_cert_resolver(Arc::new(pair.clone()));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((config, unknown))
}

static FROM_12: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
static FROM_13: [&SupportedProtocolVersion; 1] = [&version::TLS13];

fn versions(min: &str) -> &'static [&'static SupportedProtocolVersion] {
    match min {
        "VersionTLS13" => &FROM_13,
        _ => &FROM_12,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(config: &ServerConfig) -> Vec<String> {
        let suites = config.crypto_provider().cipher_suites.iter();
        suites.map(|s| format!("{:?}", s.suite())).collect()
    }

    #[test]
    fn only_suites_that_are_wanted_and_known_to_be_safe() {
        let pair = ServingPair::default();
        let (config, unknown) = server_config(&pair, &TlsLimits::default()).unwrap();
        assert_eq!(unknown, Unknown::default());
        let all = names(&config);
        for suite in &all {
            let safe = suite.starts_with("TLS13_") || suite.starts_with("TLS_ECDHE_");
            assert!(safe && !suite.contains("CBC"), "{suite}");
        }
        let wanted = [
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            "TLS_RSA_WITH_AES_128_CBC_SHA",
        ];
        let limits = TlsLimits {
            min_version: "VersionTLS12".to_owned(),
            cipher_suites: wanted.map(str::to_owned).to_vec(),
            groups: Vec::new(),
        };
        let (config, unknown) = server_config(&pair, &limits).unwrap();
        assert_eq!(unknown.suites, ["TLS_RSA_WITH_AES_128_CBC_SHA"]);
        assert!(unknown.groups.is_empty());
        let offered = names(&config);
        let older: Vec<_> = offered
            .iter()
            .filter(|s| !s.starts_with("TLS13_"))
            .collect();
        assert_eq!(older, ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
        assert_eq!(versions("VersionTLS13").len(), 1);
        assert_eq!(versions("").len(), 2);
    }

    #[test]
    fn only_groups_that_are_wanted() {
        let pair = ServingPair::default();
        let usual = ["X25519", "secp256r1", "secp384r1", "X25519MLKEM768"];
        let cases: [(&[i32], &[&str], &[i32]); 6] = [
            (&[], &usual, &[]),
            (&[29], &["X25519"], &[]),
            // The library's order, not that of the list.
            (
                &[4588, 23, 29],
                &["X25519", "secp256r1", "X25519MLKEM768"],
                &[],
            ),
            // Not among the usual ones.
            (&[4587], &["secp256r1MLKEM768"], &[]),
            (&[25, 24, 1], &["secp384r1"], &[25, 1]),
            (&[25, 1], &[], &[]),
        ];
        for (wanted, expected, missing) in cases {
            let limits = TlsLimits {
                groups: wanted.to_vec(),
                ..TlsLimits::default()
            };
            let Ok((config, unknown)) = server_config(&pair, &limits) else {
                assert!(expected.is_empty(), "{wanted:?}");
                continue;
            };
            let groups = config.crypto_provider().kx_groups.iter();
            let names: Vec<String> = groups.map(|g| format!("{:?}", g.name())).collect();
            assert_eq!(names, expected, "{wanted:?}");
            assert_eq!(unknown.groups, missing, "{wanted:?}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_not_shown() {
        assert!(ServingPair::new(b"", b"").is_err());
        let pair = ServingPair::default();
        assert!(pair.replace(b"no certificate", b"no key").is_err());
        assert!(pair.shown.read().unwrap().is_none());
    }
}
