//! Static pods from a URL.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use krablet_net::{HttpGet, Net, Redirects};
use krablet_pod::marks::PodSource;
use tokio::sync::mpsc;
use tracing::{error, info};

use crate::file::Trouble;
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
    trouble: Trouble,
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
            trouble: Trouble::default(),
        }
    }

    /// Asks at start and every period, until nobody listens.
    pub async fn run(mut self, sets: mpsc::Sender<SourceSet>) {
        info!(url = self.config.url, "Watching URL for static pods");
        loop {
            match self.ask().await {
                Ok(Some(set)) => {
                    self.trouble.is_over();
                    if sets.send(set).await.is_err() {
                        return;
                    }
                }
                Ok(None) => self.trouble.is_over(),
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
        // What runs does not tell all of its manifest. Unless the server says that it has had this one
        // since before the pod was made, the pod may be of another.
        let modified = response.last_modified.unwrap_or(Timestamp::MAX);
        let take_over = self.take_over.as_deref();
        let pods = taken_over(pods, take_over, &origin, modified).await;
        self.last = Some(response.body);
        Ok(Some(SourceSet {
            source: PodSource::Http,
            pods,
            restored: false,
        }))
    }

    /// A server that is away for long is told of once; a manifest that it then has wrong is, too.
    fn complain(&mut self, reason: &str) {
        if self.trouble.is_news(reason) {
            error!(err = reason, "Failed to read pods from URL");
        }
    }
}
