use super::*;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags};

const WAYS: [(&str, Opening); 2] = [("one call", Opening::BEST), ("steps", STEPS)];
const STEPS: Opening = Opening {
    within: hold_within_stepwise,
    plain: hold_plain_stepwise,
};

fn link(target: impl AsRef<Path>, name: &Path) {
    symlink(target, name).unwrap();
}

fn inode(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().ino()
}

#[test]
fn ways_that_end_inside_and_ways_that_do_not() {
    let base = tempfile::tempdir().unwrap();
    let top = base.path().join("vol");
    std::fs::create_dir_all(top.join("real/deep")).unwrap();
    std::fs::create_dir_all(base.path().join("vol2")).unwrap();
    std::fs::write(top.join("real/file"), "x").unwrap();
    let alias = base.path().join("alias");
    link("vol", &alias);
    link("vol/real", &base.path().join("relay"));
    for (name, target) in [
        ("inside", "real"),
        ("round", "real/deep/../file"),
        ("out-and-back", "../vol/real"),
        ("relayed", "../relay"),
        ("outside", ".."),
        ("beside", "../vol2"),
        ("absolute", "/etc"),
        ("loop", "loop"),
        ("dangling", "nowhere"),
        ("dangling-out", "../nowhere"),
    ] {
        link(target, &top.join(name));
    }
    link(top.join("real"), &top.join("current"));
    link(alias.join("current/deep"), &top.join("by-alias"));
    link(&top, &top.join("itself"));
    let cases = [
        ("real", Ok("real")),
        ("inside/file", Ok("real/file")),
        ("inside/deep/../file", Ok("real/file")),
        ("round", Ok("real/file")),
        ("./real/.", Ok("real")),
        (".", Ok("")),
        ("out-and-back", Ok("real")),
        ("out-and-back/file", Ok("real/file")),
        ("relayed/file", Ok("real/file")),
        ("current", Ok("real")),
        ("current/file", Ok("real/file")),
        ("by-alias", Ok("real/deep")),
        ("itself", Ok("")),
        ("itself/itself/inside/file", Ok("real/file")),
        ("real/../../vol/real", Ok("real")),
        ("outside", Err(Errno::XDEV)),
        ("outside/vol2", Err(Errno::XDEV)),
        ("beside", Err(Errno::XDEV)),
        ("absolute", Err(Errno::XDEV)),
        ("..", Err(Errno::XDEV)),
        ("/", Err(Errno::XDEV)),
        ("loop", Err(Errno::LOOP)),
        ("dangling", Err(Errno::NOENT)),
        ("dangling-out", Err(Errno::NOENT)),
        ("absent/x", Err(Errno::NOENT)),
        ("current/absent", Err(Errno::NOENT)),
        ("real/file/x", Err(Errno::NOTDIR)),
        ("current/file/x", Err(Errno::NOTDIR)),
    ];
    for (name, opening) in WAYS {
        for top in [&top, &alias] {
            let volume = Volume::open(top, opening).unwrap();
            for (way, expected) in cases {
                // The kernel wants to be asked again if anything anywhere is renamed while it goes through `..`.
                let held = std::iter::repeat_with(|| volume.hold(Path::new(way)))
                    .find(|held| !matches!(held, Err(Errno::AGAIN)))
                    .unwrap();
                let found = held.map(|fd| fs::fstat(&fd).unwrap().st_ino);
                let expected = expected.map(|p| inode(&top.join(p)));
                assert_eq!(found, expected, "{name}: {way} in {top:?}");
            }
        }
    }
}

#[test]
fn a_way_without_links_leads_nowhere_else() {
    let base = tempfile::tempdir().unwrap();
    let top = base.path().join("vol");
    std::fs::create_dir_all(top.join("dir/sub")).unwrap();
    link("dir", &top.join("inside"));
    let root = fs::open(&top, HOLD, Mode::empty()).unwrap();
    for (name, opening) in WAYS {
        for (way, expected) in [
            ("dir/sub", Ok(())),
            ("./dir", Ok(())),
            (".", Ok(())),
            ("inside", Err(Errno::LOOP)),
            ("inside/sub", Err(Errno::LOOP)),
            ("..", Err(Errno::XDEV)),
            ("/", Err(Errno::XDEV)),
            ("absent", Err(Errno::NOENT)),
        ] {
            let held = (opening.plain)(root.as_fd(), Path::new(way));
            assert_eq!(held.map(drop), expected, "{name}: {way}");
        }
    }
}

#[test]
fn missing_directories_are_made_inside_and_as_open_as_the_volume() {
    let base = tempfile::tempdir().unwrap();
    let top = base.path().join("vol");
    std::fs::create_dir_all(top.join("real")).unwrap();
    std::fs::write(top.join("file"), "x").unwrap();
    crate::disk::set_mode(&top, 0o2775).unwrap();
    link("real", &top.join("inside"));
    link(top.join("real"), &top.join("current"));
    link("../new", &top.join("dangling-out"));
    link("new", &top.join("dangling-in"));
    link(top.join("new"), &top.join("dangling-back"));
    link("..", &top.join("outside"));
    hold_or_make(&top, Path::new("inside/a/b")).unwrap();
    hold_or_make(&top, Path::new("current/c/d")).unwrap();
    let mode = |p: &str| std::fs::metadata(top.join(p)).unwrap().mode() & 0o7777;
    for made in ["real/a", "real/a/b", "real/c", "real/c/d"] {
        assert_eq!(mode(made), 0o2775, "{made}");
    }
    for (bad, step) in [
        ("dangling-out", PartStep::Make),
        ("dangling-out/x", PartStep::Make),
        ("dangling-in", PartStep::Make),
        ("dangling-in/x", PartStep::Make),
        ("dangling-back", PartStep::Make),
        ("dangling-back/x", PartStep::Make),
        ("outside/new", PartStep::Make),
        ("outside", PartStep::Show),
        ("outside/vol/../..", PartStep::Show),
        ("file/x", PartStep::Show),
    ] {
        let told = hold_or_make(&top, Path::new(bad)).unwrap_err();
        assert_eq!(told.step, step, "{bad}: {told}");
    }
    assert!(hold_or_make(&top, Path::new("/new")).is_err());
    let names = std::fs::read_dir(base.path()).unwrap().count();
    assert_eq!(names, 1, "only the volume itself");
    assert!(!top.join("new").exists(), "nor what a link names");
}

/// Swaps two names as fast as it can until told to end.
struct Swapper {
    end: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Swapper {
    fn start(a: PathBuf, b: PathBuf) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let ended = end.clone();
        let swap = move || {
            while !ended.load(Ordering::Relaxed) {
                fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
            }
        };
        Self {
            end,
            thread: Some(std::thread::spawn(swap)),
        }
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A volume in which a directory and a link that leads out change places all the time.
struct Contest {
    base: tempfile::TempDir,
    top: PathBuf,
    /// The one directory that may be held.
    inside: u64,
    swapper: Swapper,
}

/// One way is straight. The other one leads through a link that leaves the volume and comes back, so that it is
/// looked up by name first.
const CONTESTED: [&str; 2] = ["dir", "back"];

fn contest() -> Contest {
    let base = tempfile::tempdir().unwrap();
    let top = base.path().join("vol");
    std::fs::create_dir_all(top.join("dir/sub")).unwrap();
    std::fs::create_dir_all(base.path().join("outside/sub")).unwrap();
    link("../outside", &top.join("other"));
    link(top.join("dir"), &top.join("back"));
    let inside = inode(&top.join("dir/sub"));
    let swapper = Swapper::start(top.join("dir"), top.join("other"));
    Contest {
        base,
        top,
        inside,
        swapper,
    }
}

#[test]
fn swapped_links_never_lead_out() {
    const TRIES: usize = 25_000;
    let Contest {
        base: _base,
        top,
        inside,
        swapper,
    } = contest();
    for (name, opening) in WAYS {
        let volume = Volume::open(&top, opening).unwrap();
        for way in CONTESTED {
            let (mut held, mut refused) = (0, 0);
            let part = Path::new(way).join("sub");
            for i in 0..TRIES {
                match volume.hold(&part) {
                    Ok(fd) => {
                        held += 1;
                        let ino = fs::fstat(&fd).unwrap().st_ino;
                        assert_eq!(ino, inside, "{name}: {way}, try {i}");
                    }
                    Err(Errno::XDEV | Errno::NOENT | Errno::AGAIN | Errno::NOTDIR) => refused += 1,
                    Err(e) => panic!("{name}: {way}, try {i}: {e}"),
                }
            }
            let counts = format!("{name}: {way}: {held} held, {refused} refused");
            assert!(held > 0 && refused > 0, "{counts}");
        }
    }
    drop(swapper);
    let fd = hold_or_make(&top, Path::new("dir/sub"))
        .or_else(|_| hold_or_make(&top, Path::new("other/sub")));
    assert_eq!(fs::fstat(fd.unwrap()).unwrap().st_ino, inside);
}

#[test]
fn nothing_is_made_outside_while_links_are_swapped() {
    const TRIES: usize = 20_000;
    let Contest {
        base, top, swapper, ..
    } = contest();
    for i in 0..TRIES {
        let way = CONTESTED[i % CONTESTED.len()];
        // Refused now and then: the way led out at that moment.
        let _ = hold_or_make(&top, &Path::new(way).join(format!("{way}-{i}")));
    }
    drop(swapper);
    let names: Vec<_> = std::fs::read_dir(base.path().join("outside"))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["sub"]);
    // A good part must have hit the directory, else nothing was tried.
    let names: Vec<_> = [top.join("dir"), top.join("other")]
        .iter()
        .flat_map(|dir| std::fs::read_dir(dir).unwrap())
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    for way in CONTESTED {
        let made = names.iter().filter(|n| n.starts_with(way)).count();
        assert!(made > 10, "{way}: {made}");
    }
}
