//! The texts of `/proc`, `/sys` and `/etc` the facts come from.

/// How many numbers a kernel list such as `0-3,8` holds.
pub(super) fn list_length(text: &str) -> Option<u32> {
    let mut length: u32 = 0;
    for part in text.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        length = length.checked_add(to.checked_sub(from)?.checked_add(1)?)?;
    }
    Some(length)
}

/// Bytes of one line of `/proc/meminfo`, 0 if it is not there.
pub(super) fn meminfo(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| {
        let (key, rest) = line.split_once(':')?;
        (key == name).then_some(rest)
    });
    let kilobytes = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok());
    kilobytes.unwrap_or(0_u64).saturating_mul(1024)
}

/// The size in bytes that the name of a directory such as `hugepages-2048kB` tells.
pub(crate) fn huge_page_size(directory: &str) -> Option<u64> {
    let kilobytes = directory.strip_prefix("hugepages-")?.strip_suffix("kB")?;
    kilobytes.parse::<u64>().ok()?.checked_mul(1024)
}

/// The name of the operating system in an `os-release` file.
pub(super) fn pretty_name(os_release: &str) -> String {
    let line = os_release
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("PRETTY_NAME="));
    match line {
        Some(value) => value.trim_end().trim_matches('"').to_owned(),
        None => "Linux".to_owned(),
    }
}

/// The name container images use for a processor architecture.
pub(super) fn architecture(rust_name: &str) -> &str {
    match rust_name {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        same => same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        for (text, count) in [
            ("0\n", Some(1)),
            ("0-1", Some(2)),
            ("0-3,8,10-11\n", Some(7)),
            ("", None),
            ("3-1", None),
            ("a", None),
        ] {
            assert_eq!(list_length(text), count, "{text:?}");
        }
    }

    #[test]
    fn memory_is_found_by_its_whole_name() {
        let text = "MemTotal:        24 kB\nSwapCached:       9 kB\nSwapTotal:       3 kB\n";
        assert_eq!(meminfo(text, "MemTotal"), 24 * 1024);
        assert_eq!(meminfo(text, "SwapTotal"), 3 * 1024);
        assert_eq!(meminfo(text, "Swap"), 0);
        assert_eq!(meminfo("SwapTotal: lots\n", "SwapTotal"), 0);
    }

    #[test]
    fn names_of_systems_and_sizes() {
        assert_eq!(
            pretty_name("ID=x\nPRETTY_NAME=\"Some OS 12\"\n"),
            "Some OS 12"
        );
        assert_eq!(pretty_name("PRETTY_NAME=Plain\n"), "Plain");
        assert_eq!(pretty_name("ID=x\n"), "Linux");
        assert_eq!(huge_page_size("hugepages-2048kB"), Some(2 << 20));
        assert_eq!(huge_page_size("hugepages-x"), None);
        assert_eq!(architecture("x86_64"), "amd64");
        assert_eq!(architecture("riscv64"), "riscv64");
    }
}
