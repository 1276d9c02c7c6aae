//! Volumes of a pod that has ended, and that somebody on the machine still uses.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use krablet_e2e::manifest::{single, tool};
use krablet_e2e::{LONG, Member, status};
use serde_json::json;

use crate::inside::says;
use crate::volumes::{at, bound_claim, looked_into, on_node, release_claim};

/// A process of the machine that stands in a directory, ended when dropped.
struct Squatter(Child);

impl Squatter {
    fn at(dir: &Path) -> Self {
        let mut sleep = Command::new("sleep");
        sleep.arg("100000").current_dir(dir).stdin(Stdio::null());
        Self(sleep.spawn().unwrap())
    }

    /// How the agent names it.
    fn named(&self, dir: &Path) -> String {
        let (pid, dir) = (self.0.id(), dir.display());
        format!("process {pid} (sleep): working directory {dir}")
    }
}

impl Drop for Squatter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_mounted(point: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = point.display().to_string();
    mounts
        .lines()
        .any(|line| line.split(' ').nth(4) == Some(&point))
}

/// The pod is tried again and again, later each time, and told of once; who waits for its end sees why. Nobody else
/// notices. What is in memory only is not waited for for ever.
pub async fn are_waited_for(node: &Member) {
    let name = "held";
    let scratch = node.stage.scratch(name);
    std::fs::write(scratch.join("precious"), "x").unwrap();
    let source = json!({"local": {"path": scratch}, "nodeAffinity": on_node(node)});
    bound_claim(node, name, source).await;
    let mounts = json!([at("claim", "/claim"), at("ram", "/ram")]);
    let mut manifest = single(name, looked_into(mounts));
    // What was mounted last is unmounted first.
    manifest["spec"]["volumes"] = json!([
        {"name": "claim", "persistentVolumeClaim": {"claimName": name}},
        {"name": "ram", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]);
    let uid = status::uid(&node.run(&manifest).await);
    says(node, name, "cat /claim/precious", "x").await;
    let pods = node.stage.krablet.root_dir().join("pods");
    let volumes = pods.join(&uid).join("volumes");
    let ram: PathBuf = volumes.join("kubernetes.io~empty-dir/ram");
    let claim: PathBuf = volumes.join("kubernetes.io~local-volume").join(name);
    let in_ram = Squatter::at(&ram);
    let in_claim = Squatter::at(&claim);
    let lines_before = lines_of(node, &uid).len();
    node.delete(name).await;
    node.event(name, "FailedSync", &in_ram.named(&ram)).await;
    node.wait(name, "its containers have ended", async || {
        match node.alive(&uid).await {
            alive if alive.is_empty() => Ok(()),
            alive => Err(format!("{alive:?}")),
        }
    })
    .await;
    // Others come and go.
    let other = "held-other";
    node.run(&single(other, tool("main", &["hold"]))).await;
    node.end(other).await;

    node.wait_long(
        3 * LONG,
        name,
        "memory is given up",
        async || match is_mounted(&ram) {
            true => Err("still mounted".to_owned()),
            false => Ok(()),
        },
    )
    .await;
    node.event(name, "FailedSync", &in_claim.named(&claim))
        .await;
    assert!(is_mounted(&claim), "a disk is waited for");
    let pod = node.pod(name).await.expect("the pod is still told of");
    assert!(pod.metadata.deletion_timestamp.is_some());
    not_too_much_is_told(node, &uid, lines_before);
    drop(in_claim);
    node.gone(name, &uid).await;
    drop(in_ram);
    let kept = std::fs::read_to_string(scratch.join("precious")).unwrap();
    assert_eq!(kept, "x");
    release_claim(node, name).await;
}

fn lines_of(node: &Member, uid: &str) -> Vec<String> {
    let log = node.stage.krablet.log();
    let lines = log.lines().filter(|line| line.contains(uid));
    lines.map(str::to_owned).collect()
}

/// Each of the tries failed; only what was news about it is in the log.
fn not_too_much_is_told(node: &Member, uid: &str, before: usize) {
    let lines = lines_of(node, uid).split_off(before);
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    let failures = count("Could not release the volumes of a pod");
    assert!((2..=4).contains(&failures), "{failures}: {lines:#?}");
    let taken = count("Taking a mount of a pod that has ended out of the tree");
    assert_eq!(taken, 1, "{lines:#?}");
    println!("held: {} lines in the log", lines.len());
    assert!(lines.len() < 150, "{lines:#?}");
}
