//! Words that must not stand in the sources of the pure rooms: reaching for the world needs no crate.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Rooms without I/O, clock, task or lock.
const PURE: &[&str] = &["pod", "yaml", "core", "manifest", "config"];

/// The one door of a pure room: a trait the room reads configuration through, and its real side beside it.
const DOORS: &[&str] = &["crates/config/src/files.rs"];

const FORBIDDEN: &[&str] = &[
    "std::fs",
    "std::process",
    "std::thread",
    "std::env",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "std::net::Tcp",
    "std::net::Udp",
    "std::os",
    "SystemTime",
    "Instant",
    "Timestamp::now",
    "println!",
    "eprintln!",
    "static mut",
    "thread_local!",
    "HashMap",
    "HashSet",
];

pub fn check(root: &Path) -> Result<()> {
    let mut found = Vec::new();
    for room in PURE {
        for file in rust_files(&root.join("crates").join(room).join("src"))? {
            let shown = file.strip_prefix(root).unwrap_or(&file).display();
            if DOORS.contains(&shown.to_string().as_str()) {
                continue;
            }
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            for (line, word) in offences(&text) {
                found.push(format!("{shown}:{line}: {word}"));
            }
        }
    }
    if found.is_empty() {
        println!("purity: the pure rooms reach for nothing");
        return Ok(());
    }
    bail!(
        "pure rooms must not reach for the world:\n  {}",
        found.join("\n  ")
    );
}

/// Forbidden words outside comments and outside the tests at a file's end.
fn offences(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("#[cfg(test)]") {
            break;
        }
        let code = line.split("//").next().unwrap_or_default();
        found.extend(
            FORBIDDEN
                .iter()
                .filter(|w| code.contains(**w))
                .map(|w| (index + 1, *w)),
        );
    }
    found
}

fn rust_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    // Files that hold only tests may do as they like.
    files.retain(|f| {
        !f.file_stem()
            .is_some_and(|s| s.to_string_lossy().contains("test"))
    });
    files.retain(|f| !f.components().any(|c| c.as_os_str() == "tests"));
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_words_in_code_only() {
        let text = "// std::fs is not used\nuse std::fs;\nlet t = SystemTime::now();\n#[cfg(test)]\nuse std::env;\n";
        assert_eq!(offences(text), [(2, "std::fs"), (3, "SystemTime")]);
    }
}
