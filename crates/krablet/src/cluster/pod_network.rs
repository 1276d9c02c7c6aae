//! Tells the runtime which addresses the cluster gave to the pods of this node.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krablet_cri::{Error, RuntimeClient, RuntimeService};
use krablet_kube::Backoff;
use krablet_pod::api::Node;
use tokio::sync::watch;
use tracing::{debug, info, warn};

/// Between tries while the runtime does not hear. The Node of a quiet node may not change for minutes, and nothing else
/// would bring them up again.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_secs(1),
    factor: 2.0,
    cap: Duration::from_secs(30),
    jitter: 0.0,
};

/// Whoever gives the pods their addresses.
#[async_trait]
pub trait Addresses: Send + Sync {
    async fn give(&self, ranges: &str) -> Result<(), Error>;
}

#[async_trait]
impl Addresses for RuntimeClient {
    async fn give(&self, ranges: &str) -> Result<(), Error> {
        self.update_runtime_config(ranges).await
    }
}

pub struct PodNetwork<A> {
    pub node: watch::Receiver<Option<Arc<Node>>>,
    pub runtime: A,
}

impl<A: Addresses> PodNetwork<A> {
    pub async fn run(mut self) {
        let mut told = String::new();
        let mut failures = 0_u32;
        while let Some(ranges) = self.other_than(&told).await {
            let Err(error) = self.runtime.give(&ranges).await else {
                if failures > 0 {
                    info!(
                        ranges,
                        "The runtime was told the addresses of pods after all"
                    );
                }
                (told, failures) = (ranges, 0);
                continue;
            };
            match failures {
                0 => {
                    warn!(err = %error, "Could not tell the runtime the addresses of pods, will retry");
                }
                _ => {
                    debug!(err = %error, "Could not tell the runtime the addresses of pods, will retry");
                }
            }
            failures = failures.saturating_add(1);
            // Whatever the Node says by then is told.
            tokio::time::sleep(BACKOFF.delay(failures, 0.0)).await;
        }
        std::future::pending().await
    }

    /// Waits until the Node has addresses for pods, and not these. None: nobody looks at it any more.
    async fn other_than(&mut self, told: &str) -> Option<String> {
        let news = |node: &Option<Arc<Node>>| {
            let ranges = ranges(node.as_deref()?)?;
            Some(ranges).filter(|ranges| ranges != told)
        };
        let found = self.node.wait_for(|node| news(node).is_some()).await;
        let node = found.ok()?;
        news(&node)
    }
}

fn ranges(node: &Node) -> Option<String> {
    let ranges = node.spec.as_ref()?.pod_cidrs.as_ref()?;
    Some(ranges.join(",")).filter(|ranges| !ranges.is_empty())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use krablet_cri::Code;
    use krablet_pod::api::NodeSpec;
    use tokio::time::Instant;

    use super::*;

    /// Fails so often, and remembers what it was told at which second.
    #[derive(Clone)]
    struct Runtime {
        failures: Arc<Mutex<u32>>,
        heard: Arc<Mutex<Vec<(u64, String)>>>,
        started: Instant,
    }

    impl Runtime {
        fn failing(times: u32) -> Self {
            Self {
                failures: Arc::new(Mutex::new(times)),
                heard: Arc::default(),
                started: Instant::now(),
            }
        }

        fn heard(&self) -> Vec<(u64, String)> {
            std::mem::take(&mut self.heard.lock().unwrap())
        }
    }

    #[async_trait]
    impl Addresses for Runtime {
        async fn give(&self, ranges: &str) -> Result<(), Error> {
            let at = self.started.elapsed().as_secs();
            self.heard.lock().unwrap().push((at, ranges.to_owned()));
            let mut failures = self.failures.lock().unwrap();
            match failures.checked_sub(1) {
                Some(left) => {
                    *failures = left;
                    let words = "not yet";
                    Err(Error::new("UpdateRuntimeConfig", Code::Unavailable, words))
                }
                None => Ok(()),
            }
        }
    }

    fn node(ranges: &[&str]) -> Option<Arc<Node>> {
        let ranges = ranges.iter().map(|range| (*range).to_owned()).collect();
        Some(Arc::new(Node {
            spec: Some(NodeSpec {
                pod_cidrs: Some(ranges),
                ..NodeSpec::default()
            }),
            ..Node::default()
        }))
    }

    fn at(heard: &[(u64, &str)]) -> Vec<(u64, String)> {
        let own = |(second, ranges): &(u64, &str)| (*second, (*ranges).to_owned());
        heard.iter().map(own).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn are_told_once_and_again_when_they_change() {
        let (object, seen) = watch::channel(None);
        let runtime = Runtime::failing(0);
        let task = PodNetwork {
            node: seen,
            runtime: runtime.clone(),
        };
        let task = tokio::spawn(task.run());
        for object_now in [
            Some(Arc::default()),
            node(&[]),
            node(&["10.1.0.0/24", "fd00:1::/64"]),
            node(&["10.1.0.0/24", "fd00:1::/64"]),
            // One that is made anew gets its addresses later.
            node(&[]),
            node(&["10.1.0.0/24", "fd00:1::/64"]),
            node(&["10.2.0.0/24"]),
        ] {
            tokio::time::sleep(Duration::from_secs(60)).await;
            object.send_replace(object_now);
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        let expected = at(&[(180, "10.1.0.0/24,fd00:1::/64"), (420, "10.2.0.0/24")]);
        assert_eq!(runtime.heard(), expected);
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn are_told_again_after_a_failure_though_the_node_is_quiet() {
        let (object, seen) = watch::channel(node(&["10.1.0.0/24"]));
        let runtime = Runtime::failing(8);
        let task = PodNetwork {
            node: seen,
            runtime: runtime.clone(),
        };
        let task = tokio::spawn(task.run());
        tokio::time::sleep(Duration::from_secs(200)).await;
        let heard: Vec<u64> = runtime.heard().into_iter().map(|(at, _)| at).collect();
        assert_eq!(heard, [0, 1, 3, 7, 15, 31, 61, 91, 121]);
        // The next trouble begins with short waits, and what the Node says by then is told.
        *runtime.failures.lock().unwrap() = 1;
        object.send_replace(node(&["10.2.0.0/24"]));
        tokio::time::sleep(Duration::from_millis(500)).await;
        object.send_replace(node(&["10.3.0.0/24"]));
        tokio::time::sleep(Duration::from_secs(100)).await;
        let expected = at(&[(200, "10.2.0.0/24"), (201, "10.3.0.0/24")]);
        assert_eq!(runtime.heard(), expected);
        task.abort();
    }
}
