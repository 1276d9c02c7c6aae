//! `$(VAR)` references in commands, arguments and variables, with `$$` for a plain dollar.

/// Replaces each reference by what `lookup` says. A reference it does not know stays as written,
/// and so does anything that is no complete reference.
pub(crate) fn expand(input: &str, mut lookup: impl FnMut(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(&value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = after;
        } else {
            out.push('$');
            // An unclosed opener is passed over, so that a dollar after it counts again.
            if let Some(after) = rest.strip_prefix('(') {
                out.push('(');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_escapes_and_leftovers() {
        let cases = [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "a"),
            ("x$(A)y$(B)z", "xayz"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$$", "$"),
            ("$", "$"),
            ("$A", "$A"),
            ("$(A", "$(A"),
            ("$($(A)", "$($(A)"),
            ("$(UNKNOWN)-$(A)", "$(UNKNOWN)-a"),
            ("$()", "$()"),
            ("ü$(A)ü", "üaü"),
        ];
        for (input, expected) in cases {
            let got = expand(input, |name| match name {
                "A" => Some("a".into()),
                "B" => Some(String::new()),
                _ => None,
            });
            assert_eq!(got, expected, "{input}");
        }
    }
}
