//! Who is in stays in.

use std::sync::Arc;

use krablet_pod::{AdmittedPods, Allocation};
use proptest::prelude::*;

use super::*;

struct World {
    door: Door,
    admission: PodAdmission,
}

impl World {
    fn new(allocatable: &str) -> Self {
        Self {
            door: Door::new(allocatable),
            admission: PodAdmission::default(),
        }
    }

    fn ask(&mut self, candidate: &str) -> String {
        show(&self.verdict(&pod(candidate)))
    }

    fn verdict(&mut self, candidate: &Pod) -> Verdict {
        let surroundings = Surroundings {
            node: &self.door.node,
            conditions: &self.door.conditions,
            settings: &self.door.settings,
            allocation_failure: None,
        };
        self.admission.admit(candidate, &surroundings)
    }

    fn resize(&mut self, text: &str) -> String {
        let surroundings = Surroundings {
            node: &self.door.node,
            conditions: &self.door.conditions,
            settings: &self.door.settings,
            allocation_failure: None,
        };
        match self.admission.resize(&pod(text), &surroundings) {
            ResizeVerdict::Same => "same".into(),
            ResizeVerdict::Allocated => "allocated".into(),
            ResizeVerdict::AfterPreempting(room) => format!("after {:?}", room.victims),
            ResizeVerdict::Deferred(why) => format!("deferred: {}: {}", why.reason, why.message),
            ResizeVerdict::Infeasible(why) => format!("infeasible: {}", why.message),
        }
    }

    /// The agent dies; what was written is all that is left, and these containers run.
    fn restart(&mut self, running: &[&str]) {
        let text = serde_json::to_string(self.admission.admitted()).unwrap();
        let written: AdmittedPods = serde_json::from_str(&text).unwrap();
        let running = running.iter().map(|uid| PodUid::from(*uid));
        self.admission = PodAdmission::restored(written, running);
    }
}

#[test]
fn who_is_in_is_not_asked_again() {
    let mut world = World::new("cpu=2 pods=10");
    assert_eq!(world.ask("a cpu=2"), "admit");
    assert!(world.ask("b cpu=1").starts_with("OutOfcpu"));
    world.door.node = node("cpu=0 pods=0");
    world.door.conditions.shutting_down = true;
    assert_eq!(world.ask("a cpu=2"), "admit");
    world.restart(&[]);
    assert_eq!(world.ask("a cpu=2"), "admit");
    assert!(world.ask("b cpu=1").starts_with("OutOfpods"));
}

#[test]
fn who_is_found_running_is_in() {
    let mut world = World::new("cpu=1 pods=10");
    world.restart(&["a", "b"]);
    assert_eq!(world.ask("a cpu=1"), "admit");
    assert_eq!(world.ask("b cpu=1"), "admit");
    assert!(world.ask("c cpu=1").starts_with("OutOfcpu"));
    // Found later than others came: those still count.
    world.admission.found_running(["d".into(), "a".into()]);
    assert_eq!(world.ask("d cpu=1"), "admit");
    assert!(world.ask("c cpu=1").contains("used: 3000"));
    world.restart(&[]);
    assert_eq!(world.ask("b cpu=1"), "admit");
}

#[test]
fn a_pod_counts_for_what_it_was_let_in_with() {
    let mut world = World::new("cpu=3 pods=10");
    assert_eq!(world.ask("a cpu=1"), "admit");
    world.restart(&[]);
    // Resized while nobody looked: the wish is not granted by that.
    assert_eq!(world.ask("a cpu=3"), "admit");
    assert_eq!(world.ask("b cpu=2"), "admit");
    let allocation = world.admission.allocation(&"a".into());
    assert_eq!(allocation, Some(&Allocation::of(&pod("a cpu=1"))));
}

#[test]
fn a_resize_is_granted_when_there_is_room() {
    let mut world = World::new("cpu=4 memory=8Gi pods=2");
    assert_eq!(world.ask("a cpu=1"), "admit");
    assert_eq!(world.ask("b cpu=2"), "admit");
    assert_eq!(world.resize("a cpu=1"), "same");
    assert_eq!(world.resize("z cpu=1"), "same");
    let lack = "deferred: OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000";
    assert_eq!(world.resize("a cpu=3"), lack);
    assert_eq!(world.admission.actuation(&"a".into()), None);
    assert_eq!(world.resize("a cpu=2"), "allocated");
    assert_eq!(world.resize("a cpu=2000m"), "same");
    // What it was given is remembered until it is given more, and over a crash.
    world.restart(&[]);
    let given = world.admission.actuation(&"a".into()).unwrap().clone();
    assert_eq!(
        given,
        krablet_pod::Actuation::of(&Allocation::of(&pod("a cpu=1")))
    );
    assert_eq!(world.ask("a cpu=2"), "admit");
    assert_eq!(world.ask("b cpu=2"), "admit");
    assert!(world.resize("b cpu=2500m").starts_with("deferred"));
    // One that gives something back makes room for others.
    assert_eq!(world.resize("a cpu=500m"), "allocated");
    assert_eq!(world.resize("b cpu=3500m"), "allocated");
    world.admission.ended(&"b".into());
    assert_eq!(world.resize("a cpu=4"), "allocated");
    world.admission.forget(&"a".into());
    assert_eq!(world.admission.actuation(&"a".into()), None);
}

#[test]
fn what_is_given_is_noted_of_resized_pods_alone() {
    let mut world = World::new("cpu=4 pods=10");
    let given = |cpu: &str| {
        let resources = Allocation::of(&pod(&format!("a cpu={cpu}"))).containers;
        let resources = resources.into_iter().next().unwrap().1;
        let id = Some("c1".into());
        (
            "c".to_owned(),
            krablet_pod::ActuatedContainer { id, resources },
        )
    };
    let note = |world: &mut World, cpu, pod, resized| {
        let admission = &mut world.admission;
        admission.actuated(&"a".into(), [given(cpu)], pod, resized)
    };
    world.ask("a cpu=1");
    assert!(!note(&mut world, "1", Some(None), false));
    // An agent that does not know of a resize does one all the same.
    assert!(note(&mut world, "1", Some(None), true));
    world.admission.forget(&"a".into());
    world.ask("a cpu=1");
    world.resize("a cpu=2");
    assert!(note(&mut world, "2", None, false));
    assert!(!note(&mut world, "2", Some(None), true));
    let noted = world.admission.actuation(&"a".into()).unwrap();
    assert_eq!(noted.containers["c"], given("2").1);
}

#[test]
fn a_critical_pod_grows_at_the_cost_of_others() {
    let mut world = World::new("cpu=2 pods=10");
    assert_eq!(world.ask("a cpu=1"), "admit");
    assert_eq!(world.ask("s cpu=1 static"), "admit");
    assert_eq!(world.resize("s cpu=2 static"), "after [\"a\"]");
    world.admission.ended(&"a".into());
    assert_eq!(world.resize("s cpu=2 static"), "allocated");
}

#[test]
fn what_is_still_in_use_takes_up_room() {
    let mut world = World::new("cpu=4 pods=10");
    let with_status = |asked: &str, given: &str| {
        let mut pod = pod(&format!("a cpu={asked}"));
        let name = pod.spec.as_ref().unwrap().containers[0].name.clone();
        let status = json!({"containerStatuses": [{"name": name, "image": "", "imageID": "",
            "ready": true, "restartCount": 0, "allocatedResources": {"cpu": asked},
            "resources": {"requests": {"cpu": given}}}]});
        pod.status = serde_json::from_value(status).unwrap();
        pod
    };
    let settings = settings();
    let before = with_status("3", "3");
    world.verdict(&before);
    let surroundings = Surroundings {
        node: &world.door.node,
        conditions: &world.door.conditions,
        settings: &settings,
        allocation_failure: None,
    };
    assert!(!world.admission.status_changed(&before, &settings));
    let shrinking = with_status("1", "3");
    let verdict = world.admission.resize(&shrinking, &surroundings);
    assert_eq!(verdict, ResizeVerdict::Allocated);
    assert!(world.ask("b cpu=2").contains("used: 3000"));
    assert!(!world.admission.status_changed(&shrinking, &settings));
    assert!(
        world
            .admission
            .status_changed(&with_status("1", "1"), &settings)
    );
    assert_eq!(world.ask("b cpu=2"), "admit");
}

#[test]
fn the_ended_take_up_no_room_and_the_gone_are_forgotten() {
    let mut world = World::new("cpu=1 pods=10");
    assert_eq!(world.ask("a cpu=1"), "admit");
    world.admission.ended(&"a".into());
    assert_eq!(world.ask("b cpu=1"), "admit");
    assert!(world.admission.is_admitted(&"a".into()));
    world.admission.forget(&"a".into());
    assert!(!world.admission.is_admitted(&"a".into()));
    assert_eq!(world.admission.admitted().pods.len(), 1);
    // Finished pods of an earlier life are neither asked nor counted.
    assert_eq!(world.ask("c cpu=1 phase=Succeeded"), "admit");
    assert!(!world.admission.is_admitted(&"c".into()));
    world.admission.retain(|uid| uid.as_str() == "c");
    assert_eq!(world.admission.admitted(), &AdmittedPods::default());
    assert_eq!(world.ask("d cpu=1"), "admit");
}

#[test]
fn a_critical_pod_waits_for_its_victims() {
    let mut world = World::new("cpu=2 memory=10 pods=10");
    assert_eq!(world.ask("a cpu=1"), "admit");
    assert_eq!(world.ask("b cpu=1 memory=5"), "admit");
    assert_eq!(world.ask("s cpu=1 static"), "after a");
    assert!(!world.admission.is_admitted(&"s".into()));
    assert_eq!(world.ask("s cpu=1 static"), "after a");
    // The room is promised: nobody else gets it, critical or not.
    assert!(world.ask("c cpu=1").starts_with("OutOfcpu"));
    assert_eq!(world.ask("t cpu=1 static"), "after a b");
    world.admission.ended(&"a".into());
    world.admission.ended(&"b".into());
    assert_eq!(world.ask("s cpu=1 static"), "admit");
    assert_eq!(world.ask("t cpu=1 static"), "admit");
    assert!(world.admission.is_admitted(&"s".into()));
}

#[test]
fn a_promise_is_not_kept_over_a_crash_but_made_again() {
    let mut world = World::new("cpu=1 pods=10");
    assert_eq!(world.ask("a cpu=1"), "admit");
    assert_eq!(world.ask("s cpu=1 static"), "after a");
    world.restart(&["a"]);
    assert_eq!(world.ask("a cpu=1"), "admit");
    assert_eq!(world.ask("s cpu=1 static"), "after a");
    // And it ends with who it was made to.
    world.admission.forget(&"s".into());
    world.admission.forget(&"a".into());
    assert_eq!(world.ask("b cpu=1"), "admit");
}

#[test]
fn who_is_in_comes_first_then_the_oldest() {
    let mut world = World::new("cpu=1 pods=10");
    assert_eq!(world.ask("in created=2026-01-05T00:00:00Z"), "admit");
    world.restart(&["run"]);
    let batch = [
        "late created=2026-01-03T00:00:00Z",
        "early created=2026-01-02T00:00:00Z",
        "in created=2026-01-05T00:00:00Z",
        "run created=2026-01-04T00:00:00Z",
    ];
    let batch = batch.iter().map(|text| Arc::new(pod(text))).collect();
    let queue = world.admission.queue(batch);
    let names: Vec<_> = queue
        .iter()
        .map(|p| p.metadata.name.as_deref().unwrap())
        .collect();
    assert_eq!(names, ["run", "in", "early", "late"]);
}

proptest! {
    /// Whatever comes, goes, and crashes: whoever was let in is let in again, the room given to
    /// ordinary pods is never more than there is, and critical pods overtake only the ordinary.
    #[test]
    fn no_one_is_put_out_and_no_room_is_given_twice(
        steps in prop::collection::vec((0_u8..8, 0_u8..5, 1_u32..4), 1..40)
    ) {
        let mut world = World::new("cpu=4 pods=100");
        let mut inside: BTreeMap<String, u32> = BTreeMap::new();
        for (name, what, cpu) in steps {
            let name = format!("p{name}");
            match what {
                0 | 1 => {
                    let known = inside.get(&name).copied();
                    let verdict = world.ask(&format!("{name} cpu={}", known.unwrap_or(cpu)));
                    if known.is_some() {
                        prop_assert_eq!(&verdict, "admit");
                    }
                    if verdict == "admit" {
                        inside.insert(name, known.unwrap_or(cpu));
                    }
                }
                2 => {
                    world.admission.forget(&name.as_str().into());
                    inside.remove(&name);
                }
                3 => {
                    world.restart(&[]);
                    for (name, cpu) in &inside {
                        let verdict = world.ask(&format!("{name} cpu={cpu}"));
                        prop_assert_eq!(verdict, "admit");
                    }
                }
                _ => {
                    let critical = format!("s{name} cpu={cpu} static");
                    let verdict = world.verdict(&pod(&critical));
                    if let Verdict::AdmitAfterPreempting(room) = &verdict {
                        for victim in &room.victims {
                            prop_assert!(inside.remove(victim.as_str()).is_some(), "{victim} is not in");
                            world.admission.forget(victim);
                        }
                        prop_assert_eq!(world.ask(&critical), "admit");
                    }
                    world.admission.forget(&format!("s{name}").as_str().into());
                }
            }
            prop_assert!(inside.values().sum::<u32>() <= 4);
        }
    }
}
