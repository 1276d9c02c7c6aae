//! A kind of object that few nodes need: listed and watched from the moment somebody asks for it.

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};

use super::{Reach, Reflector, ReflectorConfig};
use crate::{Api, ApiError};

/// How long somebody waits for the first list.
const PATIENCE: Duration = Duration::from_secs(10);

type List<T> = Option<Vec<Arc<T>>>;

/// The asking end. Clones ask for the same.
pub struct OnDemand<T> {
    list: watch::Receiver<List<T>>,
    reach: watch::Receiver<Reach>,
    wanted: Arc<Notify>,
}

impl<T> Clone for OnDemand<T> {
    fn clone(&self) -> Self {
        Self {
            list: self.list.clone(),
            reach: self.reach.clone(),
            wanted: self.wanted.clone(),
        }
    }
}

impl<T: Send + Sync + 'static> OnDemand<T> {
    /// Over a list that somebody else keeps.
    pub fn of(list: watch::Receiver<List<T>>) -> Self {
        let (_, reach) = watch::channel(Reach::default());
        Self {
            list,
            reach,
            wanted: Arc::default(),
        }
    }

    /// All objects there are. Waits for the first list, and not for a server that is away.
    pub async fn all(&self) -> Result<Vec<Arc<T>>, ApiError> {
        self.wanted.notify_one();
        let mut list = self.list.clone();
        let mut reach = self.reach.clone();
        let known = async {
            let known = list.wait_for(Option::is_some).await;
            known.map(|known| known.clone().unwrap_or_default())
        };
        let failed = async {
            let failed = reach.wait_for(|reach| reach.error.is_some()).await;
            failed.map(|reach| reach.error.clone())
        };
        let asked = async {
            tokio::select! {
                biased;
                Ok(known) = known => Ok(known),
                Ok(Some(error)) = failed => Err(error),
                else => std::future::pending().await,
            }
        };
        let asked = tokio::time::timeout(PATIENCE, asked).await;
        asked.unwrap_or(Err(ApiError::Deadline(PATIENCE)))
    }

    /// What is known by now.
    pub fn known(&self) -> List<T> {
        self.list.borrow().clone()
    }

    /// Waits until what is known fits, at most so long.
    pub async fn within(&self, patience: Duration, fits: impl Fn(&[Arc<T>]) -> bool) {
        let mut list = self.list.clone();
        let fits = |known: &List<T>| known.as_deref().is_some_and(&fits);
        let _ = tokio::time::timeout(patience, list.wait_for(fits)).await;
    }

    /// Waits for the next change.
    pub async fn changed(&mut self) {
        if self.list.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// The fetching end.
pub struct OnDemandTask<T> {
    source: Reflector<T, watch::Sender<List<T>>>,
    wanted: Arc<Notify>,
}

/// Nothing is asked of the server yet.
pub fn on_demand<T>(api: Arc<dyn Api>, config: ReflectorConfig<T>) -> (OnDemand<T>, OnDemandTask<T>)
where
    T: DeserializeOwned + Send + Sync + 'static,
{
    let (sender, list) = watch::channel(None);
    let (source, reach) = Reflector::new(api, config, sender);
    let wanted = Arc::new(Notify::new());
    let asking = OnDemand {
        list,
        reach,
        wanted: wanted.clone(),
    };
    (asking, OnDemandTask { source, wanted })
}

impl<T: DeserializeOwned + Send + Sync + 'static> OnDemandTask<T> {
    /// Never ends.
    pub async fn run(self) {
        self.wanted.notified().await;
        self.source.run().await;
    }
}
