//! Those who come with ever new tokens, at the pace a node has by default.

use std::io;
use std::net::IpAddr;

use krablet_kube::client::{Dial, Transport};
use krablet_kube::{HttpApi, HttpApiConfig, Priority, Rate, Trust, Verb};
use krablet_linux::fake::FixedClock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::*;
use crate::authenticator::TokenReviews;

/// As many addresses as that, and so many requests of each that wait for nothing but the answer to the one before.
const ADDRESSES: u8 = 4;
const REQUESTS: usize = 300;
const SECOND: Duration = Duration::from_secs(1);

/// An API server at the other end of a pipe, a request per connection. It knows one token, and allows everything.
struct Line;

#[async_trait::async_trait]
impl Dial for Line {
    async fn dial(&self, _: &str, _: u16) -> io::Result<Box<dyn Transport>> {
        let (here, there) = tokio::io::duplex(1 << 16);
        tokio::spawn(answer(there));
        Ok(Box::new(here))
    }
}

async fn answer(mut stream: DuplexStream) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|l| l.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    stream.read_exact(&mut body).await?;
    let body: Value = serde_json::from_slice(&body).unwrap();
    let known = body["spec"]["token"] == "good";
    let user = json!({"username": "prom"});
    let status = json!({"authenticated": known, "user": user, "allowed": true});
    let text = json!({"status": status}).to_string();
    let length = text.len();
    let head = format!("HTTP/1.1 201 Created\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all((head + &text).as_bytes()).await
}

fn kube() -> Kube {
    let server = krablet_kube::Server::new("http://api", Trust::Machine).unwrap();
    let clock = Arc::new(FixedClock::default());
    let config = HttpApiConfig::new(server, krablet_kube::Credentials::none(), clock);
    let rate = Rate {
        qps: 50.0,
        burst: 100,
    };
    let config = config.dial(Arc::new(Line)).rate(rate);
    Kube::new(Arc::new(HttpApi::new(config)))
}

async fn ask(door: &Authenticator, from: [u8; 4], token: &str) -> Result<User, Denied> {
    let header = format!("Bearer {token}");
    let shown = Credentials {
        from: Some(IpAddr::from(from)),
        ..shown(&[], Some(&header))
    };
    door.authenticate(shown).await
}

/// Never lets up; who is sent away at once comes again a little later, or the clock would stand still.
async fn stranger(door: Arc<Authenticator>, address: u8, number: usize) {
    for time in 0_u64.. {
        let token = format!("{address} {number} {time}").replace(' ', "-");
        match ask(&door, [10, 0, 0, address], &token).await {
            Err(Denied::Busy) => sleep(Duration::from_millis(100)).await,
            found => assert_eq!(found, Err(Denied::Unauthenticated)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ever_new_tokens_shut_nobody_out() {
    let kube = kube();
    let door = Arc::new(Authenticator {
        tokens: Some(TokenReviews::new(kube.clone(), MINUTE)),
        ..Authenticator::default()
    });
    let rights = SubjectReviews::new(kube.clone(), "n1".into(), MINUTE, MINUTE);
    let rights = Authorizer::Webhook(rights);
    let each = (0..ADDRESSES).flat_map(|address| (0..REQUESTS).map(move |n| (address, n)));
    let _strangers: JoinSet<()> = each
        .map(|(address, n)| stranger(door.clone(), address, n))
        .collect();
    // All they find at first is used up.
    sleep(5 * SECOND).await;

    let event = Call::new(Verb::Create, "/api/v1/events".into()).body("{}");
    let event = event.priority(Priority::Background);
    for _ in 0..20 {
        let sent = timeout(SECOND, kube.api().call(event.clone())).await;
        assert!(matches!(sent, Ok(Ok(_))), "an event: {sent:?}");
    }
    let user = timeout(2 * SECOND, ask(&door, [10, 0, 1, 1], "good")).await;
    let user = user.expect("a token that was not seen before").unwrap();
    assert_eq!(user.name, "prom");
    let wanted = attributes(&Method::GET, "/metrics");
    let may = timeout(2 * SECOND, rights.authorize(&user, &wanted)).await;
    assert_eq!(may, Ok(Ok(())), "a right that was not asked for before");
}
