//! Interfaces of open-iscsi that are made for a disk, so that its target knows the node by another name.

use std::collections::BTreeMap;

use crate::address::Initiator;

const NAME: &str = "iface.iscsi_ifacename";
const INITIATOR: &str = "iface.initiatorname";
const UNSET: &str = "<empty>";

/// Arguments that do something to an interface.
pub(crate) fn arguments(interface: &str, action: &[&str]) -> Vec<String> {
    let words = ["-m", "iface", "-I", interface, "-o"];
    let words = words.iter().chain(action);
    words.map(|word| (*word).to_owned()).collect()
}

/// The settings of an interface as the tool shows it, with another name for the node.
pub(crate) fn settings(
    shown: &str,
    initiator: &Initiator,
) -> Result<BTreeMap<String, String>, String> {
    let mut settings = BTreeMap::new();
    let lines = shown.lines().filter(|line| line.starts_with("iface."));
    for line in lines.filter(|line| !line.contains(UNSET)) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, "=", value] = words[..] else {
            let words = words.join(" ");
            return Err(format!("error: invalid iface setting: [{words}]"));
        };
        // What it is called was said when it was made.
        if name != NAME {
            settings.insert(name.to_owned(), value.to_owned());
        }
    }
    settings.insert(INITIATOR.to_owned(), initiator.name.clone());
    Ok(settings)
}

/// Who the node is by an interface, as the tool shows it.
pub(crate) fn initiator_of(shown: &str) -> Option<&str> {
    let mut settings = shown.lines().filter_map(|line| line.split_once('='));
    let (_, name) = settings.find(|(key, _)| key.trim() == INITIATOR)?;
    Some(name.trim()).filter(|name| *name != UNSET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_the_node_is() {
        for (shown, name) in [
            (
                "# BEGIN RECORD\niface.initiatorname = iqn.x:me\niface.mtu = 0\n",
                Some("iqn.x:me"),
            ),
            ("iface.initiatorname = <empty>\n", None),
            ("# iface.initiatorname = iqn.x:me\n", None),
            ("iface.transport_name = tcp\n", None),
            ("", None),
        ] {
            assert_eq!(initiator_of(shown), name, "{shown}");
        }
    }

    #[test]
    fn settings_are_taken_over() {
        let initiator = Initiator {
            name: "iqn.x:me".to_owned(),
            like: "eth".to_owned(),
        };
        let shown = "# BEGIN RECORD 2.1.8\niface.iscsi_ifacename = eth\niface.net_ifacename = eth1\niface.ipaddress = <empty>\niface.transport_name = tcp\niface.initiatorname = iqn.old\n# END RECORD\n";
        let taken = settings(shown, &initiator).unwrap();
        let taken: Vec<(&str, &str)> = taken.iter().map(|(k, v)| (&**k, &**v)).collect();
        let expected = [
            (INITIATOR, "iqn.x:me"),
            ("iface.net_ifacename", "eth1"),
            ("iface.transport_name", "tcp"),
        ];
        assert_eq!(taken, expected);
        assert_eq!(
            settings("iface.transport_name = two words\n", &initiator).unwrap_err(),
            "error: invalid iface setting: [iface.transport_name = two words]"
        );
        assert_eq!(settings("", &initiator).unwrap().len(), 1);
    }
}
