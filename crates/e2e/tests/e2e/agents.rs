//! Other ways to run the agent: from one file, from a URL, once, twice, under another name.

use std::time::Duration;

use krablet_e2e::manifest::{pod, single, tool};
use krablet_e2e::stage::{LONG, full, options};
use krablet_e2e::web::Web;
use krablet_e2e::{Stage, status};
use krablet_testbed::{Bed, BedOptions, Home, Krablet, eventually};
use serde_json::{Value, json};

/// Another agent on the bed of the one before, which is stopped; its pods go on.
async fn next_agent(mut stage: Stage, config: Value) -> Stage {
    if stage.krablet.is_running() {
        let ended = stage.krablet.terminate().await.unwrap();
        assert!(ended.success(), "{ended}");
    }
    Stage::on(stage.bed, options(config))
}

/// One file instead of a directory, then pods from a URL.
pub async fn single_file_and_url_sources() {
    let bed = Bed::up(BedOptions::default()).await.unwrap();
    let file = bed.dir().join("the-manifest.yaml");
    let manifest = |code: &str| single("filed", tool("main", &["sleep", code])).to_string();
    std::fs::write(&file, manifest("1000h")).unwrap();
    let mut stage = Stage::on(bed, options(json!({"staticPodPath": file})));
    stage.start().await;
    let before = stage.running("filed").await;
    let next = file.with_extension("new");
    std::fs::write(&next, manifest("2000h")).unwrap();
    std::fs::rename(&next, &file).unwrap();
    let uid = status::uid(&before);
    stage
        .until("filed", "the changed one runs", |pod| {
            status::all_running(pod)?;
            match status::uid(pod) == uid {
                true => Err("still the old one".to_owned()),
                false => Ok(()),
            }
        })
        .await;
    stage.gone("filed", &uid).await;
    let uid = status::uid(&stage.pod("filed").await.unwrap());
    std::fs::remove_file(&file).unwrap();
    stage.gone("filed", &uid).await;
    url_source(stage).await;
}

async fn url_source(stage: Stage) {
    let web = Web::start().await;
    let list = |names: &[&str]| {
        let pods: Vec<Value> = names
            .iter()
            .map(|name| single(name, tool("main", &["hold"])))
            .collect();
        json!({"apiVersion": "v1", "kind": "PodList", "items": pods}).to_string()
    };
    web.answer(200, list(&["url-a", "url-b"]));
    let config = json!({
        "staticPodPath": null,
        "staticPodURL": web.url("/pods"),
        "staticPodURLHeader": {"X-Secret": ["one", "two"]},
        "httpCheckFrequency": "1s",
    });
    let mut stage = next_agent(stage, config).await;
    stage.start().await;
    let a = stage.running("url-a").await;
    let b = stage.running("url-b").await;
    let asked = web.requests().remove(0);
    assert_eq!(asked.path, "/pods");
    for value in ["one", "two"] {
        let header = format!("x-secret: {value}");
        assert!(
            asked
                .headers
                .iter()
                .any(|h| h.eq_ignore_ascii_case(&header)),
            "{asked:?}"
        );
    }
    let annotations = a.metadata.annotations.clone().unwrap();
    assert_eq!(annotations["kubernetes.io/config.source"], "http");

    // None of these is an answer, so what runs goes on.
    let ids = [
        stage.running_ids("url-a").await,
        stage.running_ids("url-b").await,
    ];
    let truncated = list(&["url-a"]).split_at(40).0.to_owned();
    for (status, body) in [
        (500, String::new()),
        (200, String::new()),
        (404, "{}".to_owned()),
        (200, truncated),
        (200, "{\"kind\": \"Secret\"}".to_owned()),
    ] {
        web.answer(status, body.clone());
        let asked = web.requests().len();
        stage
            .wait("url", "has got the bad answer twice", async || {
                match web.requests().len() {
                    count if count >= asked + 2 => Ok(()),
                    count => Err(format!("asked {count} times, before {asked}")),
                }
            })
            .await;
        let now = [
            stage.running_ids("url-a").await,
            stage.running_ids("url-b").await,
        ];
        assert_eq!(now, ids, "after {status} {body:?}");
        assert_eq!(stage.krablet.pods().await.unwrap().items.len(), 2);
    }
    web.answer(200, list(&["url-b"]));
    stage.gone("url-a", &status::uid(&a)).await;
    assert_eq!(stage.running_ids("url-b").await, ids[1]);
    web.answer(200, list(&[]));
    stage.gone("url-b", &status::uid(&b)).await;
    stage.down().await;
}

/// `runOnce` starts what there is, waits, tells, and its exit code says how it went.
pub async fn run_once_tells_by_its_exit_code() {
    let mut stage = Stage::prepared(json!({"runOnce": true})).await;
    let job = |name: &str, setup: &str| {
        let spec = json!({
            "restartPolicy": "Never",
            "initContainers": [tool("setup", &["exit", setup])],
            "containers": [tool("main", &["exit", "0"])],
        });
        pod(name, spec)
    };
    let once = async |stage: &mut Stage| {
        stage.krablet.start().unwrap();
        let ended = stage.krablet.wait(LONG).await.unwrap();
        (ended.code(), stage.krablet.log())
    };
    let (code, log) = once(&mut stage).await;
    assert_eq!(code, Some(0), "no pods is no failure\n{log}");

    stage.apply("once-holds", &single("once-holds", tool("main", &["hold"])));
    stage.apply("once-done", &job("once-done", "0"));
    let (code, log) = once(&mut stage).await;
    assert_eq!(code, Some(0), "{log}");
    let holds = format!("default/{}: running", full("once-holds"));
    // Whichever it was when it was looked at: both are well.
    let done =
        ["running", "succeeded"].map(|word| format!("default/{}: {word}", full("once-done")));
    assert!(log.contains(&holds), "{log}");
    assert!(done.iter().any(|line| log.contains(line)), "{log}");
    let running = stage.running_ids("once-holds").await;
    assert_eq!(running.len(), 1, "what was started goes on");

    stage.apply("once-bad", &job("once-bad", "5"));
    let (code, log) = once(&mut stage).await;
    assert_eq!(code, Some(1), "{log}");
    let bad = format!("default/{}: failed", full("once-bad"));
    assert!(log.contains(&bad), "{log}");
    assert_eq!(stage.running_ids("once-holds").await, running);
    stage.bed.down().await.unwrap();
}

/// Two agents on one root directory would undo each other's work.
pub async fn second_agent_on_a_root_directory_refuses() {
    let stage = Stage::up(Value::Null).await;
    let running = stage
        .run("first", &single("first", tool("main", &["hold"])))
        .await;
    let mut other = options(json!({"staticPodPath": null}));
    other.name = "second".to_owned();
    let root = format!("--root-dir={}", stage.krablet.root_dir().display());
    other.args.push(root);
    let mut second = stage.bed.prepare_krablet(other).unwrap();
    second.start().unwrap();
    let ended = second.wait(LONG).await.unwrap();
    assert_eq!(ended.code(), Some(1));
    let log = second.log();
    assert!(log.contains("another agent holds"), "{log}");
    let after = stage.running("first").await;
    let id = |pod| status::id(status::container(pod, "main").unwrap());
    assert_eq!(id(&running), id(&after));
    stage.down().await;
}

/// An orderly restart of the agent is not seen by the pods.
pub async fn restart_of_the_agent_is_not_seen_by_the_pods() {
    let mut stage = Stage::up(Value::Null).await;
    for name in ["calm-a", "calm-b"] {
        stage
            .run(name, &single(name, tool("main", &["hold"])))
            .await;
    }
    stage.remove("calm-b");
    let uid = status::uid(&stage.pod("calm-a").await.unwrap());
    let ids = stage.running_ids("calm-a").await;
    stage.krablet.restart().await.unwrap();
    let pod = stage.running("calm-a").await;
    assert_eq!(status::uid(&pod), uid);
    assert_eq!(stage.running_ids("calm-a").await, ids);
    stage
        .wait("calm-b", "is gone", async || {
            match stage.alive("calm-b").await {
                alive if alive.is_empty() => Ok(()),
                alive => Err(format!("{alive:?}")),
            }
        })
        .await;
    assert_eq!(stage.running_ids("calm-a").await, ids);
    stage.down().await;
}

/// An agent that is stopped before it ever met its runtime ends in good order.
pub async fn stopped_while_it_waits_for_the_runtime() {
    let dir = std::env::temp_dir().join(format!("krablet-e2e-early-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let nowhere = Home {
        dir: dir.clone(),
        endpoint: "unix:///nowhere".to_owned(),
        cgroup_root: None,
        bed: None,
    };
    for (name, run_once, code) in [("always", false, 0), ("once", true, 1)] {
        let mut options = options(json!({"runOnce": run_once}));
        options.name = name.to_owned();
        let mut krablet = Krablet::prepare(&nowhere, options).unwrap();
        krablet.start().unwrap();
        eventually(LONG, "the runtime is waited for", async || {
            match krablet.log() {
                log if log.contains("does not answer yet") => Ok(()),
                log => Err(log),
            }
        })
        .await;
        let ended = krablet.terminate().await.unwrap();
        assert_eq!(ended.code(), Some(code), "{}", krablet.log());
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Under the kubelet's name there are no commands; under its own name only the known ones.
pub async fn works_under_the_name_kubelet() {
    let dir = std::env::temp_dir().join(format!("krablet-e2e-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let nowhere = Home {
        dir: dir.clone(),
        endpoint: "unix:///nowhere".to_owned(),
        cgroup_root: None,
        bed: None,
    };
    let program = Krablet::prepare(&nowhere, options(Value::Null)).unwrap();
    let program = program.program().to_owned();
    let kubelet = dir.join("kubelet");
    std::os::unix::fs::symlink(&program, &kubelet).unwrap();
    let run = async |program: &std::path::Path, arguments: &[&str]| {
        let run = tokio::process::Command::new(program)
            .args(arguments)
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(Duration::from_secs(60), run).await;
        let output = output.expect("it ends").unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    for (program, arguments, word) in [
        (&kubelet, &["pods"][..], "pods"),
        (&kubelet, &["version"], "version"),
        (&program, &["podz"], "podz"),
        (&program, &["--no-such-flag"], "no-such-flag"),
        (&program, &["--v=many"], "many"),
        (
            &program,
            &["pods", "--root-dir=/nowhere"],
            "no agent answers",
        ),
    ] {
        let (code, out, err) = run(program, arguments).await;
        assert_eq!(code, Some(1), "{program:?} {arguments:?}: {out}{err}");
        assert!(err.contains(word), "{program:?} {arguments:?}: {err}");
        assert_eq!(err.trim().lines().count(), 1, "one clear line: {err}");
    }
    for program in [&kubelet, &program] {
        let (code, out, _) = run(program, &["--version"]).await;
        assert_eq!((code, out.as_str()), (Some(0), "Kubernetes v1.36.4\n"));
    }
    let (code, out, _) = run(&program, &["version"]).await;
    assert!(code == Some(0) && out.contains("krablet "), "{out}");
    std::fs::remove_dir_all(&dir).unwrap();
}
