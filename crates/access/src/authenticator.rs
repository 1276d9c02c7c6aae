//! Who somebody is.

use std::net::IpAddr;

use rustls::pki_types::{CertificateDer, UnixTime};

use crate::certificates::ClientCertificates;
use crate::tokens::TokenReviews;
use crate::{Denied, ReviewError, User};

/// What somebody shows.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// From the handshake; the key is known to be his.
    pub chain: &'a [CertificateDer<'static>],
    /// The header `Authorization`.
    pub authorization: Option<&'a str>,
    /// The token among the protocols of a WebSocket, or what is wrong with it.
    pub offered: Result<Option<&'a str>, &'static str>,
    /// Where it comes from, if that can be told.
    pub from: Option<IpAddr>,
    pub now: UnixTime,
}

/// Each way in that is open.
#[derive(Default)]
pub struct Authenticator {
    pub certificates: Option<ClientCertificates>,
    pub tokens: Option<TokenReviews>,
    pub anonymous: bool,
}

impl Authenticator {
    /// Who shows something that does not count is not taken for one who showed nothing.
    pub async fn authenticate(&self, shown: Credentials<'_>) -> Result<User, Denied> {
        let (mut refused, mut busy) = (false, false);
        if let Some(certificates) = &self.certificates {
            match certificates.user(shown.chain, shown.now) {
                Ok(Some(user)) => return Ok(user.authenticated()),
                Ok(None) => {}
                Err(why) => {
                    tracing::info!(err = why, "A client certificate was refused");
                    refused = true;
                }
            }
        }
        if let Some(reviews) = &self.tokens {
            let offered = shown.offered.unwrap_or_else(|why| {
                tracing::info!(err = why, "A WebSocket was refused");
                refused = true;
                None
            });
            let header = shown.authorization.and_then(bearer);
            for token in header.into_iter().chain(offered) {
                match reviews.review(token, shown.from).await {
                    Ok(Some(user)) => return Ok(user.authenticated()),
                    Ok(None) => refused = true,
                    // No line in the log: whoever likes could write as many as he likes.
                    Err(ReviewError::Busy) => busy = true,
                    Err(why) => {
                        tracing::error!(err = %why, "Unable to authenticate the request due to an error");
                        refused = true;
                    }
                }
            }
        }
        match () {
            () if busy => Err(Denied::Busy),
            () if self.anonymous && !refused => Ok(User::anonymous()),
            () => Err(Denied::Unauthenticated),
        }
    }
}

/// The token of `Bearer TOKEN`.
fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.trim().split_once(' ')?;
    let token = token.trim_start();
    let whole = !token.is_empty() && !token.contains(' ');
    (scheme.eq_ignore_ascii_case("bearer") && whole).then_some(token)
}

#[cfg(test)]
mod tests;
