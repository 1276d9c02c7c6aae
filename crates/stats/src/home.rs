//! A cgroup that is held open: its files, and the cgroups right below it, are found by the last part of their names. To go
//! down from the root for every file costs more than to read it.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use krablet_linux::CgroupVersion;
use rustix::fs::{Mode, OFlags, RawDir, open, openat, readlinkat_raw};

use crate::files::{Kernel, MOST_FILES, Paper};
use crate::parse::{Files, machine, tasks, v1, v2};
use crate::reading::{Cgroup, Depth, OpenFiles, Tasks};
use crate::settings::Kept;

/// The hierarchy that has all cgroups in it.
const EVERYWHERE: &str = "memory";
const PROCESSES: &str = "cgroup.procs";
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

pub struct Home<'a> {
    kernel: &'a Kernel,
    path: String,
    above: Option<&'a Home<'a>>,
    /// One for each hierarchy that was asked for; none where there is no such cgroup.
    dirs: [OnceLock<Option<OwnedFd>>; v1::CONTROLLERS.len()],
}

impl<'a> Home<'a> {
    pub(crate) fn of(kernel: &'a Kernel, path: &str) -> Self {
        Self {
            kernel,
            path: path.to_owned(),
            above: None,
            dirs: Default::default(),
        }
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// The one of this name right below.
    pub fn below(&self, name: &str) -> Home<'_> {
        Home {
            kernel: self.kernel,
            path: format!("{}/{name}", self.path),
            above: Some(self),
            dirs: Default::default(),
        }
    }

    pub fn exists(&self) -> bool {
        self.dir(EVERYWHERE).is_some()
    }

    fn dir(&self, controller: &str) -> Option<&OwnedFd> {
        let index = match self.kernel.version {
            CgroupVersion::V1 => v1::CONTROLLERS.iter().position(|c| *c == controller)?,
            CgroupVersion::V2 => 0,
        };
        let opened = self
            .dirs
            .get(index)?
            .get_or_init(|| self.opened(controller));
        opened.as_ref()
    }

    fn opened(&self, controller: &str) -> Option<OwnedFd> {
        if let Some(above) = self.above {
            let (_, name) = self.path.rsplit_once('/')?;
            return openat(above.dir(controller)?, name, DIRECTORY, Mode::empty()).ok();
        }
        let root = match self.kernel.version {
            CgroupVersion::V1 => &self.kernel.cgroup.join(controller),
            CgroupVersion::V2 => &self.kernel.cgroup,
        };
        let place = root.join(self.path.trim_matches('/'));
        open(place, DIRECTORY, Mode::empty()).ok()
    }

    fn text<'p>(&self, controller: &str, file: &str, paper: &'p mut Paper) -> Option<&'p str> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(self.dir(controller)?, file, flags, Mode::empty()).ok()?;
        paper.content(file)
    }

    /// None if there is no such cgroup.
    pub fn cgroup(
        &self,
        depth: Depth,
        kept: Option<&mut Kept>,
        paper: &mut Paper,
    ) -> Option<Cgroup> {
        let files = &mut Open {
            home: self,
            paper,
            kept,
        };
        let found = match self.kernel.version {
            CgroupVersion::V2 => v2::read(files, depth),
            CgroupVersion::V1 => v1::read(files, depth),
        };
        (found.cpu.is_some() || found.memory.is_some()).then_some(found)
    }

    /// Nothing but how many processes there are.
    pub fn tasks(&self, paper: &mut Paper) -> Option<Tasks> {
        let files = &mut Open {
            home: self,
            paper,
            kept: None,
        };
        match self.kernel.version {
            CgroupVersion::V2 => tasks(files, v2::TASKS, Depth::Summary),
            CgroupVersion::V1 => tasks(files, v1::TASKS, Depth::Summary),
        }
    }

    pub fn first_process(&self, paper: &mut Paper) -> Option<u32> {
        let processes = self.text(EVERYWHERE, PROCESSES, paper)?;
        numbers(processes).next()
    }

    /// What the processes of the cgroup that was read last have open.
    pub fn open_files(&self, paper: &mut Paper) -> Option<OpenFiles> {
        let first = *paper.processes.first()?;
        let limits = self.kernel.proc_file(first, "limits", paper);
        let mut found = OpenFiles {
            limit: limits.and_then(machine::max_open_files),
            ..OpenFiles::default()
        };
        for process in &paper.processes {
            let place = self.kernel.proc.join(format!("{process}/fd"));
            count_open(&place, &mut found);
        }
        Some(found)
    }
}

fn numbers(lines: &str) -> impl Iterator<Item = u32> {
    lines.lines().filter_map(|line| line.parse().ok())
}

/// Adds what one process has open; one that is gone has nothing.
fn count_open(place: &std::path::Path, found: &mut OpenFiles) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = open(place, flags, Mode::empty()) else {
        return;
    };
    let mut entries = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&dir, &mut entries);
    while let Some(Ok(entry)) = entries.next() {
        if found.descriptors >= MOST_FILES {
            return;
        }
        let name = entry.file_name();
        if name != c"." && name != c".." {
            found.descriptors += 1;
            found.sockets += u64::from(is_socket(&dir, name));
        }
    }
}

fn is_socket(dir: &OwnedFd, name: &CStr) -> bool {
    const SOCKET: &[u8] = b"socket:";
    let mut start = [MaybeUninit::uninit(); SOCKET.len()];
    matches!(readlinkat_raw(dir, name, &mut start[..]), Ok((target, _)) if target == SOCKET)
}

/// The files of a cgroup, read onto one paper.
struct Open<'a> {
    home: &'a Home<'a>,
    paper: &'a mut Paper,
    /// Settings that need not be read.
    kept: Option<&'a mut Kept>,
}

impl Files for Open<'_> {
    fn text(&mut self, name: &str) -> Option<&str> {
        let (controller, file) = match self.home.kernel.version {
            CgroupVersion::V2 => ("", name),
            CgroupVersion::V1 => name.split_once('/')?,
        };
        if file != PROCESSES {
            return self.home.text(controller, file, self.paper);
        }
        // Who counts them looks for their files next.
        self.paper.processes.clear();
        let mut processes = std::mem::take(&mut self.paper.processes);
        let text = self.home.text(controller, file, self.paper)?;
        processes.extend(numbers(text));
        self.paper.processes = processes;
        self.paper.text()
    }

    fn setting(&mut self, name: &'static str) -> Option<u64> {
        if let Some(number) = self.kept.as_ref().and_then(|kept| kept.number(name)) {
            return number;
        }
        let number = self.number(name);
        if let Some(kept) = &mut self.kept {
            kept.note(name, number);
        }
        number
    }
}
