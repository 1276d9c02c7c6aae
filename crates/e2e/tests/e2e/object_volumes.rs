//! Volumes of a node without an API server that show configMaps and secrets of a directory.

use std::path::Path;
use std::time::Duration;

use krablet_cri::RuntimeService;
use krablet_e2e::manifest::{shell, single, with};
use krablet_e2e::{Stage, status};
use serde_json::{Value, json};

fn object(kind: &str, name: &str, data: Value) -> Value {
    let field = match kind {
        "Secret" => "stringData",
        _ => "data",
    };
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, field: data})
}

/// As an editor writes it: the file is another one afterwards.
fn put(directory: &Path, file: &str, objects: &[Value]) {
    let documents: Vec<String> = objects.iter().map(ToString::to_string).collect();
    let aside = directory.join(format!(".{file}.new"));
    std::fs::write(&aside, documents.join("\n---\n")).unwrap();
    std::fs::rename(aside, directory.join(file)).unwrap();
}

/// Waits until a script says this inside the pod's container.
async fn says(stage: &Stage, pod: &str, script: &str, expected: &str) {
    let what = format!("`{script}` says {expected:?}");
    stage
        .wait(pod, &what, async || {
            let running = stage.running_ids(pod).await;
            let (_, id) = running.first().ok_or("no container runs")?;
            let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
            let deadline = Duration::from_secs(30);
            let said = stage.runtime.exec_sync(id, command, deadline).await;
            let said = said.map_err(|e| e.to_string())?;
            match String::from_utf8_lossy(&said.stdout).trim_end() {
                found if found == expected => Ok(()),
                found => Err(format!("exit {}: {found}", said.exit_code)),
            }
        })
        .await;
}

fn showing(name: &str) -> Value {
    let at = |volume: &str| json!({"name": volume, "mountPath": format!("/{volume}")});
    let part = json!({"name": "conf", "mountPath": "/part", "subPath": "plain"});
    let mounts = json!({"volumeMounts": [at("conf"), at("keys"), at("all"), part]});
    let mut manifest = single(name, with(shell("main", "exec sleep 10000"), mounts));
    manifest["spec"]["volumes"] = json!([
        {"name": "conf", "configMap": {"name": "settings", "defaultMode": 0o440}},
        {"name": "keys", "secret": {"secretName": "key", "items": [{"key": "word", "path": "deep/word", "mode": 0o400}]}},
        {"name": "all", "projected": {"sources": [
            {"configMap": {"name": "settings", "items": [{"key": "plain", "path": "renamed"}]}},
            {"secret": {"name": "key"}},
            {"configMap": {"name": "later", "optional": true}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}},
    ]);
    manifest
}

/// They show what the directory has, wait for what is missing, and follow what changes.
pub async fn follow_a_directory() {
    let (stage, directory) = Stage::with_local_objects().await;
    let name = "shown";
    stage.apply(name, &showing(name));
    for (volume, missing) in [
        ("conf", "configmap \"settings\" not found"),
        ("keys", "secret \"key\" not found"),
    ] {
        let why = format!("MountVolume.SetUp failed for volume {volume:?} : {missing}");
        stage.event(name, "FailedMount", &why).await;
    }
    let settings = |data: Value| object("ConfigMap", "settings", data);
    let key = |word: &str| object("Secret", "key", json!({"word": word}));
    let first = settings(json!({"plain": "one", "gone": "soon"}));
    put(&directory, "objects.yaml", &[first, key("hidden")]);
    let pod = stage.running(name).await;
    for (script, expected) in [
        ("cat /conf/plain /keys/deep/word /part", "onehiddenone"),
        (
            "cat /all/renamed /all/word /all/name",
            "onehiddenshown-krablet",
        ),
        (
            "stat -Lc %a /conf/plain /keys/deep/word /all/word",
            "440\n400\n644",
        ),
        (
            "ls /conf /all",
            "/all:\nname\nrenamed\nword\n\n/conf:\ngone\nplain",
        ),
        // Secrets live in memory.
        ("grep -c ' /keys tmpfs' /proc/mounts", "1"),
    ] {
        says(&stage, name, script, expected).await;
    }

    let second = settings(json!({"plain": "two", "fresh": "x"}));
    put(&directory, "objects.yaml", &[second, key("other")]);
    let follows = "cat /conf/plain /conf/fresh /keys/deep/word /all/renamed /all/word";
    says(&stage, name, follows, "twoxothertwoother").await;
    says(&stage, name, "ls /conf", "fresh\nplain").await;
    // One that was not there comes, in a file of its own.
    let later = object("ConfigMap", "later", json!({"late": "here"}));
    put(&directory, "later.json", &[later]);
    says(&stage, name, "cat /all/late", "here").await;
    // A file that is wrong costs nothing.
    std::fs::write(directory.join("objects.yaml"), "kind: [").unwrap();
    stage
        .wait(name, "the file is told of", async || {
            let log = stage.krablet.log();
            let told = log.lines().any(|line| line.contains("objects.yaml"));
            told.then_some(()).ok_or_else(|| "not yet".to_owned())
        })
        .await;
    says(&stage, name, follows, "twoxothertwoother").await;
    // A part of a volume stays what it was.
    says(&stage, name, "cat /part", "one").await;
    let now = stage.pod(name).await.unwrap();
    assert_eq!(status::uid(&now), status::uid(&pod));
    assert_eq!(status::container(&now, "main").unwrap().restart_count, 0);
    stage.end(name).await;
    stage.down().await;
}
