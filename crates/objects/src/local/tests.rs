use futures::FutureExt as _;
use krablet_linux::{HostFiles, InotifyWatch};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::*;
use crate::Kind;

struct World {
    directory: TempDir,
    referents: Referents,
    _task: JoinSet<()>,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (referents, task) = local(
            directory.path().to_owned(),
            Arc::new(HostFiles),
            Arc::new(InotifyWatch),
        );
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run());
        Self {
            directory,
            referents,
            _task: tasks,
        }
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.directory.path().join(file), text).unwrap();
    }

    fn want(&self, uid: &str, config_map: &str) {
        let pod = serde_json::json!({
            "metadata": {"namespace": "default", "name": uid, "uid": uid},
            "spec": {"containers": [], "volumes": [{"name": "v", "configMap": {"name": config_map}}]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.referents.objects.want(&pod);
    }

    async fn value(&self, name: &str) -> Result<String, String> {
        let object = self.referents.objects.config_map("default", name).await;
        let object = object.map_err(|e| e.to_string())?;
        Ok(object.data.as_ref().unwrap()["k"].clone())
    }

    async fn rung(&self) -> Vec<String> {
        let pods = self.referents.bell.next().await;
        pods.iter().map(ToString::to_string).collect()
    }
}

fn config_map(name: &str, value: &str) -> String {
    format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}, data: {{k: {value}}}}}")
}

#[tokio::test]
async fn objects_come_change_and_go_and_wake_their_pods() {
    let world = World::new();
    world.want("pod-a", "a");
    world.want("pod-b", "b");
    let missing = world.value("a").await;
    assert_eq!(missing, Err(r#"configmap "a" not found"#.to_owned()));
    world.write("a.yaml", &config_map("a", "one"));
    assert_eq!(world.rung().await, ["pod-a"]);
    assert_eq!(world.value("a").await.as_deref(), Ok("one"));
    world.write("b.yml", &config_map("b", "two"));
    assert_eq!(world.rung().await, ["pod-b"]);
    world.write("a.yaml", &config_map("a", "three"));
    assert_eq!(world.rung().await, ["pod-a"]);
    assert_eq!(world.value("a").await.as_deref(), Ok("three"));
    world.referents.objects.forget(&"pod-b".into());
    std::fs::remove_file(world.directory.path().join("b.yml")).unwrap();
    std::fs::remove_file(world.directory.path().join("a.yaml")).unwrap();
    assert_eq!(world.rung().await, ["pod-a"]);
    assert!(world.value("a").await.is_err());
}

#[tokio::test]
async fn a_broken_file_takes_nothing_away() {
    let world = World::new();
    world.want("pod-a", "a");
    world.write("a.yaml", &config_map("a", "one"));
    assert_eq!(world.rung().await, ["pod-a"]);
    world.write("a.yaml", "{");
    world.write("notes.txt", &config_map("b", "x"));
    world.write(".hidden.yaml", &config_map("b", "x"));
    // Two files in turn: once the second is seen, so is the broken one.
    world.want("pod-c", "c");
    world.write("c.json", &config_map("c", "three"));
    assert_eq!(world.rung().await, ["pod-c"]);
    assert_eq!(world.value("a").await.as_deref(), Ok("one"));
    assert!(world.value("b").await.is_err());
    assert!(world.referents.bell.next().now_or_never().is_none());
    assert!(world.referents.services.all().unwrap().is_empty());
    let secret = world.referents.objects.secret("default", "a").await;
    let key = ObjectKey::new(Kind::Secret, "default", "a");
    assert_eq!(secret, Err(ObjectError::not_found(&key)));
}

#[tokio::test]
async fn the_first_file_by_name_counts() {
    let world = World::new();
    world.want("pod", "a");
    world.write("2.yaml", &config_map("a", "second"));
    world.rung().await;
    world.write("1.yaml", &config_map("a", "first"));
    world.rung().await;
    assert_eq!(world.value("a").await.as_deref(), Ok("first"));
}
