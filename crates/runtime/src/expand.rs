//! `$(VAR)` references in commands, arguments and variables, with `$$` for a plain dollar.

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part<'a> {
    /// Stands for itself.
    Text(&'a str),
    Reference(&'a str),
}

/// Anything that is no complete reference stays as written.
fn parts(input: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = input;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let at = rest.find('$').unwrap_or(rest.len());
        if at > 0 {
            let (text, behind) = rest.split_at(at);
            rest = behind;
            return Some(Part::Text(text));
        }
        let behind = &rest[1..];
        if let Some(after) = behind.strip_prefix('$') {
            rest = after;
            return Some(Part::Text("$"));
        }
        if let Some(opened) = behind.strip_prefix('(') {
            if let Some((name, after)) = opened.split_once(')') {
                rest = after;
                return Some(Part::Reference(name));
            }
            // An unclosed opener is passed over, so that a dollar after it counts again.
            rest = opened;
            return Some(Part::Text("$("));
        }
        rest = behind;
        Some(Part::Text("$"))
    })
}

/// Replaces each reference by what `lookup` says; one it does not know stays as written.
pub(crate) fn expand(input: &str, mut lookup: impl FnMut(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(input.len());
    for part in parts(input) {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Reference(name) => match lookup(name) {
                Some(value) => out.push_str(&value),
                None => out.extend(["$(", name, ")"]),
            },
        }
    }
    out
}

/// The same with values of any bytes.
pub(crate) fn expand_bytes(
    input: &str,
    mut lookup: impl FnMut(&str) -> Option<Vec<u8>>,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(input.len());
    for part in parts(input) {
        match part {
            Part::Text(text) => out.extend_from_slice(text.as_bytes()),
            Part::Reference(name) => match lookup(name) {
                Some(value) => out.extend(value),
                None => {
                    for piece in ["$(", name, ")"] {
                        out.extend_from_slice(piece.as_bytes());
                    }
                }
            },
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn known(name: &str) -> Option<String> {
        match name {
            "A" => Some("a".into()),
            "B" => Some(String::new()),
            "LOOP" => Some("$(LOOP)".into()),
            _ => None,
        }
    }

    #[test]
    fn references_escapes_and_leftovers() {
        let cases = [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "a"),
            ("x$(A)y$(B)z", "xayz"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$$$$(A)", "$$(A)"),
            ("$$", "$"),
            ("$", "$"),
            ("$A", "$A"),
            ("$(A", "$(A"),
            ("$($(A)", "$($(A)"),
            ("$(A$$", "$(A$"),
            ("$(LOOP)", "$(LOOP)"),
            ("$(UNKNOWN)-$(A)", "$(UNKNOWN)-a"),
            ("$()", "$()"),
            ("ü$(A)ü", "üaü"),
            ("$ü$(A)", "$üa"),
        ];
        for (input, expected) in cases {
            assert_eq!(expand(input, known), expected, "{input}");
        }
    }

    /// By single characters, as the rules are told: slow, and easy to see to be right.
    fn by_the_book(input: &str) -> String {
        let chars: Vec<char> = input.chars().collect();
        let mut out = String::new();
        let mut at = 0;
        while at < chars.len() {
            match (chars[at], chars.get(at + 1)) {
                ('$', Some('$')) => {
                    out.push('$');
                    at += 2;
                }
                ('$', Some('(')) => match chars[at + 2..].iter().position(|c| *c == ')') {
                    Some(length) => {
                        let name: String = chars[at + 2..at + 2 + length].iter().collect();
                        let value = known(&name).unwrap_or_else(|| format!("$({name})"));
                        out.push_str(&value);
                        at += length + 3;
                    }
                    None => {
                        out.push_str("$(");
                        at += 2;
                    }
                },
                (c, _) => {
                    out.push(c);
                    at += 1;
                }
            }
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_comes_out_as_the_rules_say(input in "[$()ABLOP ü]{0,24}") {
            let expected = by_the_book(&input);
            prop_assert_eq!(expand(&input, known), expected.clone());
            let bytes = expand_bytes(&input, |name| known(name).map(String::into_bytes));
            prop_assert_eq!(bytes, expected.into_bytes());
        }

        #[test]
        fn text_without_a_dollar_stays_and_an_escaped_one_comes_back(input in "\\PC{0,64}") {
            let escaped = input.replace('$', "$$");
            prop_assert_eq!(expand(&escaped, known), input);
        }
    }
}
