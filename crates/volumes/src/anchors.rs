//! Certificates of trust bundles, each once, in an order that says nothing.

use std::collections::BTreeSet;

use krablet_kube::pem;

/// PEM texts in, one PEM text out. What stands between certificates, and headers in them, is left out.
pub(crate) fn normalized(texts: &[String]) -> String {
    let found: BTreeSet<Vec<u8>> = texts.iter().flat_map(|t| pem::blocks(t)).collect();
    let certificates = found.iter();
    certificates
        .map(|bytes| pem::encoded("CERTIFICATE", bytes))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_certificate_once() {
        let [a, b] = [[1; 10], [2; 10]].map(|bytes| pem::encoded("CERTIFICATE", &bytes));
        let once = normalized(&[format!("{b}noise\n{a}"), format!("{a}{b}")]);
        assert_eq!(once, format!("{a}{b}"));
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
