use super::*;
use krablet_linux::fake::{FakeTools, MemoryFiles};
use krablet_linux::{EntryKind, ToolOutput};
use krablet_pod::PodUid;
use krablet_pod::api::{Pod, Volume};
use serde_json::json;

const ROOT: &str = "/var/lib/kubelet";
const DEVICE: &str = "/dev/disk/by-path/ip-10.0.0.1:3260-iscsi-iqn.x:d-lun-0";
const POINT: &str =
    "/var/lib/kubelet/plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-iqn.x:d-lun-0";

/// A machine whose tools mount in memory, with a blank disk behind a target.
struct Machine {
    files: MemoryFiles,
    tools: FakeTools,
}

impl Machine {
    fn new() -> Self {
        let files = MemoryFiles::default();
        files.put(Path::new(ROOT), EntryKind::Directory).unwrap();
        files
            .put(Path::new(DEVICE), EntryKind::BlockDevice)
            .unwrap();
        let tools = FakeTools::answering(|line| {
            let code = if line.starts_with("blkid") { BLANK } else { 0 };
            Ok(ToolOutput {
                code: Some(code),
                text: String::new(),
            })
        });
        Self { files, tools }
    }

    fn plugin(&self) -> Disks {
        Disks {
            kind: DiskKind::Iscsi,
            root: RootDir::new(ROOT),
            files: Arc::new(self.files.clone()),
            trees: Arc::new(self.files.clone()),
            mounts: Arc::new(self.files.mounts()),
            tools: Arc::new(self.tools.clone()),
        }
    }
}

fn volume() -> Volume {
    let source = json!({"targetPortal": "10.0.0.1", "iqn": "iqn.x:d", "lun": 0, "fsType": "ext4"});
    serde_json::from_value(json!({"name": "disk", "iscsi": source})).unwrap()
}

/// Sets the disk up for a pod; what was recorded.
async fn set_up(machine: &Machine, uid: &str) -> RecordedVolume {
    let (root, uid, pod, volume) = (
        RootDir::new(ROOT),
        PodUid::from(uid),
        Pod::default(),
        volume(),
    );
    let request = VolumeRequest {
        root: &root,
        uid: &uid,
        pod: &pod,
        volume: &volume,
        source: Source::Inline(&volume),
    };
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
    let mut plugin = machine.plugin();
    plugin.files = Arc::new(MemoryFiles::default());
    let address = plugin.address(&Source::Inline(&volume())).unwrap();
    let error = plugin.attach(&address).await.unwrap_err();
    assert_eq!(error.to_string(), "failed to get any path for iscsi disk");
    plugin.tools = Arc::new(FakeTools::answering(|_| {
        Ok(ToolOutput {
            code: Some(8),
            text: "connection refused".to_owned(),
        })
    }));
    let error = plugin.attach(&address).await.unwrap_err().to_string();
    assert!(
        error.contains("last err seen:\niscsiadm") && error.contains("refused"),
        "{error}"
    );
}

/// Nothing in a record leads the clean-up elsewhere.
#[tokio::test]
async fn a_record_that_leads_elsewhere_is_not_followed() {
    let machine = Machine::new();
    let mut recorded = set_up(&machine, "u-1").await;
    for point in ["/etc", "plugins/../../etc", "pods/u-1"] {
        recorded.outside.as_mut().unwrap()["point"] = json!(point);
        let before = machine.tools.ran().len();
        machine.plugin().tear_down(&recorded).await.unwrap();
        assert_eq!(machine.tools.ran().len(), before, "{point}");
    }
}
