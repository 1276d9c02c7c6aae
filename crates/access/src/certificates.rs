//! Client certificates. The handshake takes any, so that who shows a wrong one gets an answer and not a broken line; it
//! does check that the key is the client's. Whether the certificate counts is decided per request, by the authorities that
//! hold then: a file that changes takes effect at once, also on connections that are open.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::User;

/// For the handshake.
#[derive(Debug)]
pub struct AnyClient(pub Arc<CryptoProvider>);

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The authorities whose word on clients counts. Clones share them.
#[derive(Clone)]
pub struct ClientCertificates {
    provider: Arc<CryptoProvider>,
    verifier: Arc<RwLock<Arc<dyn ClientCertVerifier>>>,
}

impl fmt::Debug for ClientCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientCertificates")
    }
}

impl ClientCertificates {
    /// From the text of `authentication.x509.clientCAFile`.
    pub fn new(pem: &[u8]) -> Result<Self, String> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = verifier(&provider, pem)?;
        Ok(Self {
            provider,
            verifier: Arc::new(RwLock::new(verifier)),
        })
    }

    /// Takes in the file's new text; what cannot be used leaves the old in force.
    pub fn replace(&self, pem: &[u8]) -> Result<(), String> {
        let new = verifier(&self.provider, pem)?;
        *self
            .verifier
            .write()
            .unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Whose the certificate is, or why it does not count.
    pub(crate) fn user(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<Option<User>, String> {
        let Some((own, others)) = chain.split_first() else {
            return Ok(None);
        };
        let verifier = self.verifier.read();
        let verifier = verifier.unwrap_or_else(PoisonError::into_inner).clone();
        let verified = verifier.verify_client_cert(own, others, now);
        verified.map_err(|e| e.to_string())?;
        subject(own).map(Some)
    }
}

fn verifier(
    provider: &Arc<CryptoProvider>,
    pem: &[u8],
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|e| e.to_string())?;
        roots.add(certificate).map_err(|e| e.to_string())?;
    }
    if roots.is_empty() {
        return Err("it holds no certificate".to_owned());
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map(|verifier| verifier as Arc<dyn ClientCertVerifier>)
        .map_err(|e| e.to_string())
}

/// The common name is the user's, organizations are groups.
fn subject(certificate: &CertificateDer<'_>) -> Result<User, String> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|e| e.to_string())?;
    let subject = parsed.subject();
    let texts = |found: &x509_parser::prelude::AttributeTypeAndValue<'_>| {
        found.as_str().map(str::to_owned).map_err(|e| e.to_string())
    };
    let name = subject.iter_common_name().last().map(texts).transpose()?;
    let name = name.filter(|name| !name.is_empty());
    Ok(User {
        name: name.ok_or("its subject has no common name")?,
        groups: subject
            .iter_organization()
            .map(texts)
            .collect::<Result<_, _>>()?,
        ..User::default()
    })
}
