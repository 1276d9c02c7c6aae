//! The syntax of resource quantities (`500m`, `10Mi`, `1e3`), as far as configuration needs it: is the text one,
//! and is it below, at or above zero. Arithmetic lives with the pod vocabulary.

use std::cmp::Ordering;

use crate::decode::{Decoder, Field};
use serde_json::Value;

const SUFFIXES: &[&str] = &[
    "n", "u", "m", "", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
];

/// A resource quantity kept as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity(String);

impl Default for Quantity {
    fn default() -> Self {
        Self("0".to_owned())
    }
}

impl Quantity {
    /// Checks the syntax.
    ///
    /// # Errors
    /// One line that says what a quantity looks like.
    pub fn parse(text: &str) -> Result<Self, String> {
        match sign(text) {
            Some(_) => Ok(Self(text.to_owned())),
            None => Err(format!(
                "{text:?} is not a quantity such as 500m, 2Gi or 1e3"
            )),
        }
    }

    /// The text as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// How it compares with zero.
    #[must_use]
    pub fn sign(&self) -> Ordering {
        sign(&self.0).unwrap_or(Ordering::Equal)
    }
}

/// How the quantity in `text` compares with zero; `None` when it is not a quantity.
fn sign(text: &str) -> Option<Ordering> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = digits
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(digits.len());
    let (number, suffix) = digits.split_at(end);
    if !number.contains(|c: char| c.is_ascii_digit()) || number.matches('.').count() > 1 {
        return None;
    }
    if !SUFFIXES.contains(&suffix) && !is_exponent(suffix) {
        return None;
    }
    if !number.contains(|c: char| ('1'..='9').contains(&c)) {
        return Some(Ordering::Equal);
    }
    Some(if negative {
        Ordering::Less
    } else {
        Ordering::Greater
    })
}

fn is_exponent(suffix: &str) -> bool {
    let Some(rest) = suffix.strip_prefix(['e', 'E']) else {
        return false;
    };
    let digits = rest.strip_prefix(['+', '-']).unwrap_or(rest);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

impl Field for Quantity {
    fn kind() -> String {
        "quantity".to_owned()
    }

    fn decode(value: &Value, cx: &mut Decoder) -> Option<Self> {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            other => {
                cx.wrong_type("a quantity such as \"10Mi\"", other);
                return None;
            }
        };
        match Self::parse(&text) {
            Ok(quantity) => Some(quantity),
            Err(reason) => {
                cx.refuse(reason);
                None
            }
        }
    }

    fn encode(&self) -> Value {
        Value::String(self.0.clone())
    }

    fn is_zero(&self) -> bool {
        self.0 == "0"
    }

    fn omitted(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs() {
        let cases: &[(&str, Option<Ordering>)] = &[
            ("0", Some(Ordering::Equal)),
            ("0Mi", Some(Ordering::Equal)),
            ("0.00", Some(Ordering::Equal)),
            ("100Mi", Some(Ordering::Greater)),
            ("+1", Some(Ordering::Greater)),
            ("-1", Some(Ordering::Less)),
            ("1.5Gi", Some(Ordering::Greater)),
            (".5", Some(Ordering::Greater)),
            ("5.", Some(Ordering::Greater)),
            ("500m", Some(Ordering::Greater)),
            ("1e3", Some(Ordering::Greater)),
            ("1E", Some(Ordering::Greater)),
            ("1E-3", Some(Ordering::Greater)),
            ("", None),
            (".", None),
            ("Mi", None),
            ("10MB", None),
            ("10mi", None),
            ("1.2.3", None),
            ("1e", None),
            ("10 Mi", None),
            ("ten", None),
        ];
        for (text, expected) in cases {
            assert_eq!(sign(text), *expected, "{text}");
        }
    }

    proptest::proptest! {
        /// Whatever is written is kept as it is or refused; which side of zero it is on can be seen in its digits.
        #[test]
        fn any_text_is_a_quantity_or_refused(text in "\\PC{0,12}|[-+]?[0-9.]{0,4}([numkMGTPE]|[KMGTPE]i|[eE][-+]?[0-9]{0,3}|[a-z ])?") {
            let parsed = Quantity::parse(&text);
            let Ok(quantity) = parsed else {
                return Ok(());
            };
            proptest::prop_assert_eq!(quantity.as_str(), &text);
            let number = text.split(|c: char| c.is_ascii_alphabetic()).next().unwrap_or_default();
            let number: f64 = number.parse().map_err(|_| {
                proptest::test_runner::TestCaseError::fail(format!("{text:?} has no number"))
            })?;
            proptest::prop_assert_eq!(Some(quantity.sign()), number.partial_cmp(&0.0));
        }

        /// A number with a unit is a quantity, and its opposite is the opposite.
        #[test]
        fn nearly_every_number_with_a_unit_is_one(number in "[0-9]{1,20}(\\.[0-9]{0,9})?", unit in 0..SUFFIXES.len()) {
            let text = format!("{number}{}", SUFFIXES[unit]);
            let (here, there) = (Quantity::parse(&text), Quantity::parse(&format!("-{text}")));
            let signs = (here.map(|q| q.sign()), there.map(|q| q.sign().reverse()));
            proptest::prop_assert!(signs.0.is_ok(), "{}", text);
            proptest::prop_assert_eq!(signs.0, signs.1);
        }
    }
}
