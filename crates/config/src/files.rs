//! The few things configuration needs from a file system, behind a trait so that tests need none.

use std::io;
use std::path::{Path, PathBuf};

/// Configuration files are a few kilobytes; more is a mistake, such as a device or a log.
const MAX_BYTES: u64 = 3 << 20;

/// Reads configuration files.
pub trait ConfigFiles {
    /// The whole content of a file.
    ///
    /// # Errors
    /// As the file system has them.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// All files under a directory, its sub-directories included, in lexical order of their paths as a walk meets
    /// them: the entries of each directory sorted by name.
    ///
    /// # Errors
    /// As the file system has them.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;

    /// The path seen from the root; relative ones start at the working directory.
    ///
    /// # Errors
    /// When the working directory is gone.
    fn absolute(&self, path: &Path) -> io::Result<PathBuf>;
}

/// The real file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct StdFiles;

impl ConfigFiles for StdFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        use std::io::Read as _;
        let mut bytes = Vec::new();
        std::fs::File::open(path)?
            .take(MAX_BYTES + 1)
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("larger than {MAX_BYTES} bytes"),
            ));
        }
        Ok(bytes)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        walk(dir, &mut found)?;
        Ok(found)
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        std::path::absolute(path)
    }
}

/// Links are listed as files and not followed into directories, so a walk always ends.
fn walk(dir: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut entries = std::fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), found)?;
        } else {
            found.push(entry.path());
        }
    }
    Ok(())
}
