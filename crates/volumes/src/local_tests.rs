use super::*;
use crate::testing::{ROOT, Wanted, in_memory};
use krablet_linux::ToolOutput;
use krablet_linux::fake::{FakeTools, MemoryFiles};
use krablet_objects::FakeObjects;
use serde_json::json;

const POINT: &str = "/var/lib/kubelet/plugins/kubernetes.io/local-volume/mounts/pv-1";

/// A machine with a blank disk, a directory and a file. What its tools mount is there.
struct Machine {
    files: MemoryFiles,
    tools: FakeTools,
    plugin: Local,
}

impl Machine {
    fn new(broken: bool) -> Self {
        let files = MemoryFiles::default();
        for (path, kind) in [
            (ROOT, EntryKind::Directory),
            ("/srv/data", EntryKind::Directory),
            ("/srv/file", EntryKind::File),
            ("/dev/sdx", EntryKind::BlockDevice),
        ] {
            files.put(Path::new(path), kind).unwrap();
        }
        let mounts = files.mounts();
        let tools = FakeTools::answering(move |line| {
            let mut words = line.split(' ');
            let code = match words.next() {
                Some("blkid") => 2,
                Some("mount") if broken => 32,
                Some("mount") => {
                    let point = words.next_back().unwrap();
                    mounts.put("ext4", Path::new(point)).unwrap();
                    0
                }
                _ => 0,
            };
            let text = if code == 32 { "no" } else { "" };
            Ok(ToolOutput {
                code: Some(code),
                text: text.to_owned(),
            })
        });
        let deps = in_memory(&files, &tools, &FakeObjects::new());
        Self {
            plugin: Local::new(RootDir::new(ROOT), &deps),
            files,
            tools,
        }
    }

    /// What is recorded of the volume for a pod, and what came of setting it up.
    async fn set_up(
        &self,
        uid: &str,
        local: serde_json::Value,
    ) -> (RecordedVolume, Result<PathBuf, SetUpError>) {
        let spec = json!({"local": local, "mountOptions": ["noatime"]});
        let wanted = Wanted::claimed(uid, spec);
        let request = wanted.request();
        let recorded = self.plugin.plan(&request).unwrap().unwrap();
        let done = self.plugin.set_up(&request).await;
        (recorded, done.map(|standing| standing.volume.host_path))
    }

    fn points(&self) -> impl Future<Output = Vec<PathBuf>> + use<> {
        let mounts = self.files.mounts();
        async move {
            let all = mounts.below(Path::new("/")).await.unwrap();
            all.into_iter().map(|m| m.point).collect()
        }
    }
}

fn dir(uid: &str) -> PathBuf {
    format!("{ROOT}/pods/{uid}/volumes/kubernetes.io~local-volume/pv-1").into()
}

#[tokio::test]
async fn a_device_is_mounted_once_and_let_go_by_the_last_pod() {
    let machine = Machine::new(false);
    let device = json!({"path": "/dev/sdx"});
    let (first, done) = machine.set_up("u-1", device.clone()).await;
    assert_eq!(done.unwrap(), dir("u-1"));
    let ran = machine.tools.ran();
    let expected = [
        "mkfs.ext4 -F -m0 /dev/sdx".to_owned(),
        format!("mount -t ext4 -o noatime,defaults /dev/sdx {POINT}"),
    ];
    assert_eq!(ran[1..], expected, "{ran:?}");
    let (second, done) = machine.set_up("u-2", device).await;
    assert_eq!(done.unwrap(), dir("u-2"));
    assert_eq!(machine.tools.ran(), ran, "it is mounted already");

    let mounts = machine.files.mounts();
    mounts.unmount(&dir("u-1")).await.unwrap();
    machine.plugin.tear_down(&first).await.unwrap();
    let left = machine.points().await;
    assert_eq!(left, [PathBuf::from(POINT), dir("u-2")]);
    mounts.unmount(&dir("u-2")).await.unwrap();
    for _ in 0..2 {
        machine.plugin.tear_down(&second).await.unwrap();
    }
    assert!(machine.points().await.is_empty());
    assert!(!machine.files.paths().contains(&PathBuf::from(POINT)));
}

#[tokio::test]
async fn a_directory_is_shown_as_it_is() {
    let machine = Machine::new(false);
    let (recorded, done) = machine.set_up("u-1", json!({"path": "/srv/data"})).await;
    assert_eq!(done.unwrap(), dir("u-1"));
    assert_eq!(machine.points().await, [dir("u-1")]);
    assert!(machine.tools.ran().is_empty());
    machine.plugin.tear_down(&recorded).await.unwrap();
    assert_eq!(machine.points().await, [dir("u-1")]);
}

#[tokio::test]
async fn what_cannot_be_mounted_is_told() {
    let machine = Machine::new(true);
    let (_, done) = machine.set_up("u-1", json!({"path": "/srv/file"})).await;
    let why = done.unwrap_err();
    assert!(matches!(why, SetUpError::NewMounter(_)), "{why:?}");
    assert_eq!(
        why.to_string(),
        "only directory and block device are supported"
    );
    let device = json!({"path": "/dev/sdx", "fsType": "xfs"});
    let (_, done) = machine.set_up("u-1", device).await;
    let why = done.unwrap_err();
    assert!(matches!(why, SetUpError::Device(_)), "{why:?}");
    let expected = format!(
        "local: failed to mount device /dev/sdx at {POINT} (fstype: xfs), error mount failed: exit status 32\n"
    );
    assert!(why.to_string().starts_with(&expected), "{why}");
    assert!(!machine.files.paths().contains(&PathBuf::from(POINT)));
}
