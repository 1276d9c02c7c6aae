//! A disk's file system, mounted once for the node. Pods are shown it by bind mounts; the last of them lets it go.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use krablet_linux::{Files, Mounts, Tools};
use krablet_pod::paths::RootDir;

use crate::error::SetUpError;
use crate::grow::Mounted;
use crate::tool::{Failed, mount_arguments, run, try_run};

pub(crate) const DEFAULT_FS: &str = "ext4";
/// Of directories that something is mounted on, or that links to devices are in.
pub(crate) const POINT_MODE: u32 = 0o750;
const DEADLINE: Duration = Duration::from_secs(60);
/// For what grows with the disk: making a file system, and repairing one.
const LONG_DEADLINE: Duration = Duration::from_secs(600);
/// What `blkid` ends with when it finds nothing on a disk.
const BLANK: i32 = 2;
/// What `fsck` ends with when it found what it cannot repair.
const BEYOND_REPAIR: i32 = 4;

pub(crate) struct NodeMount<'a> {
    pub device: &'a Path,
    pub fs_type: &'a str,
    pub options: Vec<String>,
    pub read_only: bool,
    pub point: &'a Path,
}

impl NodeMount<'_> {
    /// A blank disk gets a file system; one with another than asked for is refused by the mount.
    pub async fn make(self, tools: &dyn Tools) -> Result<(), SetUpError> {
        let device = self.device.display().to_string();
        let found = look_at(tools, &device).await?;
        match (&found, self.read_only) {
            (OnDisk::Nothing, true) => {
                return Err(SetUpError::Device(format!(
                    "cannot mount unformatted disk {device} as we are manipulating it in read-only mode"
                )));
            }
            (OnDisk::Nothing, false) => format(tools, &device, self.fs_type).await?,
            (_, false) => repair(tools, &device).await?,
            (_, true) => {}
        }
        let mut options = self.options;
        let last = if self.read_only { "ro" } else { "defaults" };
        options.push(last.to_owned());
        let arguments = mount_arguments(Some(self.fs_type), &options, &device, self.point);
        let mounted = run(tools, "mount", &arguments, DEADLINE).await;
        mounted.map_err(|e| match found.is_other_than(self.fs_type) {
            true => SetUpError::OtherFileSystem(e.to_string()),
            false => SetUpError::Device(e.to_string()),
        })?;
        // One that was just made fills its disk.
        if let (OnDisk::FileSystem(format), false) = (&found, self.read_only) {
            let mounted = Mounted {
                device: &device,
                format,
                point: self.point,
            };
            mounted.grow(tools).await;
        }
        Ok(())
    }
}

/// What a disk holds.
#[derive(Debug, PartialEq, Eq)]
enum OnDisk {
    Nothing,
    FileSystem(String),
    /// A partition table: no file system of its own, and not blank either.
    Else,
}

impl OnDisk {
    /// A blank disk has got what was asked for.
    fn is_other_than(&self, fs_type: &str) -> bool {
        match self {
            OnDisk::Nothing => false,
            OnDisk::FileSystem(format) => format != fs_type,
            OnDisk::Else => true,
        }
    }
}

async fn look_at(tools: &dyn Tools, device: &str) -> Result<OnDisk, SetUpError> {
    let line = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device];
    match try_run(tools, "blkid", &line.map(str::to_owned), DEADLINE).await {
        Ok(said) => Ok(on_disk(&said)),
        Err(failed) if failed.code == Some(BLANK) => Ok(OnDisk::Nothing),
        Err(Failed { status, output, .. }) => Err(SetUpError::Device(format!(
            "failed to get disk format of disk {device}: {status}: {}",
            output.trim_end()
        ))),
    }
}

fn on_disk(said: &str) -> OnDisk {
    let value = |key: &str| said.lines().find_map(|line| line.strip_prefix(key));
    match (value("TYPE="), value("PTTYPE=")) {
        (_, Some(_)) => OnDisk::Else,
        (Some(format), None) => OnDisk::FileSystem(format.to_owned()),
        (None, None) => OnDisk::Nothing,
    }
}

async fn format(tools: &dyn Tools, device: &str, fs_type: &str) -> Result<(), SetUpError> {
    let arguments = match fs_type {
        "ext3" | "ext4" => vec!["-F", "-m0", device],
        "xfs" => vec!["-f", device],
        _ => vec![device],
    };
    let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
    let mkfs = format!("mkfs.{fs_type}");
    tracing::info!(device, fs_type, "A disk is blank and gets a file system");
    let made = run(tools, &mkfs, &arguments, LONG_DEADLINE).await;
    made.map_err(|e| SetUpError::Device(e.to_string()))?;
    Ok(())
}

/// What a crash left is repaired before the mount. Only what cannot be repaired keeps a disk from being mounted.
async fn repair(tools: &dyn Tools, device: &str) -> Result<(), SetUpError> {
    let arguments = ["-a", device].map(str::to_owned);
    let Err(failed) = try_run(tools, "fsck", &arguments, LONG_DEADLINE).await else {
        return Ok(());
    };
    let Failed {
        code,
        status,
        output,
    } = failed;
    if code == Some(BEYOND_REPAIR) {
        return Err(SetUpError::Device(format!(
            "'fsck' found errors on device {device} but could not correct them: {}",
            output.trim_end()
        )));
    }
    tracing::info!(device, status, output = output.trim_end(), "fsck of a disk");
    Ok(())
}

/// Shows a pod at `dir` what stands elsewhere on the node.
pub(crate) async fn show(
    files: &dyn Files,
    mounts: &dyn Mounts,
    source: &Path,
    dir: &Path,
    read_only: bool,
) -> io::Result<()> {
    files.create_dir_all(dir, POINT_MODE).await?;
    mounts.bind(source, dir, read_only).await
}

/// A link to a device among those of the pod, which the runtime resolves.
pub(crate) async fn link(files: &dyn Files, device: &Path, link: &Path) -> io::Result<()> {
    if let Some(parent) = link.parent() {
        files.create_dir_all(parent, POINT_MODE).await?;
    }
    files.symlink(device, link).await
}

/// A place as a record gives it, below the directory where plugins have theirs. None if it leads elsewhere.
pub(crate) fn recorded_point(root: &RootDir, point: &Path) -> Option<PathBuf> {
    let stays = point
        .components()
        .all(|c| matches!(c, Component::Normal(_)));
    (stays && point.starts_with("plugins")).then(|| root.path().join(point))
}

/// Unmounts what no pod is shown any more. False if a pod is.
pub(crate) async fn unmounted(
    mounts: &dyn Mounts,
    root: &RootDir,
    point: &Path,
) -> io::Result<bool> {
    let mounted = mounts.below(point).await?;
    if let Some(own) = mounted.iter().find(|m| m.point == point) {
        let pods = mounts.below(&root.pods()).await?;
        if pods.iter().any(|m| m.device == own.device) {
            return Ok(false);
        }
        mounts.unmount(point).await?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_linux::ToolOutput;
    use krablet_linux::fake::FakeTools;

    /// What is run for a disk on which `blkid` and `fsck` find this, and what comes of it.
    async fn made(
        blkid: (i32, &'static str),
        fsck: i32,
        fs_type: &str,
        read_only: bool,
    ) -> (Vec<String>, Result<(), String>) {
        let tools = FakeTools::answering(move |line| {
            let (code, text) = match line.split(' ').next() {
                Some("blkid") => blkid,
                Some("fsck") => (fsck, "found"),
                Some("blockdev") => (0, "0\n"),
                _ => (0, ""),
            };
            Ok(ToolOutput {
                code: Some(code),
                text: text.to_owned(),
            })
        });
        let mount = NodeMount {
            device: Path::new("/dev/x"),
            fs_type,
            options: Vec::new(),
            read_only,
            point: Path::new("/p"),
        };
        let done = mount.make(&tools).await.map_err(|e| e.to_string());
        let ran = tools.ran().into_iter();
        (
            ran.filter(|line| !line.starts_with("blkid")).collect(),
            done,
        )
    }

    #[tokio::test]
    async fn only_a_blank_disk_is_formatted() {
        const NOTHING: (i32, &str) = (BLANK, "");
        const EXT4: (i32, &str) = (0, "DEVNAME=/dev/x\nTYPE=ext4\n");
        const PARTITIONS: (i32, &str) = (0, "DEVNAME=/dev/x\nPTTYPE=gpt\n");
        let mount = "mount -t ext4 -o defaults /dev/x /p";
        let getro = "blockdev --getro /dev/x";
        let cases: [((i32, &'static str), &str, &[&str]); 4] = [
            (NOTHING, "ext4", &["mkfs.ext4 -F -m0 /dev/x", mount]),
            (
                NOTHING,
                "xfs",
                &["mkfs.xfs -f /dev/x", "mount -t xfs -o defaults /dev/x /p"],
            ),
            (
                EXT4,
                "ext4",
                &["fsck -a /dev/x", mount, getro, "resize2fs /dev/x"],
            ),
            (PARTITIONS, "ext4", &["fsck -a /dev/x", mount]),
        ];
        for (blkid, fs_type, expected) in cases {
            let (ran, done) = made(blkid, 0, fs_type, false).await;
            assert_eq!(ran, expected, "{blkid:?}");
            assert_eq!(done, Ok(()));
        }
    }

    #[tokio::test]
    async fn a_disk_for_reading_is_left_as_it_is() {
        let (ran, done) = made((0, "TYPE=ext4\n"), 0, "ext4", true).await;
        assert_eq!(ran, ["mount -t ext4 -o ro /dev/x /p"]);
        assert_eq!(done, Ok(()));
        let (ran, done) = made((BLANK, ""), 0, "ext4", true).await;
        assert!(ran.is_empty(), "{ran:?}");
        assert_eq!(
            done.unwrap_err(),
            "cannot mount unformatted disk /dev/x as we are manipulating it in read-only mode"
        );
    }

    #[tokio::test]
    async fn what_cannot_be_repaired_is_not_mounted() {
        for (fsck, mounts) in [(0, true), (1, true), (BEYOND_REPAIR, false), (8, true)] {
            let (ran, done) = made((0, "TYPE=ext4\n"), fsck, "ext4", false).await;
            let mounted = ran.iter().any(|line| line.starts_with("mount "));
            assert_eq!(mounted, mounts, "{fsck}: {ran:?}");
            assert_eq!(done.is_ok(), mounts, "{fsck}");
        }
        let (_, done) = made((0, "TYPE=ext4\n"), BEYOND_REPAIR, "ext4", false).await;
        assert_eq!(
            done.unwrap_err(),
            "'fsck' found errors on device /dev/x but could not correct them: found"
        );
        let (ran, done) = made((8, "ambivalent result"), 0, "ext4", false).await;
        assert!(ran.is_empty(), "{ran:?}");
        assert_eq!(
            done.unwrap_err(),
            "failed to get disk format of disk /dev/x: exit status 8: ambivalent result"
        );
    }

    #[test]
    fn where_a_record_may_lead() {
        let root = RootDir::new("/var/lib/kubelet");
        let below = recorded_point(&root, Path::new("plugins/kubernetes.io/x"));
        assert_eq!(
            below,
            Some("/var/lib/kubelet/plugins/kubernetes.io/x".into())
        );
        for point in ["/etc", "plugins/../../etc", "pods/u-1"] {
            assert_eq!(recorded_point(&root, Path::new(point)), None, "{point}");
        }
    }
}
