//! Ten thousand who come and say nothing: they cost the node a bounded number of descriptors, and who has something to ask
//! is served in their midst.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

mod node;
mod stage;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use krablet_server::{HealthRecord, Listener, serve_healthz};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Resource, getrlimit, setrlimit};
use stage::Stage;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Served at a time at the two doors, and room for what else the process has open.
const SERVED: usize = 256 + 64;
const SERVED_SECURELY: usize = 1024 + 64;
/// As many as that, if they can be had.
const CROWD: u64 = 10_000;
/// For the process and the door, beside the crowd's own sockets.
const SPARE: u64 = 2000;
/// Of the crowd at the HTTPS door, so many ask once and then stay: more than have a place.
const ASKED_ONCE: usize = 1100;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// As many as the limit on descriptors lets this process play.
fn crowd_size() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let size = most.saturating_sub(SPARE).min(CROWD);
    // What was shown is less where the machine allows less, and is to be seen by who reads the test's output.
    println!("a crowd of {size}: this process may have {most} descriptors");
    usize::try_from(size).unwrap()
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

async fn knock_often(address: SocketAddr, times: usize) -> Vec<OwnedFd> {
    let mut crowd = Vec::new();
    for n in 0..times {
        crowd.push(knock(address).unwrap());
        if n % 100 == 0 {
            tokio::task::yield_now().await;
        }
    }
    crowd
}

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n";

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<bool> {
    stream.write_all(HEALTH).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.ends_with("ok"))
}

/// A try may be lost in the crowd before the door: the kernel's queue is not ours.
async fn is_served<F>(again: impl Fn() -> F) -> bool
where
    F: Future<Output = std::io::Result<bool>>,
{
    for _ in 0..12 {
        let answer = tokio::time::timeout(Duration::from_secs(5), again()).await;
        if matches!(answer, Ok(Ok(true))) {
            return true;
        }
    }
    false
}

/// One door after the other: descriptors are the process's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_says_nothing() {
    at_the_health_port().await;
    at_the_https_port().await;
}

async fn at_the_health_port() {
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut door = JoinSet::new();
    let health = serve_healthz(
        listener,
        node::Quiet::with(Vec::new()),
        HealthRecord::default(),
    );
    door.spawn(health);
    let served = || is_served(async || ask(TcpStream::connect(address).await?).await);
    assert!(served().await);
    let before = descriptors();
    let crowd = knock_often(address, crowd_size()).await;
    let open = descriptors() - before - crowd.len();
    assert!(open <= SERVED, "{open} descriptors for {}", crowd.len());
    assert!(served().await, "in their midst");
    drop(crowd);
    assert!(served().await, "after them");
    door.shutdown().await;
}

async fn at_the_https_port() {
    let mut stage = Stage::new().await;
    let stage_ref = &stage;
    let served =
        || is_served(async || ask(stage_ref.connect_by(&stage_ref.connector).await?).await);
    assert!(served().await);
    let before = descriptors();
    let mut asked = Vec::new();
    while asked.len() < ASKED_ONCE {
        let some = (0..20).map(|_| stage.ask("GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"));
        asked.extend(futures::future::join_all(some).await);
    }
    assert!(
        asked
            .iter()
            .all(|(_, head)| head.starts_with("HTTP/1.1 200 "))
    );
    let open = descriptors() - before - asked.len();
    assert!(
        open <= SERVED_SECURELY,
        "{open} descriptors for {}",
        asked.len()
    );
    assert!(served().await, "in the midst of those who asked once");
    let crowd = knock_often(stage.address, crowd_size() - asked.len()).await;
    let open = descriptors() - before - asked.len() - crowd.len();
    assert!(
        open <= SERVED_SECURELY,
        "{open} descriptors for {}",
        crowd.len()
    );
    assert!(served().await, "in the midst of all");
    stage.tasks.shutdown().await;
}
