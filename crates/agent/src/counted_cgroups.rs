//! Cgroups, with a watch on how long the changes to them take.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use krablet_linux::Cgroups;
use krablet_metrics::CgroupMetrics;
use krablet_pod::cgroups::CgroupLimits;
use krablet_pod::qos::QosClass;
use krablet_pod::{ContainerId, PodUid};
use tokio::time::Instant;

pub(crate) struct CountedCgroups {
    cgroups: Arc<dyn Cgroups>,
    metrics: CgroupMetrics,
}

impl CountedCgroups {
    pub(crate) fn over(cgroups: Arc<dyn Cgroups>, metrics: CgroupMetrics) -> Self {
        Self { cgroups, metrics }
    }

    async fn timed<T>(&self, operation: &str, change: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let done = change.await;
        let took = begun.elapsed();
        self.metrics.duration.observe_duration(&[operation], took);
        done
    }
}

#[async_trait]
impl Cgroups for CountedCgroups {
    fn cgroup_parent(&self, uid: &PodUid, qos: QosClass) -> String {
        self.cgroups.cgroup_parent(uid, qos)
    }

    async fn create(&self, uid: &PodUid, qos: QosClass, limits: &CgroupLimits) -> io::Result<()> {
        let create = self.cgroups.create(uid, qos, limits);
        self.timed("create", create).await
    }

    async fn limits(&self, uid: &PodUid, qos: QosClass) -> io::Result<Option<CgroupLimits>> {
        self.cgroups.limits(uid, qos).await
    }

    async fn update(&self, uid: &PodUid, qos: QosClass, limits: &CgroupLimits) -> io::Result<()> {
        let update = self.cgroups.update(uid, qos, limits);
        self.timed("update", update).await
    }

    async fn memory_used(
        &self,
        uid: &PodUid,
        qos: QosClass,
        container: Option<&ContainerId>,
    ) -> io::Result<Option<u64>> {
        self.cgroups.memory_used(uid, qos, container).await
    }

    async fn limit_class(&self, qos: QosClass, limits: &CgroupLimits) -> io::Result<()> {
        let update = self.cgroups.limit_class(qos, limits);
        self.timed("update", update).await
    }

    async fn exists(&self, uid: &PodUid, qos: QosClass) -> io::Result<bool> {
        self.cgroups.exists(uid, qos).await
    }

    async fn remove(&self, uid: &PodUid, qos: QosClass) -> io::Result<()> {
        let destroy = self.cgroups.remove(uid, qos);
        self.timed("destroy", destroy).await
    }

    async fn list_pods(&self) -> io::Result<Vec<(PodUid, QosClass)>> {
        self.cgroups.list_pods().await
    }
}

#[cfg(test)]
mod tests {
    use krablet_linux::fake::MemoryCgroups;

    use super::*;

    #[tokio::test]
    async fn changes_are_counted_and_looks_are_not() {
        let metrics = CgroupMetrics::default();
        let kernel = Arc::new(MemoryCgroups::default());
        let cgroups = CountedCgroups::over(kernel, metrics.clone());
        let (uid, qos) = (PodUid::from("a"), QosClass::Burstable);
        let limits = CgroupLimits::default();
        cgroups.create(&uid, qos, &limits).await.unwrap();
        cgroups.update(&uid, qos, &limits).await.unwrap();
        cgroups.limit_class(qos, &limits).await.unwrap();
        assert!(cgroups.exists(&uid, qos).await.unwrap());
        assert_eq!(cgroups.list_pods().await.unwrap().len(), 1);
        cgroups.limits(&uid, qos).await.unwrap();
        cgroups.remove(&uid, qos).await.unwrap();
        let counted = metrics.duration.get();
        let counted = counted.iter().map(|(k, seen)| (&*k[0], seen.count()));
        let expected = [("create", 1), ("destroy", 1), ("update", 2)];
        assert_eq!(counted.collect::<Vec<_>>(), expected);
    }
}
