//! [`Cgroups`] as a list in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use krablet_pod::cgroups::CgroupLimits;
use krablet_pod::qos::QosClass;
use krablet_pod::{ContainerId, PodUid};

use super::lock;
use crate::cgroup_names::{CgroupDriver, CgroupNames};
use crate::cgroups::Cgroups;

/// Pods' cgroups in memory. Clones share them.
#[derive(Clone, Debug)]
pub struct MemoryCgroups {
    names: CgroupNames,
    pods: Arc<Mutex<BTreeSet<(PodUid, QosClass)>>>,
    limits: Arc<Mutex<Limits>>,
    memory_used: Arc<AtomicU64>,
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
            memory_used: Arc::default(),
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

    /// From now on every pod and every container uses so many bytes.
    pub fn use_memory(&self, bytes: u64) {
        self.memory_used.store(bytes, Ordering::Relaxed);
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

    async fn limits(&self, uid: &PodUid, _: QosClass) -> io::Result<Option<CgroupLimits>> {
        tokio::task::yield_now().await;
        Ok(self.limits_of(uid))
    }

    async fn update(&self, uid: &PodUid, _: QosClass, limits: &CgroupLimits) -> io::Result<()> {
        tokio::task::yield_now().await;
        let mut all = lock(&self.limits);
        let held = all.pods.get_mut(uid).ok_or(io::ErrorKind::NotFound)?;
        held.cpu_shares = limits.cpu_shares.or(held.cpu_shares);
        held.cpu_quota = limits.cpu_quota.or(held.cpu_quota);
        held.memory = limits.memory.or(held.memory);
        Ok(())
    }

    async fn memory_used(
        &self,
        _: &PodUid,
        _: QosClass,
        _: Option<&ContainerId>,
    ) -> io::Result<Option<u64>> {
        tokio::task::yield_now().await;
        Ok(Some(self.memory_used.load(Ordering::Relaxed)))
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
