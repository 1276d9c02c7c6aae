//! Kubernetes quantities (`100m`, `1.5Gi`, `2e3`) as exact numbers of nano-units.

use std::fmt;
use std::str::FromStr;

const NANO: i128 = 1_000_000_000;
/// The largest magnitude a quantity may have, 2^63-1 units; larger ones are capped, as upstream does.
const MAX: i128 = (i64::MAX as i128) * NANO;

/// How a quantity was written, which its canonical form keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `k`, `M`, `m`, …
    DecimalSi,
    /// `Ki`, `Mi`, …
    BinarySi,
    /// `e3`, `E6`.
    DecimalExponent,
}

#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nano: i128,
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)]
pub struct QuantityError;

impl Quantity {
    pub const ZERO: Self = Self {
        nano: 0,
        format: Format::DecimalSi,
    };

    pub fn from_units(units: i64, format: Format) -> Self {
        Self {
            nano: i128::from(units) * NANO,
            format,
        }
    }

    pub fn from_millis(millis: i64) -> Self {
        Self {
            nano: i128::from(millis) * (NANO / 1000),
            format: Format::DecimalSi,
        }
    }

    /// Whole units, rounded up (away from zero), as `Value()` upstream.
    pub fn value(self) -> i64 {
        clamp(div_away(self.nano, NANO))
    }

    /// Thousandths, rounded up, as `MilliValue()` upstream.
    pub fn milli_value(self) -> i64 {
        clamp(div_away(self.nano, NANO / 1000))
    }

    pub fn nano_value(self) -> i128 {
        self.nano
    }

    pub fn is_zero(self) -> bool {
        self.nano == 0
    }

    pub fn is_negative(self) -> bool {
        self.nano < 0
    }

    pub fn saturating_add(self, other: Self) -> Self {
        let format = if self.is_zero() {
            other.format
        } else {
            self.format
        };
        Self {
            nano: (self.nano + other.nano).clamp(-MAX, MAX),
            format,
        }
    }

    pub fn saturating_sub(self, other: Self) -> Self {
        let negative = Self {
            nano: -other.nano,
            ..other
        };
        self.saturating_add(negative)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.nano.cmp(&other.nano)
    }
}

fn clamp(n: i128) -> i64 {
    i64::try_from(n).unwrap_or(if n < 0 { i64::MIN } else { i64::MAX })
}

fn div_away(n: i128, by: i128) -> i128 {
    let rest = i128::from(n % by != 0);
    n / by + rest * n.signum()
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let digits_end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(digits_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(QuantityError);
        }
        let (scale, format) = parse_suffix(suffix)?;
        let nano = scaled(whole, fraction, scale).min(MAX);
        Ok(Self {
            nano: if negative { -nano } else { nano },
            format,
        })
    }
}

#[derive(Clone, Copy)]
enum Scale {
    /// Power of ten.
    Ten(i32),
    /// Power of 1024.
    Kibi(u32),
}

fn parse_suffix(suffix: &str) -> Result<(Scale, Format), QuantityError> {
    let decimal = |power| Ok((Scale::Ten(power), Format::DecimalSi));
    let binary = |power| Ok((Scale::Kibi(power), Format::BinarySi));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        other => {
            let exponent = other
                .strip_prefix(['e', 'E'])
                .filter(|e| !e.is_empty())
                .ok_or(QuantityError)?;
            let power: i32 = exponent.parse().map_err(|_| QuantityError)?;
            Ok((Scale::Ten(power), Format::DecimalExponent))
        }
    }
}

/// `whole.fraction` at the scale, in nano-units rounded up, capped at [`MAX`]. Exact however many digits
/// there are.
fn scaled(whole: &str, fraction: &str, scale: Scale) -> i128 {
    let digits: Vec<i128> = whole
        .bytes()
        .chain(fraction.bytes())
        .map(|b| i128::from(b - b'0'))
        .collect();
    // A power of ten moves the point, one of 1024 has to be multiplied with.
    let (shift, unit) = match scale {
        Scale::Ten(power) => (i64::from(power) + 9, 1),
        Scale::Kibi(power) => (0, 1024_i128.pow(power) * NANO),
    };
    let point = i64::try_from(whole.len())
        .unwrap_or(i64::MAX)
        .saturating_add(shift);
    let before = usize::try_from(point.max(0)).unwrap_or(usize::MAX);
    let (before, after) = digits.split_at(before.min(digits.len()));
    let zeros = i64::try_from(digits.len()).map_or(0, |len| point - len);
    let units = whole_number(before, zeros).saturating_mul(unit);
    units
        .saturating_add(below_the_point(after, point, unit))
        .min(MAX)
}

/// The digits and so many zeros; once it is beyond [`MAX`] the rest does not matter.
fn whole_number(digits: &[i128], mut zeros: i64) -> i128 {
    let mut number: i128 = 0;
    for digit in digits {
        number = (number * 10 + digit).min(MAX);
    }
    while zeros > 0 && number != 0 && number < MAX {
        number = (number * 10).min(MAX);
        zeros -= 1;
    }
    number
}

/// What the digits after the point make of `unit`, rounded up. From the last to the first, so that
/// no number gets longer than the unit's. A point before the first digit stands for zeros.
fn below_the_point(digits: &[i128], point: i64, unit: i128) -> i128 {
    let mut sum = 0;
    let mut inexact = false;
    let mut push = |digit: i128| {
        let tenths = digit * unit + sum;
        inexact |= tenths % 10 != 0;
        sum = tenths / 10;
        sum
    };
    for digit in digits.iter().rev() {
        push(*digit);
    }
    let mut zeros = point;
    while zeros < 0 && push(0) != 0 {
        zeros += 1;
    }
    sum + i128::from(inexact)
}

/// The canonical form: the largest suffix that leaves a whole number.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const KIBI: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        const SI: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        if self.nano == 0 {
            return f.write_str("0");
        }
        // Small or fractional binary quantities print in decimal form.
        if self.format == Format::BinarySi
            && self.nano % NANO == 0
            && self.nano.abs() >= 1024 * NANO
        {
            let mut n = self.nano / NANO;
            let mut step = 0;
            while n % 1024 == 0 && step < KIBI.len() - 1 {
                n /= 1024;
                step += 1;
            }
            return write!(f, "{n}{}", KIBI[step]);
        }
        let mut n = self.nano;
        let mut step = 0;
        while n % 1000 == 0 && step < SI.len() - 1 {
            n /= 1000;
            step += 1;
        }
        if self.format == Format::DecimalExponent && step != 3 {
            return write!(f, "{n}e{}", step as i32 * 3 - 9);
        }
        write!(f, "{n}{}", SI[step])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints_canonically() {
        for (text, canonical, value, milli) in [
            ("0", "0", 0, 0),
            ("100m", "100m", 1, 100),
            ("0.5", "500m", 1, 500),
            ("1500m", "1500m", 2, 1500),
            ("1.5Gi", "1536Mi", 1_610_612_736, 1_610_612_736_000),
            ("1024Ki", "1Mi", 1_048_576, 1_048_576_000),
            ("2e3", "2e3", 2000, 2_000_000),
            ("1000k", "1M", 1_000_000, 1_000_000_000),
            ("-1", "-1", -1, -1000),
            ("+4", "4", 4, 4000),
            (".5", "500m", 1, 500),
            ("5.", "5", 5, 5000),
            ("1n", "1n", 1, 1),
            ("0.1n", "1n", 1, 1),
            ("100Ki", "100Ki", 102_400, 102_400_000),
            ("512", "512", 512, 512_000),
            ("0.1Ki", "102400m", 103, 102_400),
        ] {
            let q: Quantity = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(q.to_string(), canonical, "{text}");
            assert_eq!(q.value(), value, "{text}");
            assert_eq!(q.milli_value(), milli, "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_quantity() {
        for text in [
            "", "-", ".", "1.2.3", "1x", "1 Gi", "Gi", "1e", "1e+", "1ki", "--1", "1Gib",
        ] {
            assert_eq!(text.parse::<Quantity>(), Err(QuantityError), "{text}");
        }
    }

    #[test]
    fn huge_and_tiny_numbers_are_capped_not_lost() {
        let huge: Quantity = format!("{}E", "9".repeat(60)).parse().unwrap();
        assert_eq!(huge.value(), i64::MAX);
        let full: Quantity = format!("{}.1Ei", "9".repeat(60)).parse().unwrap();
        assert_eq!(full.value(), i64::MAX);
        let big_exponent: Quantity = "1e2147483647".parse().unwrap();
        assert_eq!(big_exponent.value(), i64::MAX);
        let tiny: Quantity = "1e-2147483640".parse().unwrap();
        assert_eq!(tiny.nano_value(), 1);
        assert_eq!("0e99".parse::<Quantity>().unwrap().value(), 0);
    }

    #[test]
    fn every_digit_counts() {
        for (text, nano) in [
            (
                "1701411834604692317316873038n",
                1_701_411_834_604_692_317_316_873_038,
            ),
            (
                "9223372036854775806.999999997",
                9_223_372_036_854_775_806_999_999_997,
            ),
            // A 2^60th of an exbi is one.
            (
                "0.000000000000000000867361737988403547205962240695953369140625Ei",
                1_000_000_000,
            ),
            (
                "0.0000000000000000008673617379884035472059622406959533691406250001Ei",
                1_000_000_001,
            ),
            (
                "1.0000000000000000000000000000000000000000000Ei",
                1_152_921_504_606_846_976_000_000_000,
            ),
            ("0.00000000000000000000000000000000000000000000007E", 1),
            ("7000000000e-18", 7),
            ("0.000000007e3", 7_000),
            ("12e-10", 2),
        ] {
            let read: Quantity = text.parse().unwrap();
            assert_eq!(read.nano_value(), nano, "{text}");
        }
    }
}
