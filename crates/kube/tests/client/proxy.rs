//! The API server through a proxy within the test.

use std::io;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use krablet_kube::client::{Dial, Transport};
use krablet_kube::{Api as _, Credentials, HttpApi, HttpApiConfig, Proxy, Server};
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio_rustls::TlsAcceptor;

use crate::server::Line;
use crate::{ADDRESS, World, get, words};

/// Whoever dials gets the proxy, which leads on to the server.
struct ProxyLine {
    server: Line,
    tls: Option<Arc<ServerConfig>>,
    answer: &'static str,
    /// Where was dialled, and what was asked there.
    seen: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Dial for ProxyLine {
    async fn dial(&self, host: &str, port: u16) -> io::Result<Box<dyn Transport>> {
        self.seen.lock().unwrap().push(format!("{host}:{port}"));
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let far = self.server.dial("api", 6443).await?;
        let (seen, answer, tls) = (self.seen.clone(), self.answer, self.tls.clone());
        tokio::spawn(async move {
            match tls {
                Some(config) => {
                    let near = TlsAcceptor::from(config).accept(theirs).await;
                    pass(near.unwrap(), far, answer, &seen).await;
                }
                None => pass(theirs, far, answer, &seen).await,
            }
        });
        Ok(Box::new(ours))
    }
}

async fn pass(
    mut near: impl Transport,
    mut far: Box<dyn Transport>,
    answer: &str,
    seen: &Mutex<Vec<String>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match near.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    seen.lock().unwrap().push(String::from_utf8(head).unwrap());
    near.write_all(answer.as_bytes()).await.unwrap();
    let _ = copy_bidirectional(&mut near, &mut far).await;
}

const OPEN: &str = "HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n";

fn through(
    world: &World,
    proxy: &str,
    tls: Option<ServerConfig>,
    answer: &'static str,
) -> (HttpApi, Arc<Mutex<Vec<String>>>) {
    let seen = Arc::default();
    let line = ProxyLine {
        server: Line(world.server.clone()),
        tls: tls.map(Arc::new),
        answer,
        seen: Arc::clone(&seen),
    };
    let server = Server::new(ADDRESS, world.authority.trust()).unwrap();
    let clock = Arc::new(world.clock.clone());
    let config = HttpApiConfig::new(server, Credentials::none(), clock)
        .proxy(Some(Proxy::parse(proxy).unwrap()))
        .dial(Arc::new(line));
    (HttpApi::new(config), seen)
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_is_asked_for_once_and_shared() {
    let world = World::new();
    let (api, seen) = through(&world, "http://me:pass@proxy:3128", None, OPEN);
    for _ in 0..3 {
        api.call(get("/a")).await.unwrap();
    }
    let asked = "CONNECT api:6443 HTTP/1.1\r\nHost: api:6443\r\n\
        Proxy-Authorization: Basic bWU6cGFzcw==\r\n\r\n";
    assert_eq!(*seen.lock().unwrap(), ["proxy:3128", asked]);
    assert_eq!(world.server.dialled(), 1);
    assert_eq!(world.server.last().authorization, None);
}

#[tokio::test(start_paused = true)]
async fn a_proxy_with_a_certificate() {
    let world = World::new();
    // The test's authority gives certificates to hosts called `api` only.
    let tls = world.authority.server(&["http/1.1"]);
    let (api, seen) = through(&world, "https://api:3129", Some(tls), OPEN);
    api.call(get("/a")).await.unwrap();
    let asked = "CONNECT api:6443 HTTP/1.1\r\nHost: api:6443\r\n\r\n";
    assert_eq!(*seen.lock().unwrap(), ["api:3129", asked]);
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_refuses_is_named() {
    let world = World::new();
    let refusal = "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
    let (api, _) = through(&world, "http://me:secret@proxy:3128", None, refusal);
    let error = api.call(get("/a")).await.err();
    assert_eq!(
        words(error),
        "https://api:6443: by the proxy http://proxy:3128: it answers 407 Proxy Authentication Required"
    );
    let (api, _) = through(&world, "http://proxy:3128", None, "SSH-2.0\r\n\r\n");
    let error = api.call(get("/a")).await.err();
    assert!(words(error).ends_with("it does not speak HTTP there"));
}
