//! What mounts get of what the handler of their pod can do.

use std::sync::Arc;

use k8s_openapi::api::node::v1::RuntimeClass;
use krablet_core::probe::Verdicts;
use krablet_pod::api::{Pod, VolumeMount};
use krablet_runtime::{ClassTeller, VolumeSource};

use crate::bench::{Bench, config, container, pod};

/// A bench of a cluster with these classes, by name and handler.
fn bench(classes: &[(&str, &str)]) -> Bench {
    let class = |(name, handler): &(&str, &str)| {
        let mut class = RuntimeClass::default();
        class.metadata.name = Some((*name).to_owned());
        class.handler = (*handler).to_owned();
        Arc::new(class)
    };
    let teller = ClassTeller::default();
    let list = classes.iter().map(class).collect();
    teller.list.send_replace(Some(list));
    Bench::with_classes(config(), teller.listener())
}

fn mounting(class: Option<&str>, mode: &str) -> Pod {
    let mut container = container("a");
    container.volume_mounts = Some(vec![VolumeMount {
        name: "data".into(),
        mount_path: "/data".into(),
        read_only: Some(true),
        recursive_read_only: Some(mode.into()),
        ..VolumeMount::default()
    }]);
    let mut pod = pod(vec![], vec![container]);
    pod.spec.as_mut().unwrap().runtime_class_name = class.map(str::to_owned);
    pod
}

/// What the runtime is told of the mount, or what the user reads instead.
async fn mounted(bench: &Bench, pod: &Pod) -> Result<bool, String> {
    let volumes = [VolumeSource {
        name: "data".into(),
        spec_name: "data".into(),
        host_path: "/vol".into(),
        ..VolumeSource::default()
    }];
    let outcome = bench.sync_with(pod, &Verdicts::new(), &volumes).await;
    if let Some(error) = outcome.start_errors.get("a") {
        return Err(error.message.clone());
    }
    let state = bench.world.state();
    let mounts = &state.containers.last().unwrap().config.mounts;
    Ok(mounts[0].recursive_read_only)
}

#[tokio::test(start_paused = true)]
async fn a_mount_follows_the_handler_of_its_pods_class() {
    let refused = || {
        Err(
            "failed to resolve recursive read-only mode: volume \"data\" requested recursive read-only mode, \
             but it is not supported by the runtime"
                .to_owned(),
        )
    };
    for ((default, kata), class, mode, expected) in [
        ((true, false), None, "Enabled", Ok(true)),
        ((true, false), None, "IfPossible", Ok(true)),
        ((true, false), Some("plain"), "Enabled", Ok(true)),
        ((true, false), Some("safe"), "Enabled", refused()),
        ((true, false), Some("safe"), "IfPossible", Ok(false)),
        ((true, false), Some("safe"), "Disabled", Ok(false)),
        ((false, true), None, "Enabled", refused()),
        ((false, true), Some("safe"), "Enabled", Ok(true)),
        // A handler that the runtime does not know.
        ((true, true), Some("odd"), "IfPossible", Ok(false)),
    ] {
        let bench = bench(&[("safe", "kata"), ("plain", ""), ("odd", "gone")]);
        let handlers = [(String::new(), default), ("kata".to_owned(), kata)];
        bench.world.state().handlers = handlers.into();
        let pod = mounting(class, mode);
        bench.runtime.learn_handler(&pod).await;
        let able = bench.runtime.mounts_recursively_read_only(&pod);
        assert_eq!(able, expected == Ok(true), "{class:?} {mode}");
        let found = mounted(&bench, &pod).await;
        assert_eq!(found, expected, "{class:?} {mode}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_runtime_told_last_counts() {
    let bench = bench(&[("safe", "kata")]);
    let pod = mounting(Some("safe"), "IfPossible");
    let set = |can| {
        let handlers = &mut bench.world.state().handlers;
        handlers.insert("kata".to_owned(), can);
    };
    let able = async || {
        bench.runtime.learn_handler(&pod).await;
        bench.runtime.mounts_recursively_read_only(&pod)
    };
    assert!(!able().await);
    set(true);
    assert!(able().await);
    set(false);
    bench.world.fail("Status", "connection refused");
    assert!(able().await, "nobody has said otherwise");
    assert!(!able().await);
}
