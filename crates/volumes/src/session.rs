//! Sessions with iSCSI targets as the kernel shows them: by which host of SCSI a target's disks come.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use krablet_linux::{Files, Tools};

use crate::address::Address;
use crate::listing::names_in;
use crate::tool::{Failed, try_run};

const SESSIONS: &str = "/sys/class/iscsi_session";
/// More than any name that an attribute of a session holds.
const MAX_NAME: usize = 4 << 10;
const SCAN_DEADLINE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    /// Its directory.
    dir: PathBuf,
    /// The number of its host of SCSI.
    host: u32,
}

impl Session {
    /// The device of a disk of this session, e.g. `sdb`. A session has one channel, and one target on it.
    async fn device(&self, files: &dyn Files, lun: i32) -> io::Result<Option<String>> {
        let host = self.host;
        let place = format!("device/target{host}:0:0/{host}:0:0:{lun}/block");
        let names = names_in(files, &self.dir.join(place)).await?;
        Ok(names.into_iter().next())
    }

    /// The devices of all disks of this session.
    async fn all_devices(&self, files: &dyn Files) -> io::Result<Vec<String>> {
        let session = self.dir.join("device");
        let mut found = Vec::new();
        for target in names_in(files, &session).await? {
            if !target.starts_with("target") {
                continue;
            }
            let target = session.join(target);
            for unit in names_in(files, &target).await? {
                found.extend(names_in(files, &target.join(unit).join("block")).await?);
            }
        }
        Ok(found)
    }

    /// Has the kernel look for one disk, and not for others that are not for this node to know.
    fn scan(&self, lun: i32) -> Vec<String> {
        let host = self.host;
        let script = format!("echo '0 0 {lun}' > /sys/class/scsi_host/host{host}/scan");
        vec!["-c".to_owned(), script]
    }
}

/// The node's sessions with the target of a disk, by the interface it is reached by.
pub(crate) async fn of(files: &dyn Files, address: &Address) -> io::Result<Vec<Session>> {
    let Some(way) = address.ways().into_iter().next() else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for name in names_in(files, Path::new(SESSIONS)).await? {
        let dir = Path::new(SESSIONS).join(name);
        // One that ends meanwhile is none.
        let target = attribute(files, &dir.join("targetname")).await;
        let interface = attribute(files, &dir.join("ifacename")).await;
        let own = target.as_deref() == Some(way.iqn) && interface.as_deref() == Some(way.interface);
        let leads_to = match own {
            true => files.read_link(&dir).await.ok(),
            false => None,
        };
        if let Some(host) = leads_to.as_deref().and_then(host_in) {
            found.push(Session { dir, host });
        }
    }
    Ok(found)
}

/// The devices that a disk has by its own sessions: other interfaces may lead to another disk of that number.
pub(crate) async fn devices(files: &dyn Files, address: &Address) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for session in of(files, address).await? {
        found.extend(session.device(files, address.lun()).await?);
    }
    Ok(found)
}

/// The devices that go when the sessions of a disk end: those of every disk that came by them.
pub(crate) async fn all_devices(files: &dyn Files, address: &Address) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for session in of(files, address).await? {
        found.extend(session.all_devices(files).await?);
    }
    Ok(found)
}

/// A disk that a target got after the node has logged in is seen by those who look.
pub(crate) async fn look_for(
    files: &dyn Files,
    tools: &dyn Tools,
    address: &Address,
) -> io::Result<()> {
    let lun = address.lun();
    for session in of(files, address).await? {
        if session.device(files, lun).await?.is_some() {
            continue;
        }
        let done = try_run(tools, "sh", &session.scan(lun), SCAN_DEADLINE).await;
        if let Err(Failed { status, output, .. }) = done {
            let (host, output) = (session.host, output.trim_end());
            tracing::warn!(host, lun, err = %status, output, "Could not have a host of SCSI scanned");
        }
    }
    Ok(())
}

async fn attribute(files: &dyn Files, path: &Path) -> Option<String> {
    let bytes = files.read(path, MAX_NAME).await.ok()?;
    let text = String::from_utf8(bytes).ok()?;
    Some(text.trim().to_owned())
}

/// `…/host2/session1/…` is of host 2.
fn host_in(path: &Path) -> Option<u32> {
    let mut parts = path.iter().filter_map(|part| part.to_str());
    parts.find_map(|part| part.strip_prefix("host")?.parse().ok())
}

/// A machine's sessions, for tests.
#[cfg(test)]
pub(crate) mod fake {
    use super::*;
    use krablet_linux::EntryKind;
    use krablet_linux::fake::MemoryFiles;

    /// A session by number, on the host of that number.
    pub(crate) async fn put(files: &MemoryFiles, number: u32, iqn: &str, interface: &str) {
        let real = format!("/sys/devices/platform/host{number}/session{number}");
        let class = format!("{real}/iscsi_session/session{number}");
        files
            .create_dir_all(Path::new(&class), 0o755)
            .await
            .unwrap();
        for (name, value) in [("targetname", iqn), ("ifacename", interface)] {
            let (path, text) = (format!("{class}/{name}"), format!("{value}\n"));
            let written = files.write_atomic(Path::new(&path), text.as_bytes(), 0o444);
            written.await.unwrap();
        }
        let link = |target: String, link: String| async move {
            files
                .symlink(Path::new(&target), Path::new(&link))
                .await
                .unwrap();
        };
        link(real, format!("{class}/device")).await;
        files
            .create_dir_all(Path::new(SESSIONS), 0o755)
            .await
            .unwrap();
        link(class, format!("{SESSIONS}/session{number}")).await;
    }

    /// A disk of such a session.
    pub(crate) fn put_disk(files: &MemoryFiles, number: u32, lun: i32, name: &str) {
        let real = format!("/sys/devices/platform/host{number}/session{number}");
        let place = format!("target{number}:0:0/{number}:0:0:{lun}/block/{name}");
        let path = Path::new(&real).join(place);
        files.put(&path, EntryKind::Directory).unwrap();
        let path = Path::new("/dev").join(name);
        files.put(&path, EntryKind::BlockDevice).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::as_persistent;
    use krablet_linux::fake::{FakeTools, MemoryFiles};
    use serde_json::json;

    fn disk(interface: &str, lun: i32) -> Address {
        let source = json!({"targetPortal": "10.0.0.1", "iqn": "iqn.x:d", "lun": lun, "iscsiInterface": interface});
        let source = serde_json::from_value(source).unwrap();
        Address::iscsi(&as_persistent(&source), "disk")
    }

    #[tokio::test]
    async fn only_the_disk_is_looked_for_and_only_where_it_may_be() {
        let (files, tools) = (MemoryFiles::default(), FakeTools::default());
        let look = async |address: &Address| {
            let before = tools.ran().len();
            look_for(&files, &tools, address).await.unwrap();
            tools.ran().split_off(before)
        };
        assert!(look(&disk("default", 0)).await.is_empty(), "no session");
        fake::put(&files, 2, "iqn.x:d", "default").await;
        fake::put(&files, 3, "iqn.x:d", "eth").await;
        fake::put(&files, 4, "iqn.x:else", "default").await;
        fake::put_disk(&files, 2, 0, "sdb");
        fake::put_disk(&files, 3, 0, "sdc");
        assert!(look(&disk("default", 0)).await.is_empty(), "it is there");
        assert_eq!(
            look(&disk("default", 7)).await,
            ["sh -c echo '0 0 7' > /sys/class/scsi_host/host2/scan"]
        );
        for (interface, lun, expected) in [
            ("default", 0, &["sdb"][..]),
            ("eth", 0, &["sdc"]),
            ("eth", 1, &[]),
            ("none", 0, &[]),
        ] {
            let found = devices(&files, &disk(interface, lun)).await.unwrap();
            assert_eq!(found, expected, "{interface} {lun}");
        }
        fake::put_disk(&files, 2, 7, "sdd");
        for (interface, expected) in [
            ("default", &["sdb", "sdd"][..]),
            ("eth", &["sdc"]),
            ("none", &[]),
        ] {
            let found = all_devices(&files, &disk(interface, 0)).await.unwrap();
            assert_eq!(found, expected, "{interface}");
        }
    }

    #[test]
    fn hosts_in_paths() {
        for (path, host) in [
            (
                "../../devices/platform/host12/session1/iscsi_session/session1",
                Some(12),
            ),
            (
                "../../devices/pci0000:00/0000:00:03.0/host3/session1",
                Some(3),
            ),
            ("../../devices/hosts/session1", None),
        ] {
            assert_eq!(host_in(Path::new(path)), host, "{path}");
        }
    }
}
