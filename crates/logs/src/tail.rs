//! Where the last lines of a file begin, without reading all of it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const BLOCK: u64 = 64 * 1024;

/// The offset of the last `lines` lines. What follows the last end of line is no line yet.
pub(crate) fn start_of_tail(file: &File, lines: u64) -> io::Result<u64> {
    let mut right = file.metadata()?.len();
    let mut block = vec![0; usize::try_from(BLOCK.min(right)).unwrap_or_default()];
    let mut ends = 0;
    while right > 0 {
        let left = right.saturating_sub(BLOCK);
        let part = &mut block[..usize::try_from(right - left).unwrap_or_default()];
        file.read_exact_at(part, left)?;
        for (at, _) in part.iter().enumerate().rev().filter(|(_, b)| **b == b'\n') {
            // The line after this end is the first of those wanted.
            if ends == lines {
                return Ok(left + at as u64 + 1);
            }
            ends += 1;
        }
        right = left;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn file(text: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        file
    }

    #[test]
    fn the_last_lines() {
        let cases: [(&str, u64, u64); 8] = [
            ("", 3, 0),
            ("a\nb\nc\n", 0, 6),
            ("a\nb\nc\n", 1, 4),
            ("a\nb\nc\n", 3, 0),
            ("a\nb\nc\n", 4, 0),
            ("a\nb\nc", 0, 4),
            ("a\nb\nc", 1, 2),
            ("abc", 1, 0),
        ];
        for (text, lines, expected) in cases {
            let found = start_of_tail(&file(text.as_bytes()), lines).unwrap();
            assert_eq!(found, expected, "{text:?} {lines}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        #[test]
        fn over_many_blocks(lengths in proptest::collection::vec(0usize..30_000, 1..20), lines in 0u64..22) {
            let text: Vec<u8> = lengths.iter().flat_map(|n| {
                let mut line = vec![b'x'; *n];
                line.push(b'\n');
                line
            }).collect();
            let skipped = lengths.len().saturating_sub(usize::try_from(lines).unwrap());
            let expected: usize = lengths[..skipped].iter().map(|n| n + 1).sum();
            prop_assert_eq!(start_of_tail(&file(&text), lines).unwrap(), expected as u64);
        }
    }
}
