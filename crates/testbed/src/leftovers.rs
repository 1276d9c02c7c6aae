//! What is still there of a bed or a control plane, looked for without the keeper's own eyes.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use crate::layout;

/// Everything of the bed or the control plane of that name that is left on the machine, one line each. Empty is clean.
pub fn leftovers(name: &str) -> Vec<String> {
    let dir = layout::beds_root().join(name);
    let mut found = Vec::new();
    if dir.exists() {
        found.push(format!("directory {}", dir.display()));
    }
    found.extend(
        marked_processes(&dir)
            .iter()
            .map(|pid| format!("process {pid}: {}", command_line(*pid))),
    );
    found.extend(mentioning_processes(&dir));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let path = format!("{}/", dir.display());
    found.extend(
        mounts
            .lines()
            .filter(|line| line.contains(&path))
            .map(|line| format!("mount {line}")),
    );
    if Path::new("/sys/class/net")
        .join(layout::bridge(name))
        .exists()
    {
        found.push(format!("interface {}", layout::bridge(name)));
    }
    for root in layout::cgroup_roots() {
        let cgroup = root.join(layout::cgroup(name));
        if cgroup.exists() {
            found.push(format!("cgroup {}", cgroup.display()));
        }
    }
    let rules = Command::new("iptables-save")
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    let mark = layout::cgroup(name);
    let rules = String::from_utf8_lossy(&rules).into_owned();
    found.extend(
        rules
            .lines()
            .filter(|line| line.contains(&mark))
            .map(|line| format!("rule {line}")),
    );
    let cached = fs::read_dir("/var/lib/cni/results")
        .into_iter()
        .flatten()
        .flatten();
    found.extend(
        cached
            .map(|entry| entry.path().display().to_string())
            .filter(|path| path.contains(&mark))
            .map(|path| format!("file {path}")),
    );
    found.extend(log_links(&dir));
    found
}

/// The kubelet, and an agent that takes turns with it, link every container's log into one directory of the machine.
fn log_links(dir: &Path) -> Vec<String> {
    let links = fs::read_dir("/var/log/containers")
        .into_iter()
        .flatten()
        .flatten();
    let ours = links
        .map(|entry| entry.path())
        .filter(|link| fs::read_link(link).is_ok_and(|target| target.starts_with(dir)));
    ours.map(|link| format!("link {}", link.display()))
        .collect()
}

/// The processes that carry the bed's mark in their environment.
pub(crate) fn marked_processes(dir: &Path) -> Vec<u32> {
    let mut mark = b"KRABLET_BED=".to_vec();
    mark.extend_from_slice(dir.as_os_str().as_bytes());
    pids()
        .filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment
                .split(|byte| *byte == 0)
                .any(|variable| variable == mark)
        })
        .collect()
}

fn mentioning_processes(dir: &Path) -> Vec<String> {
    let path = dir.display().to_string();
    let own = std::process::id();
    pids()
        .filter(|pid| *pid != own)
        .map(|pid| (pid, command_line(pid)))
        .filter(|(_, line)| line.contains(&path))
        .map(|(pid, line)| format!("process {pid}: {line}"))
        .collect()
}

fn pids() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn command_line(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}
