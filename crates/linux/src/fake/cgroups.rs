//! [`Cgroups`] as a list in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use krablet_pod::PodUid;
use krablet_pod::cgroups::CgroupLimits;
use krablet_pod::qos::QosClass;

use super::lock;
use crate::cgroup_names::{CgroupDriver, CgroupNames};
use crate::cgroups::Cgroups;

/// Pods' cgroups in memory. Clones share them.
#[derive(Clone, Debug)]
pub struct MemoryCgroups {
    names: CgroupNames,
    pods: Arc<Mutex<BTreeSet<(PodUid, QosClass)>>>,
    limits: Arc<Mutex<Limits>>,
}

#[derive(Debug, Default)]
struct Limits {
    pods: BTreeMap<PodUid, CgroupLimits>,
    classes: BTreeMap<QosClass, CgroupLimits>,
}

impl Default for MemoryCgroups {
    fn default() -> Self {
        Self {
            names: CgroupNames::new(CgroupDriver::Cgroupfs, "", true),
            pods: Arc::default(),
            limits: Arc::default(),
        }
    }
}

impl MemoryCgroups {
    /// What the runtime does when it starts a pod's sandbox.
    pub fn put(&self, uid: PodUid, qos: QosClass) {
        lock(&self.pods).insert((uid, qos));
    }

    /// What a pod's cgroup was last held to.
    pub fn limits_of(&self, uid: &PodUid) -> Option<CgroupLimits> {
        lock(&self.limits).pods.get(uid).cloned()
    }

    /// What the cgroup of a class was last held to.
    pub fn class_limits(&self, qos: QosClass) -> Option<CgroupLimits> {
        lock(&self.limits).classes.get(&qos).cloned()
    }
}

#[async_trait]
impl Cgroups for MemoryCgroups {
    fn cgroup_parent(&self, uid: &PodUid, qos: QosClass) -> String {
        self.names.pod(uid, qos)
    }

    async fn create(&self, uid: &PodUid, qos: QosClass, limits: &CgroupLimits) -> io::Result<()> {
        self.put(uid.clone(), qos);
        lock(&self.limits).pods.insert(uid.clone(), limits.clone());
        Ok(())
    }

    async fn limit_class(&self, qos: QosClass, limits: &CgroupLimits) -> io::Result<()> {
        lock(&self.limits).classes.insert(qos, limits.clone());
        Ok(())
    }

    async fn exists(&self, uid: &PodUid, qos: QosClass) -> io::Result<bool> {
        tokio::task::yield_now().await;
        Ok(lock(&self.pods).contains(&(uid.clone(), qos)))
    }

    async fn remove(&self, uid: &PodUid, qos: QosClass) -> io::Result<()> {
        tokio::task::yield_now().await;
        lock(&self.pods).remove(&(uid.clone(), qos));
        lock(&self.limits).pods.remove(uid);
        Ok(())
    }

    async fn list_pods(&self) -> io::Result<Vec<(PodUid, QosClass)>> {
        tokio::task::yield_now().await;
        Ok(lock(&self.pods).iter().cloned().collect())
    }
}
