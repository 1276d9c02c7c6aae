//! TLS to the API server: whom to trust, what to show, and what a refusal means in words.

use std::fmt;
use std::io;
use std::sync::Arc;

use krablet_linux::WallClock;
use krablet_net::trust;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{AlertDescription, ClientConfig, RootCertStore, SignatureScheme};

use super::server::{Server, Trust};
use crate::ApiError;
use crate::credentials::Identity;
use crate::kubeconfig::Pem;

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
        Trust::Machine => match trust::machine_roots() {
            roots if roots.is_empty() => {
                let problem = "no certificate authority is given, and this machine trusts none";
                return Err(problem.to_owned());
            }
            roots => roots,
        },
        Trust::Blind => return Ok(Arc::new(trust::AnyCertificate(provider.clone()))),
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

/// What a failed handshake, or an alert after it, means to whoever has to mend it.
pub(super) fn failure(server: &Server, error: &io::Error) -> ApiError {
    match trust::tls_error(error) {
        Some(rustls::Error::InvalidCertificate(problem)) => {
            let problem = trust::certificate_problem(problem);
            ApiError::Tls(format!("{server}: {problem}"))
        }
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
