//! Containers that are added to a pod to look at it: `kubectl debug`.

use std::process::Stdio;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use krablet_e2e::manifest::{shell, single, tool, with};
use krablet_e2e::{Member, status};
use krablet_testbed::images;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use crate::inside::inside_of;
use crate::server::spawn_kubectl;

fn ephemeral<'a>(pod: &'a Pod, name: &str) -> Result<&'a ContainerStatus, String> {
    let all = status::status(pod)?.ephemeral_container_statuses.iter();
    let mut all = all.flatten();
    all.find(|c| c.name == name)
        .ok_or_else(|| format!("no container {name}: {}", status::shown(pod)))
}

async fn is_running(node: &Member, pod: &str, name: &str) -> String {
    node.until(pod, &format!("{name} runs"), |pod| {
        let found = ephemeral(pod, name)?;
        let state = found.state.as_ref();
        match state.is_some_and(|s| s.running.is_some()) {
            true => Ok(status::id(found)),
            false => Err(format!("{found:?}")),
        }
    })
    .await
}

async fn has_ended(node: &Member, pod: &str, name: &str) -> ContainerStatus {
    node.until(pod, &format!("{name} has ended"), |pod| {
        let found = ephemeral(pod, name)?;
        let state = found.state.as_ref();
        match state.is_some_and(|s| s.terminated.is_some()) {
            true => Ok(found.clone()),
            false => Err(format!("{found:?}")),
        }
    })
    .await
}

/// The same for as long as what it talks to goes on: its input is not closed before.
async fn talk(node: &Member, arguments: &[&str], input: &str) -> String {
    let mut child = spawn_kubectl(node, arguments, Stdio::piped());
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    let said = child.wait_with_output().await.unwrap().stdout;
    drop(stdin);
    String::from_utf8_lossy(&said).into_owned()
}

async fn kubectl(node: &Member, arguments: &[&str], input: Option<&str>) -> String {
    let admin = node.plane.admin_kubeconfig();
    let said = node.plane.kubectl_as(&admin, arguments, input).await;
    said.unwrap_or_else(|why| panic!("kubectl {arguments:?}: {why:#}"))
}

/// There is nothing to look at yet, and the one who looks is told so.
pub async fn a_container_that_is_not_there(node: &Member) {
    let pod = "debugged-early";
    let waits = with(
        tool("waits", &["hold"]),
        json!({"image": "krablet.local/not-there:v1", "imagePullPolicy": "Never"}),
    );
    let mut manifest = single(pod, tool("main", &["hold"]));
    manifest["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(waits);
    node.create(&manifest).await;
    node.until(pod, "main runs", |pod| {
        status::running(pod, "main").map(drop)
    })
    .await;
    let image = format!("--image={}", images::TOOL);
    let arguments = [
        "debug",
        pod,
        "-c",
        "looks",
        "--target=waits",
        "--image-pull-policy=Never",
        &image,
        "--",
        "/tool",
        "hold",
    ];
    kubectl(node, &arguments, None).await;
    node.until(pod, "looks waits", |pod| {
        let found = ephemeral(pod, "looks")?;
        let waiting = found.state.as_ref().and_then(|s| s.waiting.as_ref());
        let told = waiting.map(|w| (w.reason.as_deref(), w.message.as_deref()));
        let reason = Some("CreateContainerConfigError");
        let message = Some("unable to find target container waits");
        match told {
            Some(told) if told == (reason, message) => Ok(()),
            _ => Err(format!("{found:?}")),
        }
    })
    .await;
    node.end(pod).await;
}

/// With the processes of a container in sight, with input, with logs; never started again.
pub async fn a_running_pod(node: &Member) {
    let pod = "debugged";
    node.run(&single(pod, tool("main", &["hold"]))).await;
    let image = format!("--image={}", images::TOOL);
    let debug = |name: &'static str| {
        [
            "debug",
            pod,
            "-c",
            name,
            &image,
            "--image-pull-policy=Never",
            "--profile=general",
        ]
    };
    let with = |name: &'static str, more: &[&'static str]| {
        let mut all: Vec<String> = debug(name).map(str::to_owned).to_vec();
        all.extend(more.iter().map(|s| (*s).to_owned()));
        all
    };
    let run = async |arguments: Vec<String>, input: Option<&str>| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        kubectl(node, &arguments, input).await
    };

    // One that sees the container's processes and its files, and can be looked into itself.
    let script = "echo began; exec tail -f /dev/null";
    run(
        with("looks", &["--target=main", "--", "sh", "-c", script]),
        None,
    )
    .await;
    let id = is_running(node, pod, "looks").await;
    let first = "busybox tr '\\0' ' ' < /proc/1/cmdline";
    let seen = inside_of(node, pod, "looks", first).await;
    assert_eq!(seen.as_deref(), Ok("/tool hold"));
    let seen = kubectl(
        node,
        &[
            "exec",
            pod,
            "-c",
            "looks",
            "--",
            "cat",
            "/proc/1/root/etc/image",
        ],
        None,
    )
    .await;
    assert_eq!(seen.trim(), images::TOOL);
    node.wait(pod, "its log is there", async || {
        let log = node.plane.kubectl(&["logs", pod, "-c", "looks"]).await;
        match log.map_err(|e| format!("{e:#}"))? {
            log if log == "began\n" => Ok(()),
            log => Err(log),
        }
    })
    .await;

    // One that is talked to, from beginning to end, with processes of its own.
    let arguments = with("talks", &["-it", "--", "sh"]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let said = talk(node, &arguments, "echo I am $$\nexit 3\n").await;
    assert!(said.contains("I am 1"), "{said}");
    let ended = has_ended(node, pod, "talks").await;
    let how = ended.state.clone().unwrap().terminated.unwrap();
    assert_eq!(how.exit_code, 3, "{how:?}");

    // One whose image is not there waits, and keeps nothing else waiting.
    let absent = [
        "debug",
        pod,
        "-c",
        "absent",
        "--image=krablet.local/none:1",
        "--image-pull-policy=Never",
        "--",
        "sh",
    ];
    kubectl(node, &absent, None).await;
    node.until(pod, "is told", |pod| {
        let state = ephemeral(pod, "absent")?.state.clone().unwrap_or_default();
        let waiting = state.waiting.unwrap_or_default();
        let message =
            "Container image \"krablet.local/none:1\" is not present with pull policy of Never";
        match waiting.reason.as_deref() == Some("ErrImageNeverPull")
            && waiting.message.as_deref() == Some(message)
        {
            true => Ok(()),
            false => Err(format!("{waiting:?}")),
        }
    })
    .await;

    // The pod goes on when it is all over: its container is started again, the others are not.
    // Whoever kills the first process of a container may be gone with it before he can say so.
    let _ = node.plane.kubectl(&["exec", pod, "--", "kill", "1"]).await;
    node.until(pod, "is started again", |pod| {
        match status::container(pod, "main")?.restart_count {
            0 => Err(status::shown(pod)),
            _ => status::all_running(pod),
        }
    })
    .await;
    let seen = node.pod(pod).await.unwrap();
    let after = ephemeral(&seen, "talks").unwrap();
    assert_eq!(after.container_id, ended.container_id);
    assert_eq!(after.restart_count, 0);
    assert!(!after.ready);
    // What shared the processes of the one that ended has ended with it, and stays so.
    let looked = has_ended(node, pod, "looks").await;
    assert_eq!(status::id(&looked), id);
    node.end(pod).await;
}

/// A pod that shares its processes needs no target; one that has ended takes no more.
pub async fn a_pod_that_shares_its_processes(node: &Member) {
    let pod = "debugged-shared";
    let mut manifest = single(pod, shell("main", "exec sleep 10000"));
    manifest["spec"]["shareProcessNamespace"] = json!(true);
    node.run(&manifest).await;
    let image = format!("--image={}", images::TOOL);
    let arguments = [
        "debug",
        pod,
        "-c",
        "looks",
        &image,
        "--image-pull-policy=Never",
        "--target=main",
        "--",
        "sh",
        "-c",
        "ps; exec tail -f /dev/null",
    ];
    kubectl(node, &arguments, None).await;
    node.wait(pod, "it sees all processes of the pod", async || {
        let log = node.plane.kubectl(&["logs", pod, "-c", "looks"]).await;
        let log = log.map_err(|e| format!("{e:#}"))?;
        match log.contains("/pause") && log.contains("sleep 10000") {
            true => Ok(()),
            false => Err(log),
        }
    })
    .await;
    node.end(pod).await;
}
