//! Durations as Go writes and reads them: a signed count of nanoseconds, printed as `1h0m0s` or `100ms`.

use std::fmt;
use std::str::FromStr;

const MICROSECOND: i64 = 1_000;
const MILLISECOND: i64 = 1_000 * MICROSECOND;
const SECOND: i64 = 1_000 * MILLISECOND;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
/// One more than the largest positive count; the magnitude of the smallest negative one.
const LIMIT: u64 = 1 << 63;

/// A signed duration of nanoseconds; the zero stands for "use the default" in many fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(i64);

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text does not have the form of a duration, or the number is too large.
    #[error("invalid duration {0:?}")]
    Invalid(String),
    /// A number stands without its unit.
    #[error("missing unit in duration {0:?} (units are ns, us, ms, s, m, h)")]
    MissingUnit(String),
    /// A unit Go does not know, such as `d`.
    #[error("unknown unit {unit:?} in duration {text:?} (units are ns, us, ms, s, m, h)")]
    UnknownUnit {
        /// The unit as written.
        unit: String,
        /// The whole text.
        text: String,
    },
}

impl Duration {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A duration of whole nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// A duration of whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis * MILLISECOND)
    }

    /// A duration of whole seconds.
    #[must_use]
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs * SECOND)
    }

    /// A duration of whole minutes.
    #[must_use]
    pub const fn from_mins(mins: i64) -> Self {
        Self(mins * MINUTE)
    }

    /// A duration of whole hours.
    #[must_use]
    pub const fn from_hours(hours: i64) -> Self {
        Self(hours * HOUR)
    }

    /// The count of nanoseconds.
    #[must_use]
    pub const fn nanos(self) -> i64 {
        self.0
    }

    /// Whether this is exactly zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The same span for timers; `None` for a negative one.
    #[must_use]
    pub fn to_std(self) -> Option<std::time::Duration> {
        u64::try_from(self.0)
            .ok()
            .map(std::time::Duration::from_nanos)
    }
}

impl FromStr for Duration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || DurationError::Invalid(text.to_owned());
        let (negative, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (part, after) = parse_part(rest, text)?;
            total = total
                .checked_add(part)
                .filter(|sum| *sum <= LIMIT)
                .ok_or_else(invalid)?;
            rest = after;
        }
        if negative {
            return Ok(Self(0_i64.wrapping_sub_unsigned(total)));
        }
        i64::try_from(total).map(Self).map_err(|_| invalid())
    }
}

/// Reads one number with its unit, such as `1.5h`; hands back its nanoseconds and what follows.
fn parse_part<'a>(rest: &'a str, text: &str) -> Result<(u64, &'a str), DurationError> {
    let invalid = || DurationError::Invalid(text.to_owned());
    let (whole, after) = split_digits(rest);
    let (fraction, after) = match after.strip_prefix('.') {
        Some(after) => split_digits(after),
        None => ("", after),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(invalid());
    }
    let unit_end = after
        .find(|c: char| c == '.' || c.is_ascii_digit())
        .unwrap_or(after.len());
    let (unit, after) = after.split_at(unit_end);
    let scale = match unit {
        "" => return Err(DurationError::MissingUnit(text.to_owned())),
        "ns" => 1,
        // Both code points for the micro sign are in use.
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => {
            return Err(DurationError::UnknownUnit {
                unit: unit.to_owned(),
                text: text.to_owned(),
            });
        }
    };
    let scale = scale.unsigned_abs();
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().map_err(|_| invalid())?
    };
    let nanos = whole
        .checked_mul(scale)
        .and_then(|nanos| nanos.checked_add(fraction_of(fraction, scale)))
        .filter(|nanos| *nanos <= LIMIT)
        .ok_or_else(invalid)?;
    Ok((nanos, after))
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

/// The nanoseconds of a decimal fraction of a unit, cut off (not rounded) below one nanosecond.
fn fraction_of(digits: &str, scale: u64) -> u64 {
    let mut numerator: u128 = 0;
    let mut denominator: u128 = 1;
    // Eighteen digits are finer than a nanosecond of an hour; more cannot change the result.
    for digit in digits.bytes().take(18) {
        numerator = numerator * 10 + u128::from(digit - b'0');
        denominator *= 10;
    }
    let nanos = numerator * u128::from(scale) / denominator;
    u64::try_from(nanos).unwrap_or(0)
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let (unit, scale) = match nanos {
            0 => return f.write_str("0s"),
            n if n < MICROSECOND.unsigned_abs() => ("ns", 1),
            n if n < MILLISECOND.unsigned_abs() => ("\u{b5}s", MICROSECOND.unsigned_abs()),
            n if n < SECOND.unsigned_abs() => ("ms", MILLISECOND.unsigned_abs()),
            _ => ("s", SECOND.unsigned_abs()),
        };
        if unit != "s" {
            return write!(f, "{}{unit}", decimal(nanos, scale));
        }
        let seconds = nanos / scale;
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if seconds >= 60 {
            write!(f, "{minutes}m")?;
        }
        write!(f, "{}s", decimal(nanos % MINUTE.unsigned_abs(), scale))
    }
}

/// `nanos / scale` with as many decimals as it needs.
fn decimal(nanos: u64, scale: u64) -> String {
    let mut text = (nanos / scale).to_string();
    let rest = nanos % scale;
    if rest > 0 {
        let width = scale.ilog10() as usize;
        let fraction = format!("{rest:0width$}");
        text.push('.');
        text.push_str(fraction.trim_end_matches('0'));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints_as_go() {
        // (text, nanoseconds, canonical form)
        let cases: &[(&str, i64, &str)] = &[
            ("0", 0, "0s"),
            ("-0", 0, "0s"),
            ("0s", 0, "0s"),
            ("0h0m", 0, "0s"),
            ("5s", 5 * SECOND, "5s"),
            ("+5s", 5 * SECOND, "5s"),
            ("-5s", -5 * SECOND, "-5s"),
            ("30s", 30 * SECOND, "30s"),
            ("1h2m3.5s", 3_723_500_000_000, "1h2m3.5s"),
            ("90m", 90 * MINUTE, "1h30m0s"),
            ("1m", MINUTE, "1m0s"),
            ("4h", 4 * HOUR, "4h0m0s"),
            ("100ms", 100 * MILLISECOND, "100ms"),
            ("1500ms", 1_500 * MILLISECOND, "1.5s"),
            ("1ns", 1, "1ns"),
            ("1us", 1_000, "1\u{b5}s"),
            ("1\u{b5}s", 1_000, "1\u{b5}s"),
            ("1\u{3bc}s", 1_000, "1\u{b5}s"),
            ("1234ns", 1_234, "1.234\u{b5}s"),
            ("12.345ms", 12_345_000, "12.345ms"),
            (".5s", 500 * MILLISECOND, "500ms"),
            ("1.s", SECOND, "1s"),
            ("1.0000000001s", SECOND, "1s"),
            ("-1h30m", -90 * MINUTE, "-1h30m0s"),
            ("1m1ms", 60_001_000_000, "1m0.001s"),
            (
                "2562047h47m16.854775807s",
                i64::MAX,
                "2562047h47m16.854775807s",
            ),
            (
                "-2562047h47m16.854775808s",
                i64::MIN,
                "-2562047h47m16.854775808s",
            ),
            ("3600s", HOUR, "1h0m0s"),
            ("1s1s", 2 * SECOND, "2s"),
        ];
        for (text, nanos, canonical) in cases {
            let duration: Duration = text.parse().unwrap();
            assert_eq!(duration.nanos(), *nanos, "{text}");
            assert_eq!(duration.to_string(), *canonical, "{text}");
        }
    }

    #[test]
    fn refuses_what_go_refuses() {
        let cases: &[(&str, &str)] = &[
            ("", r#"invalid duration """#),
            ("-", r#"invalid duration "-""#),
            ("s", r#"invalid duration "s""#),
            (".", r#"invalid duration ".""#),
            (".s", r#"invalid duration ".s""#),
            (
                "5",
                r#"missing unit in duration "5" (units are ns, us, ms, s, m, h)"#,
            ),
            (
                "1d",
                r#"unknown unit "d" in duration "1d" (units are ns, us, ms, s, m, h)"#,
            ),
            (
                "1 s",
                r#"unknown unit " s" in duration "1 s" (units are ns, us, ms, s, m, h)"#,
            ),
            (
                "1S",
                r#"unknown unit "S" in duration "1S" (units are ns, us, ms, s, m, h)"#,
            ),
            (
                "9223372036854775808ns",
                r#"invalid duration "9223372036854775808ns""#,
            ),
            (
                "99999999999999999999s",
                r#"invalid duration "99999999999999999999s""#,
            ),
            ("3000000h", r#"invalid duration "3000000h""#),
            (
                "2562047h47m16.854775807s1ns",
                r#"invalid duration "2562047h47m16.854775807s1ns""#,
            ),
            ("--5s", r#"invalid duration "--5s""#),
        ];
        for (text, message) in cases {
            let error = text.parse::<Duration>().unwrap_err();
            assert_eq!(error.to_string(), *message, "{text}");
        }
    }

    #[test]
    fn negative_has_no_timer_form() {
        assert_eq!(Duration::from_secs(-1).to_std(), None);
        assert_eq!(
            Duration::from_millis(1500).to_std(),
            Some(std::time::Duration::from_millis(1500))
        );
    }
}
