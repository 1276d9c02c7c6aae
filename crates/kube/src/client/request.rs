//! A [`Call`] as an HTTP request.

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request, Uri, Version};
use http_body_util::Full;

use super::server::Server;
use crate::credentials::Presented;
use crate::{ApiError, Call, Detail, Verb};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const METADATA: HeaderValue = HeaderValue::from_static(
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
);

pub(super) fn method(verb: Verb) -> Method {
    match verb {
        Verb::Get => Method::GET,
        Verb::Create => Method::POST,
        Verb::Update => Method::PUT,
        Verb::Patch(_) => Method::PATCH,
        Verb::Delete => Method::DELETE,
    }
}

/// Ready to be sent, more than once if need be.
pub(super) struct Outgoing {
    pub(super) method: Method,
    accept: HeaderValue,
    content_type: Option<HeaderValue>,
    /// Path and query.
    target: String,
    body: Bytes,
}

impl Outgoing {
    pub(super) fn of(call: &Call, server: &Server) -> Self {
        let content_type = match call.verb {
            Verb::Patch(kind) => HeaderValue::from_static(kind.content_type()),
            Verb::Get | Verb::Create | Verb::Update | Verb::Delete => JSON,
        };
        let mut target = server.prefix.clone();
        encode(&mut target, &call.path, b"/:@!$&'()*+,;=%");
        for (at, (name, value)) in call.query.iter().enumerate() {
            target.push(if at == 0 { '?' } else { '&' });
            target.push_str(name);
            target.push('=');
            encode(&mut target, value, b"");
        }
        let content_type = call.body.is_some().then_some(content_type);
        let accept = match call.detail {
            Detail::Whole => JSON,
            Detail::Metadata => METADATA,
        };
        Self {
            method: method(call.verb),
            accept,
            content_type,
            target,
            body: call.body.clone().unwrap_or_default(),
        }
    }

    pub(super) fn request(
        &self,
        server: &Server,
        version: Version,
        user_agent: &HeaderValue,
        presented: &Presented,
    ) -> Result<Request<Full<Bytes>>, ApiError> {
        let unfit = |e: http::Error| ApiError::Connection(format!("{}: {e}", self.target));
        let mut uri = Uri::builder().path_and_query(self.target.as_str());
        // HTTP/2 carries scheme and authority in the request, HTTP/1.1 a header.
        if version == Version::HTTP_2 {
            uri = uri
                .scheme(server.scheme.clone())
                .authority(server.authority.clone());
        }
        let mut request = Request::builder()
            .method(self.method.clone())
            .uri(uri.build().map_err(unfit)?)
            .version(version)
            .header(ACCEPT, &self.accept)
            .header(USER_AGENT, user_agent);
        if version != Version::HTTP_2 {
            request = request.header(HOST, server.authority.as_str());
        }
        if let Some(content_type) = &self.content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        if let Some(authorization) = &presented.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(Full::new(self.body.clone())).map_err(unfit)
    }
}

/// Percent-encodes what is neither unreserved nor among `also`.
fn encode(out: &mut String, text: &str, also: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || also.contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PatchKind, client::Trust};

    fn request(address: &str, call: &Call, version: Version) -> Request<Full<Bytes>> {
        let server = Server::new(address, Trust::Machine).unwrap();
        let agent = HeaderValue::from_static("krablet");
        let outgoing = Outgoing::of(call, &server);
        let presented = Presented::default();
        outgoing
            .request(&server, version, &agent, &presented)
            .unwrap()
    }

    #[test]
    fn targets() {
        let call = Call::new(Verb::Get, "/api/v1/pods".into())
            .query("fieldSelector", "spec.nodeName=a b")
            .query("limit", "500");
        let sent = request("https://a:1/k8s", &call, Version::HTTP_2);
        let expected = "https://a:1/k8s/api/v1/pods?fieldSelector=spec.nodeName%3Da%20b&limit=500";
        assert_eq!(sent.uri(), expected);
        let sent = request("http://a:1", &call, Version::HTTP_11);
        let expected = "/api/v1/pods?fieldSelector=spec.nodeName%3Da%20b&limit=500";
        assert_eq!(sent.uri(), expected);
        assert_eq!(sent.headers()[HOST], "a:1");
        // A name is a name, never a query.
        let odd = Call::new(Verb::Get, "/api/v1/nodes/a?b#c".into());
        let sent = request("https://a", &odd, Version::HTTP_2);
        assert_eq!(sent.uri(), "https://a/api/v1/nodes/a%3Fb%23c");
    }

    #[test]
    fn content_types() {
        let patch = Call::new(Verb::Patch(PatchKind::StrategicMerge), "/a".into()).body("{}");
        let sent = request("https://a", &patch, Version::HTTP_2);
        let expected = "application/strategic-merge-patch+json";
        assert_eq!(sent.headers()[CONTENT_TYPE], expected);
        assert_eq!(sent.method(), Method::PATCH);
        let get = request(
            "https://a",
            &Call::new(Verb::Get, "/a".into()),
            Version::HTTP_2,
        );
        assert!(!get.headers().contains_key(CONTENT_TYPE));
        assert_eq!(get.headers()[ACCEPT], "application/json");
        let lean = request(
            "https://a",
            &patch.detail(Detail::Metadata),
            Version::HTTP_2,
        );
        let accepted = lean.headers()[ACCEPT].to_str().unwrap();
        assert!(accepted.contains("as=PartialObjectMetadata"), "{accepted}");
    }
}
