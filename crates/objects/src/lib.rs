//! The configMaps and secrets that pods refer to, ready for whoever renders environments and volumes or pulls
//! images, and the services whose addresses stand in environments.

mod bell;
mod cached;
mod cluster;
mod error;
mod fake;
mod kept;
mod key;
mod local;
mod nowhere;
mod object;
mod references;
mod services;
mod table;
mod watched;

use std::sync::Arc;

use krablet_pod::PodUid;
use krablet_pod::api::{ConfigMap, Pod, Secret};

pub use bell::Bell;
pub use cached::Ttl;
pub use cluster::{ClusterConfig, Keepsakes, Strategy, build};
pub use error::ObjectError;
pub use fake::{FakeObjects, FakeServices};
pub use kept::kept_names;
pub use key::{Kind, ObjectKey};
pub use local::{LocalTask, local};
pub use nowhere::Nowhere;
pub use references::references;
pub use services::{Memory, NotRead, Save, Services, ServicesTask};

/// ConfigMaps and secrets by name.
#[async_trait::async_trait]
pub trait Objects: Send + Sync {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectError>;

    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError>;

    /// The pod is here (again, with this spec): what it refers to is kept ready until [`Objects::forget`].
    fn want(&self, pod: &Pod);

    fn forget(&self, uid: &PodUid);
}

/// Everything pods refer to, as the agent is handed it.
#[derive(Clone)]
pub struct Referents {
    pub objects: Arc<dyn Objects>,
    pub services: Arc<dyn Services>,
    /// Rings for pods whose objects have changed.
    pub bell: Bell,
}

impl Referents {
    /// Of a node that has nowhere to take objects from.
    pub fn nowhere() -> Self {
        Self {
            objects: Arc::new(Nowhere),
            services: Arc::new(Nowhere),
            bell: Bell::default(),
        }
    }
}
