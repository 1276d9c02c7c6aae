//! The mounted hierarchies: one with cgroup v2, one for each controller or few with v1. Cgroups are
//! made from the top down, and written to by the controller that a file belongs to.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::settings::Setting;
use super::{CgroupVersion, MOUNT};
use crate::failure::{naming, refuse};
use crate::mountinfo::MountInfo;

const SUBTREE: &str = "cgroup.subtree_control";
const CONTROLLERS: &str = "cgroup.controllers";
/// A process cannot be in a cgroup whose own of these are empty.
const CPUSET: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) mount: PathBuf,
    pub(super) controllers: Vec<String>,
    /// One of cgroup v2; beside those of v1 it limits nothing.
    pub(super) unified: bool,
}

impl Hierarchy {
    /// The one hierarchy of a machine with cgroup v2.
    pub(super) fn unified() -> io::Result<Self> {
        let mount = PathBuf::from(MOUNT);
        let controllers = words(&mount.join(CONTROLLERS))?;
        Ok(Self {
            mount,
            controllers,
            unified: true,
        })
    }

    pub(super) fn dir(&self, name: &str) -> PathBuf {
        self.mount.join(name.trim_start_matches('/'))
    }

    pub(super) fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|c| c == controller)
    }

    /// Makes a cgroup and those above it.
    fn make(&self, name: &str) -> io::Result<()> {
        if self.make_last(name)? {
            return Ok(());
        }
        let mut dir = self.mount.clone();
        for part in name.split('/').filter(|part| !part.is_empty()) {
            if self.unified {
                self.pass_down(&dir);
            }
            let parent = dir.clone();
            dir.push(part);
            match fs::create_dir(&dir) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(naming("create cgroup", &dir)(e)),
            }
            if self.has("cpuset") && !self.unified {
                inherit(&parent, &dir)?;
            }
        }
        Ok(())
    }

    /// Makes a cgroup whose parents are there, which is what most have. False if they are not, or may
    /// not be as they should.
    fn make_last(&self, name: &str) -> io::Result<bool> {
        let dir = self.dir(name);
        let Some(parent) = dir.parent().filter(|_| !self.unified) else {
            return Ok(false);
        };
        match fs::create_dir(&dir) {
            Ok(()) if self.has("cpuset") => {
                inherit(parent, &dir)?;
                Ok(true)
            }
            Ok(()) => Ok(true),
            // One that is there already is looked after from the top, as one whose parents are missing.
            Err(_) => Ok(false),
        }
    }

    /// Gives every controller to the children of a cgroup. One that cannot be given is missed by whoever
    /// has a limit for it.
    fn pass_down(&self, dir: &Path) {
        let file = dir.join(SUBTREE);
        let given = words(&file).unwrap_or_default();
        let missing: Vec<String> = self
            .controllers
            .iter()
            .filter(|c| !given.contains(c))
            .map(|c| format!("+{c}"))
            .collect();
        if missing.is_empty() || put(&file, &missing.join(" ")).is_ok() {
            return;
        }
        for controller in missing {
            let _ = put(&file, &controller);
        }
    }
}

/// A file that is not there is none of the kernel's, and is not made.
fn put(file: &Path, value: &str) -> io::Result<()> {
    let mut open = fs::OpenOptions::new();
    let mut open = open.write(true).truncate(true).open(file)?;
    open.write_all(value.as_bytes())
}

fn words(file: &Path) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(file).map_err(naming("read", file))?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// A new cgroup may use what its parent may.
fn inherit(parent: &Path, dir: &Path) -> io::Result<()> {
    for name in CPUSET {
        let file = dir.join(name);
        let own = fs::read_to_string(&file).map_err(naming("read", &file))?;
        if !own.trim().is_empty() {
            continue;
        }
        let above = parent.join(name);
        let above = fs::read_to_string(&above).map_err(naming("read", &above))?;
        put(&file, above.trim()).map_err(naming("write", &file))?;
    }
    Ok(())
}

/// All hierarchies of v1, each once however often it is mounted.
pub(super) fn of_table(table: &[MountInfo]) -> Vec<Hierarchy> {
    let mut by_device: BTreeMap<&str, &MountInfo> = BTreeMap::new();
    for mount in table {
        let cgroup = matches!(mount.fs_type.as_str(), "cgroup" | "cgroup2");
        if cgroup && mount.point.starts_with(MOUNT) {
            by_device.entry(&mount.device).or_insert(mount);
        }
    }
    let mut found: Vec<Hierarchy> = by_device
        .into_values()
        .map(|mount| Hierarchy {
            mount: mount.point.clone(),
            controllers: mount.super_options.split(',').map(str::to_owned).collect(),
            unified: mount.fs_type == "cgroup2",
        })
        .collect();
    found.sort_by(|a, b| a.mount.cmp(&b.mount));
    found
}

/// Those that limit something: all but one of v2 beside those of v1.
pub(super) fn limiting(
    version: CgroupVersion,
    all: &[Hierarchy],
) -> impl Iterator<Item = &Hierarchy> {
    all.iter()
        .filter(move |h| h.unified == (version == CgroupVersion::V2))
}

pub(super) fn make(version: CgroupVersion, all: &[Hierarchy], name: &str) -> io::Result<()> {
    limiting(version, all).try_for_each(|h| h.make(name))
}

/// Fails with the paths at which a cgroup is missing, if it is not there in full.
pub(super) fn check(version: CgroupVersion, all: &[Hierarchy], name: &str) -> Result<(), String> {
    const NEEDED: [&str; 7] = [
        "cpu",
        "cpuacct",
        "cpuset",
        "memory",
        "name=systemd",
        "pids",
        "hugetlb",
    ];
    if version == CgroupVersion::V2 {
        return check_unified(all, name, &NEEDED);
    }
    let needed = limiting(version, all).filter(|h| NEEDED.iter().any(|c| h.has(c)));
    let missing: Vec<String> = needed
        .map(|h| h.dir(name))
        .filter(|dir| !dir.exists())
        .map(|dir| dir.display().to_string())
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "cgroup {} has some missing paths: {}",
            quoted(name),
            missing.join(", ")
        )),
    }
}

fn check_unified(all: &[Hierarchy], name: &str, needed: &[&str]) -> Result<(), String> {
    let Some(hierarchy) = all.iter().find(|h| h.unified) else {
        return Ok(());
    };
    let file = hierarchy.dir(name).join(CONTROLLERS);
    let there = words(&file).map_err(|e| {
        format!(
            "could not read controllers for cgroup {}: {e}",
            quoted(name)
        )
    })?;
    let missing: Vec<&str> = needed
        .iter()
        .copied()
        .filter(|c| hierarchy.has(c) && !there.iter().any(|t| t == c))
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "cgroup {} has some missing controllers: {}",
            quoted(name),
            missing.join(", ")
        )),
    }
}

/// The name as messages tell it: `["kubelet" "kubepods"]`.
pub(super) fn quoted(name: &str) -> String {
    let parts = name.split('/').filter(|part| !part.is_empty());
    let parts: Vec<String> = parts.map(|part| format!("{part:?}")).collect();
    format!("[{}]", parts.join(" "))
}

/// Bytes a cgroup uses now.
pub(super) fn memory_used(
    version: CgroupVersion,
    all: &[Hierarchy],
    name: &str,
) -> io::Result<i64> {
    let file = match version {
        CgroupVersion::V1 => "memory.usage_in_bytes",
        CgroupVersion::V2 => "memory.current",
    };
    let file = limiting(version, all)
        .find(|h| h.has("memory"))
        .map(|h| h.dir(name).join(file))
        .ok_or(io::ErrorKind::NotFound)?;
    let text = fs::read_to_string(&file).map_err(naming("read", &file))?;
    text.trim()
        .parse()
        .map_err(|_| refuse(io::ErrorKind::InvalidData, "read", &file, "no number"))
}

/// The root of cgroup v2 has no file of its own for it; this process is never in the root.
pub(super) fn limits_swap(version: CgroupVersion, all: &[Hierarchy]) -> bool {
    match version {
        CgroupVersion::V1 => limiting(version, all)
            .filter(|h| h.has("memory"))
            .any(|h| h.mount.join("memory.memsw.limit_in_bytes").exists()),
        CgroupVersion::V2 => {
            let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
            let own = own.lines().find_map(|line| line.strip_prefix("0::"));
            let mut dirs = limiting(version, all).map(|h| h.dir(own.unwrap_or_default()));
            dirs.any(|dir| dir.join("memory.swap.max").exists())
        }
    }
}

/// Writes all it can; the first failure is told. A controller that is nowhere mounted limits nothing.
pub(super) fn write(
    version: CgroupVersion,
    all: &[Hierarchy],
    name: &str,
    settings: &[Setting],
) -> io::Result<()> {
    let mut failure = None;
    let mut retry = None;
    for setting in settings {
        let Some(hierarchy) = limiting(version, all).find(|h| h.has(setting.controller)) else {
            if setting.controller != "hugetlb" {
                let why = "the controller is not there";
                let file = Path::new(&setting.file);
                failure.get_or_insert(refuse(io::ErrorKind::NotFound, "write", file, why));
            }
            continue;
        };
        let file = hierarchy.dir(name).join(&setting.file);
        match put(&file, &setting.value) {
            Ok(()) => {}
            Err(e) if setting.recent && e.kind() == io::ErrorKind::NotFound => {}
            Err(e) if is_early(setting, &e) => retry = Some((file, setting)),
            Err(e) => {
                failure.get_or_insert(naming("write", &file)(e));
            }
        }
    }
    if let Some((file, setting)) = retry
        && let Err(e) = put(&file, &setting.value)
    {
        failure.get_or_insert(naming("write", &file)(e));
    }
    failure.map_or(Ok(()), Err)
}

/// A period that does not fit the quota of before fits the one that comes next.
fn is_early(setting: &Setting, error: &io::Error) -> bool {
    setting.file == "cpu.cfs_period_us" && error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mountinfo;

    #[test]
    fn each_hierarchy_once() {
        let table = mountinfo::parse(
            b"1 0 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
              2 1 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
              3 1 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
              4 1 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
              5 1 0:30 / /sys/fs/cgroup/memory2 rw - cgroup cgroup rw,memory\n\
              6 1 0:31 / /run/container/cgroup/pids rw - cgroup cgroup rw,pids\n",
        );
        let found: Vec<_> = of_table(&table)
            .into_iter()
            .map(|h| format!("{} {} {}", h.mount.display(), h.has("cpuacct"), h.unified))
            .collect();
        assert_eq!(
            found,
            [
                "/sys/fs/cgroup/cpu,cpuacct true false",
                "/sys/fs/cgroup/memory false false",
                "/sys/fs/cgroup/unified false true"
            ]
        );
    }

    fn hierarchy(mount: &Path, controllers: &[&str], unified: bool) -> Hierarchy {
        Hierarchy {
            mount: mount.to_owned(),
            controllers: controllers.iter().map(|c| (*c).to_owned()).collect(),
            unified,
        }
    }

    fn setting(controller: &'static str, file: &str, recent: bool) -> Setting {
        Setting {
            controller,
            file: file.to_owned(),
            value: "7".to_owned(),
            recent,
        }
    }

    #[test]
    fn a_cpuset_is_inherited_level_by_level() {
        let mount = tempfile::tempdir().unwrap();
        let deep = mount.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        for (dir, cpus) in [
            (mount.path(), "0-1"),
            (&mount.path().join("a"), "1"),
            (&deep, ""),
        ] {
            for file in CPUSET {
                fs::write(dir.join(file), format!("{cpus}\n")).unwrap();
            }
        }
        let all = [hierarchy(mount.path(), &["cpuset"], false)];
        make(CgroupVersion::V1, &all, "/a/b").unwrap();
        assert_eq!(fs::read_to_string(deep.join("cpuset.cpus")).unwrap(), "1");
    }

    #[test]
    fn controllers_are_passed_down() {
        let mount = tempfile::tempdir().unwrap();
        fs::create_dir_all(mount.path().join("a/b")).unwrap();
        fs::write(mount.path().join(SUBTREE), "cpu memory\n").unwrap();
        fs::write(mount.path().join("a").join(SUBTREE), "cpu\n").unwrap();
        let all = [hierarchy(mount.path(), &["cpu", "memory"], true)];
        make(CgroupVersion::V2, &all, "/a/b").unwrap();
        let read = |path: &str| fs::read_to_string(mount.path().join(path)).ok();
        assert_eq!(read(SUBTREE).as_deref(), Some("cpu memory\n"));
        assert_eq!(read("a/cgroup.subtree_control").as_deref(), Some("+memory"));
        assert_eq!(read("a/b/cgroup.subtree_control"), None);
    }

    #[test]
    fn all_is_written_that_can_be() {
        let (cpu, unified) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let all = [
            hierarchy(cpu.path(), &["cpu"], false),
            hierarchy(unified.path(), &[], true),
        ];
        make(CgroupVersion::V1, &all, "/x").unwrap();
        fs::write(cpu.path().join("x/cpu.shares"), "1024\n").unwrap();
        assert!(!unified.path().join("x").exists());
        let settings = [
            setting("memory", "memory.limit_in_bytes", false),
            setting("hugetlb", "hugetlb.2MB.limit_in_bytes", false),
            setting("cpu", "cpu.shares", false),
        ];
        let error = write(CgroupVersion::V1, &all, "/x", &settings).unwrap_err();
        assert!(
            error.to_string().contains("memory.limit_in_bytes"),
            "{error}"
        );
        assert_eq!(
            fs::read_to_string(cpu.path().join("x/cpu.shares")).unwrap(),
            "7"
        );
        write(CgroupVersion::V1, &all, "/x", &settings[1..]).unwrap();
    }

    #[test]
    fn what_is_missing_is_told() {
        let (cpu, blkio) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let all = [
            hierarchy(cpu.path(), &["cpu"], false),
            hierarchy(blkio.path(), &["blkio"], false),
        ];
        let why = check(CgroupVersion::V1, &all, "/a/b").unwrap_err();
        let path = cpu.path().join("a/b");
        assert_eq!(
            why,
            format!(
                "cgroup [\"a\" \"b\"] has some missing paths: {}",
                path.display()
            )
        );
        fs::create_dir_all(path).unwrap();
        check(CgroupVersion::V1, &all, "/a/b").unwrap();
        let unified = tempfile::tempdir().unwrap();
        let all = [hierarchy(unified.path(), &["cpu", "memory", "io"], true)];
        let why = check(CgroupVersion::V2, &all, "/k").unwrap_err();
        assert!(
            why.starts_with("could not read controllers for cgroup [\"k\"]: "),
            "{why}"
        );
        fs::create_dir(unified.path().join("k")).unwrap();
        fs::write(unified.path().join("k").join(CONTROLLERS), "cpu\n").unwrap();
        let why = check(CgroupVersion::V2, &all, "/k").unwrap_err();
        assert_eq!(why, "cgroup [\"k\"] has some missing controllers: memory");
    }
}
