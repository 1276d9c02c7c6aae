//! `/proc/self/mountinfo`, read as text into values.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::failure::naming;

pub(crate) const TABLE: &str = "/proc/self/mountinfo";

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInfo {
    /// `major:minor` of the file system.
    pub device: String,
    /// What of the file system is shown here; `/` unless it is a bind mount.
    pub root: PathBuf,
    pub point: PathBuf,
    pub fs_type: String,
    pub source: PathBuf,
    /// Options of the file system, comma separated.
    pub super_options: String,
}

/// Every line that is one; a line that is not is left out rather than hiding the others.
pub fn parse(table: &[u8]) -> Vec<MountInfo> {
    table
        .split(|b| *b == b'\n')
        .filter_map(parse_line)
        .collect()
}

/// `id parent major:minor root point options optional* - type source superoptions`.
fn parse_line(line: &[u8]) -> Option<MountInfo> {
    let mut fields = line.split(|b| *b == b' ');
    let mut next = || fields.next();
    let (_id, _parent) = (next()?, next()?);
    let device = text(next()?);
    let root = path(next()?);
    let point = path(next()?);
    let _options = next()?;
    // Optional fields: any number, ended by a lone dash.
    while next()? != b"-" {}
    let fs_type = text(next()?);
    let source = path(next()?);
    let super_options = text(next().unwrap_or_default());
    Some(MountInfo {
        device,
        root,
        point,
        fs_type,
        source,
        super_options,
    })
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

fn path(field: &[u8]) -> PathBuf {
    OsString::from_vec(unescape(field)).into()
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let (byte, after) = match octal(rest) {
            Some(byte) => (byte, &rest[4..]),
            None => (first, tail),
        };
        out.push(byte);
        rest = after;
    }
    out
}

fn octal(at: &[u8]) -> Option<u8> {
    let [b'\\', a, b, c, ..] = at else {
        return None;
    };
    let digit = |d: &u8| matches!(d, b'0'..=b'7').then(|| u32::from(d - b'0'));
    let value = digit(a)? * 64 + digit(b)? * 8 + digit(c)?;
    u8::try_from(value).ok()
}

/// The mount table of this process, now.
pub(crate) fn read() -> io::Result<Vec<MountInfo>> {
    let table = Path::new(TABLE);
    let bytes = std::fs::read(table).map_err(naming("read", table))?;
    Ok(parse(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_and_without_optional_fields() {
        let table = b"22 27 0:21 / /proc rw,relatime - proc proc rw\n\
            40 31 0:37 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 master:1 - cgroup cgroup rw,cpu,cpuacct\n\
            41 31 8:1 /srv/data /mnt/x rw - ext4 /dev/sda1\n";
        let seen: Vec<_> = parse(table)
            .into_iter()
            .map(|m| {
                let point = m.point.display().to_string();
                let root = m.root.display().to_string();
                (m.device, root, point, m.fs_type, m.super_options)
            })
            .collect();
        let own = |s: [&str; 5]| {
            let [a, b, c, d, e] = s.map(str::to_owned);
            (a, b, c, d, e)
        };
        assert_eq!(
            seen,
            [
                own(["0:21", "/", "/proc", "proc", "rw"]),
                own([
                    "0:37",
                    "/",
                    "/sys/fs/cgroup/cpu,cpuacct",
                    "cgroup",
                    "rw,cpu,cpuacct"
                ]),
                own(["8:1", "/srv/data", "/mnt/x", "ext4", ""]),
            ]
        );
    }

    #[test]
    fn octal_escapes() {
        let cases: [(&[u8], &[u8]); 7] = [
            (b"/a\\040b", b"/a b"),
            (b"/t\\011n\\012", b"/t\tn\n"),
            (b"/back\\134040", b"/back\\040"),
            (b"/high\\377", b"/high\xff"),
            (b"/not\\400", b"/not\\400"),
            (b"/short\\04", b"/short\\04"),
            (b"/other\\x41", b"/other\\x41"),
        ];
        for (written, meant) in cases {
            assert_eq!(unescape(written), meant);
        }
    }

    #[test]
    fn broken_lines_are_left_out() {
        for line in [
            "",
            "22 27",
            "22 27 0:21 / /proc rw shared:1",
            "22 27 0:21 / /p rw - proc",
        ] {
            assert_eq!(parse(line.as_bytes()), [], "{line:?}");
        }
        let table = b"garbage\n22 27 0:21 / /proc rw - proc proc rw";
        assert_eq!(parse(table).len(), 1);
    }

    proptest::proptest! {
        /// A line that is none costs the others nothing.
        #[test]
        fn any_table_is_read(noise in "([0-9: /\\\\a-z-]{0,40}\n|\\PC{0,20}\n){0,6}") {
            let own = "7 1 0:7 / /own rw - tmpfs t rw\n";
            let table = format!("{noise}{own}");
            let points: Vec<PathBuf> = parse(table.as_bytes()).into_iter().map(|m| m.point).collect();
            proptest::prop_assert_eq!(points.last(), Some(&PathBuf::from("/own")));
        }
    }
}
