//! Finding a disk among the devices of this machine.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use krablet_linux::{Files, Tools};

use crate::address::Address;
use crate::listing::names_in;
use crate::parts::Parts;
use crate::session;
use crate::tool::{Failed, try_run};

const LINKS: [&str; 2] = ["/dev/disk/by-path", "/dev/disk/by-id"];
pub(crate) const BLOCK: &str = "/sys/block";
/// Links that are followed one after the other.
const MAX_LINKS: usize = 8;
const SCAN_DEADLINE: Duration = Duration::from_secs(60);
/// All channels, targets and units of every host. The kernel's files take no rename, as ours are written.
const SCAN: &str = r#"for scan in /sys/class/scsi_host/host*/scan; do [ ! -w "$scan" ] || echo '- - -' > "$scan"; done"#;

/// More than any identity of a disk.
const MAX_IDENTITY: usize = 4 << 10;

/// A disk as it is on the node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub links: Vec<PathBuf>,
    pub parts: Parts,
}

impl Seen {
    pub async fn look(files: &dyn Files, address: &Address) -> io::Result<Self> {
        let links = find(files, address).await?;
        let mut names = BTreeSet::new();
        for link in &links {
            names.extend(name_of(files, link).await);
        }
        let parts = Parts::of(files, names).await?;
        Ok(Self { links, parts })
    }

    /// All the ways as one device; where they are not joined, the first of them.
    pub fn path(&self) -> Option<PathBuf> {
        let joined = self.parts.joined.as_ref();
        let joined = joined.map(|name| Path::new("/dev").join(name));
        joined.or_else(|| self.links.first().cloned())
    }

    /// How many ways to it are known, under whatever names: udev has one name for all that bear one identity.
    pub async fn count_ways(&self, files: &dyn Files) -> io::Result<usize> {
        let known = self.parts.ways.len().max(self.links.len());
        let Some(way) = self.parts.ways.first() else {
            return Ok(known);
        };
        let Some(own) = identity(files, way).await else {
            return Ok(known);
        };
        let mut same = 0;
        for name in names_in(files, Path::new(BLOCK)).await? {
            if identity(files, &name).await.as_ref() == Some(&own) {
                same += 1;
            }
        }
        Ok(known.max(same))
    }
}

/// What a disk says it is, on whatever way it is asked. None if it says nothing.
async fn identity(files: &dyn Files, name: &str) -> Option<Vec<u8>> {
    let path = Path::new(BLOCK).join(name).join("device/wwid");
    let said = files.read(&path, MAX_IDENTITY).await.ok()?;
    (!said.is_empty()).then_some(said)
}

/// Every name the disk has: one for each way to it.
pub(crate) async fn find(files: &dyn Files, address: &Address) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for dir in LINKS {
        let names = names_in(files, Path::new(dir)).await?.into_iter();
        for name in names.filter(|name| address.is_device(name)) {
            let link = Path::new(dir).join(name);
            // A link outlives its device, until udev has heard of the end.
            if files.stat(&link).await.is_ok() {
                let device = name_of(files, &link).await;
                found.push((link, device));
            }
        }
    }
    let own = match found.is_empty() {
        true => Vec::new(),
        false => session::devices(files, address).await?,
    };
    Ok(chosen(found, own))
}

/// The links that lead to the disk's own devices. Sessions by several interfaces have one name for what may be
/// different disks; one whose name leads elsewhere goes by its device's.
fn chosen(links: Vec<(PathBuf, Option<String>)>, own: Vec<String>) -> Vec<PathBuf> {
    let is_own = |device: &Option<String>| device.as_ref().is_some_and(|d| own.contains(d));
    if !own.is_empty() && !links.iter().any(|(_, device)| is_own(device)) {
        return own
            .iter()
            .map(|name| Path::new("/dev").join(name))
            .collect();
    }
    let all = own.is_empty();
    let links = links
        .into_iter()
        .filter(|(_, device)| all || is_own(device));
    links.map(|(link, _)| link).collect()
}

/// What the kernel calls a device, e.g. `sdb`, by a link that leads to it.
pub(crate) async fn name_of(files: &dyn Files, path: &Path) -> Option<String> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(target) = files.read_link(&path).await else {
            break;
        };
        path = path.parent()?.join(target);
    }
    path.file_name()?.to_str().map(str::to_owned)
}

/// The device that joins several ways to a disk, if one of `ways` belongs to one: using a single way of them would
/// go behind its back.
pub(crate) async fn multipath(files: &dyn Files, ways: &[PathBuf]) -> io::Result<Option<PathBuf>> {
    let mut joined = names_in(files, Path::new(BLOCK)).await?;
    joined.retain(|name| name.starts_with("dm-"));
    for way in ways {
        let Some(device) = name_of(files, way).await else {
            continue;
        };
        // Links of udev may lead to what joins the ways already.
        if device.starts_with("dm-") {
            return Ok(Some(Path::new("/dev").join(device)));
        }
        for name in &joined {
            let part = Path::new(BLOCK).join(name).join("slaves").join(&device);
            if files.lstat(&part).await.is_ok() {
                return Ok(Some(Path::new("/dev").join(name)));
            }
        }
    }
    Ok(None)
}

/// Has the kernel look for disks that were given to this machine since it last did.
pub(crate) async fn rescan(tools: &dyn Tools) {
    let arguments = ["-c", SCAN].map(str::to_owned);
    if let Err(Failed { status, output, .. }) =
        try_run(tools, "sh", &arguments, SCAN_DEADLINE).await
    {
        tracing::warn!(err = %status, output = output.trim_end(), "Could not have the hosts of SCSI scanned");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_linux::EntryKind;
    use krablet_linux::fake::MemoryFiles;

    #[test]
    fn names_that_several_sessions_share() {
        let link = |device: &str| (PathBuf::from("/by/path"), Some(device.to_owned()));
        for (links, own, expected) in [
            (vec![link("sda")], vec![], vec!["/by/path"]),
            (vec![link("sda")], vec!["sda"], vec!["/by/path"]),
            (vec![link("sda")], vec!["sdb"], vec!["/dev/sdb"]),
            (
                vec![link("sda"), link("sdb")],
                vec!["sdb"],
                vec!["/by/path"],
            ),
        ] {
            let own = own.into_iter().map(str::to_owned).collect();
            let expected: Vec<PathBuf> = expected.into_iter().map(PathBuf::from).collect();
            assert_eq!(chosen(links, own), expected);
        }
    }

    #[tokio::test]
    async fn a_disk_with_several_ways_is_used_as_one() {
        let files = MemoryFiles::default();
        let links = ["a", "b"].map(|name| Path::new("/dev/disk/by-path").join(name));
        files
            .create_dir_all(Path::new(LINKS[0]), 0o755)
            .await
            .unwrap();
        for (link, device) in links.iter().zip(["sda", "sdb"]) {
            let target = Path::new("../..").join(device);
            files.symlink(&target, link).await.unwrap();
        }
        assert_eq!(multipath(&files, &links).await.unwrap(), None);
        for path in ["sda", "sdb", "dm-0/slaves/sdz", "dm-1/slaves/sdb", "loop0"] {
            let path = Path::new(BLOCK).join(path);
            files.put(&path, EntryKind::Directory).unwrap();
        }
        let joined = Some(PathBuf::from("/dev/dm-1"));
        assert_eq!(multipath(&files, &links).await.unwrap(), joined);
        assert_eq!(multipath(&files, &links[..1]).await.unwrap(), None);
        let itself = [PathBuf::from("/dev/sdb")];
        assert_eq!(multipath(&files, &itself).await.unwrap(), joined);
        assert_eq!(multipath(&files, &[]).await.unwrap(), None);
    }

    #[tokio::test]
    async fn ways_with_one_name_are_counted() {
        let files = MemoryFiles::default();
        for (name, identity) in [("sda", "naa.1"), ("sdb", "naa.1"), ("sdc", "naa.2")] {
            let path = Path::new(BLOCK).join(name).join("device/wwid");
            files.put_file(&path, identity.as_bytes()).unwrap();
        }
        for (links, ways, known) in [
            (0, &[][..], 0),
            (1, &["sda"], 2),
            (1, &["sdc"], 1),
            (2, &["sdc"], 2),
            (1, &["sdx", "sdy"], 2),
        ] {
            let seen = Seen {
                links: vec![PathBuf::from("/by/path"); links],
                parts: Parts {
                    joined: None,
                    ways: ways.iter().map(|w| (*w).to_owned()).collect(),
                },
            };
            assert_eq!(seen.count_ways(&files).await.unwrap(), known, "{ways:?}");
        }
    }
}
