//! Words that must not stand in the sources of the pure rooms: reaching for the world needs no crate.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::rooms::PURE;

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
        let sources = root.join("crates").join(room).join("src");
        for file in rust_files(&sources)? {
            let within = file.strip_prefix(&sources).unwrap_or(&file);
            let shown = file.strip_prefix(root).unwrap_or(&file).display();
            if is_test_file(within) || DOORS.contains(&shown.to_string().as_str()) {
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

/// Forbidden words outside comments and outside what is there for tests only.
fn offences(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let mut skipping = None;
    for (index, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default().trim_end();
        let begun = skipping.take().or_else(|| TestItem::begins(code));
        if let Some(item) = begun {
            skipping = item.after(code);
            continue;
        }
        let paths = paths(code);
        let used = |word: &str| paths.iter().any(|path| path.contains(word));
        found.extend(
            FORBIDDEN
                .iter()
                .filter(|w| used(w))
                .map(|w| (index + 1, *w)),
        );
    }
    found
}

/// What is compiled for tests only: one item, which ends where the formatter has it end, at the column of its attribute.
#[derive(Clone, Copy)]
struct TestItem {
    indent: usize,
    /// A line at that column has opened its braces.
    in_braces: bool,
}

impl TestItem {
    const ATTRIBUTE: &str = "#[cfg(test)]";

    fn begins(code: &str) -> Option<Self> {
        let trimmed = code.trim_start();
        trimmed.starts_with(Self::ATTRIBUTE).then(|| Self {
            indent: code.len() - trimmed.len(),
            in_braces: false,
        })
    }

    /// What is left of the item after this line.
    fn after(mut self, code: &str) -> Option<Self> {
        let trimmed = code.trim_start();
        let own = trimmed.trim_start_matches(Self::ATTRIBUTE).trim_start();
        // Its other attributes and comments, and all that stands further in.
        if own.is_empty() || own.starts_with("#[") || code.len() - trimmed.len() != self.indent {
            return Some(self);
        }
        let ended = match self.in_braces {
            true => own.starts_with('}'),
            false => own.ends_with([';', '}', ',']),
        };
        self.in_braces |= own.ends_with('{');
        (!ended).then_some(self)
    }
}

/// The line; of an import in braces, each of its paths.
fn paths(code: &str) -> Vec<String> {
    match code.split_once("::{") {
        Some((outside, inside)) => {
            let names = inside.split([',', '}']).map(str::trim);
            names.map(|name| format!("{outside}::{name}")).collect()
        }
        None => vec![code.to_owned()],
    }
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
    files.sort();
    Ok(files)
}

/// Files that hold only tests, and what these are written with, may do as they like.
fn is_test_file(within: &Path) -> bool {
    let stem = within.file_stem().unwrap_or_default().to_string_lossy();
    matches!(&*stem, "tests" | "testkit" | "testing")
        || stem.ends_with("_tests")
        || within.components().any(|c| c.as_os_str() == "tests")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_words_in_code_only() {
        let cases: &[(&str, &[(usize, &str)])] = &[
            (
                "// std::fs is not used\nuse std::fs;\nlet t = SystemTime::now();\n",
                &[(2, "std::fs"), (3, "SystemTime")],
            ),
            (
                "use std::sync::{Arc, Mutex};\nuse std::{env, fmt};\n",
                &[(1, "std::sync::Mutex"), (2, "std::env")],
            ),
            // A module that stands elsewhere.
            (
                "#[cfg(test)]\nmod tests;\n\nuse std::fs;\n",
                &[(4, "std::fs")],
            ),
            (
                "#[cfg(test)]\npub(crate) mod testkit;\n#[cfg(test)]\nmod tests; // std::fs\nuse std::env;\n",
                &[(5, "std::env")],
            ),
            ("#[cfg(test)] mod tests;\nuse std::fs;\n", &[(2, "std::fs")]),
            (
                "#[cfg(test)]\nuse std::fs;\nuse std::env;\n",
                &[(3, "std::env")],
            ),
            // One that stands here, to its end.
            (
                "#[cfg(test)]\nmod tests {\n    use std::fs;\n\n    fn a() {\n        std::env::args();\n    }\n}\n",
                &[],
            ),
            (
                "#[cfg(test)]\n#[allow(dead_code)]\n/// Of tests.\nmod tests {\n    use std::fs;\n}\nuse std::env;\n",
                &[(7, "std::env")],
            ),
            // One function, with its signature over several lines.
            (
                "impl A {\n    #[cfg(test)]\n    fn a(\n        b: Instant,\n    ) -> C {\n        std::fs::read(b)\n    }\n\n    fn d(e: Instant) {}\n}\n",
                &[(9, "Instant")],
            ),
            (
                "#[cfg(test)]\nimpl<T> A for B<T>\nwhere\n    T: C,\n{\n    type D = HashMap<T>;\n}\ntype E = HashSet<F>;\n",
                &[(8, "HashSet")],
            ),
            // One field, and a value of more than one line.
            (
                "struct A {\n    #[cfg(test)]\n    b: Instant,\n    c: Instant,\n}\n",
                &[(4, "Instant")],
            ),
            (
                "#[cfg(test)]\nconst A: [B; 1] = [\n    B(std::fs::read),\n];\nconst C: D = std::env::args;\n",
                &[(5, "std::env")],
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(offences(text), *expected, "{text}");
        }
    }

    #[test]
    fn files_of_tests() {
        for (path, expected) in [
            ("status/tests.rs", true),
            ("status/tests/ends.rs", true),
            ("actions/testkit.rs", true),
            ("testing.rs", true),
            ("merge_tests.rs", true),
            ("status/mod.rs", false),
            ("latest.rs", false),
            ("attestation/mod.rs", false),
            ("contests.rs", false),
        ] {
            assert_eq!(is_test_file(Path::new(path)), expected, "{path}");
        }
    }
}
