//! The node's own log files by the names askers give. Pods may write below the directory, so a link may lie about where
//! it leads: what lies outside is not there for the asker.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::{self, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Names told of one directory; what is beyond is said to be left out.
const MAX_NAMES: usize = 20_000;

/// Not to hang on a pipe that stands where a file should.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// What was found under a name.
#[derive(Debug)]
pub enum Found {
    File(NodeFile),
    Directory(Listing),
}

#[derive(Debug)]
pub struct NodeFile {
    pub file: File,
    pub size: u64,
    pub modified: Timestamp,
}

/// The names in a directory, sorted; those of directories end with a slash.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Listing {
    pub names: Vec<String>,
    /// There are more than are told.
    pub cut: bool,
}

/// Looks below `top`. Links are followed as long as they stay there; one that leads out is not found. What is neither a
/// file nor a directory is not found either.
///
/// Blocking: a path may lie on a file system that hangs.
pub fn find(top: &Path, relative: &Path) -> io::Result<Found> {
    let top = top.canonicalize()?;
    let real = top.join(inside(relative)).canonicalize()?;
    let rest = real.strip_prefix(&top);
    let rest = rest.map_err(|_| io::Error::from(io::ErrorKind::NotFound))?;
    let fd = open(&top, rest)?;
    let stat = fs::fstat(&fd)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(Found::File(NodeFile {
            file: File::from(fd),
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            modified: Timestamp::from_second(stat.st_mtime).unwrap_or_default(),
        })),
        FileType::Directory => Ok(Found::Directory(list(&fd)?)),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// The name without steps upwards beyond its beginning.
fn inside(relative: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in relative.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            _ => {}
        }
    }
    clean
}

/// The path has no links in it any more. If somebody puts one there now, the open fails.
fn open(top: &Path, rest: &Path) -> io::Result<OwnedFd> {
    let root = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = fs::open(top, root, Mode::empty())?;
    let rest = match rest.as_os_str().is_empty() {
        true => Path::new("."),
        false => rest,
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match fs::openat2(&root, rest, READ, Mode::empty(), resolve) {
        // Kernels before 5.6, and filters that do not know the call.
        Err(Errno::NOSYS | Errno::PERM) => Ok(open_stepwise(root, rest)?),
        other => Ok(other?),
    }
}

fn open_stepwise(root: OwnedFd, rest: &Path) -> rustix::io::Result<OwnedFd> {
    let mut at = root;
    let mut names = rest.components().peekable();
    while let Some(component) = names.next() {
        let flags = match names.peek() {
            Some(_) => OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            None => READ,
        };
        let name = component.as_os_str();
        at = fs::openat(at.as_fd(), name, flags | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Ok(at)
}

fn list(fd: &OwnedFd) -> io::Result<Listing> {
    let mut listing = Listing::default();
    for entry in Dir::read_from(fd)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        if matches!(&*name, "." | "..") {
            continue;
        }
        if listing.names.len() == MAX_NAMES {
            listing.cut = true;
            break;
        }
        let mut name = name.into_owned();
        if entry.file_type() == FileType::Directory {
            name.push('/');
        }
        listing.names.push(name);
    }
    listing.names.sort_unstable();
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use proptest::prelude::*;

    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        /// A secret beside a log directory with files, links inside, and links out of it.
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let top = dir.path().join("log");
            std::fs::create_dir_all(top.join("pods/p")).unwrap();
            std::fs::write(dir.path().join("secret"), "node").unwrap();
            std::fs::write(top.join("syslog"), "one").unwrap();
            std::fs::write(top.join("pods/p/0.log"), "two").unwrap();
            let tree = Self(dir);
            tree.link("../secret", "relative-out");
            tree.link(&tree.0.path().join("secret").to_string_lossy(), "far-out");
            tree.link(&tree.0.path().to_string_lossy(), "up");
            tree.link("pods/p/0.log", "in");
            let absolute = top.join("pods/p/0.log");
            tree.link(&absolute.to_string_lossy(), "absolute-in");
            tree.link("loop", "loop");
            let pipe = top.join("pipe");
            fs::mknodat(fs::CWD, pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
            tree
        }

        fn top(&self) -> PathBuf {
            self.0.path().join("log")
        }

        fn link(&self, target: &str, name: &str) {
            std::os::unix::fs::symlink(target, self.top().join(name)).unwrap();
        }

        fn text(&self, name: &str) -> Option<String> {
            match find(&self.top(), Path::new(name)) {
                Ok(Found::File(mut found)) => {
                    let mut text = String::new();
                    found.file.read_to_string(&mut text).unwrap();
                    assert_eq!(found.size, text.len() as u64);
                    Some(text)
                }
                _ => None,
            }
        }
    }

    #[test]
    fn what_is_inside_is_found_and_what_is_outside_is_not() {
        let tree = Tree::new();
        for (name, text) in [
            ("syslog", "one"),
            ("/syslog", "one"),
            ("pods/p/0.log", "two"),
            ("pods/../syslog", "one"),
            ("../../syslog", "one"),
            ("in", "two"),
            ("absolute-in", "two"),
        ] {
            assert_eq!(tree.text(name).as_deref(), Some(text), "{name}");
        }
        for name in [
            "../secret",
            "relative-out",
            "far-out",
            "up/secret",
            "up",
            "loop",
            "pipe",
            "none",
            "pods",
            "syslog/x",
            "a\0b",
        ] {
            assert_eq!(tree.text(name), None, "{name:?}");
        }
    }

    #[test]
    fn directories_are_listed() {
        let tree = Tree::new();
        let listed = |name: &str| match find(&tree.top(), Path::new(name)) {
            Ok(Found::Directory(listing)) => listing.names,
            other => panic!("{other:?}"),
        };
        assert_eq!(listed("pods"), ["p/"]);
        assert_eq!(listed("pods/p/"), ["0.log"]);
        let all = listed("");
        assert!(all.contains(&"pods/".to_owned()) && all.contains(&"syslog".to_owned()));
        assert_eq!(listed(".."), all);
    }

    #[test]
    fn the_old_way_follows_no_link() {
        let tree = Tree::new();
        let open = |name: &str| {
            let root = fs::open(tree.top(), OFlags::PATH, Mode::empty()).unwrap();
            open_stepwise(root, Path::new(name)).is_ok()
        };
        assert!(open("syslog") && open("pods/p/0.log"));
        assert!(!open("in") && !open("up/secret") && !open("absolute-in"));
    }

    #[test]
    fn no_name_leads_out() {
        let tree = Tree::new();
        let part = "(\\.\\.|\\.|up|pods|p|secret|log|syslog|/|relative-out|[a-z\0]{0,3})";
        proptest!(|(parts in proptest::collection::vec(part, 0..8))| {
            let text = tree.text(&parts.join("/"));
            prop_assert_ne!(text.as_deref(), Some("node"));
        });
    }
}
