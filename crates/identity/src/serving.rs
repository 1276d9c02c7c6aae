//! The pair a node shows who connects to it, where nobody gave it one: signed by itself, made once, and kept in
//! the certificate directory under the kubelet's names.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::{Timestamp, ToSpan as _};
use krablet_kube::pem;
use krablet_linux::Files;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

use crate::IdentityError;
use crate::csr::wrong;
use crate::pair::Pair;

const CERTIFICATE: &str = "kubelet.crt";
const KEY: &str = "kubelet.key";
const SIZE_LIMIT: usize = 1024 * 1024;
const DIRECTORY_MODE: u32 = 0o755;
const SECRET_MODE: u32 = 0o600;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// The pair in the directory; one that is missing, expired or broken is made anew.
pub async fn self_signed(
    directory: &Path,
    host: &str,
    addresses: &[IpAddr],
    files: &dyn Files,
    now: Timestamp,
) -> Result<ServingFiles, IdentityError> {
    let places = ServingFiles {
        certificate: directory.join(CERTIFICATE),
        key: directory.join(KEY),
    };
    if is_good(&places, files, now).await {
        return Ok(places);
    }
    let (certificate, key) = make(host, addresses, now)?;
    files.create_dir_all(directory, DIRECTORY_MODE).await?;
    // A kill between the two leaves a pair that does not fit, and the next start makes another.
    let secret = key.as_bytes();
    files.write_atomic(&places.key, secret, SECRET_MODE).await?;
    let text = certificate.as_bytes();
    files.write_atomic(&places.certificate, text, 0o644).await?;
    Ok(places)
}

async fn is_good(places: &ServingFiles, files: &dyn Files, now: Timestamp) -> bool {
    let certificate = files.read(&places.certificate, SIZE_LIMIT).await;
    let key = files.read(&places.key, SIZE_LIMIT).await;
    let (Ok(certificate), Ok(key)) = (certificate, key) else {
        return false;
    };
    match Pair::from_pem(&certificate, &key) {
        Ok(pair) => !pair.validity().is_expired(now),
        Err(error) => {
            let path = places.certificate.display();
            tracing::warn!(%path, %error, "making a new serving certificate in its place");
            false
        }
    }
}

fn make(
    host: &str,
    addresses: &[IpAddr],
    now: Timestamp,
) -> Result<(String, String), IdentityError> {
    let mut names = vec![host.to_owned()];
    names.extend(addresses.iter().map(ToString::to_string));
    let mut params = CertificateParams::new(names).map_err(wrong)?;
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, format!("{host}@{}", now.as_second()));
    params.distinguished_name = subject;
    let end = now.checked_add((24 * 365).hours()).unwrap_or(now);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let after = |at: Timestamp| Duration::from_secs(u64::try_from(at.as_second()).unwrap_or(0));
    // An hour for clocks that are behind.
    params.not_before = epoch + after(now.checked_sub(1.hour()).unwrap_or(now));
    params.not_after = epoch + after(end);
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate().map_err(wrong)?;
    let certificate = params.self_signed(&key).map_err(wrong)?;
    Ok((
        pem::encoded("CERTIFICATE", certificate.der()),
        pem::encoded("PRIVATE KEY", key.serialized_der()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_linux::HostFiles;

    #[tokio::test]
    async fn made_once_and_again_when_it_is_of_no_use() {
        let dir = tempfile::tempdir().unwrap();
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let addresses = ["10.0.0.1".parse().unwrap()];
        let ask = async |at: Timestamp| {
            let made = self_signed(dir.path(), "n1", &addresses, &HostFiles, at).await;
            let made = made.unwrap();
            (std::fs::read(&made.certificate).unwrap(), made)
        };
        let (first, places) = ask(now).await;
        assert_eq!(ask(now).await.0, first);
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(&places.key).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        let later = now.checked_add((24 * 366).hours()).unwrap();
        let (second, _) = ask(later).await;
        assert_ne!(second, first);
        std::fs::write(&places.key, "torn").unwrap();
        assert_ne!(ask(later).await.0, second);
    }
}
