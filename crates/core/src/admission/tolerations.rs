//! Whether a toleration covers a taint.

use krablet_pod::api::{Taint, Toleration};

/// An empty effect covers all effects, an empty key all keys, `Exists` all values. The operators
/// `Lt` and `Gt` compare numbers, and match nothing unless `comparison` is on.
pub fn tolerates(toleration: &Toleration, taint: &Taint, comparison: bool) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    if !(effect.is_empty() || effect == taint.effect) || !(key.is_empty() || key == taint.key) {
        return false;
    }
    let value = toleration.value.as_deref().unwrap_or_default();
    let tainted = taint.value.as_deref().unwrap_or_default();
    let compare = |matches: fn(&i64, &i64) -> bool| {
        let numbers = integer(tainted).zip(integer(value));
        comparison && numbers.is_some_and(|(tainted, value)| matches(&tainted, &value))
    };
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => value == tainted,
        "Exists" => true,
        "Lt" => compare(i64::lt),
        "Gt" => compare(i64::gt),
        _ => false,
    }
}

/// An integer as people write it: no plus sign, no leading zeros.
fn integer(text: &str) -> Option<i64> {
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `key op value effect`, `_` for what is not set.
    fn toleration(text: &str) -> Toleration {
        let mut parts = text
            .split(' ')
            .map(|p| Some(p.to_owned()).filter(|p| p != "_"));
        let mut next = || parts.next().flatten();
        Toleration {
            key: next(),
            operator: next(),
            value: next(),
            effect: next(),
            toleration_seconds: None,
        }
    }

    fn taint(value: &str) -> Taint {
        Taint {
            key: "k".into(),
            value: Some(value.into()),
            effect: "NoExecute".into(),
            time_added: None,
        }
    }

    #[test]
    fn what_covers_what() {
        for (text, value, expected) in [
            ("k Equal v NoExecute", "v", true),
            ("k _ v _", "v", true),
            ("k Equal w NoExecute", "v", false),
            ("k Equal v NoSchedule", "v", false),
            ("other Exists _ _", "v", false),
            ("k Exists _ _", "v", true),
            ("_ Exists _ _", "v", true),
            ("_ Exists _ NoSchedule", "v", false),
            ("k Equal _ _", "", true),
            ("k Huh v _", "v", false),
            ("k Gt 5 _", "6", true),
            ("k Gt 5 _", "5", false),
            ("k Lt 5 _", "4", true),
            ("k Lt 5 _", "x", false),
            ("k Lt 05 _", "4", false),
            ("k Lt +5 _", "4", false),
            ("k Lt 5 _", "-0", false),
            ("k Gt -5 _", "-4", true),
        ] {
            let toleration = toleration(text);
            assert_eq!(
                tolerates(&toleration, &taint(value), true),
                expected,
                "{text} {value}"
            );
            let comparing = text.contains("Gt") || text.contains("Lt");
            let without = expected && !comparing;
            assert_eq!(
                tolerates(&toleration, &taint(value), false),
                without,
                "{text} {value}"
            );
        }
    }
}
