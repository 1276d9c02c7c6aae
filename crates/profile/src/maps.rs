//! Which file is mapped where, and which build it is.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::ProfileError;

/// One part of a file that code is run from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
    pub file: String,
    /// Hexadecimal; empty if the file has none.
    pub build_id: String,
}

/// Headers and notes of a binary stand at its beginning.
const MOST_HEADER: u64 = 64 * 1024;

/// What this process runs code from.
pub fn mappings() -> Result<Vec<Mapping>, ProfileError> {
    let text = std::fs::read_to_string("/proc/self/maps").map_err(ProfileError::Mappings)?;
    let mut found = parse(&text);
    for mapping in &mut found {
        // What is no file, such as the kernel's own page, has no build either.
        mapping.build_id = build_id_of(Path::new(&mapping.file)).unwrap_or_default();
    }
    Ok(found)
}

/// Lines such as `55d0c000-55d0f000 r-xp 00002000 fe:00 1234   /usr/bin/name`.
fn parse(text: &str) -> Vec<Mapping> {
    let line = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let mut words = rest.splitn(5, ' ');
        let (rights, offset) = (words.next()?, words.next()?);
        let file = words.nth(2)?.trim_start();
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        rights.contains('x').then(|| {
            Some(Mapping {
                start: number(start)?,
                end: number(end)?,
                offset: number(offset)?,
                file: file.to_owned(),
                build_id: String::new(),
            })
        })?
    };
    text.lines().filter_map(line).collect()
}

fn build_id_of(file: &Path) -> io::Result<String> {
    let mut head = Vec::new();
    if file.is_absolute() {
        File::open(file)?.take(MOST_HEADER).read_to_end(&mut head)?;
    }
    Ok(build_id(&head).unwrap_or_default())
}

/// Numbers of a 64-bit little-endian ELF file, wherever they are in it.
struct Elf<'a>(&'a [u8]);

impl Elf<'_> {
    fn number(&self, at: u64, size: usize) -> Option<u64> {
        let at = usize::try_from(at).ok()?;
        let bytes = self.0.get(at..at.checked_add(size)?)?;
        let number = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Some(bytes.iter().rev().fold(0, number))
    }
}

/// The note of the GNU linker, from the beginning of a file.
fn build_id(head: &[u8]) -> Option<String> {
    const NOTE: u64 = 4;
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let elf = Elf(head);
    let (table, size, count) = (elf.number(32, 8)?, elf.number(54, 2)?, elf.number(56, 2)?);
    (0..count).find_map(|n| {
        let entry = table.checked_add(n * size)?;
        let is_note = elf.number(entry, 4)? == NOTE;
        let (start, length) = (elf.number(entry + 8, 8)?, elf.number(entry + 32, 8)?);
        let notes = start..start.checked_add(length)?;
        is_note.then(|| gnu_note(&elf, notes))?
    })
}

fn gnu_note(elf: &Elf<'_>, mut notes: std::ops::Range<u64>) -> Option<String> {
    const BUILD_ID: u64 = 3;
    while notes.start < notes.end {
        let at = notes.start;
        let (name, size) = (elf.number(at, 4)?, elf.number(at + 4, 4)?);
        let content = at.checked_add(12 + name.next_multiple_of(4))?;
        let is_gnu =
            name == 4 && elf.number(at + 12, 4)? == u64::from(u32::from_le_bytes(*b"GNU\0"));
        if is_gnu && elf.number(at + 8, 4)? == BUILD_ID {
            let bytes = (content..content.checked_add(size)?).map(|at| elf.number(at, 1));
            let hex = bytes.map(|byte| byte.map(|byte| format!("{byte:02x}")));
            return hex.collect();
        }
        notes.start = content.checked_add(size.next_multiple_of(4))?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_code_alone() {
        let text = "\
55d0b000-55d0c000 r--p 00000000 fe:00 1234                       /usr/bin/a name
55d0c000-55d0f000 r-xp 00001000 fe:00 1234                       /usr/bin/a name
7ffd1000-7ffd2000 r-xp 00000000 00:00 0                          [vdso]
7f001000-7f002000 rwxp 00000000 00:00 0 
nonsense
";
        let found = parse(text);
        let shown: Vec<String> = found
            .iter()
            .map(|m| format!("{:x}-{:x} {:x} {:?}", m.start, m.end, m.offset, m.file))
            .collect();
        assert_eq!(
            shown,
            [
                r#"55d0c000-55d0f000 1000 "/usr/bin/a name""#,
                r#"7ffd1000-7ffd2000 0 "[vdso]""#,
                r#"7f001000-7f002000 0 """#,
            ]
        );
    }

    fn elf(note: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32] = 64;
        file[54] = 56;
        file[56] = 1;
        let mut entry = vec![0; 56];
        entry[0] = 4;
        entry[8] = 120;
        entry[32] = u8::try_from(note.len()).unwrap();
        file.extend(entry);
        file.extend(note);
        file
    }

    #[test]
    fn the_build_of_a_file() {
        let other = b"\x04\0\0\0\x04\0\0\0\x01\0\0\0GNU\0abcd";
        let id = b"\x04\0\0\0\x03\0\0\0\x03\0\0\0GNU\0\x01\xab\xff\0";
        assert_eq!(
            build_id(&elf(&[&other[..], id].concat())).unwrap(),
            "01abff"
        );
        assert_eq!(build_id(&elf(other)), None);
        assert_eq!(build_id(b"#!/bin/sh"), None);
        // Whatever is cut off or overwritten is no reason to fall.
        let whole = elf(id);
        for cut in 0..whole.len() {
            let _ = build_id(&whole[..cut]);
            let mut odd = whole.clone();
            odd[cut] = 0xff;
            let _ = build_id(&odd);
        }
    }
}
