//! Whom containers run as and what they may do, as the kernel tells their own processes.

use std::fs;
use std::path::Path;

use krablet_e2e::cluster_stage::Joining;
use krablet_e2e::manifest::{pod, single, tool, with};
use krablet_e2e::{Member, status};
use krablet_testbed::images::{self, Variant};
use krablet_testbed::{BedOptions, Containerd};
use serde_json::{Value, json};

use crate::door::refused;
use crate::inside::{end_all, inside, inside_of, refused_by_the_node, waits};

const CONFIG_ERROR: &str = "CreateContainerConfigError";

/// A container that waits, with this security context.
fn secured(name: &str, context: Value) -> Value {
    with(tool(name, &["hold"]), json!({"securityContext": context}))
}

async fn all_say(node: &Member, pod: &str, container: &str, cases: &[(&str, &str)]) {
    for (script, expected) in cases {
        let said = inside_of(node, pod, container, script).await;
        assert_eq!(said.as_deref(), Ok(*expected), "{container}: {script}");
    }
}

/// Users and groups of the pod, of its containers and of the image.
pub async fn users_and_groups(node: &Member) {
    let named = |user: &str| Variant {
        reference: format!("krablet.local/user:{user}"),
        config: json!({"User": user}),
        ..Variant::default()
    };
    let (by_name, by_number) = (named("user"), named("1000"));
    let archive = images::variants(&[by_name.clone(), by_number.clone()]).unwrap();
    let archive = archive.display().to_string();
    node.stage
        .bed
        .ctr(&["images", "import", &archive])
        .await
        .unwrap();
    let of_image = |image: &Variant, context: Value| {
        with(
            secured("main", context),
            json!({"image": image.reference, "imagePullPolicy": "Never"}),
        )
    };
    let groups = json!({"runAsUser": 1000, "runAsGroup": 3000, "fsGroup": 5000, "supplementalGroups": [4000]});
    let strict = with(
        groups.clone(),
        json!({"supplementalGroupsPolicy": "Strict"}),
    );
    let both = json!([
        secured("plain", json!({})),
        secured(
            "other",
            json!({"runAsUser": 7, "runAsGroup": 8, "runAsNonRoot": true})
        ),
    ]);
    for (name, context) in [("users-merge", groups), ("users-strict", strict)] {
        let spec = json!({"containers": both, "securityContext": context});
        node.create(&pod(name, spec)).await;
    }
    let non_root = json!({"runAsNonRoot": true});
    node.create(&single(
        "users-number",
        of_image(&by_number, non_root.clone()),
    ))
    .await;
    node.create(&single("users-name", of_image(&by_name, json!({}))))
        .await;
    let pods = ["users-merge", "users-strict", "users-number", "users-name"];
    for name in pods {
        node.running(name).await;
    }
    // The image's own file of groups says that user 1000 is in group 2000.
    let who = "id -u; id -g; id -G";
    let (merged, kept) = (
        "1000\n3000\n3000 2000 4000 5000",
        "1000\n3000\n3000 4000 5000",
    );
    all_say(node, "users-merge", "plain", &[(who, merged)]).await;
    all_say(node, "users-strict", "plain", &[(who, kept)]).await;
    for name in ["users-merge", "users-strict"] {
        all_say(node, name, "other", &[(who, "7\n8\n8 4000 5000")]).await;
    }
    for (name, container) in [("users-merge", "plain"), ("users-strict", "other")] {
        users_are_told(node, name, container).await;
    }
    all_say(node, "users-number", "main", &[("id -u", "1000")]).await;
    all_say(
        node,
        "users-name",
        "main",
        &[("id -u; id -un", "1000\nuser")],
    )
    .await;
    end_all(node, &pods).await;

    let root = |context: Value| secured("main", context);
    let cases = [
        (
            "users-root",
            root(non_root.clone()),
            "container has runAsNonRoot and image will run as root",
        ),
        (
            "users-zero",
            root(json!({"runAsNonRoot": true, "runAsUser": 0})),
            "container's runAsUser breaks non-root policy",
        ),
        (
            "users-unknown",
            of_image(&by_name, non_root),
            "container has runAsNonRoot and image has non-numeric user (user), cannot verify user is non-root",
        ),
    ];
    let mut made = Vec::new();
    for (name, container, _) in &cases {
        made.push(node.create(&single(name, container.clone())).await);
    }
    for ((name, _, why), made) in cases.iter().zip(&made) {
        let uid = status::uid(made);
        let message = format!("{why} (pod: \"{name}_default({uid})\", container: main)");
        waits(node, name, "main", CONFIG_ERROR, &message).await;
        node.event(name, "Failed", &format!("Error: {message}"))
            .await;
    }
    end_all(node, &cases.each_ref().map(|case| case.0)).await;
}

/// The status says what the processes find.
async fn users_are_told(node: &Member, pod: &str, container: &str) {
    let seen = node.pod(pod).await.unwrap();
    let user = status::container(&seen, container).unwrap().user.clone();
    let user = user.and_then(|u| u.linux).unwrap_or_default();
    let mut told: Vec<i64> = user.supplemental_groups.unwrap_or_default();
    told.push(user.gid);
    told.sort_unstable();
    told.dedup();
    let ids = inside_of(node, pod, container, "id -u; id -g; id -G").await;
    let ids = ids.unwrap();
    let mut numbers = ids.split_whitespace().map(|n| n.parse::<i64>().unwrap());
    let own = (numbers.next().unwrap(), numbers.next().unwrap());
    let mut groups: Vec<i64> = numbers.collect();
    groups.sort_unstable();
    assert_eq!((user.uid, user.gid), own, "{pod} {container}");
    assert_eq!(told, groups, "{pod} {container}");
}

/// One line of a process's status.
fn line(name: &str) -> String {
    format!("sed -n 's/^{name}:\\t//p' /proc/self/status")
}

/// A profile that forbids making directories.
const PROFILE: &str = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}"#;

/// Seccomp, capabilities, privileges, the root file system and what is hidden of `/proc`.
pub async fn confinement(node: &Member) {
    let name = "confined";
    let profiles = node.stage.krablet.root_dir().join("seccomp/deep");
    fs::create_dir_all(&profiles).unwrap();
    fs::write(profiles.join("no-mkdir.json"), PROFILE).unwrap();
    let local =
        |file: &str| json!({"seccompProfile": {"type": "Localhost", "localhostProfile": file}});
    let containers = json!([
        secured("plain", json!({})),
        secured(
            "default",
            json!({"seccompProfile": {"type": "RuntimeDefault"}})
        ),
        secured("open", json!({"seccompProfile": {"type": "Unconfined"}})),
        secured("local", local("deep/no-mkdir.json")),
        secured(
            "tied",
            json!({
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
            })
        ),
        secured(
            "more",
            json!({"capabilities": {"drop": ["CHOWN"], "add": ["NET_ADMIN", "KRAKEN"]}})
        ),
        secured("privileged", json!({"privileged": true})),
    ]);
    node.run(&pod(name, json!({"containers": containers})))
        .await;
    let (seccomp, caps) = (line("Seccomp"), line("CapEff"));
    let no_new = line("NoNewPrivs");
    let write = "echo x > /new 2>/dev/null && echo written || echo refused";
    // What the runtime gives by default, in the kernel's numbers.
    const DEFAULT: u64 = 0xa804_25fb;
    let caps_are = |set: u64| format!("{set:016x}");
    // Hidden files are empty, hidden directories too, and settings of the kernel cannot be written.
    let masked = "cat /proc/keys /proc/timer_list | wc -c; ls /sys/firmware | wc -l; grep -c '^proc /proc/sys proc ro,' /proc/mounts";
    for (container, script, expected) in [
        ("plain", &seccomp, "0".to_owned()),
        ("plain", &caps, caps_are(DEFAULT)),
        ("plain", &no_new, "0".to_owned()),
        ("plain", &write.to_owned(), "written".to_owned()),
        ("plain", &masked.to_owned(), "0\n0\n1".to_owned()),
        ("default", &seccomp, "2".to_owned()),
        ("open", &seccomp, "0".to_owned()),
        ("local", &seccomp, "2".to_owned()),
        ("tied", &caps, caps_are(1 << 10)),
        ("tied", &no_new, "1".to_owned()),
        ("tied", &write.to_owned(), "refused".to_owned()),
        // One that the kernel has never heard of is passed on, as ever, and the runtime leaves it out.
        ("more", &caps, caps_are((DEFAULT & !1) | 1 << 12)),
    ] {
        all_say(node, name, container, &[(script, &expected)]).await;
    }
    let made = inside_of(node, name, "local", "mkdir /tmp/d 2>&1 || true").await;
    assert!(
        made.as_ref().is_ok_and(|s| s.contains("not permitted")),
        "{made:?}"
    );
    // A privileged one has all that the runtime has, and the machine's devices.
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let own = own
        .lines()
        .find_map(|l| l.strip_prefix("CapEff:\t"))
        .unwrap();
    all_say(node, name, "privileged", &[(&caps, own)]).await;
    let devices = inside_of(node, name, "privileged", "ls /dev | wc -l")
        .await
        .unwrap();
    let few = inside_of(node, name, "plain", "ls /dev | wc -l")
        .await
        .unwrap();
    assert!(
        devices.parse::<u32>().unwrap() > few.parse::<u32>().unwrap(),
        "{devices} {few}"
    );
    node.end(name).await;

    // A profile that is not there keeps its container from being made.
    let absent = "confined-absent";
    node.create(&single(absent, secured("main", local("absent.json"))))
        .await;
    let told = node
        .until(absent, "is refused", |pod| {
            match status::waiting(pod, "main")? {
                (reason, message) if reason == "CreateContainerError" => Ok(message),
                found => Err(format!("{found:?}")),
            }
        })
        .await;
    let file = profiles.parent().unwrap().join("absent.json");
    let expected = format!("open {}: no such file or directory", file.display());
    assert!(told.contains(&expected), "{told}");
    node.end(absent).await;
}

/// Namespaces of the machine, of the pod, and those that containers share; sysctls of the pod's own.
pub async fn namespaces_and_sysctls(node: &Member) {
    let waiting = || secured("main", json!({}));
    let kind = |fields: Value| with(json!({"containers": [waiting()]}), fields);
    let two = json!([waiting(), secured("other", json!({}))]);
    let safe = json!([
        {"name": "net.ipv4.ip_local_port_range", "value": "2000 3000"},
        {"name": "net/ipv4/tcp_syncookies", "value": "0"},
        {"name": "kernel.shm_rmid_forced", "value": "1"},
    ]);
    let pods = [
        ("ns-own", kind(json!({}))),
        (
            "ns-host",
            kind(json!({"hostPID": true, "hostIPC": true, "hostNetwork": true})),
        ),
        (
            "ns-shared",
            json!({"containers": two, "shareProcessNamespace": true}),
        ),
        (
            "ns-sysctls",
            kind(json!({"securityContext": {"sysctls": safe}})),
        ),
    ];
    for (name, spec) in &pods {
        node.create(&pod(name, spec.clone())).await;
    }
    for (name, _) in &pods {
        node.running(name).await;
    }
    for ns in ["pid", "ipc", "net", "uts"] {
        let of_machine = fs::read_link(format!("/proc/self/ns/{ns}")).unwrap();
        let script = format!("busybox readlink /proc/self/ns/{ns}");
        let host = inside(node, "ns-host", &script).await.unwrap();
        let own = inside(node, "ns-own", &script).await.unwrap();
        assert!(of_machine == Path::new(&host), "{ns}: {host}");
        assert!(of_machine != Path::new(&own), "{ns}: {own}");
    }
    let first = "busybox tr '\\0' ' ' < /proc/1/cmdline";
    all_say(node, "ns-own", "main", &[(first, "/tool hold")]).await;
    all_say(node, "ns-shared", "main", &[(first, "/pause")]).await;
    let seen = "ps | grep -c '[t]ool hold'";
    all_say(node, "ns-shared", "other", &[(seen, "2")]).await;
    all_say(
        node,
        "ns-sysctls",
        "main",
        &[
            ("cat /proc/sys/net/ipv4/ip_local_port_range", "2000\t3000"),
            ("cat /proc/sys/net/ipv4/tcp_syncookies", "0"),
            ("cat /proc/sys/kernel/shm_rmid_forced", "1"),
        ],
    )
    .await;
    end_all(node, &pods.each_ref().map(|pod| pod.0)).await;
    sysctls_of_the_machine(node).await;
}

/// What a pod on the machine's network would set is the machine's.
async fn sysctls_of_the_machine(node: &Member) {
    let name = "ns-machines";
    let sysctl = json!([{"name": "net.ipv4.tcp_syncookies", "value": "0"}]);
    let spec = json!({
        "containers": [secured("main", json!({}))],
        "hostNetwork": true,
        "securityContext": {"sysctls": sysctl},
    });
    let why = "spec.securityContext.sysctls[0].name: Invalid value: \"net.ipv4.tcp_syncookies\": may not be specified when 'hostNetwork' is true";
    refused_by_the_node(node, name, &pod(name, spec), why).await;
}

/// Profiles of AppArmor where the kernel has none.
pub async fn app_armor(node: &Member) {
    let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    if enabled.is_ok_and(|text| text.starts_with('Y')) {
        eprintln!("this kernel enforces AppArmor: nothing to refuse");
        return;
    }
    let armored = |kind: &str| {
        let context = json!({"appArmorProfile": {"type": kind}});
        single("armored", secured("main", context))
    };
    let message = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
    refused(node, &armored("RuntimeDefault"), "AppArmor", message).await;
    node.run(&armored("Unconfined")).await;
    node.end("armored").await;
}

/// What an administrator may loosen or tighten for all pods of a node.
pub async fn settings_of_the_node(main: &Member) {
    let joining = Joining {
        config: json!({"seccompDefault": true, "allowedUnsafeSysctls": ["kernel.msg*"]}),
        ..Joining::default()
    };
    let mut node = main.prepared_beside("strict", joining).await;
    node.start().await;
    let sysctls = json!([{"name": "kernel.msgmax", "value": "65530"}]);
    let open = json!({"seccompProfile": {"type": "Unconfined"}});
    let spec = json!({
        "containers": [secured("main", json!({})), secured("open", open)],
        "securityContext": {"sysctls": sysctls},
    });
    node.run(&pod("set", spec)).await;
    let seccomp = line("Seccomp");
    all_say(
        &node,
        "set",
        "main",
        &[(&seccomp, "2"), ("cat /proc/sys/kernel/msgmax", "65530")],
    )
    .await;
    all_say(&node, "set", "open", &[(&seccomp, "0")]).await;
    node.end("set").await;
    node.down().await;
}

/// A runtime of old does not sort groups, nor makes mounts read-only all the way: who insists is refused.
pub async fn what_an_old_runtime_cannot_do(main: &Member) {
    let joining = Joining {
        bed: BedOptions {
            containerd: Containerd::Debian,
            ..BedOptions::default()
        },
        ..Joining::default()
    };
    let mut node = main.prepared_beside("old", joining).await;
    node.start().await;
    let mut strict = single("old-strict", secured("main", json!({})));
    strict["spec"]["securityContext"] = json!({"supplementalGroupsPolicy": "Strict"});
    let message = "SupplementalGroupsPolicy=Strict is not supported in this node";
    let reason = "SupplementalGroupsPolicyNotSupported";
    refused(&node, &strict, reason, message).await;
    let mounting = |name: &str, mode: &str| {
        let mount = json!({"name": "dir", "mountPath": "/dir", "readOnly": true, "recursiveReadOnly": mode});
        let container = with(secured("main", json!({})), json!({"volumeMounts": [mount]}));
        let mut manifest = single(name, container);
        manifest["spec"]["volumes"] = json!([{"name": "dir", "emptyDir": {}}]);
        manifest
    };
    node.create(&mounting("old-enabled", "Enabled")).await;
    node.run(&mounting("old-possible", "IfPossible")).await;
    let why = "failed to resolve recursive read-only mode: volume \"dir\" requested recursive read-only mode, but it is not supported by the runtime";
    waits(&node, "old-enabled", "main", CONFIG_ERROR, why).await;
    // Nor does it tell whom containers run as.
    let seen = node.pod("old-possible").await.unwrap();
    assert_eq!(status::container(&seen, "main").unwrap().user, None);
    end_all(&node, &["old-enabled", "old-possible"]).await;
    node.down().await;
}
