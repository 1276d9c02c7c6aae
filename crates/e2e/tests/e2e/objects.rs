//! ConfigMaps and secrets of a node without an API server.

use std::path::Path;

use krablet_e2e::manifest::{scratch_volume, scratched, shell, single, with};
use krablet_e2e::{Stage, status};
use serde_json::{Value, json};

fn write(directory: &Path, file: &str, object: &Value) {
    std::fs::write(directory.join(file), object.to_string()).unwrap();
}

/// Static pods take them from a directory, wait for what is missing, and see it when it comes.
pub async fn from_a_directory() {
    let (stage, directory) = Stage::with_local_objects().await;
    let scratch = stage.scratch("objects");
    let env = json!([
        {"name": "WORD", "valueFrom": {"configMapKeyRef": {"name": "words", "key": "first"}}},
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "key", "key": "password"}}},
    ]);
    let script = "echo $WORD $PASSWORD >> /scratch/seen; exec sleep 10000";
    let container = with(scratched(shell("main", script)), json!({"env": env}));
    let mut manifest = single("local", container);
    manifest["spec"]["volumes"] = json!([scratch_volume(&scratch)]);
    stage.apply("local", &manifest);
    let waits = async |expected: &str| {
        stage
            .until("local", expected, |pod| {
                match status::waiting(pod, "main")? {
                    (_, message) if message == expected => Ok(()),
                    found => Err(format!("{found:?}")),
                }
            })
            .await;
    };
    waits("configmap \"words\" not found").await;
    let words = |first: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "words"}, "data": {"first": first}});
    write(&directory, "words.json", &words("hello"));
    waits("secret \"key\" not found").await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"password": "hush"}});
    write(&directory, "key.yaml", &secret);
    stage.running("local").await;
    assert_eq!(stage.lines(&scratch, "seen"), ["hello hush"]);
    stage.end("local").await;
    stage.down().await;
}
