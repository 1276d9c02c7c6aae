use std::io::{self, Cursor};
use std::pin::Pin;
use std::task::{Context, Poll};

use proptest::prelude::*;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn two_ends_are_one_line_until_one_lets_go() {
    let (mut here, client) = tokio::io::duplex(64);
    let (mut there, runtime) = tokio::io::duplex(64);
    let line = tokio::spawn(couple(client, runtime, HOUR));
    here.write_all(b"ask").await.unwrap();
    let mut heard = [0; 3];
    there.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"ask");
    there.write_all(b"told").await.unwrap();
    drop(there);
    let mut rest = Vec::new();
    here.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"told");
    drop(here);
    line.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_frees_the_runtime() {
    let (here, client) = tokio::io::duplex(64);
    let (mut there, runtime) = tokio::io::duplex(64);
    let line = tokio::spawn(couple(client, runtime, HOUR));
    drop(here);
    line.await.unwrap();
    let mut rest = Vec::new();
    there.read_to_end(&mut rest).await.unwrap();
}

/// A pair of sockets: unlike pipes in memory they know resets.
async fn sockets() -> (TcpStream, TcpStream) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap());
    let (here, there) = tokio::join!(listener.accept(), there);
    (here.unwrap().0, there.unwrap())
}

/// A runtime that has said all it has to say, and takes nothing any more.
struct Closed;

impl AsyncWrite for Closed {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_said_last_arrives_though_nobody_listens_any_more() {
    let (mut here, client) = tokio::io::duplex(64);
    let said = vec![7; 10_000];
    let runtime = tokio::io::join(Cursor::new(said.clone()), Closed);
    let line = tokio::spawn(couple(client, runtime, HOUR));
    here.write_all(b"ping").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut rest = Vec::new();
    here.read_to_end(&mut rest).await.unwrap();
    assert!(rest == said, "{} of {}", rest.len(), said.len());
    drop(here);
    line.await.unwrap();
}

/// Who closes with something unread resets the connection, after what he has said.
#[tokio::test]
async fn a_reset_is_an_orderly_end() {
    let (mut here, client) = tokio::io::duplex(64);
    let (mut there, runtime) = sockets().await;
    let line = tokio::spawn(couple(client, runtime, HOUR));
    here.write_all(b"ping").await.unwrap();
    there.readable().await.unwrap();
    let said = vec![7; 10_000];
    there.write_all(&said).await.unwrap();
    drop(there);
    let mut rest = Vec::new();
    here.read_to_end(&mut rest).await.unwrap();
    assert!(rest == said, "{} of {}", rest.len(), said.len());
    drop(here);
    line.await.unwrap();
}

/// What is on its way to a client that pings meanwhile is not reset.
#[tokio::test]
async fn a_client_may_ping_until_it_has_read_all() {
    let (mut here, client) = sockets().await;
    let said = vec![7; 8 << 20];
    let runtime = tokio::io::join(Cursor::new(said.clone()), tokio::io::sink());
    let line = tokio::spawn(couple(client, runtime, HOUR));
    let mut rest = Vec::new();
    let mut piece = vec![0; 100 << 10];
    loop {
        here.write_all(b"ping").await.unwrap();
        match here.read(&mut piece).await.unwrap() {
            0 => break,
            count => rest.extend_from_slice(&piece[..count]),
        }
    }
    assert!(rest == said, "{} of {}", rest.len(), said.len());
    drop(here);
    line.await.unwrap();
}

/// A client that stays and is silent holds nothing for long.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_ever_for_a_client_to_go() {
    let begun = Instant::now();
    let (mut here, client) = tokio::io::duplex(64);
    let (there, runtime) = tokio::io::duplex(64);
    let line = tokio::spawn(couple(client, runtime, HOUR));
    drop(there);
    tokio::time::sleep(LINGER / 2).await;
    here.write_all(b"ping").await.unwrap();
    line.await.unwrap();
    assert_eq!(begun.elapsed(), LINGER + LINGER / 2);
}

#[tokio::test(start_paused = true)]
async fn silence_ends_a_line_and_words_prolong_it() {
    let begun = Instant::now();
    let (mut here, client) = tokio::io::duplex(64);
    let (_there, runtime) = tokio::io::duplex(64);
    let line = tokio::spawn(couple(client, runtime, HOUR));
    tokio::time::sleep(HOUR / 2).await;
    here.write_all(b"still here").await.unwrap();
    line.await.unwrap();
    assert_eq!(begun.elapsed(), HOUR + HOUR / 2);
}

#[test]
fn what_the_runtime_says_no_with() {
    for (code, status, again) in [
        (Code::NotFound, 404, None),
        (Code::ResourceExhausted, 429, Some(AGAIN)),
        (Code::Unavailable, 500, None),
    ] {
        let refused = runtime_refused(&Error::new("Exec", code, "no"));
        let told = refused.headers().get("retry-after").cloned();
        assert_eq!((refused.status().as_u16(), told), (status, again), "{code}");
    }
}

#[test]
fn the_runtime_gets_what_it_needs_and_no_more() {
    let request = http::Request::builder()
        .method("POST")
        .uri("/exec/ns/p/c?command=ls")
        .header("Authorization", "Bearer secret")
        .header("Connection", "Upgrade")
        .header("Upgrade", "SPDY/3.1")
        .header("X-Stream-Protocol-Version", "v4.channel.k8s.io")
        .body(Body::empty())
        .unwrap();
    assert_eq!(wanted_upgrade(request.headers()), Ok(Upgrade::Spdy));
    let target = "http://127.0.0.1:4321/exec/token".parse().unwrap();
    let asked = outgoing(&request, &target).unwrap();
    assert_eq!(asked.uri(), "/exec/token");
    let mut names: Vec<&str> = asked.headers().keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["connection", "host", "upgrade", "x-stream-protocol-version"]
    );
}

/// In pieces, as they come.
async fn say(to: &mut (impl AsyncWrite + Unpin), pieces: &[Vec<u8>]) {
    for piece in pieces {
        to.write_all(piece).await.unwrap();
        to.flush().await.unwrap();
        tokio::task::yield_now().await;
    }
}

async fn hear(from: &mut (impl AsyncRead + Unpin), pieces: &[Vec<u8>]) -> Vec<u8> {
    let mut heard = vec![0; pieces.iter().map(Vec::len).sum()];
    from.read_exact(&mut heard).await.unwrap();
    heard
}

fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let piece = proptest::collection::vec(any::<u8>(), 0..300);
    proptest::collection::vec(piece, 0..8)
}

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let parse = |(name, value): &(&str, &str)| {
        let name: HeaderName = name.parse().unwrap();
        (name, http::HeaderValue::from_str(value).unwrap())
    };
    lines.iter().map(parse).collect()
}

#[test]
fn what_can_become_a_stream() {
    let good = [
        vec![("connection", "Upgrade"), ("upgrade", "SPDY/3.1")],
        vec![
            ("connection", "keep-alive, upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-version", "13"),
        ],
    ];
    for (lines, upgrade) in good.into_iter().zip([Upgrade::Spdy, Upgrade::WebSocket]) {
        assert_eq!(wanted_upgrade(&headers(&lines)), Ok(upgrade), "{lines:?}");
    }
    let bad = [
        vec![],
        vec![("upgrade", "SPDY/3.1")],
        vec![("connection", "upgrade")],
        vec![("connection", "close"), ("upgrade", "SPDY/3.1")],
        vec![("connection", "upgrade"), ("upgrade", "h2c")],
        vec![("connection", "upgrade"), ("upgrade", "")],
        vec![("connection", "upgrade"), ("upgrade", "websocket")],
        vec![
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "short"),
            ("sec-websocket-version", "13"),
        ],
        vec![
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-version", "8"),
        ],
    ];
    for lines in bad {
        assert!(wanted_upgrade(&headers(&lines)).is_err(), "{lines:?}");
    }
}

proptest! {
    #[test]
    fn nothing_but_the_handshake_is_passed_on(
        lines in proptest::collection::vec(
            ("(connection|upgrade|authorization|cookie|host|sec-websocket-(protocol|[a-z]{1,8})|x-stream-protocol-version|x-[a-z]{1,6})",
             "(upgrade|Upgrade, close|SPDY/3\\.1|websocket|13|[ -~]{0,30}|v5,? ?base64url\\.bearer\\.authorization\\.k8s\\.io\\.[A-Za-z0-9]{0,4})"),
            0..12,
        ),
    ) {
        let mut request = http::Request::new(Body::empty());
        for (name, value) in &lines {
            let name: HeaderName = name.parse().unwrap();
            let value = http::HeaderValue::from_str(value.trim()).unwrap();
            request.headers_mut().append(name, value);
        }
        let _ = wanted_upgrade(request.headers());
        let target = "http://127.0.0.1:4321/exec/token".parse().unwrap();
        let asked = outgoing(&request, &target).unwrap();
        for (name, value) in asked.headers() {
            let name = name.as_str();
            let protocols = value.to_str().unwrap().split(',');
            let tokens = protocols.filter(|p| p.trim().starts_with("base64url.bearer.")).count();
            prop_assert!(name != "sec-websocket-protocol" || tokens == 0, "{value:?}");
            let known = ["connection", "upgrade", "host", "x-stream-protocol-version"].contains(&name);
            prop_assert!(known || name.starts_with("sec-websocket-"), "{name}");
        }
        let hosts: Vec<_> = asked.headers().get_all("host").iter().collect();
        prop_assert_eq!(hosts, ["127.0.0.1:4321"]);
    }
    /// Frames of whatever protocol are nobody's business here.
    #[test]
    fn any_bytes_pass_both_ways(
        asked in pieces(),
        told in pieces(),
        last in pieces(),
        room in 1_usize..200,
        client_ends in any::<bool>(),
    ) {
        let clock = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let (at_runtime, at_client, rest) = clock.unwrap().block_on(async {
            let (here, client) = tokio::io::duplex(room);
            let (there, runtime) = tokio::io::duplex(room);
            let line = tokio::spawn(couple(client, runtime, HOUR));
            let (mut from_here, mut to_here) = tokio::io::split(here);
            let (mut from_there, mut to_there) = tokio::io::split(there);
            let (at_runtime, at_client, (), ()) = tokio::join!(
                hear(&mut from_there, &asked),
                hear(&mut from_here, &told),
                say(&mut to_here, &asked),
                say(&mut to_there, &told),
            );
            let (here, there) = (from_here.unsplit(to_here), from_there.unsplit(to_there));
            let (mut ends, mut stays) = match client_ends {
                true => (here, there),
                false => (there, here),
            };
            let mut rest = Vec::new();
            let ending = async {
                say(&mut ends, &last).await;
                drop(ends);
            };
            let ((), heard) = tokio::join!(ending, stays.read_to_end(&mut rest));
            heard.unwrap();
            line.await.unwrap();
            (at_runtime, at_client, rest)
        });
        prop_assert_eq!(at_runtime, asked.concat());
        prop_assert_eq!(at_client, told.concat());
        prop_assert_eq!(rest, last.concat());
    }
}
