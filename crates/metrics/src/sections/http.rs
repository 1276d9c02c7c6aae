//! What is counted of requests at the HTTP doors.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::distribution::Distribution;
use crate::page::Page;
use crate::series;
use crate::values::lock;

/// What requests are told apart by. Words of the program and none of a client's, so there is only a known number of
/// such sets, and none of them has to make room for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestLabels {
    pub long_running: bool,
    pub method: &'static str,
    pub path: &'static str,
    pub server_type: &'static str,
}

impl RequestLabels {
    /// In the order of the series' labels.
    fn values(&self) -> [&'static str; 4] {
        let long_running = if self.long_running { "true" } else { "false" };
        [long_running, self.method, self.path, self.server_type]
    }
}

/// What was counted of requests with the same labels.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestCounts {
    pub begun: u64,
    pub in_flight: u64,
    pub durations: Distribution,
}

impl Default for RequestCounts {
    fn default() -> Self {
        Self {
            begun: 0,
            in_flight: 0,
            durations: Distribution::new(&series::DEFAULT),
        }
    }
}

/// Clones count together. What is told of one request changes at once, so that no scrape sees half of it.
#[derive(Clone, Debug, Default)]
pub struct HttpMetrics {
    sets: Arc<Mutex<BTreeMap<RequestLabels, RequestCounts>>>,
}

impl HttpMetrics {
    pub fn begin(&self, labels: RequestLabels) {
        let mut sets = lock(&self.sets);
        let counts = sets.entry(labels).or_default();
        counts.begun += 1;
        counts.in_flight += 1;
    }

    /// One that began is over.
    pub fn end(&self, labels: RequestLabels, took: Duration) {
        let mut sets = lock(&self.sets);
        let counts = sets.entry(labels).or_default();
        counts.in_flight = counts.in_flight.saturating_sub(1);
        counts.durations.observe_duration(took);
    }

    pub fn get(&self) -> BTreeMap<RequestLabels, RequestCounts> {
        lock(&self.sets).clone()
    }

    pub(super) fn put_on(&self, page: &mut Page) {
        for (labels, counts) in self.get() {
            let values = labels.values();
            page.count(&series::HTTP_REQUESTS, &values, counts.begun);
            page.count(&series::HTTP_IN_FLIGHT, &values, counts.in_flight);
            if counts.durations.count() > 0 {
                page.distribution(&series::HTTP_DURATION, &values, counts.durations);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    const POD_LIST: RequestLabels = RequestLabels {
        long_running: false,
        method: "GET",
        path: "pods",
        server_type: "readonly",
    };
    const COMMAND: RequestLabels = RequestLabels {
        long_running: true,
        method: "POST",
        path: "exec",
        server_type: "readwrite",
    };

    #[test]
    fn what_is_under_way_has_no_duration_yet() {
        let metrics = HttpMetrics::default();
        metrics.begin(POD_LIST);
        metrics.clone().begin(POD_LIST);
        metrics.begin(COMMAND);
        metrics.end(POD_LIST, Duration::from_secs(2));
        let mut page = Page::default();
        metrics.put_on(&mut page);
        let text = page.render();
        crate::exposition::parse(&text).unwrap();
        let told = |line: &&str| !line.starts_with('#') && !line.contains("_bucket");
        let told: Vec<&str> = text.lines().filter(told).collect();
        expect![[r#"
            kubelet_http_inflight_requests{long_running="false",method="GET",path="pods",server_type="readonly"} 1
            kubelet_http_inflight_requests{long_running="true",method="POST",path="exec",server_type="readwrite"} 1
            kubelet_http_requests_duration_seconds_sum{long_running="false",method="GET",path="pods",server_type="readonly"} 2
            kubelet_http_requests_duration_seconds_count{long_running="false",method="GET",path="pods",server_type="readonly"} 1
            kubelet_http_requests_total{long_running="false",method="GET",path="pods",server_type="readonly"} 2
            kubelet_http_requests_total{long_running="true",method="POST",path="exec",server_type="readwrite"} 1"#]]
        .assert_eq(&told.join("\n"));
    }

    #[test]
    fn an_end_without_a_beginning_harms_nothing() {
        let metrics = HttpMetrics::default();
        metrics.end(COMMAND, Duration::ZERO);
        let counts = &metrics.get()[&COMMAND];
        assert_eq!((counts.begun, counts.in_flight), (0, 0));
    }
}
