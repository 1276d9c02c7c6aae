//! Streams through the HTTPS door, with a runtime that echoes: what a thousand dropped ones leave behind, and what readers
//! cost who do not read.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

mod node;
mod stage;

use std::io::Write as _;
use std::time::Duration;

use stage::{Stage, V5};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Each kind of stream.
const KINDS: [&str; 3] = [
    "/portForward/ns/p",
    "/exec/ns/p/c?command=sh&input=1&output=1",
    "/attach/ns/p/c?input=1&output=1",
];

/// Without any stream: the door, which watches over no log before somebody follows one, and the runtime.
const QUIET: usize = 2;
/// What the allocator may keep of a thousand streams.
const KEPT: u64 = 8 << 20;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn tasks() -> usize {
    tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks()
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    let number = line.split_whitespace().nth(1).unwrap();
    number.parse::<u64>().unwrap() * 1024
}

async fn eventually(what: &str, is: impl Fn() -> bool) {
    let wait = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
    assert!(
        waited.is_ok(),
        "{what}: {} tasks, {} descriptors",
        tasks(),
        descriptors()
    );
}

/// One after the other in one process: they count its descriptors and its memory.
#[tokio::test]
async fn what_streams_and_readers_cost() {
    let mut stage = Stage::new().await;
    for kind in KINDS {
        a_thousand_dropped_streams(&stage, kind).await;
    }
    web_sockets_pass_as_they_are(&stage).await;
    malformed_upgrades(&stage).await;
    readers_who_do_not_read(&stage).await;
    readers_of_a_container_who_do_not_read(&stage).await;
    requests_are_over(&stage).await;
    stage.tasks.shutdown().await;
}

async fn a_thousand_dropped_streams(stage: &Stage, kind: &str) {
    let upgrade = "Host: node\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    let request = format!("POST {kind} HTTP/1.1\r\n{upgrade}");
    let (mut stream, head) = stage.ask(&request).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{kind}: {head}");
    stream.write_all(b"ping").await.unwrap();
    let mut heard = [0; 4];
    stream.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"ping");
    assert_eq!(in_flight(stage), 1, "{kind}: as long as its stream");
    drop(stream);
    eventually("the first stream is gone", || tasks() == QUIET).await;
    let before = descriptors();
    // What is needed once and kept is not what a thousand leave behind.
    twenty_at_a_time(stage, &request, 10).await;
    let warm = resident();
    twenty_at_a_time(stage, &request, 50).await;
    eventually("all streams are gone", || {
        tasks() == QUIET && descriptors() <= before
    })
    .await;
    let grown = resident().saturating_sub(warm);
    assert!(grown < KEPT, "{kind}: {grown} bytes are left");
}

fn in_flight(stage: &Stage) -> u64 {
    let counts = stage.requests.get();
    counts.values().map(|counts| counts.in_flight).sum()
}

/// Each that began, however it ended.
async fn requests_are_over(stage: &Stage) {
    eventually("no request is under way", || in_flight(stage) == 0).await;
    for (labels, counts) in stage.requests.get() {
        assert!(counts.begun > 0, "{labels:?}");
        assert_eq!(counts.durations.count(), counts.begun, "{labels:?}");
    }
}

async fn twenty_at_a_time(stage: &Stage, request: &str, times: usize) {
    for _ in 0..times {
        let twenty = (0..20).map(|_| stage.ask(request));
        let streams = futures::future::join_all(twenty).await;
        assert!(
            streams
                .iter()
                .all(|(_, head)| head.starts_with("HTTP/1.1 101 "))
        );
    }
}

/// The newest protocol there is, which is the runtime's business alone: the words of the handshake and the frames go both ways
/// as they are.
async fn web_sockets_pass_as_they_are(stage: &Stage) {
    let key = "dGhlIHNhbXBsZSBub25jZQ==";
    for kind in &KINDS[1..] {
        let request = format!(
            "GET {kind} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: {V5}\r\n\r\n"
        );
        let (mut stream, head) = stage.ask(&request).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{kind}: {head}");
        let head = head.to_ascii_lowercase();
        let accepted = format!("of {key}").to_ascii_lowercase();
        for line in [
            "upgrade: websocket".to_owned(),
            format!("sec-websocket-protocol: {V5}"),
            format!("sec-websocket-accept: {accepted}"),
        ] {
            assert!(head.lines().any(|l| l == line), "{line}: {head}");
        }
        // Masked, on channel 0: a letter, and that there is no more of it, which no older protocol can say.
        let frames = b"\x82\x82\x01\x02\x03\x04\x01\x63\x82\x82\x00\x00\x00\x00\xff\x00";
        stream.write_all(frames).await.unwrap();
        let mut heard = [0; 16];
        stream.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, frames, "{kind}");
    }
}

async fn malformed_upgrades(stage: &Stage) {
    for lines in [
        "",
        "Connection: Upgrade\r\n",
        "Upgrade: SPDY/3.1\r\n",
        "Connection: Upgrade\r\nUpgrade: smoke-signals\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n",
    ] {
        let request = format!("POST /portForward/ns/p HTTP/1.1\r\nHost: node\r\n{lines}\r\n");
        let (_, head) = stage.ask(&request).await;
        assert!(head.starts_with("HTTP/1.1 400 "), "{lines}: {head}");
    }
}

async fn readers_who_do_not_read(stage: &Stage) {
    const SIZE: u64 = 256 << 20;
    let file = std::fs::File::create(stage.logs.path().join("large")).unwrap();
    file.set_len(SIZE).unwrap();
    not_reading(stage, "/logs/large", SIZE).await;
}

async fn readers_of_a_container_who_do_not_read(stage: &Stage) {
    const LINES: u64 = 32 << 10;
    let text = "x".repeat(1023);
    let file = std::fs::File::create(stage.logs.path().join("container.log")).unwrap();
    let mut file = std::io::BufWriter::new(file);
    for _ in 0..LINES {
        writeln!(file, "2026-01-01T00:00:00Z stdout F {text}").unwrap();
    }
    file.flush().unwrap();
    not_reading(stage, "/containerLogs/ns/p/c", LINES << 10).await;
}

async fn not_reading(stage: &Stage, path: &str, size: u64) {
    let before = resident();
    let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n");
    let readers = (0..20).map(|_| stage.ask(&request));
    let mut readers = futures::future::join_all(readers).await;
    assert!(
        readers
            .iter()
            .all(|(_, head)| head.starts_with("HTTP/1.1 200 "))
    );
    // One of them takes it all, so the others had the time to be given too much.
    let (mut reader, _) = readers.remove(0);
    let mut taken = 0;
    let mut buffer = vec![0; 1 << 16];
    while taken < size {
        let count = reader.read(&mut buffer).await.unwrap();
        assert!(count > 0, "{path}: {taken} of {size}");
        taken += count as u64;
    }
    let grown = resident().saturating_sub(before);
    assert!(
        grown < 64 << 20,
        "{path}: {grown} bytes for readers who do not read"
    );
}
