//! Pages of files that this process has mapped: the program and its libraries. What was needed once, to start, stays in the
//! process's memory until it is given back; what is needed again is in the page cache and comes back by itself.

use std::io;
use std::ops::Range;

/// Gives back the pages of mapped files that nobody has written to. Tells how many bytes of address space they may be in.
#[allow(unsafe_code)]
pub fn release_file_pages() -> io::Result<usize> {
    let maps = std::fs::read_to_string("/proc/self/smaps")?;
    let mut released = 0;
    for range in clean_file_mappings(&maps) {
        let start = std::ptr::without_provenance_mut(range.start);
        let advice = rustix::mm::Advice::LinuxDontNeed;
        // SAFETY: the mapping is private, can't be written to and has no page that differs from its file, as the kernel
        // has just said; the next access reads the same bytes from the file again.
        unsafe { rustix::mm::madvise(start, range.len(), advice) }?;
        released += range.len();
    }
    Ok(released)
}

/// Of a process's `smaps`: the private, read-only mappings of files without a page of their own. The part of a program that
/// is relocated at its start is read-only too, but has such pages.
fn clean_file_mappings(smaps: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(mapping) = header(line) {
            current = mapping;
        } else if let Some(own) = line.strip_prefix("Anonymous:") {
            let range = current.take();
            found.extend(range.filter(|_| own.trim() == "0 kB"));
        }
    }
    found
}

/// The first line of a mapping; with its range, if the mapping may be given back.
fn header(line: &str) -> Option<Option<Range<usize>>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let range = address(start)?..address(end)?;
    let rights = fields.next()?;
    let inode = fields.nth(2)?;
    let clean = rights.starts_with('r') && !rights.contains('w') && rights.ends_with('p');
    Some((clean && inode != "0" && !range.is_empty()).then_some(range))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d000000000-55d000100000 r--p 00000000 fe:00 1234                       /usr/bin/kubelet
Size:               1024 kB
Rss:                 900 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
55d000100000-55d000900000 r-xp 00100000 fe:00 1234                       /usr/bin/kubelet
Rss:                8000 kB
Anonymous:             0 kB
55d000900000-55d000980000 r--p 00900000 fe:00 1234                       /usr/bin/kubelet
Rss:                 512 kB
Anonymous:           512 kB
55d000980000-55d000990000 rw-p 00980000 fe:00 1234                       /usr/bin/kubelet
Anonymous:             0 kB
7f0000000000-7f0000200000 r--s 00000000 fe:00 77                         /a/shared/file
Anonymous:             0 kB
7f0000200000-7f0000400000 r--p 00000000 00:00 0
Anonymous:             0 kB
7fff00000000-7fff00002000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
";

    #[test]
    fn what_is_clean_and_of_a_file_goes() {
        let expected = [
            0x55d0_0000_0000..0x55d0_0010_0000,
            0x55d0_0010_0000..0x55d0_0090_0000,
        ];
        assert_eq!(clean_file_mappings(SMAPS), expected);
    }

    #[test]
    fn odd_text_says_nothing() {
        for text in [
            "",
            "x-y",
            "Anonymous: 0 kB",
            "1-2 r--p",
            "2-1 r--p 0 0:0 5 /f\nAnonymous: 0 kB",
        ] {
            assert_eq!(clean_file_mappings(text), [], "{text}");
        }
    }

    /// This very test runs on, from the same code and the same constants.
    #[test]
    fn a_process_goes_on_without_its_pages() {
        let words = ["a constant", "of the program"].join(" ");
        assert!(release_file_pages().unwrap() > 0);
        assert_eq!(words, "a constant of the program");
        assert!(release_file_pages().unwrap() > 0);
    }
}
