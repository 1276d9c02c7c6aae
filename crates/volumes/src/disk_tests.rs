use super::*;
use crate::iscsi::SESSION_EXISTS;
pub(super) use crate::testing::ROOT;
use crate::testing::{Wanted, in_memory};
use krablet_linux::fake::{FakeTools, MemoryFiles};
use krablet_linux::{EntryKind, ToolOutput};
use krablet_objects::FakeObjects;
use krablet_pod::api::Volume;
use serde_json::json;

const DEVICE: &str = "/dev/disk/by-path/ip-10.0.0.1:3260-iscsi-iqn.x:d-lun-0";
const POINT: &str =
    "/var/lib/kubelet/plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-iqn.x:d-lun-0";

/// A machine whose tools mount in memory, with a blank disk behind a target.
pub(super) struct Machine {
    pub files: MemoryFiles,
    pub tools: FakeTools,
    objects: FakeObjects,
}

impl Machine {
    pub fn new() -> Self {
        let files = MemoryFiles::default();
        files.put(Path::new(ROOT), EntryKind::Directory).unwrap();
        files
            .put(Path::new(DEVICE), EntryKind::BlockDevice)
            .unwrap();
        let tools = FakeTools::answering(|line| {
            // Nothing is found on the disk.
            let code = if line.starts_with("blkid") { 2 } else { 0 };
            Ok(ToolOutput {
                code: Some(code),
                text: String::new(),
            })
        });
        Self {
            files,
            tools,
            objects: FakeObjects::new(),
        }
    }

    pub fn plugin(&self) -> Disks {
        self.plugin_over(DiskKind::Iscsi, &self.files, &self.tools)
    }

    pub fn plugin_over(&self, kind: DiskKind, files: &MemoryFiles, tools: &FakeTools) -> Disks {
        let deps = in_memory(files, tools, &self.objects);
        Disks::new(kind, RootDir::new(ROOT), &deps)
    }
}

fn volume() -> Volume {
    let source = json!({"targetPortal": "10.0.0.1", "iqn": "iqn.x:d", "lun": 0, "fsType": "ext4"});
    serde_json::from_value(json!({"name": "disk", "iscsi": source})).unwrap()
}

/// Sets the disk up for a pod; what was recorded.
pub(super) async fn set_up(machine: &Machine, uid: &str) -> RecordedVolume {
    let wanted = Wanted::inline(uid, volume());
    let request = wanted.request();
    let plugin = machine.plugin();
    let recorded = plugin.plan(&request).unwrap().unwrap();
    // The mount tool is not there in memory: what it would mount, is.
    let point = Path::new(POINT);
    if machine
        .files
        .mounts()
        .below(point)
        .await
        .unwrap()
        .is_empty()
    {
        let _ = plugin.set_up(&request).await;
        machine.files.mounts().tmpfs(point, None).await.unwrap();
        let dir = request.dir(plugin.name());
        machine.files.mounts().unmount(&dir).await.unwrap();
    }
    plugin.set_up(&request).await.unwrap();
    recorded
}

#[tokio::test(start_paused = true)]
async fn mounted_once_for_the_node_and_let_go_by_the_last_pod() {
    let machine = Machine::new();
    let first = set_up(&machine, "u-1").await;
    let dir = |uid: &str| format!("{ROOT}/pods/{uid}/volumes/kubernetes.io~iscsi/disk");
    let login = "-m node -p 10.0.0.1:3260 -T iqn.x:d -I default --login";
    let ran = machine.tools.ran();
    assert!(ran.contains(&format!("iscsiadm {login}")), "{ran:?}");
    let mkfs = format!("mkfs.ext4 -F -m0 {DEVICE}");
    assert!(ran.contains(&mkfs), "{ran:?}");
    let mount = format!("mount -t ext4 -o defaults {DEVICE} {POINT}");
    assert_eq!(
        ran.iter().filter(|line| **line == mount).count(),
        1,
        "{ran:?}"
    );
    let before = ran.len();
    let second = set_up(&machine, "u-2").await;
    assert_eq!(machine.tools.ran().len(), before, "it is mounted already");

    let mounts = machine.files.mounts();
    mounts.unmount(Path::new(&dir("u-1"))).await.unwrap();
    machine.plugin().tear_down(&first).await.unwrap();
    assert_eq!(mounts.below(Path::new(POINT)).await.unwrap().len(), 1);
    mounts.unmount(Path::new(&dir("u-2"))).await.unwrap();
    for _ in 0..2 {
        machine.plugin().tear_down(&second).await.unwrap();
    }
    assert!(mounts.below(Path::new("/")).await.unwrap().is_empty());
    assert!(
        machine
            .tools
            .ran()
            .iter()
            .any(|line| line.ends_with("--logout"))
    );
    assert!(!machine.files.paths().contains(&PathBuf::from(POINT)));
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_does_not_appear_is_told() {
    let machine = Machine::new();
    let nothing = MemoryFiles::default();
    let told = async |tools: &FakeTools| {
        let plugin = machine.plugin_over(DiskKind::Iscsi, &nothing, tools);
        let address = plugin.address(&Source::Inline(&volume())).unwrap();
        plugin.attach(&address, None).await.unwrap_err().to_string()
    };
    assert_eq!(
        told(&machine.tools).await,
        format!(
            "failed to get any path for iscsi disk, last err seen:\nTimed out waiting for device at path {DEVICE} after 30s"
        )
    );
    let away = |line: &str| {
        let (code, text) = match line.ends_with("--discover") {
            true => (Some(8), "connection refused".to_owned()),
            false => (Some(0), String::new()),
        };
        Ok(ToolOutput { code, text })
    };
    let away = FakeTools::answering(away);
    assert_eq!(
        told(&away).await,
        "failed to get any path for iscsi disk, last err seen:\niscsi: failed to sendtargets to portal 10.0.0.1:3260 output: connection refused, err exit status 8"
    );
    let missing = FakeTools::answering(|_| Err(io::Error::from(io::ErrorKind::NotFound)));
    assert_eq!(
        told(&missing).await,
        "exec: \"iscsiadm\": executable file not found in $PATH"
    );
}

/// A pod's own volume of a target that asks who comes.
fn asked_for_a_password() -> Volume {
    let source = json!({"targetPortal": "10.0.0.1", "iqn": "iqn.x:d", "lun": 0,
        "chapAuthSession": true, "secretRef": {"name": "chap"}});
    serde_json::from_value(json!({"name": "disk", "iscsi": source})).unwrap()
}

#[tokio::test(start_paused = true)]
async fn passwords_are_in_records_and_in_no_command() {
    let machine = Machine::new();
    let record = Path::new("/etc/iscsi/nodes/iqn.x:d/10.0.0.1,3260,1/default");
    let parent = record.parent().unwrap();
    machine.files.create_dir_all(parent, 0o700).await.unwrap();
    let text = b"# BEGIN RECORD 2.1.8\n# END RECORD\n";
    let written = machine.files.write_atomic(record, text, 0o644);
    written.await.unwrap();
    let mut wanted = Wanted::inline("u-1", asked_for_a_password());
    wanted.pod.metadata.namespace = Some("ns".to_owned());
    let request = wanted.request();
    let plugin = machine.plugin();
    let missing = plugin.chap(&request).await.unwrap_err();
    assert_eq!(
        missing.to_string(),
        "couldn't get secret ns/chap error: secret \"chap\" not found"
    );
    let secret = json!({"metadata": {"name": "chap", "namespace": "ns"}, "data": {
        "node.session.auth.username": "bWU=", "node.session.auth.password": "aHVzaC1odXNo"}});
    let secret = serde_json::from_value(secret).unwrap();
    machine.objects.put_secret(secret);
    let chap = plugin.chap(&request).await.unwrap();
    let address = plugin.address(&request.source).unwrap();
    plugin.attach(&address, chap.as_ref()).await.unwrap();
    let text = machine.files.read(record, 4096).await.unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("node.session.auth.password = hush-hush\n"),
        "{text}"
    );
    let ran = machine.tools.ran().join("\n");
    assert!(ran.contains("--login") && !ran.contains("hush"), "{ran}");
}

pub(super) const FABRIC: &str = "/dev/disk/by-path/pci-0000:41:00.0-fc-0x500a0981891b8dc5-lun-0";

#[tokio::test(start_paused = true)]
async fn a_fabric_is_looked_at_anew_before_a_disk_is_given_up() {
    let source = json!({"targetWWNs": ["500a0981891b8dc5"], "lun": 0});
    let volume: Volume = serde_json::from_value(json!({"name": "disk", "fc": source})).unwrap();
    let machine = Machine::new();
    let found = async |tools: &FakeTools| {
        let plugin = machine.plugin_over(DiskKind::FibreChannel, &machine.files, tools);
        let address = plugin.address(&Source::Inline(&volume)).unwrap();
        let found = plugin.attach(&address, None).await;
        found.map(|a| a.path).map_err(|e| e.to_string())
    };
    let blind = FakeTools::default();
    assert_eq!(found(&blind).await, Err("no fc disk found".to_owned()));
    assert_eq!(blind.ran().len(), 1, "{:?}", blind.ran());
    let files = machine.files.clone();
    let scanning = FakeTools::answering(move |line| {
        if line.contains("/sys/class/scsi_host/host*/scan") {
            files.put(Path::new(FABRIC), EntryKind::BlockDevice)?;
        }
        Ok(ToolOutput {
            code: Some(0),
            text: String::new(),
        })
    });
    assert_eq!(found(&scanning).await, Ok(PathBuf::from(FABRIC)));
    // One that is there costs no scan.
    let calm = FakeTools::default();
    assert_eq!(found(&calm).await, Ok(PathBuf::from(FABRIC)));
    assert!(calm.ran().is_empty(), "{:?}", calm.ran());
}

#[tokio::test(start_paused = true)]
async fn ways_that_are_joined_are_used_as_one() {
    let machine = Machine::new();
    let source =
        json!({"targetPortal": "10.0.0.1", "portals": ["10.0.0.2"], "iqn": "iqn.x:d", "lun": 0});
    let volume: Volume = serde_json::from_value(json!({"name": "disk", "iscsi": source})).unwrap();
    let plugin = machine.plugin();
    let address = plugin.address(&Source::Inline(&volume)).unwrap();
    let attached = async || plugin.attach(&address, None).await.unwrap().path;
    let files = machine.files.clone();
    let (sdb, link) = (Path::new("/dev/sdb"), Path::new(DEVICE));
    files.put(sdb, EntryKind::BlockDevice).unwrap();
    files.symlink(Path::new("../../sdb"), link).await.unwrap();
    assert_eq!(attached().await, link, "nobody joins them");
    let part = "/sys/block/dm-3/slaves/sdb";
    let joins = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(3)).await;
        files.put(Path::new(part), EntryKind::Directory).unwrap();
    });
    assert_eq!(attached().await, Path::new("/dev/dm-3"), "some time later");
    joins.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_disk_as_a_device_is_let_go_by_the_last_pod() {
    let machine = Machine::new();
    let disk = json!({"iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.x:d", "lun": 0}});
    let first = mapped(&machine.plugin(), "u-1", disk.clone()).await;
    let link = format!("{ROOT}/pods/u-1/volumeDevices/kubernetes.io~iscsi/pv-1");
    let target = machine.files.read_link(Path::new(&link)).await.unwrap();
    assert_eq!(target, Path::new(DEVICE));
    let ran = machine.tools.ran();
    let touched = |line: &String| {
        ["blkid", "mkfs", "mount", "fsck"]
            .iter()
            .any(|t| line.starts_with(t))
    };
    assert!(!ran.iter().any(touched), "{ran:?}");

    let second = mapped(&machine.plugin(), "u-2", disk).await;
    // Another disk of the same target, mounted.
    let mounted = set_up(&machine, "u-3").await;
    let logouts = || {
        let ran = machine.tools.ran();
        ran.iter().filter(|line| line.ends_with("--logout")).count()
    };
    machine.plugin().tear_down(&first).await.unwrap();
    let shared = format!(
        "{ROOT}/plugins/kubernetes.io/iscsi/volumeDevices/iface-default/10.0.0.1:3260-iqn.x:d-lun-0"
    );
    let left = machine.files.list(Path::new(&shared)).await.unwrap();
    assert_eq!(left.len(), 1, "the other pod's");
    machine.plugin().tear_down(&second).await.unwrap();
    assert!(machine.files.list(Path::new(&shared)).await.is_err());
    assert_eq!(logouts(), 0, "the target is in use");
    let dir = format!("{ROOT}/pods/u-3/volumes/kubernetes.io~iscsi/disk");
    machine
        .files
        .mounts()
        .unmount(Path::new(&dir))
        .await
        .unwrap();
    machine.plugin().tear_down(&mounted).await.unwrap();
    assert_eq!(logouts(), 1);
    machine.plugin().tear_down(&second).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn another_name_for_the_node_has_an_interface_until_the_last_pod_goes() {
    let machine = Machine::new();
    let shown = |line: &str| {
        let text = match line.ends_with("-I eth -o show") {
            true => "iface.iscsi_ifacename = eth\niface.transport_name = tcp\n",
            false => "",
        };
        Ok(ToolOutput {
            code: Some(0),
            text: text.to_owned(),
        })
    };
    let tools = FakeTools::answering(shown);
    let plugin = machine.plugin_over(DiskKind::Iscsi, &machine.files, &tools);
    let source = json!({"targetPortal": "10.0.0.1", "iqn": "iqn.x:d", "lun": 0,
        "iscsiInterface": "eth", "initiatorName": "iqn.x:me"});
    let recorded = mapped(&plugin, "u-1", json!({"iscsi": source})).await;
    let own = "10.0.0.1:3260:pv-1";
    let ran = tools.ran();
    let expected = [
        "iscsiadm -m iface -I eth -o show".to_owned(),
        format!("iscsiadm -m iface -I {own} -o new"),
        format!("iscsiadm -m iface -I {own} -o update -n iface.initiatorname -v iqn.x:me"),
        format!("iscsiadm -m iface -I {own} -o update -n iface.transport_name -v tcp"),
        format!("iscsiadm -m discoverydb -t sendtargets -p 10.0.0.1:3260 -I {own} -o new"),
    ];
    assert_eq!(ran[..5], expected, "{ran:?}");
    let login = format!("iscsiadm -m node -p 10.0.0.1:3260 -T iqn.x:d -I {own} --login");
    assert!(ran.contains(&login), "{ran:?}");
    // The record of one that was cut off anywhere says the same.
    for _ in 0..2 {
        plugin.tear_down(&recorded).await.unwrap();
        let delete = format!("iscsiadm -m iface -I {own} -o delete");
        assert_eq!(tools.ran().last(), Some(&delete));
    }
    let left = machine.files.paths();
    let left: Vec<_> = left
        .iter()
        .filter(|p| p.ends_with(format!("iface-{own}")))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn an_interface_that_cannot_be_made_is_told() {
    let machine = Machine::new();
    let source = json!({"targetPortal": "10.0.0.1", "iqn": "iqn.x:d", "lun": 0, "initiatorName": "iqn.x:me"});
    let volume: Volume = serde_json::from_value(json!({"name": "disk", "iscsi": source})).unwrap();
    let other = "iscsi: iface 10.0.0.1:3260:disk is in use with initiator name iqn.x:else, and cannot have iqn.x:me: volumes of one name and portal share it";
    let nobody = other.replace("iqn.x:else", "none");
    // Which command ends how, who the node is by the interface, and what comes of it.
    for (ends, code, is, told) in [
        (
            "-o new",
            6,
            "",
            Some("iscsi: failed to create new iface: why (exit status 6)"),
        ),
        (
            "-o new",
            SESSION_EXISTS,
            "iface.initiatorname = iqn.x:me\n",
            None,
        ),
        (
            "-o new",
            SESSION_EXISTS,
            "iface.initiatorname = iqn.x:else\n",
            Some(other),
        ),
        ("-o new", SESSION_EXISTS, "", Some(&*nobody)),
        (
            "-v iqn.x:me",
            6,
            "",
            Some(
                "iscsi: failed to update iface records: why (exit status 6). iface(default) will be used",
            ),
        ),
    ] {
        let tools = FakeTools::answering(move |line| {
            let fails = line.contains("-m iface") && line.ends_with(ends);
            let shown = line.ends_with("-I 10.0.0.1:3260:disk -o show");
            let text = match (fails, shown) {
                (true, _) => "why",
                (false, true) => is,
                (false, false) => "",
            };
            Ok(ToolOutput {
                code: Some(if fails { code } else { 0 }),
                text: text.to_owned(),
            })
        });
        let plugin = machine.plugin_over(DiskKind::Iscsi, &machine.files, &tools);
        let address = plugin.address(&Source::Inline(&volume)).unwrap();
        let attached = plugin.attach(&address, None).await;
        let why = attached.err().map(|e| e.to_string());
        assert_eq!(why.as_deref(), told, "{ends} {code} {is}");
        let logs_in = tools.ran().iter().any(|line| line.ends_with("--login"));
        assert_eq!(logs_in, told.is_none(), "{ends} {code} {is}");
    }
}

/// Volumes of one name have one interface, whatever their targets are.
#[tokio::test(start_paused = true)]
async fn an_interface_is_made_and_used_by_one_at_a_time() {
    let machine = Machine::new();
    let other = DEVICE.replace("iqn.x:d", "iqn.x:e");
    let other = Path::new(&other);
    machine.files.put(other, EntryKind::BlockDevice).unwrap();
    // Nobody makes one anew that a session goes by.
    let used = std::sync::atomic::AtomicBool::new(false);
    let tools = FakeTools::answering(move |line| {
        use std::sync::atomic::Ordering::Relaxed;
        used.fetch_or(line.ends_with("--login"), Relaxed);
        let exists =
            line.ends_with(":disk -o new") && line.contains("-m iface") && used.load(Relaxed);
        let text = match line.ends_with(":disk -o show") {
            true => "iface.initiatorname = iqn.x:me-d\n",
            false => "",
        };
        Ok(ToolOutput {
            code: Some(if exists { SESSION_EXISTS } else { 0 }),
            text: text.to_owned(),
        })
    });
    let plugin = machine.plugin_over(DiskKind::Iscsi, &machine.files, &tools);
    let address = |target: &str| {
        let source = json!({"targetPortal": "10.0.0.1", "iqn": format!("iqn.x:{target}"), "lun": 0,
            "initiatorName": format!("iqn.x:me-{target}")});
        let volume = json!({"name": "disk", "iscsi": source});
        let volume: Volume = serde_json::from_value(volume).unwrap();
        plugin.address(&Source::Inline(&volume)).unwrap()
    };
    let (first, second) = (address("d"), address("e"));
    let (first, second) = tokio::join!(plugin.attach(&first, None), plugin.attach(&second, None));
    assert!(first.is_ok(), "{first:?}");
    let refused = second.unwrap_err().to_string();
    assert!(refused.contains("cannot have iqn.x:me-e"), "{refused}");
    let ran = tools.ran();
    let at = |end: &str| ran.iter().position(|line| line.ends_with(end));
    let logged_in = at("--login").unwrap();
    let made = |line: &&String| line.contains("-m iface") && line.ends_with("-o new");
    assert_eq!(ran[..logged_in].iter().filter(made).count(), 1, "{ran:?}");
    assert_eq!(ran.iter().filter(made).count(), 2, "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_its_target_got_later_is_looked_for() {
    let machine = Machine::new();
    let files = MemoryFiles::default();
    session::fake::put(&files, 2, "iqn.x:d", "default").await;
    let seen = files.clone();
    let tools = FakeTools::answering(move |line| {
        if line.ends_with("echo '0 0 0' > /sys/class/scsi_host/host2/scan") {
            seen.put(Path::new(DEVICE), EntryKind::BlockDevice)?;
        }
        // The node is logged in already.
        let code = if line.ends_with("--login") { 15 } else { 0 };
        Ok(ToolOutput {
            code: Some(code),
            text: String::new(),
        })
    });
    let plugin = machine.plugin_over(DiskKind::Iscsi, &files, &tools);
    let address = plugin.address(&Source::Inline(&volume())).unwrap();
    let attached = plugin.attach(&address, None).await.unwrap();
    assert_eq!(attached.path, Path::new(DEVICE));
}

/// Sets a disk up as a device for a pod; what was recorded.
pub(super) async fn mapped(plugin: &Disks, uid: &str, source: serde_json::Value) -> RecordedVolume {
    let mut spec = source;
    spec["volumeMode"] = json!("Block");
    let wanted = Wanted::claimed(uid, spec);
    let request = wanted.request();
    assert!(plugin.supports(&request.source));
    let recorded = plugin.plan(&request).unwrap().unwrap();
    let done = plugin.set_up(&request).await.unwrap().volume;
    assert!(done.block && !recorded.mounted);
    assert_eq!(
        request.root.pod(request.uid).join(&recorded.path),
        done.host_path,
        "it is recorded where it is"
    );
    recorded
}
