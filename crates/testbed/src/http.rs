//! The smallest HTTP/1.1 client that can ask a server on this machine.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// More than any answer a test asks for.
const LIMIT: u64 = 64 << 20;

/// Status code and body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub body: String,
}

/// Gets `path` from `address` (host and port), within ten seconds.
pub async fn get(address: &str, path: &str) -> Result<Response> {
    let ask = async {
        let stream = TcpStream::connect(address).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        exchange(stream, &request).await
    };
    let answer = tokio::time::timeout(Duration::from_secs(10), ask).await;
    answer
        .context("no answer in time")
        .flatten()
        .with_context(|| format!("GET {address}{path}"))
}

/// Sends a request that asks for the connection to be closed, and reads the answer.
pub(crate) async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &str,
) -> Result<Response> {
    stream.write_all(request.as_bytes()).await?;
    // Not all of it may have left yet when there is encryption in between.
    stream.flush().await?;
    let mut answer = Vec::new();
    stream.take(LIMIT).read_to_end(&mut answer).await?;
    parse(&answer)
}

fn parse(answer: &[u8]) -> Result<Response> {
    let end = answer
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .context("no end of the headers")?;
    let (head, body) = answer.split_at(end + 4);
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .context("no status line")?;
    let header = |name: &str| {
        head.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.trim().to_owned())
    };
    let body = if header("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
        unchunk(body)?
    } else {
        let length = header("content-length").and_then(|length| length.parse::<usize>().ok());
        if length.is_some_and(|length| length != body.len()) {
            bail!("{} bytes of {length:?}", body.len());
        }
        body.to_vec()
    };
    Ok(Response {
        status,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

fn unchunk(mut rest: &[u8]) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = rest
            .windows(2)
            .position(|w| w == b"\r\n")
            .context("no chunk size")?;
        let size = std::str::from_utf8(&rest[..line])?
            .split(';')
            .next()
            .unwrap_or_default();
        let size = usize::from_str_radix(size.trim(), 16).context("chunk size")?;
        if size == 0 {
            return Ok(body);
        }
        let from = line + 2;
        body.extend_from_slice(
            rest.get(from..from + size)
                .context("the last chunk is cut")?,
        );
        rest = rest
            .get(from + size + 2..)
            .context("the last chunk is cut")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_plain_chunked_and_cut_answers() {
        let plain = parse(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno").unwrap();
        assert_eq!((plain.status, plain.body.as_str()), (404, "no"));
        let chunked = parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1;x\r\nd\r\n0\r\n\r\n").unwrap();
        assert_eq!(chunked.body, "abcd");
        assert!(parse(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nno").is_err());
        assert!(parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab").is_err());
    }
}
