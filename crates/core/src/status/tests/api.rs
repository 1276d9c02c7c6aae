//! One line per rule: the status at the API server, ours, and what is written.
//! `Running Ready=True` is a phase with conditions, `!Evicted` a reason; `-` stands for no phase.

use krablet_pod::marks::CONFIG_MIRROR;
use serde_json::json;

use super::*;
use crate::status::containers::whole_seconds;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// Each condition has changed at the given second.
fn status(text: &str, second: i64) -> PodStatus {
    let mut status = PodStatus::default();
    for word in text.split_whitespace() {
        if let Some((type_, value)) = word.split_once('=') {
            let condition = json!({
                "type": type_,
                "status": value,
                "lastTransitionTime": at(second).to_string(),
            });
            let list = status.conditions.get_or_insert_default();
            list.push(serde_json::from_value(condition).unwrap());
        } else if let Some(reason) = word.strip_prefix('!') {
            status.reason = Some(reason.into());
        } else if word != "-" {
            status.phase = Some(word.into());
        }
    }
    status
}

fn api_pod(status: PodStatus) -> Pod {
    Pod {
        status: Some(status),
        ..Pod::default()
    }
}

fn text(status: &PodStatus) -> String {
    let phase = status.phase.clone().unwrap_or("-".into());
    let reason = status.reason.iter().map(|r| format!("!{r}"));
    let conditions = status.conditions.iter().flatten().map(|c| {
        let time = c.last_transition_time.as_ref().map(|t| t.0.as_second());
        let reason = c.reason.as_deref();
        let reason = reason.map(|r| format!("({r})")).unwrap_or_default();
        format!("{}={}{reason}@{}", c.type_, c.status, time.unwrap_or(-1))
    });
    let parts: Vec<String> = [phase]
        .into_iter()
        .chain(reason)
        .chain(conditions)
        .collect();
    parts.join(" ")
}

/// The API server's conditions are of second 1, ours of second 2, and now it is second 3.
fn check_merge(could_run: bool, cases: &str) {
    check_all(table(cases).map(|(api, ours, expected)| {
        let merged = merge_for_api(&MergeInputs {
            api_pod: &api_pod(status(api, 1)),
            ours: &status(ours, 2),
            could_have_running_containers: could_run,
            now: at(3),
        });
        (format!("{api} | {ours}"), expected, text(&merged))
    }));
}

#[test]
fn what_is_not_ours_stays_where_it_is() {
    check_merge(
        true,
        r"
        - | Pending Ready=False | Pending Ready=False@2
        Pending Gate=True Ready=False | Running Ready=True Gate=False | Running Gate=True@1 Ready=True@2
        Running Ready=True Gate=True | Running Ready=False Initialized=True | Running Ready=False@2 Gate=True@1 Initialized=True@2
        Running PodResizePending=True Ready=True | Running Ready=True | Running Ready=True@2
        Pending | Running Foreign=True | Running
        ",
    );
}

#[test]
fn an_end_is_told_when_nothing_can_run_any_more() {
    check_merge(
        true,
        r"
        Running Ready=True | Failed !Evicted Ready=False DisruptionTarget=True | Running Ready=False@2
        Running !Why | Succeeded | Running !Why
        Failed !Old | Failed !New | Failed !New
        ",
    );
    check_merge(
        false,
        r"
        Running Ready=True | Failed !Evicted Ready=False DisruptionTarget=True | Failed !Evicted Ready=False@2 DisruptionTarget=True@3
        Running DisruptionTarget=True | Failed DisruptionTarget=True | Failed DisruptionTarget=True@1
        Running DisruptionTarget=False Gate=True | Failed DisruptionTarget=True | Failed DisruptionTarget=True@3 Gate=True@1
        Running | Running DisruptionTarget=True | Running
        Failed DisruptionTarget=True | Failed | Failed DisruptionTarget=True@1
        ",
    );
}

#[test]
fn an_end_is_never_taken_back_and_never_ready() {
    check_merge(
        false,
        r"
        Failed !Lost | Running Ready=False | Failed !Lost Ready=False@2
        Running | Succeeded Ready=True ContainersReady=True | Succeeded Ready=False(PodCompleted)@3 ContainersReady=False(PodCompleted)@3
        Failed | Running Ready=True | Failed Ready=False(PodFailed)@3 ContainersReady=False(PodFailed)@3
        Running | Failed Ready=False ContainersReady=True | Failed Ready=False(PodFailed)@2 ContainersReady=False(PodFailed)@3
        ",
    );
}

/// `main c1 x2 run`: the container's name, its id or `-`, its restarts, its state.
fn container(text: &str) -> ContainerStatus {
    let [name, id, restarts, state] = words(text);
    let id = Some(id).filter(|id| *id != "-");
    let state = match state {
        "run" => json!({"running": {}}),
        "end" => json!({"terminated": {"exitCode": 1}}),
        _ => json!({"waiting": {}}),
    };
    let restarts: i32 = restarts.trim_start_matches('x').parse().unwrap();
    serde_json::from_value(json!({
        "name": name, "image": "", "imageID": "", "ready": false,
        "containerID": id, "restartCount": restarts, "state": state,
    }))
    .unwrap()
}

fn words(text: &str) -> [&str; 4] {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.try_into().unwrap()
}

fn container_text(status: &ContainerStatus) -> String {
    let id = status.container_id.as_deref().unwrap_or("-");
    let state = match &status.state {
        Some(state) if state.running.is_some() => "run",
        Some(state) if state.terminated.is_some() => "end",
        _ => "wait",
    };
    format!("{} {id} x{} {state}", status.name, status.restart_count)
}

#[test]
fn what_was_told_of_containers_stays() {
    let cases = r"
        a c1 x2 run | a c2 x1 run | a c2 x2 run
        a c1 x1 end | a c2 x2 run | a c2 x2 run
        a c1 x1 end | a c1 x1 end | a c1 x1 end
        a c1 x3 end | a - x0 wait | a c1 x3 end
        a c1 x0 run | a - x0 wait | a - x0 wait
        a - x0 end | a - x0 wait | a - x0 wait
        b c1 x5 end | a - x0 wait | a - x0 wait
        ";
    check_containers("Running", cases);
    // In a pod that was told to be over nothing goes on, whatever this agent remembers.
    let cases = r"
        a - x0 end | a - x0 wait | a - x0 end
        a c1 x1 end | a c2 x2 run | a c1 x1 end
        a c1 x1 end | a c2 x2 end | a c2 x2 end
        a - x0 wait | a - x0 wait | a - x0 wait
        ";
    check_containers("Failed", cases);
}

fn check_containers(told: &str, cases: &str) {
    type List = fn(&mut PodStatus) -> &mut Option<Vec<ContainerStatus>>;
    let lists: [List; 2] = [
        |status| &mut status.container_statuses,
        |status| &mut status.init_container_statuses,
    ];
    for list in lists {
        let of = |text: &str| {
            let mut status = PodStatus::default();
            *list(&mut status) = Some(vec![container(text)]);
            status
        };
        check_all(table(cases).map(|(api, ours, expected)| {
            let api_status = PodStatus {
                phase: Some(told.to_owned()),
                ..of(api)
            };
            let mut merged = merge_for_api(&MergeInputs {
                api_pod: &api_pod(api_status),
                ours: &of(ours),
                could_have_running_containers: true,
                now: at(3),
            });
            let merged = list(&mut merged).take().unwrap_or_default();
            let merged: Vec<String> = merged.iter().map(container_text).collect();
            (format!("{api} | {ours}"), expected, merged.join(", "))
        }));
    }
}

#[test]
fn a_start_that_was_told_stays() {
    let of = |second: Option<i64>| PodStatus {
        start_time: second.map(|s| whole_seconds(at(s))),
        ..PodStatus::default()
    };
    for (api, ours, expected) in [
        (None, None, None),
        (None, Some(2), Some(2)),
        (Some(1), None, Some(1)),
        (Some(1), Some(2), Some(1)),
    ] {
        let merged = merge_for_api(&MergeInputs {
            api_pod: &api_pod(of(api)),
            ours: &of(ours),
            could_have_running_containers: true,
            now: at(3),
        });
        assert_eq!(merged, of(expected), "{api:?} {ours:?}");
    }
}

#[test]
fn ends_are_held_back_while_something_could_run() {
    for (api, ours, could_run, held_back) in [
        ("Running", "Failed", true, true),
        ("Running", "Succeeded", true, true),
        ("-", "Failed", true, true),
        ("Running", "Failed", false, false),
        ("Running", "Running", true, false),
        ("Failed", "Failed", true, false),
        ("Failed", "Running", true, false),
    ] {
        let inputs = MergeInputs {
            api_pod: &api_pod(status(api, 1)),
            ours: &status(ours, 2),
            could_have_running_containers: could_run,
            now: at(3),
        };
        assert_eq!(is_held_back(&inputs), held_back, "{api} {ours} {could_run}");
    }
}

#[test]
fn claims_are_not_ours() {
    let claims = |names: &[&str]| -> PodStatus {
        let list: Vec<_> = names.iter().map(|n| json!({"name": n})).collect();
        serde_json::from_value(json!({"resourceClaimStatuses": list})).unwrap()
    };
    let merged = merge_for_api(&MergeInputs {
        api_pod: &api_pod(claims(&["a"])),
        ours: &claims(&["b"]),
        could_have_running_containers: false,
        now: at(0),
    });
    assert_eq!(merged, claims(&["a"]));
    assert!(!needs_update(&claims(&["a"]), &claims(&["b"])));
}

#[test]
fn only_differences_in_our_words_need_an_update() {
    check_all(
        table(
            r"
            Running Ready=True | Running Ready=True | no
            Running Ready=True Gate=True | Running Ready=True | no
            Running Ready=True Initialized=True | Running Initialized=True Ready=True | no
            Pending Ready=True | Running Ready=True | yes
            Running Ready=False | Running Ready=True | yes
            Running | Running Ready=True | yes
            Running Ready=True | Running | yes
            Running DisruptionTarget=True | Running | yes
            Running !Why | Running | yes
            - | - | no
            ",
        )
        .map(|(api, ours, expected)| {
            let needed = needs_update(&status(api, 1), &status(ours, 2));
            let got = if needed { "yes" } else { "no" };
            (format!("{api} | {ours}"), expected, got.to_owned())
        }),
    );
}

/// The two say the same; the second as the API server gives it back.
#[test]
fn what_the_server_gives_back_is_what_it_was_given() {
    let of = |value| serde_json::from_value::<PodStatus>(value).unwrap();
    let container = |name: &str| {
        json!({"name": name, "ready": true, "restartCount": 0, "image": "", "imageID": "",
            "state": {"waiting": {}}})
    };
    let ours = of(json!({
        "phase": "Pending",
        "reason": "",
        "observedGeneration": 0,
        "startTime": "2020-01-01T00:00:00.5Z",
        "podIPs": [],
        "allocatedResources": {},
        "resources": {"limits": {"cpu": "0.5", "memory": "1024Mi"}, "requests": {}},
        "containerStatuses": [container("b"), container("a")],
    }));
    let mut b = container("b");
    b["lastState"] = json!({});
    let given_back = of(json!({
        "phase": "Pending",
        "startTime": "2020-01-01T00:00:00Z",
        "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}},
        "containerStatuses": [container("a"), b],
    }));
    assert!(!needs_update(&given_back, &ours));
    // The order of containers is patched, for the list is one value to the server.
    let patch = crate::patch::pod_status_patch("u", None, &given_back, &ours).unwrap();
    let changed: Vec<&String> = patch["status"].as_object().unwrap().keys().collect();
    assert_eq!(changed, ["containerStatuses"]);
    // Waiting for no told reason is not the same as no state.
    let mut stateless = ours.clone();
    for container in stateless.container_statuses.iter_mut().flatten() {
        container.state = None;
    }
    assert!(needs_update(&stateless, &ours));
}

#[test]
fn ready_and_over_are_urgent() {
    check_all(
        table(
            r"
            - | Pending Ready=False | Queued
            Pending | Pending Ready=False | Queued
            Pending | Pending PodReadyToStartContainers=True | Beginning
            Pending Ready=False | Running Ready=False | Normal
            Running Ready=False | Running Ready=True | Urgent
            Running Ready=True | Running Ready=False | Urgent
            Running Ready=False | Pending Ready=False | Normal
            Running | Succeeded | Urgent
            Succeeded | Succeeded | Normal
            Succeeded Ready=False | Running Ready=False | Normal
            ",
        )
        .map(|(api, ours, expected)| {
            let got = urgency(Some(&status(api, 1)), &status(ours, 2), false);
            (format!("{api} | {ours}"), expected, format!("{got:?}"))
        }),
    );
    // Of one that was never told of, only what differs from nothing.
    for (ours, expected) in [
        ("Pending Ready=False", Urgency::Queued),
        ("Pending PodReadyToStartContainers=True", Urgency::Beginning),
        ("Running Ready=True", Urgency::Urgent),
        ("Failed", Urgency::Urgent),
    ] {
        assert_eq!(urgency(None, &status(ours, 2), false), expected, "{ours}");
    }
}

#[test]
fn a_pod_has_only_begun_until_something_ran_or_failed() {
    let waiting =
        |reason: &str| json!({"state": {"waiting": {"reason": reason}}, "restartCount": 0});
    let running = json!({"state": {"running": {}}, "restartCount": 0});
    let ended = json!({"state": {"terminated": {"exitCode": 0}}, "restartCount": 0});
    let mut restarted = waiting("ContainerCreating");
    restarted["restartCount"] = json!(1);
    for (list, container, expected) in [
        (
            "containerStatuses",
            waiting("ContainerCreating"),
            Urgency::Beginning,
        ),
        (
            "containerStatuses",
            waiting("PodInitializing"),
            Urgency::Beginning,
        ),
        (
            "containerStatuses",
            waiting("ErrImagePull"),
            Urgency::Normal,
        ),
        ("containerStatuses", restarted, Urgency::Normal),
        (
            "initContainerStatuses",
            waiting("PodInitializing"),
            Urgency::Beginning,
        ),
        ("initContainerStatuses", running, Urgency::Normal),
        ("initContainerStatuses", ended, Urgency::Normal),
    ] {
        let mut container = container;
        for (field, value) in [("name", "c"), ("image", ""), ("imageID", "")] {
            container[field] = json!(value);
        }
        container["ready"] = json!(false);
        let text = container.to_string();
        let sandbox = json!([{"type": "PodReadyToStartContainers", "status": "True"}]);
        let mut status = json!({"phase": "Pending", "conditions": sandbox, list: [container]});
        let begun: PodStatus = serde_json::from_value(status.clone()).unwrap();
        assert_eq!(urgency(None, &begun, false), expected, "{list} {text}");
        // Without a sandbox nothing has begun; what has failed is told all the same.
        status["conditions"] = json!([]);
        let queued = serde_json::from_value(status).unwrap();
        let expected = match expected {
            Urgency::Beginning => Urgency::Queued,
            other => other,
        };
        assert_eq!(urgency(None, &queued, false), expected, "{list} {text}");
    }
    let refused = PodStatus {
        phase: Some("Pending".into()),
        reason: Some("UnexpectedAdmissionError".into()),
        ..PodStatus::default()
    };
    assert_eq!(urgency(None, &refused, false), Urgency::Normal);
}

#[test]
fn who_comes_up_or_goes_has_more_to_say_soon() {
    let running = json!({"running": {}});
    let ended = json!({"terminated": {"exitCode": 0}});
    let with = |ready: &str, state: &serde_json::Value, restarts: u32| -> PodStatus {
        let container = json!({
            "name": "c", "image": "", "imageID": "", "ready": false, "state": state, "restartCount": restarts,
        });
        let conditions = json!([{"type": "Ready", "status": ready}]);
        let status =
            json!({"phase": "Running", "conditions": conditions, "containerStatuses": [container]});
        serde_json::from_value(status).unwrap()
    };
    let fresh = status("Pending Ready=False", 1);
    let up = with("True", &running, 0);
    let newer = |status: &PodStatus| PodStatus {
        observed_generation: Some(2),
        ..status.clone()
    };
    for (api, ours, leaving, expected) in [
        (
            &fresh,
            with("False", &running, 0),
            false,
            Urgency::Beginning,
        ),
        (&fresh, with("False", &running, 1), false, Urgency::Normal),
        (&fresh, with("False", &ended, 0), false, Urgency::Normal),
        (&fresh, with("True", &running, 0), false, Urgency::Urgent),
        (&up, with("False", &running, 0), false, Urgency::Urgent),
        (&up, with("False", &running, 0), true, Urgency::Urgent),
        // The API server's word for it that the pod is to go has changed nothing but its generation.
        (&up, newer(&up), true, Urgency::Leaving),
        (&up, newer(&up), false, Urgency::Normal),
        (
            &up,
            newer(&with("True", &running, 1)),
            true,
            Urgency::Normal,
        ),
        (&up, with("False", &ended, 0), false, Urgency::Urgent),
        (&up, with("False", &ended, 0), true, Urgency::Ending),
        (
            &fresh,
            status("Pending Ready=False", 2),
            true,
            Urgency::Ending,
        ),
    ] {
        let got = urgency(Some(api), &ours, leaving);
        assert_eq!(got, expected, "{ours:?} {leaving}");
    }
}

/// What is empty and says nothing is left out, what is empty and says something is not.
#[test]
fn one_form_for_what_is_the_same() {
    let form = |status: serde_json::Value| {
        let status: PodStatus = serde_json::from_value(status).unwrap();
        canonical(&status).to_string()
    };
    let container = |more: serde_json::Value| {
        let mut status =
            json!({"name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0});
        for (key, value) in more.as_object().unwrap() {
            status[key] = value.clone();
        }
        form(json!({"containerStatuses": [status]}))
    };
    let plain = container(json!({}));
    for silent in [
        json!({"state": {}, "lastState": {}}),
        json!({"allocatedResources": {}}),
        json!({"resources": {}}),
        json!({"containerID": ""}),
        json!({"volumeMounts": []}),
    ] {
        let told = container(silent.clone());
        match silent.get("resources") {
            // Somebody asked for none: that is something.
            Some(_) => assert_ne!(told, plain, "{silent}"),
            None => assert_eq!(told, plain, "{silent}"),
        }
    }
    let mounts = |read_only: bool| {
        let mount = json!({"name": "v", "mountPath": "/v", "readOnly": read_only});
        container(json!({"volumeMounts": [mount]}))
    };
    assert!(!mounts(false).contains("readOnly"));
    assert!(mounts(true).contains("readOnly"));
    let ended = |signal: i32| {
        container(json!({"state": {"terminated": {"exitCode": 0, "signal": signal}}}))
    };
    assert!(ended(0).contains("exitCode") && !ended(0).contains("signal"));
    assert!(ended(9).contains("signal"));
    assert_eq!(
        form(json!({"resources": {"requests": {"cpu": "1000m"}}})),
        form(json!({"resources": {"requests": {"cpu": "1"}}})),
    );
    assert_eq!(
        form(json!({"startTime": "2020-01-01T00:00:00.9Z"})),
        form(json!({"startTime": "2020-01-01T00:00:00Z"})),
    );
}

#[test]
fn an_object_is_deleted_last() {
    let deleting = |phase: &str| {
        let mut pod = api_pod(status(phase, 1));
        pod.metadata.deletion_timestamp = Some(whole_seconds(at(5)));
        pod
    };
    assert!(can_be_deleted(&deleting("Failed"), true));
    assert!(!can_be_deleted(&deleting("Failed"), false));
    assert!(!can_be_deleted(&deleting("Running"), true));
    assert!(!can_be_deleted(&deleting("-"), true));
    assert!(!can_be_deleted(&api_pod(status("Failed", 1)), true));
    let mut mirror = deleting("Failed");
    let mark = (CONFIG_MIRROR.to_owned(), "hash".to_owned());
    mirror.metadata.annotations = Some([mark].into());
    assert!(!can_be_deleted(&mirror, true));
}
