//! PEM: what certificates and keys look like in files and objects.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Longest line of an encoded block.
const LINE: usize = 64;

/// One block.
pub fn encoded(label: &str, bytes: &[u8]) -> String {
    let body = STANDARD.encode(bytes);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        // The alphabet has no character of more than a byte.
        let (line, after) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text + &format!("-----END {label}-----\n")
}

/// What is in the blocks of a text, whatever they are called. What stands between them, and headers in them, is left out.
pub fn blocks(text: &str) -> Vec<Vec<u8>> {
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

/// The certificates of a text and nothing else, in their order.
pub fn certificates_only(text: &str) -> String {
    let blocks = blocks(text).into_iter();
    blocks.map(|bytes| encoded("CERTIFICATE", &bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back_without_what_is_around_them() {
        let a = encoded("CERTIFICATE", &[1; 100]);
        let b = encoded("CERTIFICATE", &[2; 10]);
        assert!(a.lines().all(|line| line.len() <= LINE));
        let headed = b.replacen('\n', "\nName: x\n\n", 1);
        let text = format!("who: me\n{a}noise\n{headed}");
        assert_eq!(blocks(&text), [vec![1; 100], vec![2; 10]]);
        assert_eq!(certificates_only(&text), format!("{a}{b}"));
        let other = encoded("X509 CERTIFICATE", &[2; 10]);
        assert_eq!(certificates_only(&other), b);
        for nothing in [
            "",
            "-----BEGIN X-----\n???\n-----END X-----",
            "-----BEGIN X-----\nAAAA",
        ] {
            assert_eq!(certificates_only(nothing), "", "{nothing}");
        }
    }
}
