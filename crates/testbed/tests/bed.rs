//! A bed comes up, holds real pods, and leaves nothing behind, however it ends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

use std::process::Stdio;
use std::time::Duration;

use krablet_cri::RuntimeService;
use krablet_testbed::{
    Bed, BedOptions, Containerd, RawPod, eventually, eventually_or, free_port, get, images,
    leftovers,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

const LONG: Duration = Duration::from_secs(120);

async fn up() -> Bed {
    Bed::up(BedOptions::default()).await.unwrap()
}

/// Parent and state of a process.
fn stat(pid: u32) -> Option<(u32, String)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.to_owned();
    Some((fields.next()?.parse().ok()?, state))
}

/// Those of the processes that run; an ended one that nobody has reaped yet does not.
fn alive(pids: &[u32]) -> Vec<u32> {
    pids.iter()
        .copied()
        .filter(|pid| stat(*pid).is_some_and(|(_, state)| state != "Z"))
        .collect()
}

/// These processes and all below them: shims and their containers.
fn family(of: &[u32]) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let all: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    let mut found = of.to_vec();
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(
            all.iter()
                .filter(|pid| stat(**pid).is_some_and(|(of, _)| of == parent)),
        );
        next += 1;
    }
    found
}

#[tokio::test]
async fn nothing_is_left_after_down() {
    let bed = up().await;
    let runtime = bed.runtime().unwrap();
    let port = free_port().unwrap();
    let web = RawPod::run_with_ports(&bed, &runtime, "web", &["http"], &[(port, 8080)])
        .await
        .unwrap();
    RawPod::run(&bed, &runtime, "stubborn", &["ignore-term"])
        .await
        .unwrap();
    let address = format!("{}:8080", web.ip(&runtime).await.unwrap());
    eventually(LONG, "the web pod answers", async || {
        match get(&address, "/healthz").await {
            Ok(answer) if answer.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let rules = std::process::Command::new("iptables-save")
        .output()
        .unwrap()
        .stdout;
    assert!(
        String::from_utf8_lossy(&rules).contains(&port.to_string()),
        "the host port is mapped"
    );
    assert!(!leftovers(bed.name()).is_empty(), "a bed in use is seen");
    let processes = family(&bed.shim_pids());
    assert!(
        processes.len() >= 6,
        "two pods are two shims and four processes: {processes:?}"
    );
    let name = bed.name().to_owned();
    bed.down().await.unwrap();
    assert_eq!(leftovers(&name), Vec::<String>::new());
    assert_eq!(alive(&processes), Vec::<u32>::new());
}

#[tokio::test]
async fn nothing_is_left_after_a_panic() {
    let bed = up().await;
    let runtime = bed.runtime().unwrap();
    let name = bed.name().to_owned();
    RawPod::run(&bed, &runtime, "pod", &["hold"]).await.unwrap();
    let processes = family(&bed.shim_pids());
    let test = tokio::spawn(async move {
        let _bed = bed;
        panic!("a failed assertion, as far as the bed can tell");
    });
    assert!(test.await.unwrap_err().is_panic());
    assert_eq!(leftovers(&name), Vec::<String>::new());
    assert_eq!(alive(&processes), Vec::<u32>::new());
}

#[tokio::test]
async fn the_distributions_containerd_works_too() {
    let options = BedOptions {
        containerd: Containerd::Debian,
        ..BedOptions::default()
    };
    let bed = Bed::up(options).await.unwrap();
    let runtime = bed.runtime().unwrap();
    let version = runtime.version().await.unwrap();
    assert!(version.runtime_version.starts_with("1."), "{version:?}");
    assert!(
        runtime.runtime_config().await.is_err(),
        "it is too old for that call"
    );
    let pod = RawPod::run(&bed, &runtime, "pod", &["hold"]).await.unwrap();
    assert_ne!(pod.ip(&runtime).await.unwrap(), "");
    let name = bed.name().to_owned();
    let processes = family(&bed.shim_pids());
    bed.down().await.unwrap();
    assert_eq!(leftovers(&name), Vec::<String>::new());
    assert_eq!(alive(&processes), Vec::<u32>::new());
    let results = std::fs::read_dir("/var/lib/cni/results")
        .into_iter()
        .flatten()
        .flatten();
    let ours = results.filter(|file| file.file_name().to_string_lossy().contains(&pod.sandbox));
    assert_eq!(ours.count(), 0);
}

/// Brings up a bed with a pod in a process of its own.
async fn other_process() -> (Child, Lines<BufReader<ChildStdout>>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_krablet-lab"))
        .args(["bed", "--pods", "2"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines
        .next_line()
        .await
        .unwrap()
        .expect("krablet-lab names the bed");
    let name = first.split(' ').next().unwrap().to_owned();
    (child, lines, name)
}

#[tokio::test]
async fn nothing_is_left_after_the_test_process_is_killed() {
    for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
        let (mut child, _output, name) = other_process().await;
        assert!(!leftovers(&name).is_empty());
        let pid = i32::try_from(child.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
        child.wait().await.unwrap();
        eventually(
            LONG,
            "the keeper has cleaned up",
            async || match leftovers(&name) {
                left if left.is_empty() => Ok(()),
                left => Err(left.join("\n")),
            },
        )
        .await;
    }
}

#[tokio::test]
async fn a_bed_whose_keeper_was_killed_is_swept() {
    let bed = up().await;
    let runtime = bed.runtime().unwrap();
    let name = bed.name().to_owned();
    RawPod::run(&bed, &runtime, "pod", &["hold"]).await.unwrap();
    let processes = family(&bed.shim_pids());
    let keeper = i32::try_from(bed.keeper_pid()).unwrap();
    kill_process(Pid::from_raw(keeper).unwrap(), Signal::KILL).unwrap();
    assert!(bed.down().await.is_err(), "the keeper is gone");
    assert!(!leftovers(&name).is_empty());
    // Another test's sweep may have come first.
    tokio::task::spawn_blocking(krablet_testbed::sweep)
        .await
        .unwrap()
        .unwrap();
    eventually(LONG, "the bed is swept", async || match leftovers(&name) {
        left if left.is_empty() => Ok(()),
        left => Err(left.join("\n")),
    })
    .await;
    assert_eq!(alive(&processes), Vec::<u32>::new());
}

#[tokio::test]
async fn beds_are_apart() {
    let (one, two) = tokio::join!(up(), up());
    assert_ne!(one.name(), two.name());
    assert_ne!(one.cgroup_parent(), two.cgroup_parent());
    let (first, second) = (one.runtime().unwrap(), two.runtime().unwrap());
    let pod = RawPod::run(&one, &first, "same", &["hold"]).await.unwrap();
    let twin = RawPod::run(&two, &second, "same", &["hold"]).await.unwrap();
    assert_ne!(
        pod.ip(&first).await.unwrap(),
        twin.ip(&second).await.unwrap()
    );
    assert_eq!(first.list_pod_sandbox(None).await.unwrap().len(), 1);
    let (kept, gone) = (two.name().to_owned(), one.name().to_owned());
    one.down().await.unwrap();
    assert_eq!(leftovers(&gone), Vec::<String>::new());
    let status = second.container_status(&twin.container).await.unwrap();
    assert_eq!(status.exit_code, 0);
    assert!(!leftovers(&kept).is_empty());
    two.down().await.unwrap();
    assert_eq!(leftovers(&kept), Vec::<String>::new());
}

#[tokio::test]
async fn containers_outlive_containerd() {
    let bed = up().await;
    let runtime = bed.runtime().unwrap();
    let pod = RawPod::run(&bed, &runtime, "pod", &["hold"]).await.unwrap();
    let before = family(&bed.shim_pids());
    bed.stop_containerd().await.unwrap();
    assert!(bed.containerd_pid().is_none());
    assert!(runtime.status().await.is_err());
    assert_eq!(alive(&before), before);
    bed.start_containerd().await.unwrap();
    bed.kill_containerd().await.unwrap();
    bed.start_containerd().await.unwrap();
    let runtime = bed.runtime().unwrap();
    let status = runtime.container_status(&pod.container).await.unwrap();
    assert_eq!(
        status.state(),
        krablet_cri::v1::ContainerState::ContainerRunning
    );
    bed.kill_shims();
    eventually_or(
        LONG,
        "the runtime sees the container end",
        || bed.log_tail(),
        async || {
            let status = runtime
                .container_status(&pod.container)
                .await
                .map_err(|e| e.to_string())?;
            if status.state() == krablet_cri::v1::ContainerState::ContainerExited {
                Ok(())
            } else {
                Err(format!("{status:?}"))
            }
        },
    )
    .await;
    bed.down().await.unwrap();
}

#[tokio::test]
async fn the_tool_does_what_it_is_told() {
    let options = BedOptions {
        images: vec![images::Variant {
            files: vec![("/data/note".to_owned(), 0o644, b"from the image\n".to_vec())],
            ..images::Variant::named("krablet.local/tool:noted")
        }],
        ..BedOptions::default()
    };
    let bed = Bed::up(options).await.unwrap();
    let runtime = bed.runtime().unwrap();
    let names = bed.ctr(&["images", "ls", "-q"]).await.unwrap();
    for image in [
        images::PAUSE,
        images::TOOL,
        images::TOOL_V2,
        "krablet.local/tool:noted",
    ] {
        assert!(names.contains(image), "{image} in {names}");
    }
    for (name, arguments, code, output) in [
        ("exit", vec!["exit", "7"], 7, ""),
        ("env", vec!["env", "HOSTNAME"], 0, "HOSTNAME=env"),
        ("cat", vec!["cat", "/etc/image"], 0, images::TOOL),
        (
            "memory",
            vec!["eat-memory", "32", "0s"],
            0,
            "holding 32 MiB",
        ),
        ("unknown", vec!["fly"], 2, "unknown command"),
    ] {
        let pod = RawPod::run(&bed, &runtime, name, &arguments).await.unwrap();
        eventually_or(
            LONG,
            name,
            || bed.log_tail(),
            async || {
                let status = runtime
                    .container_status(&pod.container)
                    .await
                    .map_err(|e| e.to_string())?;
                let log = std::fs::read_to_string(pod.log(&bed)).unwrap_or_default();
                if status.finished_at == 0 || !log.contains(output) {
                    return Err(format!("{status:?} {log}"));
                }
                assert_eq!(status.exit_code, code, "{name}");
                Ok(())
            },
        )
        .await;
    }
    bed.down().await.unwrap();
}
