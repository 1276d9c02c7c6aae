//! The machine's files behind the parsers: small reads, nothing kept.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use krablet_linux::CgroupVersion;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, open, statat};

use crate::home::Home;
use crate::parse::{machine, net, pressure};
use crate::reading::{Cgroup, Cpu, Depth, Interface, Pressure, ProcessLimits, Snapshot, Usage};

const PAGE: usize = 4096;
/// Of a list a page is not quite filled if the next line does not fit.
const SHORT: usize = PAGE / 2;
/// No file of the kernel that is read here comes near.
const MOST_BYTES: usize = 1 << 20;
/// Descriptors of one container that are looked at; more are not counted.
pub(crate) const MOST_FILES: u64 = 10_000;

/// What was read last. Who reads many files uses one for all of them.
#[derive(Debug, Default)]
pub struct Paper {
    buffer: Vec<u8>,
    filled: usize,
    /// Of the cgroup whose processes were asked for last.
    pub processes: Vec<u32>,
}

impl Paper {
    /// What the kernel has to say of one thing it says in one go: a read that does not fill the buffer was the last. Lists
    /// come by the page, and are read to their end.
    pub fn content(&mut self, file: OwnedFd) -> Option<&str> {
        self.filled = 0;
        loop {
            if self.buffer.len() - self.filled < PAGE {
                self.buffer.resize(self.filled + PAGE, 0);
            }
            let read = rustix::io::read(&file, self.buffer.get_mut(self.filled..)?).ok()?;
            let short = self.filled == 0 && read < SHORT;
            self.filled += read;
            if short || read == 0 || self.filled >= MOST_BYTES {
                return self.text();
            }
        }
    }

    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(self.buffer.get(..self.filled)?).ok()
    }
}

/// Where the kernel shows itself.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub version: CgroupVersion,
    pub cgroup: PathBuf,
    pub proc: PathBuf,
    pub sys: PathBuf,
}

impl Kernel {
    pub fn of_this_machine(version: CgroupVersion) -> Self {
        Self {
            version,
            cgroup: "/sys/fs/cgroup".into(),
            proc: "/proc".into(),
            sys: "/sys".into(),
        }
    }

    /// A directory of the hierarchy that has all cgroups in it.
    fn hierarchy(&self) -> PathBuf {
        match self.version {
            CgroupVersion::V1 => self.cgroup.join("memory"),
            CgroupVersion::V2 => self.cgroup.clone(),
        }
    }

    fn place(&self, path: &str) -> PathBuf {
        self.hierarchy().join(path.trim_start_matches('/'))
    }

    /// A cgroup and those below it, for who asks for many files of them.
    pub fn home(&self, path: &str) -> Home<'_> {
        Home::of(self, path)
    }

    /// The whole machine. Where the root cgroup does not tell, `/proc` does.
    pub fn node(&self, depth: Depth) -> Cgroup {
        let node = self.home("/").cgroup(depth, None, &mut Paper::default());
        let mut node = node.unwrap_or_default();
        if node.memory.is_none() {
            let meminfo = self.proc_text("meminfo").unwrap_or_default();
            let stat = text(&self.cgroup.join("memory.stat")).unwrap_or_default();
            node.memory = machine::memory(&meminfo, &stat);
        }
        if node.cpu.is_none() {
            let times = self.proc_text("stat").and_then(|t| machine::cpu_time(&t));
            node.cpu = times.map(|(user, system)| Cpu {
                usage: user.saturating_add(system),
                user,
                system,
                ..Cpu::default()
            });
        }
        if depth >= Depth::Summary {
            let of = |name: &str| {
                let text = self.proc_text(&format!("pressure/{name}"))?;
                pressure(&text)
            };
            node.pressure = Pressure {
                cpu: node.pressure.cpu.or_else(|| of("cpu")),
                memory: node.pressure.memory.or_else(|| of("memory")),
                io: node.pressure.io.or_else(|| of("io")),
            };
        }
        node
    }

    /// Names of the cgroups right below one.
    pub fn children(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.place(path));
        let entries = entries.into_iter().flatten().flatten();
        let dirs = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
        dirs.filter_map(|e| e.file_name().into_string().ok())
            .collect()
    }

    /// When a cgroup was made: the time of a file in it that nobody writes.
    pub fn made(&self, path: &str) -> Option<Timestamp> {
        let name = match self.version {
            CgroupVersion::V1 => "cgroup.clone_children",
            CgroupVersion::V2 => "cgroup.events",
        };
        let modified = std::fs::metadata(self.place(path).join(name)).ok()?;
        Timestamp::try_from(modified.modified().ok()?).ok()
    }

    /// The network as a process sees it.
    pub fn network(&self, process: u32, paper: &mut Paper) -> Vec<Interface> {
        let text = self.proc_file(process, "net/dev", paper);
        net::interfaces(text.unwrap_or_default())
    }

    pub fn process_limits(&self) -> ProcessLimits {
        let max = self.proc_text("sys/kernel/pid_max");
        let threads = self.proc_text("sys/kernel/threads-max");
        let load = self.proc_text("loadavg").unwrap_or_default();
        machine::processes([max.as_deref(), threads.as_deref()], &load)
    }

    pub fn devices(&self) -> Vec<(u32, u32, String)> {
        machine::devices(&self.proc_text("diskstats").unwrap_or_default())
    }

    pub fn booted(&self) -> Option<Timestamp> {
        let seconds = machine::boot_time(&self.proc_text("stat")?)?;
        Timestamp::from_second(seconds).ok()
    }

    /// The cgroup this process is in.
    pub fn own_cgroup(&self) -> Option<String> {
        let text = self.proc_text("self/cgroup")?;
        let controller = match self.version {
            CgroupVersion::V1 => "memory",
            CgroupVersion::V2 => "",
        };
        machine::own_cgroup(&text, controller).map(str::to_owned)
    }

    /// Physical cores and sockets.
    pub fn topology(&self) -> (u32, u32) {
        let cpus = self.sys.join("devices/system/cpu");
        let entries = std::fs::read_dir(&cpus).into_iter().flatten().flatten();
        let found: Vec<(String, String)> = entries
            .filter_map(|entry| {
                let topology = entry.path().join("topology");
                let package = text(&topology.join("physical_package_id"))?;
                Some((package, text(&topology.join("core_id"))?))
            })
            .collect();
        machine::topology(&found)
    }

    fn proc_text(&self, name: &str) -> Option<String> {
        text(&self.proc.join(name))
    }

    /// A file of one process.
    pub(crate) fn proc_file<'p>(
        &self,
        process: u32,
        name: &str,
        paper: &'p mut Paper,
    ) -> Option<&'p str> {
        let file = File::open(self.proc.join(format!("{process}/{name}"))).ok()?;
        paper.content(file.into())
    }
}

/// The node's own limits are those of the machine.
pub fn bound_node(snapshot: &mut Snapshot) {
    let facts = snapshot.facts.clone();
    if let Some(memory) = &mut snapshot.node.memory {
        memory.limits.memory = Some(facts.memory).filter(|m| *m > 0);
        memory.limits.swap = Some(facts.swap);
    }
}

fn text(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    Paper::default().content(file.into()).map(str::to_owned)
}

/// What the files right in a directory take.
pub fn files_in(dir: &Path) -> Option<Usage> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = open(dir, flags, Mode::empty()).ok()?;
    let mut sum = Usage::default();
    let mut entries = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&dir, &mut entries);
    while let Some(Ok(entry)) = entries.next() {
        if entry.file_type() == FileType::Directory {
            continue;
        }
        // Of a link, the link itself.
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let Ok(found) = statat(&dir, entry.file_name(), flags) else {
            continue;
        };
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            sum.add(Usage {
                bytes: u64::try_from(found.st_blocks)
                    .unwrap_or_default()
                    .saturating_mul(512),
                inodes: 1,
            });
        }
    }
    Some(sum)
}

pub fn file(path: &Path) -> Option<Usage> {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::symlink_metadata(path).ok()?;
    Some(Usage {
        bytes: found.blocks().saturating_mul(512),
        inodes: 1,
    })
}
