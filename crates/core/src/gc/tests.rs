use super::*;
use krablet_pod::Ticket;
use krablet_pod::observed::{ContainerMemory, ObservedSandbox};

const SECOND: i64 = 1_000_000_000;

/// `name:age:state`, newest first; the id is `<pod>/<name>@<age>`, the sandbox `<pod>-s<n>`.
fn pod(uid: &str, sandboxes: &[bool], containers: &[&str]) -> Arc<ObservedPod> {
    let sandbox = |n: usize| SandboxId::from(format!("{uid}-s{n}"));
    let containers = containers.iter().map(|text| {
        let parts: Vec<&str> = text.split(':').collect();
        let age: i64 = parts[1].parse().unwrap();
        ObservedContainer {
            id: format!("{uid}/{}@{age}", parts[0]).into(),
            name: parts[0].into(),
            sandbox_id: sandbox(parts.get(3).map_or(0, |n| n.parse().unwrap())),
            state: match parts[2] {
                "run" => ContainerState::Running,
                "exit" => ContainerState::Exited,
                "new" => ContainerState::Created,
                _ => ContainerState::Unknown,
            },
            attempt: 0,
            created_at: 1000 * SECOND - age * SECOND,
            started_at: 0,
            exit: None,
            image: "".into(),
            image_ref: "".into(),
            user: None,
            resources: None,
            memory: ContainerMemory::default(),
            log_path: String::new(),
        }
    });
    let sandboxes = sandboxes
        .iter()
        .enumerate()
        .map(|(n, ready)| ObservedSandbox {
            id: sandbox(n),
            ready: *ready,
            attempt: 0,
            created_at: 0,
            ips: Vec::new(),
            host_network: false,
            source: None,
        });
    Arc::new(ObservedPod {
        pod: PodRef::new(uid, "ns", uid),
        ticket: Ticket(1),
        sandboxes: sandboxes.collect(),
        containers: containers.collect(),
    })
}

struct World {
    pods: Vec<Arc<ObservedPod>>,
    unrecorded: &'static [&'static str],
    sources_ready: bool,
    evict_terminated: bool,
    policy: GcPolicy,
}

/// Pods are `live…`, `done…` (terminated) or `gone…` by their uid.
fn fate(uid: &PodUid) -> Fate {
    match uid.as_str() {
        u if u.starts_with("live") => Fate::Live,
        u if u.starts_with("done") => Fate::RuntimeRemovable,
        _ => Fate::ContentRemovable,
    }
}

impl World {
    fn of(pods: Vec<Arc<ObservedPod>>) -> Self {
        Self {
            pods,
            unrecorded: &[],
            sources_ready: true,
            evict_terminated: false,
            policy: GcPolicy::default(),
        }
    }

    fn with<T>(&self, f: impl FnOnce(&GcInputs<'_>) -> T) -> T {
        f(&GcInputs {
            pods: &self.pods,
            fate: &fate,
            recorded: &|id| !self.unrecorded.contains(&id.as_str()),
            sources_ready: self.sources_ready,
            evict_terminated: self.evict_terminated,
            policy: self.policy,
            now: 1000 * SECOND,
        })
    }

    #[track_caller]
    fn removes(&self, expected: &str) {
        let chosen = self.with(dead_containers);
        assert_eq!(ids(&chosen), expected);
    }
}

fn ids(chosen: &[DeadContainer]) -> String {
    let ids: Vec<&str> = chosen.iter().map(|c| c.id.as_str()).collect();
    ids.join(" ")
}

#[test]
fn one_dead_instance_of_each_container_stays() {
    let pods = vec![
        pod(
            "live",
            &[true],
            &["a:1:run", "a:5:exit", "a:9:exit", "b:2:exit"],
        ),
        pod("done", &[false], &["a:1:exit", "a:5:exit", "a:9:unknown"]),
    ];
    let mut world = World::of(pods);
    world.removes("done/a@5 done/a@9 live/a@9");
    world.policy.per_container = Some(0);
    world.removes("done/a@1 done/a@5 done/a@9 live/a@5 live/a@9 live/b@2");
    world.policy.per_container = None;
    world.removes("");
}

#[test]
fn what_never_ran_does_not_take_the_place_of_what_did() {
    let pods = vec![
        pod("done", &[false], &["a:1:new", "a:5:exit"]),
        pod("live", &[true], &["a:1:new", "a:5:new", "a:9:exit"]),
    ];
    World::of(pods).removes("done/a@1 live/a@5");
}

#[test]
fn pods_that_are_gone_lose_all_once_the_sources_have_spoken() {
    let pods = vec![pod(
        "gone",
        &[false],
        &["a:1:exit", "a:5:exit", "b:1:new", "c:1:run"],
    )];
    let mut world = World::of(pods);
    // Nobody will record an orphan's exit.
    world.unrecorded = &["gone/a@1", "gone/a@5"];
    world.removes("gone/b@1 gone/a@1 gone/a@5");
    world.sources_ready = false;
    world.removes("");
}

#[test]
fn terminated_pods_lose_all_when_disk_is_short() {
    let mut world = World::of(vec![pod("done", &[false], &["a:1:exit"])]);
    world.removes("");
    world.evict_terminated = true;
    world.removes("done/a@1");
}

#[test]
fn an_exit_nobody_recorded_stays() {
    let mut world = World::of(vec![pod(
        "live",
        &[true],
        &["a:1:run", "a:5:exit", "a:9:exit", "a:12:exit"],
    )]);
    world.unrecorded = &["live/a@9"];
    world.removes("live/a@12");
    world.policy.per_container = Some(0);
    world.removes("live/a@5 live/a@12");
}

#[test]
fn what_is_about_to_start_stays_and_shields_no_one() {
    let mut world = World::of(vec![pod(
        "live",
        &[true],
        &["a:0:new", "a:5:exit", "a:7:new", "b:1:unknown"],
    )]);
    // The last exit stays readable beside the new instance.
    world.removes("live/a@7");
    world.policy.total = Some(0);
    world.removes("live/a@7 live/a@5");
}

#[test]
fn young_ones_stay() {
    let mut world = World::of(vec![pod(
        "live",
        &[true],
        &["a:1:exit", "a:5:exit", "a:9:exit"],
    )]);
    world.policy.min_age = Duration::from_secs(6);
    world.removes("live/a@9");
}

#[test]
fn the_total_is_shared_evenly_then_the_oldest_go() {
    let mut world = World::of(vec![
        pod("live1", &[true], &["a:1:exit", "a:2:exit", "a:3:exit"]),
        pod("live2", &[true], &["a:4:exit"]),
        pod("live3", &[true], &["a:5:exit"]),
    ]);
    world.policy.per_container = Some(3);
    world.policy.total = Some(4);
    world.removes("live1/a@2 live1/a@3");
    world.policy.total = Some(2);
    world.removes("live1/a@2 live1/a@3 live3/a@5");
}

#[test]
fn the_list_of_the_dead_never_outgrows_the_runtime() {
    let many = DEAD_CONTAINERS_LIMIT + 5;
    let mut pods: Vec<_> = (0..many)
        .map(|n| pod(&format!("done{n:05}"), &[false], &["a:3:exit"]))
        .collect();
    pods.push(pod("live", &[true], &["a:900:exit", "a:901:exit"]));
    let mut world = World::of(pods);
    world.policy.per_container = None;
    let chosen = world.with(dead_containers);
    assert_eq!(chosen.len(), 7, "down to the limit, the live pod keeps one");
    assert_eq!(chosen[0].id.as_str(), "live/a@901");
    assert!(
        chosen[1..]
            .iter()
            .all(|c| c.pod.uid.as_str().starts_with("done"))
    );
}

#[test]
fn sandboxes_that_are_empty_and_not_ready_go() {
    let pods = vec![
        // Newest first: the newest of a live pod stays even when dead.
        pod("live1", &[false, false, false], &["a:1:exit:1"]),
        pod("live2", &[true, true, false], &[]),
        pod("gone1", &[false, false], &["a:1:exit:1"]),
        pod("gone2", &[true], &[]),
    ];
    let mut world = World::of(pods);
    let show = |world: &World, removed: &[&str]| {
        let removed = removed.iter().map(|r| ContainerId::from(*r)).collect();
        let chosen = world.with(|i| dead_sandboxes(i, &removed));
        let ids: Vec<_> = chosen
            .iter()
            .map(|(_, id)| id.as_str().to_string())
            .collect();
        ids.join(" ")
    };
    assert_eq!(show(&world, &[]), "live1-s2 live2-s2 gone1-s0");
    assert_eq!(
        show(&world, &["gone1/a@1", "live1/a@1"]),
        "live1-s2 live1-s1 live2-s2 gone1-s1 gone1-s0"
    );
    world.sources_ready = false;
    assert_eq!(show(&world, &[]), "live1-s2 live2-s2");
}

#[test]
fn log_directories_of_gone_pods_go() {
    let names = [
        "ns_web_live1",
        "ns_web_gone1",
        "ns_web_done1",
        "lost+found",
        "a_b_c_d",
    ];
    assert_eq!(
        gone_log_dirs(names, &fate, true),
        [("gone1".into(), "ns_web_gone1")]
    );
    assert!(gone_log_dirs(names, &fate, false).is_empty());
}

#[test]
fn links_to_nowhere_go_unless_their_container_lives() {
    let pods = [pod("live", &[true], &["a:1:run", "a:5:exit"])];
    let names = [
        "live_ns_a-live/a@1.log",
        "live_ns_a-live/a@5.log",
        "old_ns_a-77.log",
        "README",
    ];
    assert_eq!(
        dead_symlinks(names, &pods),
        ["live_ns_a-live/a@5.log", "old_ns_a-77.log"]
    );
}
