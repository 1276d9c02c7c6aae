//! How connections are shared, given up and replaced.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use krablet_kube::{Api as _, ApiError, Credentials, Trust};
use krablet_linux::fake::FixedClock;

use crate::server::TestServer;
use crate::{ADDRESS, World, certificates::Authority, get, words};

const LINE: Bytes = Bytes::from_static(b"{\"type\":\"ADDED\"}\n");
const TOLD: Bytes = Bytes::from_static(b"{\"type\":\"ADDED\"}");

#[tokio::test(start_paused = true)]
async fn one_connection_for_everything() {
    let world = World::new();
    let api = world.api(Credentials::none());
    let calls = (0..50).map(|_| api.call(get("/a")));
    let watches = (0..5).map(|_| api.watch(get("/watch")));
    let (calls, watches) = tokio::join!(
        futures::future::join_all(calls),
        futures::future::join_all(watches)
    );
    assert!(
        calls
            .iter()
            .all(|answer| *answer == Ok(Bytes::from("{\"ok\":true}")))
    );
    for (at, watch) in watches.into_iter().enumerate() {
        world.server.watch(at).await.send(LINE).await.unwrap();
        drop(watch.unwrap());
    }
    assert_eq!(world.server.dialled(), 1);
    let agent = world.server.last().user_agent;
    assert!(
        agent.starts_with("krablet/") && agent.ends_with("kubernetes/v1.36.4"),
        "{agent}"
    );
}

#[tokio::test(start_paused = true)]
async fn more_than_one_connection_can_carry() {
    let world = World::new();
    let api = world.api(Credentials::none());
    let watches = (0..300).map(|_| api.watch(get("/watch")));
    let watches = futures::future::join_all(watches).await;
    let mut watches: Vec<_> = watches.into_iter().map(Result::unwrap).collect();
    assert!(api.call(get("/a")).await.is_ok());
    assert_eq!(world.server.dialled(), 4);
    for (at, watch) in watches.iter_mut().enumerate() {
        world.server.watch(at).await.send(LINE).await.unwrap();
        assert_eq!(watch.next().await, Some(Ok(TOLD)));
    }
    // What is over makes room, and connections that nobody needs are closed.
    drop(watches);
    assert!(api.call(get("/a")).await.is_ok());
    let mut open = world.server.open.subscribe();
    open.wait_for(|open| *open == 1).await.unwrap();
    assert_eq!(world.server.dialled(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_call_and_nothing_else() {
    let world = World::new();
    let api = world.api(Credentials::none());
    let deadline = Duration::from_secs(3);
    let hanging = api.call(get("/hang").deadline(deadline)).await;
    assert_eq!(hanging, Err(ApiError::Deadline(deadline)));
    assert!(api.call(get("/a")).await.is_ok());
    assert_eq!(world.server.dialled(), 1);
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_no_success() {
    let world = World::new();
    let api = world.api(Credentials::none());
    let busy = api.call(get("/busy")).await.unwrap_err();
    assert_eq!(busy.code(), Some(429));
    assert_eq!(busy.retry_after(), Some(Duration::from_secs(7)));
    let watch = api.watch(get("/busy")).await.err().unwrap();
    assert_eq!(watch, busy);
    let huge = api.call(get("/huge")).await;
    let expected = ApiError::Decode("larger than 67108864 bytes".into());
    assert_eq!(huge, Err(expected));
}

#[tokio::test(start_paused = true)]
async fn a_connection_given_up_keeps_what_runs_on_it() {
    let world = World::new();
    let api = world.api(Credentials::none());
    let mut watch = api.watch(get("/watch")).await.unwrap();
    api.reconnect();
    assert!(api.call(get("/a")).await.is_ok());
    assert_eq!(world.server.dialled(), 2);
    let lines = world.server.watch(0).await;
    lines.send(LINE).await.unwrap();
    assert_eq!(watch.next().await, Some(Ok(TOLD)));
    // Nobody needs the old one any more.
    drop(watch);
    let mut open = world.server.open.subscribe();
    open.wait_for(|open| *open == 1).await.unwrap();
    assert!(api.call(get("/a")).await.is_ok());
    assert_eq!(world.server.dialled(), 2);
    drop(api);
    open.wait_for(|open| *open == 0).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn pings_find_a_dead_server() {
    let world = World::new();
    let api = world.api(Credentials::none());
    let mut watch = api.watch(get("/watch")).await.unwrap();
    world.server.freeze.notify_waiters();
    let error = watch.next().await.unwrap().unwrap_err();
    assert!(matches!(error, ApiError::Connection(_)), "{error:?}");
    assert_eq!(watch.next().await, None);
    assert!(api.call(get("/a")).await.is_ok());
    assert_eq!(world.server.dialled(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_goes_away_politely_costs_no_call() {
    let world = World::new();
    let api = world.api(Credentials::none());
    let mut watch = api.watch(get("/watch")).await.unwrap();
    world.server.go_away.notify_waiters();
    for _ in 0..3 {
        assert!(api.call(get("/a")).await.is_ok());
    }
    let lines = world.server.watch(0).await;
    lines.send(LINE).await.unwrap();
    assert_eq!(watch.next().await, Some(Ok(TOLD)), "what runs may end");
    assert_eq!(world.server.dialled(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_http2_every_call_has_its_own() {
    let world = World::speaking(&["http/1.1"]);
    let api = world.api(Credentials::none());
    let calls = (0..3).map(|_| api.call(get("/a")));
    let calls = futures::future::join_all(calls).await;
    assert!(calls.iter().all(Result::is_ok), "{calls:?}");
    let mut watch = api.watch(get("/watch")).await.unwrap();
    let lines = world.server.watch(0).await;
    lines.send(LINE).await.unwrap();
    assert_eq!(watch.next().await, Some(Ok(TOLD)));
    assert_eq!(world.server.dialled(), 4);
}

#[tokio::test(start_paused = true)]
async fn plain_http() {
    let world = World {
        authority: Authority::new(),
        server: TestServer::new(None),
        clock: FixedClock::default(),
    };
    let api = world.api_at("http://api:8080", Trust::Machine, Credentials::none());
    assert!(api.call(get("/a")).await.is_ok());
    // And what it looks like when the scheme is wrong.
    let api = world.api(Credentials::none());
    let error = words(api.call(get("/a")).await.err());
    assert_eq!(
        error,
        "https://api:6443: the server does not speak TLS there"
    );
}

#[tokio::test(start_paused = true)]
async fn certificates_that_are_not_the_servers() {
    let world = World::new();
    let other = Authority::new();
    let year = |year: &str| {
        world
            .clock
            .set(format!("{year}-06-01T00:00:00Z").parse().unwrap())
    };
    let ask = async |address: &str, trust: Trust| {
        let api = world.api_at(address, trust, Credentials::none());
        match api.call(get("/a")).await {
            Err(ApiError::Tls(words)) => words,
            other => format!("{other:?}"),
        }
    };
    let ours = || world.authority.trust();
    let head = format!("{ADDRESS}: the server's certificate");
    let unknown = format!("{head} is signed by an unknown authority");
    assert_eq!(ask(ADDRESS, other.trust()).await, unknown);
    let elsewhere = ask("https://10.0.0.1", ours()).await;
    let expected = "https://10.0.0.1: the server's certificate is not for 10.0.0.1, only for";
    assert!(elsewhere.starts_with(expected), "{elsewhere}");
    year("2050");
    let expected = format!(
        "{head} expired at 2040-01-01T00:00:00Z, and it is 2050-06-01T00:00:00Z, \
         or the clock of this machine may be wrong"
    );
    assert_eq!(ask(ADDRESS, ours()).await, expected);
    year("1990");
    let expected = format!(
        "{head} is valid from 2020-01-01T00:00:00Z on, and it is 1990-06-01T00:00:00Z: \
         the clock of this machine may be wrong"
    );
    assert_eq!(ask(ADDRESS, ours()).await, expected);
    assert_eq!(
        ask(ADDRESS, Trust::Blind).await,
        "Ok(b\"{\\\"ok\\\":true}\")"
    );
}

#[tokio::test]
async fn a_closed_port() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    drop(listener);
    let server = krablet_kube::Server::new(&address, Authority::new().trust()).unwrap();
    let clock = std::sync::Arc::new(FixedClock::default());
    let config = krablet_kube::HttpApiConfig::new(server, Credentials::none(), clock);
    let metrics = krablet_metrics::RestMetrics::default();
    let api = krablet_kube::HttpApi::new(config.metrics(metrics.clone()));
    let error = api.call(get("/a")).await;
    let expected = format!("{address}: Connection refused (os error 111)");
    assert_eq!(error, Err(ApiError::Connection(expected)));
    let counted = metrics.requests.get();
    let [(labels, 1)] = &counted.iter().collect::<Vec<_>>()[..] else {
        panic!("{counted:?}");
    };
    let host = address.trim_start_matches("https://");
    assert_eq!(labels.join(" "), format!("<error> {host} GET"));
    assert_eq!(metrics.duration.get().len(), 1);
}
