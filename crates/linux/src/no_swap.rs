//! Whether what lives in a tmpfs can be kept out of swap.

use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsconfig_set_flag, fsopen};

/// Asks the kernel, and mounts nothing. Kernels before 6.4 do not know the option, and nobody but the first user
/// namespace may use it.
pub fn tmpfs_stays_in_memory() -> bool {
    asked().is_ok()
}

fn asked() -> Result<(), Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_flag(&context, "noswap")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    #[test]
    fn as_a_mount_would_tell() {
        let dir = tempfile::tempdir().unwrap();
        let mounted = |options: &std::ffi::CStr| {
            let done = mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), options);
            if done.is_ok() {
                unmount(dir.path(), UnmountFlags::empty()).unwrap();
            }
            done.is_ok()
        };
        if !mounted(c"") {
            println!("skipped: may not mount");
            return;
        }
        assert_eq!(tmpfs_stays_in_memory(), mounted(c"noswap"));
    }
}
