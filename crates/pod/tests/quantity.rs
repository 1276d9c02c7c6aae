//! Quantities come from outside: any text is read or refused, and what was read is told as it was meant.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

use krablet_pod::Quantity;
use proptest::prelude::*;

/// No canonical form needs more: a sign, nineteen digits before the point and nine after, a suffix.
const LONGEST: usize = 36;

/// Texts that look like quantities, and some that do not.
fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        "[+-]?[0-9]{0,40}\\.?[0-9]{0,40}(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{0,11})?",
        "\\PC{0,24}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_or_refused_and_keeps_its_worth(text in texts()) {
        if let Ok(read) = text.parse::<Quantity>() {
            let told = read.to_string();
            prop_assert!(told.len() <= LONGEST, "{told}");
            let again: Quantity = told.parse().unwrap();
            prop_assert_eq!(again, read);
            prop_assert_eq!(again.to_string(), told);
            prop_assert_eq!((again.value(), again.milli_value()), (read.value(), read.milli_value()));
        }
    }

    #[test]
    fn suffixes_multiply(number in 0_i64..(1 << 32), power in 0_usize..4) {
        let binary = ["", "Ki", "Mi", "Gi"][power];
        let decimal = ["", "k", "M", "G"][power];
        let read = |suffix: &str| format!("{number}{suffix}").parse::<Quantity>().unwrap().value();
        let power = u32::try_from(power).unwrap();
        prop_assert_eq!(read(binary), number.saturating_mul(1024_i64.pow(power)));
        prop_assert_eq!(read(decimal), number.saturating_mul(1000_i64.pow(power)));
    }

    #[test]
    fn sums_are_the_sums_of_their_parts(a in -1_000_000_i64..1_000_000, b in -1_000_000_i64..1_000_000) {
        let read = |millis: i64| format!("{millis}m").parse::<Quantity>().unwrap();
        prop_assert_eq!(read(a).saturating_add(read(b)), read(a + b));
        prop_assert_eq!(read(a).saturating_sub(read(b)), read(a - b));
        prop_assert_eq!(read(a).cmp(&read(b)), a.cmp(&b));
    }
}
