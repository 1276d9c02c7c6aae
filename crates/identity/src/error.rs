//! Why the node has no certificate, or no new one.

use std::io;
use std::time::Duration;

use jiff::Timestamp;
use krablet_kube::ApiError;
use krablet_kube::kubeconfig::KubeconfigError;

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Names what was tried and on which path.
    #[error("{0}")]
    Files(#[from] io::Error),
    /// A certificate and key that cannot be used, with the reason.
    #[error("{0}")]
    Pair(String),
    #[error("cannot make a key or a request for a certificate: {0}")]
    Key(String),
    #[error("cannot {doing}: {error}")]
    Api {
        doing: &'static str,
        error: ApiError,
    },
    #[error("certificate signing request {name} was denied, reason: {reason}, message: {message}")]
    Denied {
        name: String,
        reason: String,
        message: String,
    },
    #[error("certificate signing request {name} failed, reason: {reason}, message: {message}")]
    Failed {
        name: String,
        reason: String,
        message: String,
    },
    #[error("certificate signing request {name} was not approved and signed within {}", minutes(.waited))]
    NotSigned { name: String, waited: Duration },
    /// Deleted, or another object stands under its name.
    #[error("certificate signing request {name} was deleted before a certificate was issued")]
    Vanished { name: String },
    /// One from an earlier try that is of no use any more.
    #[error("certificate signing request {name} cannot be used again: {why}")]
    Stale { name: String, why: String },
    #[error("the certificate issued for {name} cannot be used: {why}")]
    Issued { name: String, why: String },
    #[error("the node has no addresses yet to ask for a serving certificate with")]
    NoAddresses,
    /// Only a start from the beginning can help.
    #[error("{}, and none is to be had: {refusal}", lost(.expired))]
    Lost {
        expired: Option<Timestamp>,
        refusal: String,
    },
    #[error("{0}")]
    Kubeconfig(#[from] KubeconfigError),
    /// Neither the kubeconfig nor the bootstrap kubeconfig brings credentials.
    #[error("{0}")]
    NoBeginning(String),
}

fn minutes(waited: &Duration) -> String {
    format!("{} min", waited.as_secs() / 60)
}

fn lost(expired: &Option<Timestamp>) -> String {
    match expired {
        Some(at) => format!("the client certificate expired at {at}"),
        None => "there is no client certificate".into(),
    }
}

impl IdentityError {
    pub(crate) fn api(doing: &'static str) -> impl FnOnce(ApiError) -> Self {
        move |error| IdentityError::Api { doing, error }
    }

    /// The same try may go well later, without anybody doing anything about it.
    pub fn is_passing(&self) -> bool {
        match self {
            IdentityError::Api { error, .. } => error.is_passing(),
            IdentityError::NotSigned { .. }
            | IdentityError::Vanished { .. }
            | IdentityError::Stale { .. } => true,
            _ => false,
        }
    }

    /// Somebody decided against this node: asking again is no answer to that.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            IdentityError::Denied { .. } | IdentityError::Failed { .. }
        )
    }

    /// The way to the API server is open, and it leads nowhere.
    pub(crate) fn is_answer(&self) -> bool {
        match self {
            // What cannot be read comes from whatever stands before the server.
            IdentityError::Api {
                error: ApiError::Decode(_),
                ..
            } => false,
            IdentityError::Api { error, .. } => !error.is_passing(),
            _ => self.is_refusal(),
        }
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            IdentityError::Api { error, .. } => error.retry_after(),
            _ => None,
        }
    }
}
