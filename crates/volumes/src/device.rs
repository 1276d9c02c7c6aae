//! Finding a disk among the devices of this machine.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use krablet_linux::{Files, Tools};

use crate::address::Address;
use crate::tool::{Failed, try_run};

const LINKS: [&str; 2] = ["/dev/disk/by-path", "/dev/disk/by-id"];
const BLOCK: &str = "/sys/block";
const SCAN_DEADLINE: Duration = Duration::from_secs(60);
/// All channels, targets and units of every host. The kernel's files take no rename, as ours are written.
const SCAN: &str = r#"for scan in /sys/class/scsi_host/host*/scan; do [ ! -w "$scan" ] || echo '- - -' > "$scan"; done"#;

/// Every name the disk has: one for each way to it.
pub(crate) async fn find(files: &dyn Files, address: &Address) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for dir in LINKS {
        let entries = match files.list(Path::new(dir)).await {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        let names = entries.iter().filter_map(|e| e.path.file_name()?.to_str());
        let own = names.filter(|name| address.is_device(name));
        found.extend(own.map(|name| Path::new(dir).join(name)));
    }
    Ok(found)
}

/// The device that joins several ways to a disk, if one of `ways` belongs to one: using a single way of them would
/// go behind its back.
pub(crate) async fn multipath(files: &dyn Files, ways: &[PathBuf]) -> io::Result<Option<PathBuf>> {
    let joined = match files.list(Path::new(BLOCK)).await {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let names = joined.iter().filter_map(|e| e.path.file_name()?.to_str());
    let joined: Vec<&str> = names.filter(|name| name.starts_with("dm-")).collect();
    for way in ways {
        // What a link of udev leads to is a plain name below /dev; a device itself goes by its own.
        let device = files.read_link(way).await.unwrap_or_else(|_| way.clone());
        let Some(device) = device.file_name() else {
            continue;
        };
        for name in &joined {
            let part = Path::new(BLOCK).join(name).join("slaves").join(device);
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
}
