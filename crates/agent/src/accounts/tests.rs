use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use krablet_core::Mono;
use krablet_core::worker::{Effect, Outcome, Periods, Update};
use krablet_pod::PodRef;
use krablet_pod::api::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, PodSpec, Volume,
};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

struct Bench {
    workers: PodWorkers,
    metrics: WorkerMetrics,
    accounts: Accounts,
}

impl Bench {
    fn new() -> Self {
        let metrics = WorkerMetrics::default();
        Self {
            workers: PodWorkers::new(Periods::default()),
            accounts: Accounts::new(metrics.clone()),
            metrics,
        }
    }

    fn update(&mut self, update: Update) -> Option<Work> {
        let uid = update.desired.pod_ref().uid;
        let effects = self.workers.update(update);
        self.accounts.note(&uid, &self.workers);
        effects.into_iter().find_map(|effect| match effect {
            Effect::Run(_, work) => Some(*work),
            _ => None,
        })
    }

    fn completed(&mut self, uid: &str) {
        let uid = uid.into();
        let now = Mono(Duration::ZERO);
        self.workers.completed(&uid, Outcome::Done, now, 0.0);
        self.accounts.note(&uid, &self.workers);
    }

    /// The groups that have pods.
    fn working(&self, wanted: &[&str]) -> Vec<(&'static str, &'static str, &'static str, u64)> {
        let groups = self
            .accounts
            .working_pods(|uid| wanted.contains(&uid.as_str()));
        assert_eq!(groups.len(), 15);
        let told = groups.into_iter().filter(|(_, count)| *count > 0);
        told.map(|(g, count)| (g.config, g.lifecycle, g.is_static, count))
            .collect()
    }
}

fn pod(uid: &str, source: &str) -> Arc<Pod> {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(uid.into());
    pod.metadata.name = Some(uid.into());
    pod.metadata.namespace = Some("ns".into());
    let source = (marks::CONFIG_SOURCE.to_owned(), source.to_owned());
    pod.metadata.annotations = Some([source].into());
    pod.spec = Some(PodSpec {
        containers: vec![Container::default(), Container::default()],
        ..PodSpec::default()
    });
    Arc::new(pod)
}

fn state(running: bool) -> ContainerState {
    let at = |second| Some(Time(Timestamp::from_second(second).unwrap()));
    match running {
        true => ContainerState {
            running: Some(ContainerStateRunning { started_at: at(1) }),
            ..ContainerState::default()
        },
        false => ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code: 3,
                reason: Some("Error".into()),
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        },
    }
}

fn status(phase: &str, containers: &[(&str, Option<bool>)]) -> PodStatus {
    let container = |(name, running): &(&str, Option<bool>)| ContainerStatus {
        name: (*name).into(),
        state: running.map(state),
        ..ContainerStatus::default()
    };
    PodStatus {
        phase: Some(phase.into()),
        container_statuses: Some(containers.iter().map(container).collect()),
        ..PodStatus::default()
    }
}

#[tokio::test(start_paused = true)]
async fn workers_by_what_they_are_at() {
    let mut bench = Bench::new();
    bench.update(Update::new(&pod("a", "file"), UpdateKind::Create));
    bench.update(Update::new(&pod("b", "api"), UpdateKind::Create));
    bench.update(Update::orphan(PodRef::new("c", "ns", "c")));
    let all = [
        ("desired", "sync", "", 1),
        ("desired", "sync", "true", 1),
        ("runtime_only", "terminating", "unknown", 1),
    ];
    assert_eq!(bench.working(&["a", "b"]), all);

    bench.update(Update::new(&pod("a", "file"), UpdateKind::Kill));
    bench.completed("c");
    let two = [
        ("desired", "sync", "", 1),
        ("orphan", "terminating", "true", 1),
    ];
    assert_eq!(bench.working(&["b"]), two);

    assert!(bench.accounts.is_active(&"b".into(), None));
    let ended = status("Failed", &[]);
    assert!(!bench.accounts.is_active(&"b".into(), Some(&ended)));
    assert!(bench.accounts.is_active(&"a".into(), Some(&ended)));

    bench.workers = PodWorkers::new(Periods::default());
    bench.accounts.note_all(&bench.workers);
    assert!(bench.working(&["b"]).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_worker_s_first_step() {
    let mut bench = Bench::new();
    let first = bench.update(Update::new(&pod("a", "file"), UpdateKind::Create));
    let first = first.unwrap();
    tokio::time::advance(2 * SECOND).await;
    bench.accounts.step_begins(&first);
    bench.accounts.step_ended(&first, SECOND);
    bench.completed("a");
    let kill = bench.update(Update::new(&pod("a", "file"), UpdateKind::Kill));
    let kill = kill.unwrap();
    bench.accounts.step_begins(&kill);
    bench.accounts.step_ended(&kill, SECOND);

    let WorkerMetrics {
        containers_per_pod,
        duration,
        start_duration,
        ..
    } = &bench.metrics;
    let told = |seen: krablet_metrics::Distribution| (seen.count(), seen.sum());
    assert_eq!(told(containers_per_pod.get()), (1, 2.0));
    assert_eq!(told(start_duration.get()), (1, 2.0));
    let kinds = duration.get();
    let kinds: Vec<_> = kinds
        .iter()
        .map(|(k, seen)| (&*k[0], seen.count()))
        .collect();
    assert_eq!(kinds, [("create", 1), ("kill", 1)]);
}

#[test]
fn steps_as_metrics_name_them() {
    let cases = [
        (Step::Sync, UpdateKind::Sync, "sync"),
        (Step::Sync, UpdateKind::Update, "update"),
        (Step::Terminating, UpdateKind::Kill, "kill"),
        (Step::Terminated, UpdateKind::Kill, "terminated"),
    ];
    for (step, kind, name) in cases {
        assert_eq!(operation(step, kind), name);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_starts_once() {
    let mut bench = Bench::new();
    let mut created = Arc::unwrap_or_clone(pod("a", "api"));
    created.metadata.creation_timestamp = Some(Time(Timestamp::from_second(100).unwrap()));
    let created = Arc::new(created);
    let seen = pod("b", "file");
    let now = Timestamp::from_second(107).unwrap();
    for pod in [&created, &seen, &pod("old", "file")] {
        bench.update(Update::new(pod, UpdateKind::Create));
    }
    tokio::time::advance(5 * SECOND).await;
    let change = |pod: &Pod, old: Option<&PodStatus>, new: &PodStatus| {
        let uid = PodRef::of(pod).uid;
        bench.accounts.status_changes(pod, &uid, old, new, now);
    };
    let pending = status("Pending", &[("x", None)]);
    let half = status("Running", &[("x", Some(true)), ("y", None)]);
    let whole = status("Running", &[("x", Some(true)), ("y", Some(true))]);
    for pod in [&created, &seen] {
        change(pod, None, &pending);
        change(pod, Some(&pending), &half);
        change(pod, Some(&half), &whole);
        change(pod, Some(&whole), &half);
        change(pod, Some(&half), &whole);
    }
    // Ran before this agent did.
    let old = pod("old", "file");
    change(&old, None, &half);
    change(&old, Some(&half), &whole);

    let phases = bench.metrics.pod_start_duration.get();
    assert_eq!((phases.count(), phases.sum()), (2, 10.0));
    let total = bench.metrics.pod_start_total_duration.get();
    assert_eq!((total.count(), total.sum()), (2, 12.0));
}

#[tokio::test(start_paused = true)]
async fn images_and_foreign_volumes_do_not_count_in_a_start() {
    let volume = |text: &str| -> Volume { serde_json::from_str(text).unwrap() };
    let cases = [
        (vec![], Some(6.0)),
        (vec![volume(r#"{"name": "v", "emptyDir": {}}"#)], Some(6.0)),
        (
            vec![volume(r#"{"name": "v", "hostPath": {"path": "/x"}}"#)],
            None,
        ),
    ];
    for (volumes, expected) in cases {
        let mut bench = Bench::new();
        let mut pod = Arc::unwrap_or_clone(pod("a", "file"));
        pod.spec.get_or_insert_default().volumes = Some(volumes);
        let pod = Arc::new(pod);
        let uid = PodRef::of(&pod).uid;
        bench.update(Update::new(&pod, UpdateKind::Create));
        let since = Instant::now();
        tokio::time::advance(10 * SECOND).await;
        let wait = |from: u32, to: u32, got| ImageWait {
            since: since + from * SECOND,
            until: since + to * SECOND,
            got,
        };
        let waits = [wait(1, 2, false), wait(4, 5, true)];
        bench.accounts.needed_images(&uid, &waits);
        let (pending, running) = (
            status("Pending", &[("x", None)]),
            status("Running", &[("x", Some(true))]),
        );
        let now = Timestamp::from_second(0).unwrap();
        let accounts = &bench.accounts;
        accounts.status_changes(&pod, &uid, Some(&pending), &running, now);
        let sli = bench.metrics.pod_start_sli_duration.get();
        let seen = (sli.count() > 0).then_some(sli.sum());
        assert_eq!(seen, expected);
        let first = bench.metrics.first_network_pod_start.get();
        assert_eq!(first.as_secs_f64(), expected.unwrap_or_default());
        assert_eq!(bench.metrics.pod_start_total_duration.get().sum(), 10.0);
    }
}

#[test]
fn an_end_is_told_once() {
    let bench = Bench::new();
    let pod = pod("a", "file");
    let now = Timestamp::from_second(0).unwrap();
    let up = status("Running", &[("x", Some(true)), ("y", Some(false))]);
    let down = status("Running", &[("x", Some(false)), ("y", Some(false))]);
    let uid = "a".into();
    for (old, new) in [(&up, &down), (&down, &down), (&down, &up), (&up, &down)] {
        bench
            .accounts
            .status_changes(&pod, &uid, Some(old), new, now);
    }
    let ended = bench.metrics.terminated_containers.get();
    let ended: Vec<_> = ended.iter().collect();
    let [(labels, count)] = ended[..] else {
        panic!("{ended:?}");
    };
    assert_eq!(
        labels.iter().map(|l| &**l).collect::<Vec<_>>(),
        ["container", "3", "Error"]
    );
    assert_eq!(*count, 2);
}
