//! Who we are: what every request carries, and which certificate a connection shows.

mod exec;
mod files;

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use krablet_linux::WallClock;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

use crate::ApiError;
use crate::kubeconfig::{Cluster, Kubeconfig, KubeconfigError, Pem, User};
use exec::Exec;
use files::{CertificateFiles, TokenFile};

/// A client certificate with its key. Two are the same if they are one allocation.
pub type Identity = Arc<CertifiedKey>;
/// The certificate of the moment. Whoever rotates it holds the sender; `None` means there is none yet.
pub type IdentityReceiver = watch::Receiver<Option<Identity>>;

enum Certificate {
    None,
    Fixed(Identity),
    Rotating(IdentityReceiver),
    Files(CertificateFiles),
}

enum Authorization {
    None,
    Fixed(HeaderValue),
    TokenFile(TokenFile),
}

pub struct Credentials {
    certificate: Certificate,
    authorization: Authorization,
    exec: Option<Exec>,
}

/// What one request goes with.
#[derive(Clone, Default)]
pub(crate) struct Presented {
    pub(crate) authorization: Option<HeaderValue>,
    pub(crate) identity: Option<Identity>,
    /// Which reading of a source that changes this is.
    serial: u64,
}

impl Credentials {
    /// Anonymous.
    pub fn none() -> Self {
        Self {
            certificate: Certificate::None,
            authorization: Authorization::None,
            exec: None,
        }
    }

    pub fn certificate(identity: Identity) -> Self {
        Self {
            certificate: Certificate::Fixed(identity),
            ..Self::none()
        }
    }

    /// Calls made after a change go by a new connection that shows the new certificate; what runs on the old one
    /// goes on there.
    pub fn rotating_certificate(identity: IdentityReceiver) -> Self {
        Self {
            certificate: Certificate::Rotating(identity),
            ..Self::none()
        }
    }

    pub fn bearer_token(token: &str) -> Result<Self, ApiError> {
        Ok(Self {
            authorization: Authorization::Fixed(bearer(token)?),
            ..Self::none()
        })
    }

    /// Those of the kubeconfig's current user.
    pub fn of(config: &Kubeconfig, clock: Arc<dyn WallClock>) -> Result<Self, KubeconfigError> {
        let (cluster, user) = config.current()?;
        let mut credentials = Self {
            certificate: certificate_of(config, user)?,
            authorization: authorization_of(config, user)?,
            exec: None,
        };
        // Whatever is said in so many words goes before the plugin.
        if matches!(credentials.certificate, Certificate::None)
            && matches!(credentials.authorization, Authorization::None)
            && let Some(exec) = &user.exec
        {
            let authority = authority_of(config, cluster)?;
            let exec = Exec::new(exec.clone(), cluster, authority, clock);
            credentials.exec = Some(exec);
        }
        Ok(credentials)
    }

    /// What the next request goes with.
    pub(crate) async fn present(&self) -> Result<Presented, ApiError> {
        if let Some(exec) = &self.exec {
            return exec.present().await;
        }
        let mut presented = Presented::default();
        match &self.certificate {
            Certificate::None => {}
            Certificate::Fixed(identity) => presented.identity = Some(identity.clone()),
            Certificate::Rotating(receiver) => {
                let identity = receiver.borrow().clone();
                let missing = || ApiError::Credentials("there is no client certificate yet".into());
                presented.identity = Some(identity.ok_or_else(missing)?);
            }
            Certificate::Files(files) => {
                (presented.identity, presented.serial) = files.present().await?;
            }
        }
        match &self.authorization {
            Authorization::None => {}
            Authorization::Fixed(header) => presented.authorization = Some(header.clone()),
            Authorization::TokenFile(file) => {
                (presented.authorization, presented.serial) = file.present().await?;
            }
        }
        Ok(presented)
    }

    /// The server did not take it: what can be got anew is, for the next request.
    pub(crate) fn refused(&self, presented: &Presented) {
        if let Some(exec) = &self.exec {
            exec.refused(presented.serial);
        }
        if let Certificate::Files(files) = &self.certificate {
            files.refused(presented.serial);
        }
        if let Authorization::TokenFile(file) = &self.authorization {
            file.refused(presented.serial);
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let certificate = match &self.certificate {
            Certificate::None => "none",
            Certificate::Fixed(_) => "fixed",
            Certificate::Rotating(_) => "rotating",
            Certificate::Files(_) => "files",
        };
        let authorization = match &self.authorization {
            Authorization::None => "none",
            Authorization::Fixed(_) => "fixed",
            Authorization::TokenFile(_) => "token file",
        };
        f.debug_struct("Credentials")
            .field("certificate", &certificate)
            .field("authorization", &authorization)
            .field("exec", &self.exec.is_some())
            .finish()
    }
}

fn certificate_of(config: &Kubeconfig, user: &User) -> Result<Certificate, KubeconfigError> {
    let (Some(certificate), Some(key)) = (&user.client_certificate, &user.client_key) else {
        return Ok(Certificate::None);
    };
    let load = |pem: &Pem, name: &str| {
        pem.load().map_err(|error| match pem {
            Pem::File(path) => {
                let problem = format!("cannot read {}: {error}", path.display());
                config.bad(config.user_field(user, name), problem)
            }
            Pem::Data(_) => config.bad(config.user_field(user, name), error.to_string()),
        })
    };
    let pems = (
        load(certificate, "client-certificate")?,
        load(key, "client-key")?,
    );
    let identity = load_identity(&pems.0, &pems.1).map_err(|error| {
        let field = config.user_field(user, "client-certificate");
        config.bad(field, error.to_string())
    })?;
    if matches!((certificate, key), (Pem::Data(_), Pem::Data(_))) {
        return Ok(Certificate::Fixed(identity));
    }
    let files = CertificateFiles::new((certificate.clone(), key.clone()), pems, identity);
    Ok(Certificate::Files(files))
}

fn authorization_of(config: &Kubeconfig, user: &User) -> Result<Authorization, KubeconfigError> {
    let token = match &user.token {
        Some(token) => {
            let bad = |e: ApiError| config.bad(config.user_field(user, "token"), e.to_string());
            Some(bearer(token.expose()).map_err(bad)?)
        }
        None => None,
    };
    if let Some(path) = &user.token_file {
        let file = TokenFile::new(path.clone(), token);
        return Ok(Authorization::TokenFile(file));
    }
    if let Some(token) = token {
        return Ok(Authorization::Fixed(token));
    }
    if user.username.is_none() && user.password.is_none() {
        return Ok(Authorization::None);
    }
    let name = user.username.as_deref().unwrap_or_default();
    let password = user.password.as_ref().map_or("", |p| p.expose());
    let both = STANDARD.encode(format!("{name}:{password}"));
    let bad = |e: ApiError| config.bad(config.user_field(user, "username"), e.to_string());
    let header = secret_header(&format!("Basic {both}")).map_err(bad)?;
    Ok(Authorization::Fixed(header))
}

/// The PEM text of the cluster's authority, as plugins are told.
fn authority_of(
    config: &Kubeconfig,
    cluster: &Cluster,
) -> Result<Option<Vec<u8>>, KubeconfigError> {
    let Some(pem) = &cluster.certificate_authority else {
        return Ok(None);
    };
    let text = pem.load().map_err(|error| {
        let field = config.cluster_field(cluster, "certificate-authority");
        config.bad(field, format!("cannot read {pem:?}: {error}"))
    })?;
    Ok(Some(text))
}

/// A certificate chain and the key that belongs to it, from PEM text; both may be the same text.
pub fn load_identity(certificate: &[u8], key: &[u8]) -> Result<Identity, ApiError> {
    let failed = |problem: String| ApiError::Credentials(problem);
    let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<_, _>>()
        .map_err(|e| failed(format!("cannot read the client certificate: {e}")))?;
    if chain.is_empty() {
        return Err(failed("there is no certificate in the PEM text".into()));
    }
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|e| failed(format!("cannot read the client key: {e}")))?;
    match CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()) {
        Ok(identity) => Ok(Arc::new(identity)),
        Err(rustls::Error::InconsistentKeys(_)) => {
            let problem = "the client key does not belong to the client certificate";
            Err(failed(problem.into()))
        }
        Err(e) => Err(failed(format!("cannot use the client certificate: {e}"))),
    }
}

fn bearer(token: &str) -> Result<HeaderValue, ApiError> {
    secret_header(&format!("Bearer {}", token.trim()))
}

fn secret_header(text: &str) -> Result<HeaderValue, ApiError> {
    let bad = || ApiError::Credentials("holds characters no header can carry".into());
    let mut header = HeaderValue::from_str(text).map_err(|_| bad())?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests;
