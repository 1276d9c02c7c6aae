//! The Node object as the API server last showed it: followed by list and watch, and shared with
//! whoever needs the node's labels, taints or UID.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use krablet_kube::{ApiError, Call, Kube, Verb, WatchEvent, decode_watch_line, paths};
use krablet_pod::api::Node;
use rand::RngExt;
use rand::rngs::StdRng;
use serde::Deserialize;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::{debug, info};

use crate::calls::{BackOff, asked_to_wait, mend};

const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// How long the server is asked to keep a watch open, in seconds.
const WATCH_SECONDS: std::ops::RangeInclusive<u64> = 300..=600;
/// A watch that is silent for longer than it should live at all is dead.
const WATCH_MARGIN: Duration = Duration::from_secs(30);
/// A watch that lasted so long was a good one.
const GOOD_WATCH: Duration = Duration::from_secs(5);

/// The newest sight of the Node. Whoever writes or reads the object adds to it.
pub(crate) struct Sight {
    node: watch::Sender<Option<Arc<Node>>>,
    /// Whether it is known if there is such an object.
    synced: watch::Sender<bool>,
    /// Rings when the object is known not to be there.
    pub(crate) gone: Notify,
}

impl Sight {
    pub(crate) fn new() -> Self {
        Self {
            node: watch::Sender::new(None),
            synced: watch::Sender::new(false),
            gone: Notify::new(),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Arc<Node>>> {
        self.node.subscribe()
    }

    pub(crate) fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }

    /// After the object itself, so that who waits for this finds it.
    fn note_synced(&self) {
        self.synced
            .send_if_modified(|synced| !std::mem::replace(synced, true));
    }

    pub(crate) fn latest(&self) -> Option<Arc<Node>> {
        self.node.borrow().clone()
    }

    /// An answer or a line of the watch; what is older than what is known is dropped.
    pub(crate) fn saw(&self, node: Node) {
        self.take(node, |node, held| match age(node, held) {
            Some(Ordering::Greater) => true,
            Some(Ordering::Less) => false,
            Some(Ordering::Equal) | None => node != held,
        });
    }

    /// Of a list of the store at this version, by whoever knew `held` before it asked. A store that has not come so far
    /// is an earlier one, from a backup: what it holds counts, however old.
    fn listed(&self, node: Node, store: Option<&str>, held: Option<&str>) {
        let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
        let restored = number(store).zip(number(held));
        match restored.is_some_and(|(store, held)| store < held) {
            true => self.take(node, |node, held| node != held),
            false => self.saw(node),
        }
    }

    /// The object as a write should have left it, until it is seen: never instead of the object itself.
    pub(crate) fn assume(&self, node: Node) {
        self.take(node, |node, held| match age(node, held) {
            Some(age) => age == Ordering::Greater,
            None => node != held,
        });
    }

    fn take(&self, mut node: Node, is_news: impl Fn(&Node, &Node) -> bool) {
        // Nobody here reads them, and they are as large as the rest.
        node.metadata.managed_fields = None;
        self.node.send_if_modified(|held| {
            let news = held.as_ref().is_none_or(|held| is_news(&node, held));
            if news {
                *held = Some(Arc::new(node));
            }
            news
        });
        self.note_synced();
    }

    /// The object of this UID, or any, was not there.
    pub(crate) fn lost(&self, uid: Option<&str>) {
        let lost = self.node.send_if_modified(|held| {
            let known = held.as_ref().map(|held| held.metadata.uid.as_deref());
            let same = known.is_some_and(|known| uid.is_none() || known == uid);
            if same {
                *held = None;
            }
            same
        });
        if lost {
            self.gone.notify_one();
        }
        self.note_synced();
    }
}

/// Versions of one object are numbers that grow; another object is always newer.
fn age(node: &Node, than: &Node) -> Option<Ordering> {
    if node.metadata.uid != than.metadata.uid {
        return Some(Ordering::Greater);
    }
    let version = |node: &Node| -> Option<u64> {
        let version = node.metadata.resource_version.as_deref();
        version.and_then(|version| version.parse().ok())
    };
    Some(version(node)?.cmp(&version(than)?))
}

#[derive(Deserialize)]
struct NodeList {
    metadata: ListMeta,
    #[serde(default)]
    items: Vec<Node>,
}

/// Follows the one Node for as long as it runs.
pub(crate) struct NodeWatch {
    kube: Kube,
    name: String,
    sight: Arc<Sight>,
    dice: StdRng,
}

/// Where a watch ended.
struct Ended {
    /// From where to go on; none after a failure.
    version: Option<String>,
    error: Option<ApiError>,
}

impl NodeWatch {
    pub(crate) fn new(kube: Kube, name: String, sight: Arc<Sight>, dice: StdRng) -> Self {
        Self {
            kube,
            name,
            sight,
            dice,
        }
    }

    /// With `wait` it begins where the node was first seen by somebody else, which is the one who
    /// registers it; without, it lists.
    pub(crate) async fn run(mut self, wait: bool) {
        let mut version = match wait {
            true => self.first_version().await,
            false => None,
        };
        let mut back_off = BackOff::new(FIRST_WAIT, LONGEST_WAIT);
        loop {
            let began = Instant::now();
            let ended = match version.take() {
                Some(version) => self.follow(version).await,
                None => match self.list().await {
                    Ok(version) => self.follow(version).await,
                    Err(error) => failed(error),
                },
            };
            version = ended.version;
            if began.elapsed() >= GOOD_WATCH {
                back_off.reset();
            }
            let mut pause = back_off.next_wait();
            if let Some(error) = ended.error {
                debug!(node = self.name, err = %error, "The watch of the node ended");
                mend(self.kube.api().as_ref(), &error);
                pause = pause.max(asked_to_wait(&error, LONGEST_WAIT));
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn first_version(&self) -> Option<String> {
        let mut node = self.sight.subscribe();
        let found = node.wait_for(Option::is_some).await.ok()?;
        let node = found.as_ref()?;
        node.metadata.resource_version.clone()
    }

    fn call(&self) -> Call {
        let name = format!("metadata.name={}", self.name);
        Call::new(Verb::Get, paths::NODES.to_owned()).query("fieldSelector", name)
    }

    async fn list(&self) -> Result<String, ApiError> {
        let held = self.sight.latest();
        let list: NodeList = self.kube.object(self.call()).await?;
        let store = list.metadata.resource_version.as_deref();
        match list.items.into_iter().next() {
            Some(node) => {
                let held = held.and_then(|held| held.metadata.resource_version.clone());
                self.sight.listed(node, store, held.as_deref());
            }
            None => self.sight.lost(None),
        }
        Ok(list.metadata.resource_version.unwrap_or_default())
    }

    /// Until the watch ends, one way or another.
    async fn follow(&mut self, mut version: String) -> Ended {
        let seconds = self.dice.random_range(WATCH_SECONDS);
        let call = self
            .call()
            .query("watch", "true")
            .query("allowWatchBookmarks", "true")
            .query("resourceVersion", version.clone())
            .query("timeoutSeconds", seconds.to_string());
        let mut lines = match self.kube.api().watch(call).await {
            Ok(lines) => lines,
            Err(error) => return failed(error),
        };
        let silence = Duration::from_secs(seconds) + WATCH_MARGIN;
        loop {
            let line = match tokio::time::timeout(silence, lines.next()).await {
                Err(_) => return failed(ApiError::Deadline(silence)),
                Ok(None) => break,
                Ok(Some(Err(error))) => return failed(error),
                Ok(Some(Ok(line))) => line,
            };
            match decode_watch_line::<Node>(&line) {
                Ok(event) => self.take(event, &mut version),
                Err(error) => return failed(error),
            }
        }
        Ended {
            version: Some(version),
            error: None,
        }
    }

    fn take(&self, event: WatchEvent<Node>, version: &mut String) {
        let advance = |version: &mut String, node: &Node| {
            if let Some(to) = &node.metadata.resource_version {
                version.clone_from(to);
            }
        };
        match event {
            WatchEvent::Added(node) | WatchEvent::Modified(node) => {
                advance(version, &node);
                self.sight.saw(node);
            }
            WatchEvent::Deleted(node) => {
                info!(node = self.name, "The Node object was deleted");
                advance(version, &node);
                self.sight.lost(node.metadata.uid.as_deref());
            }
            WatchEvent::Bookmark(to) => *version = to,
        }
    }
}

/// A list follows: the history may have been cut, or, when the server was away in between, its store may
/// be another one, whose watch would stay silent until it has come as far as this version. Of one object
/// a list costs no more than a watch.
fn failed(error: ApiError) -> Ended {
    Ended {
        version: None,
        error: Some(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(uid: &str, version: &str) -> Node {
        let mut node = Node::default();
        node.metadata.uid = Some(uid.to_owned());
        node.metadata.resource_version = Some(version.to_owned());
        node
    }

    fn seen(sight: &Sight) -> Option<String> {
        let node = sight.latest()?;
        Some(format!(
            "{}@{}",
            node.metadata.uid.as_ref()?,
            node.metadata.resource_version.as_ref()?
        ))
    }

    #[test]
    fn a_sight_goes_forward() {
        let sight = Sight::new();
        let synced = sight.synced();
        assert!(!*synced.borrow());
        sight.saw(node("a", "9"));
        assert!(*synced.borrow());
        sight.saw(node("a", "10"));
        sight.saw(node("a", "9"));
        assert_eq!(seen(&sight).as_deref(), Some("a@10"));
        sight.saw(node("b", "3"));
        assert_eq!(seen(&sight).as_deref(), Some("b@3"));
        // What a write should have made of it gives way to what it did.
        let label = |mut node: Node, label: &str| {
            node.metadata.labels = Some([("l".to_owned(), label.to_owned())].into());
            node
        };
        let labelled = |sight: &Sight| sight.latest()?.metadata.labels.as_ref()?.get("l").cloned();
        sight.assume(label(node("b", "4"), "assumed"));
        assert_eq!(labelled(&sight).as_deref(), Some("assumed"));
        sight.saw(label(node("b", "4"), "seen"));
        sight.assume(label(node("b", "4"), "assumed"));
        assert_eq!(labelled(&sight).as_deref(), Some("seen"));
        // News of the death of the one before.
        sight.lost(Some("a"));
        assert_eq!(seen(&sight).as_deref(), Some("b@4"));
        sight.lost(Some("b"));
        assert_eq!(seen(&sight), None);
    }

    #[test]
    fn an_earlier_store_has_another_past() {
        let sight = Sight::new();
        sight.saw(node("a", "9"));
        // Something was written while the list was on its way.
        sight.listed(node("a", "8"), Some("8"), Some("8"));
        assert_eq!(seen(&sight).as_deref(), Some("a@9"));
        sight.listed(node("a", "7"), Some("12"), Some("9"));
        assert_eq!(seen(&sight).as_deref(), Some("a@9"));
        sight.listed(node("a", "5"), Some("6"), Some("9"));
        assert_eq!(seen(&sight).as_deref(), Some("a@5"));
    }

    #[test]
    fn that_there_is_none_is_also_something_to_know() {
        let sight = Sight::new();
        let synced = sight.synced();
        sight.lost(None);
        assert_eq!((seen(&sight), *synced.borrow()), (None, true));
    }
}
