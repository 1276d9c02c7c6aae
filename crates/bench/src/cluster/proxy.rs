//! Everything between an agent and the API server goes through here and is counted. It runs in a
//! thread of its own, so that what the bench does meanwhile does not hold it up.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const BUFFER: usize = 64 << 10;

#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
}

/// Bytes as they are on the wire: encrypted and maybe compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// By the agent.
    pub sent: u64,
    pub received: u64,
}

impl Bytes {
    pub fn since(self, before: Bytes) -> Bytes {
        Bytes {
            sent: self.sent.saturating_sub(before.sent),
            received: self.received.saturating_sub(before.received),
        }
    }

    pub fn total(self) -> u64 {
        self.sent + self.received
    }
}

pub struct Proxy {
    port: u16,
    counts: Arc<Counts>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Leads to the server at this port of the machine.
    pub fn start(server: u16) -> Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let counts = Arc::new(Counts::default());
        let stop = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (counted, stopped) = (counts.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("proxy".to_owned());
        let thread = thread.spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    () = stopped.cancelled() => {}
                    () = serve(listener, server, counted) => {}
                }
            });
        })?;
        Ok(Self {
            port,
            counts,
            stop,
            thread: Some(thread),
        })
    }

    /// Where the API server is for the agent.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// All so far.
    pub fn bytes(&self) -> Bytes {
        Bytes {
            sent: self.counts.sent.load(Ordering::Relaxed),
            received: self.counts.received.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // It ends with its runtime; a panic there was told on standard error already.
            let _ = thread.join();
        }
    }
}

async fn serve(listener: std::net::TcpListener, server: u16, counts: Arc<Counts>) {
    let Ok(listener) = TcpListener::from_std(listener) else {
        return;
    };
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(connect(client, server, counts.clone()));
    }
}

/// Errors end the connection on both sides, which is what the two would see without a proxy.
async fn connect(client: TcpStream, server: u16, counts: Arc<Counts>) -> Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))
        .await
        .context("the API server does not listen")?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::try_join!(
        pass(from_client, to_server, &counts.sent),
        pass(from_server, to_client, &counts.received),
    )?;
    Ok(())
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    bytes: &AtomicU64,
) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await?;
        let Some(part) = buffer.get(..read).filter(|part| !part.is_empty()) else {
            return to.shutdown().await;
        };
        bytes.fetch_add(read as u64, Ordering::Relaxed);
        to.write_all(part).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_directions_are_passed_on_and_counted() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(server.local_addr().unwrap().port()).unwrap();
        let address = proxy.url().replace("https://", "");
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut served, _) = server.accept().await.unwrap();
        client.write_all(b"hello").await.unwrap();
        let mut five = [0; 5];
        served.read_exact(&mut five).await.unwrap();
        assert_eq!(&five, b"hello");
        served.write_all(b"you").await.unwrap();
        drop(served);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"you");
        let counted = proxy.bytes();
        assert_eq!((counted.sent, counted.received), (5, 3));
        assert_eq!(
            counted
                .since(Bytes {
                    sent: 4,
                    received: 0
                })
                .total(),
            4
        );
    }
}
