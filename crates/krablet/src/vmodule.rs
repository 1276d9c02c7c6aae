//! `--vmodule`: more of the log from single source files, by the names that stand in its lines.

use tracing::Level;

/// What is shown of files whose names match, the first that matches counts.
#[derive(Clone, Debug, Default)]
pub struct ByFile(Vec<(String, Level)>);

impl ByFile {
    pub fn new(patterns: impl IntoIterator<Item = (String, Level)>) -> Self {
        Self(patterns.into_iter().collect())
    }

    /// Of a file with its directories.
    pub fn level(&self, file: Option<&str>) -> Option<Level> {
        if self.0.is_empty() {
            return None;
        }
        let file = file?;
        let name = file.rsplit('/').next().unwrap_or(file);
        let name = name.strip_suffix(".rs").unwrap_or(name);
        let mut all = self.0.iter();
        let found = all.find(|(pattern, _)| matches(pattern.as_bytes(), name.as_bytes()));
        found.map(|(_, level)| *level)
    }

    /// The most that is shown of any.
    pub fn most(&self) -> Option<Level> {
        self.0.iter().map(|(_, level)| *level).max()
    }
}

/// `*` stands for anything, `?` for one character.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|skip| matches(rest, &name[skip..])),
        ([b'?', rest @ ..], [_, name @ ..]) => matches(rest, name),
        ([a, rest @ ..], [b, name @ ..]) => a == b && matches(rest, name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_by_their_names() {
        let by_file = ByFile::new([
            ("sync_*".to_owned(), Level::DEBUG),
            ("door".to_owned(), Level::TRACE),
            ("*".to_owned(), Level::INFO),
        ]);
        for (file, level) in [
            ("crates/agent/src/sync_loop.rs", Some(Level::DEBUG)),
            ("crates/agent/src/door.rs", Some(Level::TRACE)),
            ("crates/agent/src/doors.rs", Some(Level::INFO)),
        ] {
            assert_eq!(by_file.level(Some(file)), level, "{file}");
        }
        assert_eq!(by_file.most(), Some(Level::TRACE));
        assert_eq!(
            (by_file.level(None), ByFile::default().most()),
            (None, None)
        );
        for (pattern, name, expected) in [
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*b*", "abc", true),
            ("abc", "ab", false),
            ("", "", true),
        ] {
            let found = matches(pattern.as_bytes(), name.as_bytes());
            assert_eq!(found, expected, "{pattern} {name}");
        }
    }
}
