//! The mounts below a bed's directory.

use std::ffi::{CString, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::{Spec, sys};

fn mounts_below(dir: &Path) -> Vec<Vec<u8>> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(unescape)
        .filter(|point| Path::new(OsStr::from_bytes(point)).starts_with(dir))
        .collect()
}

/// Mount points are written with `\ooo` for the characters that would break the table.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = if first == b'\\' { tail.get(..3) } else { None };
        let value = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|d| u8::from_str_radix(d, 8).ok());
        match value {
            Some(byte) => {
                plain.push(byte);
                rest = &tail[3..];
            }
            None => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    plain
}

pub fn unmount_all(spec: &Spec) -> Result<(), String> {
    // Mounts may be stacked, and a shared mount may bring another back into view.
    for _ in 0..16 {
        let points = mounts_below(&spec.dir);
        if points.is_empty() {
            return Ok(());
        }
        for point in points.into_iter().rev() {
            if let Ok(point) = CString::new(point) {
                sys::unmount(&point);
            }
        }
    }
    let count = mounts_below(&spec.dir).len();
    if count == 0 {
        Ok(())
    } else {
        Err(format!("{count} mounts below {} stay", spec.dir.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::unescape;

    #[test]
    fn mount_points_are_read_as_written() {
        assert_eq!(unescape(br"/a\040b\134c"), br"/a b\c");
        assert_eq!(unescape(br"/a\9"), br"/a\9");
    }
}
