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
                    if let Verdict::AdmitAfterPreempting(victims) = &verdict {
                        for victim in victims {
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
