//! A friendly word when a name is nearly right.

/// ` (did you mean PREFIXname?)` for the closest of `known`, or nothing when none is close.
pub(crate) fn did_you_mean<'a>(
    written: &str,
    known: impl Iterator<Item = &'a str>,
    prefix: &str,
) -> String {
    let lower = written.to_lowercase();
    // A third of the letters may differ; beyond that a guess helps nobody.
    let tolerance = (written.chars().count() / 3).min(4);
    known
        .map(|name| (distance(&lower, &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= tolerance)
        .min()
        .map_or_else(String::new, |(_, name)| {
            format!(" (did you mean {prefix}{name}?)")
        })
}

/// Edit distance: letters put in, taken out or changed.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut next = vec![left];
        for (above, to) in row.iter().skip(1).zip(&b) {
            let changed = diagonal + usize::from(from != *to);
            left = changed.min(above + 1).min(left + 1);
            next.push(left);
            diagonal = *above;
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, expected) in [
            ("", "", 0),
            ("abc", "abc", 0),
            ("abc", "abd", 1),
            ("abc", "ab", 1),
            ("ab", "abc", 1),
            ("kitten", "sitting", 3),
            ("", "xyz", 3),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn only_close_names_are_offered() {
        let known = ["config", "config-dir", "kubeconfig"];
        let hint = |written| did_you_mean(written, known.into_iter(), "--");
        assert_eq!(hint("confg"), " (did you mean --config?)");
        assert_eq!(hint("config-dirs"), " (did you mean --config-dir?)");
        assert_eq!(hint("x"), "");
        assert_eq!(hint("pod-infra-container-image"), "");
    }
}
