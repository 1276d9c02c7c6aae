//! Asking the running agent, over its unix socket.

use std::path::Path;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

/// A line longer than this is no answer of ours.
const MAX_LINE: usize = 16 * 1024 * 1024;

/// An answer, line by line.
pub struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
    ended: bool,
}

impl Lines {
    pub async fn next(&mut self) -> Result<Option<String>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let rest = self.buffer.split_off(end + 1);
                let line = std::mem::replace(&mut self.buffer, rest);
                return Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()));
            }
            if self.ended {
                return Ok(None);
            }
            if self.buffer.len() > MAX_LINE {
                bail!("the agent's answer is too long");
            }
            match self.body.frame().await {
                Some(frame) => {
                    if let Some(data) = frame.context("the agent closed the connection")?.data_ref()
                    {
                        self.buffer.extend_from_slice(data);
                    }
                }
                None => self.ended = true,
            }
        }
    }
}

/// Asks for `path` and reads the answer as lines.
pub async fn ask(socket: &Path, path: &str) -> Result<Lines> {
    let stream = UnixStream::connect(socket).await.with_context(|| {
        format!(
            "no agent answers at {}: is krablet running, and is --root-dir the same?",
            socket.display()
        )
    })?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get(path)
        .header("Host", "krablet")
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    if !response.status().is_success() {
        bail!("the agent answered {}", response.status());
    }
    Ok(Lines {
        body: response.into_body(),
        buffer: Vec::new(),
        ended: false,
    })
}

/// Runs a command's conversation on a small runtime of its own.
pub fn block_on<T>(conversation: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(conversation)
}
