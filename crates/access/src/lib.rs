//! Who may do what at the agent's HTTPS door.
//!
//! [`Authenticator`] says who somebody is: by a client certificate, by a token that the API server knows (of a header, or
//! among the protocols of a WebSocket), or nobody in
//! particular. [`Authorizer`] says whether he may: always, or as the API server decides. [`attributes`] is the table of
//! what each path stands for. Without an answer of the API server nobody gets in, except by a verdict that was given a
//! short time ago.

mod attributes;
mod authenticator;
mod authorizer;
mod certificates;
#[cfg(test)]
mod parrot;
mod protocols;
mod reviews;
mod shares;
mod tokens;
mod user;
mod verdicts;

use krablet_kube::ApiError;

pub use attributes::{Attributes, attributes};
pub use authenticator::{Authenticator, Credentials};
pub use authorizer::{Authorizer, SubjectReviews};
pub use certificates::{AnyClient, ClientCertificates};
pub use protocols::{offered_protocols, offered_token};
pub use tokens::TokenReviews;
pub use user::User;

/// Why nobody was let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// 401. What was shown, if anything, is not worth an explanation to who showed it.
    #[error("Unauthorized")]
    Unauthenticated,
    /// 403
    #[error("{0}")]
    Forbidden(String),
    /// 429: he may come again. In the words of an API server.
    #[error("Too many requests, please try again later.")]
    Busy,
    /// 500: it could not be found out.
    #[error("{0}")]
    Unknown(String),
}

/// Why it could not be found out who somebody is or what he may do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    #[error("the API server was asked and did not answer: {0}")]
    Api(#[from] ApiError),
    #[error("too many are asked about at once")]
    Busy,
    #[error("{0}")]
    Refused(String),
}
