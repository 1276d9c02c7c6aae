//! The runtime classes of the cluster: asked for once a pod has one, kept for a start without an API server.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::node::v1::RuntimeClass;
use krablet_checkpoint::Shelf;
use krablet_kube::{Kube, Reach, Reflector, ReflectorConfig, Sink, paths};
use krablet_runtime::ClassTeller;
use tokio::sync::watch;

/// What lies on the shelf.
pub const KEPT_CLASSES: &str = "runtimeclasses";

/// Handlers by the names of their classes: all that is of use of them.
type KeptClasses = BTreeMap<String, String>;

pub(crate) struct ClassTasks {
    teller: ClassTeller,
    source: Reflector<RuntimeClass, Listed>,
    reach: watch::Receiver<Reach>,
    shelf: Option<Shelf>,
}

/// Where the list goes.
struct Listed {
    list: watch::Sender<Option<Vec<Arc<RuntimeClass>>>>,
    shelf: Option<Shelf>,
}

#[async_trait]
impl Sink<RuntimeClass> for Listed {
    async fn set(&mut self, classes: Vec<Arc<RuntimeClass>>) {
        if let Some(shelf) = &self.shelf {
            let kept = classes.iter().filter_map(|class| {
                let name = class.metadata.name.clone()?;
                Some((name, class.handler.clone()))
            });
            shelf.put(KEPT_CLASSES, &kept.collect::<KeptClasses>());
        }
        self.list.send_replace(Some(classes));
    }
}

impl ClassTasks {
    pub(crate) fn build(kube: &Kube, teller: ClassTeller, shelf: Option<Shelf>, seed: u64) -> Self {
        let config = ReflectorConfig {
            path: paths::RUNTIME_CLASSES.to_owned(),
            query: Vec::new(),
            slim: Box::new(|_, _| ()),
            seed,
        };
        let listed = Listed {
            list: teller.list.clone(),
            shelf: shelf.clone(),
        };
        let (source, reach) = Reflector::new(kube.api().clone(), config, listed);
        Self {
            teller,
            source,
            reach,
            shelf,
        }
    }

    /// Never ends.
    pub(crate) async fn run(self) {
        let Self {
            teller,
            source,
            mut reach,
            shelf,
        } = self;
        teller.wanted().await;
        let without_server = async {
            let away = |reach: &Reach| {
                let error = reach.error.as_ref();
                !reach.listed && error.is_some_and(|error| error.is_passing())
            };
            if reach.wait_for(away).await.is_ok()
                && let Some(shelf) = &shelf
                && let Some(kept) = shelf.load::<KeptClasses>(KEPT_CLASSES).await
            {
                let known = kept.into_iter().map(class).collect();
                // Unless the server has answered meanwhile.
                teller.list.send_if_modified(|list| {
                    let is_first = list.is_none();
                    if is_first {
                        *list = Some(known);
                    }
                    is_first
                });
            }
        };
        tokio::join!(source.run(), without_server);
    }
}

fn class((name, handler): (String, String)) -> Arc<RuntimeClass> {
    let mut class = RuntimeClass {
        handler,
        ..RuntimeClass::default()
    };
    class.metadata.name = Some(name);
    Arc::new(class)
}
