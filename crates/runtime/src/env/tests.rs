//! Tables of environments: what comes of a spec and of what was found.

use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use krablet_objects::{Kind, ObjectKey};
use krablet_pod::api::{
    ConfigMapEnvSource, EnvVar, ObjectFieldSelector, PodSpec, ResourceFieldSelector,
    SecretEnvSource, ServicePort, ServiceSpec,
};

use super::*;

fn plain(name: &str, value: &str) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: Some(value.into()),
        value_from: None,
    }
}

fn from(name: &str, source: EnvVarSource) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: None,
        value_from: Some(source),
    }
}

fn config_map(name: &str, key: &str, optional: Option<bool>) -> EnvVarSource {
    EnvVarSource {
        config_map_key_ref: Some(ConfigMapKeySelector {
            key: key.into(),
            name: name.into(),
            optional,
        }),
        ..EnvVarSource::default()
    }
}

fn secret(name: &str, key: &str, optional: Option<bool>) -> EnvVarSource {
    EnvVarSource {
        secret_key_ref: Some(SecretKeySelector {
            key: key.into(),
            name: name.into(),
            optional,
        }),
        ..EnvVarSource::default()
    }
}

fn file(volume: &str, path: &str, key: &str, optional: Option<bool>) -> EnvVarSource {
    EnvVarSource {
        file_key_ref: Some(FileKeySelector {
            key: key.into(),
            optional,
            path: path.into(),
            volume_name: volume.into(),
        }),
        ..EnvVarSource::default()
    }
}

fn all_of_config_map(name: &str, prefix: &str, optional: Option<bool>) -> EnvFromSource {
    EnvFromSource {
        prefix: Some(prefix.into()),
        config_map_ref: Some(ConfigMapEnvSource {
            name: name.into(),
            optional,
        }),
        secret_ref: None,
    }
}

fn all_of_secret(name: &str, prefix: Option<&str>, optional: Option<bool>) -> EnvFromSource {
    EnvFromSource {
        prefix: prefix.map(Into::into),
        config_map_ref: None,
        secret_ref: Some(SecretEnvSource {
            name: name.into(),
            optional,
        }),
    }
}

fn absent<T>(kind: Kind) -> Result<Arc<T>, ObjectError> {
    Err(ObjectError::not_found(&ObjectKey::new(kind, "ns", "gone")))
}

fn away<T>(kind: Kind) -> Result<Arc<T>, ObjectError> {
    Err(ObjectError::NotSynced { kind, cause: None })
}

/// ConfigMap `cfg` {a: 1, b: 2}, secret `key` {raw: ff, text: s}; `gone` is in neither, `away` is not answered.
fn gathered() -> Gathered {
    let cfg = ConfigMap {
        data: Some(
            [("a", "1"), ("b", "2")]
                .map(|(k, v)| (k.into(), v.into()))
                .into(),
        ),
        ..ConfigMap::default()
    };
    let key = Secret {
        data: Some(
            [("raw", &b"\xff\0"[..]), ("text", b"s")]
                .map(|(k, v)| (k.to_string(), ByteString(v.to_vec())))
                .into(),
        ),
        ..Secret::default()
    };
    Gathered {
        config_maps: BTreeMap::from([
            ("cfg".into(), Ok(Arc::new(cfg))),
            ("gone".into(), absent(Kind::ConfigMap)),
            ("away".into(), away(Kind::ConfigMap)),
        ]),
        secrets: BTreeMap::from([
            ("key".into(), Ok(Arc::new(key))),
            ("gone".into(), absent(Kind::Secret)),
            ("away".into(), away(Kind::Secret)),
        ]),
        files: BTreeMap::from([
            (
                ("data".into(), "env".into()),
                FoundFile::Read {
                    path: "/v/data/env".into(),
                    bytes: b"A='from a file'\nEMPTY=''\n".to_vec(),
                },
            ),
            (
                ("data".into(), "bad".into()),
                FoundFile::Read {
                    path: "/v/data/bad".into(),
                    bytes: b"A=1".to_vec(),
                },
            ),
            (("data".into(), "none".into()), FoundFile::Unreadable),
            (("volume".into(), "env".into()), FoundFile::NoVolume),
        ]),
        services: Ok(Arc::new([])),
    }
}

fn pod() -> Pod {
    let mut pod = Pod {
        spec: Some(PodSpec::default()),
        ..Pod::default()
    };
    pod.metadata.name = Some("web".into());
    pod.metadata.namespace = Some("ns".into());
    pod.metadata.uid = Some("u".into());
    pod
}

fn run_with(
    pod: &Pod,
    env_from: Vec<EnvFromSource>,
    env: Vec<EnvVar>,
    gathered: &Gathered,
) -> Result<Envs, String> {
    let container = Container {
        name: "c".into(),
        env: Some(env),
        env_from: Some(env_from),
        ..Container::default()
    };
    let node = NodeFacts {
        host_ips: krablet_linux::HostIps::fixed(["192.0.2.1".parse().unwrap()]),
        allocatable: BTreeMap::from([("cpu".into(), "4".parse().unwrap())]),
        ..NodeFacts::default()
    };
    environment(&EnvInputs {
        pod,
        container: &container,
        pod_ips: &["10.0.0.5".into()],
        node: &node,
        env_files: true,
        gathered,
    })
}

fn run(env_from: Vec<EnvFromSource>, env: Vec<EnvVar>) -> Result<Vec<String>, String> {
    run_with(&pod(), env_from, env, &gathered()).map(|envs| shown(&envs))
}

fn shown(envs: &Envs) -> Vec<String> {
    let line = |(k, v): (&String, &Vec<u8>)| format!("{k}={}", v.escape_ascii());
    envs.iter().map(line).collect()
}

#[test]
fn values_see_earlier_ones_and_a_later_one_wins() {
    let env = vec![
        plain("A", "1"),
        plain("B", "$(A)-$(C)-$$(A)"),
        plain("A", "2"),
        plain("D", "$(A)"),
        plain("E", ""),
    ];
    assert_eq!(
        run(vec![], env).unwrap(),
        ["A=2", "B=1-$(C)-$(A)", "D=2", "E="]
    );
}

#[test]
fn whole_objects_come_first_with_their_prefix() {
    let env_from = vec![
        all_of_config_map("cfg", "", None),
        all_of_config_map("cfg", "X-", None),
        all_of_secret("key", None, None),
        all_of_secret("gone", Some("N_"), Some(true)),
    ];
    let env = vec![plain("a", "own"), plain("C", "$(b) $(text) $(raw)")];
    assert_eq!(
        run(env_from, env).unwrap(),
        [
            "a=own",
            "b=2",
            "X-a=1",
            "X-b=2",
            "raw=\\xff\\x00",
            "text=s",
            "C=2 s \\xff\\x00",
        ]
    );
}

#[test]
fn keys_and_what_is_left_out() {
    let env = vec![
        from("A", config_map("cfg", "a", None)),
        from("B", secret("key", "raw", Some(false))),
        from("C", config_map("cfg", "none", Some(true))),
        from("D", secret("key", "none", Some(true))),
        from("E", config_map("gone", "a", Some(true))),
        from("F", secret("gone", "a", Some(true))),
        from("G", EnvVarSource::default()),
        from("H", file("data", "env", "A", None)),
        from("I", file("data", "env", "EMPTY", Some(true))),
        from("J", file("data", "env", "NONE", Some(true))),
    ];
    assert_eq!(
        run(vec![], env).unwrap(),
        ["A=1", "B=\\xff\\x00", "G=", "H=from a file"]
    );
}

#[test]
fn why_there_is_no_environment() {
    let cases = [
        (
            config_map("gone", "a", None),
            r#"configmap "gone" not found"#,
        ),
        (secret("gone", "a", None), r#"secret "gone" not found"#),
        (
            config_map("away", "a", Some(true)),
            "failed to sync configmap cache: timed out waiting for the condition",
        ),
        (
            secret("away", "a", None),
            "failed to sync secret cache: timed out waiting for the condition",
        ),
        (
            config_map("cfg", "none", None),
            "couldn't find key none in ConfigMap ns/cfg",
        ),
        (
            secret("key", "none", Some(false)),
            "couldn't find key none in Secret ns/key",
        ),
        (
            file("volume", "env", "A", None),
            r#"cannot find the volume "volume" referenced by FileKeyRef"#,
        ),
        (file("data", "bad", "A", None), "couldn't parse env file"),
        (
            file("data", "none", "A", Some(true)),
            "couldn't parse env file",
        ),
        (
            file("data", "env", "EMPTY", None),
            r#"environment variable key "EMPTY" not found in file "/v/data/env""#,
        ),
    ];
    for (source, expected) in cases {
        let told = format!("{source:?}");
        assert_eq!(
            run(vec![], vec![from("X", source)]),
            Err(expected.to_owned()),
            "{told}"
        );
    }
    let whole = [
        (
            all_of_config_map("gone", "", None),
            r#"configmap "gone" not found"#,
        ),
        (
            all_of_secret("gone", None, None),
            r#"secret "gone" not found"#,
        ),
        (
            all_of_secret("away", None, Some(true)),
            "failed to sync secret cache: timed out waiting for the condition",
        ),
    ];
    for (source, expected) in whole {
        assert_eq!(run(vec![source], vec![]), Err(expected.to_owned()));
    }
}

#[test]
fn the_first_trouble_in_order_is_told() {
    let env = vec![
        from("A", secret("gone", "a", None)),
        from("B", config_map("away", "a", None)),
    ];
    assert_eq!(
        run(vec![], env.clone()),
        Err(r#"secret "gone" not found"#.to_owned())
    );
    let first = vec![all_of_config_map("away", "", None)];
    assert!(run(first, env).unwrap_err().starts_with("failed to sync"));
}

#[test]
fn without_its_gate_a_file_is_an_empty_value() {
    let (pod, node, gathered) = (pod(), NodeFacts::default(), Gathered::default());
    let container = Container {
        env: Some(vec![from("A", file("data", "env", "A", None))]),
        ..Container::default()
    };
    let got = environment(&EnvInputs {
        pod: &pod,
        container: &container,
        pod_ips: &[],
        node: &node,
        env_files: false,
        gathered: &gathered,
    });
    assert_eq!(shown(&got.unwrap()), ["A="]);
}

#[test]
fn what_the_pod_learns_of_itself() {
    let field = EnvVarSource {
        field_ref: Some(ObjectFieldSelector {
            api_version: None,
            field_path: "status.podIP".into(),
        }),
        ..EnvVarSource::default()
    };
    let resource = EnvVarSource {
        resource_field_ref: Some(ResourceFieldSelector {
            container_name: None,
            divisor: Some(ApiQuantity("1m".into())),
            resource: "limits.cpu".into(),
        }),
        ..EnvVarSource::default()
    };
    let env = vec![from("IP", field), from("CPU", resource)];
    assert_eq!(run(vec![], env).unwrap(), ["IP=10.0.0.5", "CPU=4000"]);
}

#[test]
fn services_come_last_and_are_seen_by_all() {
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
    let found = Gathered {
        services: Ok(Arc::new([Arc::new(service)])),
        ..Gathered::default()
    };
    let env = vec![
        plain("URL", "https://$(KUBERNETES_SERVICE_HOST)"),
        plain("KUBERNETES_PORT", "mine"),
    ];
    let got = run_with(&pod(), vec![], env, &found).unwrap();
    let got = shown(&got);
    assert_eq!(
        got[..3],
        [
            "URL=https://10.0.0.1",
            "KUBERNETES_PORT=mine",
            "KUBERNETES_SERVICE_HOST=10.0.0.1",
        ]
    );
    assert_eq!(got.len(), 8);
}

#[test]
fn only_pods_of_the_api_server_wait_for_the_services() {
    let unread = Gathered {
        services: Err(NotRead),
        ..Gathered::default()
    };
    let run = |source: Option<&str>| {
        let mut pod = pod();
        if let Some(source) = source {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(marks::CONFIG_SOURCE.into(), source.into());
        }
        run_with(&pod, vec![], vec![], &unread).map(|envs| shown(&envs))
    };
    let expected = "services have not yet been read at least once, cannot construct envvars";
    assert_eq!(run(Some("api")), Err(expected.to_owned()));
    assert_eq!(run(Some("file")), Ok(vec![]));
}
