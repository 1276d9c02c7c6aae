//! The names and addresses a node is reached by, as they stand in its serving certificate.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::NodeAddress;
use rcgen::SanType;
use x509_parser::extensions::{GeneralName, SubjectAlternativeName};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::csr::wrong;
use crate::{IdentityError, Pair};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    pub hosts: BTreeSet<String>,
    pub addresses: BTreeSet<IpAddr>,
}

impl Names {
    /// Of the Node object.
    pub fn of_node(addresses: &[NodeAddress]) -> Self {
        let mut names = Self::default();
        for NodeAddress { address, type_ } in addresses.iter().filter(|a| !a.address.is_empty()) {
            let ip: Option<IpAddr> = address.parse().ok();
            match (type_.as_str(), ip) {
                ("Hostname" | "InternalIP" | "ExternalIP", Some(ip)) => {
                    names.addresses.insert(ip);
                }
                ("Hostname", None) | ("InternalDNS" | "ExternalDNS", _) => {
                    names.hosts.insert(address.clone());
                }
                _ => {}
            }
        }
        names
    }

    /// Whether they are enough to be reached by: an address, or with `host_alone` a name.
    pub fn suffice(&self, host_alone: bool) -> bool {
        !self.addresses.is_empty() || host_alone && !self.hosts.is_empty()
    }

    /// Whether a certificate is for all of them.
    pub(crate) fn are_in(&self, pair: &Pair) -> bool {
        let leaf = pair.certified().cert.first();
        let found = leaf.and_then(|leaf| {
            let (_, leaf) = X509Certificate::from_der(leaf).ok()?;
            let names = leaf.subject_alternative_name().ok()??;
            Some(Self::of(names.value))
        });
        let found = found.unwrap_or_default();
        self.hosts.is_subset(&found.hosts) && self.addresses.is_subset(&found.addresses)
    }

    pub(crate) fn of(extension: &SubjectAlternativeName<'_>) -> Self {
        let mut names = Self::default();
        for name in &extension.general_names {
            match name {
                GeneralName::DNSName(host) => {
                    names.hosts.insert((*host).to_owned());
                }
                GeneralName::IPAddress(bytes) => names.addresses.extend(ip(bytes)),
                _ => {}
            }
        }
        names
    }

    pub(crate) fn alternatives(&self) -> Result<Vec<SanType>, IdentityError> {
        let host = |host: &String| host.as_str().try_into().map(SanType::DnsName);
        let hosts: Result<Vec<_>, _> = self.hosts.iter().map(host).collect();
        let mut all = hosts.map_err(wrong)?;
        all.extend(self.addresses.iter().copied().map(SanType::IpAddress));
        Ok(all)
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let four: Result<[u8; 4], _> = bytes.try_into();
    let sixteen: Result<[u8; 16], _> = bytes.try_into();
    four.map(IpAddr::from).or(sixteen.map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_nodes() {
        let named = |list: &[(&str, &str)]| {
            let address = |(type_, address): &(&str, &str)| NodeAddress {
                type_: (*type_).to_owned(),
                address: (*address).to_owned(),
            };
            let list: Vec<_> = list.iter().map(address).collect();
            let names = Names::of_node(&list);
            (
                names.hosts.iter().cloned().collect::<Vec<_>>().join(" "),
                names
                    .addresses
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(" "),
                names.suffice(false),
                names.suffice(true),
            )
        };
        assert_eq!(named(&[]), (String::new(), String::new(), false, false));
        assert_eq!(
            named(&[("Hostname", "n1"), ("InternalDNS", "n1.local")]),
            ("n1 n1.local".into(), String::new(), false, true)
        );
        assert_eq!(
            named(&[
                ("InternalIP", "10.0.0.1"),
                ("ExternalIP", "fd00::1"),
                ("ExternalIP", "no address"),
                ("Hostname", "10.0.0.2"),
                ("Hostname", ""),
                ("Other", "x"),
            ]),
            (
                String::new(),
                "10.0.0.1 10.0.0.2 fd00::1".into(),
                true,
                true
            )
        );
    }
}
