//! Volumes that are devices, volumes that others mount into, huge pages, and authorities to trust.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use krablet_e2e::cluster_stage::Joining;
use krablet_e2e::manifest::{pod, single, tool, with};
use krablet_e2e::{LONG, Member, status};
use krablet_testbed::ControlPlaneOptions;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::inside::{inside, inside_of, says, waits};
use crate::volumes::{at, bound_claim, config_map, looked_into, on_node, release_claim, secret};
use crate::{pod_certificates, resources};

/// Runs a command of the machine and returns what it says.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|e| format!("{program}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// A block device over a file, gone when dropped.
struct Loop(String);

impl Loop {
    fn over(file: &Path) -> Result<Self, String> {
        fs::write(file, vec![0; 16 << 20]).map_err(|e| e.to_string())?;
        run("losetup", &["--find", "--show", &file.to_string_lossy()]).map(Self)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run("losetup", &["--detach", &self.0]);
    }
}

/// What could not be looked at here, told so that nobody takes it for seen.
fn skipped(what: &str, why: &str) {
    eprintln!("SKIPPED {what}: {why}");
}

pub async fn block_devices(node: &Member) {
    let name = "vol-block";
    let file = node.stage.scratch(name).join("disk");
    let device = match Loop::over(&file) {
        Ok(device) => device,
        Err(why) => {
            return skipped(
                "block devices, as they are and with a file system",
                &format!("this machine has no loop devices: {why}"),
            );
        }
    };
    with_a_file_system(node, &device).await;
    let source = |path: &str| json!({"local": {"path": path}, "volumeMode": "Block", "nodeAffinity": on_node(node)});
    bound_claim(node, name, source(&device.0)).await;
    let claimed = |name: &str, claim: &str, container: Value| {
        let mut manifest = single(name, container);
        manifest["spec"]["volumes"] =
            json!([{"name": "disk", "persistentVolumeClaim": {"claimName": claim}}]);
        manifest
    };
    let devices = json!({"volumeDevices": [{"name": "disk", "devicePath": "/dev/mine"}]});
    let container = with(tool("main", &["hold"]), devices);
    let made = node.run(&claimed(name, name, container.clone())).await;
    says(node, name, "stat -c %F /dev/mine", "block special file").await;
    let write = "printf through | dd of=/dev/mine bs=8 count=1 conv=fsync 2>/dev/null && head -c 7 /dev/mine";
    says(node, name, write, "through").await;
    let on_disk = fs::read(&device.0).unwrap();
    assert_eq!(&on_disk[..7], b"through");
    let link = node.stage.krablet.root_dir().join("pods");
    let link = link
        .join(status::uid(&made))
        .join("volumeDevices/kubernetes.io~local-volume")
        .join(name);
    assert_eq!(fs::read_link(link).unwrap(), PathBuf::from(&device.0));
    node.end(name).await;

    // As a file system it cannot be had, and a file is no device.
    let mounted = looked_into(json!([at("disk", "/disk")]));
    node.create(&claimed("vol-block-mounted", name, mounted))
        .await;
    let why = "volume disk has volumeMode Block, but is specified in volumeMounts";
    node.event("vol-block-mounted", "FailedMount", why).await;
    node.end("vol-block-mounted").await;
    release_claim(node, name).await;
    let flat = "vol-block-flat";
    bound_claim(node, flat, source(&file.to_string_lossy())).await;
    node.create(&claimed(flat, flat, container)).await;
    let why = format!(
        "MapVolume.SetUpDevice failed for volume \"{flat}\" : {} is not a block device",
        file.display()
    );
    node.event(flat, "FailedMapVolume", &why).await;
    node.end(flat).await;
    release_claim(node, flat).await;
}

/// A blank disk of the node gets a file system, once, and is mounted while a pod has it.
async fn with_a_file_system(node: &Member, device: &Loop) {
    let name = "vol-disk";
    let source = json!({"local": {"path": device.0}, "nodeAffinity": on_node(node)});
    bound_claim(node, name, source).await;
    let claimed = |name: &str, claim: &str| {
        let mut manifest = single(name, looked_into(json!([at("disk", "/disk")])));
        manifest["spec"]["volumes"] =
            json!([{"name": "disk", "persistentVolumeClaim": {"claimName": claim}}]);
        manifest["spec"]["securityContext"] = json!({"fsGroup": 2000});
        manifest
    };
    let point = node
        .stage
        .krablet
        .root_dir()
        .join("plugins/kubernetes.io/local-volume/mounts")
        .join(name);
    node.run(&claimed(name, name)).await;
    let write = "grep ' /disk ' /proc/mounts | busybox cut -d' ' -f3; stat -c %g /disk; echo kept > /disk/file";
    says(node, name, write, "ext4\n2000").await;
    let second = "vol-disk-too";
    node.run(&claimed(second, name)).await;
    says(node, second, "cat /disk/file", "kept").await;
    node.end(name).await;
    assert!(point.join("file").exists(), "another pod has it");
    node.end(second).await;
    node.wait(name, "is let go", async || match point.exists() {
        true => Err(format!("{} is there", point.display())),
        false => Ok(()),
    })
    .await;
    // What was written is found again.
    node.run(&claimed(name, name)).await;
    says(node, name, "cat /disk/file", "kept").await;
    node.end(name).await;
    release_claim(node, name).await;

    let flat = "vol-disk-flat";
    let file = node.stage.scratch(flat).join("file");
    fs::write(&file, "").unwrap();
    let source = json!({"local": {"path": file}, "nodeAffinity": on_node(node)});
    bound_claim(node, flat, source).await;
    node.create(&claimed(flat, flat)).await;
    let why = format!(
        "MountVolume.NewMounter initialization failed for volume {flat:?} : only directory and block device are supported"
    );
    node.event(flat, "FailedMount", &why).await;
    node.end(flat).await;
    release_claim(node, flat).await;
    // Blank again, for who uses it as it is.
    run("wipefs", &["--all", &device.0]).unwrap();
}

/// A directory of the machine whose mounts others see, unmounted when dropped.
struct Shared(PathBuf);

impl Shared {
    fn at(dir: PathBuf) -> Self {
        let text = dir.to_string_lossy().into_owned();
        run("mount", &["--bind", &text, &text]).unwrap();
        run("mount", &["--make-shared", &text]).unwrap();
        Self(dir)
    }

    /// A tmpfs in it with one file.
    fn mount(&self, name: &str) {
        let point = self.0.join(name);
        fs::create_dir(&point).unwrap();
        run("mount", &["-t", "tmpfs", name, &point.to_string_lossy()]).unwrap();
        fs::write(point.join("file"), name).unwrap();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = run("umount", &["--recursive", &self.0.to_string_lossy()]);
    }
}

pub async fn mounts_within_mounts(node: &Member) {
    let name = "vol-shared";
    let dir = Shared::at(node.stage.scratch(name));
    let mounting = |container: &str, mode: &str| {
        let mount = with(at("dir", "/dir"), json!({"mountPropagation": mode}));
        let privileged = json!({"privileged": true});
        with(
            tool(container, &["hold"]),
            json!({"volumeMounts": [mount], "securityContext": privileged}),
        )
    };
    let volumes = json!([{"name": "dir", "hostPath": {"path": dir.0, "type": "Directory"}}]);
    let spec = json!({
        "containers": [mounting("both", "Bidirectional"), mounting("sees", "HostToContainer"), mounting("apart", "None")],
        "volumes": volumes,
    });
    node.run(&pod(name, spec)).await;
    let make = "mkdir /dir/made && mount -t tmpfs made /dir/made && echo -n made > /dir/made/file";
    inside_of(node, name, "both", make).await.unwrap();
    assert_eq!(fs::read_to_string(dir.0.join("made/file")).unwrap(), "made");
    dir.mount("later");
    for (container, expected) in [("both", "madelater"), ("sees", "madelater"), ("apart", "")] {
        let script = "cat /dir/made/file /dir/later/file 2>/dev/null || true";
        let seen = inside_of(node, name, container, script).await;
        assert_eq!(seen.as_deref(), Ok(expected), "{container}");
    }
    node.end(name).await;
    read_only_all_the_way(node, &volumes).await;
    drop(dir);

    // Where mounts are not passed on, nothing can be.
    let private = "vol-private";
    let dir = node.stage.scratch(private);
    let spec = json!({
        "containers": [mounting("main", "Bidirectional")],
        "volumes": [{"name": "dir", "hostPath": {"path": dir}}],
    });
    node.create(&pod(private, spec)).await;
    node.event(private, "Failed", "but it is not a shared mount")
        .await;
    node.end(private).await;
}

/// What is mounted below a read-only mount stays writable, unless more is asked for and the runtime can do it.
async fn read_only_all_the_way(node: &Member, volumes: &Value) {
    let name = "vol-read-only";
    let mount = |path: &str, mode: Value| {
        with(
            at("dir", path),
            json!({"readOnly": true, "recursiveReadOnly": mode}),
        )
    };
    let handlers = node.node().await.unwrap().status.unwrap().runtime_handlers;
    let able = handlers.iter().flatten().any(|h| {
        let features = h.features.as_ref();
        h.name.as_deref().unwrap_or_default().is_empty()
            && features.is_some_and(|f| f.recursive_read_only_mounts == Some(true))
    });
    let mut manifest = single(
        name,
        looked_into(json!([
            mount("/plain", Value::Null),
            mount("/perhaps", json!("IfPossible")),
        ])),
    );
    manifest["spec"]["volumes"] = volumes.clone();
    let made = node.run(&manifest).await;
    let write =
        |dir: &str| format!("echo x > {dir}/later/new 2>/dev/null && echo written || echo refused");
    let top = "echo x > /plain/new 2>/dev/null || echo refused";
    says(node, name, top, "refused").await;
    says(node, name, &write("/plain"), "written").await;
    let (perhaps, told) = match able {
        true => ("refused", "Enabled"),
        false => ("written", "Disabled"),
    };
    says(node, name, &write("/perhaps"), perhaps).await;
    let mounts = status::container(&made, "main")
        .unwrap()
        .volume_mounts
        .clone();
    let mounts = mounts.unwrap_or_default();
    let modes: Vec<Option<&str>> = mounts
        .iter()
        .map(|m| m.recursive_read_only.as_deref())
        .collect();
    assert_eq!(modes, [Some("Disabled"), Some(told)], "{mounts:?}");
    node.end(name).await;

    let name = "vol-read-only-all";
    manifest["metadata"]["name"] = json!(name);
    manifest["spec"]["containers"][0]["volumeMounts"] = json!([mount("/all", json!("Enabled"))]);
    if able {
        node.run(&manifest).await;
        says(node, name, &write("/all"), "refused").await;
    } else {
        node.create(&manifest).await;
        let why = "failed to resolve recursive read-only mode: volume \"dir\" requested recursive read-only mode, but it is not supported by the runtime";
        waits(node, name, "main", "CreateContainerConfigError", why).await;
    }
    node.end(name).await;
}

/// Far below the minute that it may take elsewhere.
const SOON: Duration = Duration::from_secs(20);

/// A change arrives in a running pod by itself. How long it takes is told, not judged, as long as it does not wait for
/// a look at the pod that comes anyway.
pub async fn changes_arrive_soon(node: &Member) {
    let name = "vol-soon";
    config_map(node, name, json!({"v": "0"})).await;
    secret(node, name, json!({"v": "0"})).await;
    let mut manifest = single(
        name,
        looked_into(json!([at("c", "/c"), at("s", "/s"), at("d", "/d")])),
    );
    manifest["metadata"]["labels"] = json!({"v": "0"});
    manifest["spec"]["volumes"] = json!([
        {"name": "c", "configMap": {"name": name}},
        {"name": "s", "secret": {"secretName": name}},
        {"name": "d", "downwardAPI": {"items": [{"path": "v", "fieldRef": {"fieldPath": "metadata.labels['v']"}}]}},
    ]);
    node.run(&manifest).await;
    let objects = [
        (
            "c",
            format!("/api/v1/namespaces/default/configmaps/{name}"),
            json!({"data": {"v": "1"}}),
        ),
        (
            "s",
            format!("/api/v1/namespaces/default/secrets/{name}"),
            json!({"stringData": {"v": "1"}}),
        ),
        (
            "d",
            format!("{}/{name}", krablet_e2e::cluster_stage::PODS),
            json!({"metadata": {"labels": {"v": "1"}}}),
        ),
    ];
    for (volume, path, patch) in objects {
        let begun = Instant::now();
        node.plane.patch(&path, &patch).await.unwrap();
        let script = format!("cat /{volume}/v");
        node.wait_long(
            SOON,
            name,
            &format!("{path} arrives"),
            async || match inside(node, name, &script).await? {
                seen if seen == "1" => Ok(()),
                seen => Err(seen),
            },
        )
        .await;
        println!("{name}: {path} arrived after {:?}", begun.elapsed());
    }
    node.end(name).await;
}

const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";
const WANTED: u64 = 8;

/// Huge pages of the machine for the time of a test.
struct HugePages(u64);

impl HugePages {
    /// None where the kernel has none to give.
    fn reserved() -> Option<Self> {
        let count = || {
            fs::read_to_string(HUGE_PAGES)
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        };
        let before = count()?;
        fs::write(HUGE_PAGES, (before + WANTED).to_string()).ok()?;
        let pages = Self(before);
        (count()? >= before + WANTED).then_some(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(HUGE_PAGES, self.0.to_string());
    }
}

pub async fn huge_pages(main: &Member) {
    let Some(pages) = HugePages::reserved() else {
        return skipped("huge pages", "this machine gives none");
    };
    let node = main.beside("huge").await;
    let name = "vol-huge";
    let amounts = json!({"hugepages-2Mi": "4Mi", "memory": "32Mi", "cpu": "10m"});
    let huge = |name: &str, medium: &str| {
        let container = with(
            looked_into(json!([at("pages", "/pages")])),
            json!({"resources": {"limits": amounts}}),
        );
        let mut manifest = single(name, container);
        manifest["spec"]["volumes"] = json!([{"name": "pages", "emptyDir": {"medium": medium}}]);
        manifest
    };
    node.run(&huge(name, "HugePages")).await;
    let seen = inside(&node, name, "grep ' /pages ' /proc/mounts")
        .await
        .unwrap();
    assert!(
        seen.contains("hugetlbfs") && seen.contains("pagesize=2M"),
        "{seen}"
    );
    let cgroup = resources::cgroup(&node, name, "").await;
    let file = ["hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.max"];
    match resources::read(&cgroup, "hugetlb", file[0], file[1]) {
        none if none.contains("No such file") => {
            skipped("the limit of huge pages", "no cgroup controller hugetlb");
        }
        limit => assert_eq!(limit, (4 << 20).to_string()),
    }
    node.end(name).await;
    // The size of the pages is not one of those that the container asks for.
    let wrong = "vol-huge-wrong";
    node.create(&huge(wrong, "HugePages-1Gi")).await;
    let why = "MountVolume.SetUp failed for volume \"pages\" : medium HugePages-1Gi: hugePages storage requested, but there is no resource request for huge pages";
    node.event(wrong, "FailedMount", why).await;
    node.end(wrong).await;
    node.down().await;
    drop(pages);
}

const BUNDLES: &str = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
const GATES: &str =
    "ClusterTrustBundle=true,ClusterTrustBundleProjection=true,PodCertificateRequest=true";
const APIS: &str = "certificates.k8s.io/v1beta1/clustertrustbundles=true,certificates.k8s.io/v1beta1/podcertificaterequests=true";

/// Authorities that the cluster trusts, by name and by signer, and kept up to date; then what they sign for pods.
pub async fn authorities_of_the_cluster() {
    let options = ControlPlaneOptions {
        apiserver_args: vec![
            format!("--feature-gates={GATES}"),
            format!("--runtime-config={APIS}"),
        ],
        scheduler: false,
        ..ControlPlaneOptions::default()
    };
    let main = Member::founding(options, "founder").await;
    let joining = Joining {
        config: json!({"featureGates": {"ClusterTrustBundle": true, "ClusterTrustBundleProjection": true, "PodCertificateRequest": true}}),
        ..Joining::default()
    };
    let mut node = main.prepared_beside("trusting", joining).await;
    node.start().await;
    let name = "vol-trust";
    let authority = fs::read_to_string(node.plane.ca_file()).unwrap();
    let authority = authority.trim();
    let bundle = |name: &str, signer: Option<&str>, pem: &str| json!({"metadata": {"name": name, "labels": {"kind": "test"}}, "spec": {"signerName": signer, "trustBundle": pem}});
    let signed = bundle("example.com:ca:one", Some("example.com/ca"), authority);
    node.plane.create(BUNDLES, &signed).await.unwrap();
    let mut manifest = single(name, looked_into(json!([at("trust", "/trust")])));
    let by_signer = json!({"signerName": "example.com/ca", "labelSelector": {"matchLabels": {"kind": "test"}}, "path": "signed.pem"});
    manifest["spec"]["volumes"] = json!([{"name": "trust", "projected": {"sources": [
        {"clusterTrustBundle": {"name": "named", "path": "named.pem"}},
        {"clusterTrustBundle": by_signer},
        {"clusterTrustBundle": {"name": "absent", "path": "absent.pem", "optional": true}},
    ]}}]);
    node.create(&manifest).await;
    let why = "MountVolume.SetUp failed for volume \"trust\" : while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"named\" not found";
    node.event(name, "FailedMount", why).await;
    node.plane
        .create(BUNDLES, &bundle("named", None, authority))
        .await
        .unwrap();
    node.running(name).await;
    for file in ["named.pem", "signed.pem"] {
        says(&node, name, &format!("cat /trust/{file}"), authority).await;
    }
    says(&node, name, "busybox wc -c < /trust/absent.pem", "0").await;
    // Another comes, and is seen; those that went stay as they were.
    node.plane
        .create(BUNDLES, &bundle("absent", None, authority))
        .await
        .unwrap();
    let late = "cat /trust/absent.pem";
    node.wait_long(LONG, name, "the new one is seen", async || {
        match inside(&node, name, late).await? {
            seen if seen == authority => Ok(()),
            seen => Err(seen),
        }
    })
    .await;
    node.plane
        .delete(&format!("{BUNDLES}/example.com:ca:one"))
        .await
        .unwrap();
    says(&node, name, "cat /trust/signed.pem", authority).await;
    node.end(name).await;
    pod_certificates::come_from_a_signer(&mut node).await;
    node.down().await;
    main.down().await;
}
