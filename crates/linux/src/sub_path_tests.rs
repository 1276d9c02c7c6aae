use super::*;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags};

type Hold = fn(BorrowedFd<'_>, &Path) -> rustix::io::Result<OwnedFd>;

const WAYS: [(&str, Hold); 2] = [("one call", hold), ("steps", hold_stepwise)];

fn inode(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().ino()
}

#[test]
fn ways_that_stay_inside_and_ways_that_do_not() {
    let base = tempfile::tempdir().unwrap();
    let top = base.path().join("vol");
    std::fs::create_dir_all(top.join("real/deep")).unwrap();
    std::fs::write(top.join("real/file"), "x").unwrap();
    let link = |target: &str, name: &str| symlink(target, top.join(name)).unwrap();
    link("real", "inside");
    link("real/deep/../file", "round");
    link("../vol/real", "out-and-back");
    link("..", "outside");
    link("/etc", "absolute");
    link("loop", "loop");
    link("nowhere", "dangling");
    let root = fs::open(&top, HOLD, Mode::empty()).unwrap();
    let cases = [
        ("real", Ok("real")),
        ("inside/file", Ok("real/file")),
        ("inside/deep/../file", Ok("real/file")),
        ("round", Ok("real/file")),
        ("./real/.", Ok("real")),
        (".", Ok("")),
        ("out-and-back", Err(Errno::XDEV)),
        ("outside", Err(Errno::XDEV)),
        ("absolute", Err(Errno::XDEV)),
        ("..", Err(Errno::XDEV)),
        ("real/../../vol/real", Err(Errno::XDEV)),
        ("loop", Err(Errno::LOOP)),
        ("dangling", Err(Errno::NOENT)),
        ("absent/x", Err(Errno::NOENT)),
        ("real/file/x", Err(Errno::NOTDIR)),
    ];
    for (name, hold) in WAYS {
        for (way, expected) in cases {
            // The kernel wants to be asked again if anything anywhere is renamed while it goes through `..`.
            let held = std::iter::repeat_with(|| hold(root.as_fd(), Path::new(way)))
                .find(|held| !matches!(held, Err(Errno::AGAIN)))
                .unwrap();
            let found = held.map(|fd| fs::fstat(&fd).unwrap().st_ino);
            let expected = expected.map(|p| inode(&top.join(p)));
            assert_eq!(found, expected, "{name}: {way}");
        }
    }
}

#[test]
fn missing_directories_are_made_inside_and_as_open_as_the_volume() {
    let base = tempfile::tempdir().unwrap();
    let top = base.path().join("vol");
    std::fs::create_dir_all(top.join("real")).unwrap();
    crate::disk::set_mode(&top, 0o2775).unwrap();
    symlink("real", top.join("inside")).unwrap();
    symlink("../new", top.join("dangling-out")).unwrap();
    symlink("new", top.join("dangling-in")).unwrap();
    symlink("..", top.join("outside")).unwrap();
    hold_or_make(&top, Path::new("inside/a/b")).unwrap();
    let mode = |p: &str| std::fs::metadata(top.join(p)).unwrap().mode() & 0o7777;
    assert_eq!(mode("real/a"), 0o2775);
    assert_eq!(mode("real/a/b"), 0o2775);
    for bad in ["dangling-out/x", "dangling-in/x", "outside/new", "/new"] {
        assert!(hold_or_make(&top, Path::new(bad)).is_err(), "{bad}");
    }
    let names = std::fs::read_dir(base.path()).unwrap().count();
    assert_eq!(names, 1, "only the volume itself");
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
fn contested() -> (tempfile::TempDir, PathBuf, Swapper) {
    let base = tempfile::tempdir().unwrap();
    let top = base.path().join("vol");
    std::fs::create_dir_all(top.join("dir/sub")).unwrap();
    std::fs::create_dir_all(base.path().join("outside/sub")).unwrap();
    symlink("../outside", top.join("other")).unwrap();
    let swapper = Swapper::start(top.join("dir"), top.join("other"));
    (base, top, swapper)
}

#[test]
fn swapped_links_never_lead_out() {
    const TRIES: usize = 100_000;
    let (base, top, swapper) = contested();
    let inside = |ino: u64| {
        // The one directory goes by two names in turn.
        let found = [top.join("dir/sub"), top.join("other/sub")].map(|p| inode(&p));
        found.contains(&ino)
    };
    let outside = inode(&base.path().join("outside/sub"));
    let root = fs::open(&top, HOLD, Mode::empty()).unwrap();
    let (mut held, mut refused) = (0, 0);
    for i in 0..TRIES {
        let (_, hold) = WAYS[i % WAYS.len()];
        match hold(root.as_fd(), Path::new("dir/sub")) {
            Ok(fd) => {
                held += 1;
                let ino = fs::fstat(&fd).unwrap().st_ino;
                assert_ne!(ino, outside, "try {i}");
            }
            Err(Errno::XDEV | Errno::NOENT | Errno::AGAIN | Errno::NOTDIR) => refused += 1,
            Err(e) => panic!("try {i}: {e}"),
        }
    }
    assert!(held > 0 && refused > 0, "{held} held, {refused} refused");
    drop(swapper);
    let fd = hold_or_make(&top, Path::new("dir/sub"))
        .or_else(|_| hold_or_make(&top, Path::new("other/sub")));
    assert!(inside(fs::fstat(fd.unwrap()).unwrap().st_ino));
}

#[test]
fn nothing_is_made_outside_while_links_are_swapped() {
    const TRIES: usize = 20_000;
    let (base, top, swapper) = contested();
    for i in 0..TRIES {
        let way = PathBuf::from(format!("dir/made-{i}"));
        // Refused now and then: the way led out at that moment.
        let _ = hold_or_make(&top, &way);
    }
    drop(swapper);
    let names: Vec<_> = std::fs::read_dir(base.path().join("outside"))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["sub"]);
    // A quarter or so must have hit the directory, else nothing was tried.
    let made = [top.join("dir"), top.join("other")].map(|d| std::fs::read_dir(d).unwrap().count());
    assert!(made.iter().max() > Some(&10), "{made:?}");
}
