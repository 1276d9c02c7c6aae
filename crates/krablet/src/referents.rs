//! What pods of this node refer to: objects of the API server, of a directory, or none.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use krablet_agent::Keepsakes;
use krablet_kube::Kube;
use krablet_linux::InotifyWatch;
use krablet_objects::{ClusterConfig, Memory, Referents, Strategy};
use krablet_pod::api::Node;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::cluster::Ground;

/// How long the cluster wants answers about objects to be believed, in seconds.
const TTL_ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// What is known of them from before.
pub struct Memories {
    pub services: Memory,
    pub objects: Keepsakes,
}

/// As the API server has them.
pub fn of_cluster(
    ground: &Ground<'_>,
    kube: &Kube,
    node: watch::Receiver<Option<Arc<Node>>>,
    memory: Memories,
    tasks: &mut JoinSet<()>,
) -> Referents {
    let config = &ground.loaded.config.node;
    let strategy = &config.config_map_and_secret_change_detection_strategy;
    let (referents, services) = krablet_objects::build(ClusterConfig {
        kube: kube.clone(),
        strategy: Strategy::parse(strategy).unwrap_or_default(),
        ttl: Arc::new(move || ttl(node.borrow().as_deref())),
        memory: memory.services,
        keepsakes: krablet_objects::Keepsakes {
            config_maps: memory.objects.open,
            secrets: memory.objects.secret,
        },
        seed: ground.seed,
    });
    tasks.spawn(services.run());
    referents
}

fn ttl(node: Option<&Node>) -> Option<Duration> {
    let annotations = node?.metadata.annotations.as_ref()?;
    let seconds = annotations.get(TTL_ANNOTATION)?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Of the directory that the user names, if any.
pub fn of_directory(ground: &Ground<'_>, tasks: &mut JoinSet<()>) -> Referents {
    let directory = &ground.loaded.flags.local_objects_dir;
    if directory.is_empty() {
        return Referents::nowhere();
    }
    let (referents, task) = krablet_objects::local(
        PathBuf::from(directory),
        ground.files.clone(),
        Arc::new(InotifyWatch),
    );
    tasks.spawn(task.run());
    referents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_may_say_how_long_answers_are_good() {
        let node = |text: &str| {
            let mut node = Node::default();
            let annotations = node.metadata.annotations.get_or_insert_default();
            annotations.insert(TTL_ANNOTATION.into(), text.into());
            node
        };
        assert_eq!(ttl(Some(&node("15"))), Some(Duration::from_secs(15)));
        assert_eq!(ttl(Some(&node("0"))), Some(Duration::ZERO));
        assert_eq!(ttl(Some(&node("soon"))), None);
        assert_eq!(ttl(Some(&Node::default())), None);
        assert_eq!(ttl(None), None);
    }
}
