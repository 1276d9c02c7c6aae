//! Sources that are disks of a storage network: iSCSI and Fibre Channel.

use krablet_pod::api::{FCVolumeSource, ISCSIVolumeSource};

use crate::problem::{Path, Report, list, on};

const LUN_RULE: &str = "must be between 0 and 255, inclusive";
const NAME_RULE: &str = "must be valid format";
const NAME_START_RULE: &str = "must be valid format starting with iqn, eui, or naa";

pub(crate) fn iscsi(report: &mut Report, path: &Path, source: &ISCSIVolumeSource) {
    if source.target_portal.is_empty() {
        report.required(&path.child("targetPortal"), "");
    }
    match source.iqn.as_str() {
        "" => report.required(&path.child("iqn"), ""),
        name => iscsi_name(report, &path.child("iqn"), name),
    }
    lun(report, path, source.lun);
    let chap = on(source.chap_auth_discovery) || on(source.chap_auth_session);
    if chap && source.secret_ref.is_none() {
        report.required(&path.child("secretRef"), "");
    }
    if let Some(name) = &source.initiator_name {
        // The API server spells this field so.
        iscsi_name(report, &path.child("initiatorname"), name);
    }
}

pub(crate) fn fibre_channel(report: &mut Report, path: &Path, source: &FCVolumeSource) {
    let names = list(&source.target_wwns);
    let targets = path.child("targetWWNs");
    match (names.is_empty(), list(&source.wwids).is_empty()) {
        (true, true) => report.required(
            &targets,
            "must specify either targetWWNs or wwids, but not both",
        ),
        (false, false) => report.invalid(
            &targets,
            names,
            "targetWWNs and wwids can not be specified simultaneously",
        ),
        _ => {}
    }
    if names.is_empty() {
        return;
    }
    match source.lun {
        Some(number) => lun(report, path, number),
        None => report.required(
            &path.child("lun"),
            "lun is required if targetWWNs is specified",
        ),
    }
}

fn lun(report: &mut Report, path: &Path, number: i32) {
    if !(0..=255).contains(&number) {
        report.invalid(&path.child("lun"), &number, LUN_RULE);
    }
}

fn iscsi_name(report: &mut Report, path: &Path, name: &str) {
    let good = if name.starts_with("iqn") {
        is_qualified(name)
    } else if let Some(rest) = name.strip_prefix("eui") {
        is_number(rest, 16)
    } else if let Some(rest) = name.strip_prefix("naa") {
        is_number(rest, 32)
    } else {
        return report.invalid(path, name, NAME_START_RULE);
    };
    if !good {
        report.invalid(path, name, NAME_RULE);
    }
}

/// `iqn.2001-04.com.example:disk`. As at the API server the name may have anything before the `iqn.`
/// that counts.
fn is_qualified(name: &str) -> bool {
    let mut starts = name.match_indices("iqn.").map(|(at, dot)| at + dot.len());
    starts.any(|at| name.get(at..).is_some_and(is_dated_authority))
}

/// `2001-04.com.example:disk`
fn is_dated_authority(text: &str) -> bool {
    let Some((date, rest)) = text.split_once('.') else {
        return false;
    };
    let Some((authority, own)) = rest.split_once(':') else {
        return false;
    };
    let digits = |part: &str, len| part.len() == len && part.bytes().all(|b| b.is_ascii_digit());
    let dated = date
        .split_once('-')
        .is_some_and(|(year, month)| digits(year, 4) && digits(month, 2));
    let of_authority = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let not_of_own = [',', ';', '*', '&', '$', '|', ' ', '\t', '\n', '\r', '\x0c'];
    dated
        && !authority.is_empty()
        && authority.chars().all(of_authority)
        && !own.is_empty()
        && !own.contains(not_of_own)
}

/// One character, a dot where all is well, and so many letters or digits.
fn is_number(text: &str, len: usize) -> bool {
    let mut chars = text.chars();
    let separated = chars.next().is_some_and(|c| c != '\n');
    let number = chars.as_str();
    separated && number.len() == len && number.bytes().all(|b| b.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_iscsi() {
        let eui = format!("eui.{}", "0".repeat(16));
        let naa = format!("naa.{}", "f".repeat(32));
        for (name, detail) in [
            ("iqn.2001-04.com.example:storage.disk1", None),
            ("iqn.2001-04.com-a.example:a:b/c", None),
            ("iqn.2001-04.com.example:ü", None),
            ("iqn of iqn.2001-04.com.example:a", None),
            (eui.as_str(), None),
            (naa.as_str(), None),
            ("disk", Some(NAME_START_RULE)),
            ("IQN.2001-04.com.example:a", Some(NAME_START_RULE)),
            ("iqn", Some(NAME_RULE)),
            ("iqn.2001-04.com.example", Some(NAME_RULE)),
            ("iqn.2001-04.com.example:", Some(NAME_RULE)),
            ("iqn.2001-04.:a", Some(NAME_RULE)),
            ("iqn.2001-04.com_a:a", Some(NAME_RULE)),
            ("iqn.2001-04.com.example:a b", Some(NAME_RULE)),
            ("iqn.2001-04.com.example:a,b", Some(NAME_RULE)),
            ("iqn.01-04.com.example:a", Some(NAME_RULE)),
            ("iqn.2001-4.com.example:a", Some(NAME_RULE)),
            ("iqn.200x-04.com.example:a", Some(NAME_RULE)),
            ("eui.0", Some(NAME_RULE)),
            ("eui", Some(NAME_RULE)),
            ("naa.0", Some(NAME_RULE)),
            ("naaü", Some(NAME_RULE)),
        ] {
            let mut report = Report::default();
            iscsi_name(&mut report, &Path::root("iqn"), name);
            let problems = report.into_problems();
            let got = problems.first().map(|problem| problem.detail.as_str());
            assert_eq!(got, detail, "{name}");
        }
    }
}
