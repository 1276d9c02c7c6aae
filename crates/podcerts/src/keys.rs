//! Keys of pods, and the request that proves that we have them.

use krablet_kube::pem;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, RsaKeySize};

/// A key, and a request for a certificate that says nothing but whose key it is.
pub(crate) struct Made {
    /// PKCS#8, in PEM.
    pub(crate) key: String,
    /// PKCS#10, in DER.
    pub(crate) request: Vec<u8>,
}

/// Takes seconds for large RSA keys.
pub(crate) fn make(key_type: &str) -> Result<Made, String> {
    let pair = pair(key_type)?;
    let wrong = |e| format!("while generating stub PKCS#10 request: {e}");
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&pair).map_err(wrong)?;
    Ok(Made {
        key: pem::encoded("PRIVATE KEY", pair.serialized_der()),
        request: request.der().to_vec(),
    })
}

fn pair(key_type: &str) -> Result<KeyPair, String> {
    let rsa = |size| KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size);
    let pair = match key_type {
        "RSA3072" => rsa(RsaKeySize::_3072),
        "RSA4096" => rsa(RsaKeySize::_4096),
        "ECDSAP256" => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
        "ECDSAP384" => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
        "ECDSAP521" => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512),
        "ED25519" => KeyPair::generate_for(&rcgen::PKCS_ED25519),
        _ => return Err(format!("unknown key type {key_type:?}")),
    };
    pair.map_err(|e| format!("while generating {key_type} key: {e}"))
}

#[cfg(test)]
mod tests {
    use x509_parser::prelude::{FromDer, X509CertificationRequest};
    use x509_parser::public_key::PublicKey;

    use super::*;

    #[test]
    fn a_request_says_whose_key_it_is_and_nothing_else() {
        for (key_type, bits) in [
            ("RSA3072", 3072),
            ("RSA4096", 4096),
            ("ECDSAP256", 256),
            ("ECDSAP384", 384),
            ("ECDSAP521", 528),
            ("ED25519", 256),
        ] {
            let made = make(key_type).unwrap();
            let (rest, request) = X509CertificationRequest::from_der(&made.request).unwrap();
            assert!(rest.is_empty(), "{key_type}");
            let info = &request.certification_request_info;
            assert_eq!(info.subject.to_string(), "", "{key_type}");
            assert_eq!(request.requested_extensions().map(Iterator::count), None);
            let found = match info.subject_pki.parsed().unwrap() {
                PublicKey::RSA(key) => key.key_size(),
                PublicKey::EC(point) => point.key_size(),
                PublicKey::Unknown(bytes) => bytes.len() * 8,
                other => panic!("{other:?}"),
            };
            assert_eq!(found, bits, "{key_type}");
            let der = pem::blocks(&made.key).remove(0);
            let again = KeyPair::try_from(der).unwrap();
            let own = &request.certification_request_info.subject_pki;
            let public = rcgen::PublicKeyData::subject_public_key_info(&again);
            assert_eq!(public, own.raw, "{key_type}");
        }
        assert_eq!(make("DSA").err().unwrap(), "unknown key type \"DSA\"");
    }
}
