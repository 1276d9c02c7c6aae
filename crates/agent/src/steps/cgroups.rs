//! The cgroups of pods, and those of their QoS classes, whose weight follows the pods that come and go.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use krablet_core::cgroups::{ClassRules, PodRules, class_limits, pod_limits};
use krablet_linux::Cgroups;
use krablet_pod::api::Pod;
use krablet_pod::cgroups::CgroupLimits;
use krablet_pod::qos::QosClass;
use krablet_pod::{PodRef, PodUid};
use krablet_runtime::PodCgroup;
use tokio::sync::Mutex;
use tracing::field::display;
use tracing::warn;

use super::Steps;

const FAILED_CREATE_POD_CONTAINER: &str = "FailedCreatePodContainer";

pub(crate) struct PodCgroups {
    cgroups: Arc<dyn Cgroups>,
    rules: PodRules,
    class_rules: ClassRules,
    /// Whether the classes were given anything yet.
    begun: AtomicBool,
    /// What the classes were last given.
    classes: Mutex<BTreeMap<QosClass, CgroupLimits>>,
}

impl PodCgroups {
    pub(crate) fn new(cgroups: Arc<dyn Cgroups>, rules: PodRules, class_rules: ClassRules) -> Self {
        Self {
            cgroups,
            rules,
            class_rules,
            begun: AtomicBool::new(false),
            classes: Mutex::default(),
        }
    }

    pub(crate) fn parent(&self, uid: &PodUid, qos: QosClass) -> String {
        self.cgroups.cgroup_parent(uid, qos)
    }

    /// The cgroup of one pod.
    pub(super) fn of_pod<'a>(&'a self, uid: &'a PodUid, qos: QosClass) -> PodCgroup<'a> {
        let cgroups = &*self.cgroups;
        PodCgroup { cgroups, uid, qos }
    }

    async fn create(&self, pod: &Pod, uid: &PodUid, qos: QosClass) -> io::Result<()> {
        let limits = pod_limits(pod, &self.rules);
        self.cgroups.create(uid, qos, &limits).await
    }

    /// Gives the classes what their pods make of them, as far as it has changed.
    async fn weigh(&self, active: impl Fn() -> Vec<Arc<Pod>>) {
        let mut given = self.classes.lock().await;
        // Asked for behind the lock: whoever comes last knows best.
        let wanted = class_limits(active().iter().map(|pod| &**pod), &self.class_rules);
        for (qos, limits) in wanted {
            if given.get(&qos) == Some(&limits) {
                continue;
            }
            match self.cgroups.limit_class(qos, &limits).await {
                Ok(()) => {
                    given.insert(qos, limits);
                }
                Err(e) => {
                    warn!(class = qos.as_str(), err = %e, "Failed to update QoS cgroup configuration");
                    given.remove(&qos);
                }
            }
        }
    }
}

impl Steps {
    /// Before a pod's sandbox is made. False, and told, if it cannot be.
    pub(super) async fn make_cgroup(&self, pod: &Pod, pod_ref: &PodRef, qos: QosClass) -> bool {
        self.weigh_classes().await;
        let made = self.parts.cgroups.create(pod, &pod_ref.uid, qos).await;
        if let Err(e) = &made {
            let parent = self.parts.cgroups.parent(&pod_ref.uid, qos);
            let name = parent.trim_start_matches('/').replace('/', " ");
            let message = format!(
                "unable to ensure pod container exists: failed to create container for [{name}] : {e}"
            );
            self.warn(pod_ref, FAILED_CREATE_POD_CONTAINER, message);
        }
        made.is_ok()
    }

    /// The pods of an earlier agent have cgroups already; their classes are looked after once.
    pub(super) async fn weigh_classes_once(&self) {
        if !self.parts.cgroups.begun.swap(true, Ordering::Relaxed) {
            self.weigh_classes().await;
        }
    }

    pub(super) async fn release_cgroup_of(&self, pod: &PodRef, qos: QosClass) -> bool {
        self.remove_cgroup(Some(pod), &pod.uid, qos).await
    }

    /// The same for a pod of which no more is known.
    pub(super) async fn release_cgroup(&self, uid: &PodUid, qos: QosClass) -> bool {
        self.remove_cgroup(None, uid, qos).await
    }

    async fn remove_cgroup(&self, pod: Option<&PodRef>, uid: &PodUid, qos: QosClass) -> bool {
        let removed = self.parts.cgroups.cgroups.remove(uid, qos).await;
        if let Err(e) = &removed {
            let pod = pod.map(display);
            warn!(pod, podUID = %uid, err = %e, "Could not remove the cgroup of a pod, will retry");
        }
        self.weigh_classes().await;
        removed.is_ok()
    }

    pub(super) async fn weigh_classes(&self) {
        let parts = &self.parts;
        let active = || {
            let mut pods = parts.desired.all_allocated();
            pods.retain(|pod| {
                let uid = PodRef::of(pod).uid;
                let status = parts.status.status(&uid);
                !parts.desired.is_refused(&uid) && parts.accounts.is_active(&uid, status.as_deref())
            });
            pods
        };
        parts.cgroups.weigh(active).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use krablet_linux::fake::MemoryCgroups;
    use krablet_pod::api::{Container, PodSpec, ResourceRequirements};

    fn pod(uid: &str, cpu: &str) -> Arc<Pod> {
        let requests = [("cpu".to_owned(), Quantity(cpu.to_owned()))];
        let container = Container {
            name: "c".to_owned(),
            resources: Some(ResourceRequirements {
                requests: Some(requests.into()),
                ..ResourceRequirements::default()
            }),
            ..Container::default()
        };
        let mut pod = Pod {
            spec: Some(PodSpec {
                containers: vec![container],
                ..PodSpec::default()
            }),
            ..Pod::default()
        };
        pod.metadata.uid = Some(uid.to_owned());
        Arc::new(pod)
    }

    #[tokio::test]
    async fn a_class_follows_its_pods() {
        let kernel = MemoryCgroups::default();
        let cgroups = PodCgroups::new(
            Arc::new(kernel.clone()),
            PodRules::default(),
            ClassRules::default(),
        );
        let shares = || kernel.class_limits(QosClass::Burstable).unwrap().cpu_shares;
        let (a, b) = (pod("a", "500m"), pod("b", "1"));
        cgroups.weigh(|| vec![a.clone()]).await;
        assert_eq!(shares(), Some(512));
        cgroups.weigh(|| vec![a.clone(), b.clone()]).await;
        assert_eq!(shares(), Some(1536));
        cgroups.weigh(|| vec![b.clone()]).await;
        assert_eq!(shares(), Some(1024));
        cgroups.weigh(Vec::new).await;
        assert_eq!(shares(), Some(2));
        let best_effort = kernel.class_limits(QosClass::BestEffort).unwrap();
        assert_eq!(best_effort.cpu_shares, Some(2));
    }

    #[tokio::test]
    async fn a_pod_has_its_limits_before_anything_runs_in_it() {
        let kernel = MemoryCgroups::default();
        let cgroups = PodCgroups::new(
            Arc::new(kernel.clone()),
            PodRules {
                pids: Some(50),
                ..PodRules::default()
            },
            ClassRules::default(),
        );
        let uid = PodUid::from("a");
        let asking = pod("a", "250m");
        let made = cgroups.create(&asking, &uid, QosClass::Burstable).await;
        made.unwrap();
        let limits = kernel.limits_of(&uid).unwrap();
        assert_eq!((limits.cpu_shares, limits.pids), (Some(256), Some(50)));
        let held = kernel.list_pods().await.unwrap();
        assert_eq!(held, [(uid, QosClass::Burstable)]);
    }
}
