//! Where each field stands: a tree of line numbers beside the value.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The line of a node and of everything below it.
#[derive(Debug, Clone)]
pub(crate) struct Lines {
    pub(crate) line: usize,
    pub(crate) below: Below,
}

#[derive(Debug, Clone)]
pub(crate) enum Below {
    Nothing,
    Items(Vec<Lines>),
    Fields(BTreeMap<String, Lines>),
}

impl Lines {
    pub(crate) fn leaf(line: usize) -> Self {
        Self {
            line,
            below: Below::Nothing,
        }
    }

    /// The line of the deepest node on `path` that exists, and whether that is the whole path.
    pub(crate) fn walk(&self, path: &str) -> (usize, bool) {
        let mut here = self;
        for step in steps(path) {
            let next = match &here.below {
                Below::Nothing => None,
                Below::Items(items) => step.parse::<usize>().ok().and_then(|i| items.get(i)),
                Below::Fields(fields) => fields.get(step),
            };
            match next {
                Some(lines) => here = lines,
                None => return (here.line, false),
            }
        }
        (here.line, true)
    }
}

/// Splits `a.b[0][c.d]` into its names. A bracket ends at a `]` that is followed by `.`, `[` or the end, so keys
/// holding `]` mostly work too.
fn steps(path: &str) -> Vec<&str> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let end = inner
                .match_indices(']')
                .map(|(at, _)| at)
                .find(|at| matches!(inner.as_bytes().get(at + 1), None | Some(b'.') | Some(b'[')))
                .unwrap_or(inner.len());
            let (name, after) = inner.split_at(end);
            steps.push(name);
            rest = after.strip_prefix(']').unwrap_or(after);
            rest = rest.strip_prefix('.').unwrap_or(rest);
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            steps.push(name);
            rest = after.strip_prefix('.').unwrap_or(after);
        }
    }
    steps
}

/// Adds a key to a path, in brackets where a dot or bracket in it would mislead.
pub(crate) fn push_key(path: &mut String, key: &str) {
    if key.is_empty() || key.contains(['.', '[', ']']) {
        let _ = write!(path, "[{key}]");
    } else {
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
    }
}

/// Adds a list index to a path.
pub(crate) fn push_index(path: &mut String, index: usize) {
    let _ = write!(path, "[{index}]");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split_into_names() {
        for (path, want) in [
            ("", vec![]),
            ("a", vec!["a"]),
            (
                "spec.containers[0].image",
                vec!["spec", "containers", "0", "image"],
            ),
            (
                "metadata.annotations[a.b/c]",
                vec!["metadata", "annotations", "a.b/c"],
            ),
            ("a[b]c].d", vec!["a", "b]c", "d"]),
            ("a[unclosed", vec!["a", "unclosed"]),
            ("m[0][1]", vec!["m", "0", "1"]),
        ] {
            assert_eq!(steps(path), want, "{path}");
        }
    }
}
