//! A cgroup that is held open: files of it, and of those right below it, are found by the last part of their names. To go down
//! from the root for every file costs more than to read it.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::os::fd::OwnedFd;

use krablet_linux::CgroupVersion;
use rustix::fs::{Access, AtFlags, Mode, OFlags, accessat, open, openat};

use crate::files::{Kernel, MOST_FILES, content};
use crate::parse::{Lookup, machine, tasks, v1, v2};
use crate::reading::{Cgroup, Depth, OpenFiles, Tasks};

/// Every path given to it is its own, or one below it.
pub struct Home<'a> {
    kernel: &'a Kernel,
    path: &'a str,
    /// One for each hierarchy that was asked for; none where there is no such cgroup.
    dirs: [OnceCell<Option<OwnedFd>>; v1::CONTROLLERS.len()],
}

impl<'a> Home<'a> {
    pub(crate) fn of(kernel: &'a Kernel, path: &'a str) -> Self {
        Self {
            kernel,
            path: path.trim_matches('/'),
            dirs: Default::default(),
        }
    }

    fn dir(&self, controller: &str) -> Option<&OwnedFd> {
        let index = match self.kernel.version {
            CgroupVersion::V1 => v1::CONTROLLERS.iter().position(|c| *c == controller)?,
            CgroupVersion::V2 => 0,
        };
        let opened = self.dirs.get(index)?.get_or_init(|| {
            let place = match self.kernel.version {
                CgroupVersion::V1 => self.kernel.cgroup.join(controller).join(self.path),
                CgroupVersion::V2 => self.kernel.cgroup.join(self.path),
            };
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            open(place, flags, Mode::empty()).ok()
        });
        opened.as_ref()
    }

    /// The rest of a path from here on; empty for the cgroup itself.
    fn below<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.trim_matches('/').strip_prefix(self.path)?;
        match rest.is_empty() || self.path.is_empty() {
            true => Some(rest),
            false => rest.strip_prefix('/'),
        }
    }

    fn text(&self, controller: &str, path: &str, file: &str) -> Option<String> {
        let name = match self.below(path)? {
            "" => Cow::Borrowed(file),
            below => Cow::Owned(format!("{below}/{file}")),
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(self.dir(controller)?, &*name, flags, Mode::empty()).ok()?;
        content(file.into())
    }

    fn look_up<T>(&self, path: &str, read: impl FnOnce(&mut Lookup<'_>) -> T) -> T {
        match self.kernel.version {
            CgroupVersion::V2 => read(&mut |name| self.text("", path, name)),
            CgroupVersion::V1 => read(&mut |name| {
                let (controller, file) = name.split_once('/')?;
                self.text(controller, path, file)
            }),
        }
    }

    /// None if there is no such cgroup.
    pub fn cgroup(&self, path: &str, depth: Depth) -> Option<Cgroup> {
        let found = self.look_up(path, |files| match self.kernel.version {
            CgroupVersion::V2 => v2::read(files, depth),
            CgroupVersion::V1 => v1::read(files, depth),
        });
        (found.cpu.is_some() || found.memory.is_some()).then_some(found)
    }

    /// Nothing but how many processes there are.
    pub fn tasks(&self, path: &str) -> Option<Tasks> {
        self.look_up(path, |files| match self.kernel.version {
            CgroupVersion::V2 => tasks(files, v2::TASKS, Depth::Summary),
            CgroupVersion::V1 => tasks(files, v1::TASKS, Depth::Summary),
        })
    }

    pub fn exists(&self, path: &str) -> bool {
        let found = || {
            let below = self.below(path).filter(|below| !below.is_empty())?;
            accessat(self.dir("memory")?, below, Access::EXISTS, AtFlags::empty()).ok()
        };
        found().is_some()
    }

    fn processes_of(&self, path: &str) -> Vec<u32> {
        let procs = self.text("memory", path, "cgroup.procs");
        let procs = procs.unwrap_or_default();
        procs.lines().filter_map(|line| line.parse().ok()).collect()
    }

    pub fn first_process(&self, path: &str) -> Option<u32> {
        self.processes_of(path).first().copied()
    }

    /// What the processes of a container have open.
    pub fn open_files(&self, path: &str) -> Option<OpenFiles> {
        let processes = self.processes_of(path);
        let first = processes.first()?;
        let limits = self.kernel.proc_text(&format!("{first}/limits"));
        let mut found = OpenFiles {
            limit: limits.and_then(|text| machine::max_open_files(&text)),
            ..OpenFiles::default()
        };
        for process in processes {
            let entries = std::fs::read_dir(self.kernel.proc.join(format!("{process}/fd")));
            for entry in entries.into_iter().flatten().flatten() {
                if found.descriptors >= MOST_FILES {
                    return Some(found);
                }
                found.descriptors += 1;
                let target = std::fs::read_link(entry.path()).unwrap_or_default();
                found.sockets += u64::from(target.to_string_lossy().starts_with("socket:"));
            }
        }
        Some(found)
    }
}
