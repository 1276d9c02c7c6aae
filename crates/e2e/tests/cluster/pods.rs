//! Pods of the API server: what of them is told back.

use krablet_e2e::manifest::{pod, shell, single, tool, with};
use krablet_e2e::{Member, status};
use serde_json::json;

pub async fn events_are_seen_with_kubectl(node: &Member) {
    let name = "told-events";
    let running = node.run(&single(name, tool("main", &["hold"]))).await;
    let found = status::status(&running).unwrap();
    assert!(found.pod_ip.is_some() && found.start_time.is_some());
    let object = node.ready().await;
    let addresses = object.status.unwrap().addresses.unwrap_or_default();
    let internal = addresses.iter().filter(|a| a.type_ == "InternalIP");
    let internal: Vec<String> = internal.map(|a| a.address.clone()).collect();
    let hosts = found.host_ips.iter().flatten();
    let hosts: Vec<String> = hosts.map(|ip| ip.ip.clone()).collect();
    assert_eq!(found.host_ip.as_ref(), internal.first());
    assert_eq!(hosts, internal);
    assert_eq!(found.qos_class.as_deref(), Some("BestEffort"));
    for kind in [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ] {
        assert!(status::condition(&running, kind), "{kind}");
    }
    for reason in ["Pulled", "Created", "Started"] {
        let event = node.event(name, reason, "").await;
        let source = event.source.unwrap();
        assert_eq!(source.component.as_deref(), Some("kubelet"));
        assert_eq!(source.host.as_ref(), Some(&node.name));
        let path = event.involved_object.field_path;
        assert_eq!(path.as_deref(), Some("spec.containers{main}"));
    }
    let shown = node.kubectl(&["describe", "pod", name]).await;
    for word in ["Pulled", "Created", "Started", "kubelet", "already present"] {
        assert!(shown.contains(word), "{word} is missing in {shown}");
    }
    node.end(name).await;
    node.event(name, "Killing", "Stopping container main").await;
}

/// One event whose count grows, not one event per restart.
pub async fn back_off_is_told_once_and_counted(node: &Member) {
    let name = "told-back-off";
    let made = node
        .create(&single(name, tool("main", &["exit", "3"])))
        .await;
    let told = "Back-off restarting failed container main in pod told-back-off_default(";
    let event = node
        .event_where(name, "BackOff", told, |e| e.count >= Some(3))
        .await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    let pod = node
        .until(name, "waits for its next start", |pod| {
            let (reason, message) = status::waiting(pod, "main")?;
            if reason != "CrashLoopBackOff" {
                return Err(status::shown(pod));
            }
            assert!(message.starts_with("back-off "), "{message}");
            Ok(pod.clone())
        })
        .await;
    assert_eq!(status::ended_before(&pod, "main").unwrap().exit_code, 3);
    node.delete(name).await;
    node.gone(name, &status::uid(&made)).await;
}

/// A pod is ready when others say so too.
pub async fn readiness_gates(node: &Member) {
    let name = "gated";
    let spec = json!({
        "readinessGates": [{"conditionType": "example.com/open"}],
        "containers": [with(
            shell("main", "exec /tool hold"),
            json!({"readinessProbe": {"exec": {"command": ["/bin/true"]}, "periodSeconds": 1}}),
        )],
    });
    node.create(&pod(name, spec)).await;
    node.until(name, "waits for its gate", |pod| {
        let conditions = status::status(pod)?.conditions.iter().flatten();
        let ready = conditions.into_iter().find(|c| c.type_ == "Ready");
        let ready = ready.ok_or_else(|| status::shown(pod))?;
        let waits = status::condition(pod, "ContainersReady")
            && ready.status == "False"
            && ready.reason.as_deref() == Some("ReadinessGatesNotReady")
            && ready.message.as_deref()
                == Some("corresponding condition of pod readiness gate \"example.com/open\" does not exist.");
        match waits {
            true => Ok(()),
            false => Err(status::shown(pod)),
        }
    })
    .await;
    for (value, ready) in [("True", true), ("False", false), ("True", true)] {
        let patch =
            json!({"status": {"conditions": [{"type": "example.com/open", "status": value}]}});
        node.kubectl(&[
            "patch",
            "pod",
            name,
            "--subresource=status",
            "--type=strategic",
            "-p",
            &patch.to_string(),
        ])
        .await;
        node.until(name, "follows its gate", |pod| {
            // The gate is another's to set, and stays as it is.
            let gate = status::condition(pod, "example.com/open") == (value == "True");
            match gate && status::condition(pod, "Ready") == ready {
                true => Ok(()),
                false => Err(status::shown(pod)),
            }
        })
        .await;
    }
    node.end(name).await;
}
