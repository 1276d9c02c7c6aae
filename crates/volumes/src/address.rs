//! Where a disk on a network is, and what the host's tools are told to reach it.

use std::collections::BTreeSet;

use krablet_pod::api::{
    FCVolumeSource, ISCSIPersistentVolumeSource, ISCSIVolumeSource, SecretReference,
};
use serde::{Deserialize, Serialize};

/// Of portals that name none.
const ISCSI_PORT: &str = "3260";
const DEFAULT_INTERFACE: &str = "default";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Address {
    Iscsi {
        portals: Vec<String>,
        iqn: String,
        lun: i32,
        interface: String,
        /// The node goes by another name than its own, and so by an interface of the disk's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        initiator: Option<Initiator>,
        fs_type: Option<String>,
        read_only: bool,
    },
    FibreChannel {
        targets: Vec<String>,
        wwids: Vec<String>,
        lun: i32,
        fs_type: Option<String>,
        read_only: bool,
    },
}

/// Who the node says it is to a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Initiator {
    pub name: String,
    /// The interface of the node whose other settings hold.
    pub like: String,
}

/// The iSCSI source of a pod in the form that persistent volumes have.
pub(crate) fn as_persistent(source: &ISCSIVolumeSource) -> ISCSIPersistentVolumeSource {
    let source = source.clone();
    let secret = source.secret_ref.map(|secret| SecretReference {
        name: Some(secret.name),
        namespace: None,
    });
    ISCSIPersistentVolumeSource {
        chap_auth_discovery: source.chap_auth_discovery,
        chap_auth_session: source.chap_auth_session,
        fs_type: source.fs_type,
        initiator_name: source.initiator_name,
        iqn: source.iqn,
        iscsi_interface: source.iscsi_interface,
        lun: source.lun,
        portals: source.portals,
        read_only: source.read_only,
        secret_ref: secret,
        target_portal: source.target_portal,
    }
}

/// One way to a target, in the words of `iscsiadm`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portal<'a> {
    pub portal: &'a str,
    pub iqn: &'a str,
    pub interface: &'a str,
}

impl Portal<'_> {
    /// Arguments that do something to the record of what the portal was asked.
    pub fn discovery(&self, action: &str) -> Vec<String> {
        let (portal, interface) = (self.portal, self.interface);
        words(&format!(
            "-m discoverydb -t sendtargets -p {portal} -I {interface} {action}"
        ))
    }

    /// Arguments that do something to the target behind it.
    pub fn node(&self, action: &str) -> Vec<String> {
        let (portal, iqn, interface) = (self.portal, self.iqn, self.interface);
        words(&format!(
            "-m node -p {portal} -T {iqn} -I {interface} {action}"
        ))
    }

    /// Arguments that keep a session from before a crash from holding up the next boot.
    pub fn started_by_hand(&self) -> Vec<String> {
        let (portal, iqn) = (self.portal, self.iqn);
        words(&format!(
            "-m node -p {portal} -T {iqn} -o update -n node.startup -v manual"
        ))
    }
}

impl Address {
    /// `volume` is what the volume is called: an interface of its own has its name from it.
    pub fn iscsi(source: &ISCSIPersistentVolumeSource, volume: &str) -> Self {
        let mut portals = vec![with_port(&source.target_portal)];
        for portal in source.portals.iter().flatten().map(|p| with_port(p)) {
            if !portals.contains(&portal) {
                portals.push(portal);
            }
        }
        let interface = source.iscsi_interface.clone().filter(|i| !i.is_empty());
        let interface = interface.unwrap_or_else(|| DEFAULT_INTERFACE.to_owned());
        let initiator = source.initiator_name.clone().filter(|n| !n.is_empty());
        let (interface, initiator) = match initiator {
            None => (interface, None),
            Some(name) => {
                let own = format!("{}:{volume}", portals[0]);
                let like = interface;
                (own, Some(Initiator { name, like }))
            }
        };
        Address::Iscsi {
            portals,
            iqn: source.iqn.clone(),
            lun: source.lun,
            interface,
            initiator,
            fs_type: source.fs_type.clone().filter(|t| !t.is_empty()),
            read_only: source.read_only.unwrap_or(false),
        }
    }

    pub fn fc(source: &FCVolumeSource) -> Self {
        let wwids = source.wwids.iter().flatten();
        Address::FibreChannel {
            targets: source.target_wwns.clone().unwrap_or_default(),
            // As udev writes what a vendor wrote with blanks.
            wwids: wwids.map(|id| id.replace(' ', "_")).collect(),
            lun: source.lun.unwrap_or_default(),
            fs_type: source.fs_type.clone().filter(|t| !t.is_empty()),
            read_only: source.read_only.unwrap_or(false),
        }
    }

    /// Names become part of paths and command lines.
    pub fn check(&self) -> Result<(), String> {
        let texts: Vec<&String> = match self {
            Address::Iscsi {
                portals,
                iqn,
                interface,
                initiator,
                ..
            } => {
                let initiator = initiator.iter().flat_map(|i| [&i.name, &i.like]);
                let own = [iqn, interface].into_iter();
                portals.iter().chain(own).chain(initiator).collect()
            }
            Address::FibreChannel { targets, wwids, .. } => targets.iter().chain(wwids).collect(),
        };
        let fit = |text: &&String| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:[]".contains(c);
            !text.is_empty() && !text.starts_with(['-', '.']) && text.chars().all(plain)
        };
        match texts.iter().find(|t| !fit(t)) {
            Some(text) => Err(format!("{text:?} cannot be the address of a disk")),
            None if texts.is_empty() => {
                Err("no fc disk information found. failed to make a new mounter".to_owned())
            }
            None => Ok(()),
        }
    }

    pub fn fs_type(&self) -> Option<&str> {
        match self {
            Address::Iscsi { fs_type, .. } | Address::FibreChannel { fs_type, .. } => {
                fs_type.as_deref()
            }
        }
    }

    pub fn is_read_only(&self) -> bool {
        match self {
            Address::Iscsi { read_only, .. } | Address::FibreChannel { read_only, .. } => {
                *read_only
            }
        }
    }

    /// Who the node is for its target, if not itself.
    pub fn initiator(&self) -> Option<&Initiator> {
        match self {
            Address::Iscsi { initiator, .. } => initiator.as_ref(),
            Address::FibreChannel { .. } => None,
        }
    }

    /// The interface that is made for it, if it cannot go by one of the node's.
    pub fn own_interface(&self) -> Option<&str> {
        match self {
            Address::Iscsi {
                interface,
                initiator: Some(_),
                ..
            } => Some(interface),
            _ => None,
        }
    }

    /// Which of its target's disks it is.
    pub fn lun(&self) -> i32 {
        match self {
            Address::Iscsi { lun, .. } | Address::FibreChannel { lun, .. } => *lun,
        }
    }

    /// Where the node mounts it, below the plugin's directory.
    pub fn directory(&self) -> String {
        match self {
            Address::Iscsi {
                iqn,
                lun,
                interface,
                ..
            } => format!("iface-{interface}/{}-{iqn}-lun-{lun}", self.first()),
            Address::FibreChannel { targets, lun, .. } if !targets.is_empty() => {
                format!("{}-lun-{lun}", targets.join("-"))
            }
            Address::FibreChannel { wwids, .. } => wwids.join("-"),
        }
    }

    fn first(&self) -> &str {
        match self {
            Address::Iscsi { portals, .. } => portals.first().map_or("", String::as_str),
            Address::FibreChannel { .. } => "",
        }
    }

    /// Whether a name under `/dev/disk` is the disk's.
    pub fn is_device(&self, name: &str) -> bool {
        match self {
            Address::Iscsi {
                portals, iqn, lun, ..
            } => portals.iter().any(|portal| {
                let portal = portal.replace(['[', ']'], "");
                let tail = format!("ip-{portal}-iscsi-{iqn}-lun-{lun}");
                name == tail || (name.starts_with("pci-") && name.ends_with(&format!("-{tail}")))
            }),
            Address::FibreChannel {
                targets,
                wwids,
                lun,
                ..
            } => {
                let by_target = targets.iter().any(|target| {
                    let tail = format!("fc-0x{target}-lun-{lun}");
                    name == tail
                        || (name.starts_with("pci-") && name.ends_with(&format!("-{tail}")))
                });
                let by_id =
                    targets.is_empty() && wwids.iter().any(|id| name == format!("scsi-{id}"));
                by_target || by_id
            }
        }
    }

    /// The ways to a target of iSCSI. A disk on Fibre Channel needs none: the fabric shows it.
    pub fn ways(&self) -> Vec<Portal<'_>> {
        let Address::Iscsi {
            portals,
            iqn,
            interface,
            ..
        } = self
        else {
            return Vec::new();
        };
        let way = |portal| Portal {
            portal,
            iqn,
            interface,
        };
        portals.iter().map(|portal| way(portal.as_str())).collect()
    }

    /// How many ways to it are asked for.
    pub fn count_ways(&self) -> usize {
        match self {
            Address::Iscsi { portals, .. } => portals.len(),
            Address::FibreChannel { targets, .. } => targets.len(),
        }
    }

    /// What it has in common with other disks: nobody logs in to a target while another logs out.
    pub fn target(&self) -> String {
        match self {
            Address::Iscsi { iqn, .. } => iqn.clone(),
            Address::FibreChannel { .. } => self.directory(),
        }
    }

    /// Another disk of the target is in use: `left` are the directories of those that are.
    pub fn shares_target(&self, left: &BTreeSet<String>) -> bool {
        let of_target = format!("{}-{}-lun-", self.first(), self.target());
        left.iter().any(|name| name.starts_with(&of_target))
    }

    /// The disk itself is in use, in the other of the two forms: as a device, or mounted.
    pub fn is_among(&self, left: &BTreeSet<String>) -> bool {
        let directory = self.directory();
        let own = directory.rsplit('/').next();
        own.is_some_and(|own| left.contains(own))
    }

    /// Where its device is expected.
    pub fn expected_device(&self) -> String {
        match self {
            Address::Iscsi { iqn, lun, .. } => {
                let portal = self.first().replace(['[', ']'], "");
                format!("/dev/disk/by-path/ip-{portal}-iscsi-{iqn}-lun-{lun}")
            }
            Address::FibreChannel { .. } => "/dev/disk/by-path".to_owned(),
        }
    }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn with_port(portal: &str) -> String {
    let bare = portal.rsplit(']').next().unwrap_or(portal);
    match bare.contains(':') {
        true => portal.to_owned(),
        false => format!("{portal}:{ISCSI_PORT}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn iscsi(change: serde_json::Value) -> Address {
        let mut source =
            json!({"targetPortal": "10.0.0.1", "iqn": "iqn.2026-01.example:disk", "lun": 1});
        for (key, value) in change.as_object().unwrap() {
            source[key] = value.clone();
        }
        let source: ISCSIVolumeSource = serde_json::from_value(source).unwrap();
        Address::iscsi(&as_persistent(&source), "disk")
    }

    #[test]
    fn disks_by_their_names() {
        let disk = iscsi(json!({"portals": ["10.0.0.1:3260", "[fd00::1]"]}));
        assert_eq!(disk.check(), Ok(()));
        assert_eq!(
            disk.directory(),
            "iface-default/10.0.0.1:3260-iqn.2026-01.example:disk-lun-1"
        );
        for (name, is) in [
            (
                "ip-10.0.0.1:3260-iscsi-iqn.2026-01.example:disk-lun-1",
                true,
            ),
            (
                "pci-0000:01-ip-10.0.0.1:3260-iscsi-iqn.2026-01.example:disk-lun-1",
                true,
            ),
            ("ip-fd00::1:3260-iscsi-iqn.2026-01.example:disk-lun-1", true),
            (
                "ip-10.0.0.1:3260-iscsi-iqn.2026-01.example:disk-lun-12",
                false,
            ),
            (
                "ip-10.0.0.2:3260-iscsi-iqn.2026-01.example:disk-lun-1",
                false,
            ),
        ] {
            assert_eq!(disk.is_device(name), is, "{name}");
        }
        let fc = |source| Address::fc(&serde_json::from_value(source).unwrap());
        let by_target = fc(json!({"targetWWNs": ["500a0981891b8dc5"], "lun": 0}));
        assert!(by_target.is_device("pci-0000:41:00.0-fc-0x500a0981891b8dc5-lun-0"));
        assert!(!by_target.is_device("fc-0x500a0981891b8dc5-lun-10"));
        assert_eq!(by_target.directory(), "500a0981891b8dc5-lun-0");
        let by_id = fc(json!({"wwids": ["3600508b400105e21"]}));
        assert!(by_id.is_device("scsi-3600508b400105e21"));
        assert!(by_id.ways().is_empty());
        let with_blanks = fc(json!({"wwids": ["VENDOR 3600508b"]}));
        assert_eq!(with_blanks.check(), Ok(()));
        assert!(with_blanks.is_device("scsi-VENDOR_3600508b"));
    }

    #[test]
    fn what_cannot_be_an_address() {
        for (change, why) in [
            (json!({"iqn": "../../etc"}), "cannot be the address"),
            (json!({"iqn": "iqn x"}), "cannot be the address"),
            (json!({"targetPortal": "--help"}), "cannot be the address"),
            (json!({"initiatorName": "iqn x"}), "cannot be the address"),
            (
                json!({"initiatorName": "iqn.x", "iscsiInterface": "-o"}),
                "cannot be the address",
            ),
        ] {
            let text = change.to_string();
            let refused = iscsi(change).check().unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
        let empty: FCVolumeSource = serde_json::from_value(json!({"lun": 1})).unwrap();
        assert!(Address::fc(&empty).check().is_err());
    }

    #[test]
    fn a_session_ends_with_its_last_disk() {
        let disk = iscsi(json!({}));
        let shares = |name: &str| disk.shares_target(&BTreeSet::from([name.to_owned()]));
        assert!(shares("10.0.0.1:3260-iqn.2026-01.example:disk-lun-2"));
        let is_among = |name: &str| disk.is_among(&BTreeSet::from([name.to_owned()]));
        assert!(is_among("10.0.0.1:3260-iqn.2026-01.example:disk-lun-1"));
        assert!(!is_among("10.0.0.1:3260-iqn.2026-01.example:disk-lun-2"));
        assert!(!shares("10.0.0.1:3260-iqn.2026-01.example:else-lun-2"));
    }

    #[test]
    fn another_name_has_an_interface_of_its_own() {
        let disk = iscsi(json!({"initiatorName": "iqn.x:me", "iscsiInterface": "eth"}));
        assert_eq!(disk.check(), Ok(()));
        let initiator = disk.initiator().unwrap();
        assert_eq!((&*initiator.name, &*initiator.like), ("iqn.x:me", "eth"));
        assert_eq!(disk.ways()[0].interface, "10.0.0.1:3260:disk");
        assert_eq!(disk.own_interface(), Some("10.0.0.1:3260:disk"));
        assert_eq!(iscsi(json!({})).own_interface(), None);
        assert_eq!(
            disk.directory(),
            "iface-10.0.0.1:3260:disk/10.0.0.1:3260-iqn.2026-01.example:disk-lun-1"
        );
        assert_eq!(iscsi(json!({"initiatorName": ""})).initiator(), None);
        // As versions without such names have recorded it.
        let mut recorded = serde_json::to_value(iscsi(json!({}))).unwrap();
        recorded["iscsi"]["refused"] = json!(null);
        let read: Address = serde_json::from_value(recorded).unwrap();
        assert_eq!(read, iscsi(json!({})));
    }

    #[test]
    fn ways_in_the_words_of_the_tool() {
        let disk = iscsi(json!({"iscsiInterface": "eth", "portals": ["[fd00::1]"]}));
        let ways = disk.ways();
        assert_eq!(ways.len(), 2);
        assert_eq!(
            ways[0].discovery("--discover").join(" "),
            "-m discoverydb -t sendtargets -p 10.0.0.1:3260 -I eth --discover"
        );
        assert_eq!(
            ways[1].node("--login").join(" "),
            "-m node -p [fd00::1]:3260 -T iqn.2026-01.example:disk -I eth --login"
        );
        assert_eq!(
            ways[0].started_by_hand().join(" "),
            "-m node -p 10.0.0.1:3260 -T iqn.2026-01.example:disk -o update -n node.startup -v manual"
        );
    }
}
