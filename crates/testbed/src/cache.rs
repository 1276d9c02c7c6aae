//! Where built things are kept: outside the tree, one directory per content, shared by every
//! process of the user.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

/// `$KRABLET_CACHE`, else `krablet/testbed` in the user's cache directory.
pub fn root() -> Result<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(dir) = set("KRABLET_CACHE") {
        return Ok(std::path::absolute(dir)?);
    }
    let base = set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .context("none of KRABLET_CACHE, XDG_CACHE_HOME and HOME is set")?;
    Ok(base.join("krablet/testbed"))
}

/// The directory of the sources that are not Rust: Go modules, C, scripts.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testbed")
}

/// A line that is seen while tests run, past the harness' capture.
pub fn progress(line: &str) {
    let _ = writeln!(std::io::stderr(), "testbed: {line}");
}

/// The hexadecimal SHA-256 of the pieces, each set apart from the next.
pub fn digest<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for piece in pieces {
        hash.update((piece.len() as u64).to_le_bytes());
        hash.update(piece);
    }
    hex(&hash.finalize())
}

/// The plain SHA-256 of some bytes, as image formats want it.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every file below a directory, by sorted path: what a digest of a source directory is made of.
pub fn tree(dir: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("reading {}", next.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(dir)?.to_string_lossy().into_owned();
                files.push((name, fs::read(&path)?));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// A file lock held until dropped; creates the file.
pub fn lock(name: &str) -> Result<File> {
    let (file, path) = open_lock(name)?;
    file.lock()
        .with_context(|| format!("locking {}", path.display()))?;
    Ok(file)
}

fn open_lock(name: &str) -> Result<(File, PathBuf)> {
    let path = lock_path(name)?;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    Ok((
        file.with_context(|| format!("opening {}", path.display()))?,
        path,
    ))
}

pub fn lock_path(name: &str) -> Result<PathBuf> {
    let dir = root()?.join("locks");
    fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    Ok(dir.join(format!("{name}.lock")))
}

/// The cached directory for that content; made by `make` if it does not exist yet.
///
/// `make` fills a directory beside the final one, which gets its name only when all went well, so
/// nothing half-built is ever found. Of several processes that ask at once one builds, the others wait.
pub fn entry(name: &str, key: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let root = root()?;
    let short = key.get(..16).unwrap_or(key);
    let done = place(name, key)?;
    if done.is_dir() {
        note_use(&done);
        return Ok(done);
    }
    let (lock, _) = open_lock(&format!("make-{name}"))?;
    if lock.try_lock().is_err() {
        progress(&format!("waiting for another process that makes {name}"));
        lock.lock()?;
    }
    if done.is_dir() {
        return Ok(done);
    }
    let work = root.join(format!(".{name}-{short}.part"));
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    fs::create_dir_all(&work)?;
    let start = std::time::Instant::now();
    progress(&format!("making {name} …"));
    make(&work).with_context(|| format!("making {name}"))?;
    fs::rename(&work, &done)?;
    forget_unused(&root, name);
    progress(&format!(
        "made {name} in {:.1} s",
        start.elapsed().as_secs_f32()
    ));
    Ok(done)
}

/// Whether [`entry`] would find that content made.
pub fn has(name: &str, key: &str) -> Result<bool> {
    Ok(place(name, key)?.is_dir())
}

fn place(name: &str, key: &str) -> Result<PathBuf> {
    let short = key.get(..16).unwrap_or(key);
    Ok(root()?.join(format!("{name}-{short}")))
}

/// An entry that nobody used for this long goes when another of its name is made.
const KEEP: Duration = Duration::from_secs(14 * 24 * 3600);

/// Marks an entry as in use, once an hour at most.
fn note_use(entry: &Path) {
    let age = fs::metadata(entry)
        .and_then(|meta| meta.modified())
        .ok()
        .and_then(|time| time.elapsed().ok());
    if age.is_some_and(|age| age > Duration::from_secs(3600)) {
        // A cache of somebody else's making cannot be marked, and need not be.
        let _ = File::open(entry).and_then(|dir| dir.set_modified(SystemTime::now()));
    }
}

fn forget_unused(root: &Path, name: &str) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        let key = file
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('-'));
        let ours = key
            .is_some_and(|key| key.len() == 16 && key.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let age = entry
            .metadata()
            .and_then(|meta| meta.modified())
            .ok()
            .and_then(|time| time.elapsed().ok());
        if ours && age.is_some_and(|age| age > KEEP) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Runs a command to its end; a failure carries what it printed.
pub fn run(command: &mut std::process::Command) -> Result<String> {
    let output = command
        .stdin(std::process::Stdio::null())
        .output()
        .with_context(|| format!("running {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!(
            "{} {:?}: {}\n{}{}",
            command.get_program().display(),
            command.get_args().collect::<Vec<_>>(),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_digest_do_not_run_together() {
        let one: [&[u8]; 2] = [b"ab", b"c"];
        let two: [&[u8]; 2] = [b"a", b"bc"];
        assert_ne!(digest(one), digest(two));
        assert_eq!(sha256(b"abc")[..16], *"ba7816bf8f01cfea");
    }
}
