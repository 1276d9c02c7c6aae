//! A runtime of a few lines on a unix socket: HTTP/2 by hand, so that it can misbehave in ways a
//! gRPC server would not.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{self, StreamExt};
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixListener;
use tokio::task::JoinSet;

pub enum Reply {
    /// These messages, then a good end.
    Messages(Vec<Vec<u8>>),
    /// These messages, then silence.
    MessagesThenSilence(Vec<Vec<u8>>),
    Status(u16, &'static str),
    /// No answer at all.
    Silence,
    /// Bytes that are no message.
    Garbage,
}

/// What the server does with a call: the RPC's name and the request's bytes in, a reply out.
pub type Handler = Arc<dyn Fn(&str, &[u8]) -> Reply + Send + Sync>;

/// Serves until dropped; then every connection is cut and the socket refuses.
pub struct Server {
    _tasks: JoinSet<()>,
}

impl Server {
    pub fn start(socket: &Path, handler: Handler) -> Self {
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, handler));
        Self { _tasks: tasks }
    }
}

async fn accept(listener: UnixListener, handler: Handler) {
    let mut connections = JoinSet::new();
    loop {
        let (io, _) = listener.accept().await.unwrap();
        let handler = handler.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| answer(request, handler.clone()));
            let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(io), service)
                .await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    handler: Handler,
) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, Infallible> {
    let path = request.uri().path().to_owned();
    let call = path.rsplit('/').next().unwrap_or_default();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let reply = handler(call, body.get(5..).unwrap_or_default());
    let response = Response::builder().header("content-type", "application/grpc");
    let (frames, ends) = match reply {
        Reply::Silence => std::future::pending().await,
        Reply::Status(code, message) => {
            let response = response
                .header("grpc-status", code.to_string())
                .header("grpc-message", message);
            let body = StreamBody::new(stream::empty()).boxed_unsync();
            return Ok(response.body(body).unwrap());
        }
        Reply::Garbage => (vec![framed(&[0xff; 64])], true),
        Reply::Messages(messages) => (messages.iter().map(|m| framed(m)).collect(), true),
        Reply::MessagesThenSilence(messages) => {
            (messages.iter().map(|m| framed(m)).collect(), false)
        }
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let last = if ends {
        stream::iter([Ok(Frame::trailers(trailers))]).boxed()
    } else {
        stream::pending().boxed()
    };
    let frames = stream::iter(frames).map(|bytes| Ok(Frame::data(bytes)));
    let body = BodyExt::boxed_unsync(StreamBody::new(frames.chain(last)));
    Ok(response.body(body).unwrap())
}

fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).unwrap());
    bytes.put_slice(message);
    bytes.freeze()
}
