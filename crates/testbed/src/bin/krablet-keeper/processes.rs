//! Which processes belong to a bed, and their end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use crate::cgroups::cgroups;
use crate::family::Family;
use crate::{PATIENCE, Spec, sys};

struct Process {
    parent: i32,
    zombie: bool,
    marked: bool,
}

fn processes(spec: &Spec) -> BTreeMap<i32, Process> {
    let mut mark = b"KRABLET_BED=".to_vec();
    mark.extend_from_slice(spec.dir.as_os_str().as_bytes());
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        // The name may hold spaces and brackets; the fields begin after its last bracket.
        let Some((_, fields)) = stat.rsplit_once(") ") else {
            continue;
        };
        let mut fields = fields.split(' ');
        let zombie = fields.next() == Some("Z");
        let parent = fields.next().and_then(|p| p.parse().ok()).unwrap_or(0);
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let marked = environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == mark);
        all.insert(
            pid,
            Process {
                parent,
                zombie,
                marked,
            },
        );
    }
    all
}

/// Everything that belongs to the bed: what carries its mark, what descends from that or from the
/// keeper, and what sits in its cgroups.
fn members(spec: &Spec, known: &BTreeSet<i32>) -> BTreeSet<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let all = processes(spec);
    let mut members: BTreeSet<i32> = all
        .iter()
        .filter(|(_, p)| p.marked)
        .map(|(pid, _)| *pid)
        .collect();
    let held_by = spec.pods.iter().flat_map(|pods| cgroups(&pods.cgroup));
    for cgroup in held_by {
        let _ = fs::write(cgroup.join("freezer.state"), "THAWED");
        let held = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        members.extend(held.lines().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    loop {
        let before = members.len();
        let more: Vec<i32> = all
            .iter()
            .filter(|(_, p)| p.parent == own || members.contains(&p.parent))
            .map(|(pid, _)| *pid)
            .collect();
        members.extend(more);
        if members.len() == before {
            break;
        }
    }
    // One that is on its way out shows neither mark nor cgroup any more, but is not gone yet.
    members.extend(known.iter().filter(|pid| all.contains_key(pid)));
    members.retain(|pid| *pid > 1 && *pid != own && !all.get(pid).is_some_and(|p| p.zombie));
    members
}

pub fn end_processes(spec: &Spec, family: &Family) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(2);
    let mut known = BTreeSet::new();
    loop {
        let members = members(spec, &known);
        if members.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("processes {members:?} do not end"));
        }
        for pid in &members {
            sys::kill(*pid, sys::SIGKILL);
        }
        known.extend(members);
        family.pause(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
