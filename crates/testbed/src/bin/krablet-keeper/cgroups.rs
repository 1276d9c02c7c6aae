//! A bed's cgroups, in every hierarchy of the machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::family::Family;
use crate::{Pods, list};

/// The cgroup of that path and all below it, in every hierarchy of the machine, deepest first.
pub fn cgroups(path: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut roots = vec![PathBuf::from("/sys/fs/cgroup")];
    roots.extend(
        list(Path::new("/sys/fs/cgroup"))
            .into_iter()
            .filter(|p| p.is_dir() && !p.is_symlink()),
    );
    for root in roots {
        let mut open = vec![root.join(path)];
        let mut tree = Vec::new();
        while let Some(dir) = open.pop() {
            if dir.is_dir() {
                open.extend(
                    list(&dir)
                        .into_iter()
                        .filter(|p| p.is_dir() && !p.is_symlink()),
                );
                tree.push(dir);
            }
        }
        tree.reverse();
        found.extend(tree);
    }
    found
}

pub fn remove_cgroups(
    pods: &Pods,
    family: &Family,
    containers: &[(String, String)],
) -> Result<(), String> {
    // A container without a cgroup parent of the bed is put below its containerd namespace.
    let stray = || {
        containers
            .iter()
            .flat_map(|(namespace, id)| cgroups(&format!("{namespace}/{id}")))
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut pause = Duration::from_millis(2);
    loop {
        let dirs: Vec<PathBuf> = cgroups(&pods.cgroup).into_iter().chain(stray()).collect();
        // A cgroup stays busy for a moment after its last process ended.
        let busy = dirs
            .iter()
            .filter(|dir| fs::remove_dir(dir).is_err())
            .count();
        if busy == 0 {
            break;
        }
        if Instant::now() > deadline {
            return Err(format!("{busy} cgroups of {} stay", pods.cgroup));
        }
        family.pause(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    let namespaces: BTreeSet<&str> = containers
        .iter()
        .map(|(namespace, _)| namespace.as_str())
        .collect();
    for namespace in namespaces {
        for dir in cgroups(namespace) {
            // Another bed's containers may be in it.
            let _ = fs::remove_dir(dir);
        }
    }
    Ok(())
}
