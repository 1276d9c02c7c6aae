//! The certificate directory, as the kubelet keeps it: one `kubelet-client-<time>.pem` per
//! certificate, with its key in the same file, and the link `kubelet-client-current.pem` to the one
//! that counts; the same with `kubelet-server` for what is shown to who connects to the node. A new certificate is written whole before the link turns to it in one step, so
//! whatever is interrupted leaves the old one or the new one in force.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

use jiff::{Timestamp, ToSpan as _};
use krablet_linux::{EntryKind, Files};

use crate::csr::NodeKey;
use crate::{IdentityError, Pair};

const CLIENT: &str = "kubelet-client";
const SERVING: &str = "kubelet-server";
const CURRENT: &str = "-current.pem";
/// What the kubelet calls the link while it turns it.
const UPDATED: &str = "-updated.pem";
/// The key of a request that has no certificate yet.
const WAITING_KEY: &str = ".key.tmp";
const TIME: &str = "%Y-%m-%d-%H-%M-%S";
/// Chains are a few kilobytes.
const SIZE_LIMIT: usize = 1 << 20;
/// So many certificates stay beside the current one, to look back at.
const KEPT: usize = 4;
const DIRECTORY_MODE: u32 = 0o755;
const SECRET_MODE: u32 = 0o600;

/// What the store has to offer.
#[derive(Clone, Debug)]
pub enum Stored {
    Pair(Pair),
    Absent,
    /// There is something, but of no use; a new certificate takes its place.
    Broken(String),
}

impl Stored {
    pub fn pair(self) -> Option<Pair> {
        match self {
            Stored::Pair(pair) => Some(pair),
            Stored::Absent | Stored::Broken(_) => None,
        }
    }
}

/// Certificate and key in files of their own, as a kubeconfig may name them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Clones share the directory.
#[derive(Clone)]
pub struct CertStore {
    directory: PathBuf,
    /// What its files are called by.
    prefix: &'static str,
    named: Option<PairFiles>,
    named_first: bool,
    files: Arc<dyn Files>,
}

impl fmt::Debug for CertStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertStore")
            .field("directory", &self.directory)
            .field("named", &self.named)
            .finish_non_exhaustive()
    }
}

impl CertStore {
    /// Makes the directory, and ends what an interrupted kubelet began. The path should be
    /// absolute: the kubeconfig will name it.
    pub async fn open(directory: PathBuf, files: Arc<dyn Files>) -> Result<Self, IdentityError> {
        Self::open_as(CLIENT, directory, files).await
    }

    /// The same for serving certificates.
    pub async fn open_serving(
        directory: PathBuf,
        files: Arc<dyn Files>,
    ) -> Result<Self, IdentityError> {
        Self::open_as(SERVING, directory, files).await
    }

    async fn open_as(
        prefix: &'static str,
        directory: PathBuf,
        files: Arc<dyn Files>,
    ) -> Result<Self, IdentityError> {
        files.create_dir_all(&directory, DIRECTORY_MODE).await?;
        let store = Self {
            directory,
            prefix,
            named: None,
            named_first: false,
            files,
        };
        store.recover().await?;
        Ok(store)
    }

    /// Files the kubeconfig names. They count while the store has no current certificate, or
    /// before it if `first`.
    pub fn with_named(mut self, named: Option<PairFiles>, first: bool) -> Self {
        self.named = named;
        self.named_first = first;
        self
    }

    /// What a kubeconfig has to name as certificate and key.
    pub fn current_path(&self) -> PathBuf {
        self.file(CURRENT)
    }

    fn file(&self, end: &str) -> PathBuf {
        self.directory.join(format!("{}{end}", self.prefix))
    }

    /// Directories in which a change may be one of the certificate.
    pub fn directories(&self) -> Vec<PathBuf> {
        let mut all = vec![self.directory.clone()];
        for file in self.named.iter().flat_map(|n| [&n.certificate, &n.key]) {
            if let Some(parent) = file.parent()
                && !all.iter().any(|d| d == parent)
            {
                all.push(parent.to_owned());
            }
        }
        all
    }

    /// The kubelet turns the link in two steps; between them there is only the new one.
    async fn recover(&self) -> Result<(), IdentityError> {
        if self.exists(&self.current_path()).await? {
            return Ok(());
        }
        let updated = self.file(UPDATED);
        match self.files.lstat(&updated).await {
            Ok(entry) if entry.kind == EntryKind::Symlink => {}
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        if self.exists(&updated).await? {
            self.files.rename(&updated, &self.current_path()).await?;
        }
        Ok(())
    }

    async fn exists(&self, path: &Path) -> Result<bool, IdentityError> {
        match self.files.stat(path).await {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// The first that can be used: the current one, the named files, `kubelet-client.crt` with
    /// `kubelet-client.key`.
    pub async fn load(&self) -> Stored {
        let current = self.current_path();
        let plain = self.directory.join(self.prefix);
        let mut places = [
            Some((current.clone(), current)),
            (self.named.clone()).map(|n| (n.certificate, n.key)),
            Some((plain.with_extension("crt"), plain.with_extension("key"))),
        ];
        if self.named_first {
            places.swap(0, 1);
        }
        let mut broken = Vec::new();
        for (certificate, key) in places.into_iter().flatten() {
            match self.load_from(&certificate, &key).await {
                Stored::Pair(pair) => return Stored::Pair(pair),
                Stored::Broken(why) => broken.push(why),
                Stored::Absent => {}
            }
        }
        match broken.is_empty() {
            true => Stored::Absent,
            false => Stored::Broken(broken.join("; ")),
        }
    }

    async fn load_from(&self, certificate: &Path, key: &Path) -> Stored {
        let texts = async {
            let text = self.files.read(certificate, SIZE_LIMIT).await?;
            let key_text = match key == certificate {
                true => text.clone(),
                false => self.files.read(key, SIZE_LIMIT).await?,
            };
            io::Result::Ok((text, key_text))
        };
        match texts.await {
            Ok((text, key_text)) => match Pair::from_pem(&text, &key_text) {
                Ok(pair) => Stored::Pair(pair),
                Err(e) => Stored::Broken(format!("cannot use {}: {e}", certificate.display())),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => Stored::Absent,
            Err(e) => Stored::Broken(e.to_string()),
        }
    }

    /// Makes this the current certificate.
    pub async fn update(&self, pair: &Pair, now: Timestamp) -> Result<(), IdentityError> {
        self.files
            .create_dir_all(&self.directory, DIRECTORY_MODE)
            .await?;
        let name = free_name(self.prefix, &self.names().await?, now);
        let path = self.directory.join(name);
        let text = pair.to_pem();
        self.files
            .write_atomic(&path, text.as_bytes(), SECRET_MODE)
            .await?;
        self.files.symlink(&path, &self.current_path()).await?;
        if let Err(error) = self.prune().await {
            tracing::warn!(%error, "cannot remove old certificates");
        }
        Ok(())
    }

    async fn names(&self) -> Result<Vec<String>, IdentityError> {
        let entries = self.files.list(&self.directory).await?;
        let name = |e: krablet_linux::Entry| Some(e.path.file_name()?.to_str()?.to_owned());
        Ok(entries.into_iter().filter_map(name).collect())
    }

    async fn prune(&self) -> Result<(), IdentityError> {
        let current = self.files.read_link(&self.current_path()).await?;
        let current = current.file_name().and_then(|n| n.to_str());
        for name in outdated(self.prefix, &self.names().await?, current) {
            self.files.remove_file(&self.directory.join(name)).await?;
        }
        Ok(())
    }

    /// The key of a request under way, kept so that a request can be found again after a crash;
    /// a new one if there is none, or none of use.
    pub(crate) async fn waiting_key(&self) -> Result<NodeKey, IdentityError> {
        let path = self.file(WAITING_KEY);
        match self.files.read(&path, SIZE_LIMIT).await {
            Ok(text) => match NodeKey::from_pem(&text) {
                Ok(key) => return Ok(key),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "making a new key in its place");
                }
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e.into()),
        }
        let key = NodeKey::generate()?;
        self.files
            .write_atomic(&path, key.to_pem().as_bytes(), SECRET_MODE)
            .await?;
        Ok(key)
    }

    pub(crate) async fn forget_waiting_key(&self) -> Result<(), IdentityError> {
        let path = self.file(WAITING_KEY);
        Ok(self.files.remove_file(&path).await?)
    }

    pub(crate) fn files(&self) -> &Arc<dyn Files> {
        &self.files
    }
}

fn name_at(prefix: &str, time: Timestamp) -> String {
    format!("{prefix}-{}.pem", time.strftime(TIME))
}

/// Names count seconds; a second certificate of one second takes the name of the next free one.
fn free_name(prefix: &str, taken: &[String], now: Timestamp) -> String {
    let mut time = now;
    while taken.contains(&name_at(prefix, time)) {
        time = time.checked_add(1.second()).unwrap_or(Timestamp::MIN);
    }
    name_at(prefix, time)
}

fn is_dated(prefix: &str, name: &str) -> bool {
    let time = name
        .strip_prefix(prefix)
        .and_then(|rest| rest.strip_prefix('-'))
        .and_then(|rest| rest.strip_suffix(".pem"));
    time.is_some_and(|time| {
        let shape: String = time
            .chars()
            .map(|c| if c.is_ascii_digit() { '0' } else { c })
            .collect();
        shape == "0000-00-00-00-00-00"
    })
}

/// Certificates to remove: all but the newest few, and never the current one.
fn outdated<'a>(prefix: &str, names: &'a [String], current: Option<&str>) -> Vec<&'a str> {
    let mut dated: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| is_dated(prefix, name) && Some(*name) != current)
        .collect();
    dated.sort_unstable();
    dated.truncate(dated.len().saturating_sub(KEPT));
    dated
}

#[cfg(test)]
mod tests {
    use krablet_linux::HostFiles;
    use krablet_linux::fake::{Fault, MemoryFiles};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::testing::{Authority, at};

    const DIR: &str = "/var/lib/kubelet/pki";
    const CURRENT: &str = "kubelet-client-current.pem";
    const UPDATED: &str = "kubelet-client-updated.pem";
    const WAITING_KEY: &str = "kubelet-client.key.tmp";

    async fn open(files: &MemoryFiles) -> CertStore {
        CertStore::open(DIR.into(), Arc::new(files.clone()))
            .await
            .unwrap()
    }

    fn path(name: &str) -> PathBuf {
        Path::new(DIR).join(name)
    }

    fn dated(files: &MemoryFiles) -> Vec<String> {
        let names = files.paths().into_iter();
        let names = names.filter_map(|p| Some(p.file_name()?.to_str()?.to_owned()));
        names.filter(|n| is_dated(CLIENT, n)).collect()
    }

    #[tokio::test]
    async fn names_link_and_modes_are_the_kubelets() {
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("pki");
        let store = CertStore::open(pki.clone(), Arc::new(HostFiles))
            .await
            .unwrap();
        assert!(matches!(store.load().await, Stored::Absent));
        let pair = Authority::new().pair("n", at(0), at(60));
        let now: Timestamp = "2026-03-04T05:06:07Z".parse().unwrap();
        store.update(&pair, now).await.unwrap();
        let pem = pki.join("kubelet-client-2026-03-04-05-06-07.pem");
        assert_eq!(std::fs::read_link(store.current_path()).unwrap(), pem);
        let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&pem), 0o600);
        assert_eq!(mode(&pki), 0o755);
        store.waiting_key().await.unwrap();
        assert_eq!(mode(&pki.join(WAITING_KEY)), 0o600);
        let found = store.load().await.pair().unwrap();
        assert!(found.same_certificate(&pair));
    }

    #[tokio::test]
    async fn certificates_of_one_second_get_names_of_their_own_and_old_ones_go() {
        let files = MemoryFiles::default();
        let store = open(&files).await;
        let authority = Authority::new();
        for round in 0..12 {
            let pair = authority.pair("n", at(round), at(round + 60));
            store.update(&pair, at(1000)).await.unwrap();
            let found = store.load().await.pair().unwrap();
            assert!(found.same_certificate(&pair), "round {round}");
            assert!(dated(&files).len() <= KEPT + 1);
        }
        files
            .put_file(&path("kubelet-client-notes.pem"), b"")
            .unwrap();
        // A clock that went back: the current one stays though its name sorts first.
        let pair = authority.pair("n", at(0), at(60));
        store.update(&pair, at(5)).await.unwrap();
        assert!(store.load().await.pair().unwrap().same_certificate(&pair));
        assert_eq!(dated(&files).len(), KEPT + 1);
        assert!(files.content(&path("kubelet-client-notes.pem")).is_some());
    }

    #[tokio::test]
    async fn places_are_looked_at_in_the_kubelets_order() {
        let files = MemoryFiles::default();
        let authority = Authority::new();
        let [plain, named, current] = [1, 2, 3].map(|t| authority.pair("n", at(t), at(60)));
        let named_files = PairFiles {
            certificate: "/etc/node.crt".into(),
            key: "/etc/node.key".into(),
        };
        let store = open(&files).await.with_named(Some(named_files), false);
        let found = async || store.load().await.pair().unwrap().validity().not_before;
        for name in ["kubelet-client.crt", "kubelet-client.key"] {
            files
                .put_file(&path(name), plain.to_pem().as_bytes())
                .unwrap();
        }
        assert_eq!(found().await, at(1));
        for name in ["/etc/node.crt", "/etc/node.key"] {
            files
                .put_file(Path::new(name), named.to_pem().as_bytes())
                .unwrap();
        }
        assert_eq!(found().await, at(2));
        store.update(&current, at(9)).await.unwrap();
        assert_eq!(found().await, at(3));
        assert_eq!(
            store.directories(),
            [PathBuf::from(DIR), PathBuf::from("/etc")]
        );
        let first = store.clone().with_named(store.named.clone(), true);
        let found_first = first.load().await.pair().unwrap();
        assert_eq!(found_first.validity().not_before, at(2));
        // A torn current file: what else there is counts.
        files.put_file(&store.current_path(), b"-----BEG").unwrap();
        assert_eq!(found().await, at(2));
    }

    #[tokio::test]
    async fn a_broken_certificate_is_told_and_replaced() {
        let files = MemoryFiles::default();
        let store = open(&files).await;
        files.put_file(&store.current_path(), b"\0torn").unwrap();
        let Stored::Broken(why) = store.load().await else {
            panic!("expected it to be broken");
        };
        assert_eq!(
            why,
            format!("cannot use {DIR}/{CURRENT}: there is no private key in it")
        );
        files
            .put_file(&path(WAITING_KEY), b"no key either")
            .unwrap();
        let key = store.waiting_key().await.unwrap();
        assert_eq!(
            key.public_key(),
            store.waiting_key().await.unwrap().public_key()
        );
        let pair = Authority::new().pair("n", at(0), at(60));
        store.update(&pair, at(1)).await.unwrap();
        assert!(store.load().await.pair().unwrap().same_certificate(&pair));
    }

    #[tokio::test]
    async fn an_interrupted_kubelet_is_recovered_from() {
        let authority = Authority::new();
        let (old, new) = (
            authority.pair("n", at(0), at(60)),
            authority.pair("n", at(40), at(100)),
        );
        let one = path("kubelet-client-2026-01-01-00-00-00.pem");
        let two = path("kubelet-client-2026-01-01-00-00-40.pem");
        type Links<'a> = &'a [(&'a str, &'a Path)];
        let cases: &[(&str, Links<'_>, Option<&Pair>)] = &[
            ("nothing yet", &[], None),
            ("written, not linked", &[(CURRENT, &one)], Some(&old)),
            ("link made", &[(CURRENT, &one), (UPDATED, &two)], Some(&old)),
            ("old link gone", &[(UPDATED, &two)], Some(&new)),
            ("done", &[(CURRENT, &two)], Some(&new)),
            ("link to nothing", &[(UPDATED, Path::new("/gone"))], None),
            (
                "both to nothing",
                &[(CURRENT, Path::new("/gone")), (UPDATED, Path::new("/gone"))],
                None,
            ),
            (
                "current to nothing",
                &[(CURRENT, Path::new("/gone")), (UPDATED, &two)],
                Some(&new),
            ),
        ];
        for (case, links, expected) in cases {
            let files = MemoryFiles::default();
            files.put_file(&one, old.to_pem().as_bytes()).unwrap();
            files.put_file(&two, new.to_pem().as_bytes()).unwrap();
            for (link, target) in *links {
                files.symlink(target, &path(link)).await.unwrap();
            }
            let store = open(&files).await;
            match (store.load().await.pair(), expected) {
                (None, None) => {}
                (Some(found), Some(expected)) => {
                    assert!(found.same_certificate(expected), "{case}");
                }
                (found, _) => panic!("{case}: {found:?}"),
            }
            // Whatever was left, the next update works.
            store.update(&new, at(7)).await.unwrap();
            assert!(store.load().await.pair().unwrap().same_certificate(&new));
        }
    }

    /// The n-th call of an update goes wrong, for every n, in every way.
    #[tokio::test(start_paused = true)]
    async fn a_crash_anywhere_leaves_the_old_or_the_new() {
        let authority = Authority::new();
        let old = authority.pair("n", at(0), at(60));
        let new = authority.pair("n", at(40), at(100));
        let error = || io::Error::other("cut off");
        type Way = fn(io::Error) -> Fault;
        let ways: [(&str, Way); 3] = [
            ("before", Fault::Before),
            ("after", Fault::After),
            ("hang", |_| Fault::Hang),
        ];
        for (way, fault) in ways {
            let mut crashes = 0;
            for nth in 0.. {
                let files = MemoryFiles::default();
                let store = open(&files).await;
                for round in 0..6 {
                    let pair = authority.pair("n", at(round), at(60));
                    store.update(&pair, at(round)).await.unwrap();
                }
                store.update(&old, at(8)).await.unwrap();
                let calls = AtomicUsize::new(0);
                let hit = Arc::new(Mutex::new(false));
                let told = hit.clone();
                files.set_faults(move |_, _| {
                    let now = calls.fetch_add(1, Ordering::Relaxed) == nth;
                    *told.lock().unwrap() |= now;
                    now.then(|| fault(error()))
                });
                let update = store.update(&new, at(48));
                let limit = std::time::Duration::from_secs(1);
                let done = tokio::time::timeout(limit, update).await;
                files.clear_faults();
                let store = open(&files).await;
                let found = store.load().await.pair().unwrap();
                if matches!(done, Ok(Ok(()))) {
                    assert!(found.same_certificate(&new), "{way} {nth}");
                } else {
                    let either = found.same_certificate(&old) || found.same_certificate(&new);
                    assert!(either, "{way} {nth}");
                }
                store.update(&new, at(50)).await.unwrap();
                assert!(store.load().await.pair().unwrap().same_certificate(&new));
                assert!(dated(&files).len() <= KEPT + 1, "{way} {nth}");
                if !*hit.lock().unwrap() {
                    break;
                }
                crashes += 1;
            }
            assert!(crashes >= 5, "{way}: {crashes}");
        }
    }

    #[test]
    fn which_certificates_are_outdated() {
        let name = |day: u8| format!("kubelet-client-2026-01-{day:02}-00-00-00.pem");
        let names: Vec<String> = (1..=7).map(name).collect();
        assert_eq!(outdated(CLIENT, &names, Some(&name(7))), [name(1), name(2)]);
        assert_eq!(outdated(CLIENT, &names, Some(&name(1))), [name(2), name(3)]);
        assert_eq!(outdated(CLIENT, &names[..4], None), [""; 0]);
        let others = [
            "kubelet-client-current.pem",
            "kubelet-client-2026.pem",
            "kubelet.crt",
        ];
        assert!(!others.iter().any(|name| is_dated(CLIENT, name)));
    }
}
