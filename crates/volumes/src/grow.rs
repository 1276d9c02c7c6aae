//! File systems that are smaller than the disk they are on, because the disk has grown. They follow once they are
//! mounted for the node.

use std::path::Path;
use std::time::Duration;

use krablet_linux::Tools;

use crate::tool::{Failed, try_run};

const DEADLINE: Duration = Duration::from_secs(60);
/// Growing takes longer the more there is to grow.
const LONG_DEADLINE: Duration = Duration::from_secs(600);

/// A mounted file system.
pub(crate) struct Mounted<'a> {
    pub device: &'a str,
    /// As it was found on the device.
    pub format: &'a str,
    pub point: &'a Path,
}

/// What makes a file system as large as its device.
#[derive(Debug, PartialEq, Eq)]
struct Growth {
    program: &'static str,
    arguments: Vec<String>,
    /// What its failure speaks of.
    of: String,
}

impl Mounted<'_> {
    /// None for a file system that cannot grow while it is mounted. The programs of ext and XFS leave one alone that is
    /// as large as its device.
    fn growth(&self) -> Option<Growth> {
        let point = self.point.display().to_string();
        let (program, arguments): (_, &[&str]) = match self.format {
            "ext3" | "ext4" => ("resize2fs", &[self.device]),
            "xfs" => ("xfs_growfs", &["-d", &point]),
            "btrfs" => ("btrfs", &["filesystem", "resize", "max", &point]),
            _ => return None,
        };
        let of = match program {
            "resize2fs" => self.device.to_owned(),
            _ => point.clone(),
        };
        let arguments = arguments.iter().map(|a| (*a).to_owned()).collect();
        Some(Growth {
            program,
            arguments,
            of,
        })
    }

    /// Lets it follow its disk. One that cannot is told of and as good to use as before.
    pub async fn grow(&self, tools: &dyn Tools) {
        let Some(growth) = self.growth() else {
            return;
        };
        if !self.may_grow(tools).await {
            return;
        }
        let Growth {
            program,
            arguments,
            of,
        } = growth;
        if let Err(failed) = try_run(tools, program, &arguments, LONG_DEADLINE).await {
            let Failed { status, output, .. } = failed;
            let err = format!("resize of device {of} failed: {status}. {program} output: {output}");
            tracing::warn!(err, "A file system did not follow its disk");
        }
    }

    async fn may_grow(&self, tools: &dyn Tools) -> bool {
        let asked = async |program: &str, arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
            let said = try_run(tools, program, &arguments, DEADLINE).await;
            said.inspect_err(|failed| {
                let (err, device) = (&failed.status, self.device);
                tracing::warn!(
                    device,
                    program,
                    err,
                    "Could not tell whether a disk has grown"
                );
            })
            .ok()
        };
        let writable = asked("blockdev", &["--getro", self.device]).await;
        if writable.as_deref().map(str::trim) != Some("0") {
            return false;
        }
        if self.format != "btrfs" {
            return true;
        }
        let Some(size) = asked("blockdev", &["--getsize64", self.device]).await else {
            return false;
        };
        let about = ["inspect-internal", "dump-super", "-f", self.device];
        let about = asked("btrfs", &about).await;
        about.is_some_and(|about| has_room(&size, &about).unwrap_or(false))
    }
}

/// Whether a device of this size has more than a block for which its btrfs has no use. None if that is not said.
fn has_room(size: &str, about: &str) -> Option<bool> {
    let value = |key: &str| {
        let mut lines = about.lines().map(str::split_whitespace);
        let words = lines.find_map(|mut words| (words.next() == Some(key)).then_some(words));
        words?.next()?.parse::<u64>().ok()
    };
    let used = value("total_bytes")?.checked_add(value("sectorsize")?)?;
    Some(size.trim().parse::<u64>().ok()? > used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_linux::ToolOutput;
    use krablet_linux::fake::FakeTools;

    const SUPER: &str = "superblock: bytenr=65536, device=/dev/x\n---\nsectorsize\t\t4096\ntotal_bytes\t\t1000000\ndev_item.total_bytes\t7\n";

    /// What is run for a file system, beside the question whether its device can be written to.
    async fn ran(format: &str, getro: &'static str, size: &'static str) -> Vec<String> {
        let tools = FakeTools::answering(move |line| {
            let text = match line {
                "blockdev --getro /dev/x" => getro,
                "blockdev --getsize64 /dev/x" => size,
                "btrfs inspect-internal dump-super -f /dev/x" => SUPER,
                _ => "",
            };
            Ok(ToolOutput {
                code: Some(0),
                text: text.to_owned(),
            })
        });
        let mounted = Mounted {
            device: "/dev/x",
            format,
            point: Path::new("/p"),
        };
        mounted.grow(&tools).await;
        let ran = tools.ran().into_iter();
        ran.filter(|line| !line.contains("--getro")).collect()
    }

    #[tokio::test]
    async fn each_file_system_by_its_own_program() {
        for (format, expected) in [
            ("ext3", &["resize2fs /dev/x"][..]),
            ("ext4", &["resize2fs /dev/x"]),
            ("xfs", &["xfs_growfs -d /p"]),
            ("vfat", &[]),
        ] {
            assert_eq!(ran(format, "0\n", "").await, expected, "{format}");
        }
        for getro in ["1\n", "", "what"] {
            assert!(ran("ext4", getro, "").await.is_empty(), "{getro}");
        }
    }

    #[tokio::test]
    async fn btrfs_is_asked_first() {
        for (size, grows) in [
            ("1000000\n", false),
            ("1004096\n", false),
            ("1004097\n", true),
            ("many", false),
        ] {
            let ran = ran("btrfs", "0\n", size).await;
            let grown = ran.contains(&"btrfs filesystem resize max /p".to_owned());
            assert_eq!(grown, grows, "{size}: {ran:?}");
        }
        assert_eq!(has_room("9", "total_bytes 4\n"), None);
        assert_eq!(has_room("9", "total_bytes 4\nsectorsize x\n"), None);
    }

    #[tokio::test]
    async fn what_does_not_grow_is_used_as_it_is() {
        let broken = FakeTools::answering(|line| {
            let code = i32::from(line.starts_with("resize2fs"));
            Ok(ToolOutput {
                code: Some(code),
                text: "0".to_owned(),
            })
        });
        let missing = FakeTools::answering(|_| Err(std::io::ErrorKind::NotFound.into()));
        for tools in [broken, missing] {
            let mounted = Mounted {
                device: "/dev/x",
                format: "ext4",
                point: Path::new("/p"),
            };
            mounted.grow(&tools).await;
            assert!(!tools.ran().is_empty());
        }
    }
}
