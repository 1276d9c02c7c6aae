//! Whatever is seen, the actions keep the promises of a pod, and carrying them out leads to rest.

use std::collections::BTreeSet;

use krablet_pod::observed::{ContainerExit, ContainerMemory, ObservedSandbox};
use proptest::prelude::*;

use super::super::testkit::{Seen, any_pod, any_sight, pod, seen};
use super::*;
use crate::restart::next_restart_count;

fn decide(pod: &Pod, seen: &Seen) -> PodActions {
    compute_pod_actions(&ActionInputs {
        pod,
        observed: &seen.observed,
        verdicts: &seen.verdicts,
        rules_enabled: true,
        restart_all_enabled: true,
        actuated: None,
    })
}

fn started<'a>(spec: &'a PodSpec, actions: &PodActions) -> Vec<&'a str> {
    let init = containers::init_containers(spec);
    let init = actions.init_to_start.iter().map(|i| init[*i].name.as_str());
    let regular = actions
        .regular_to_start
        .iter()
        .map(|i| spec.containers[*i].name.as_str());
    let ephemeral = containers::ephemeral_containers(spec);
    let ephemeral = actions
        .ephemeral_to_start
        .iter()
        .map(|i| ephemeral[*i].name.as_str());
    init.chain(regular).chain(ephemeral).collect()
}

/// All init containers are done in the sandbox that is used.
fn init_done(spec: &PodSpec, seen: &Seen, actions: &PodActions) -> bool {
    let here = |name: &str| {
        let instances = seen
            .observed
            .containers
            .iter()
            .filter(move |c| &*c.name == name);
        let sandbox = actions.sandbox_id.clone();
        instances
            .filter(move |c| Some(&c.sandbox_id) == sandbox.as_ref())
            .cloned()
            .collect::<Vec<_>>()
    };
    let regular_made = spec
        .containers
        .iter()
        .flat_map(|c| here(&c.name))
        .any(|c| matches!(c.state, ContainerState::Created | ContainerState::Running));
    regular_made
        || containers::init_containers(spec).last().is_none_or(|last| {
            here(&last.name).iter().any(|c| match c.state {
                ContainerState::Exited => restart::exit_code(c) == 0,
                ContainerState::Running => containers::is_sidecar(last),
                _ => false,
            })
        })
}

fn check_promises(pod: &Pod, seen: &Seen, actions: &PodActions) {
    let spec = pod.spec.as_ref().unwrap();
    let names = started(spec, actions);
    let unique: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(unique.len(), names.len(), "a container is started once");
    if pod.metadata.deletion_timestamp.is_some() {
        assert!(
            !actions.starts_anything() && !actions.create_sandbox,
            "a deleted pod starts nothing"
        );
    }
    assert!(!actions.kill_pod || actions.to_kill.is_empty());
    if !actions.regular_to_start.is_empty() {
        let fresh = actions.create_sandbox && containers::init_containers(spec).is_empty();
        assert!(
            fresh || (!actions.create_sandbox && init_done(spec, seen, actions)),
            "init first"
        );
    }
    for c in &seen.observed.containers {
        let killed = actions.kill_pod || actions.to_kill.iter().any(|k| k.id == c.id);
        let removed = actions.to_remove.iter().any(|r| r.id == c.id);
        if unique.contains(&*c.name) {
            match c.state {
                ContainerState::Exited => {}
                ContainerState::Created => assert!(removed, "{} could still come to life", c.id),
                _ => assert!(killed, "{} may run beside its successor", c.id),
            }
        }
    }
}

/// A runtime that does what it is told, under containers that do what they should.
fn carry_out(pod: &Pod, seen: &mut Seen, actions: &PodActions) {
    let spec = pod.spec.as_ref().unwrap();
    let names: Vec<String> = started(spec, actions)
        .into_iter()
        .map(str::to_owned)
        .collect();
    let counts: Vec<u32> = names
        .iter()
        .map(|n| next_restart_count(&seen.observed, n, None))
        .collect();
    for c in &mut seen.observed.containers {
        let may_run = matches!(c.state, ContainerState::Running | ContainerState::Unknown);
        let killed = actions.to_kill.iter().find(|k| k.id == c.id);
        if may_run && (actions.kill_pod || killed.is_some()) {
            c.state = ContainerState::Exited;
            c.exit = Some(ContainerExit {
                exit_code: 137,
                stopped_to_restart: killed.is_some_and(|k| k.mark),
                ..ContainerExit::default()
            });
        }
    }
    let gone = |id: &ContainerId| {
        actions.to_remove.iter().any(|r| r.id == *id) || actions.init_to_trim.contains(id)
    };
    seen.observed.containers.retain(|c| !gone(&c.id));
    if actions.kill_pod {
        seen.observed
            .sandboxes
            .iter_mut()
            .for_each(|s| s.ready = false);
    }
    if actions.create_sandbox {
        seen.observed.sandboxes.insert(
            0,
            ObservedSandbox {
                id: format!("s{}", actions.attempt).into(),
                ready: true,
                attempt: actions.attempt,
                created_at: 0,
                ips: vec!["10.0.0.2".into()],
                host_network: false,
                source: None,
            },
        );
    }
    for (name, count) in names.iter().zip(counts) {
        let hash = containers::find(spec, name).map(|c| container_hash_text(c.container));
        let sandbox_id = seen.observed.sandboxes[0].id.clone();
        seen.observed.containers.insert(
            0,
            ObservedContainer {
                id: format!("{name}-{count}").into(),
                name: name.as_str().into(),
                sandbox_id,
                state: ContainerState::Running,
                attempt: count,
                created_at: 0,
                started_at: 1,
                exit: None,
                image: "img".into(),
                image_ref: "img".into(),
                user: None,
                resources: None,
                memory: ContainerMemory {
                    hash,
                    restart_count: count,
                    ..ContainerMemory::default()
                },
                log_path: String::new(),
            },
        );
    }
}

fn live_on(pod: &Pod, seen: &mut Seen) {
    let spec = pod.spec.as_ref().unwrap();
    for c in &mut seen.observed.containers {
        let init = containers::init_containers(spec)
            .iter()
            .find(|i| i.name == *c.name);
        if c.is_running() && init.is_some_and(|i| !containers::is_sidecar(i)) {
            c.state = ContainerState::Exited;
            c.exit = Some(ContainerExit::default());
        }
        let good = Some(Verdict::Success);
        let verdicts = ContainerVerdicts {
            startup: good,
            liveness: good,
            readiness: good,
        };
        seen.verdicts.insert(c.id.clone(), verdicts);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn promises_hold_and_work_ends(pod_text in any_pod(), seen_text in any_sight()) {
        let pod = pod(&pod_text);
        let mut seen = seen(&pod, &seen_text);
        let mut trail = vec![seen_text.clone()];
        let mut done = false;
        for _ in 0..40 {
            let actions = decide(&pod, &seen);
            trail.push(render(&pod, &actions));
            check_promises(&pod, &seen, &actions);
            done = actions.is_done(&seen.observed);
            if done {
                break;
            }
            carry_out(&pod, &mut seen, &actions);
            live_on(&pod, &mut seen);
            let mut running = BTreeSet::new();
            let spec = pod.spec.as_ref().unwrap();
            let ours = seen.observed.running().filter(|c| containers::find(spec, &c.name).is_some());
            for c in ours {
                // What is seen at first may be wrong already; from there on it must not get worse.
                let twice = !running.insert(c.name.clone());
                prop_assert!(!(twice && trail.len() > 2), "{} runs twice: {trail:?}", c.name);
            }
        }
        prop_assert!(done, "{pod_text}: no rest: {trail:#?}");
    }
}
