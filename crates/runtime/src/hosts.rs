//! The `/etc/hosts` a pod's containers see.

use krablet_pod::api::HostAlias;

pub(crate) const ETC_HOSTS: &str = "/etc/hosts";
pub(crate) const HOSTS_FILE_MODE: u32 = 0o644;

/// The file of a pod with a network of its own.
pub(crate) fn managed(
    ips: &[String],
    hostname: &str,
    domain: &str,
    aliases: &[HostAlias],
) -> String {
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n\
         127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\n\
         fe00::1\tip6-allnodes\n\
         fe00::2\tip6-allrouters\n",
    );
    for ip in ips {
        if domain.is_empty() {
            text.push_str(&format!("{ip}\t{hostname}\n"));
        } else {
            text.push_str(&format!("{ip}\t{hostname}.{domain}\t{hostname}\n"));
        }
    }
    push_aliases(&mut text, aliases);
    text
}

/// The file of a pod on the node's network: the node's own, byte by byte, plus the pod's aliases.
pub(crate) fn of_node(node_file: &[u8], aliases: &[HostAlias]) -> Vec<u8> {
    let mut added = String::new();
    push_aliases(&mut added, aliases);
    let first: &[u8] = b"# Kubernetes-managed hosts file (host network).\n";
    [first, node_file, added.as_bytes()].concat()
}

fn push_aliases(text: &mut String, aliases: &[HostAlias]) {
    if aliases.is_empty() {
        return;
    }
    text.push_str("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        text.push_str(&format!("{}\t{names}\n", alias.ip));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Nothing of the node's own file is lost or changed, and every alias has a line.
        #[test]
        fn any_node_file_is_kept(
            file in prop_oneof![
                "(\\PC{0,20}\n?){0,20}".prop_map(String::into_bytes),
                prop::collection::vec(any::<u8>(), 0..400),
            ],
            names in prop::collection::vec("[a-z]{1,5}", 0..4),
        ) {
            let alias = HostAlias { ip: "10.1.1.1".into(), hostnames: Some(names.clone()) };
            let text = of_node(&file, &[alias]);
            let rest = text.strip_prefix(b"# Kubernetes-managed hosts file (host network).\n").unwrap();
            let added = rest.strip_prefix(file.as_slice()).unwrap();
            let expected = format!("\n# Entries added by HostAliases.\n10.1.1.1\t{}\n", names.join("\t"));
            prop_assert_eq!(added, expected.as_bytes());
        }
    }

    fn alias() -> HostAlias {
        HostAlias {
            ip: "10.1.1.1".into(),
            hostnames: Some(vec!["db".into(), "db.local".into()]),
        }
    }

    #[test]
    fn managed_file_names_every_address_of_the_pod() {
        let text = managed(&["10.0.0.2".into(), "fd00::2".into()], "web", "", &[]);
        assert!(text.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"));
        assert!(text.ends_with("fe00::2\tip6-allrouters\n10.0.0.2\tweb\nfd00::2\tweb\n"));

        let text = managed(&["10.0.0.2".into()], "web", "sub.ns.svc.cl", &[alias()]);
        assert!(text.ends_with(
            "10.0.0.2\tweb.sub.ns.svc.cl\tweb\n\n# Entries added by HostAliases.\n10.1.1.1\tdb\tdb.local\n"
        ));
    }

    #[test]
    fn host_network_file_is_the_nodes_own() {
        assert_eq!(
            of_node(b"127.0.0.1 localhost\n", &[alias()]),
            b"# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n\n\
             # Entries added by HostAliases.\n10.1.1.1\tdb\tdb.local\n"
        );
    }
}
