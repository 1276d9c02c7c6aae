//! Files that are read again when they change.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use krablet_linux::{DirectoryWatch as _, InotifyWatch, WatchStream};
use tracing::{info, warn};

/// Files that change are written in several steps; looked at once they are through.
const SETTLED: Duration = Duration::from_millis(100);
/// Looked at so often even if nothing was heard of a change, as the kubelet does: not every file system tells of one.
const CHECKED: Duration = Duration::from_secs(60);
/// A path that leads through more links than that leads nowhere.
const MAX_LINKS: usize = 40;

type Texts<const N: usize> = [Vec<u8>; N];
type TakeIn<const N: usize> = Box<dyn FnMut(&Texts<N>) -> Result<(), String> + Send>;

/// Files that belong together and take effect while the agent runs. What cannot be used leaves the old in force.
pub(super) struct Fresh<const N: usize> {
    files: [PathBuf; N],
    take_in: TakeIn<N>,
    /// What was taken in or refused last.
    seen: Option<Texts<N>>,
    /// Told once.
    trouble: Option<String>,
}

impl<const N: usize> Fresh<N> {
    pub(super) fn new(
        files: [PathBuf; N],
        take_in: impl FnMut(&Texts<N>) -> Result<(), String> + Send + 'static,
    ) -> Self {
        Self {
            files,
            take_in: Box::new(take_in),
            seen: None,
            trouble: None,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            // Watched before they are read, and anew each time: whatever changes later is told, also where the links and
            // directories on the way lead elsewhere by now.
            let watches = self.watches();
            self.look();
            let mut changes = futures::stream::select_all(watches);
            match tokio::time::timeout(CHECKED, changes.next()).await {
                Ok(Some(())) => tokio::time::sleep(SETTLED).await,
                // Nothing can be watched.
                Ok(None) => tokio::time::sleep(CHECKED).await,
                Err(_) => {}
            }
        }
    }

    fn watches(&self) -> Vec<WatchStream> {
        let places: BTreeSet<PathBuf> = self.files.iter().flat_map(|f| places(f)).collect();
        let watches = places.iter().map(|place| InotifyWatch.watch(place));
        watches.filter_map(Result::ok).collect()
    }

    /// Takes in what is there now, if it is not what was there before. A pair of which only one half is new is refused, and
    /// taken in when the other half has come.
    fn look(&mut self) {
        let texts = match self.read() {
            Ok(texts) => texts,
            Err(why) => return self.complain(format!("{why:#}")),
        };
        if self.seen.as_ref() == Some(&texts) {
            return;
        }
        match (self.take_in)(&texts) {
            Ok(()) => {
                if self.seen.is_some() || self.trouble.is_some() {
                    info!(path = self.named(), "Changed, and in force from now on");
                }
                self.trouble = None;
            }
            Err(why) => self.complain(why),
        }
        self.seen = Some(texts);
    }

    fn read(&self) -> Result<Texts<N>> {
        let mut texts = [const { Vec::new() }; N];
        for (text, path) in texts.iter_mut().zip(&self.files) {
            *text = std::fs::read(path).with_context(|| path.display().to_string())?;
        }
        Ok(texts)
    }

    fn complain(&mut self, why: String) {
        if self.trouble.as_ref() != Some(&why) {
            warn!(
                path = self.named(),
                err = why,
                "Cannot be used, what was read before stays in force"
            );
            self.trouble = Some(why);
        }
    }

    fn named(&self) -> String {
        let names = self.files.each_ref().map(|f| f.display().to_string());
        names.join(", ")
    }
}

/// The directories in which a change can make the path name another text: the one its file lies in, those of all links on
/// the way, and of one that is missing, the one it will come back to.
fn places(file: &Path) -> BTreeSet<PathBuf> {
    let mut places = BTreeSet::new();
    let mut ahead: Vec<OsString> = Vec::new();
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    lay_out(&mut ahead, &absolute);
    let (mut here, mut links) = (PathBuf::from("/"), 0);
    while let Some(name) = ahead.pop() {
        if name == ".." {
            here.pop();
            continue;
        }
        let next = here.join(&name);
        match std::fs::read_link(&next) {
            Ok(target) if links < MAX_LINKS => {
                links += 1;
                places.insert(here.clone());
                if target.is_absolute() {
                    here = PathBuf::from("/");
                }
                lay_out(&mut ahead, &target);
            }
            _ if ahead.is_empty() || !next.is_dir() => {
                places.insert(here);
                break;
            }
            _ => here = next,
        }
    }
    places
}

/// The names of a path, the first one on top.
fn lay_out(ahead: &mut Vec<OsString>, path: &Path) {
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => ahead.push(name.to_owned()),
            Component::ParentDir => ahead.push("..".into()),
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tokio::sync::mpsc;
    use tokio::task::JoinSet;

    use super::*;

    /// A directory with both halves of a pair, which fit if their texts are the same.
    struct Bed(tempfile::TempDir);

    impl Bed {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn fresh(&self) -> (Fresh<2>, mpsc::UnboundedReceiver<String>) {
            let (told, taken) = mpsc::unbounded_channel();
            let files = [self.path("crt/tls.crt"), self.path("key/tls.key")];
            let take_in = move |[certificate, key]: &Texts<2>| {
                if certificate != key {
                    return Err("they do not match".to_owned());
                }
                let text = String::from_utf8(certificate.clone()).unwrap();
                told.send(text).map_err(|e| e.to_string())
            };
            (Fresh::new(files, take_in), taken)
        }

        fn both(&self, text: &str) {
            self.write("crt/tls.crt", text);
            self.write("key/tls.key", text);
        }
    }

    async fn next(taken: &mut mpsc::UnboundedReceiver<String>) -> String {
        let wait = tokio::time::timeout(Duration::from_secs(30), taken.recv());
        wait.await.expect("nothing was taken in").unwrap()
    }

    #[test]
    fn a_half_that_is_new_waits_for_the_other() {
        let bed = Bed::new();
        let (mut fresh, mut taken) = bed.fresh();
        fresh.look();
        assert!(fresh.trouble.as_ref().unwrap().contains("tls.crt"));
        bed.both("one");
        fresh.look();
        assert_eq!(
            (taken.try_recv().unwrap().as_str(), &fresh.trouble),
            ("one", &None)
        );
        bed.write("crt/tls.crt", "two");
        fresh.look();
        fresh.look();
        assert_eq!(fresh.trouble.as_deref(), Some("they do not match"));
        assert!(taken.try_recv().is_err());
        bed.write("key/tls.key", "two");
        fresh.look();
        assert_eq!(
            (taken.try_recv().unwrap().as_str(), &fresh.trouble),
            ("two", &None)
        );
        fresh.look();
        assert!(taken.try_recv().is_err(), "the same again is no news");
    }

    #[test]
    fn where_changes_are_looked_for() {
        let bed = Bed::new();
        let root = fs::canonicalize(bed.path("")).unwrap();
        bed.write("plain/tls.crt", "");
        bed.write("secret/..2026/tls.crt", "");
        symlink("..2026", bed.path("secret/..data")).unwrap();
        symlink("..data/tls.crt", bed.path("secret/tls.crt")).unwrap();
        fs::create_dir(bed.path("far")).unwrap();
        symlink(bed.path("secret/tls.crt"), bed.path("far/tls.crt")).unwrap();
        symlink("../secret", bed.path("far/near")).unwrap();
        symlink("round", bed.path("far/round")).unwrap();
        let cases: [(&str, &[&str]); 7] = [
            ("plain/tls.crt", &["plain"]),
            ("plain/none.crt", &["plain"]),
            ("none/below/tls.crt", &[""]),
            ("secret/tls.crt", &["secret", "secret/..2026"]),
            ("far/tls.crt", &["far", "secret", "secret/..2026"]),
            ("far/near/..2026/tls.crt", &["far", "secret/..2026"]),
            ("far/round", &["far"]),
        ];
        for (file, expected) in cases {
            let found = places(&root.join(file));
            let found = found.iter().map(|p| p.strip_prefix(&root).unwrap());
            let expected: Vec<&Path> = expected.iter().map(Path::new).collect();
            assert_eq!(found.collect::<Vec<_>>(), expected, "{file}");
        }
    }

    #[tokio::test]
    async fn changes_are_heard_of_wherever_they_happen() {
        let bed = Bed::new();
        bed.both("one");
        let (fresh, mut taken) = bed.fresh();
        let mut tasks = JoinSet::new();
        tasks.spawn(fresh.run());
        assert_eq!(next(&mut taken).await, "one");
        bed.both("two");
        assert_eq!(next(&mut taken).await, "two");
        // The directories are replaced by others, and those are removed and made anew.
        for name in ["crt", "key"] {
            fs::rename(bed.path(name), bed.path(&format!("old-{name}"))).unwrap();
        }
        bed.both("three");
        assert_eq!(next(&mut taken).await, "three");
        for name in ["crt", "key"] {
            fs::remove_dir_all(bed.path(name)).unwrap();
        }
        bed.both("four");
        assert_eq!(next(&mut taken).await, "four");
        // As kubelets write secrets: one link is turned from an old directory to a new one.
        fs::remove_file(bed.path("crt/tls.crt")).unwrap();
        fs::remove_file(bed.path("key/tls.key")).unwrap();
        for (name, file) in [("crt", "tls.crt"), ("key", "tls.key")] {
            bed.write(&format!("{name}/..1/{file}"), "five");
            bed.write(&format!("{name}/..2/{file}"), "six");
            symlink("..1", bed.path(&format!("{name}/..data"))).unwrap();
            symlink(
                format!("..data/{file}"),
                bed.path(&format!("{name}/{file}")),
            )
            .unwrap();
        }
        assert_eq!(next(&mut taken).await, "five");
        for name in ["crt", "key"] {
            symlink("..2", bed.path(&format!("{name}/..new"))).unwrap();
            let (from, to) = (format!("{name}/..new"), format!("{name}/..data"));
            fs::rename(bed.path(&from), bed.path(&to)).unwrap();
        }
        assert_eq!(next(&mut taken).await, "six");
    }

    /// What is written by another name is told to nobody who watches this one.
    #[tokio::test(start_paused = true)]
    async fn once_a_minute_they_are_looked_at_all_the_same() {
        let bed = Bed::new();
        bed.both("one");
        fs::create_dir(bed.path("elsewhere")).unwrap();
        for name in ["crt/tls.crt", "key/tls.key"] {
            let other = bed.path("elsewhere").join(&name[4..]);
            fs::hard_link(bed.path(name), other).unwrap();
        }
        let (fresh, mut taken) = bed.fresh();
        let mut tasks = JoinSet::new();
        tasks.spawn(fresh.run());
        assert_eq!(taken.recv().await.unwrap(), "one");
        bed.write("elsewhere/tls.crt", "two");
        bed.write("elsewhere/tls.key", "two");
        assert_eq!(taken.recv().await.unwrap(), "two");
    }
}
