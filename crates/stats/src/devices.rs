//! Which device a path is on, and what it is called.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use krablet_linux::mountinfo;

use crate::files::Kernel;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    number: u64,
    /// As the table of mounts has it; empty if it has none.
    pub name: String,
}

impl Device {
    /// Subvolumes of one btrfs have numbers of their own, and only the name tells that they are on one disk. What has no
    /// device behind it (tmpfs, overlay) is named after its kind, which tells nothing.
    pub fn is_disk_of(&self, other: &Self) -> bool {
        self.number == other.number || (self.name.contains('/') && self.name == other.name)
    }
}

/// By path: the device that was last found there. There are three paths at most.
#[derive(Default)]
pub(crate) struct Devices(Mutex<BTreeMap<PathBuf, Device>>);

impl Devices {
    /// The table of mounts has two lines for every pod, so it is only read for a device that was not on the path before.
    pub fn of(&self, path: &Path, kernel: &Kernel) -> Option<Device> {
        let number = std::fs::metadata(path).ok()?.dev();
        let known = self.known().get(path).cloned();
        if let Some(device) = known.filter(|d| d.number == number) {
            return Some(device);
        }
        // Nobody waits for it who asks for another path: it may hang.
        let name = name(path, kernel);
        let device = Device { number, name };
        self.known().insert(path.to_owned(), device.clone());
        Some(device)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Device>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name(path: &Path, kernel: &Kernel) -> String {
    let table = std::fs::read(kernel.proc.join("self/mountinfo"));
    let mounts = mountinfo::parse(&table.unwrap_or_default());
    // A link may lead to another mount.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let holders = mounts.iter().filter(|m| path.starts_with(&m.point));
    // Of two on one point the later one is seen.
    let holder = holders.max_by_key(|m| m.point.as_os_str().len());
    holder.map_or_else(String::new, |m| m.source.display().to_string())
}

#[cfg(test)]
mod tests {
    use krablet_linux::CgroupVersion;

    use super::*;

    #[test]
    fn what_is_on_one_disk() {
        for (one, other, same) in [
            ((1, "/dev/vda1"), (1, "/dev/vda1"), true),
            // Two names of one device.
            ((1, "/dev/mapper/root"), (1, "/dev/dm-0"), true),
            ((1, ""), (1, ""), true),
            // Two subvolumes of one btrfs.
            ((1, "/dev/vda1"), (2, "/dev/vda1"), true),
            ((1, "/dev/vda1"), (2, "/dev/vdb1"), false),
            ((1, "tank/a"), (2, "tank/b"), false),
            ((1, "tmpfs"), (2, "tmpfs"), false),
            ((1, "overlay"), (2, "overlay"), false),
            ((1, ""), (2, ""), false),
        ] {
            let device = |(number, name): (u64, &str)| Device {
                number,
                name: name.to_owned(),
            };
            let found = device(one).is_disk_of(&device(other));
            assert_eq!(found, same, "{one:?} {other:?}");
        }
    }

    #[test]
    fn the_name_of_the_mount_that_holds_a_path() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let proc = top.join("proc");
        for made in ["proc/self", "disk/below", "plain"] {
            std::fs::create_dir_all(top.join(made)).unwrap();
        }
        std::os::unix::fs::symlink(top.join("disk"), top.join("link")).unwrap();
        let table = format!(
            "1 0 8:1 / / rw - ext4 /dev/vda1 rw\n2 1 8:2 / {}/disk rw - ext4 /dev/vdb1 rw\n",
            top.display()
        );
        std::fs::write(proc.join("self/mountinfo"), table).unwrap();
        let kernel = Kernel {
            proc,
            ..Kernel::of_this_machine(CgroupVersion::V2)
        };
        let devices = Devices::default();
        for (path, expected) in [
            ("plain", Some("/dev/vda1")),
            ("disk/below", Some("/dev/vdb1")),
            ("link/below", Some("/dev/vdb1")),
            ("absent", None),
        ] {
            let found = devices.of(&top.join(path), &kernel);
            assert_eq!(found.as_ref().map(|d| &*d.name), expected, "{path}");
        }
        // As long as the device is the same nobody looks again.
        std::fs::remove_file(kernel.proc.join("self/mountinfo")).unwrap();
        let again = devices.of(&top.join("disk/below"), &kernel).unwrap();
        assert_eq!(again.name, "/dev/vdb1");
    }
}
