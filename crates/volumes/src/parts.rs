//! What a disk on a network consists of, as the kernel shows it.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use krablet_linux::Files;

use crate::device::{self, BLOCK};
use crate::listing::names_in;

/// More than a device's number, or the mark of what device-mapper made.
const MAX_TEXT: usize = 512;
/// How that mark begins where a partition is meant (by `kpartx`).
const PARTITION: &str = "part";

/// A disk, as the kernel calls its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Parts {
    /// What joins the ways to it, e.g. `dm-3`.
    pub joined: Option<String>,
    /// E.g. `sdb`.
    pub ways: BTreeSet<String>,
}

/// A way to a disk, what joins them, or a partition of either.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub name: String,
    /// `major:minor`.
    pub number: Option<String>,
    /// What the kernel has built upon it.
    pub holders: Vec<String>,
}

impl Parts {
    /// All of the disk that has these devices. Names become part of command lines: what cannot be one is none.
    pub async fn of(files: &dyn Files, devices: BTreeSet<String>) -> io::Result<Self> {
        let devices: BTreeSet<String> = devices.into_iter().filter(|d| is_name(d)).collect();
        let paths: Vec<PathBuf> = devices.iter().map(|d| Path::new("/dev").join(d)).collect();
        let joined = device::multipath(files, &paths).await?;
        let joined = joined.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        let mut ways = devices;
        if let Some(joined) = &joined {
            let slaves = names_in(files, &Path::new(BLOCK).join(joined).join("slaves")).await?;
            ways.extend(slaves.into_iter().filter(|way| is_name(way)));
            ways.remove(joined);
        }
        Ok(Self { joined, ways })
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.ways.iter().chain(&self.joined)
    }

    /// Every device of it, with its partitions.
    pub async fn devices(&self, files: &dyn Files) -> io::Result<Vec<Part>> {
        let mut found = Vec::new();
        for way in &self.ways {
            let dir = Path::new(BLOCK).join(way);
            let below = names_in(files, &dir).await?.into_iter();
            for partition in below.filter(|name| name.starts_with(way.as_str())) {
                found.push(part(files, &dir.join(&partition), partition).await?);
            }
            found.push(part(files, &dir, way.clone()).await?);
        }
        if let Some(joined) = &self.joined {
            let whole = part(files, &Path::new(BLOCK).join(joined), joined.clone()).await?;
            for holder in &whole.holders {
                let dir = Path::new(BLOCK).join(holder);
                let mark = text(files, &dir.join("dm/uuid")).await?;
                if mark.is_some_and(|mark| mark.starts_with(PARTITION)) {
                    found.push(part(files, &dir, holder.clone()).await?);
                }
            }
            found.push(whole);
        }
        Ok(found)
    }
}

async fn part(files: &dyn Files, dir: &Path, name: String) -> io::Result<Part> {
    Ok(Part {
        name,
        number: text(files, &dir.join("dev")).await?,
        holders: names_in(files, &dir.join("holders")).await?,
    })
}

/// None if the device has gone.
async fn text(files: &dyn Files, path: &Path) -> io::Result<Option<String>> {
    match files.read(path, MAX_TEXT).await {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !name.is_empty() && !name.starts_with('-') && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_linux::EntryKind;
    use krablet_linux::fake::MemoryFiles;

    fn put(files: &MemoryFiles, below_block: &str, text: Option<&str>) {
        let path = Path::new(BLOCK).join(below_block);
        match text {
            Some(text) => files.put_file(&path, format!("{text}\n").as_bytes()),
            None => files.put(&path, EntryKind::Directory),
        }
        .unwrap();
    }

    async fn of(files: &MemoryFiles, devices: &[&str]) -> Parts {
        let devices = devices.iter().map(|d| (*d).to_owned()).collect();
        Parts::of(files, devices).await.unwrap()
    }

    #[tokio::test]
    async fn a_disk_is_all_of_its_ways() {
        let files = MemoryFiles::default();
        for slave in ["dm-3/slaves/sda", "dm-3/slaves/sdb", "sdc"] {
            put(&files, slave, None);
        }
        for (devices, joined, ways) in [
            (&["sda"][..], Some("dm-3"), &["sda", "sdb"][..]),
            (&["dm-3"], Some("dm-3"), &["sda", "sdb"]),
            // One that is not joined is a way of it all the same.
            (&["sdb", "sdc"], Some("dm-3"), &["sda", "sdb", "sdc"]),
            (&["sdc", "sdd"], None, &["sdc", "sdd"]),
            (&["a b", "-x", "$(x)", ""], None, &[]),
        ] {
            let expected = Parts {
                joined: joined.map(str::to_owned),
                ways: ways.iter().map(|w| (*w).to_owned()).collect(),
            };
            assert_eq!(of(&files, devices).await, expected, "{devices:?}");
        }
    }

    #[tokio::test]
    async fn partitions_are_devices_of_the_disk_and_what_is_built_upon_it_is_not() {
        let files = MemoryFiles::default();
        for (path, text) in [
            ("sda/dev", Some("8:0")),
            ("sda/holders/dm-3", None),
            ("sda/queue", None),
            ("sda/sda1/dev", Some("8:1")),
            ("sda/sda1/holders/md0", None),
            ("dm-3/slaves/sda", None),
            ("dm-3/dev", Some("253:3")),
            ("dm-3/holders/dm-4", None),
            ("dm-3/holders/dm-5", None),
            ("dm-4/dev", Some("253:4")),
            ("dm-4/dm/uuid", Some("part1-mpath-3600")),
            ("dm-5/dev", Some("253:5")),
            ("dm-5/dm/uuid", Some("LVM-x")),
        ] {
            put(&files, path, text);
        }
        let found = of(&files, &["sda"]).await.devices(&files).await.unwrap();
        let part = |name: &str, number: &str, holders: &[&str]| Part {
            name: name.to_owned(),
            number: Some(number.to_owned()),
            holders: holders.iter().map(|h| (*h).to_owned()).collect(),
        };
        let expected = [
            part("sda1", "8:1", &["md0"]),
            part("sda", "8:0", &["dm-3"]),
            part("dm-4", "253:4", &[]),
            part("dm-3", "253:3", &["dm-4", "dm-5"]),
        ];
        assert_eq!(found, expected);
    }
}
