use axum::body::{Body, Bytes};
use axum::routing::get;
use futures::StreamExt as _;
use http::StatusCode;
use http_body_util::BodyExt as _;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;

fn pair() -> (CertificateDer<'static>, TlsAcceptor) {
    let made = rcgen::generate_simple_self_signed(["node".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    (certificate, TlsAcceptor::from(Arc::new(config)))
}

/// Has the only place of its door.
async fn alone() -> Guest {
    Guests::new(1, SECURE_IDLE).enter().await
}

/// A piece of an answer that is as large as who asked for it likes.
const PIECE: &str = match std::str::from_utf8(&[b'x'; 1024]) {
    Ok(piece) => piece,
    Err(_) => "",
};

/// Two answers that come at once, one that waits to be allowed to, one that never ends, and one of which there is always more.
fn router(wait: Arc<Notify>) -> Router {
    let slow = async move || {
        wait.notified().await;
        "at last"
    };
    let lines = async || {
        let line = Ok::<_, Infallible>("line\n");
        let lines = futures::stream::iter([line]).chain(futures::stream::pending());
        Body::from_stream(lines)
    };
    let endless = async || {
        let pieces = futures::stream::repeat_with(|| Ok::<_, Infallible>(PIECE));
        Body::from_stream(pieces)
    };
    Router::new()
        .route("/", get(async || "fine"))
        .route("/endless", get(endless))
        .route(
            "/refused",
            get(async || (StatusCode::UNAUTHORIZED, "Unauthorized")),
        )
        .route("/slow", get(slow))
        .route("/lines", get(lines))
}

/// A client at the HTTPS door, and the door's side of it.
async fn client(tasks: &mut JoinSet<()>) -> TlsStream<DuplexStream> {
    let guest = alone().await;
    client_of(guest, router(Arc::default()), tasks).await
}

async fn client_of(
    guest: Guest,
    router: Router,
    tasks: &mut JoinSet<()>,
) -> TlsStream<DuplexStream> {
    let (certificate, acceptor) = pair();
    let (here, there) = tokio::io::duplex(4096);
    tasks.spawn(async move {
        secure_connection(Box::new(there), None, &acceptor, router, &guest).await
    });
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("node").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, here).await.unwrap()
}

type Sender = hyper::client::conn::http2::SendRequest<Body>;

/// The same with HTTP/2; it answers every ping.
async fn modern_client(wait: Arc<Notify>, tasks: &mut JoinSet<()>) -> Sender {
    let guest = alone().await;
    let stream = client_of(guest, router(wait), tasks).await;
    modern(stream, 1 << 16, tasks).await
}

/// One that takes so much of an answer before it begins to read it.
async fn modern(stream: TlsStream<DuplexStream>, window: u32, tasks: &mut JoinSet<()>) -> Sender {
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let shaken = builder
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(stream));
    let (sender, connection) = shaken.await.unwrap();
    tasks.spawn(async move {
        let _ = connection.await;
    });
    sender
}

async fn get_from(sender: &mut Sender, path: &str) -> hyper::Result<http::Response<Incoming>> {
    let request = http::Request::get(format!("https://node{path}")).body(Body::empty());
    sender.send_request(request.unwrap()).await
}

/// One end of a connection.
async fn ended(tasks: &mut JoinSet<()>) {
    let ended = timeout(10 * SECURE_IDLE, tasks.join_next()).await;
    ended.expect("it stays open").unwrap().unwrap();
}

async fn body(response: http::Response<Incoming>) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

async fn rest(mut stream: TlsStream<DuplexStream>) -> String {
    let mut rest = Vec::new();
    // A door that is shut without a farewell is shut all the same.
    let _ = stream.read_to_end(&mut rest).await;
    String::from_utf8_lossy(&rest).into_owned()
}

#[tokio::test(start_paused = true)]
async fn a_head_that_comes_letter_by_letter_is_cut_off() {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    let mut stream = client(&mut tasks).await;
    stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let sent = stream.write_all(b"X: y\r\n").await;
        if sent.is_err() || tasks.try_join_next().is_some() {
            break;
        }
    }
    assert!(begun.elapsed() <= SECURE_IDLE + HEAD_TIMEOUT);
    assert!(!rest(stream).await.contains("fine"));
}

#[tokio::test(start_paused = true)]
async fn who_never_begins_the_handshake_is_cut_off() {
    let (_, acceptor) = pair();
    let (_here, there) = tokio::io::duplex(4096);
    let begun = Instant::now();
    let guest = alone().await;
    secure_connection(Box::new(there), None, &acceptor, Router::new(), &guest).await;
    assert_eq!(begun.elapsed(), HEAD_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn who_says_nothing_is_let_go() {
    let mut tasks = JoinSet::new();
    let stream = client(&mut tasks).await;
    tasks.join_next().await.unwrap().unwrap();
    assert_eq!(rest(stream).await, "");
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let mut tasks = JoinSet::new();
    let stream = client(&mut tasks).await;
    let (mut from, mut to) = tokio::io::split(stream);
    let said = async {
        let _ = to.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n").await;
        for n in 0..90 {
            let line = format!("X-{n}: {}\r\n", "a".repeat(1000));
            if to.write_all(line.as_bytes()).await.is_err() {
                return;
            }
        }
        let _ = to.flush().await;
    };
    let mut heard = vec![0; 64];
    let (count, ()) = tokio::join!(from.read(&mut heard), said);
    let heard = String::from_utf8_lossy(&heard[..count.unwrap()]).into_owned();
    assert!(heard.starts_with("HTTP/1.1 431 "), "{heard}");
}

#[tokio::test]
async fn a_request_is_answered() {
    let mut tasks = JoinSet::new();
    let mut stream = client(&mut tasks).await;
    let ask = b"GET / HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n";
    stream.write_all(ask).await.unwrap();
    assert!(rest(stream).await.ends_with("fine"));
}

#[tokio::test]
async fn who_is_not_let_speak_otherwise_is_taken_leave_of() {
    for (path, expected) in [("/", "fine"), ("/refused", "Unauthorized")] {
        for last in ["Connection: close\r\n", ""] {
            let mut tasks = JoinSet::new();
            let mut client = client(&mut tasks).await;
            let asked = format!(
                "GET {path} HTTP/1.1\r\nHost: node\r\n{last}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
            );
            client.write_all(asked.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(expected.as_bytes()) {
                assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0);
            }
            if last.is_empty() {
                client.shutdown().await.unwrap();
            }
            // Ends without an error: nothing was cut off.
            assert_eq!(client.read_to_end(&mut answer).await.unwrap(), 0);
            ended(&mut tasks).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_under_way_ends_a_modern_connection_too() {
    for path in ["/", "/refused"] {
        let mut tasks = JoinSet::new();
        let mut sender = modern_client(Arc::default(), &mut tasks).await;
        for _ in 0..3 {
            let answer = get_from(&mut sender, path).await.unwrap();
            body(answer).await;
            tokio::time::sleep(SECURE_IDLE / 2).await;
        }
        let begun = Instant::now();
        // Both ends of it: the client is told to go, not cut off.
        ended(&mut tasks).await;
        ended(&mut tasks).await;
        assert_eq!(begun.elapsed().as_secs(), (SECURE_IDLE / 2).as_secs());
        assert!(get_from(&mut sender, path).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_under_way_is_never_cut_off() {
    let mut tasks = JoinSet::new();
    let wait = Arc::new(Notify::new());
    let mut sender = modern_client(wait.clone(), &mut tasks).await;
    let followed = get_from(&mut sender, "/lines").await.unwrap();
    let mut followed = followed.into_body();
    followed.frame().await.unwrap().unwrap();
    let slow = get_from(&mut sender, "/slow");
    let long_after = async {
        tokio::time::sleep(10 * SECURE_IDLE).await;
        wait.notify_one();
    };
    let (slow, ()) = tokio::join!(slow, long_after);
    assert_eq!(body(slow.unwrap()).await, "at last");
    tokio::time::sleep(10 * SECURE_IDLE).await;
    let fine = get_from(&mut sender, "/").await.unwrap();
    assert_eq!(body(fine).await, "fine");
    drop(followed);
    ended(&mut tasks).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_long_in_coming_is_waited_for() {
    let mut tasks = JoinSet::new();
    let wait = Arc::new(Notify::new());
    let guest = alone().await;
    let mut stream = client_of(guest, router(wait.clone()), &mut tasks).await;
    let ask = b"GET /slow HTTP/1.1\r\nHost: node\r\n\r\n";
    stream.write_all(ask).await.unwrap();
    tokio::time::sleep(10 * SECURE_IDLE).await;
    wait.notify_one();
    // And then the connection is of no more use to anybody.
    assert!(rest(stream).await.ends_with("at last"));
}

/// A client that answers pings and takes nothing of what it is told, where nobody needs its place.
#[tokio::test(start_paused = true)]
async fn a_refusal_that_is_not_taken_holds_no_place() {
    for (path, stays) in [("/", true), ("/refused", false)] {
        let mut tasks = JoinSet::new();
        let guest = alone().await;
        let stream = client_of(guest, router(Arc::default()), &mut tasks).await;
        let mut sender = modern(stream, 0, &mut tasks).await;
        let _answer = get_from(&mut sender, path).await.unwrap();
        let gone = timeout(10 * SECURE_IDLE, tasks.join_next()).await;
        assert_eq!(gone.is_err(), stays, "{path}");
    }
}

/// The same where somebody does.
#[tokio::test(start_paused = true)]
async fn no_answer_that_is_not_taken_holds_a_place_that_is_needed() {
    const WIDE: u32 = 1 << 16;
    for (path, window, gives_way) in [
        ("/", 0, true),
        ("/lines", 0, true),
        ("/endless", WIDE, true),
        // Its end is waited for on this side.
        ("/lines", WIDE, false),
        ("/slow", 0, false),
    ] {
        let mut tasks = JoinSet::new();
        let guests = Guests::new(1, SECURE_IDLE);
        let guest = guests.enter().await;
        let stream = client_of(guest, router(Arc::default()), &mut tasks).await;
        let mut sender = modern(stream, window, &mut tasks).await;
        tasks.spawn(async move {
            let answer = get_from(&mut sender, path).await;
            std::future::pending::<()>().await;
            drop((answer, sender));
        });
        let begun = Instant::now();
        // Who has asked for nothing yet is idle.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let entered = timeout(10 * SECURE_IDLE, guests.enter()).await;
        assert_eq!(entered.is_ok(), gives_way, "{path} {window}");
        let waited = begun.elapsed().as_secs();
        assert!(waited >= SECURE_IDLE.as_secs(), "{path}: {waited}");
        assert!(
            !gives_way || waited <= SECURE_IDLE.as_secs() + 1,
            "{path}: {waited}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn who_takes_an_answer_slowly_keeps_the_place() {
    let mut tasks = JoinSet::new();
    let guests = Guests::new(1, SECURE_IDLE);
    let guest = guests.enter().await;
    let stream = client_of(guest, router(Arc::default()), &mut tasks).await;
    let window = u32::try_from(PIECE.len()).unwrap();
    let mut sender = modern(stream, window, &mut tasks).await;
    let answer = get_from(&mut sender, "/endless").await.unwrap();
    let mut answer = answer.into_body();
    let slowly = async {
        for _ in 0..20 {
            let piece = answer.frame().await.unwrap().unwrap();
            assert_eq!(piece.data_ref().unwrap().len(), PIECE.len());
            tokio::time::sleep(SECURE_IDLE * 2 / 3).await;
        }
    };
    let mut new = Box::pin(guests.enter());
    tokio::select! {
        () = slowly => {}
        _ = &mut new => panic!("it was cut off"),
    }
    timeout(SECURE_IDLE, new).await.expect("it holds the place");
}

/// A client of a plain door.
fn plain_client(guest: Guest, speech: Speech, tasks: &mut JoinSet<()>) -> DuplexStream {
    let (here, there) = tokio::io::duplex(4096);
    let router = router(Arc::default());
    tasks.spawn(async move { connection(Box::new(there), speech, router, &guest).await });
    here
}

#[tokio::test(start_paused = true)]
async fn nobody_shuts_a_plain_door_by_not_reading() {
    let mut tasks = JoinSet::new();
    let guests = Guests::new(1, HEAD_TIMEOUT);
    let guest = guests.enter().await;
    let mut stream = plain_client(guest, Speech::Old, &mut tasks);
    let ask = b"GET /endless HTTP/1.1\r\nHost: node\r\n\r\n";
    stream.write_all(ask).await.unwrap();
    let gone = timeout(100 * HEAD_TIMEOUT, tasks.join_next()).await;
    assert!(gone.is_err(), "nobody needs the place");
    let new = timeout(HEAD_TIMEOUT, guests.enter()).await;
    plain_client(new.expect("nobody gives way"), Speech::Old, &mut tasks);
    ended(&mut tasks).await;
    // What it could have taken all the time, and no more.
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert!(rest.starts_with(b"HTTP/1.1 200 ") && rest.len() <= 4096);
}

#[tokio::test(start_paused = true)]
async fn doors_for_everybody_speak_one_language() {
    for (speech, understood) in [(Speech::Old, false), (Speech::Any, true)] {
        let mut tasks = JoinSet::new();
        let mut stream = plain_client(alone().await, speech, &mut tasks);
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        stream.write_all(preface).await.unwrap();
        let mut heard = [0; 4];
        let count = stream.read(&mut heard).await.unwrap();
        // A frame of settings, after its length.
        assert_eq!(
            count == 4 && heard[3] == 4,
            understood,
            "{speech:?}: {heard:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_crowd_gives_way_to_who_comes() {
    let mut tasks = JoinSet::new();
    let guests = Guests::new(8, SECURE_IDLE);
    let mut crowd = Vec::new();
    for number in 0..8 {
        let guest = guests.enter().await;
        let stream = client_of(guest, router(Arc::default()), &mut tasks).await;
        let mut sender = modern(stream, 1 << 16, &mut tasks).await;
        let path = match number {
            0 => "/lines",
            _ => "/",
        };
        crowd.push((get_from(&mut sender, path).await.unwrap(), sender));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let begun = Instant::now();
    for _ in 0..20 {
        let guest = guests.enter().await;
        let mut stream = client_of(guest, router(Arc::default()), &mut tasks).await;
        let ask = b"GET / HTTP/1.1\r\nHost: node\r\n\r\n";
        stream.write_all(ask).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        tokio::task::yield_now().await;
        // Stays, and says nothing more.
        tasks.spawn(async move {
            rest(stream).await;
        });
    }
    assert!(begun.elapsed() < SECURE_IDLE / 10, "{:?}", begun.elapsed());
    let open: Vec<bool> = crowd.iter().map(|(_, s)| !s.is_closed()).collect();
    assert!(open[0], "it follows a log");
    assert!(open[1..].iter().all(|open| !open), "{open:?}");
}

#[tokio::test]
async fn a_peer_that_vanishes_is_asked_for() {
    use rustix::net::sockopt;
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (accepted, _peer) = tokio::join!(listener.accept(), TcpStream::connect(address));
    let Ok(Accepted::Tcp(stream)) = accepted else {
        panic!("nobody came");
    };
    assert!(sockopt::socket_keepalive(&stream).unwrap());
    assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEPALIVE.0);
    assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), KEEPALIVE.0);
    assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), KEEPALIVE.1);
}
