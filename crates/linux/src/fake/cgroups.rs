//! [`Cgroups`] as a list in memory.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use krablet_pod::PodUid;
use krablet_pod::qos::QosClass;

use super::lock;
use crate::cgroup_names::{CgroupDriver, CgroupNames};
use crate::cgroups::Cgroups;

/// Pods' cgroups in memory. Clones share them.
#[derive(Clone, Debug)]
pub struct MemoryCgroups {
    names: CgroupNames,
    pods: Arc<Mutex<BTreeSet<(PodUid, QosClass)>>>,
}

impl Default for MemoryCgroups {
    fn default() -> Self {
        Self {
            names: CgroupNames::new(CgroupDriver::Cgroupfs, "", true),
            pods: Arc::default(),
        }
    }
}

impl MemoryCgroups {
    /// What the runtime does when it starts a pod's sandbox.
    pub fn put(&self, uid: PodUid, qos: QosClass) {
        lock(&self.pods).insert((uid, qos));
    }
}

#[async_trait]
impl Cgroups for MemoryCgroups {
    fn cgroup_parent(&self, uid: &PodUid, qos: QosClass) -> String {
        self.names.pod(uid, qos)
    }

    async fn exists(&self, uid: &PodUid, qos: QosClass) -> io::Result<bool> {
        tokio::task::yield_now().await;
        Ok(lock(&self.pods).contains(&(uid.clone(), qos)))
    }

    async fn remove(&self, uid: &PodUid, qos: QosClass) -> io::Result<()> {
        tokio::task::yield_now().await;
        lock(&self.pods).remove(&(uid.clone(), qos));
        Ok(())
    }

    async fn list_pods(&self) -> io::Result<Vec<(PodUid, QosClass)>> {
        tokio::task::yield_now().await;
        Ok(lock(&self.pods).iter().cloned().collect())
    }
}
