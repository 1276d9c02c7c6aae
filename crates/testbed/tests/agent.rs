//! The handle of the agent, with a stand-in for the agent.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use krablet_testbed::{Bed, BedOptions, KrabletOptions, eventually};

/// A program that says how it was started and then waits.
fn stand_in(bed: &Bed) -> PathBuf {
    let path = bed.dir().join("stand-in");
    std::fs::write(
        &path,
        "#!/bin/sh\necho started with \"$@\"\nexec sleep 1000\n",
    )
    .unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn an_agent_is_started_killed_and_goes_with_its_bed() {
    let bed = Bed::up(BedOptions::default()).await.unwrap();
    let options = KrabletOptions {
        program: Some(stand_in(&bed)),
        config: serde_json::json!({"readOnlyPort": null, "syncFrequency": "1s"}),
        args: vec!["-v=4".to_owned()],
        ..KrabletOptions::default()
    };
    let mut agent = bed.prepare_krablet(options).unwrap();
    agent.start().unwrap();
    assert!(agent.start().is_err(), "it runs already");
    eventually(
        Duration::from_secs(60),
        "it says how it was started",
        async || {
            let log = agent.log_tail();
            let words = ["--root-dir=", "--container-logs-dir=", "-v=4"];
            if words.iter().all(|word| log.contains(word)) {
                Ok(())
            } else {
                Err(log)
            }
        },
    )
    .await;
    assert!(agent.rss().unwrap() > 0);
    agent.cpu_time().unwrap();
    let config =
        std::fs::read_to_string(agent.manifests().parent().unwrap().join("config.yaml")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["syncFrequency"], "1s");
    assert_eq!(config["cgroupRoot"], bed.cgroup_parent());
    assert!(config.get("readOnlyPort").is_none());

    agent.write_manifest("pod.yaml", "kind: Pod\n").unwrap();
    assert_eq!(
        std::fs::read_dir(agent.manifests()).unwrap().count(),
        1,
        "no half-written file is left"
    );
    agent.remove_manifest("pod.yaml").unwrap();

    agent.kill9().await.unwrap();
    assert!(!agent.is_running());
    agent.start().unwrap();
    assert!(!agent.terminate().await.unwrap().success());
    agent.start().unwrap();
    bed.down().await.unwrap();
    agent.wait(Duration::from_secs(60)).await.unwrap();
}
