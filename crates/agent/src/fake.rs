//! The world of an agent in memory, for tests and measurements.

use std::sync::Arc;

use krablet_core::admission::NodeView;
use krablet_cri::{ImageService, RuntimeService};
use krablet_events::Recorder;
use krablet_linux::WallClock;
use krablet_linux::fake::{FakeTools, MemoryCgroups, MemoryFiles, MemorySpace};
use krablet_net::Net;
use krablet_objects::Referents;
use krablet_pod::Quantity;
use krablet_runtime::ImageDeps;

use crate::{AgentDeps, DoorDeps};

/// A node on which there is room for every pod.
pub fn roomy_node(name: &str) -> NodeView {
    let plenty = ["cpu", "memory", "ephemeral-storage", "pods"];
    let plenty = plenty.map(|name| (name.to_owned(), Quantity::from_millis(1 << 50)));
    NodeView {
        name: name.to_owned(),
        allocatable: plenty.into(),
        os: "linux".to_owned(),
        ..NodeView::default()
    }
}

/// A node of this name with room for every pod, without a cluster, and with nothing that pods could refer to. Its files, mounts
/// and cgroups are in memory, and its programs do nothing.
pub fn deps(
    name: &str,
    runtime: Arc<dyn RuntimeService>,
    images: Arc<dyn ImageService>,
    files: &MemoryFiles,
    net: Arc<dyn Net>,
    clock: Arc<dyn WallClock>,
) -> AgentDeps {
    let now = clock.clone();
    AgentDeps {
        runtime,
        images,
        files: Arc::new(files.clone()),
        trees: Arc::new(files.clone()),
        mounts: Arc::new(files.mounts()),
        tools: Arc::new(FakeTools::default()),
        cgroups: Arc::new(MemoryCgroups::default()),
        net,
        clock,
        recorder: Recorder::new(move || now.now()),
        referents: Referents::nowhere(),
        image_deps: ImageDeps {
            keychain: Arc::default(),
            space: Arc::new(MemorySpace::default()),
        },
        door: DoorDeps::of(roomy_node(name)),
        cluster: None,
    }
}
