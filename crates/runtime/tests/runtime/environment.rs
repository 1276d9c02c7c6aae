//! Environments from objects and services: what a container is created with, and what holds it up.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use krablet_pod::api::{
    EnvVar, EnvVarSource, FileKeySelector, Pod, Secret, SecretKeySelector, Service, ServicePort,
    ServiceSpec,
};
use krablet_runtime::VolumeSource;

use crate::bench::{Bench, container, pod};

fn env_of(bench: &Bench) -> Vec<String> {
    let state = bench.world.state();
    let created = state.containers.last().unwrap();
    let envs = created.config.envs.iter();
    envs.map(|e| format!("{}={}", e.key, e.value.escape_ascii()))
        .collect()
}

fn pod_with(source: EnvVarSource) -> Pod {
    let mut container = container("a");
    container.env = Some(vec![EnvVar {
        name: "X".into(),
        value: None,
        value_from: Some(source),
    }]);
    pod(vec![], vec![container])
}

#[tokio::test(start_paused = true)]
async fn a_container_starts_when_its_secret_is_there() {
    let bench = Bench::new();
    let pod = pod_with(EnvVarSource {
        secret_key_ref: Some(SecretKeySelector {
            key: "k".into(),
            name: "s".into(),
            optional: None,
        }),
        ..EnvVarSource::default()
    });
    let told = async |message: &str| {
        let outcome = bench.sync(&pod).await;
        let error = &outcome.start_errors["a"];
        assert_eq!(error.reason, "CreateContainerConfigError");
        assert_eq!(error.message, message);
        let events = bench.events();
        assert_eq!(events.last(), Some(&format!("Failed: Error: {message}")));
    };
    told("secret \"s\" not found").await;
    let mut secret = Secret::default();
    secret.metadata.namespace = Some("ns".into());
    secret.metadata.name = Some("s".into());
    bench.objects.put_secret(secret.clone());
    told("couldn't find key k in Secret ns/s").await;
    secret.data = Some(BTreeMap::from([(
        "k".into(),
        ByteString(b"\xffpass".to_vec()),
    )]));
    bench.objects.put_secret(secret);
    assert!(bench.sync(&pod).await.start_errors.is_empty());
    assert_eq!(env_of(&bench), ["X=\\xffpass"]);
}

#[tokio::test(start_paused = true)]
async fn services_are_told() {
    let bench = Bench::new();
    let mut service = Service {
        spec: Some(ServiceSpec {
            cluster_ip: Some("10.0.0.1".into()),
            ports: Some(vec![ServicePort {
                port: 443,
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    };
    service.metadata.name = Some("kubernetes".into());
    service.metadata.namespace = Some("default".into());
    bench.services.set(vec![service]);
    let pod = pod(vec![], vec![container("a")]);
    assert!(bench.sync(&pod).await.start_errors.is_empty());
    assert!(env_of(&bench).contains(&"KUBERNETES_PORT=tcp://10.0.0.1:443".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_file_of_a_volume_is_read_when_the_container_starts() {
    let bench = Bench::new();
    let pod = pod_with(EnvVarSource {
        file_key_ref: Some(FileKeySelector {
            key: "A".into(),
            optional: None,
            path: "dir/env".into(),
            volume_name: "data".into(),
        }),
        ..EnvVarSource::default()
    });
    let sync = async || {
        let volume = VolumeSource {
            name: "data".into(),
            host_path: "/v/data".into(),
            ..VolumeSource::default()
        };
        let outcome = bench.sync_with(&pod, &Default::default(), &[volume]).await;
        let error = outcome.start_errors.get("a");
        error.map(|e| e.message.clone()).unwrap_or_default()
    };
    assert_eq!(sync().await, "couldn't parse env file");
    bench.files.put("/v/data/dir/env", b"A='1'\n");
    assert_eq!(sync().await, "");
    assert_eq!(env_of(&bench), ["X=1"]);
}
