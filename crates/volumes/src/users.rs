//! Who uses block devices of this node: whoever has mounted one, swaps to one, or was given one as a pod.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use krablet_linux::{Files, Mounts};
use krablet_pod::paths::RootDir;

use crate::device;
use crate::listing::names_in;
use crate::parts::Part;
use crate::record::DEVICES;

const SWAPS: &str = "/proc/swaps";
const MAX_SWAPS: usize = 64 << 10;
/// Each mounted file system of that kind has a directory here. Its mounts have a number of their own, and name one of
/// its devices only.
const BTRFS: &str = "/sys/fs/btrfs";
const DEV: &str = "/dev";

/// Who uses a device, in words for people.
#[derive(Debug, Default)]
pub(crate) struct Users {
    by_number: BTreeMap<String, String>,
    by_name: BTreeMap<String, String>,
}

impl Users {
    pub async fn look(files: &dyn Files, mounts: &dyn Mounts, root: &RootDir) -> io::Result<Self> {
        let mut users = Self::default();
        let mut by_path = BTreeMap::new();
        for mount in mounts.below(Path::new("/")).await? {
            let who = mount.point.display().to_string();
            if mount.source.starts_with(DEV) {
                by_path.insert(mount.source, who.clone());
            }
            users.by_number.insert(mount.device, who);
        }
        for device in swaps(&read_swaps(files).await?) {
            by_path.insert(device, "swap".to_owned());
        }
        for link in links_of_pods(files, root).await? {
            let who = link.display().to_string();
            by_path.insert(link, who);
        }
        for (path, who) in by_path {
            if let Some(name) = device::name_of(files, &path).await {
                users.by_name.insert(name, who);
            }
        }
        users.by_name.extend(parts_of_btrfs(files).await?);
        Ok(users)
    }

    /// Who uses a disk that has these devices. What is built upon one of them, and is none itself, is a user too.
    pub fn of(&self, disk: &[Part]) -> Option<String> {
        let is_own = |name: &String| disk.iter().any(|part| part.name == *name);
        disk.iter().find_map(|part| {
            let number = part.number.as_ref();
            let known = number.and_then(|number| self.by_number.get(number));
            let known = known.or_else(|| self.by_name.get(&part.name));
            let built = || part.holders.iter().find(|holder| !is_own(holder));
            known.or_else(built).cloned()
        })
    }
}

async fn read_swaps(files: &dyn Files) -> io::Result<String> {
    match files.read(Path::new(SWAPS), MAX_SWAPS).await {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        // A kernel without swap has no such file.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(e) => Err(e),
    }
}

/// The devices in the table of swap areas, a line each after the first: `/dev/sdb2 partition 1048572 0 -2`.
fn swaps(table: &str) -> Vec<PathBuf> {
    let areas = table.lines().skip(1);
    let areas = areas.filter_map(|line| line.split_whitespace().next());
    let devices = areas.map(PathBuf::from).filter(|a| a.starts_with(DEV));
    devices.collect()
}

/// Links to devices that pods have, of whatever kind of volume.
async fn links_of_pods(files: &dyn Files, root: &RootDir) -> io::Result<Vec<PathBuf>> {
    let pods = root.pods();
    let mut links = Vec::new();
    for pod in names_in(files, &pods).await? {
        let devices = pods.join(pod).join(DEVICES);
        for plugin in names_in(files, &devices).await? {
            let dir = devices.join(plugin);
            let names = names_in(files, &dir).await?;
            links.extend(names.into_iter().map(|name| dir.join(name)));
        }
    }
    Ok(links)
}

async fn parts_of_btrfs(files: &dyn Files) -> io::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for id in names_in(files, Path::new(BTRFS)).await? {
        let devices = Path::new(BTRFS).join(&id).join("devices");
        for name in names_in(files, &devices).await? {
            found.insert(name, format!("btrfs {id}"));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_linux::EntryKind;
    use krablet_linux::fake::{Fault, MemoryFiles};

    const ROOT: &str = "/var/lib/kubelet";

    fn part(name: &str, number: &str, holders: &[&str]) -> Part {
        Part {
            name: name.to_owned(),
            number: Some(number.to_owned()),
            holders: holders.iter().map(|h| (*h).to_owned()).collect(),
        }
    }

    #[test]
    fn a_disk_is_used_by_number_by_name_and_by_what_is_built_upon_it() {
        let one = |key: &str, who: &str| BTreeMap::from([(key.to_owned(), who.to_owned())]);
        let users = Users {
            by_number: one("8:1", "/mnt"),
            by_name: one("sdb", "swap"),
        };
        for (disk, who) in [
            (vec![], None),
            (vec![part("sda", "8:0", &[])], None),
            (
                vec![part("sda", "8:0", &[]), part("sda1", "8:1", &[])],
                Some("/mnt"),
            ),
            (vec![part("sdb", "8:16", &[])], Some("swap")),
            (vec![part("sdc", "8:32", &["md0"])], Some("md0")),
            (
                vec![part("sdc", "8:32", &["dm-3"]), part("dm-3", "253:3", &[])],
                None,
            ),
            (
                vec![
                    part("sdc", "8:32", &["dm-3"]),
                    part("dm-3", "253:3", &["dm-7"]),
                ],
                Some("dm-7"),
            ),
            (
                vec![Part {
                    name: "sdz".to_owned(),
                    ..Part::default()
                }],
                None,
            ),
        ] {
            assert_eq!(users.of(&disk).as_deref(), who, "{disk:?}");
        }
    }

    #[test]
    fn devices_that_are_swapped_to() {
        let table = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/swapfile                               file\t\t4194300\t\t0\t\t-2\n/dev/sdb2                               partition\t1048572\t\t0\t\t-3\n\n";
        assert_eq!(swaps(table), [PathBuf::from("/dev/sdb2")]);
        assert!(swaps("").is_empty());
        assert!(swaps("/dev/sdb2 is no header\n").is_empty());
    }

    async fn look(files: &MemoryFiles) -> io::Result<Users> {
        let mounts = files.mounts();
        Users::look(files, &mounts, &RootDir::new(ROOT)).await
    }

    #[tokio::test]
    async fn all_kinds_of_users_are_known() {
        let files = MemoryFiles::default();
        assert!(look(&files).await.unwrap().by_name.is_empty());
        let dirs = [
            "/mnt/b",
            "/dev/mapper",
            "/dev/disk/by-id",
            "/sys/fs/btrfs/features",
        ];
        for dir in dirs.map(Path::new) {
            files.put(dir, EntryKind::Directory).unwrap();
        }
        let pod = format!("{ROOT}/pods/u-9/volumeDevices/kubernetes.io~local-volume");
        files.put(Path::new(&pod), EntryKind::Directory).unwrap();
        let pod = format!("{pod}/pv-9");
        for (target, link) in [
            ("../dm-3", "/dev/mapper/data"),
            ("../../sdd", "/dev/disk/by-id/scsi-x"),
            ("/dev/disk/by-id/scsi-x", &pod),
        ] {
            let (target, link) = (Path::new(target), Path::new(link));
            files.symlink(target, link).await.unwrap();
        }
        let mapped = Path::new("/dev/mapper/data");
        let mounts = files.mounts();
        mounts
            .put_from("btrfs", mapped, Path::new("/mnt/b"))
            .unwrap();
        let second = Path::new("/sys/fs/btrfs/1234/devices/sde");
        files.put(second, EntryKind::Directory).unwrap();
        let table = b"Filename Type\n/dev/sdf1 partition 1 0 -2\n";
        files.put_file(Path::new(SWAPS), table).unwrap();
        let users = look(&files).await.unwrap();
        let known: Vec<(&str, &str)> = users.by_name.iter().map(|(k, v)| (&**k, &**v)).collect();
        let expected = [
            ("dm-3", "/mnt/b"),
            ("sdd", &pod),
            ("sde", "btrfs 1234"),
            ("sdf1", "swap"),
        ];
        assert_eq!(known, expected);
        assert_eq!(users.by_number.len(), 1);
    }

    /// Whoever cannot ask does not know that nobody uses a disk.
    #[tokio::test]
    async fn what_cannot_be_asked_is_told() {
        let files = MemoryFiles::default();
        for (call, path) in [
            ("read", SWAPS),
            ("list", BTRFS),
            ("list", "/var/lib/kubelet/pods"),
            ("mounts_below", "/"),
        ] {
            files.set_faults(move |asked, of| {
                let fails = asked == call && of == Path::new(path);
                fails.then(|| Fault::Before(io::ErrorKind::PermissionDenied.into()))
            });
            assert!(look(&files).await.is_err(), "{call} {path}");
        }
    }
}
