//! Who keeps a mount busy. Looks through `/proc`, within bounds: it answers a person's question
//! after a failed unmount, nothing is decided by it.

use std::fs;
use std::io;
use std::path::Path;

use crate::mountinfo;

/// Holders named at most.
const MAX_HOLDERS: usize = 8;
/// Links read at most over all processes.
const MAX_LINKS: usize = 50_000;

pub(crate) fn of(point: &Path) -> io::Result<Vec<String>> {
    let real = point.canonicalize()?;
    let mut found: Vec<String> = mountinfo::read()?
        .iter()
        .filter(|m| m.point != real && m.point.starts_with(&real))
        .map(|m| format!("mount {}", m.point.display()))
        .take(MAX_HOLDERS)
        .collect();
    let mut links = MAX_LINKS;
    for process in fs::read_dir("/proc")?.flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        if found.len() >= MAX_HOLDERS || links == 0 {
            break;
        }
        if let Some(use_of_it) = held_by(&process.path(), &real, &mut links) {
            let command = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            found.push(format!("process {pid} ({}): {use_of_it}", command.trim()));
        }
    }
    Ok(found)
}

/// How a process uses something below `real`, if it does. A process that ends meanwhile holds nothing.
fn held_by(process: &Path, real: &Path, links: &mut usize) -> Option<String> {
    let mut leads_there = |link: &Path| {
        *links = links.checked_sub(1)?;
        fs::read_link(link).ok().filter(|t| t.starts_with(real))
    };
    for (link, meaning) in [
        ("cwd", "working directory"),
        ("root", "root"),
        ("exe", "runs"),
    ] {
        if let Some(target) = leads_there(&process.join(link)) {
            return Some(format!("{meaning} {}", target.display()));
        }
    }
    fs::read_dir(process.join("fd"))
        .ok()?
        .flatten()
        .find_map(|fd| leads_there(&fd.path()))
        .map(|target| format!("open file {}", target.display()))
}
