//! The API server at the other end of an HTTP/2 connection.
//!
//! The connection is opened by the first call that needs it and shared by all calls and watches; others stand beside
//! it only while more of them run than a server takes by one. A call always goes
//! by a connection that is open and shows the certificate of the moment; when there is none such, a new one takes the
//! old one's place, and whatever still runs on the old one keeps it until it has ended. A server that cannot speak
//! HTTP/2 is served too, with a connection per call.
//!
//! Nothing is retried here but what the server has certainly not seen.

mod answer;
mod connection;
mod counting;
mod dial;
mod environment;
mod pool;
mod proxy;
mod request;
mod server;
mod tls;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::FutureExt as _;
use http::{HeaderValue, Version};
use krablet_linux::WallClock;
use krablet_metrics::RestMetrics;
use tokio::time::Instant;

use crate::credentials::{Credentials, Identity, Presented};
use crate::limiter::{Limiter, Rate};
use crate::single::Single;
use crate::{Api, ApiError, Call, Pace, Watch};
use answer::Answer;
use connection::{CONNECT_DEADLINE, Connection, Opener, Unanswered};
use counting::Counters;
use pool::{Pool, Stream};
use request::{Outgoing, method};

pub use dial::{Dial, TcpDial, Transport};
pub use environment::Environment;
pub use proxy::Proxy;
pub use server::{Server, Trust};

/// How often a request that was not seen is sent anew.
const TRIES: usize = 3;

/// The version of Kubernetes we speak.
const KUBERNETES: &str = "v1.36.4";

pub struct HttpApiConfig {
    pub server: Server,
    pub credentials: Credentials,
    /// Of each [`Pace`].
    pub rate: Rate,
    pub user_agent: String,
    pub dial: Arc<dyn Dial>,
    /// Through which the server is reached; `None` is the straight way.
    pub proxy: Option<Proxy>,
    /// What certificates are judged by.
    pub clock: Arc<dyn WallClock>,
    pub metrics: RestMetrics,
}

impl HttpApiConfig {
    /// Over TCP, without a limit.
    pub fn new(server: Server, credentials: Credentials, clock: Arc<dyn WallClock>) -> Self {
        Self {
            server,
            credentials,
            rate: Rate::UNLIMITED,
            user_agent: user_agent(),
            dial: Arc::new(TcpDial),
            proxy: None,
            clock,
            metrics: RestMetrics::default(),
        }
    }

    /// Where requests are counted.
    pub fn metrics(mut self, metrics: RestMetrics) -> Self {
        self.metrics = metrics;
        self
    }

    pub fn rate(mut self, rate: Rate) -> Self {
        self.rate = rate;
        self
    }

    pub fn dial(mut self, dial: Arc<dyn Dial>) -> Self {
        self.dial = dial;
        self
    }

    pub fn proxy(mut self, proxy: Option<Proxy>) -> Self {
        self.proxy = proxy;
        self
    }
}

/// As the API server's logs show us: `krablet/0.1.0 (linux/amd64) kubernetes/v1.36.4`.
pub fn user_agent() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let version = env!("CARGO_PKG_VERSION");
    format!("krablet/{version} (linux/{architecture}) kubernetes/{KUBERNETES}")
}

type Opened = Result<Arc<Connection>, ApiError>;

pub struct HttpApi {
    opener: Arc<Opener>,
    credentials: Credentials,
    own: Limiter,
    reviews: Limiter,
    user_agent: HeaderValue,
    opening: Single<(u64, Opened)>,
    pool: Mutex<Pool>,
    counters: Counters,
}

impl HttpApi {
    pub fn new(config: HttpApiConfig) -> Self {
        let user_agent = HeaderValue::from_str(&config.user_agent);
        let counters = Counters::new(config.metrics, &config.server);
        Self {
            counters,
            opener: Arc::new(Opener {
                server: config.server,
                dial: config.dial,
                proxy: config.proxy,
                clock: config.clock,
            }),
            credentials: config.credentials,
            own: Limiter::new(config.rate),
            reviews: Limiter::new(config.rate),
            user_agent: user_agent.unwrap_or_else(|_| HeaderValue::from_static("krablet")),
            opening: Single::default(),
            pool: Mutex::default(),
        }
    }

    pub fn server(&self) -> &Server {
        &self.opener.server
    }

    fn limiter(&self, pace: Pace) -> &Limiter {
        match pace {
            Pace::Own => &self.own,
            Pace::Reviews => &self.reviews,
        }
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer's head; within the call's deadline from now on, if it is to be kept.
    async fn exchange(&self, call: &Call, presented: &Presented) -> Result<Answer, ApiError> {
        let server = &self.opener.server;
        let outgoing = Outgoing::of(call, server);
        for number in 0..TRIES {
            let mut attempt = self.counters.begin(&outgoing.method, number > 0);
            let connection = self.stream(presented.identity.as_ref()).await?;
            let version = connection.version();
            let request = outgoing.request(server, version, &self.user_agent, presented)?;
            match connection.send(request).await {
                Ok(response) => {
                    let answer = Answer::new(response, connection);
                    attempt.answered(answer.status);
                    if answer.status == 401 {
                        self.credentials.refused(presented);
                    }
                    return Ok(answer);
                }
                Err(Unanswered::Failed(error)) => return Err(error),
                Err(Unanswered::Unseen) => self.pool().forget(&connection),
            }
        }
        let problem = format!("{server}: the server closes every connection before it answers");
        Err(ApiError::Connection(problem))
    }

    /// Room for one request.
    async fn stream(&self, identity: Option<&Identity>) -> Result<Stream, ApiError> {
        let lost = || {
            let problem = format!("{}: no connection lasts", self.opener.server);
            ApiError::Connection(problem)
        };
        let mut tries = 0;
        while tries < TRIES {
            let own = {
                let mut pool = self.pool();
                if let Some(stream) = pool.stream(identity) {
                    return Ok(stream);
                }
                pool.one_per_call || !self.opener.server.is_tls()
            };
            if own {
                let opened = self.opener.open(identity.cloned()).await?;
                return Stream::by(&Arc::new(opened)).ok_or_else(lost);
            }
            let connection = self.open_shared(identity).await?;
            if connection.version() != Version::HTTP_2 {
                // Whoever is the first to send has it.
                return Stream::by(&connection).ok_or_else(lost);
            }
            // The attempt may have been one with the certificate before ours. Or others were quicker, so many that
            // there is no room left: each time fewer.
            if !connection.serves(identity) {
                tries += 1;
            }
        }
        Err(lost())
    }

    /// Opened by one caller for all who want one.
    async fn open_shared(&self, identity: Option<&Identity>) -> Opened {
        let (opener, identity) = (self.opener.clone(), identity.cloned());
        let begin = || {
            let mut pool = self.pool();
            pool.attempts += 1;
            let attempt = pool.attempts;
            async move { (attempt, opener.open(identity).await.map(Arc::new)) }.boxed()
        };
        let (attempt, opened) = self.opening.run(CONNECT_DEADLINE, begin).await;
        let connection = opened?;
        let mut pool = self.pool();
        // The first of those who waited settles it, unless it was given up or overtaken before.
        if attempt > pool.settled {
            pool.settled = attempt;
            match connection.version() {
                Version::HTTP_2 => pool.add(connection.clone()),
                _ => {
                    pool.one_per_call = true;
                    let server = &self.opener.server;
                    tracing::warn!("{server} does not offer HTTP/2: every call opens a connection");
                }
            }
        }
        Ok(connection)
    }
}

#[async_trait::async_trait]
impl Api for HttpApi {
    async fn call(&self, call: Call) -> Result<Bytes, ApiError> {
        let (begun, method) = (Instant::now(), method(call.verb));
        self.limiter(call.pace).turn(call.priority).await?;
        self.counters.waited(&method, begun.elapsed());
        let presented = self.credentials.present().await?;
        self.counters
            .sent(&method, call.body.as_ref().map_or(0, Bytes::len));
        let exchange = async {
            let answer = self.exchange(&call, &presented).await?;
            match answer.is_success() {
                true => {
                    let whole = answer.whole().await;
                    whole.inspect(|body| self.counters.received(&method, body.len()))
                }
                false => Err(answer.failure().await),
            }
        };
        let answered = tokio::time::timeout(call.deadline, exchange).await;
        self.counters.ended(&method, begun.elapsed());
        answered.unwrap_or(Err(ApiError::Deadline(call.deadline)))
    }

    /// The deadline is for the head of the answer. Watches have no turn to wait for: they are few, and what they
    /// bring saves calls.
    async fn watch(&self, mut call: Call) -> Result<Watch, ApiError> {
        if !call.query.iter().any(|(name, _)| *name == "watch") {
            call = call.query("watch", "true");
        }
        let presented = self.credentials.present().await?;
        let exchange = async {
            let answer = self.exchange(&call, &presented).await?;
            match answer.is_success() {
                true => Ok(answer.lines()),
                false => Err(answer.failure().await),
            }
        };
        let opened = tokio::time::timeout(call.deadline, exchange).await;
        opened.unwrap_or(Err(ApiError::Deadline(call.deadline)))
    }

    fn reconnect(&self) {
        self.pool().forget_all();
    }
}
