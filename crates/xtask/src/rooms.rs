//! Which crate may know which. A dependency that is not in this table is a decision to be made in
//! the open: here, and in ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Each room with the rooms it may know. Rooms further up know more.
const ROOMS: &[(&str, &[&str])] = &[
    ("pod", &[]),
    ("yaml", &[]),
    ("cri", &[]),
    ("net", &[]),
    ("metrics", &[]),
    ("logs", &[]),
    ("profile", &[]),
    ("access", &["kube"]),
    ("kube", &["linux", "metrics", "net", "yaml"]),
    ("config", &["yaml"]),
    ("manifest", &["pod", "yaml"]),
    ("core", &["pod"]),
    ("linux", &["pod"]),
    ("events", &["kube", "pod"]),
    ("stats", &["cri", "linux", "metrics", "pod"]),
    ("status", &["core", "kube", "pod"]),
    ("objects", &["checkpoint", "kube", "linux", "pod", "yaml"]),
    ("observer", &["cri", "linux", "pod"]),
    ("tokens", &["checkpoint", "kube", "linux", "pod"]),
    (
        "podcerts",
        &["checkpoint", "events", "kube", "linux", "pod"],
    ),
    (
        "volumes",
        &[
            "checkpoint",
            "core",
            "kube",
            "linux",
            "metrics",
            "objects",
            "pod",
            "podcerts",
            "tokens",
        ],
    ),
    ("checkpoint", &["linux", "pod"]),
    ("podresources", &["metrics", "pod"]),
    ("probes", &["core", "cri", "events", "net", "pod"]),
    (
        "sources",
        &[
            "checkpoint",
            "core",
            "events",
            "kube",
            "linux",
            "net",
            "pod",
        ],
    ),
    (
        "runtime",
        &[
            "core", "cri", "events", "images", "linux", "metrics", "net", "objects", "pod",
        ],
    ),
    (
        "agent",
        &[
            "checkpoint",
            "core",
            "cri",
            "events",
            "images",
            "kube",
            "linux",
            "metrics",
            "net",
            "objects",
            "observer",
            "pod",
            "podcerts",
            "probes",
            "runtime",
            "sources",
            "status",
            "tokens",
            "volumes",
        ],
    ),
    ("images", &["config", "linux", "metrics", "pod", "yaml"]),
    ("identity", &["kube", "linux"]),
    ("node", &["events", "kube", "linux", "pod"]),
    (
        "server",
        &[
            "access", "cri", "events", "logs", "metrics", "pod", "profile",
        ],
    ),
    ("testbed", &["cri"]),
];

/// Rooms that stand outside the order: the binary, the simulated world, end-to-end tests, chores.
const ANYTHING: &[&str] = &["krablet", "sim", "e2e", "bench", "xtask"];

/// Rooms without I/O, clock, task or lock.
pub const PURE: &[&str] = &["pod", "yaml", "core", "manifest", "config"];

/// The crates from elsewhere that a pure room may have: values, and text from and to them.
const PURE_CRATES: &[&str] = &[
    "granit-parser",
    "jiff",
    "k8s-openapi",
    "serde",
    "serde_ignored",
    "serde_json",
    "serde_path_to_error",
    "thiserror",
];

pub fn check(root: &Path) -> Result<()> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .current_dir(root)
        .output()
        .context("running cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let problems = problems(&dependencies(&metadata));
    if problems.is_empty() {
        println!("rooms: every crate knows only what it may");
        return Ok(());
    }
    bail!("room rules broken:\n  {}", problems.join("\n  "));
}

type Dependencies = BTreeMap<String, BTreeSet<String>>;

/// Ordinary dependencies (tests may use anything) of each crate, with the `krablet-` cut off.
fn dependencies(metadata: &Value) -> Dependencies {
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let name = |v: &Value| {
        let name = v["name"].as_str().unwrap_or_default();
        name.strip_prefix("krablet-").unwrap_or(name).to_owned()
    };
    list(&metadata["packages"])
        .iter()
        .map(|package| {
            let ordinary = list(&package["dependencies"]);
            let ordinary = ordinary.iter().filter(|d| d["kind"].is_null()).map(name);
            (name(package), ordinary.collect())
        })
        .collect()
}

fn problems(dependencies: &Dependencies) -> Vec<String> {
    let mut problems = Vec::new();
    for (room, known) in dependencies {
        if ANYTHING.contains(&room.as_str()) {
            continue;
        }
        let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| name == room) else {
            problems.push(format!("{room} is not in the table of rooms"));
            continue;
        };
        for other in known {
            let is_room = dependencies.contains_key(other);
            if is_room && !allowed.contains(&other.as_str()) {
                problems.push(format!("{room} must not know {other}"));
            }
            let is_pure = is_room || PURE_CRATES.contains(&other.as_str());
            if PURE.contains(&room.as_str()) && !is_pure {
                problems.push(format!("{room} is pure and must not use {other}"));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deps(list: &[(&str, &[&str])]) -> Dependencies {
        list.iter()
            .map(|(room, known)| {
                (
                    room.to_string(),
                    known.iter().map(|k| k.to_string()).collect(),
                )
            })
            .collect()
    }

    #[test]
    fn broken_rules_are_named() {
        let good = deps(&[
            ("pod", &[]),
            ("core", &["pod", "jiff"]),
            ("krablet", &["core", "tokio"]),
        ]);
        assert!(problems(&good).is_empty());
        let bad = deps(&[
            ("pod", &["core"]),
            ("core", &["jiff", "tokio", "tokio-util"]),
            ("config", &["futures"]),
            ("attic", &[]),
        ]);
        assert_eq!(
            problems(&bad),
            [
                "attic is not in the table of rooms",
                "config is pure and must not use futures",
                "core is pure and must not use tokio",
                "core is pure and must not use tokio-util",
                "pod must not know core",
            ]
        );
    }
}
