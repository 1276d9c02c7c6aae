//! Configuration files: leniency, places, YAML as Go reads it, drop-ins, and the files installers write.

mod common;

use common::{Files, HEADER, from_file, loaded, warnings};
use serde_json::{Value, json};

#[test]
fn unknown_and_duplicate_fields_are_named_and_passed_over() {
    // (fields from line 3 on, warnings)
    let cases: &[(&str, &[&str])] = &[
        (
            "maxPod: 5\n",
            &["/k.yaml:3: unknown field \"maxPod\" is ignored"],
        ),
        (
            "port: 1\nclusterdns: [a]\nmetadata: {name: x}\n",
            &[
                "/k.yaml:4: unknown field \"clusterdns\" is ignored",
                "/k.yaml:5: unknown field \"metadata\" is ignored",
            ],
        ),
        (
            "authentication:\n  x509:\n    clientCAfile: /x\n",
            &["/k.yaml:5: unknown field \"authentication.x509.clientCAfile\" is ignored"],
        ),
        (
            "logging:\n  vmodule:\n  - filePattern: a\n    verbosity: 1\n    level: 2\n",
            &["/k.yaml:7: unknown field \"logging.vmodule[0].level\" is ignored"],
        ),
        (
            "maxPods: 5\nport: 7\nmaxPods: 6\n",
            &["/k.yaml:5: field \"maxPods\" is written more than once, the last one counts"],
        ),
        (
            "evictionHard:\n  memory.available: 1Mi\n  memory.available: 2Mi\n",
            &[
                "/k.yaml:5: field \"evictionHard[memory.available]\" is written more than once, the last one counts",
            ],
        ),
        (
            "maxPods: 1\nmaxPods: 2\nwhat: 3\n",
            &[
                "/k.yaml:4: field \"maxPods\" is written more than once, the last one counts",
                "/k.yaml:5: unknown field \"what\" is ignored",
            ],
        ),
    ];
    for (fields, expected) in cases {
        assert_eq!(warnings(&from_file(fields)), *expected, "{fields}");
    }
    assert_eq!(
        from_file("maxPods: 5\nmaxPods: 6\n")
            .config
            .runtime
            .max_pods,
        6
    );
    assert_eq!(
        from_file("maxPod: 5\nmaxPods: 6\n").config.runtime.max_pods,
        6
    );
}

/// What people write, and what Go makes of it.
#[test]
fn yaml_as_go_reads_it() {
    let cases: &[(&str, &str, Value)] = &[
        ("failSwapOn: no\n", "/failSwapOn", json!(false)),
        ("failSwapOn: off\n", "/failSwapOn", json!(false)),
        ("failSwapOn: N\n", "/failSwapOn", json!(false)),
        (
            "rotateCertificates: yes\n",
            "/rotateCertificates",
            json!(true),
        ),
        (
            "rotateCertificates: On\n",
            "/rotateCertificates",
            json!(true),
        ),
        (
            "rotateCertificates: y\n",
            "/rotateCertificates",
            json!(true),
        ),
        ("port: 0x2742\n", "/port", json!(10050)),
        ("maxPods: 0o10\n", "/maxPods", json!(8)),
        ("maxPods: 010\n", "/maxPods", json!(8)),
        (
            "maxOpenFiles: 1_000_001\n",
            "/maxOpenFiles",
            json!(1_000_001),
        ),
        ("maxPods: 1e2\n", "/maxPods", json!(100)),
        ("maxPods: 100.0\n", "/maxPods", json!(100)),
        (
            "memoryThrottlingFactor: 1\n",
            "/memoryThrottlingFactor",
            json!(1.0),
        ),
        (
            "memoryThrottlingFactor: .5\n",
            "/memoryThrottlingFactor",
            json!(0.5),
        ),
        ("port: ~\n", "/port", json!(10250)),
        ("clusterDomain: \"yes\"\n", "/clusterDomain", json!("yes")),
        ("clusterDomain: 'no'\n", "/clusterDomain", json!("no")),
        (
            "cgroupRoot: /kubelet # the root\n",
            "/cgroupRoot",
            json!("/kubelet"),
        ),
        (
            "x-base: &b {cpu: 1m}\nkubeReserved:\n  <<: *b\n  memory: 1Mi\n",
            "/kubeReserved",
            json!({"cpu": "1m", "memory": "1Mi"}),
        ),
        (
            "clusterDNS: [null, 10.0.0.1]\n",
            "/clusterDNS",
            json!(["", "10.0.0.1"]),
        ),
        (
            "featureGates: {EventedPLEG: yes}\n",
            "/featureGates",
            json!({"EventedPLEG": true}),
        ),
        (
            "logging: {flushFrequency: 2000000000}\n",
            "/logging/flushFrequency",
            json!(2_000_000_000),
        ),
        (
            "logging: {flushFrequency: 2000ms}\n",
            "/logging/flushFrequency",
            json!("2s"),
        ),
        (
            "reservedMemory: [{numaNode: 0, limits: {memory: 1024}}]\n",
            "/reservedMemory/0/limits/memory",
            json!("1024"),
        ),
    ];
    for (fields, pointer, expected) in cases {
        let config = from_file(fields).config.to_json();
        assert_eq!(config.pointer(pointer), Some(expected), "{fields}");
    }
}

#[test]
fn json_streams_and_odd_framing() {
    let head =
        "\"apiVersion\": \"kubelet.config.k8s.io/v1beta1\", \"kind\": \"KubeletConfiguration\"";
    let cases = [
        format!("{{{head}, \"maxPods\": 7}}"),
        format!("\n\n  {{{head},\n\"maxPods\": 7\n}}\n"),
        format!("---\n{HEADER}maxPods: 7\n"),
        format!("# a comment\n---\n{HEADER}maxPods: 7\n...\n"),
        format!("{HEADER}maxPods: 7\n---\n{HEADER}maxPods: 8\n"),
        format!("\u{feff}{HEADER}maxPods: 7\r\n"),
        "{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration, maxPods: 7}"
            .to_owned(),
    ];
    for text in cases {
        let files = Files::new().raw("/k", text.clone());
        assert_eq!(
            loaded(&["--config=/k"], &files).config.runtime.max_pods,
            7,
            "{text}"
        );
    }
}

#[test]
fn relative_paths_start_at_the_file() {
    let fields = "staticPodPath: manifests\nauthentication: {x509: {clientCAFile: ../pki/ca.crt}}\ntlsCertFile: /abs.crt\n\
                  tlsPrivateKeyFile: ./k.key\nresolvConf: resolv.conf\nvolumePluginDir: flex\npodLogsDir: logs\n";
    for (word, dir, path) in [
        (
            "--config=/etc/kubernetes/k.yaml",
            "/etc",
            "/etc/kubernetes/k.yaml",
        ),
        (
            "--config=kubernetes/k.yaml",
            "/cwd",
            "/cwd/kubernetes/k.yaml",
        ),
    ] {
        let config = loaded(&[word], &Files::new().with(path, fields)).config;
        assert_eq!(
            config.sources.static_pod_path,
            format!("{dir}/kubernetes/manifests")
        );
        assert_eq!(
            config.security.authentication.x509.client_ca_file,
            format!("{dir}/pki/ca.crt")
        );
        assert_eq!(config.security.tls_cert_file, "/abs.crt");
        assert_eq!(
            config.security.tls_private_key_file,
            format!("{dir}/kubernetes/k.key")
        );
        assert_eq!(
            config.network.resolv_conf,
            format!("{dir}/kubernetes/resolv.conf")
        );
        assert_eq!(
            config.storage.volume_plugin_dir,
            format!("{dir}/kubernetes/flex")
        );
        assert_eq!(
            config.sources.pod_logs_dir,
            format!("{dir}/kubernetes/logs")
        );
    }
    // Flags are left as they are.
    let config = loaded(&["--pod-manifest-path=manifests"], &Files::new()).config;
    assert_eq!(config.sources.static_pod_path, "manifests");
}

#[test]
fn drop_ins_merge_in_order() {
    let files = Files::new()
        .with(
            "/k.yaml",
            "maxPods: 1\nclusterDNS: [a, b]\nkubeReserved: {cpu: 1m, memory: 1Mi}\nregistryBurst: 4\nhealthzPort: 1\nport: 9\n\
             featureGates: {EventedPLEG: true}\nevictionHard: {memory.available: 1Mi}\n",
        )
        .with("/d/10.conf", "maxPods: 10\nclusterDNS: [c]\nkubeReserved: {cpu: 2m}\n")
        .with("/d/20/05.conf", "maxPods: 20\nfeatureGates: {PodsAPI: true}\n")
        .with("/d/30.conf", "healthzPort: null\nport: 0\nevictionHard: {nodefs.available: 7%}\nauthentication: {webhook: {enabled: false}}\n")
        .with("/d/ignored.yaml", "maxPods: 99\n")
        .with("/d/40.conf.bak", "maxPods: 98\n");
    let loaded = loaded(&["--config=/k.yaml", "--config-dir=/d"], &files);
    let config = loaded.config.to_json();
    assert_eq!(config["maxPods"], json!(20));
    assert_eq!(config["clusterDNS"], json!(["c"]));
    assert_eq!(
        config["kubeReserved"],
        json!({"cpu": "2m", "memory": "1Mi"})
    );
    assert_eq!(config["registryBurst"], json!(4));
    assert_eq!(
        config["healthzPort"],
        json!(10248),
        "null goes back to the default"
    );
    assert_eq!(
        config["port"],
        json!(10250),
        "zero goes back to the default"
    );
    assert_eq!(
        config["featureGates"],
        json!({"EventedPLEG": true, "PodsAPI": true})
    );
    assert_eq!(
        config["evictionHard"],
        json!({"memory.available": "1Mi", "nodefs.available": "7%"})
    );
    assert_eq!(
        config["authentication"]["webhook"],
        json!({"enabled": false, "cacheTTL": "2m0s"})
    );
    assert_eq!(
        warnings(&loaded),
        [
            "/d/40.conf.bak: skipped, only files ending in .conf are read from the drop-in directory",
            "/d/ignored.yaml: skipped, only files ending in .conf are read from the drop-in directory",
        ]
    );
}

/// What the main file settled is not settled anew by a drop-in, as upstream has it.
#[test]
fn drop_ins_see_a_settled_base() {
    let files = Files::new()
        .with("/k.yaml", "")
        .with("/d/1.conf", "nodeStatusUpdateFrequency: 3s\n");
    let config = loaded(&["--config=/k.yaml", "--config-dir=/d"], &files).config;
    assert_eq!(config.node.node_status_update_frequency.to_string(), "3s");
    assert_eq!(config.node.node_status_report_frequency.to_string(), "5m0s");
}

#[test]
fn drop_ins_name_their_own_lines() {
    let files = Files::new()
        .with("/k.yaml", "")
        .with("/d/1.conf", "a: 1\nmaxPods: 1\nmaxPods: 2\n");
    let loaded = loaded(&["--config=/k.yaml", "--config-dir=/d"], &files);
    assert_eq!(
        warnings(&loaded),
        [
            "/d/1.conf:5: field \"maxPods\" is written more than once, the last one counts",
            "/d/1.conf:3: unknown field \"a\" is ignored",
        ]
    );
}

/// kubeadm writes every duration as 0s; nothing of it may stick.
#[test]
fn a_file_kubeadm_writes() {
    let config = from_file(include_str!("data/kubeadm.yaml"))
        .config
        .to_json();
    let mut expected = from_file("").config.to_json();
    expected["staticPodPath"] = json!("/etc/kubernetes/manifests");
    expected["authentication"]["x509"]["clientCAFile"] = json!("/etc/kubernetes/pki/ca.crt");
    expected["cgroupDriver"] = json!("systemd");
    expected["clusterDNS"] = json!(["10.96.0.10"]);
    expected["clusterDomain"] = json!("cluster.local");
    expected["containerRuntimeEndpoint"] = json!("unix:///var/run/containerd/containerd.sock");
    expected["resolvConf"] = json!("/run/systemd/resolve/resolv.conf");
    expected["rotateCertificates"] = json!(true);
    assert_eq!(config, expected);
}

#[test]
fn a_file_kind_writes() {
    let config = from_file(include_str!("data/kind.yaml")).config;
    assert_eq!(config.cgroups.cgroup_root, "/kubelet");
    assert!(!config.cgroups.fail_swap_on);
    assert_eq!(config.images.gc_high_threshold_percent, 100);
    let hard: Vec<_> = config
        .eviction
        .hard
        .iter()
        .map(|(s, v)| format!("{s}<{v}"))
        .collect();
    assert_eq!(
        hard,
        [
            "imagefs.available<0%",
            "nodefs.available<0%",
            "nodefs.inodesFree<0%"
        ]
    );
    assert_eq!(config.sources.sync_frequency.to_string(), "1m0s");
}

#[test]
fn real_files_are_walked_in_order() {
    use krablet_config::{ConfigFiles as _, StdFiles};
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("b/inner")).unwrap();
    for name in ["c.conf", "a.conf", "b/2.conf", "b/inner/1.conf", "b/1.conf"] {
        std::fs::write(dir.path().join(name), "x").unwrap();
    }
    let found: Vec<_> = StdFiles
        .list(dir.path())
        .unwrap()
        .into_iter()
        .map(|path| path.strip_prefix(dir.path()).unwrap().display().to_string())
        .collect();
    assert_eq!(
        found,
        ["a.conf", "b/1.conf", "b/2.conf", "b/inner/1.conf", "c.conf"]
    );
    assert_eq!(StdFiles.read(&dir.path().join("a.conf")).unwrap(), b"x");
    assert!(StdFiles.list(&dir.path().join("none")).is_err());
    let endless = StdFiles
        .read(std::path::Path::new("/dev/zero"))
        .unwrap_err();
    assert_eq!(endless.kind(), std::io::ErrorKind::FileTooLarge);
}
