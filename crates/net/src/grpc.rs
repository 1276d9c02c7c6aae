//! The gRPC health check: one unary call over one HTTP/2 connection in plain text.

use std::pin::pin;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response, StatusCode, header};
use prost::Message as _;
use tokio::time::{Instant, timeout_at};

use crate::{GrpcHealth, NetError, PROBE_USER_AGENT, dial};

/// More than any health answer needs.
const MAX_ANSWER: usize = 16 * 1024;
const MAX_HEADERS: u32 = 16 * 1024;
const DEADLINE_EXCEEDED: i32 = 4;
const RESOURCE_EXHAUSTED: i32 = 8;
const UNIMPLEMENTED: i32 = 12;
const INTERNAL: i32 = 13;
const UNAVAILABLE: i32 = 14;

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

pub async fn health(
    host: &str,
    port: u16,
    service: &str,
    timeout: Duration,
) -> Result<GrpcHealth, NetError> {
    let deadline = Instant::now() + timeout;
    let stream = dial::connect(host, port, deadline).await?;
    let call = async {
        let (client, connection) = h2::client::Builder::new()
            .enable_push(false)
            .max_header_list_size(MAX_HEADERS)
            .initial_window_size(MAX_ANSWER as u32)
            .handshake::<_, Bytes>(stream)
            .await
            .map_err(|e| broken(&e))?;
        let mut connection = pin!(connection);
        let mut answer = pin!(check(client, host, port, service, timeout));
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            _ = &mut connection => answer.await,
        }
    };
    timeout_at(deadline, call)
        .await
        .map_err(|_| NetError::Timeout)?
}

async fn check(
    client: h2::client::SendRequest<Bytes>,
    host: &str,
    port: u16,
    service: &str,
    timeout: Duration,
) -> Result<GrpcHealth, NetError> {
    let authority = dial::join_host_port(host, port);
    let request = Request::post(format!("http://{authority}/grpc.health.v1.Health/Check"))
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .header(header::USER_AGENT, PROBE_USER_AGENT)
        .header(
            "grpc-timeout",
            format!("{}m", timeout.as_millis().min(99_999_999)),
        )
        .body(())
        .map_err(|e| NetError::Failed(e.to_string()))?;
    let mut client = client.ready().await.map_err(|e| broken(&e))?;
    let (response, mut body) = client
        .send_request(request, false)
        .map_err(|e| broken(&e))?;
    body.send_data(framed(service), true)
        .map_err(|e| broken(&e))?;
    let (head, body) = response.await.map_err(|e| broken(&e))?.into_parts();
    let head = Response::from_parts(head, ());
    if head.status() != StatusCode::OK {
        let text = format!(
            "unexpected HTTP status code received from server: {}",
            head.status()
        );
        let code = if head.status() == StatusCode::NOT_FOUND {
            UNIMPLEMENTED
        } else {
            UNAVAILABLE
        };
        return Err(failed(code, &text));
    }
    answer(head.headers(), body).await
}

/// The message behind gRPC's five-byte head.
fn framed(service: &str) -> Bytes {
    let message = HealthCheckRequest {
        service: service.into(),
    };
    let len = message.encoded_len();
    let mut buffer = BytesMut::with_capacity(5 + len);
    buffer.put_u8(0);
    buffer.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
    buffer.put_slice(&message.encode_to_vec());
    buffer.freeze()
}

async fn answer(headers: &HeaderMap, mut body: RecvStream) -> Result<GrpcHealth, NetError> {
    // An answer without a message carries its status in the headers.
    if let Some(error) = status(headers) {
        error?;
    }
    let mut message = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data.map_err(|e| broken(&e))?;
        if message.len() + data.len() > MAX_ANSWER {
            return Err(failed(
                RESOURCE_EXHAUSTED,
                "grpc: received message larger than max",
            ));
        }
        let _ = body.flow_control().release_capacity(data.len());
        message.extend_from_slice(&data);
    }
    let trailers = body.trailers().await.map_err(|e| broken(&e))?;
    if let Some(error) = trailers.as_ref().and_then(status) {
        error?;
    }
    let payload = message
        .get(5..)
        .filter(|_| message.first() == Some(&0))
        .ok_or_else(|| failed(INTERNAL, "malformed health answer"))?;
    let response = HealthCheckResponse::decode(payload)
        .map_err(|e| failed(INTERNAL, &format!("malformed health answer: {e}")))?;
    Ok(GrpcHealth::of(response.status))
}

/// The gRPC status in a set of headers, if there is one.
fn status(headers: &HeaderMap) -> Option<Result<(), NetError>> {
    let code = headers.get("grpc-status")?.to_str().unwrap_or_default();
    let code: i32 = code.parse().unwrap_or(2);
    if code == 0 {
        return Some(Ok(()));
    }
    let message = headers.get("grpc-message").map(|v| unescape(v.as_bytes()));
    Some(Err(failed(code, &message.unwrap_or_default())))
}

fn failed(code: i32, message: &str) -> NetError {
    match code {
        UNIMPLEMENTED => NetError::HealthUnimplemented(message.into()),
        DEADLINE_EXCEEDED => NetError::Timeout,
        _ => NetError::Failed(format!(
            "rpc error: code = {} desc = {message}",
            code_name(code)
        )),
    }
}

fn broken(error: &h2::Error) -> NetError {
    let text = match error.get_io() {
        Some(io) => dial::words(io),
        None if error.reason() == Some(Reason::NO_ERROR) => "connection closed".into(),
        None => error.to_string(),
    };
    failed(UNAVAILABLE, &format!("connection error: desc = {text:?}"))
}

fn code_name(code: i32) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "Canceled",
        "Unknown",
        "InvalidArgument",
        "DeadlineExceeded",
        "NotFound",
        "AlreadyExists",
        "PermissionDenied",
        "ResourceExhausted",
        "FailedPrecondition",
        "Aborted",
        "OutOfRange",
        "Unimplemented",
        "Internal",
        "Unavailable",
        "DataLoss",
        "Unauthenticated",
    ];
    usize::try_from(code)
        .ok()
        .and_then(|i| NAMES.get(i).copied())
        .unwrap_or("Unknown")
}

/// Undoes the percent-escapes of a `grpc-message`.
fn unescape(text: &[u8]) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let escaped = tail
            .get(..2)
            .filter(|_| *first == b'%')
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(escaped.unwrap_or(*first));
        rest = tail
            .get(if escaped.is_some() { 2 } else { 0 }..)
            .unwrap_or_default();
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_unescaped() {
        for (from, to) in [
            ("a%20b", "a b"),
            ("100%", "100%"),
            ("%zz%41", "%zzA"),
            ("", ""),
        ] {
            assert_eq!(unescape(from.as_bytes()), to);
        }
    }

    #[test]
    fn requests_are_framed() {
        assert_eq!(&framed("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&framed("ab")[..], [0, 0, 0, 0, 4, 10, 2, b'a', b'b']);
    }
}
