//! Which servers are believed to be who they say, and what is wrong with the certificate of one that is not.

use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Where distributions keep their roots.
const ROOT_FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The machine's root certificates; those that cannot be read do not count. Reads files.
pub fn machine_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let named = std::env::var("SSL_CERT_FILE").ok();
    let files = named.iter().map(String::as_str).chain(ROOT_FILES);
    for file in files {
        let Ok(certificates) = CertificateDer::pem_file_iter(file) else {
            continue;
        };
        let (added, _) = roots.add_parsable_certificates(certificates.flatten());
        if added > 0 {
            break;
        }
    }
    roots
}

/// Takes any certificate: for those who ask whether a server answers, not who it is. Nor has the server to
/// show that the certificate is its own, since it could make one for the purpose.
#[derive(Debug)]
pub struct AnyCertificate(pub Arc<CryptoProvider>);

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
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The error of TLS in a failed read, write or handshake, if it was that.
pub fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// What is wrong with a server's certificate, to whoever has to mend it.
pub fn certificate_problem(problem: &CertificateError) -> String {
    const CLOCK: &str = "the clock of this machine may be wrong";
    let words = match problem {
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
    };
    format!("the server's certificate {words}")
}

fn shown(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let time = Timestamp::from_second(seconds);
    time.map_or_else(|_| "the end of time".to_owned(), |time| time.to_string())
}
