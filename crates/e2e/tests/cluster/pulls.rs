//! How a node itself is set up to pull: credentials of its own, and how many pulls at once.

use std::fs;

use krablet_e2e::Member;
use krablet_e2e::cluster_stage::Joining;
use krablet_e2e::manifest::single;
use krablet_testbed::{Access, Manners, Registry};
use serde_json::json;

use crate::images::{self, PASSWORD, holding};

/// A file of the node lets every pod pull, whatever its own secrets are worth.
pub async fn credentials_of_the_node(main: &Member) {
    let mut node = main.prepared_beside("trusted", Joining::default()).await;
    let registry = Registry::up().await.unwrap();
    registry.introduce(&node.stage.bed).unwrap();
    let access = || Access::basic("crab", PASSWORD);
    let (image, _) = registry.put("node/app:v1", access()).await.unwrap();
    let (other, _) = registry.put("node/other:v1", access()).await.unwrap();
    let (elsewhere, _) = registry.put("team/app:v1", access()).await.unwrap();
    let place = format!("{}/node", registry.host());
    let config = json!({"auths": {place: {"username": "crab", "password": PASSWORD}}});
    let root = node.stage.krablet.root_dir();
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("config.json"), config.to_string()).unwrap();
    node.start().await;

    node.run(&single("node-key", holding(&image, "IfNotPresent")))
        .await;
    node.plane
        .create(
            images::SECRETS,
            &images::secret("node-wrong", &registry, "wrong"),
        )
        .await
        .unwrap();
    let both = images::with_secret("node-both", &other, "IfNotPresent", "node-wrong");
    node.run(&both).await;
    // For another place it is of no use.
    node.create(&single("node-no-key", holding(&elsewhere, "IfNotPresent")))
        .await;
    images::waits(&node, "node-no-key", "ImagePullBackOff", images::NOBODY).await;
    let log = node.stage.krablet.log();
    assert!(
        !log.contains(PASSWORD),
        "the password stands in the agent's log"
    );
    crate::inside::end_all(&node, &["node-key", "node-both", "node-no-key"]).await;
    node.down().await;
}

/// As many pulls at once as the node may have, and the next when one of them is done.
pub async fn side_by_side(main: &Member) {
    let joining = Joining {
        config: json!({"serializeImagePulls": false, "maxParallelImagePulls": 2}),
        ..Joining::default()
    };
    let mut node = main.prepared_beside("parallel", joining).await;
    let registry = Registry::up().await.unwrap();
    registry.introduce(&node.stage.bed).unwrap();
    let places = ["side/a", "side/b", "side/c"];
    node.start().await;
    let mut pods = Vec::new();
    for place in places {
        let (image, _) = registry
            .put(&format!("{place}:v1"), Access::Open)
            .await
            .unwrap();
        registry.set_manners(place, Manners::Held);
        let name = place.replace('/', "-");
        node.create(&single(&name, holding(&image, "IfNotPresent")))
            .await;
        node.event(&name, "Pulling", "").await;
        pods.push(name);
    }
    let asked = || -> Vec<&str> {
        let asked = places.iter().filter(|place| registry.asked(place) > 0);
        asked.copied().collect()
    };
    let are_asked = async |count: usize| {
        node.wait(
            "side",
            &format!("{count} are asked for"),
            async || match asked() {
                some if some.len() == count => Ok(some),
                some => Err(format!("{some:?}")),
            },
        )
        .await
    };
    let first = are_asked(2).await;
    registry.set_manners(first[0], Manners::Quick);
    node.running(&first[0].replace('/', "-")).await;
    are_asked(3).await;
    for place in places {
        registry.set_manners(place, Manners::Quick);
    }
    for name in &pods {
        node.running(name).await;
    }
    let names: Vec<&str> = pods.iter().map(String::as_str).collect();
    crate::inside::end_all(&node, &names).await;
    node.down().await;
}
