//! Passwords of iSCSI targets. `iscsiadm` takes them in its argument list alone, where every process of the machine
//! can read them; so they are written into its records instead, which only root reads.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use krablet_linux::{EntryKind, Files};
use krablet_pod::api::{ISCSIPersistentVolumeSource, Secret};

use crate::address::Portal;

/// Where records lie, as the tool was built: `/etc` in Debian and SUSE, `/var/lib` in Fedora and its kin.
const DATABASES: [&str; 2] = ["/etc/iscsi", "/var/lib/iscsi"];
const RECORD_MODE: u32 = 0o600;
const MAX_RECORD: usize = 64 << 10;
/// Bytes that the tool reads of a name or password.
const MAX_VALUE: usize = 255;
const END: &str = "# END RECORD";
const DISCOVERY: &str = "discovery.sendtargets.auth";
const SESSION: &str = "node.session.auth";
const KEYS: [&str; 4] = ["username", "password", "username_in", "password_in"];

/// Who the node says it is, to the portal and to the target.
pub(crate) struct Chap {
    discovery: bool,
    session: bool,
    /// By the tool's own names for them.
    words: BTreeMap<String, String>,
}

/// Passwords do not reach a log by chance.
impl fmt::Debug for Chap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&String> = self.words.keys().collect();
        f.debug_struct("Chap")
            .field("discovery", &self.discovery)
            .field("session", &self.session)
            .field("words", &words)
            .finish()
    }
}

pub(crate) fn is_wanted(source: &ISCSIPersistentVolumeSource) -> bool {
    source.chap_auth_discovery == Some(true) || source.chap_auth_session == Some(true)
}

impl Chap {
    /// What a secret holds beside the words known to the tool is not looked at.
    pub fn of(
        source: &ISCSIPersistentVolumeSource,
        secret: Option<&Secret>,
    ) -> Result<Self, String> {
        let data = secret.and_then(|s| s.data.as_ref());
        let names = [DISCOVERY, SESSION].into_iter();
        let names = names.flat_map(|group| KEYS.map(|key| format!("{group}.{key}")));
        let mut words = BTreeMap::new();
        for name in names {
            let Some(bytes) = data.and_then(|d| d.get(&name)).map(|v| &v.0) else {
                continue;
            };
            let text = std::str::from_utf8(bytes).ok().filter(|t| is_fit(t));
            let text = text.ok_or_else(|| format!("the value of {name} cannot be a CHAP word"))?;
            if !text.is_empty() {
                words.insert(name, text.to_owned());
            }
        }
        Ok(Self {
            discovery: source.chap_auth_discovery == Some(true),
            session: source.chap_auth_session == Some(true),
            words,
        })
    }

    /// Into the record that was made of the portal.
    pub async fn tell_portal(&self, files: &dyn Files, way: Portal<'_>) -> io::Result<()> {
        if !self.discovery {
            return Ok(());
        }
        for database in DATABASES.map(Path::new) {
            let dir = database.join("send_targets").join(entry_name(way.portal));
            let record = dir.join("st_config");
            if write_into(files, &record, &self.settings(DISCOVERY)).await? {
                return Ok(());
            }
        }
        Err(no_record("discovery", way))
    }

    /// Into the records that the portal's answer made of the target.
    pub async fn tell_target(&self, files: &dyn Files, way: Portal<'_>) -> io::Result<()> {
        if !self.session {
            return Ok(());
        }
        let mut told = false;
        for record in node_records(files, way).await? {
            told |= write_into(files, &record, &self.settings(SESSION)).await?;
        }
        match told {
            true => Ok(()),
            false => Err(no_record("node", way)),
        }
    }

    fn settings(&self, group: &str) -> Vec<(String, String)> {
        let method = (format!("{group}.authmethod"), "CHAP".to_owned());
        let words = self.words.iter().filter(|(name, _)| {
            let rest = name.strip_prefix(group);
            rest.is_some_and(|rest| rest.starts_with('.'))
        });
        let words = words.map(|(name, value)| (name.clone(), value.clone()));
        std::iter::once(method).chain(words).collect()
    }
}

fn no_record(kind: &str, way: Portal<'_>) -> io::Error {
    let [first, second] = DATABASES;
    let text = format!(
        "no {kind} record of {} in {first} or {second} to write CHAP words to",
        way.portal
    );
    io::Error::new(io::ErrorKind::NotFound, text)
}

/// A value takes the rest of its line, without the space around it.
fn is_fit(value: &str) -> bool {
    value.len() <= MAX_VALUE && value.trim() == value && !value.chars().any(char::is_control)
}

/// `10.0.0.1:3260` lies in `10.0.0.1,3260`.
fn entry_name(portal: &str) -> String {
    let (address, port) = portal.rsplit_once(':').unwrap_or((portal, ""));
    format!("{},{port}", address.replace(['[', ']'], ""))
}

/// A file for the portal, or one for each interface in a directory for it and its group.
async fn node_records(files: &dyn Files, way: Portal<'_>) -> io::Result<Vec<PathBuf>> {
    let own = entry_name(way.portal);
    let mut found = Vec::new();
    for database in DATABASES.map(Path::new) {
        let dir = database.join("nodes").join(way.iqn);
        let entries = match files.list(&dir).await {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        for entry in entries {
            let name = entry.path.file_name().and_then(|n| n.to_str());
            let rest = name.and_then(|n| n.strip_prefix(&own));
            match (rest, entry.kind) {
                (Some(""), EntryKind::File) => found.push(entry.path),
                (Some(rest), EntryKind::Directory) if rest.starts_with(',') => {
                    found.push(entry.path.join(way.interface));
                }
                _ => {}
            }
        }
    }
    Ok(found)
}

/// False if there is no such record.
async fn write_into(
    files: &dyn Files,
    record: &Path,
    settings: &[(String, String)],
) -> io::Result<bool> {
    let bytes = match files.read(record, MAX_RECORD).await {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    let text = String::from_utf8_lossy(&bytes);
    let text = with_settings(&text, settings);
    files
        .write_atomic(record, text.as_bytes(), RECORD_MODE)
        .await?;
    Ok(true)
}

/// The record with these settings instead of those it had.
fn with_settings(record: &str, settings: &[(String, String)]) -> String {
    let is_set = |line: &str| {
        let name = line.split('=').next().unwrap_or_default().trim();
        settings.iter().any(|(key, _)| key == name)
    };
    let kept = record.lines().filter(|line| !is_set(line) && *line != END);
    let set = settings
        .iter()
        .map(|(key, value)| format!("{key} = {value}"));
    let lines = kept.map(str::to_owned).chain(set);
    lines
        .chain([END.to_owned()])
        .map(|line| line + "\n")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_linux::fake::MemoryFiles;
    use serde_json::json;

    const RECORD: &str = "# BEGIN RECORD 2.1.8\nnode.name = iqn.x:d\nnode.session.auth.authmethod = None\nnode.session.auth.username = old\nnode.startup = automatic\n# END RECORD\n";

    fn source(discovery: bool, session: bool) -> ISCSIPersistentVolumeSource {
        serde_json::from_value(json!({
            "targetPortal": "10.0.0.1", "iqn": "iqn.x:d", "lun": 0,
            "chapAuthDiscovery": discovery, "chapAuthSession": session,
        }))
        .unwrap()
    }

    fn secret(words: &[(&str, &[u8])]) -> Secret {
        let words = words.iter().map(|(name, value)| {
            let value = k8s_openapi::ByteString(value.to_vec());
            ((*name).to_owned(), value)
        });
        Secret {
            data: Some(words.collect()),
            ..Secret::default()
        }
    }

    fn way<'a>(portal: &'a str, interface: &'a str) -> Portal<'a> {
        Portal {
            portal,
            iqn: "iqn.x:d",
            interface,
        }
    }

    async fn put(files: &MemoryFiles, path: &str, text: &str) {
        let path = Path::new(path);
        let dir = path.parent().unwrap();
        files.create_dir_all(dir, 0o700).await.unwrap();
        let written = files.write_atomic(path, text.as_bytes(), 0o600);
        written.await.unwrap();
    }

    async fn text(files: &MemoryFiles, path: &str) -> String {
        let bytes = files.read(Path::new(path), MAX_RECORD).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn settings_replace_those_of_the_record() {
        let settings = [
            ("node.session.auth.authmethod", "CHAP"),
            ("node.session.auth.username", "me"),
            ("node.session.auth.password", "s\"#= x"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()));
        let expected = "# BEGIN RECORD 2.1.8\nnode.name = iqn.x:d\nnode.startup = automatic\nnode.session.auth.authmethod = CHAP\nnode.session.auth.username = me\nnode.session.auth.password = s\"#= x\n# END RECORD\n";
        let once = with_settings(RECORD, &settings);
        assert_eq!(once, expected);
        assert_eq!(with_settings(&once, &settings), expected);
    }

    #[test]
    fn values_that_would_be_read_as_something_else_are_refused_and_never_told() {
        let name = "node.session.auth.password";
        let long = [b'x'; 256];
        for value in [
            &b"two\nnode.startup = automatic"[..],
            b" ahead",
            b"behind ",
            b"nul\0",
            b"\xff",
            &long,
        ] {
            let refused = Chap::of(&source(true, true), Some(&secret(&[(name, value)])));
            assert_eq!(
                refused.unwrap_err(),
                "the value of node.session.auth.password cannot be a CHAP word"
            );
        }
        let fine = Chap::of(&source(true, true), Some(&secret(&[(name, b"hush")])));
        let shown = format!("{fine:?}");
        assert!(shown.contains(name) && !shown.contains("hush"), "{shown}");
    }

    #[tokio::test]
    async fn words_come_into_the_records_of_the_portal_and_the_target() {
        let words = secret(&[
            ("discovery.sendtargets.auth.username", b"asks"),
            ("node.session.auth.username", b"me"),
            ("node.session.auth.password", b"hush"),
            ("unknown", b"\n"),
        ]);
        let files = MemoryFiles::default();
        let asked = "/var/lib/iscsi/send_targets/fd00::1,3260/st_config";
        put(&files, asked, "# BEGIN RECORD 2.1.8\n# END RECORD\n").await;
        let plain = "/etc/iscsi/nodes/iqn.x:d/10.0.0.1,3260";
        let grouped = "/etc/iscsi/nodes/iqn.x:d/10.0.0.2,3260,1/eth";
        let other = "/etc/iscsi/nodes/iqn.x:d/10.0.0.2,32601,1/eth";
        for path in [plain, grouped, other] {
            put(&files, path, RECORD).await;
        }
        let chap = Chap::of(&source(true, true), Some(&words)).unwrap();
        let portal = chap.tell_portal(&files, way("[fd00::1]:3260", "eth"));
        portal.await.unwrap();
        assert_eq!(
            text(&files, asked).await,
            "# BEGIN RECORD 2.1.8\ndiscovery.sendtargets.auth.authmethod = CHAP\ndiscovery.sendtargets.auth.username = asks\n# END RECORD\n"
        );
        for (portal, record) in [("10.0.0.1:3260", plain), ("10.0.0.2:3260", grouped)] {
            let told = chap.tell_target(&files, way(portal, "eth"));
            told.await.unwrap();
            let text = text(&files, record).await;
            assert!(
                text.contains("node.session.auth.password = hush\n"),
                "{text}"
            );
            assert!(text.contains("auth.authmethod = CHAP\n"), "{text}");
        }
        assert_eq!(text(&files, other).await, RECORD);
    }

    #[tokio::test]
    async fn without_a_record_it_is_told_and_what_is_not_wanted_is_not_written() {
        let files = MemoryFiles::default();
        let way = way("10.0.0.1:3260", "default");
        let chap = Chap::of(&source(false, true), None).unwrap();
        chap.tell_portal(&files, way).await.unwrap();
        let error = chap.tell_target(&files, way).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "no node record of 10.0.0.1:3260 in /etc/iscsi or /var/lib/iscsi to write CHAP words to"
        );
    }

    proptest::proptest! {
        /// A value sets what it is for and nothing else.
        #[test]
        fn any_value_stays_on_its_line(value in "[ -~\n\t=#é]{0,40}", noise in "([a-z.]{0,9}[ =#]{0,3}[a-z]{0,5}\n){0,5}") {
            let name = "node.session.auth.password";
            let secret = secret(&[(name, value.as_bytes())]);
            let Ok(chap) = Chap::of(&source(false, true), Some(&secret)) else {
                return Ok(());
            };
            let settings = chap.settings(SESSION);
            let record = with_settings(&noise, &settings);
            let set = record.lines().count() - noise.lines().filter(|l| *l != END).count();
            proptest::prop_assert_eq!(set, settings.len() + 1);
            proptest::prop_assert_eq!(with_settings(&record, &settings), record);
        }
    }
}
