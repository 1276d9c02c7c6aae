//! The HTTP client against a server in memory.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod certificates;
mod connection;
mod identity;
mod proxy;
mod server;

use std::sync::Arc;

use krablet_kube::{ApiError, Call, Credentials, HttpApi, HttpApiConfig, Server, Trust, Verb};
use krablet_linux::fake::FixedClock;

use certificates::Authority;
use server::{Line, TestServer};

const ADDRESS: &str = "https://api:6443";

struct World {
    authority: Authority,
    server: Arc<TestServer>,
    clock: FixedClock,
}

impl World {
    fn new() -> Self {
        Self::speaking(&["h2", "http/1.1"])
    }

    fn speaking(protocols: &[&str]) -> Self {
        let authority = Authority::new();
        let server = TestServer::new(Some(authority.server(protocols)));
        let clock = FixedClock::at("2030-01-01T00:00:00Z".parse().unwrap());
        Self {
            authority,
            server,
            clock,
        }
    }

    fn api(&self, credentials: Credentials) -> HttpApi {
        self.api_at(ADDRESS, self.authority.trust(), credentials)
    }

    fn api_at(&self, address: &str, trust: Trust, credentials: Credentials) -> HttpApi {
        let server = Server::new(address, trust).unwrap();
        let clock = Arc::new(self.clock.clone());
        let config = HttpApiConfig::new(server, credentials, clock);
        HttpApi::new(config.dial(Arc::new(Line(self.server.clone()))))
    }
}

fn get(path: &str) -> Call {
    Call::new(Verb::Get, path.into())
}

fn words(error: Option<ApiError>) -> String {
    error.map(|error| error.to_string()).unwrap_or_default()
}
