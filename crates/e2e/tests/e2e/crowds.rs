//! Many at once: pods, and manifests that are none.

use krablet_e2e::manifest::{single, tool};
use krablet_e2e::{LONG, Stage, status};
use serde_json::{Value, json};

const PODS: usize = 110;

/// As many pods as a node takes by default: all run, and all go without a trace.
pub async fn a_hundred_and_ten_pods() {
    let stage = Stage::up(Value::Null).await;
    let names: Vec<String> = (0..PODS)
        .map(|number| format!("crowd-{number:03}"))
        .collect();
    for name in &names {
        stage.apply(name, &single(name, tool("main", &["hold"])));
    }
    stage
        .wait_long(2 * LONG, "crowd", "all run", async || {
            let pods = stage.krablet.pods().await.map_err(|e| format!("{e:#}"))?;
            let running = pods
                .items
                .iter()
                .filter(|pod| status::all_running(pod).is_ok());
            match running.count() {
                PODS => Ok(()),
                count => Err(format!("{count} of {PODS} run")),
            }
        })
        .await;
    let pods = stage.krablet.pods().await.unwrap().items;
    for pod in &pods {
        assert_eq!(status::container(pod, "main").unwrap().restart_count, 0);
    }
    let mut ips: Vec<_> = pods
        .iter()
        .map(|pod| status::status(pod).unwrap().pod_ip.clone())
        .collect();
    ips.sort();
    ips.dedup();
    assert_eq!(ips.len(), PODS, "each has an address of its own");
    let running = stage.in_runtime().await;
    assert_eq!(
        running.len(),
        2 * PODS,
        "one sandbox and one container each"
    );

    for name in &names {
        stage.remove(name);
    }
    stage
        .wait_long(2 * LONG, "crowd", "all are gone", async || {
            let mut left = stage.in_runtime().await;
            let pods = stage.krablet.root_dir().join("pods");
            left.extend(entries(&pods));
            left.extend(stage.cgroups());
            left.extend(entries(&stage.krablet.pod_logs()));
            match left.len() {
                0 => Ok(()),
                count => Err(format!(
                    "{count} things are left: {:?}",
                    &left[..count.min(5)]
                )),
            }
        })
        .await;
    assert_eq!(stage.krablet.pods().await.unwrap().items.len(), 0);
    stage.down().await;
}

fn entries(dir: &std::path::Path) -> Vec<String> {
    let all = std::fs::read_dir(dir).into_iter().flatten().flatten();
    all.map(|entry| entry.path().display().to_string())
        .collect()
}

/// YAML that grows a billionfold when its references are followed.
fn yaml_bomb() -> String {
    let mut text = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (this, last) in "bcdefghijk".chars().zip("abcdefghij".chars()) {
        let list = vec![format!("*{last}"); 9].join(", ");
        text.push_str(&format!("{this}: &{this} [{list}]\n"));
    }
    text
}

/// The contents of 200 files, none of which is a manifest.
fn broken() -> Vec<Vec<u8>> {
    let good = serde_json::to_string(&single("broken", tool("main", &["hold"]))).unwrap();
    let mut all: Vec<Vec<u8>> = Vec::new();
    let cuts = (1..60).map(|part| good.len() * part / 60);
    all.extend(cuts.map(|at| good.as_bytes()[..at].to_vec()));
    let typed = [
        ("/spec/containers", json!("none")),
        ("/spec/containers", json!({})),
        ("/spec/containers", json!([])),
        ("/spec/containers/0/name", json!(7)),
        ("/spec/containers/0/name", json!("Upper Case")),
        ("/spec/containers/0/image", json!([])),
        ("/spec/containers/0/image", json!("")),
        ("/spec/containers/0/args", json!("hold")),
        ("/spec/containers/0/args", json!([1, 2])),
        ("/spec/terminationGracePeriodSeconds", json!("soon")),
        ("/spec/terminationGracePeriodSeconds", json!(1.5)),
        ("/metadata/name", json!(null)),
        ("/metadata/name", json!("")),
        ("/metadata/name", json!("-dash")),
        ("/metadata/name", json!({"a": 1})),
        ("/metadata", json!([])),
        ("/spec", json!("spec")),
        ("/spec", json!(null)),
        ("/kind", json!("Deployment")),
        ("/kind", json!(3)),
        ("/apiVersion", json!("v2")),
        ("/apiVersion", json!("apps/v1")),
    ];
    for (pointer, value) in typed {
        let mut pod = single("broken", tool("main", &["hold"]));
        *pod.pointer_mut(pointer).unwrap() = value;
        all.push(pod.to_string().into_bytes());
    }
    for text in [
        "",
        " ",
        "\n",
        "null",
        "true",
        "7",
        "\"text\"",
        "[]",
        "{}",
        "---",
        "- a\n- b\n",
        "a: b\n",
    ] {
        all.push(text.as_bytes().to_vec());
    }
    for text in [
        "a: [",
        "a: {",
        "\ta: b",
        "a: b: c",
        "&a *a",
        "%YAML 9",
        "a: !!int x",
        "? ",
        "a: 'b",
        "\"\\x\"",
    ] {
        all.push(text.as_bytes().to_vec());
    }
    all.extend((0..5).map(|number| format!("n{number}: 1\n{}", yaml_bomb()).into_bytes()));
    all.extend((1..=5).map(|depth| "[".repeat(depth * 20_000).into_bytes()));
    all.extend((1..=5).map(|depth| "{\"a\":".repeat(depth * 20_000).into_bytes()));
    all.extend((1..=3).map(|mib| vec![b'x'; mib << 20]));
    all.push(vec![b' '; 11 << 20]);
    let mut state = 1_u64;
    while all.len() < 200 {
        let mut noise = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as u8
        };
        let length = 1 + usize::from(noise()) * 8;
        all.push((0..length).map(|_| noise()).collect());
    }
    all
}

/// Two hundred files that are no manifests beside three that are: the three run, each of the
/// others is explained once, and memory does not grow with them.
pub async fn two_hundred_broken_manifests() {
    let stage = Stage::up(json!({"fileCheckFrequency": "1s"})).await;
    let good = ["good-a", "good-m", "good-z"];
    for name in good {
        stage
            .run(name, &single(name, tool("main", &["hold"])))
            .await;
    }
    let before = stage.krablet.rss().unwrap();
    let all = broken();
    assert_eq!(all.len(), 200);
    write_broken(&stage, &all, 0);
    let complaints = |log: &str| -> Vec<usize> {
        let told = |number: usize| {
            let file = format!("bad-{number:03}.yaml");
            let lines = log
                .lines()
                .filter(|line| line.contains("Could not process manifest"));
            lines.filter(|line| line.contains(&file)).count()
        };
        (0..200).map(told).collect()
    };
    stage
        .wait("bad-", "each is explained", async || {
            let told = complaints(&stage.krablet.log());
            let silent: Vec<usize> = (0..200).filter(|n| told[*n] == 0).collect();
            match silent.is_empty() {
                true => Ok(()),
                false => Err(format!("nothing said of {silent:?}")),
            }
        })
        .await;
    // A good one that comes after them is read after all of them were read again.
    stage
        .run("good-last", &single("good-last", tool("main", &["hold"])))
        .await;
    for round in 0..3 {
        let name = format!("good-{round}");
        stage
            .run(&name, &single(&name, tool("main", &["hold"])))
            .await;
        stage.end(&name).await;
    }
    for (number, told) in complaints(&stage.krablet.log()).into_iter().enumerate() {
        let text = String::from_utf8_lossy(&all[number]);
        let text: String = text.chars().take(200).collect();
        assert_eq!(told, 1, "bad-{number:03}: {text:?}");
    }
    for name in good {
        let pod = stage.running(name).await;
        assert_eq!(status::container(&pod, "main").unwrap().restart_count, 0);
    }
    memory_stays_flat(&stage, &all, before).await;
    assert_eq!(
        stage.krablet.pods().await.unwrap().items.len(),
        good.len() + 1
    );
    stage.down().await;
}

/// Puts them in place in one step each. A tail of blanks makes the contents of each round new, and mends none.
fn write_broken(stage: &Stage, all: &[Vec<u8>], round: usize) {
    let dir = stage.krablet.manifests();
    for (number, bytes) in all.iter().enumerate() {
        let hidden = dir.join(format!(".bad-{number:03}"));
        let mut bytes = bytes.clone();
        bytes.resize(bytes.len() + round, b' ');
        std::fs::write(&hidden, bytes).unwrap();
        std::fs::rename(&hidden, dir.join(format!("bad-{number:03}.yaml"))).unwrap();
    }
}

/// Each round brings as many bytes again; who kept a tenth of them would be over the limit at the end.
async fn memory_stays_flat(stage: &Stage, all: &[Vec<u8>], before: u64) {
    const ROUNDS: usize = 5;
    let bytes: usize = all.iter().map(Vec::len).sum();
    let limit = before + (ROUNDS * bytes / 10) as u64;
    for round in 1..=ROUNDS {
        write_broken(stage, all, round);
        // Its name comes last, so it runs once all others were read.
        let name = format!("round-{round}");
        stage
            .run(&name, &single(&name, tool("main", &["hold"])))
            .await;
        stage.end(&name).await;
    }
    // What was freed goes back to the system a little later.
    stage
        .wait("bad-", "memory is back", async || {
            match stage.krablet.rss().map_err(|e| format!("{e:#}"))? {
                now if now < limit => Ok(()),
                now => Err(format!("resident memory grew from {before} to {now}")),
            }
        })
        .await;
}
