//! Where a disk on a network is, and what the host's tools are told to reach it.

use std::collections::BTreeSet;

use krablet_pod::api::{FCVolumeSource, ISCSIPersistentVolumeSource, ISCSIVolumeSource};
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
        fs_type: Option<String>,
        read_only: bool,
        /// It asks for what is not done here.
        refused: Option<String>,
    },
    FibreChannel {
        targets: Vec<String>,
        wwids: Vec<String>,
        lun: i32,
        fs_type: Option<String>,
        read_only: bool,
    },
}

/// What both forms of an iSCSI source have in common.
struct IscsiFields<'a> {
    target: &'a str,
    portals: &'a Option<Vec<String>>,
    iqn: &'a str,
    lun: i32,
    interface: &'a Option<String>,
    fs_type: &'a Option<String>,
    read_only: Option<bool>,
    chap: bool,
    initiator: &'a Option<String>,
}

impl Address {
    pub fn iscsi(source: &ISCSIVolumeSource) -> Self {
        Self::of(IscsiFields {
            target: &source.target_portal,
            portals: &source.portals,
            iqn: &source.iqn,
            lun: source.lun,
            interface: &source.iscsi_interface,
            fs_type: &source.fs_type,
            read_only: source.read_only,
            chap: source.chap_auth_discovery == Some(true)
                || source.chap_auth_session == Some(true),
            initiator: &source.initiator_name,
        })
    }

    pub fn iscsi_pv(source: &ISCSIPersistentVolumeSource) -> Self {
        Self::of(IscsiFields {
            target: &source.target_portal,
            portals: &source.portals,
            iqn: &source.iqn,
            lun: source.lun,
            interface: &source.iscsi_interface,
            fs_type: &source.fs_type,
            read_only: source.read_only,
            chap: source.chap_auth_discovery == Some(true)
                || source.chap_auth_session == Some(true),
            initiator: &source.initiator_name,
        })
    }

    fn of(fields: IscsiFields<'_>) -> Self {
        let mut portals = vec![with_port(fields.target)];
        for portal in fields.portals.iter().flatten().map(|p| with_port(p)) {
            if !portals.contains(&portal) {
                portals.push(portal);
            }
        }
        let refused = match (fields.chap, fields.initiator.as_deref()) {
            (true, _) => Some("CHAP authentication of iSCSI is not supported".to_owned()),
            (_, Some(name)) if !name.is_empty() => {
                Some("an initiator name of iSCSI is not supported".to_owned())
            }
            _ => None,
        };
        let interface = fields.interface.clone().filter(|i| !i.is_empty());
        Address::Iscsi {
            portals,
            iqn: fields.iqn.to_owned(),
            lun: fields.lun,
            interface: interface.unwrap_or_else(|| DEFAULT_INTERFACE.to_owned()),
            fs_type: fields.fs_type.clone().filter(|t| !t.is_empty()),
            read_only: fields.read_only.unwrap_or(false),
            refused,
        }
    }

    pub fn fc(source: &FCVolumeSource) -> Self {
        Address::FibreChannel {
            targets: source.target_wwns.clone().unwrap_or_default(),
            wwids: source.wwids.clone().unwrap_or_default(),
            lun: source.lun.unwrap_or_default(),
            fs_type: source.fs_type.clone().filter(|t| !t.is_empty()),
            read_only: source.read_only.unwrap_or(false),
        }
    }

    /// Names become part of paths and command lines.
    pub fn check(&self) -> Result<(), String> {
        if let Address::Iscsi {
            refused: Some(why), ..
        } = self
        {
            return Err(why.clone());
        }
        let texts: Vec<&String> = match self {
            Address::Iscsi {
                portals,
                iqn,
                interface,
                ..
            } => portals.iter().chain([iqn, interface]).collect(),
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

    pub fn words(&self) -> &'static str {
        match self {
            Address::Iscsi { .. } => "iscsi",
            Address::FibreChannel { .. } => "fc",
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
                let by_id = targets.is_empty()
                    && wwids
                        .iter()
                        .any(|id| name == format!("scsi-{}", id.replace(' ', "_")));
                by_target || by_id
            }
        }
    }

    /// Arguments of `iscsiadm`, one command each. A disk on Fibre Channel needs none: the fabric shows it.
    pub fn log_in(&self) -> Vec<Vec<String>> {
        let Address::Iscsi {
            portals,
            iqn,
            interface,
            ..
        } = self
        else {
            return Vec::new();
        };
        let commands = portals.iter().flat_map(|p| {
            [
                format!("-m discoverydb -t sendtargets -p {p} -I {interface} -o new"),
                format!("-m discoverydb -t sendtargets -p {p} -I {interface} --discover"),
                format!("-m node -p {p} -T {iqn} -I {interface} --login"),
                // A session from before a crash must not hold up the next boot.
                format!("-m node -p {p} -T {iqn} -o update -n node.startup -v manual"),
            ]
        });
        commands.map(|line| words(&line)).collect()
    }

    /// None while another disk of the target is in use: `left` are the directories of those that are.
    pub fn log_out(&self, left: &BTreeSet<String>) -> Vec<Vec<String>> {
        let Address::Iscsi {
            portals,
            iqn,
            interface,
            ..
        } = self
        else {
            return Vec::new();
        };
        let of_target = format!("{}-{iqn}-lun-", self.first());
        if left.iter().any(|name| name.starts_with(&of_target)) {
            return Vec::new();
        }
        let commands = portals.iter().flat_map(|p| {
            [
                format!("-m node -p {p} -T {iqn} -I {interface} --logout"),
                format!("-m node -p {p} -T {iqn} -I {interface} -o delete"),
            ]
        });
        commands.map(|line| words(&line)).collect()
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
        Address::iscsi(&source)
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
        assert!(by_id.log_in().is_empty());
    }

    #[test]
    fn what_cannot_be_an_address() {
        for (change, why) in [
            (json!({"iqn": "../../etc"}), "cannot be the address"),
            (json!({"iqn": "iqn x"}), "cannot be the address"),
            (json!({"targetPortal": "--help"}), "cannot be the address"),
            (json!({"chapAuthSession": true}), "CHAP"),
            (json!({"initiatorName": "iqn.x"}), "initiator"),
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
        let other = "10.0.0.1:3260-iqn.2026-01.example:disk-lun-2".to_owned();
        assert!(disk.log_out(&BTreeSet::from([other])).is_empty());
        let foreign = "10.0.0.1:3260-iqn.2026-01.example:else-lun-2".to_owned();
        let commands = disk.log_out(&BTreeSet::from([foreign]));
        let lines: Vec<String> = commands.iter().map(|c| c.join(" ")).collect();
        assert_eq!(
            lines,
            [
                "-m node -p 10.0.0.1:3260 -T iqn.2026-01.example:disk -I default --logout",
                "-m node -p 10.0.0.1:3260 -T iqn.2026-01.example:disk -I default -o delete",
            ]
        );
    }
}
