//! The machine goes down and comes up again, while nobody can tell it what it should run, and while somebody can.

use krablet_e2e::cluster_stage::PODS;
use krablet_e2e::manifest::{shell, single, tool};
use krablet_e2e::{Member, manifest, status};
use krablet_testbed::ControlPlaneOptions;
use serde_json::{Value, json};

use crate::outages::{id, own_view};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

/// Runs only if it finds all that the API server was asked for on its behalf.
fn needy() -> Value {
    let script = r#"test "$WORD" = public && test "$KEY" = hidden && test "$(cat /keys/key)" = hidden &&
        test -s /token/token && test -n "$KUBERNETES_SERVICE_HOST" && exec sleep 100000"#;
    let mut main = shell("main", script);
    main["env"] = json!([
        {"name": "WORD", "valueFrom": {"configMapKeyRef": {"name": "words", "key": "word"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "key"}}},
    ]);
    main["volumeMounts"] = json!([
        {"name": "keys", "mountPath": "/keys"},
        {"name": "token", "mountPath": "/token"},
    ]);
    let volumes = json!([
        {"name": "keys", "secret": {"secretName": "keys"}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
    ]);
    let spec =
        json!({"containers": [main], "volumes": volumes, "terminationGracePeriodSeconds": 1});
    manifest::pod("needy", spec)
}

/// What the API server wants is written down once a second at most.
async fn is_written_down(node: &Member, pod: &str, phase: &str) {
    let file = node.stage.krablet.root_dir();
    let file = file.join("krablet/desired_pods.json");
    let name = format!("\"name\":\"{pod}\"");
    node.wait(pod, "is written down", async || {
        let text = std::fs::read_to_string(&file).map_err(|e| e.to_string())?;
        match text.contains(&name) && text.contains(phase) {
            true => Ok(()),
            false => Err(text),
        }
    })
    .await;
}

pub async fn without_an_api_server() {
    let mut node = Member::founding(ControlPlaneOptions::default(), "reboots").await;
    let words = json!({"metadata": {"name": "words"}, "data": {"word": "public"}});
    node.plane.create(CONFIG_MAPS, &words).await.unwrap();
    let keys = json!({"metadata": {"name": "keys"}, "stringData": {"key": "hidden"}});
    node.plane.create(SECRETS, &keys).await.unwrap();
    let needy = node.run(&needy()).await;
    let lasting = node.run(&single("lasting", tool("main", &["hold"]))).await;
    let once = json!({"containers": [shell("main", "exit 0")], "restartPolicy": "Never"});
    node.create(&manifest::pod("once", once)).await;
    let done = node.phase("once", "Succeeded").await;
    is_written_down(&node, "once", "Succeeded").await;
    node.stage.krablet.kill9().await.unwrap();
    node.plane.stop_apiserver().await.unwrap();
    node.stage.bed.power_cut().await.unwrap();

    node.stage.bed.start_containerd().await.unwrap();
    node.stage.start().await;
    let back = node
        .wait("lasting", "runs after the reboot", async || {
            let pod = own_view(&node, "lasting").await?;
            status::all_running(&pod)?;
            Ok(pod)
        })
        .await;
    assert_ne!(id(&back), id(&lasting));
    assert_eq!(status::container(&back, "main").unwrap().restart_count, 1);
    let needs = node
        .wait("needy", "has what it needs", async || {
            let pod = own_view(&node, "needy").await?;
            status::all_running(&pod)?;
            Ok(pod)
        })
        .await;
    assert_ne!(id(&needs), id(&needy));
    let over = own_view(&node, "once").await.unwrap();
    status::in_phase(&over, "Succeeded").unwrap();

    node.plane.start_apiserver().await.unwrap();
    let told = node
        .until("lasting", "its restart is told", |pod| {
            status::all_running(pod)?;
            match id(pod) == id(&back) {
                true => Ok(pod.clone()),
                false => Err(status::shown(pod)),
            }
        })
        .await;
    assert_eq!(status::uid(&told), status::uid(&lasting));
    node.ready().await;
    let over = node.phase("once", "Succeeded").await;
    assert_eq!(id(&over), id(&done), "it was not run again");
    for name in ["lasting", "once", "needy"] {
        node.end(name).await;
    }
    let secrets = node.stage.krablet.root_dir().join("krablet/kept-secrets");
    node.wait("needy", "leaves no secret behind", async || {
        let left = std::fs::read_dir(&secrets).map_err(|e| e.to_string())?;
        match left.count() {
            0 => Ok(()),
            left => Err(format!("{left} files")),
        }
    })
    .await;
    node.down().await;
}

/// What was deleted while the machine was off does not come back with it, not even for a moment.
pub async fn with_an_api_server(main: &Member) {
    let mut node = main.beside("revived").await;
    let kept = node.run(&single("kept", tool("main", &["hold"]))).await;
    let dropped = node.run(&single("dropped", tool("main", &["hold"]))).await;
    is_written_down(&node, "kept", "Running").await;
    is_written_down(&node, "dropped", "Running").await;
    node.stage.krablet.kill9().await.unwrap();
    node.stage.bed.power_cut().await.unwrap();
    let now = format!("{PODS}/dropped?gracePeriodSeconds=0");
    node.plane.delete(&now).await.unwrap();

    node.stage.bed.start_containerd().await.unwrap();
    node.stage.start().await;
    let back = node
        .until("kept", "runs again", |pod| {
            status::all_running(pod)?;
            match id(pod) == id(&kept) {
                true => Err("still the old container".to_owned()),
                false => Ok(pod.clone()),
            }
        })
        .await;
    assert_eq!(status::uid(&back), status::uid(&kept));
    let uid = status::uid(&dropped);
    let mut anew = node.containers(&uid).await;
    anew.retain(|container| container.id != id(&dropped));
    assert!(anew.is_empty(), "{anew:?}");
    let log = node.stage.krablet.log();
    let restored = |line: &&str| line.contains("RESTORE") && line.contains("dropped");
    assert_eq!(log.lines().find(restored), None);
    node.gone("dropped", &uid).await;
    node.end("kept").await;
    node.down().await;
}
