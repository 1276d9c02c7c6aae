//! Nobody passes without being known and allowed: this stands before every handler, unknown paths included.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use krablet_access::{Attributes, Credentials, Denied, attributes, offered_token};
use rustls::pki_types::{CertificateDer, UnixTime};

use super::SharedDoor;
use crate::answers::refuse;

/// When to come again: places are free as soon as an answer of the API server has come.
const AGAIN: HeaderValue = HeaderValue::from_static("1");

/// What is known of a client whatever it says; put into each request of the connection.
#[derive(Clone, Default)]
pub(crate) struct Peer {
    /// Where it comes from, if that is a place of the network.
    pub(crate) address: Option<IpAddr>,
    /// What it showed in the handshake.
    pub(crate) certificates: Arc<Vec<CertificateDer<'static>>>,
}

pub(super) async fn guard(
    State(door): State<SharedDoor>,
    request: Request,
    next: Next,
) -> Response {
    let asker = Asker::of(&request);
    match asker.admit(&door).await {
        Ok(()) => next.run(request).await,
        Err(Denied::Unauthenticated) => refuse(StatusCode::UNAUTHORIZED, "Unauthorized"),
        Err(Denied::Forbidden(why)) => refuse(StatusCode::FORBIDDEN, why),
        Err(why @ Denied::Busy) => {
            let mut response = refuse(StatusCode::TOO_MANY_REQUESTS, why.to_string());
            response.headers_mut().insert(header::RETRY_AFTER, AGAIN);
            response
        }
        Err(Denied::Unknown(why)) => refuse(StatusCode::INTERNAL_SERVER_ERROR, why),
    }
}

/// What a request says of who asks for what.
struct Asker {
    peer: Peer,
    authorization: Option<HeaderValue>,
    offered: Result<Option<String>, &'static str>,
    wanted: Attributes,
}

impl Asker {
    fn of(request: &Request) -> Self {
        let peer = request.extensions().get::<Peer>().cloned();
        Self {
            peer: peer.unwrap_or_default(),
            authorization: request.headers().get(header::AUTHORIZATION).cloned(),
            offered: offered_token(request.headers()),
            wanted: attributes(request.method(), request.uri().path()),
        }
    }

    async fn admit(&self, door: &SharedDoor) -> Result<(), Denied> {
        let header = self.authorization.as_ref();
        let seconds = door.parts.view.now().as_second();
        let since_epoch = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        let access = &door.parts.access;
        let shown = Credentials {
            chain: &self.peer.certificates,
            authorization: header.and_then(|h| h.to_str().ok()),
            offered: self
                .offered
                .as_ref()
                .map(Option::as_deref)
                .map_err(|why| *why),
            from: self.peer.address,
            now: UnixTime::since_unix_epoch(since_epoch),
        };
        let user = access.authenticator.authenticate(shown).await?;
        access.authorizer.authorize(&user, &self.wanted).await
    }
}
