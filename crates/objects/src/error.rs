//! Why there is no object, in the words that statuses and events carry.

use krablet_kube::ApiError;

use crate::{Kind, ObjectKey};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    #[error("{} {:?} not found", .kind.as_str(), .name)]
    NotFound { kind: Kind, name: String },
    /// No pod that is known here refers to it.
    #[error("object {namespace:?}/{name:?} not registered")]
    NotRegistered { namespace: String, name: String },
    /// The server has not told yet.
    #[error("failed to sync {} cache: timed out waiting for the condition", .kind.as_str())]
    NotSynced {
        kind: Kind,
        /// What it said instead, if it said anything.
        cause: Option<ApiError>,
    },
    /// This node has nowhere to take objects from.
    #[error("couldn't get {} {}/{}, no kubeClient defined", match .0.kind { Kind::ConfigMap => "configMap", Kind::Secret => "secret" }, .0.namespace, .0.name)]
    NoSource(ObjectKey),
    /// The server's words.
    #[error("{0}")]
    Api(ApiError),
}

impl ObjectError {
    pub fn not_found(key: &ObjectKey) -> Self {
        ObjectError::NotFound {
            kind: key.kind,
            name: key.name.clone(),
        }
    }

    pub(crate) fn not_registered(key: &ObjectKey) -> Self {
        ObjectError::NotRegistered {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
        }
    }

    pub(crate) fn timed_out(key: &ObjectKey, cause: Option<ApiError>) -> Self {
        ObjectError::NotSynced {
            kind: key.kind,
            cause,
        }
    }

    /// The server is away, or slow; nothing speaks against the object.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            ObjectError::Api(error) => error.is_passing(),
            ObjectError::NotSynced { cause, .. } => cause.as_ref().is_none_or(ApiError::is_passing),
            _ => false,
        }
    }

    pub fn is_not_found(&self) -> bool {
        match self {
            ObjectError::NotFound { .. } => true,
            ObjectError::Api(error) => error.is_not_found(),
            _ => false,
        }
    }
}
