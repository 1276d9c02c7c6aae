//! One HTTP GET: its connections, its redirects, its answer.

use std::error::Error as _;
use std::io;
use std::pin::pin;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

use crate::tls::Tls;
use crate::{HttpGet, HttpResponse, NetError, Redirects, dial, url};

/// The most redirects that are followed.
const MAX_REDIRECTS: usize = 10;
/// Not to be handed to a host the caller did not name.
const SECRETS: [HeaderName; 3] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::WWW_AUTHENTICATE,
];

pub async fn get(tls: &Tls, request: &HttpGet) -> Result<HttpResponse, NetError> {
    let deadline = Instant::now() + request.timeout;
    let first = parse(&request.url)?;
    let mut headers = header_map(&request.headers)?;
    let mut uri = first.clone();
    for hops in 0.. {
        let turn = |answer: &Response<()>| next(request, &first, &uri, answer, hops);
        match hop(tls, request, &uri, &headers, deadline, &turn).await? {
            Hop::Done(response) => return Ok(response),
            Hop::To(target) => {
                if target.host() != uri.host() {
                    SECRETS.iter().for_each(|name| drop(headers.remove(name)));
                }
                // A `Host` of the caller's is for the server it named.
                if target.authority() != uri.authority() {
                    headers.remove(header::HOST);
                }
                uri = target;
            }
        }
    }
    Err(NetError::Failed("too many redirects".into()))
}

/// Tells where an answer leads.
type Turn<'a> = dyn Fn(&Response<()>) -> Result<Option<Uri>, NetError> + Sync + 'a;

enum Hop {
    Done(HttpResponse),
    To(Uri),
}

fn parse(text: &str) -> Result<Uri, NetError> {
    let uri: Uri = text
        .parse()
        .map_err(|e| NetError::Failed(format!("parse {text:?}: {e}")))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(_)) => Ok(uri),
        (Some("http" | "https"), None) => {
            Err(NetError::Failed("http: no Host in request URL".into()))
        }
        (scheme, _) => Err(NetError::Failed(format!(
            "unsupported protocol scheme {:?}",
            scheme.unwrap_or_default()
        ))),
    }
}

fn header_map(headers: &[(String, String)]) -> Result<HeaderMap, NetError> {
    let mut map = HeaderMap::with_capacity(headers.len() + 2);
    for (name, value) in headers {
        let bad = || NetError::Failed(format!("net/http: invalid header field {name:?}"));
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
        let value = HeaderValue::from_str(value.trim()).map_err(|_| bad())?;
        // How the message is framed is ours to say.
        let framing = [
            header::CONNECTION,
            header::CONTENT_LENGTH,
            header::TRANSFER_ENCODING,
            header::TRAILER,
        ];
        let once = [header::HOST, header::USER_AGENT];
        if framing.contains(&name) || (once.contains(&name) && map.contains_key(&name)) {
            continue;
        }
        map.append(name, value);
    }
    map.insert(header::CONNECTION, HeaderValue::from_static("close"));
    Ok(map)
}

/// Where an answer leads, if it is a redirect to be followed.
fn next(
    request: &HttpGet,
    first: &Uri,
    current: &Uri,
    answer: &Response<()>,
    hops: usize,
) -> Result<Option<Uri>, NetError> {
    let redirect = matches!(
        answer.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    let Some(location) = location(answer).filter(|_| redirect) else {
        return Ok(None);
    };
    let target = resolve(current, &location)?;
    if request.redirects == Redirects::SameHost && target.host() != first.host() {
        return Ok(None);
    }
    if hops + 1 >= MAX_REDIRECTS {
        return Err(NetError::Failed(format!(
            "stopped after {MAX_REDIRECTS} redirects"
        )));
    }
    Ok(Some(target))
}

fn location(answer: &Response<()>) -> Option<String> {
    let value = answer.headers().get(header::LOCATION)?;
    Some(String::from_utf8_lossy(value.as_bytes()).into_owned()).filter(|l| !l.is_empty())
}

fn last_modified(headers: &HeaderMap) -> Option<Timestamp> {
    let text = headers.get(header::LAST_MODIFIED)?.to_str().ok()?;
    DateTimeParser::new().parse_timestamp(text).ok()
}

/// A `Location` seen from `base`.
fn resolve(base: &Uri, location: &str) -> Result<Uri, NetError> {
    let location = url::escape(location.split('#').next().unwrap_or_default());
    let scheme = base.scheme_str().unwrap_or("http");
    let authority = base.authority().map_or("", |a| a.as_str());
    let whole = if location.contains("://") {
        location
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.starts_with('?') {
        format!("{scheme}://{authority}{}{location}", base.path())
    } else {
        let dir = base.path().rsplit_once('/').map_or("", |(dir, _)| dir);
        format!("{scheme}://{authority}{dir}/{location}")
    };
    parse(&whole)
        .map_err(|e| NetError::Failed(format!("failed to parse Location header {whole:?}: {e}")))
}

/// One connection, one request, one answer.
async fn hop(
    tls: &Tls,
    request: &HttpGet,
    uri: &Uri,
    headers: &HeaderMap,
    deadline: Instant,
    turn: &Turn<'_>,
) -> Result<Hop, NetError> {
    let host = uri.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let secure = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let message = message(uri, headers)?;
    let stream = dial::connect(host, port, deadline).await?;
    let exchange = Exchange {
        peer: dial::join_host_port(host, port),
        limit: request.body_limit,
        deadline,
        turn,
    };
    if secure {
        let stream = tls
            .handshake(stream, host, request.verify_tls, deadline)
            .await?;
        exchange.run(stream, message).await
    } else {
        exchange.run(stream, message).await
    }
}

fn message(uri: &Uri, headers: &HeaderMap) -> Result<Request<Empty<Bytes>>, NetError> {
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    let path = match path.starts_with('/') {
        true => path.to_string(),
        false => format!("/{path}"),
    };
    let mut message = Request::get(path)
        .body(Empty::new())
        .map_err(|e| NetError::Failed(e.to_string()))?;
    *message.headers_mut() = headers.clone();
    if !headers.contains_key(header::HOST) {
        let authority = uri.authority().map_or("", |a| a.as_str());
        let host = HeaderValue::from_str(authority)
            .map_err(|_| NetError::Failed("http: invalid Host header".into()))?;
        message.headers_mut().insert(header::HOST, host);
    }
    Ok(message)
}

struct Exchange<'a> {
    peer: String,
    limit: usize,
    deadline: Instant,
    turn: &'a Turn<'a>,
}

impl Exchange<'_> {
    async fn run<S>(&self, stream: S, message: Request<Empty<Bytes>>) -> Result<Hop, NetError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) = http1::Builder::new()
            .title_case_headers(true)
            .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
            .await
            .map_err(|e| self.broken(&e))?;
        // The connection is driven here, not in a task of its own: dropping this future closes it.
        let mut connection = pin!(connection);
        let mut answer = pin!(async {
            let sent = sender.send_request(message);
            match timeout_at(self.deadline, sent).await {
                Err(_) => Err(NetError::Timeout),
                Ok(Err(e)) => Err(self.broken(&e)),
                Ok(Ok(response)) => self.read(response).await,
            }
        });
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            // Closed by the server; what it sent before is still to be read.
            _ = &mut connection => answer.await,
        }
    }

    async fn read(&self, response: Response<Incoming>) -> Result<Hop, NetError> {
        let (parts, mut body) = response.into_parts();
        let head = Response::from_parts(parts, ());
        if let Some(target) = (self.turn)(&head)? {
            return Ok(Hop::To(target));
        }
        let mut response = HttpResponse {
            status: head.status().as_u16(),
            location: location(&head),
            content_type: head
                .headers()
                .get(header::CONTENT_TYPE)
                .map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned()),
            last_modified: last_modified(head.headers()),
            ..HttpResponse::default()
        };
        loop {
            let frame = timeout_at(self.deadline, body.frame()).await.map_err(|_| {
                let what = "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
                NetError::Body(what.into())
            })?;
            let Some(frame) = frame else {
                return Ok(Hop::Done(response));
            };
            let frame = frame.map_err(|e| match self.broken(&e).to_string() {
                end if end == "EOF" => NetError::Body("unexpected EOF".into()),
                other => NetError::Body(other),
            })?;
            let data = frame.into_data().unwrap_or_default();
            let room = self.limit - response.body.len();
            if data.len() > room {
                response.truncated = true;
                response.body.extend_from_slice(&data[..room]);
                return Ok(Hop::Done(response));
            }
            response.body.extend_from_slice(&data);
        }
    }

    /// The peer is named, our own port is not: it differs each time, and events of one text are
    /// to count as one.
    fn broken(&self, error: &hyper::Error) -> NetError {
        let cause = error.source().and_then(|e| e.downcast_ref::<io::Error>());
        NetError::Failed(match cause {
            Some(io) if io.kind() != io::ErrorKind::UnexpectedEof => {
                format!("read tcp {}: read: {}", self.peer, dial::words(io))
            }
            _ if error.is_incomplete_message() || cause.is_some() => "EOF".into(),
            _ if error.is_parse() => {
                format!(
                    "net/http: HTTP/1.x transport connection broken: malformed HTTP response ({error})"
                )
            }
            _ => error.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_seen_from_where_they_were_given() {
        let base = parse("http://h:8080/a/b?q").unwrap();
        for (location, target) in [
            ("/x", "http://h:8080/x"),
            ("x", "http://h:8080/a/x"),
            ("?z", "http://h:8080/a/b?z"),
            ("//o/x", "http://o/x"),
            ("https://o:1/x#f", "https://o:1/x"),
            ("/a b", "http://h:8080/a%20b"),
        ] {
            assert_eq!(resolve(&base, location).unwrap().to_string(), target);
        }
        for bad in ["ftp://x/", "http://", "http://:::/"] {
            assert!(resolve(&base, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn framing_headers_are_ours() {
        let given = [
            ("Connection", "keep-alive"),
            ("Content-Length", "7"),
            ("X", " a "),
        ];
        let given: Vec<_> = given.map(|(n, v)| (n.to_string(), v.to_string())).into();
        let map = header_map(&given).unwrap();
        assert_eq!(map["connection"], "close");
        assert_eq!(map["x"], "a");
        assert_eq!(map.len(), 2);
        assert!(header_map(&[("a b".into(), String::new())]).is_err());
        assert!(header_map(&[("a".into(), "x\ny".into())]).is_err());
    }
}
