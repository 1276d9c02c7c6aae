//! What a bed's network leaves on the machine: interfaces, port mapping rules, cached results.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::family::Family;
use crate::{Pods, Spec, list};

pub fn remove_interfaces(spec: &Spec, pods: &Pods, family: &Family) {
    let bridge = Path::new("/sys/class/net").join(&pods.bridge);
    if !bridge.exists() {
        return;
    }
    // The host ends of the pods' pairs go with the pods' network namespaces, soon but not at once.
    let deadline = Instant::now() + Duration::from_secs(5);
    let ports = || -> Vec<String> {
        list(&bridge.join("brif"))
            .iter()
            .filter_map(|p| p.file_name())
            .map(|n| n.to_string_lossy().into_owned())
            .collect()
    };
    while !ports().is_empty() && Instant::now() < deadline {
        family.pause(Duration::from_millis(10));
    }
    for port in ports() {
        let _ = family.run(spec, None, "ip", &["link", "delete", &port]);
    }
    let _ = family.run(spec, None, "ip", &["link", "delete", &pods.bridge]);
}

/// Takes out the port mappings of the bed's network; with the last bed also the chains all share.
pub fn remove_rules(spec: &Spec, family: &Family, last: bool) {
    if spec.pods.is_none() && !last {
        return;
    }
    let Ok(saved) = family.run(spec, None, "iptables-save", &["-t", "nat"]) else {
        return;
    };
    let network = spec.pods.as_ref().map(|pods| pods.network.as_str());
    let batch = rules_to_remove(&saved, network, last);
    if !batch.is_empty() {
        let _ = family.run(spec, Some(&batch), "iptables-restore", &["--noflush"]);
    }
}

/// The `iptables-restore` input that undoes what the network's port mappings added to the nat table.
fn rules_to_remove(saved: &str, network: Option<&str>, last: bool) -> String {
    let quoted = network.map(|network| format!("\\\"{network}\\\""));
    let rules: Vec<&str> = saved
        .lines()
        .filter(|line| line.starts_with("-A "))
        .collect();
    let target = |rule: &str| {
        rule.rsplit_once("-j ")
            .map(|(_, t)| t.split(' ').next().unwrap_or("").to_owned())
    };
    let mut removed: Vec<String> = Vec::new();
    let mut chains: BTreeSet<String> = BTreeSet::new();
    let mut shared_in_use = false;
    for rule in &rules {
        if quoted.as_ref().is_some_and(|name| rule.contains(name)) {
            removed.push(rule.replacen("-A ", "-D ", 1));
            chains.extend(
                target(rule).filter(|chain| {
                    chain.starts_with("CNI-") && !chain.starts_with("CNI-HOSTPORT")
                }),
            );
        } else if rule.starts_with("-A CNI-HOSTPORT-DNAT ") {
            shared_in_use = true;
        }
    }
    if last && !shared_in_use {
        for rule in &rules {
            if target(rule).is_some_and(|chain| chain.starts_with("CNI-HOSTPORT"))
                && !chains.iter().any(|c| rule.starts_with(&format!("-A {c} ")))
            {
                removed.push(rule.replacen("-A ", "-D ", 1));
            }
        }
        chains.extend(
            saved
                .lines()
                .filter_map(|line| line.strip_prefix(':'))
                .filter_map(|line| line.split(' ').next())
                .filter(|chain| chain.starts_with("CNI-HOSTPORT"))
                .map(str::to_owned),
        );
    }
    if removed.is_empty() && chains.is_empty() {
        return String::new();
    }
    let mut batch = String::from("*nat\n");
    // Jumps first, then every chain emptied, then the chains themselves, which may name each other.
    for line in removed
        .into_iter()
        .chain(chains.iter().map(|c| format!("-F {c}")))
        .chain(chains.iter().map(|c| format!("-X {c}")))
    {
        batch.push_str(&line);
        batch.push('\n');
    }
    batch.push_str("COMMIT\n");
    batch
}

/// libcni keeps a result per attachment in a place of its own that no setting moves.
pub fn remove_cni_cache(spec: &Spec, containers: &[(String, String)], last: bool) {
    let results = Path::new("/var/lib/cni/results");
    let prefix = spec.pods.as_ref().map(|pods| format!("{}-", pods.network));
    for file in list(results) {
        let Some(name) = file
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
        else {
            continue;
        };
        // A runtime that calls the loopback plugin files its result under another network's name.
        if prefix
            .as_ref()
            .is_some_and(|prefix| name.starts_with(prefix))
            || containers.iter().any(|(_, id)| name.contains(id.as_str()))
        {
            let _ = fs::remove_file(file);
        }
    }
    if last {
        for dir in ["/var/lib/cni/results", "/var/lib/cni"] {
            // Refused when somebody else's files are in it.
            let _ = fs::remove_dir(dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rules_to_remove;

    const SAVED: &str = "\
*nat
:PREROUTING ACCEPT [0:0]
:CNI-DN-aaa - [0:0]
:CNI-DN-bbb - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-SETMARK - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-DN-aaa -s 10.1.0.0/24 -p tcp -j CNI-HOSTPORT-SETMARK
-A CNI-HOSTPORT-DNAT -m comment --comment \"dnat name: \\\"krablet-bed01\\\" id: \\\"x\\\"\" -j CNI-DN-aaa
COMMIT
";
    const OTHER: &str = "-A CNI-HOSTPORT-DNAT -m comment --comment \"dnat name: \\\"krablet-bed02\\\" id: \\\"y\\\"\" -j CNI-DN-bbb\n";

    #[test]
    fn the_last_bed_takes_the_shared_chains_with_it() {
        let batch = rules_to_remove(SAVED, Some("krablet-bed01"), true);
        assert!(batch.contains("-D CNI-HOSTPORT-DNAT -m comment"));
        assert!(batch.contains("-X CNI-DN-aaa"));
        assert!(batch.contains("-D PREROUTING -m addrtype"));
        assert!(batch.contains("-X CNI-HOSTPORT-SETMARK"));
    }

    #[test]
    fn rules_of_others_and_their_chains_stay() {
        let saved = format!("{SAVED}{OTHER}");
        for last in [false, true] {
            let batch = rules_to_remove(&saved, Some("krablet-bed01"), last);
            assert!(batch.contains("-X CNI-DN-aaa"));
            assert!(
                !batch.contains("bbb")
                    && !batch.contains("CNI-HOSTPORT-SETMARK")
                    && !batch.contains("PREROUTING")
            );
        }
        let nothing = rules_to_remove("*nat\nCOMMIT\n", Some("krablet-bed01"), true);
        assert_eq!(nothing, "");
    }

    #[test]
    fn a_bed_without_pods_takes_only_what_nobody_uses() {
        assert_eq!(rules_to_remove(SAVED, None, true), "");
        let unused = "*nat\n:CNI-HOSTPORT-DNAT - [0:0]\nCOMMIT\n";
        assert!(rules_to_remove(unused, None, true).contains("-X CNI-HOSTPORT-DNAT"));
        assert_eq!(rules_to_remove(unused, None, false), "");
    }
}
