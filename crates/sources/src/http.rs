//! Static pods from a URL.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use krablet_net::{HttpGet, Net, Redirects};
use krablet_pod::marks::PodSource;
use tokio::sync::mpsc;
use tracing::{debug, error, info};

use crate::{Decode, Origin, SourceSet, TakeOver, taken_over};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_MANIFEST: usize = 10 * 1024 * 1024;

#[derive(Clone, Debug)]
pub struct UrlSourceConfig {
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub check_frequency: Duration,
}

pub struct UrlSource {
    config: UrlSourceConfig,
    net: Arc<dyn Net>,
    decode: Decode,
    take_over: Option<Arc<dyn TakeOver>>,
    /// The last answer that was understood; the same bytes again are no news.
    last: Option<Vec<u8>>,
    failures: u64,
}

impl UrlSource {
    pub fn new(
        config: UrlSourceConfig,
        net: Arc<dyn Net>,
        decode: Decode,
        take_over: Option<Arc<dyn TakeOver>>,
    ) -> Self {
        Self {
            config,
            net,
            decode,
            take_over,
            last: None,
            failures: 0,
        }
    }

    /// Asks at start and every period, until nobody listens.
    pub async fn run(mut self, sets: mpsc::Sender<SourceSet>) {
        info!(url = self.config.url, "Watching URL for static pods");
        loop {
            match self.ask().await {
                Ok(Some(set)) => {
                    self.failures = 0;
                    if sets.send(set).await.is_err() {
                        return;
                    }
                }
                Ok(None) => self.failures = 0,
                Err(reason) => self.complain(&reason),
            }
            tokio::select! {
                biased;
                () = sets.closed() => return,
                () = tokio::time::sleep(self.config.check_frequency) => {}
            }
        }
    }

    /// The set, if it is news.
    async fn ask(&mut self) -> Result<Option<SourceSet>, String> {
        let url = &self.config.url;
        let request = HttpGet {
            url: url.clone(),
            headers: self.config.headers.clone(),
            timeout: REQUEST_TIMEOUT,
            body_limit: MAX_MANIFEST,
            verify_tls: true,
            redirects: Redirects::Follow,
        };
        let response = self
            .net
            .http_get(request)
            .await
            .map_err(|e| format!("{url}: {e}"))?;
        if response.status != 200 {
            return Err(format!("{url}: {}", response.status));
        }
        if response.truncated {
            return Err(format!("{url}: more than {MAX_MANIFEST} bytes"));
        }
        if response.body.is_empty() {
            // Not taken as "no pods": an empty answer is more often a broken server.
            return Err(format!("zero-length data received from {url}"));
        }
        if self.last.as_ref() == Some(&response.body) {
            return Ok(None);
        }
        let origin = Origin::Url(url.clone());
        let pods = (self.decode)(&response.body, &origin);
        let pods = pods.map_err(|reason| format!("{url}: {reason}"))?;
        // Since when a URL says what it says is not known: what runs has to tell whether it is the same.
        let take_over = self.take_over.as_deref();
        let pods = taken_over(pods, take_over, &origin, Timestamp::MIN).await;
        self.last = Some(response.body);
        Ok(Some(SourceSet {
            source: PodSource::Http,
            pods,
            restored: false,
        }))
    }

    /// The first failures of a row are told; later ones only to those who look closely.
    fn complain(&mut self, reason: &str) {
        self.failures += 1;
        if self.failures <= 3 {
            error!(err = reason, "Failed to read pods from URL");
        } else {
            debug!(
                err = reason,
                failures = self.failures,
                "Failed to read pods from URL"
            );
        }
    }
}
