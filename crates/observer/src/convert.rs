//! From the runtime's messages to our words. Pure; nothing in here trusts the runtime to have
//! filled a field.

use std::collections::BTreeMap;
use std::net::IpAddr;

use krablet_cri::v1;
use krablet_pod::marks::{CONFIG_SOURCE, PodSource};
use krablet_pod::observed::{
    ContainerExit, ContainerMemory, ContainerState, ContainerUser, ObservedContainer, ObservedPod,
    ObservedSandbox, RuntimeResources,
};
use krablet_pod::{PodRef, PodUid, SandboxId, Ticket, labels};

use crate::message::LastWords;

/// What lists say of one pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Listed {
    pub pod: PodRef,
    pub sandboxes: Vec<v1::PodSandbox>,
    pub containers: Vec<v1::Container>,
}

/// Sorts full lists by pod. What carries no pod UID is none of ours.
pub(crate) fn by_pod(
    sandboxes: Vec<v1::PodSandbox>,
    containers: Vec<v1::Container>,
) -> BTreeMap<PodUid, Listed> {
    let mut pods = BTreeMap::new();
    for sandbox in sandboxes {
        if let Some(listed) = slot(&mut pods, &sandbox.labels) {
            listed.sandboxes.push(sandbox);
        }
    }
    for container in containers {
        if let Some(listed) = slot(&mut pods, &container.labels) {
            listed.containers.push(container);
        }
    }
    pods
}

fn slot<'a>(
    pods: &'a mut BTreeMap<PodUid, Listed>,
    labels: &BTreeMap<String, String>,
) -> Option<&'a mut Listed> {
    let pod = pod_of(labels)?;
    let empty = || Listed {
        pod: pod.clone(),
        sandboxes: Vec::new(),
        containers: Vec::new(),
    };
    Some(pods.entry(pod.uid.clone()).or_insert_with(empty))
}

/// The pod that labels name.
pub(crate) fn pod_of(of: &BTreeMap<String, String>) -> Option<PodRef> {
    let text = |key| of.get(key).map(String::as_str).unwrap_or_default();
    let uid = of.get(labels::POD_UID).filter(|uid| !uid.is_empty())?;
    Some(PodRef::new(
        uid.as_str(),
        text(labels::POD_NAMESPACE),
        text(labels::POD_NAME),
    ))
}

/// The pod an event is about.
pub(crate) fn pod_of_event(event: &v1::ContainerEventResponse) -> Option<PodUid> {
    let sandbox = event.pod_sandbox_status.as_ref()?;
    if let Some(pod) = pod_of(&sandbox.labels) {
        return Some(pod.uid);
    }
    let uid = &sandbox.metadata.as_ref()?.uid;
    (!uid.is_empty()).then(|| PodUid::from(uid.as_str()))
}

pub(crate) fn state(raw: i32) -> ContainerState {
    match v1::ContainerState::try_from(raw) {
        Ok(v1::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(v1::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(v1::ContainerState::ContainerExited) => ContainerState::Exited,
        Ok(v1::ContainerState::ContainerUnknown) | Err(_) => ContainerState::Unknown,
    }
}

pub(crate) fn is_ready(raw: i32) -> bool {
    raw == v1::PodSandboxState::SandboxReady as i32
}

/// A container from its full status. `last` was read elsewhere, of one that has ended.
pub(crate) fn container(
    status: v1::ContainerStatus,
    sandbox_id: &str,
    last: LastWords,
) -> ObservedContainer {
    let state = state(status.state);
    let metadata = status.metadata.unwrap_or_default();
    let exit = (state == ContainerState::Exited).then_some(ContainerExit {
        exit_code: status.exit_code,
        // The interface does not tell; a signal shows as 128 + n in the code.
        signal: 0,
        reason: status.reason,
        message: joined(status.message, last.message),
        started_at: status.started_at,
        finished_at: status.finished_at,
        stopped_to_restart: last.stopped_to_restart,
    });
    let started = state != ContainerState::Created;
    ObservedContainer {
        id: status.id.into(),
        name: container_name(&status.labels, &metadata.name).into(),
        sandbox_id: sandbox_id.into(),
        state,
        attempt: metadata.attempt,
        created_at: status.created_at,
        started_at: if started { status.started_at } else { 0 },
        exit,
        image: status.image.unwrap_or_default().image.into(),
        image_ref: status.image_ref.into(),
        user: status.user.and_then(user),
        resources: status.resources.and_then(resources),
        memory: memory(&status.annotations),
        log_path: status.log_path,
    }
}

fn user(told: v1::ContainerUser) -> Option<ContainerUser> {
    let linux = told.linux?;
    Some(ContainerUser {
        uid: linux.uid,
        gid: linux.gid,
        supplemental_groups: linux.supplemental_groups,
    })
}

fn resources(told: v1::ContainerResources) -> Option<RuntimeResources> {
    let linux = told.linux?;
    let resources = RuntimeResources {
        cpu_period: linux.cpu_period,
        cpu_quota: linux.cpu_quota,
        cpu_shares: linux.cpu_shares,
        memory_limit: linux.memory_limit_in_bytes,
    };
    (resources != RuntimeResources::default()).then_some(resources)
}

/// A container as far as a list tells: times, exit, user and resources are missing.
fn listed_container(listed: &v1::Container) -> ObservedContainer {
    let metadata = listed.metadata.clone().unwrap_or_default();
    ObservedContainer {
        id: listed.id.as_str().into(),
        name: container_name(&listed.labels, &metadata.name).into(),
        sandbox_id: listed.pod_sandbox_id.as_str().into(),
        state: state(listed.state),
        attempt: metadata.attempt,
        created_at: listed.created_at,
        started_at: 0,
        exit: None,
        image: listed.image.clone().unwrap_or_default().image.into(),
        image_ref: listed.image_ref.as_str().into(),
        user: None,
        resources: None,
        memory: memory(&listed.annotations),
        log_path: String::new(),
    }
}

fn container_name<'a>(of: &'a BTreeMap<String, String>, metadata: &'a str) -> &'a str {
    of.get(labels::CONTAINER_NAME).map_or(metadata, |n| n)
}

/// The runtime's word and the container's own, as the kubelet joins them.
fn joined(runtime: String, own: String) -> String {
    match (runtime.is_empty(), own.is_empty()) {
        (_, true) => runtime,
        (true, false) => own,
        (false, false) => format!("{runtime}: {own}"),
    }
}

pub(crate) fn memory(of: &BTreeMap<String, String>) -> ContainerMemory {
    let text = |key| of.get(key).filter(|v: &&String| !v.is_empty()).cloned();
    let number = |key| of.get(key).and_then(|v| v.parse().ok());
    ContainerMemory {
        hash: text(labels::CONTAINER_HASH),
        restart_count: of
            .get(labels::CONTAINER_RESTART_COUNT)
            .and_then(|v| v.parse().ok())
            .unwrap_or(0),
        termination_message_path: text(labels::TERMINATION_MESSAGE_PATH),
        termination_message_policy: text(labels::TERMINATION_MESSAGE_POLICY),
        pre_stop: text(labels::PRE_STOP_HANDLER),
        ports: text(labels::CONTAINER_PORTS),
        resources: text(labels::CONTAINER_RESOURCES),
        deletion_grace_seconds: number(labels::POD_DELETION_GRACE),
        termination_grace_seconds: number(labels::POD_TERMINATION_GRACE),
    }
}

/// A sandbox as a list tells, with what is known of it from before: addresses and the kind of
/// network never change in a sandbox's life.
pub(crate) fn listed_sandbox(
    listed: &v1::PodSandbox,
    known: Option<&ObservedSandbox>,
) -> ObservedSandbox {
    ObservedSandbox {
        id: listed.id.as_str().into(),
        ready: is_ready(listed.state),
        attempt: listed.metadata.as_ref().map_or(0, |m| m.attempt),
        created_at: listed.created_at,
        ips: known.map(|k| k.ips.clone()).unwrap_or_default(),
        host_network: known.is_some_and(|k| k.host_network),
        source: source(&listed.annotations),
    }
}

fn source(annotations: &BTreeMap<String, String>) -> Option<PodSource> {
    PodSource::parse(annotations.get(CONFIG_SOURCE)?)
}

/// A sandbox from its full status.
pub(crate) fn sandbox(status: v1::PodSandboxStatus) -> ObservedSandbox {
    let options = status
        .linux
        .and_then(|linux| linux.namespaces)
        .and_then(|namespaces| namespaces.options);
    let host_network = options.is_some_and(|o| o.network == i32::from(v1::NamespaceMode::Node));
    let network = status.network.unwrap_or_default();
    let additional = network.additional_ips.into_iter().map(|ip| ip.ip);
    let ips = std::iter::once(network.ip)
        .chain(additional)
        .filter(|ip| !host_network && ip.parse::<IpAddr>().is_ok())
        .collect();
    ObservedSandbox {
        id: SandboxId::from(status.id),
        ready: is_ready(status.state),
        attempt: status.metadata.map_or(0, |m| m.attempt),
        created_at: status.created_at,
        ips,
        host_network,
        source: source(&status.annotations),
    }
}

/// The pod as it is kept, with both lists in their order: newest first. Attempts only grow; the time of creation comes
/// from a clock that may have been set back, so it decides between equals alone.
///
/// Most pods have one of each for good: the room that a list was given to grow into is more than it holds.
pub(crate) fn sort(pod: &mut ObservedPod) {
    for sandbox in &mut pod.sandboxes {
        sandbox.ips.shrink_to_fit();
    }
    pod.sandboxes.shrink_to_fit();
    pod.containers.shrink_to_fit();
    pod.sandboxes.sort_by(|a, b| {
        let newest_first = (b.attempt, b.created_at).cmp(&(a.attempt, a.created_at));
        newest_first.then_with(|| b.id.cmp(&a.id))
    });
    pod.containers.sort_by(|a, b| {
        let newest_first = (b.attempt, b.created_at).cmp(&(a.attempt, a.created_at));
        newest_first.then_with(|| b.id.cmp(&a.id))
    });
}

/// Whether a list shows what a view holds: the same objects in the same states.
pub(crate) fn matches(listed: &Listed, view: &ObservedPod) -> bool {
    listed.sandboxes.len() == view.sandboxes.len()
        && listed.containers.len() == view.containers.len()
        && listed.sandboxes.iter().all(|listed| {
            let known = view.sandboxes.iter().find(|s| s.id.as_str() == listed.id);
            known.is_some_and(|s| s.ready == is_ready(listed.state))
        })
        && listed.containers.iter().all(|listed| {
            let known = view.containers.iter().find(|c| c.id.as_str() == listed.id);
            known.is_some_and(|c| c.state == state(listed.state))
        })
}

/// A pod as far as a list tells, filled from an older view where the object's state is still the
/// same. Exited containers nobody could ask about have no exit in it.
pub(crate) fn from_list(
    listed: &Listed,
    view: Option<&ObservedPod>,
    ticket: Ticket,
) -> ObservedPod {
    let known_container = |listed: &v1::Container| {
        let known = view?
            .containers
            .iter()
            .find(|c| c.id.as_str() == listed.id)?;
        (known.state == state(listed.state)).then(|| known.clone())
    };
    let known_sandbox =
        |id: &str| view.and_then(|v| v.sandboxes.iter().find(|s| s.id.as_str() == id));
    let mut pod = ObservedPod {
        pod: listed.pod.clone(),
        ticket,
        sandboxes: listed
            .sandboxes
            .iter()
            .map(|s| listed_sandbox(s, known_sandbox(&s.id)))
            .collect(),
        containers: listed
            .containers
            .iter()
            .map(|c| known_container(c).unwrap_or_else(|| listed_container(c)))
            .collect(),
    };
    sort(&mut pod);
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(message: &str) -> LastWords {
        LastWords {
            message: message.to_owned(),
            ..LastWords::default()
        }
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        owned.collect()
    }

    fn exited(message: &str) -> v1::ContainerStatus {
        v1::ContainerStatus {
            id: "c1".to_owned(),
            metadata: Some(v1::ContainerMetadata {
                name: "from-metadata".to_owned(),
                attempt: 2,
            }),
            state: v1::ContainerState::ContainerExited.into(),
            created_at: 10,
            started_at: 20,
            finished_at: 30,
            exit_code: 3,
            reason: "Error".to_owned(),
            message: message.to_owned(),
            labels: map(&[(labels::CONTAINER_NAME, "web")]),
            annotations: map(&[
                (labels::CONTAINER_HASH, "ab12"),
                (labels::CONTAINER_RESTART_COUNT, "7"),
                (labels::POD_TERMINATION_GRACE, "30"),
                (labels::POD_DELETION_GRACE, "soon"),
                (labels::PRE_STOP_HANDLER, ""),
            ]),
            ..Default::default()
        }
    }

    #[test]
    fn an_exited_container() {
        let c = container(exited(""), "s1", words("bye"));
        assert_eq!(
            (&*c.name, c.attempt, c.state),
            ("web", 2, ContainerState::Exited)
        );
        let exit = c.exit.unwrap();
        assert_eq!(
            (exit.exit_code, &*exit.reason, &*exit.message),
            (3, "Error", "bye")
        );
        assert_eq!((exit.started_at, exit.finished_at), (20, 30));
        assert_eq!(c.memory.hash.as_deref(), Some("ab12"));
        assert_eq!(c.memory.restart_count, 7);
        assert_eq!(c.memory.termination_grace_seconds, Some(30));
        // What cannot be read is as if it was not written.
        assert_eq!(c.memory.deletion_grace_seconds, None);
        assert_eq!(c.memory.pre_stop, None);
    }

    #[test]
    fn whom_it_runs_as_where_the_runtime_tells() {
        let told = |user| {
            let status = v1::ContainerStatus { user, ..exited("") };
            container(status, "s1", LastWords::default()).user
        };
        assert_eq!(told(None), None);
        assert_eq!(told(Some(v1::ContainerUser { linux: None })), None);
        let linux = v1::LinuxContainerUser {
            uid: 7,
            gid: 8,
            supplemental_groups: vec![8, 9],
        };
        let expected = ContainerUser {
            uid: 7,
            gid: 8,
            supplemental_groups: vec![8, 9],
        };
        let linux = Some(linux);
        assert_eq!(told(Some(v1::ContainerUser { linux })), Some(expected));
    }

    #[test]
    fn messages_are_joined_as_upstream_does() {
        let message = |runtime: &str, own: &str| {
            let c = container(exited(runtime), "s1", words(own));
            c.exit.unwrap().message
        };
        assert_eq!(message("", ""), "");
        assert_eq!(message("oom", ""), "oom");
        assert_eq!(message("", "bye"), "bye");
        assert_eq!(message("oom", "bye"), "oom: bye");
    }

    #[test]
    fn states_outside_the_interface_are_unknown() {
        assert_eq!(state(0), ContainerState::Created);
        assert_eq!(state(1), ContainerState::Running);
        assert_eq!(state(2), ContainerState::Exited);
        assert_eq!(state(3), ContainerState::Unknown);
        assert_eq!(state(99), ContainerState::Unknown);
        assert!(is_ready(0) && !is_ready(1) && !is_ready(7));
    }

    #[test]
    fn addresses_of_a_sandbox() {
        let status = |ip: &str, more: &[&str], mode: v1::NamespaceMode| v1::PodSandboxStatus {
            network: Some(v1::PodSandboxNetworkStatus {
                ip: ip.to_owned(),
                additional_ips: more
                    .iter()
                    .map(|ip| v1::PodIp {
                        ip: (*ip).to_owned(),
                    })
                    .collect(),
            }),
            linux: Some(v1::LinuxPodSandboxStatus {
                namespaces: Some(v1::Namespace {
                    options: Some(v1::NamespaceOption {
                        network: mode.into(),
                        ..Default::default()
                    }),
                }),
            }),
            ..Default::default()
        };
        let pod = v1::NamespaceMode::Pod;
        assert_eq!(
            sandbox(status("10.0.0.1", &["fd00::1"], pod)).ips,
            ["10.0.0.1", "fd00::1"]
        );
        assert!(sandbox(status("", &[], pod)).ips.is_empty());
        let host = sandbox(status("10.0.0.1", &[], v1::NamespaceMode::Node));
        assert!(host.host_network && host.ips.is_empty());
    }

    fn listed_one(uid: &str, id: &str, at: i64, state: v1::ContainerState) -> v1::Container {
        v1::Container {
            id: id.to_owned(),
            created_at: at,
            state: state.into(),
            labels: map(&[(labels::POD_UID, uid), (labels::CONTAINER_NAME, "web")]),
            ..Default::default()
        }
    }

    #[test]
    fn lists_are_sorted_by_pod_and_strangers_left_out() {
        use v1::ContainerState::{ContainerExited, ContainerRunning};
        let pods = by_pod(
            vec![v1::PodSandbox {
                id: "s".to_owned(),
                labels: map(&[
                    (labels::POD_UID, "u1"),
                    (labels::POD_NAMESPACE, "ns"),
                    (labels::POD_NAME, "web"),
                ]),
                ..Default::default()
            }],
            vec![
                listed_one("u1", "c1", 1, ContainerExited),
                listed_one("u1", "c2", 2, ContainerRunning),
                listed_one("", "c3", 3, ContainerRunning),
                listed_one("u2", "c4", 3, ContainerRunning),
            ],
        );
        let shape: Vec<_> = pods
            .values()
            .map(|l| (l.pod.to_string(), l.sandboxes.len(), l.containers.len()))
            .collect();
        assert_eq!(shape, [("ns/web".to_owned(), 1, 2), ("/".to_owned(), 0, 1)]);

        let listed = &pods[&PodUid::from("u1")];
        let seen = from_list(listed, None, Ticket(4));
        let ids: Vec<_> = seen.containers.iter().map(|c| c.id.as_str()).collect();
        assert_eq!(ids, ["c2", "c1"], "newest first");
        assert!(matches(listed, &seen));
        let mut other = seen.clone();
        other.containers[0].state = ContainerState::Exited;
        assert!(!matches(listed, &other));
        other.containers.remove(0);
        assert!(!matches(listed, &other));
    }

    #[test]
    fn order_is_by_attempt_then_newest_first_then_id() {
        let one = |id: &str, at, attempt| {
            let mut c = listed_container(&listed_one(
                "u",
                id,
                at,
                v1::ContainerState::ContainerExited,
            ));
            c.attempt = attempt;
            c
        };
        let mut pod = ObservedPod::absent(PodRef::new("u", "", ""), Ticket(1));
        pod.containers = vec![
            one("a", 1, 9),
            one("b", 5, 0),
            one("c", 5, 1),
            one("d", 5, 1),
        ];
        pod.containers.reserve(64);
        pod.sandboxes.reserve(64);
        sort(&mut pod);
        let room = (pod.containers.capacity(), pod.sandboxes.capacity());
        assert_eq!(room, (4, 0));
        let ids: Vec<_> = pod.containers.iter().map(|c| c.id.as_str()).collect();
        assert_eq!(ids, ["a", "d", "c", "b"]);
    }

    #[test]
    fn the_pod_of_an_event() {
        let event = |status| v1::ContainerEventResponse {
            pod_sandbox_status: status,
            ..Default::default()
        };
        assert_eq!(pod_of_event(&event(None)), None);
        let by_label = v1::PodSandboxStatus {
            labels: map(&[(labels::POD_UID, "u1")]),
            ..Default::default()
        };
        assert_eq!(pod_of_event(&event(Some(by_label))), Some("u1".into()));
        let by_metadata = v1::PodSandboxStatus {
            metadata: Some(v1::PodSandboxMetadata {
                uid: "u2".to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(pod_of_event(&event(Some(by_metadata))), Some("u2".into()));
    }

    #[test]
    fn a_clock_set_back_does_not_make_an_older_one_the_newest() {
        let sandbox = |id: &str, attempt: u32, at: i64| v1::PodSandbox {
            id: id.to_owned(),
            created_at: at,
            metadata: Some(v1::PodSandboxMetadata {
                attempt,
                ..Default::default()
            }),
            ..Default::default()
        };
        let container = |id: &str, attempt: u32, at: i64| v1::Container {
            metadata: Some(v1::ContainerMetadata {
                name: "web".to_owned(),
                attempt,
            }),
            ..listed_one("u", id, at, v1::ContainerState::ContainerExited)
        };
        let listed = Listed {
            pod: PodRef::new("u", "ns", "web"),
            sandboxes: vec![sandbox("before", 0, 900), sandbox("after", 1, 100)],
            containers: vec![container("before", 3, 900), container("after", 4, 100)],
        };
        let seen = from_list(&listed, None, Ticket(1));
        assert_eq!(seen.sandboxes[0].id.as_str(), "after");
        assert_eq!(seen.containers[0].id.as_str(), "after");
    }
}
