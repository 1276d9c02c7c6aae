//! What of a pod's volumes is on disk, written down in the pod's directory before it is there.

use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};

use krablet_linux::Files;
use krablet_pod::PodUid;
use krablet_pod::paths::RootDir;
use serde::{Deserialize, Serialize};

pub const RECORD_FILE: &str = "krablet-volumes.json";
const SET_ASIDE: &str = "krablet-volumes.json.unreadable";
const VERSION: u32 = 1;
const MODE: u32 = 0o600;
/// A pod may have thousands of volumes, not more.
const MAX_SIZE: usize = 4 << 20;

/// One volume that has something below the pod's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedVolume {
    pub name: String,
    /// Name of the plugin, e.g. `kubernetes.io/empty-dir`.
    pub plugin: String,
    /// Relative to the pod's directory, so that the root directory may move.
    pub path: PathBuf,
    /// A file system is mounted at `path`.
    pub mounted: bool,
    /// What the plugin has to know to take away what stands outside the pod's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<serde_json::Value>,
}

/// The directories of a pod in which its volumes stand.
pub(crate) const PLACES: [&str; 3] = ["volumes", "volume-subpaths", DEVICES];
/// Of those, the one for volumes that are devices.
pub(crate) const DEVICES: &str = "volumeDevices";

/// Version 1 of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    pub volumes: Vec<RecordedVolume>,
    /// Names of the persistent volumes that the pod has.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub persistent: BTreeSet<String>,
}

/// What stands where the record should.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Whole(Record),
    /// Torn, of another version, or not ours; why.
    Unreadable(String),
}

pub(crate) fn path(root: &RootDir, uid: &PodUid) -> PathBuf {
    root.pod(uid).join(RECORD_FILE)
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Record, String> {
    let record: Record = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    if record.version != VERSION {
        return Err(format!("version {} is not known", record.version));
    }
    match record.volumes.iter().find(|v| !stays_below(&v.path)) {
        Some(v) => Err(format!("path {} leads elsewhere", v.path.display())),
        None => Ok(record),
    }
}

/// A path inside one of the pod's directories for volumes and nowhere else.
fn stays_below(path: &Path) -> bool {
    PLACES.iter().any(|place| path.starts_with(place))
        && path
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

impl Record {
    /// Adds what is not in it yet; true if that changed it.
    pub(crate) fn add(
        &mut self,
        planned: Vec<RecordedVolume>,
        persistent: BTreeSet<String>,
    ) -> bool {
        let size = |record: &Self| (record.volumes.len(), record.persistent.len());
        let before = size(self);
        self.persistent.extend(persistent);
        for volume in planned {
            if !self.volumes.contains(&volume) {
                self.volumes.push(volume);
            }
        }
        size(self) != before
    }

    pub(crate) async fn write(
        mut self,
        files: &dyn Files,
        root: &RootDir,
        uid: &PodUid,
    ) -> io::Result<()> {
        self.version = VERSION;
        let bytes = serde_json::to_vec(&self)?;
        // No mount outlives the machine's going down, and so need no record of it.
        files.write_whole(&path(root, uid), &bytes, MODE).await
    }
}

pub(crate) async fn read(files: &dyn Files, root: &RootDir, uid: &PodUid) -> io::Result<Found> {
    match files.read(&path(root, uid), MAX_SIZE).await {
        Ok(bytes) => Ok(match parse(&bytes) {
            Ok(record) => Found::Whole(record),
            Err(why) => Found::Unreadable(why),
        }),
        Err(e) => match e.kind() {
            io::ErrorKind::NotFound => Ok(Found::Nothing),
            io::ErrorKind::FileTooLarge
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::IsADirectory => Ok(Found::Unreadable(e.to_string())),
            _ => Err(e),
        },
    }
}

/// Puts a record that cannot be read beside, where a person can look at it until the pod's
/// directory goes.
pub(crate) async fn set_aside(
    files: &dyn Files,
    root: &RootDir,
    uid: &PodUid,
    why: &str,
) -> io::Result<()> {
    let (from, to) = (path(root, uid), root.pod(uid).join(SET_ASIDE));
    tracing::warn!(podUID = %uid, path = %from.display(), why, "Record of volumes is not readable, set aside");
    files.remove_tree(&to).await?;
    files.rename(&from, &to).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(version: u32, path: &str) -> String {
        format!(
            r#"{{"version":{version},"volumes":[{{"name":"v","plugin":"p","path":"{path}","mounted":true}}]}}"#
        )
    }

    #[test]
    fn only_whole_records_of_this_version_that_stay_below_are_read() {
        assert!(parse(text(1, "volumes/p/v").as_bytes()).is_ok());
        let cases = [
            (text(2, "volumes/p/v"), "version 2 is not known"),
            (text(1, "/etc"), "path /etc leads elsewhere"),
            (text(1, "volumes/../../x"), "leads elsewhere"),
            (text(1, "plugins/x"), "leads elsewhere"),
            (text(1, "volumes/p/v")[..20].to_owned(), "EOF"),
            (String::new(), "EOF"),
            ("[]".to_owned(), "invalid"),
        ];
        for (bytes, why) in cases {
            let error = parse(bytes.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{bytes}: {error}");
        }
    }

    proptest::proptest! {
        /// Nothing in a record leads out of the pod's directory.
        #[test]
        fn any_record_is_read_or_refused(version in 0u32..3, at in "(volumes|volume-subpaths|/|\\.\\.|[a-z\\\\\"]{0,4}){0,6}", cut in 0usize..200) {
            let mut bytes = text(version, &at).into_bytes();
            bytes.truncate(cut);
            if let Ok(record) = parse(&bytes) {
                let below = record.volumes.iter().all(|v| stays_below(&v.path));
                proptest::prop_assert!(below);
            }
        }
    }
}
