//! Pods with users of their own.

use krablet_cri::v1;
use krablet_pod::api::Pod;

use crate::bench::{Bench, container, pod};
use crate::files::Node;

const REFUSED: &str = "FailedCreatePodSandBox: Failed to create pod sandbox: \
    can't set `spec.hostUsers: false`, runtime does not support user namespaces";

fn apart(uid: &str) -> Pod {
    let mut pod = pod(vec![], vec![container("a")]);
    pod.metadata.uid = Some(uid.into());
    pod.spec.as_mut().unwrap().host_users = Some(false);
    pod
}

fn users(options: Option<&v1::NamespaceOption>) -> Option<(u32, u32, u32)> {
    let users = options?.userns_options.as_ref()?;
    assert_eq!(users.uids, users.gids);
    assert_eq!(users.mode, v1::NamespaceMode::Pod as i32);
    let ids = users.uids.first()?;
    Some((ids.container_id, ids.host_id, ids.length))
}

/// Of the newest sandbox, and of the newest container.
fn seen(bench: &Bench) -> [Option<(u32, u32, u32)>; 2] {
    let state = bench.world.state();
    let sandbox = state.sandboxes.last().unwrap().config.linux.clone();
    let sandbox = sandbox.unwrap().security_context.unwrap();
    let config = &state.containers.last().unwrap().config;
    let container = config.linux.clone().unwrap().security_context.unwrap();
    let of_container = users(container.namespace_options.as_ref());
    for mount in &config.mounts {
        let ids = mount.uid_mappings.first();
        assert_eq!(
            ids.map(|i| (i.container_id, i.host_id, i.length)),
            of_container
        );
    }
    [users(sandbox.namespace_options.as_ref()), of_container]
}

#[tokio::test(start_paused = true)]
async fn each_pod_has_a_range_to_itself_and_keeps_it() {
    let bench = Bench::new();
    bench.world.state().user_namespaces = true;
    for (uid, first) in [("u1", 65_536), ("u2", 131_072), ("u1", 65_536)] {
        let done = bench.sync_fresh(&apart(uid)).await;
        assert!(done.error.is_none(), "{:?}", done.error);
        assert_eq!(seen(&bench), [Some((0, first, 65_536)); 2], "{uid}");
    }
    let Some(Node::File(record, _)) = bench.files.get("/root/pods/u2/userns") else {
        panic!("{:?}", bench.files.paths());
    };
    let record = String::from_utf8(record).unwrap();
    assert!(record.contains(r#""hostId":131072,"containerId":0,"length":65536"#));
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_cannot_is_not_asked_to() {
    let bench = Bench::new();
    let done = bench.sync_fresh(&apart("u1")).await;
    assert!(done.error.is_some());
    assert_eq!(bench.events(), [REFUSED]);
    assert!(bench.files.get("/root/pods/u1/userns").is_none());
}

/// Nobody knows which ids such a pod has, so no other gets any.
#[tokio::test(start_paused = true)]
async fn a_record_that_makes_no_sense_is_not_passed_over() {
    let bench = Bench::new();
    bench.world.state().user_namespaces = true;
    let done = bench.sync_fresh(&apart("u1")).await;
    assert!(done.error.is_none(), "{:?}", done.error);
    bench.files.put("/root/pods/u1/userns", b"{");
    let done = bench.sync_fresh(&apart("u2")).await;
    let error = done.error.unwrap().to_string();
    assert!(
        error.contains("create user namespace: invalid user namespace mappings file: "),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn others_have_the_users_of_the_node() {
    let bench = Bench::new();
    let done = bench.sync_fresh(&pod(vec![], vec![container("a")])).await;
    assert!(done.error.is_none(), "{:?}", done.error);
    assert_eq!(seen(&bench), [None, None]);
}
