//! Whatever is seen in whatever order, what was said is not taken back, and nothing new is said
//! when nothing new is seen.

use proptest::prelude::*;

use super::*;
use crate::actions::testkit::{any_pod, any_sight};

fn counts(status: &PodStatus) -> BTreeMap<String, i32> {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let all = lists.into_iter().flatten().flatten();
    all.map(|c| (c.name.clone(), c.restart_count)).collect()
}

fn look(pod: &Pod, old: Option<&PodStatus>, sight: &str) -> Accepted {
    let new = generated_from(pod, old, &seen(pod, sight), &node());
    let inputs = AcceptInputs {
        pod,
        cached: old,
        mirror: None,
        now: Timestamp::UNIX_EPOCH,
        terminate: false,
        gates: RestartGates::default(),
    };
    accept(&inputs, new)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_goes_back_and_nothing_stirs(
        pod_text in any_pod(),
        sights in prop::collection::vec(any_sight(), 1..5),
    ) {
        let mut pod = pod(&pod_text);
        pod.metadata.deletion_timestamp = None;
        let mut old: Option<PodStatus> = None;
        for sight in &sights {
            let first = look(&pod, old.as_ref(), sight);
            if let Some(old) = &old {
                let now = counts(&first.status);
                for (name, count) in counts(old) {
                    prop_assert!(now[&name] >= count, "{pod_text}: count of {name} fell: {sights:?}");
                }
                prop_assert!(!is_terminal(old) || phase_of(old) == phase_of(&first.status));
            }
            if first.refused.is_none() {
                let second = look(&pod, Some(&first.status), sight);
                let third = look(&pod, Some(&second.status), sight);
                prop_assert!(
                    !third.changed,
                    "{pod_text}: {sights:?}\n{}\n{}\n{}",
                    render(&first.status), render(&second.status), render(&third.status)
                );
            }
            old = Some(first.status);
        }
    }
}
