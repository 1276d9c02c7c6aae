//! What the HTTPS door shows and asks in a handshake.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use krablet_access::AnyClient;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SupportedProtocolVersion, version};

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

/// `tlsMinVersion` and `tlsCipherSuites`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsLimits {
    pub min_version: String,
    pub cipher_suites: Vec<String>,
}

/// Names that are not known here are told to the caller: they were valid, and will not be offered.
pub(crate) fn server_config(
    pair: &ServingPair,
    limits: &TlsLimits,
) -> Result<(ServerConfig, Vec<String>), String> {
    let mut provider = (*pair.provider).clone();
    let mut unknown = Vec::new();
    if !limits.cipher_suites.is_empty() {
        let known = |suite: &rustls::SupportedCipherSuite| format!("{:?}", suite.suite());
        let wanted = &limits.cipher_suites;
        // Those of TLS 1.3 are not chosen, there or here.
        provider
            .cipher_suites
            .retain(|suite| suite.tls13().is_some() || wanted.contains(&known(suite)));
        let all = &pair.provider.cipher_suites;
        let missing = wanted
            .iter()
            .filter(|name| !all.iter().any(|s| known(s) == **name));
        unknown = missing.cloned().collect();
    }
    let provider = Arc::new(provider);
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
        assert!(unknown.is_empty());
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
        };
        let (config, unknown) = server_config(&pair, &limits).unwrap();
        assert_eq!(unknown, ["TLS_RSA_WITH_AES_128_CBC_SHA"]);
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
    fn what_cannot_be_used_is_not_shown() {
        assert!(ServingPair::new(b"", b"").is_err());
        let pair = ServingPair::default();
        assert!(pair.replace(b"no certificate", b"no key").is_err());
        assert!(pair.shown.read().unwrap().is_none());
    }
}
