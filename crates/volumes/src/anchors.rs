//! Certificates of trust bundles, each once, in an order that says nothing.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Longest line of an encoded certificate.
const LINE: usize = 64;

/// PEM texts in, one PEM text out. What stands between certificates, and headers in them, is left out.
pub(crate) fn normalized(texts: &[String]) -> String {
    let found: BTreeSet<Vec<u8>> = texts.iter().flat_map(|t| certificates(t)).collect();
    found.iter().map(|bytes| encoded(bytes)).collect()
}

fn certificates(text: &str) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines().map(str::trim) {
        if line.starts_with("-----BEGIN ") {
            open = Some(String::new());
        } else if line.starts_with("-----END ") {
            let body = open.take().unwrap_or_default();
            found.extend(STANDARD.decode(body).ok().filter(|b| !b.is_empty()));
        } else if let Some(body) = open.as_mut().filter(|_| !line.contains(':')) {
            body.push_str(line);
        }
    }
    found
}

fn encoded(bytes: &[u8]) -> String {
    let body = STANDARD.encode(bytes);
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        // The alphabet has no character of more than a byte.
        let (line, after) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_certificate_once() {
        let a = encoded(&[1; 100]);
        let b = encoded(&[2; 10]);
        let once = normalized(&[format!("{b}noise\n{a}"), format!("{a}{b}")]);
        assert_eq!(once, format!("{a}{b}"));
        assert!(a.lines().all(|line| line.len() <= LINE));
        let with_header = b.replace("KEY", "").replacen('\n', "\nName: x\n\n", 1);
        assert_eq!(normalized(&[with_header]), b);
        assert_eq!(
            normalized(&["-----BEGIN X-----\n???\n-----END X-----".into()]),
            ""
        );
        assert_eq!(normalized(&[]), "");
    }

    proptest::proptest! {
        /// What comes out is in order, and comes out again the same.
        #[test]
        fn any_text_is_made_plain(text in "(-----BEGIN [A-Z ]{0,12}-----\n|-----END [A-Z ]{0,12}-----\n|[A-Za-z0-9+/=: ]{0,20}\n|\\PC{0,9}){0,12}") {
            let once = normalized(&[text]);
            proptest::prop_assert_eq!(normalized(std::slice::from_ref(&once)), once);
        }
    }
}
