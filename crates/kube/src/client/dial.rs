//! The way to the server's host: TCP, or whatever a test puts in its place.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Bytes to and from a server.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

#[async_trait]
pub trait Dial: Send + Sync {
    async fn dial(&self, host: &str, port: u16) -> io::Result<Box<dyn Transport>>;
}

/// One of several addresses of a host may be dead; the others have to get their chance within the deadline for
/// connecting.
const EACH_ADDRESS: Duration = Duration::from_secs(3);

/// The machine's own network.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpDial;

#[async_trait]
impl Dial for TcpDial {
    async fn dial(&self, host: &str, port: u16) -> io::Result<Box<dyn Transport>> {
        let addresses: Vec<_> = tokio::net::lookup_host((host, port)).await?.collect();
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for (at, address) in addresses.iter().enumerate() {
            let connecting = TcpStream::connect(address);
            // The last one may take what is left of the whole deadline.
            let connected = match at + 1 < addresses.len() {
                true => tokio::time::timeout(EACH_ADDRESS, connecting).await,
                false => Ok(connecting.await),
            };
            match connected {
                Ok(Ok(stream)) => {
                    stream.set_nodelay(true)?;
                    return Ok(Box::new(stream));
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(last)
    }
}
