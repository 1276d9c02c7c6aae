//! Ten thousand who come and say nothing: they cost the node a bounded number of descriptors, and when they are gone the
//! next one is served.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

mod node;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use krablet_server::{HealthRecord, Listener, serve_healthz};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Served at a time, and room for what else the process has open.
const SERVED: usize = 256 + 64;
/// For the process and the door, beside the crowd's own sockets.
const SPARE: u64 = 1000;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// As many as the limit on descriptors lets this process play.
fn crowd_size() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(most.saturating_sub(SPARE).min(10_000)).unwrap()
}

/// A socket on its way to the door; most never get further than the kernel's queue.
fn knock(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(e) => Err(e),
    }
}

async fn is_served(address: SocketAddr) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer.ends_with("ok"))
    };
    let answer = tokio::time::timeout(Duration::from_secs(5), ask).await;
    matches!(answer, Ok(Ok(true)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_says_nothing() {
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut door = JoinSet::new();
    let health = serve_healthz(
        listener,
        node::Quiet::with(Vec::new()),
        HealthRecord::default(),
    );
    door.spawn(health);
    assert!(is_served(address).await);
    let before = descriptors();

    let size = crowd_size();
    let mut crowd = Vec::new();
    for n in 0..size {
        crowd.push(knock(address).unwrap());
        if n % 100 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let open = descriptors() - before - crowd.len();
    assert!(open <= SERVED, "{open} descriptors for {size} clients");

    drop(crowd);
    let mut tries = 0;
    while !is_served(address).await {
        tries += 1;
        assert!(tries < 12, "nobody is served after the crowd has gone");
    }
}
