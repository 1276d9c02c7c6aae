//! Settings of the kernel that an agent makes as a kubelet does: a node that was only there to be looked at puts them
//! back as they were.

use std::fs;
use std::path::{Path, PathBuf};

const SETTINGS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// As they were.
pub(crate) struct KernelSettings(Vec<(PathBuf, String)>);

impl KernelSettings {
    pub(crate) fn now() -> Self {
        Self::below(Path::new("/proc/sys"))
    }

    fn below(dir: &Path) -> Self {
        let paths = SETTINGS.iter().map(|name| dir.join(name));
        let known = paths.filter_map(|path| {
            let value = fs::read_to_string(&path).ok()?;
            Some((path, value))
        });
        Self(known.collect())
    }

    /// Writes those that have changed.
    pub(crate) fn restore(&self) {
        for (path, before) in &self.0 {
            let changed = fs::read_to_string(path).is_ok_and(|now| now != *before);
            if changed && let Err(e) = fs::write(path, before) {
                eprintln!("Could not set {} back: {e}", path.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_is_set_back() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("kernel")).unwrap();
        let panic = dir.path().join("kernel/panic");
        fs::write(&panic, "0\n").unwrap();
        let settings = KernelSettings::below(dir.path());
        fs::write(&panic, "10\n").unwrap();
        settings.restore();
        assert_eq!(fs::read_to_string(&panic).unwrap(), "0\n");
        assert!(!dir.path().join("vm").exists());
    }
}
