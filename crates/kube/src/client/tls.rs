//! TLS to the API server: whom to trust, what to show, and what a refusal means in words.

use std::fmt;
use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use krablet_linux::WallClock;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore,
    SignatureScheme,
};

use super::server::{Server, Trust};
use crate::ApiError;
use crate::credentials::Identity;
use crate::kubeconfig::Pem;

/// Where distributions keep the roots the machine trusts.
const ROOT_FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// For one connection to `server` that shows `identity`. Reads files.
pub(super) fn config(
    server: &Server,
    identity: Option<Identity>,
    clock: Arc<dyn WallClock>,
    protocols: &[&[u8]],
) -> Result<ClientConfig, ApiError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = verifier(&server.trust, &provider)
        .map_err(|problem| ApiError::Tls(format!("{server}: {problem}")))?;
    let builder = ClientConfig::builder_with_details(provider, Arc::new(Now(clock)))
        .with_safe_default_protocol_versions()
        .map_err(|error| ApiError::Tls(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(Shown(identity))),
        None => builder.with_no_client_auth(),
    };
    // Connections are few and long; a ticket of an old one could speak for an old certificate.
    config.resumption = Resumption::disabled();
    config.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
    Ok(config)
}

pub(super) fn server_name(server: &Server) -> Result<ServerName<'static>, ApiError> {
    let name = server.tls_name.as_ref().unwrap_or(&server.host);
    ServerName::try_from(name.clone())
        .map_err(|_| ApiError::Tls(format!("{server}: {name:?} is no name of a server")))
}

fn verifier(
    trust: &Trust,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let roots = match trust {
        Trust::Authority(pem) => authorities(pem)?,
        Trust::Machine => machine_roots()?,
        Trust::Blind => return Ok(Arc::new(AnyCertificate(provider.clone()))),
    };
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let verifier = verifier.build().map_err(|e| e.to_string())?;
    Ok(verifier)
}

/// The authorities in a PEM text; at least one.
pub(super) fn authorities(pem: &Pem) -> Result<RootCertStore, String> {
    let text = pem
        .load()
        .map_err(|e| format!("cannot read {pem:?}: {e}"))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|e| format!("{pem:?} is no PEM text: {e}"))?;
        let added = roots.add(certificate);
        added.map_err(|e| format!("{pem:?} holds a certificate that cannot be read: {e}"))?;
    }
    match roots.is_empty() {
        true => Err(format!("{pem:?} holds no certificate")),
        false => Ok(roots),
    }
}

fn machine_roots() -> Result<RootCertStore, String> {
    let named = std::env::var("SSL_CERT_FILE").ok();
    for file in named.iter().map(String::as_str).chain(ROOT_FILES) {
        let Ok(certificates) = CertificateDer::pem_file_iter(file) else {
            continue;
        };
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(certificates.flatten());
        if added > 0 {
            return Ok(roots);
        }
    }
    Err("no certificate authority is given, and this machine trusts none".to_owned())
}

/// What a failed handshake, or an alert after it, means to whoever has to mend it.
pub(super) fn failure(server: &Server, error: &io::Error) -> ApiError {
    let inner = error
        .get_ref()
        .and_then(|e| e.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(problem)) => ApiError::Tls(format!(
            "{server}: the server's certificate {}",
            words(problem)
        )),
        Some(rustls::Error::AlertReceived(alert)) if is_about_us(*alert) => {
            let problem = format!("{server}: the server refuses our client certificate: {alert:?}");
            ApiError::Tls(problem)
        }
        Some(rustls::Error::InvalidMessage(_)) => {
            ApiError::Tls(format!("{server}: the server does not speak TLS there"))
        }
        Some(error) => ApiError::Tls(format!("{server}: TLS: {error}")),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            ApiError::Connection(format!("{server}: the server closed the connection"))
        }
        None => ApiError::Connection(format!("{server}: {error}")),
    }
}

fn is_about_us(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            // An authority of the right name with another key.
            | AlertDescription::DecryptError
    )
}

fn words(problem: &CertificateError) -> String {
    const CLOCK: &str = "the clock of this machine may be wrong";
    match problem {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "is signed by an unknown authority".into()
        }
        CertificateError::Expired => format!("has expired, or {CLOCK}"),
        CertificateError::ExpiredContext { time, not_after } => {
            let (now, end) = (shown(*time), shown(*not_after));
            format!("expired at {end}, and it is {now}, or {CLOCK}")
        }
        CertificateError::NotValidYet => format!("is not valid yet: {CLOCK}"),
        CertificateError::NotValidYetContext { time, not_before } => {
            let (now, start) = (shown(*time), shown(*not_before));
            format!("is valid from {start} on, and it is {now}: {CLOCK}")
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let (wanted, names) = (expected.to_str(), presented.join(", "));
            format!("is not for {wanted}, only for {names}")
        }
        other => format!("is refused: {other:?}"),
    }
}

fn shown(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let time = Timestamp::from_second(seconds);
    time.map_or_else(|_| "the end of time".to_owned(), |time| time.to_string())
}

/// The time certificates are judged by.
struct Now(Arc<dyn WallClock>);

impl TimeProvider for Now {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.now().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            seconds,
        )))
    }
}

impl fmt::Debug for Now {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Now")
    }
}

/// Shows our one certificate whatever authorities the server names: its refusal tells more than a request without
/// any.
#[derive(Debug)]
struct Shown(Arc<CertifiedKey>);

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// `insecure-skip-tls-verify`: takes any certificate, but still wants the server to own its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
