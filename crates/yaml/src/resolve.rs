//! What a scalar means: the rules of go-yaml v2, which are YAML 1.1's with a few of Go's own.
//!
//! Kept apart from the parser because every line here is a fact users trip over: `0644` is 420, `y` is true,
//! `08` is the float 8, `1e3` is a number, `1:30` and dates are text, `1_000` is 1000.

/// A scalar with its type decided.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text,
}

impl Scalar {
    fn name(&self) -> &'static str {
        match self {
            Scalar::Null => "null",
            Scalar::Bool(_) => "bool",
            Scalar::Int(_) | Scalar::Uint(_) => "int",
            Scalar::Float(_) => "float",
            Scalar::Text => "str",
        }
    }
}

/// The type of an untagged plain scalar.
pub(crate) fn plain(text: &str) -> Scalar {
    if let Some(known) = word(text) {
        return known;
    }
    match text.as_bytes().first() {
        Some(b'.') => fraction(text),
        Some(b'0'..=b'9' | b'+' | b'-') => number(text),
        _ => Scalar::Text,
    }
}

/// The type of a scalar with the core tag `tag` (`int`, `float`, `bool`, `null`), whatever its quoting.
pub(crate) fn tagged(tag: &str, text: &str) -> Result<Scalar, String> {
    match (tag, plain(text)) {
        ("float", Scalar::Int(value)) => Ok(Scalar::Float(value as f64)),
        ("float", Scalar::Uint(value)) => Ok(Scalar::Float(value as f64)),
        (tag, scalar) if tag == scalar.name() => Ok(scalar),
        (tag, scalar) => Err(format!(
            "cannot decode !!{} `{}` as a !!{tag}",
            scalar.name(),
            shorten(text)
        )),
    }
}

/// The first characters of a text, for messages.
pub(crate) fn shorten(text: &str) -> String {
    const KEEP: usize = 40;
    if text.chars().count() <= KEEP {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(KEEP).collect();
    short.push_str("...");
    short
}

fn word(text: &str) -> Option<Scalar> {
    Some(match text {
        "" | "~" | "null" | "Null" | "NULL" => Scalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Scalar::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Scalar::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" => Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Scalar::Float(f64::NEG_INFINITY),
        _ => return None,
    })
}

/// A scalar that begins with a digit or a sign. Dates need no rule of their own: none of them is a number.
fn number(text: &str) -> Scalar {
    let digits: String = text.chars().filter(|c| *c != '_').collect();
    let (negative, magnitude) = match digits.as_bytes().first() {
        Some(b'-') => (true, digits.get(1..).unwrap_or_default()),
        Some(b'+') => (false, digits.get(1..).unwrap_or_default()),
        _ => (false, digits.as_str()),
    };
    let signed = magnitude.len() != digits.len();
    match integer(magnitude) {
        Some(value) if negative && value <= 1 << 63 => {
            return Scalar::Int((value as i64).wrapping_neg());
        }
        Some(value) if !negative => match i64::try_from(value) {
            Ok(value) => return Scalar::Int(value),
            // Go reads what only fits unsigned when no sign is written.
            Err(_) if !signed => return Scalar::Uint(value),
            Err(_) => {}
        },
        _ => {}
    }
    decimal(&digits).map_or(Scalar::Text, Scalar::Float)
}

/// A scalar that begins with a dot: here Go takes underscores only between digits.
fn fraction(text: &str) -> Scalar {
    if text.contains("._") || text.contains("__") || text.ends_with('_') {
        return Scalar::Text;
    }
    decimal(&text.replace('_', "")).map_or(Scalar::Text, Scalar::Float)
}

/// Digits with Go's base prefixes: 0x, 0o, 0b, and a bare leading 0 for octal.
fn integer(digits: &str) -> Option<u64> {
    let (radix, body) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, digits.get(2..)?),
        [b'0', b'o' | b'O', ..] => (8, digits.get(2..)?),
        [b'0', b'b' | b'B', ..] => (2, digits.get(2..)?),
        [b'0', _, ..] => (8, digits.get(1..)?),
        _ => (10, digits),
    };
    if body.is_empty() || !body.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    u64::from_str_radix(body, radix).ok()
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`, finite.
fn decimal(text: &str) -> Option<f64> {
    let body = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match body.find(['e', 'E']) {
        Some(at) => (body.get(..at)?, body.get(at + 1..)),
        None => (body, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let mantissa_fits = digits(whole)
        && fraction.is_none_or(digits)
        && !(whole.is_empty() && fraction.is_none_or(str::is_empty));
    let exponent_fits = exponent.is_none_or(|e| {
        let e = e.strip_prefix(['-', '+']).unwrap_or(e);
        !e.is_empty() && digits(e)
    });
    if !(mantissa_fits && exponent_fits) {
        return None;
    }
    text.parse::<f64>().ok().filter(|value| value.is_finite())
}

/// A float as a key: Go prints it with six digits of room and the shortest form of a 32-bit float.
pub(crate) fn float_key(value: f64) -> String {
    let value = value as f32;
    if !value.is_finite() {
        return if value.is_nan() {
            ".nan".to_owned()
        } else if value > 0.0 {
            ".inf".to_owned()
        } else {
            "-.inf".to_owned()
        };
    }
    let size = value.abs();
    if value == 0.0 || (1e-4..1e6).contains(&size) {
        return format!("{value}");
    }
    let text = format!("{value:e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let (sign, digits) = match exponent.strip_prefix('-') {
                Some(digits) => ('-', digits),
                None => ('+', exponent),
            };
            format!("{mantissa}e{sign}{digits:0>2}")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_mean_what_go_reads() {
        for (text, want) in [
            ("", Scalar::Null),
            ("~", Scalar::Null),
            ("NULL", Scalar::Null),
            ("nUll", Scalar::Text),
            ("y", Scalar::Bool(true)),
            ("On", Scalar::Bool(true)),
            ("oN", Scalar::Text),
            ("n", Scalar::Bool(false)),
            ("OFF", Scalar::Bool(false)),
            ("0", Scalar::Int(0)),
            ("0644", Scalar::Int(420)),
            ("-0644", Scalar::Int(-420)),
            ("0o644", Scalar::Int(420)),
            ("0x1F", Scalar::Int(31)),
            ("0b101", Scalar::Int(5)),
            ("-0b101", Scalar::Int(-5)),
            ("08", Scalar::Float(8.0)),
            ("0_7", Scalar::Int(7)),
            ("1_000", Scalar::Int(1000)),
            ("+12", Scalar::Int(12)),
            ("9223372036854775808", Scalar::Uint(1 << 63)),
            (
                "+9223372036854775808",
                Scalar::Float(9_223_372_036_854_775_808.0),
            ),
            ("-9223372036854775808", Scalar::Int(i64::MIN)),
            (
                "18446744073709551616",
                Scalar::Float(18_446_744_073_709_551_616.0),
            ),
            ("1e3", Scalar::Float(1000.0)),
            ("1.", Scalar::Float(1.0)),
            (".5", Scalar::Float(0.5)),
            ("-.5", Scalar::Float(-0.5)),
            ("1e400", Scalar::Text),
            ("1e", Scalar::Text),
            (".", Scalar::Text),
            ("-", Scalar::Text),
            ("0x", Scalar::Text),
            ("1:30", Scalar::Text),
            ("190:20:30", Scalar::Text),
            ("2001-12-14", Scalar::Text),
            ("2001-12-14T21:59:43.10-05:00", Scalar::Text),
            ("1.2.3", Scalar::Text),
            ("10Mi", Scalar::Text),
            ("100m", Scalar::Text),
            ("-.inf", Scalar::Float(f64::NEG_INFINITY)),
        ] {
            assert_eq!(plain(text), want, "{text:?}");
        }
    }

    #[test]
    fn float_keys_are_printed_as_go_prints_them() {
        for (value, want) in [
            (1.5, "1.5"),
            (1000.0, "1000"),
            (1e6, "1e+06"),
            (0.00001, "1e-05"),
            (0.1, "0.1"),
            (0.0, "0"),
            (f64::INFINITY, ".inf"),
        ] {
            assert_eq!(float_key(value), want);
        }
    }
}
