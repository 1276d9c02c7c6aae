use serde_json::{Value, json};

use super::*;
use crate::testing::snapshot;

fn told(snapshot: &Snapshot, depth: Depth) -> Value {
    serde_json::to_value(summary(snapshot, depth)).unwrap()
}

#[test]
fn a_container_in_the_names_of_the_api() {
    let all = told(&snapshot(), Depth::Full);
    let time = "2023-11-14T22:13:20Z";
    let psi = |full: u64, some: u64, avg: f64| {
        let line = |total: u64| json!({"total": total, "avg10": avg, "avg60": 0.0, "avg300": 0.0});
        json!({"full": line(full), "some": line(some)})
    };
    assert_eq!(
        all["pods"][0]["containers"][0],
        json!({
            "name": "main",
            "startTime": "2023-11-14T22:12:30Z",
            "cpu": {
                "time": time,
                "usageNanoCores": 1_000_000,
                "usageCoreNanoSeconds": 2_500_000_000_u64,
                "psi": psi(1, 2_000_000, 0.5),
            },
            "memory": {
                "time": time,
                "availableBytes": 8000,
                "usageBytes": 3000,
                "workingSetBytes": 2000,
                "rssBytes": 1500,
                "pageFaults": 7,
                "majorPageFaults": 1,
            },
            "io": {"time": time, "psi": psi(0, 0, 0.0)},
            "rootfs": {
                "time": time,
                "availableBytes": 60000,
                "capacityBytes": 100000,
                "usedBytes": 8192,
                "inodesFree": 900,
                "inodes": 1000,
                "inodesUsed": 2,
            },
            "logs": {
                "time": time,
                "availableBytes": 60000,
                "capacityBytes": 100000,
                "usedBytes": 4096,
                "inodesFree": 900,
                "inodes": 1000,
                "inodesUsed": 1,
            },
            "swap": {"time": time, "swapAvailableBytes": 36, "swapUsageBytes": 64},
        })
    );
}

#[test]
fn a_pod_and_what_is_its_own() {
    let all = told(&snapshot(), Depth::Full);
    let pod = &all["pods"][0];
    assert_eq!(
        pod["podRef"],
        json!({"name": "web", "namespace": "default", "uid": "u1"})
    );
    assert_eq!(pod["startTime"], "2023-11-14T22:12:20Z");
    assert_eq!(pod["cpu"]["usageCoreNanoSeconds"], 3_000_000_000_u64);
    assert_eq!(pod["process_stats"], json!({"process_count": 4}));
    let network = &pod["network"];
    assert_eq!(
        (&network["name"], &network["rxBytes"]),
        (&json!("eth0"), &json!(100))
    );
    assert_eq!(network["interfaces"][0]["txBytes"], 50);
    assert_eq!(pod["volume"][0]["name"], "scratch");
    assert_eq!(pod["volume"][0]["usedBytes"], 1000);
    assert_eq!(pod["volume"][0]["time"], "2023-11-14T22:12:50Z");
    assert_eq!(
        pod["volume"][1]["pvcRef"],
        json!({"name": "claim", "namespace": "default"})
    );
    // Written, logged, the volume that is its own, and the rest; not the claim's.
    let storage = &pod["ephemeral-storage"];
    assert_eq!(storage["usedBytes"], 8192 + 4096 + 1000 + 512);
    assert_eq!(storage["inodesUsed"], 2 + 1 + 3 + 1);
}

#[test]
fn the_node() {
    let all = told(&snapshot(), Depth::Full);
    let node = &all["node"];
    assert_eq!(node["nodeName"], "n1");
    assert_eq!(node["fs"]["usedBytes"], 40_000);
    assert_eq!(node["fs"]["inodesUsed"], 100);
    assert_eq!(node["runtime"]["imageFs"]["usedBytes"], 30_000);
    assert_eq!(node["runtime"]["containerFs"], node["runtime"]["imageFs"]);
    assert_eq!(node["rlimit"]["maxpid"], 4096);
    assert_eq!(node["rlimit"]["curproc"], 77);
    assert_eq!(node["systemContainers"][0]["name"], "pods");
    assert_eq!(node["systemContainers"][0]["startTime"], Value::Null);
    assert!(node.get("network").is_none());
}

#[test]
fn cpu_and_memory_alone() {
    let all = told(&snapshot(), Depth::CpuAndMemory);
    let keys = |value: &Value| {
        let keys = value.as_object().unwrap().keys();
        keys.map(String::as_str).collect::<Vec<_>>().join(" ")
    };
    let node = "cpu memory nodeName startTime swap systemContainers";
    assert_eq!(keys(&all["node"]), node);
    let pod = "containers cpu memory podRef startTime swap";
    assert_eq!(keys(&all["pods"][0]), pod);
    let container = "cpu memory name startTime swap";
    assert_eq!(keys(&all["pods"][0]["containers"][0]), container);
}

#[test]
fn a_pod_nobody_told_the_start_of() {
    let mut read = snapshot();
    read.pods[0].started = None;
    assert_eq!(told(&read, Depth::Full)["pods"], json!([]));
    let pods = told(&read, Depth::CpuAndMemory);
    assert_eq!(pods["pods"][0]["startTime"], "2023-11-14T22:12:19Z");
}

#[test]
fn what_is_not_known_is_left_out() {
    let mut read = snapshot();
    let cgroup = &mut read.pods[0].containers[0].cgroup;
    cgroup.cpu.as_mut().unwrap().nano_cores = None;
    cgroup.memory.as_mut().unwrap().limits = Default::default();
    read.pods[0].cgroup = None;
    let all = told(&read, Depth::Full);
    let container = &all["pods"][0]["containers"][0];
    assert!(container["cpu"].get("usageNanoCores").is_none());
    assert!(container["memory"].get("availableBytes").is_none());
    assert!(container["swap"].get("swapAvailableBytes").is_none());
    assert!(all["pods"][0].get("memory").is_none());
}
