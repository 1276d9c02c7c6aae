//! A small language for tests: pods and what the runtime holds of them, one line each.
//!
//! Pod: `never host deleted i:setup i:proxy* c:web/startup/live/ready/policy=Never/rule=In:3:Restart e:debug`
//! (`*` is a sidecar). Seen: `S1 S0! web:run web:exit1 setup:exit0/n=2/old/live=fail` (newest first;
//! `S1` is a ready sandbox of attempt 1, `S0!` one not ready, `-` without address, `h` in the
//! host's network; states are `made run exit<code> huh`).

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use krablet_pod::api::{
    Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, EphemeralContainer, Pod,
    PodSpec, Probe,
};
use krablet_pod::hash::container_hash_text;
use krablet_pod::marks;
use krablet_pod::observed::{
    ContainerExit, ContainerMemory, ContainerState, ObservedContainer, ObservedPod, ObservedSandbox,
};
use krablet_pod::{ContainerId, PodRef, SandboxId, Ticket};
use proptest::prelude::*;
use proptest::sample::select;

use crate::probe::{ContainerVerdicts, Verdict, Verdicts};
use crate::start::{StartError, StartErrors};

pub(crate) fn pod(text: &str) -> Pod {
    let mut spec = PodSpec::default();
    let mut meta = ObjectMeta {
        name: Some("p".into()),
        namespace: Some("ns".into()),
        uid: Some("u".into()),
        ..ObjectMeta::default()
    };
    for token in text.split_whitespace() {
        match token.split_once(':') {
            None => pod_word(token, &mut spec, &mut meta),
            Some(("i", rest)) => spec
                .init_containers
                .get_or_insert_default()
                .push(container(rest)),
            Some(("c", rest)) => spec.containers.push(container(rest)),
            Some(("e", rest)) => {
                let list = spec.ephemeral_containers.get_or_insert_default();
                list.push(EphemeralContainer {
                    name: rest.into(),
                    image: Some("img".into()),
                    ..EphemeralContainer::default()
                });
            }
            Some(other) => panic!("{other:?}"),
        }
    }
    Pod {
        metadata: meta,
        spec: Some(spec),
        status: None,
    }
}

fn pod_word(word: &str, spec: &mut PodSpec, meta: &mut ObjectMeta) {
    let (key, value) = word.split_once('=').unwrap_or((word, ""));
    match key {
        "always" => spec.restart_policy = Some("Always".into()),
        "never" => spec.restart_policy = Some("Never".into()),
        "onfailure" => spec.restart_policy = Some("OnFailure".into()),
        "host" => spec.host_network = Some(true),
        "deleted" => meta.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH)),
        "deletegrace" => meta.deletion_grace_period_seconds = Some(value.parse().unwrap()),
        "grace" => spec.termination_grace_period_seconds = Some(value.parse().unwrap()),
        "deadline" => spec.active_deadline_seconds = Some(value.parse().unwrap()),
        "generation" => meta.generation = Some(value.parse().unwrap()),
        "static" => {
            let source = (marks::CONFIG_SOURCE.to_owned(), "file".to_owned());
            meta.annotations = Some(BTreeMap::from([source]));
        }
        other => panic!("{other}"),
    }
}

pub(crate) fn container(text: &str) -> Container {
    let mut parts = text.split('/');
    let name = parts.next().unwrap();
    let mut container = Container {
        name: name.trim_end_matches('*').into(),
        image: Some("img".into()),
        restart_policy: name.ends_with('*').then(|| "Always".into()),
        ..Container::default()
    };
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let probe = || {
            Some(Probe {
                termination_grace_period_seconds: value.parse().ok(),
                ..Probe::default()
            })
        };
        match key {
            "startup" => container.startup_probe = probe(),
            "live" => container.liveness_probe = probe(),
            "ready" => container.readiness_probe = probe(),
            "image" => container.image = Some(value.into()),
            "policy" => container.restart_policy = Some(value.into()),
            "rule" => container
                .restart_policy_rules
                .get_or_insert_default()
                .push(rule(value)),
            other => panic!("{other}"),
        }
    }
    container
}

/// `In:1,2:Restart`.
fn rule(text: &str) -> ContainerRestartRule {
    let mut parts = text.split(':');
    let operator = parts.next().unwrap().to_owned();
    let codes = parts.next().unwrap().split(',');
    ContainerRestartRule {
        exit_codes: Some(ContainerRestartRuleOnExitCodes {
            operator,
            values: Some(codes.map(|c| c.parse().unwrap()).collect()),
        }),
        action: parts.next().unwrap().into(),
    }
}

/// What was seen, with the verdicts and start errors noted beside it.
pub(crate) struct Seen {
    pub observed: ObservedPod,
    pub verdicts: Verdicts,
    pub errors: StartErrors,
    /// Words that are no part of what the runtime holds (`terminal`, …).
    pub words: Vec<String>,
}

pub(crate) fn seen(pod: &Pod, text: &str) -> Seen {
    let mut result = Seen {
        observed: ObservedPod::absent(PodRef::of(pod), Ticket(1)),
        verdicts: Verdicts::new(),
        errors: StartErrors::new(),
        words: Vec::new(),
    };
    let tokens: Vec<&str> = text.split_whitespace().collect();
    for (at, token) in tokens.iter().enumerate() {
        if let Some(rest) = token.strip_prefix('S') {
            result.observed.sandboxes.push(sandbox(rest));
        } else if let Some((name, reason)) = token.strip_prefix('!').and_then(|t| t.split_once('='))
        {
            let reason: &'static str = reason.to_owned().leak();
            let message = format!("{name} cannot start");
            result
                .errors
                .insert(name.into(), StartError { reason, message });
        } else if let Some((name, rest)) = token.split_once(':') {
            let older = |t: &&&str| t.split_once(':').is_some_and(|(n, _)| n == name);
            let n = tokens[at + 1..].iter().filter(older).count() as u32;
            instance(&mut result, pod, name, rest, n);
        } else {
            result.words.push((*token).to_owned());
        }
    }
    result
}

fn sandbox(text: &str) -> ObservedSandbox {
    let attempt = text.trim_end_matches(['!', '-', 'h']);
    let host_network = text.contains('h');
    ObservedSandbox {
        id: format!("s{attempt}").into(),
        ready: !text.contains('!'),
        attempt: attempt.parse().unwrap(),
        created_at: 0,
        ips: if host_network || text.contains('-') {
            vec![]
        } else {
            vec!["10.0.0.1".into()]
        },
        host_network,
        source: None,
    }
}

fn instance(result: &mut Seen, pod: &Pod, name: &str, text: &str, older: u32) {
    let mut parts = text.split('/');
    let state = parts.next().unwrap();
    let exit_code: Option<i32> = state.strip_prefix("exit").map(|c| c.parse().unwrap());
    let spec = pod.spec.as_ref().unwrap();
    let init = spec.init_containers.iter().flatten();
    let hash = init
        .chain(&spec.containers)
        .find(|c| c.name == name)
        .map(container_hash_text);
    let newest_sandbox = result.observed.sandboxes.first().map(|s| s.id.clone());
    let mut container = ObservedContainer {
        id: ContainerId::from(""),
        name: name.into(),
        sandbox_id: newest_sandbox.unwrap_or_else(|| SandboxId::from("s0")),
        state: match state {
            "made" => ContainerState::Created,
            "run" => ContainerState::Running,
            "huh" => ContainerState::Unknown,
            _ => ContainerState::Exited,
        },
        attempt: older,
        created_at: i64::from(older) * 1_000_000_000,
        started_at: 1_500_000_000,
        exit: exit_code.map(|exit_code| ContainerExit {
            exit_code,
            reason: if exit_code == 0 { "Completed" } else { "Error" }.into(),
            started_at: 1_500_000_000,
            finished_at: 2_500_000_000,
            ..ContainerExit::default()
        }),
        image: Arc::from("img"),
        image_ref: Arc::from("img@sha256:1"),
        user: None,
        resources: None,
        memory: ContainerMemory {
            hash,
            restart_count: older,
            ..ContainerMemory::default()
        },
        log_path: String::new(),
    };
    let mut verdicts = ContainerVerdicts::default();
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let verdict = || match value {
            "ok" => Some(Verdict::Success),
            "fail" => Some(Verdict::Failure),
            _ => Some(Verdict::Unknown),
        };
        match key {
            "n" => container.memory.restart_count = value.parse().unwrap(),
            "sb" => container.sandbox_id = format!("s{value}").into(),
            "old" => container.memory.hash = Some("0ld".into()),
            "nohash" => container.memory.hash = None,
            "way" => container
                .exit
                .iter_mut()
                .for_each(|e| e.stopped_to_restart = true),
            "startup" => verdicts.startup = verdict(),
            "live" => verdicts.liveness = verdict(),
            "ready" => verdicts.readiness = verdict(),
            other => panic!("{other}"),
        }
    }
    container.id = format!("{name}-{}", container.memory.restart_count).into();
    result.verdicts.insert(container.id.clone(), verdicts);
    result.observed.containers.push(container);
}

/// A table of cases, one `pod | seen | expected` per line; lines that begin with `#` are remarks.
pub(crate) fn table(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let lines = text.lines().map(str::trim);
    let cases = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    cases.map(|line| {
        let (pod, rest) = line.split_once(" |").unwrap();
        let (seen, expected) = rest.split_once("| ").unwrap();
        (pod, seen.trim(), expected)
    })
}

/// Runs all cases and shows every one that differs, so that a rule's whole effect is seen at once.
pub(crate) fn check_all<T: AsRef<str>>(cases: impl IntoIterator<Item = (String, T, String)>) {
    let wrong: Vec<String> = cases
        .into_iter()
        .filter(|(_, expected, got)| expected.as_ref() != got)
        .map(|(case, expected, got)| {
            format!(
                "{case}\n  expected {:?}\n  got      {got:?}",
                expected.as_ref()
            )
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Sidecars and init containers of any kind, 0 to 3 of them.
fn init_lists() -> impl Strategy<Value = Vec<String>> {
    let options = select(vec![
        "",
        "*",
        "*/startup",
        "*/live",
        "/policy=Never",
        "/policy=OnFailure",
        "/policy=Never/rule=In:42:RestartAllContainers",
    ]);
    prop::collection::vec(options, 0..3).prop_map(|list| {
        let named = list.into_iter().zip(["x", "y", "z"]);
        named
            .map(|(options, name)| format!("i:{name}{options}"))
            .collect()
    })
}

fn regular_lists() -> impl Strategy<Value = Vec<String>> {
    let options = select(vec![
        "",
        "/live",
        "/startup",
        "/policy=Never",
        "/policy=Always",
        "/policy=Never/rule=In:1:Restart",
        "/policy=Never/rule=In:42:RestartAllContainers",
    ]);
    prop::collection::vec(options, 1..3).prop_map(|list| {
        let named = list.into_iter().zip(["a", "b", "c"]);
        named
            .map(|(options, name)| format!("c:{name}{options}"))
            .collect()
    })
}

/// A pod in the language of these tests.
pub(crate) fn any_pod() -> impl Strategy<Value = String> {
    let policy = select(vec!["always", "onfailure", "never"]);
    let rest = select(vec!["", "e:d", "deleted", "deleted e:d"]);
    (policy, rest, init_lists(), regular_lists()).prop_map(|(policy, rest, init, regular)| {
        format!("{policy} {rest} {} {}", init.join(" "), regular.join(" "))
    })
}

/// What may be seen of such a pod, likely or not.
pub(crate) fn any_sight() -> impl Strategy<Value = String> {
    let sandboxes = select(vec!["", "S0", "S0!", "S0-", "S1 S0!", "S1 S0", "S1! S0"]);
    let state = select(vec![
        "made",
        "run",
        "run",
        "run/old",
        "run/startup=ok",
        "run/startup=fail",
        "run/live=fail",
        "exit0",
        "exit0",
        "exit0/way",
        "exit1",
        "exit42",
        "huh",
        "run/sb=0",
        "exit0/sb=0",
        "made/sb=0",
        "huh/sb=0",
    ]);
    let name = select(vec!["a", "a", "b", "x", "x", "y", "d"]);
    let containers = prop::collection::vec((name, state), 0..7);
    (sandboxes, containers).prop_map(|(sandboxes, containers)| {
        let list: Vec<String> = containers
            .into_iter()
            .map(|(n, s)| format!("{n}:{s}"))
            .collect();
        format!("{sandboxes} {}", list.join(" "))
    })
}
