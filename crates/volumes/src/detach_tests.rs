use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use krablet_linux::fake::{FakeTools, MemoryFiles};
use krablet_linux::{EntryKind, ToolOutput};

const ROOT: &str = "/var/lib/kubelet";
const GONE_A: &str =
    "sh -c [ ! -w /sys/block/sda/device/delete ] || echo 1 > /sys/block/sda/device/delete";
const GONE_B: &str =
    "sh -c [ ! -w /sys/block/sdb/device/delete ] || echo 1 > /sys/block/sdb/device/delete";

/// A machine with a disk that is reached by two ways.
async fn machine(joined: bool) -> MemoryFiles {
    let files = MemoryFiles::default();
    for (name, number) in [("sda", "8:0"), ("sdb", "8:16")] {
        write(&files, &format!("{BLOCK}/{name}/dev"), number).await;
        files
            .put(&Path::new("/dev").join(name), EntryKind::BlockDevice)
            .unwrap();
        if joined {
            let way = Path::new(BLOCK).join("dm-3/slaves").join(name);
            files.put(&way, EntryKind::Directory).unwrap();
        }
    }
    files
}

async fn write(files: &MemoryFiles, path: &str, text: &str) {
    let path = Path::new(path);
    files
        .create_dir_all(path.parent().unwrap(), 0o755)
        .await
        .unwrap();
    files
        .write_atomic(path, text.as_bytes(), 0o444)
        .await
        .unwrap();
}

/// What becomes of the disk with these devices, and what is run to take it off the machine.
async fn detached(
    files: &MemoryFiles,
    tools: &FakeTools,
    devices: &[&str],
    flush: bool,
) -> (Outcome, Vec<String>) {
    let root = RootDir::new(ROOT);
    let mounts = files.mounts();
    let detach = Detach {
        files,
        tools,
        mounts: &mounts,
        root: &root,
    };
    let devices: BTreeSet<String> = devices.iter().map(|d| (*d).to_owned()).collect();
    let disk = Parts::of(files, devices).await.unwrap();
    let outcome = detach.run(&disk, flush).await.unwrap();
    (outcome, tools.ran())
}

/// The same, of a disk that goes.
async fn ran(files: &MemoryFiles, tools: &FakeTools, devices: &[&str], flush: bool) -> Vec<String> {
    let (outcome, ran) = detached(files, tools, devices, flush).await;
    assert_eq!(outcome, Outcome::Gone, "{devices:?}");
    ran
}

#[tokio::test]
async fn joined_ways_are_parted_before_they_go() {
    let files = machine(true).await;
    let expected = [
        "multipath -f /dev/dm-3",
        "blockdev --flushbufs /dev/sda",
        GONE_A,
        "blockdev --flushbufs /dev/sdb",
        GONE_B,
    ];
    // By any of its names, all of it goes.
    for device in ["sda", "sdb", "dm-3"] {
        let ran = ran(&files, &FakeTools::default(), &[device], true).await;
        assert_eq!(ran, expected, "{device}");
    }
    let ran = ran(&files, &FakeTools::default(), &["sda", "sdb"], false).await;
    assert_eq!(ran, ["multipath -f /dev/dm-3", GONE_A, GONE_B]);
}

#[tokio::test]
async fn ways_that_nobody_joins_go_alone() {
    let files = machine(false).await;
    let none = ran(&files, &FakeTools::default(), &[], true).await;
    assert!(none.is_empty(), "{none:?}");
    let one = ran(&files, &FakeTools::default(), &["sdb"], true).await;
    assert_eq!(one, ["blockdev --flushbufs /dev/sdb", GONE_B]);
    let odd = ran(&files, &FakeTools::default(), &["a b", "-x", "$(x)"], true).await;
    assert!(odd.is_empty(), "{odd:?}");
}

#[tokio::test]
async fn what_others_use_stays() {
    let pod = "/var/lib/kubelet/pods/u-9/volumeDevices/kubernetes.io~local-volume/pv-9";
    let point = Path::new("/mnt/of-somebody");
    for (what, joined) in [
        ("mount", false),
        ("partition", false),
        ("device", true),
        ("holder", false),
        ("holder of a partition", false),
        ("holder of a partition", true),
        ("holder of what joins", true),
        ("btrfs", false),
        ("swap", false),
    ] {
        let files = machine(joined).await;
        match what {
            "device" => {
                let link = Path::new("/dev/disk/by-id/scsi-x");
                files
                    .create_dir_all(link.parent().unwrap(), 0o755)
                    .await
                    .unwrap();
                files.symlink(Path::new("../../dm-3"), link).await.unwrap();
                let pod = Path::new(pod);
                files
                    .create_dir_all(pod.parent().unwrap(), 0o755)
                    .await
                    .unwrap();
                files.symlink(link, pod).await.unwrap();
            }
            "holder" | "holder of a partition" | "holder of what joins" => {
                let holder = match what {
                    "holder" => "sda/holders/md0",
                    "holder of a partition" => "sdb/sdb1/holders/dm-9",
                    _ => "dm-3/holders/dm-9",
                };
                let holder = Path::new(BLOCK).join(holder);
                files.put(&holder, EntryKind::Directory).unwrap();
            }
            "btrfs" => {
                files.create_dir_all(point, 0o755).await.unwrap();
                let mounts = files.mounts();
                mounts.put_from(what, Path::new("/dev/sda"), point).unwrap();
            }
            "swap" => {
                write(
                    &files,
                    "/proc/swaps",
                    "Filename\n/dev/sdb partition 9 0 -2\n",
                )
                .await
            }
            _ => {
                files.create_dir_all(point, 0o755).await.unwrap();
                files.mounts().put("ext4", point).unwrap();
                let mounted = files.mounts().below(point).await.unwrap();
                let part = if what == "mount" { "dev" } else { "sda1/dev" };
                write(&files, &format!("{BLOCK}/sda/{part}"), &mounted[0].device).await;
            }
        }
        let (outcome, ran) = detached(&files, &FakeTools::default(), &["sda", "sdb"], true).await;
        assert_eq!(outcome, Outcome::Stays, "{what}");
        assert!(ran.is_empty(), "{what}: {ran:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_disk_is_waited_for_and_then_left() {
    let files = machine(true).await;
    let busy_until = |tries: usize| {
        let left = std::sync::atomic::AtomicUsize::new(tries);
        FakeTools::answering(move |line| {
            let busy = line.starts_with("multipath") && {
                use std::sync::atomic::Ordering::Relaxed;
                left.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1))
                    .is_ok()
            };
            Ok(ToolOutput {
                code: Some(i32::from(busy)),
                text: "map in use".to_owned(),
            })
        })
    };
    let soon = ran(&files, &busy_until(3), &["sda"], true).await;
    assert_eq!(soon.last().map(String::as_str), Some(GONE_B));
    let (outcome, never) = detached(&files, &busy_until(usize::MAX), &["sda"], true).await;
    assert_eq!(outcome, Outcome::Stays);
    assert!(
        never.iter().all(|line| line.starts_with("multipath")),
        "{never:?}"
    );
    let missing = FakeTools::answering(|_| Err(io::ErrorKind::NotFound.into()));
    let (outcome, ran) = detached(&files, &missing, &["sda"], true).await;
    assert_eq!((outcome, ran.len()), (Outcome::Stays, 1));
}
