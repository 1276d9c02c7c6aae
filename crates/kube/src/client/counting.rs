//! What is counted of requests: each try, by how it was answered.

use std::time::Duration;

use http::Method;
use krablet_metrics::RestMetrics;

use super::server::Server;

/// What an answer's status is called when there was none.
const NO_ANSWER: &str = "<error>";

/// The metrics of the calls to one server.
pub(super) struct Counters {
    metrics: RestMetrics,
    host: String,
}

impl Counters {
    pub(super) fn new(metrics: RestMetrics, server: &Server) -> Self {
        Self {
            metrics,
            host: server.authority.to_string(),
        }
    }

    /// A try begins, the first one of a request or a later one.
    pub(super) fn begin<'a>(&'a self, method: &'a Method, again: bool) -> Try<'a> {
        Try {
            counters: self,
            method,
            again,
            status: None,
        }
    }

    pub(super) fn waited(&self, method: &Method, took: Duration) {
        let labels = [&*self.host, method.as_str()];
        self.metrics.turn.observe_duration(&labels, took);
    }

    /// The body of a call, if it had one, was so long.
    pub(super) fn sent(&self, method: &Method, bytes: usize) {
        let labels = [&*self.host, method.as_str()];
        self.metrics.request_size.observe(&labels, bytes as f64);
    }

    pub(super) fn received(&self, method: &Method, bytes: usize) {
        let labels = [&*self.host, method.as_str()];
        self.metrics.response_size.observe(&labels, bytes as f64);
    }

    pub(super) fn ended(&self, method: &Method, took: Duration) {
        let labels = [&*self.host, method.as_str()];
        self.metrics.duration.observe_duration(&labels, took);
    }
}

/// Counted when it is dropped, for whoever waits for an answer may give up at any moment.
pub(super) struct Try<'a> {
    counters: &'a Counters,
    method: &'a Method,
    again: bool,
    status: Option<u16>,
}

impl Try<'_> {
    pub(super) fn answered(&mut self, status: u16) {
        self.status = Some(status);
    }
}

impl Drop for Try<'_> {
    fn drop(&mut self) {
        let Counters { metrics, host } = self.counters;
        let code = match self.status {
            Some(status) => &*status.to_string(),
            None => NO_ANSWER,
        };
        let labels = [code, host, self.method.as_str()];
        metrics.requests.add(&labels, 1);
        if self.again {
            metrics.retries.add(&labels, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Trust;

    #[test]
    fn sizes_are_told_by_verb() {
        let server = Server::new("https://server:6443", Trust::Machine).unwrap();
        let metrics = RestMetrics::default();
        let counters = Counters::new(metrics.clone(), &server);
        counters.sent(&Method::GET, 0);
        counters.sent(&Method::PATCH, 300);
        counters.sent(&Method::PATCH, 20);
        counters.received(&Method::GET, 70_000);
        let told = |sizes: &krablet_metrics::HistogramVec| -> Vec<String> {
            let all = sizes.get().into_iter();
            let line = |(labels, seen): (Box<[Box<str>]>, krablet_metrics::Distribution)| {
                format!("{} {}x {}", labels.join(" "), seen.count(), seen.sum())
            };
            all.map(line).collect()
        };
        let sent = ["server:6443 GET 1x 0", "server:6443 PATCH 2x 320"];
        assert_eq!(told(&metrics.request_size), sent);
        let received = ["server:6443 GET 1x 70000"];
        assert_eq!(told(&metrics.response_size), received);
    }

    #[test]
    fn every_try_is_counted_once() {
        let server = Server::new("https://[fd00::1]:6443/prefix", Trust::Machine).unwrap();
        let metrics = RestMetrics::default();
        let counters = Counters::new(metrics.clone(), &server);
        for (method, again, status) in [
            (Method::GET, false, Some(200)),
            (Method::GET, false, None),
            (Method::GET, true, Some(200)),
            (Method::POST, false, Some(409)),
        ] {
            let mut attempt = counters.begin(&method, again);
            if let Some(status) = status {
                attempt.answered(status);
            }
        }
        let told = |counted: &krablet_metrics::CounterVec| -> Vec<String> {
            let line =
                |(labels, count): (Box<[Box<str>]>, u64)| format!("{} {count}", labels.join(" "));
            counted.get().into_iter().map(line).collect()
        };
        let requests = [
            "200 [fd00::1]:6443 GET 2",
            "409 [fd00::1]:6443 POST 1",
            "<error> [fd00::1]:6443 GET 1",
        ];
        assert_eq!(told(&metrics.requests), requests);
        assert_eq!(told(&metrics.retries), ["200 [fd00::1]:6443 GET 1"]);
    }
}
