//! Other resources for what runs.

use krablet_core::cgroups::{PodRules, pod_limits};
use krablet_core::probe::Verdicts;
use krablet_linux::Cgroups;
use krablet_linux::fake::MemoryCgroups;
use krablet_pod::api::{Pod, ResourceRequirements};
use krablet_pod::qos::QosClass;
use krablet_pod::{Actuation, Allocation, PodUid};
use krablet_runtime::{PodCgroup, Sizes, SyncOutcome};
use serde_json::json;

use crate::bench::{Bench, container, pod};

fn sized(cpu: &str, memory: &str) -> ResourceRequirements {
    let list = json!({"cpu": cpu, "memory": memory, "hugepages-2Mi": "2Mi"});
    serde_json::from_value(json!({"requests": list, "limits": list})).unwrap()
}

fn two(a: (&str, &str), b: (&str, &str)) -> Pod {
    let mut containers = vec![container("a"), container("b")];
    containers[0].resources = Some(sized(a.0, a.1));
    containers[1].resources = Some(sized(b.0, b.1));
    let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    containers[1].resize_policy = serde_json::from_value(policy).unwrap();
    pod(vec![], containers)
}

struct Resized {
    bench: Bench,
    kernel: MemoryCgroups,
    uid: PodUid,
    given: Actuation,
}

impl Resized {
    /// Both containers run with these resources.
    async fn running(before: &Pod) -> Self {
        let bench = Bench::new();
        let kernel = MemoryCgroups::default();
        let uid = PodUid::from("u");
        let limits = pod_limits(before, &PodRules::default());
        let made = kernel.create(&uid, QosClass::Guaranteed, &limits).await;
        made.unwrap();
        bench.sync(before).await;
        bench.world.diary();
        bench.events();
        let given = Actuation::of(&Allocation::of(before));
        Self {
            bench,
            kernel,
            uid,
            given,
        }
    }

    async fn sync(&mut self, pod: &Pod) -> SyncOutcome {
        let cgroup = PodCgroup {
            cgroups: &self.kernel,
            uid: &self.uid,
            qos: QosClass::Guaranteed,
        };
        let sizes = Sizes {
            actuated: Some(&self.given),
            cgroup: Some(cgroup),
        };
        let observed = self.bench.observed(pod);
        let verdicts = Verdicts::new();
        let synced = self.bench.sync_sized(pod, &observed, &verdicts, &[], sizes);
        let mut outcome = synced.await;
        let newly = std::mem::take(&mut outcome.resized.containers);
        self.given.containers.extend(newly);
        outcome
    }

    /// Of the pod: shares, quota, megabytes.
    fn held(&self) -> (u64, i64, i64) {
        let limits = self.kernel.limits_of(&self.uid).unwrap();
        let quota = limits.cpu_quota.unwrap().micros.unwrap();
        (
            limits.cpu_shares.unwrap(),
            quota,
            limits.memory.unwrap() >> 20,
        )
    }
}

#[tokio::test(start_paused = true)]
async fn containers_and_their_pod_are_updated() {
    let mut node = Resized::running(&two(("100m", "10Mi"), ("100m", "10Mi"))).await;
    let larger = two(("200m", "20Mi"), ("50m", "10Mi"));
    let outcome = node.sync(&larger).await;
    assert!(outcome.resized.changed && outcome.resized.pod && outcome.error.is_none());
    assert_eq!(
        node.bench.world.diary(),
        [
            "Update a/0 0 0 20Mi",
            "Update b/0 51 5000 0Mi",
            "Update a/0 204 20000 0Mi",
        ]
    );
    assert_eq!(node.held(), (256, 25_000, 30));
    // And then there is nothing to do.
    let outcome = node.sync(&larger).await;
    assert!(!outcome.acted && !outcome.resized.changed);
    assert_eq!(node.bench.world.diary(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn one_that_wants_a_restart_gets_it() {
    let mut node = Resized::running(&two(("100m", "10Mi"), ("100m", "10Mi"))).await;
    let outcome = node.sync(&two(("100m", "10Mi"), ("100m", "20Mi"))).await;
    assert!(outcome.resized.pod && outcome.error.is_none());
    assert_eq!(
        node.bench.world.diary(),
        [
            "StopContainer b/0 30s",
            "(stopped b)",
            "CreateContainer b/1",
            "StartContainer b/1"
        ]
    );
    assert_eq!(
        node.bench.events()[0],
        "Killing: Container b resize requires restart"
    );
    assert_eq!(node.held(), (204, 20_000, 30));
    let given = &node.given.containers["b"];
    let limits = given.resources.limits.as_ref().unwrap();
    assert_eq!(limits["memory"].0, "20Mi");
    let again = node.sync(&two(("100m", "10Mi"), ("100m", "20Mi"))).await;
    assert!(!again.acted);
}

#[tokio::test(start_paused = true)]
async fn memory_in_use_stays_and_a_failure_is_tried_again() {
    let mut node = Resized::running(&two(("100m", "100Mi"), ("100m", "10Mi"))).await;
    let smaller = two(("100m", "20Mi"), ("100m", "10Mi"));
    node.kernel.use_memory(50 << 20);
    let outcome = node.sync(&smaller).await;
    let error = outcome.resized.error.unwrap();
    assert_eq!(
        error,
        "cannot decrease memory limits: [attempting to set pod memory limit (31457280) below current \
         usage (52428800), attempting to set container \"a\" memory limit (20971520) below current \
         usage (52428800)]"
    );
    let shown = outcome.error.unwrap().to_string();
    assert!(
        shown.starts_with("failed to \"ResizePodInPlace\" for \"web_ns(u)\""),
        "{shown}"
    );
    assert_eq!(node.bench.world.diary(), [""; 0]);
    node.kernel.use_memory(5 << 20);
    node.bench.world.fail("UpdateContainerResources", "not now");
    let outcome = node.sync(&smaller).await;
    let error = outcome.resized.error.unwrap();
    assert_eq!(error, "rpc error: code = Unknown desc = not now");
    assert_eq!(node.held(), (204, 20_000, 110));
    node.bench.world.diary();
    let outcome = node.sync(&smaller).await;
    assert!(outcome.resized.error.is_none());
    assert_eq!(node.bench.world.diary(), ["Update a/0 0 0 20Mi"]);
    assert_eq!(node.held(), (204, 20_000, 30));
}
