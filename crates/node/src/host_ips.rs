//! The addresses pods are told as their host's. They are those of the Node object, whoever wrote them there, so that a
//! pod, its node and a fieldRef never say different things; until there is such an object, those it would be made with.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use krablet_linux::{HostIps, MachineFacts};
use krablet_pod::api::{Node, NodeAddress};
use tokio::sync::watch;
use tracing::warn;

use crate::addresses::{addresses, node_ips};
use crate::config::NodeConfig;

/// Between looks at a machine that has no address yet.
const NO_ADDRESS_YET: Duration = Duration::from_secs(1);

/// Internal addresses before external ones, else in the Node's order; the first of all, and the first of the
/// other family.
pub fn host_ips(addresses: &[NodeAddress]) -> Vec<IpAddr> {
    let of_kind = |kind: &'static str| addresses.iter().filter(move |a| a.type_ == kind);
    let all = of_kind("InternalIP").chain(of_kind("ExternalIP"));
    let mut ips = all.filter_map(|a| a.address.parse::<IpAddr>().ok());
    let Some(first) = ips.next() else {
        return Vec::new();
    };
    let second = ips.find(|ip| ip.is_ipv6() != first.is_ipv6());
    [first].into_iter().chain(second).collect()
}

/// Those of the object if there is one, even if it has none: a cloud provider may still have to name them.
fn known(node: Option<&Node>, config: &NodeConfig, own: &[IpAddr]) -> Vec<IpAddr> {
    match node {
        Some(node) => {
            let status = node.status.as_ref();
            let listed = status.and_then(|s| s.addresses.as_deref());
            host_ips(listed.unwrap_or_default())
        }
        None => host_ips(&addresses(config, &[], Some(own)).unwrap_or_default()),
    }
}

fn publish(to: &watch::Sender<Vec<IpAddr>>, ips: Vec<IpAddr>) {
    to.send_if_modified(|held| {
        let news = *held != ips;
        *held = ips;
        news
    });
}

/// Follows the Node object and what the reporter finds.
pub(crate) struct HostIpWatch {
    config: NodeConfig,
    node: watch::Receiver<Option<Arc<Node>>>,
    own: watch::Receiver<Vec<IpAddr>>,
    known: watch::Sender<Vec<IpAddr>>,
}

impl HostIpWatch {
    pub(crate) fn build(
        config: &NodeConfig,
        node: watch::Receiver<Option<Arc<Node>>>,
        own: watch::Receiver<Vec<IpAddr>>,
    ) -> (Self, HostIps) {
        let first = known(None, config, &own.borrow());
        let known = watch::Sender::new(first);
        let ips = HostIps::new(known.subscribe());
        let watch = Self {
            config: config.clone(),
            node,
            own,
            known,
        };
        (watch, ips)
    }

    pub(crate) async fn run(mut self) {
        loop {
            let node = self.node.borrow_and_update().clone();
            let own = self.own.borrow_and_update().clone();
            publish(&self.known, known(node.as_deref(), &self.config, &own));
            tokio::select! {
                Ok(()) = self.node.changed() => {}
                Ok(()) = self.own.changed() => {}
                else => std::future::pending().await,
            }
        }
    }
}

/// The addresses of a node without a cluster: what its Node object would say, looked at as often as one would be.
pub struct OwnIps {
    config: NodeConfig,
    facts: Arc<dyn MachineFacts>,
    own: Vec<IpAddr>,
    known: watch::Sender<Vec<IpAddr>>,
}

impl OwnIps {
    pub fn build(config: NodeConfig, facts: Arc<dyn MachineFacts>) -> (Self, HostIps) {
        let own = config.found_ips.clone();
        let known = watch::Sender::new(known(None, &config, &own));
        let ips = HostIps::new(known.subscribe());
        let task = Self {
            config,
            facts,
            own,
            known,
        };
        (task, ips)
    }

    pub async fn run(mut self) {
        let mut told = None;
        loop {
            let pause = match self.own.is_empty() {
                true => NO_ADDRESS_YET,
                false => self.config.periods.update,
            };
            tokio::time::sleep(pause).await;
            let trouble = match node_ips(&self.config, &*self.facts, &self.own).await {
                Ok(ips) => {
                    publish(&self.known, known(None, &self.config, &ips));
                    self.own = ips;
                    None
                }
                Err(trouble) => Some(trouble),
            };
            if let Some(words) = &trouble
                && trouble != told
            {
                warn!(err = words, "Failed to find the addresses of the node");
            }
            told = trouble;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_linux::facts::MemoryFacts;
    use krablet_pod::api::NodeStatus;

    fn listed(text: &str) -> Vec<NodeAddress> {
        let one = |pair: &str| {
            let (kind, address) = pair.split_once('=').unwrap();
            NodeAddress {
                type_: kind.to_owned(),
                address: address.to_owned(),
            }
        };
        text.split_whitespace().map(one).collect()
    }

    fn shown(ips: &[IpAddr]) -> String {
        let texts: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
        texts.join(" ")
    }

    #[test]
    fn of_a_node_as_its_addresses_stand() {
        let cases = [
            ("", ""),
            ("Hostname=n1", ""),
            ("InternalIP=10.0.0.1 Hostname=n1", "10.0.0.1"),
            ("InternalIP=fd00::1 InternalIP=10.0.0.1", "fd00::1 10.0.0.1"),
            (
                "InternalIP=10.0.0.1 InternalIP=10.0.0.2 InternalIP=fd00::1",
                "10.0.0.1 fd00::1",
            ),
            ("ExternalIP=203.0.113.1 InternalIP=10.0.0.1", "10.0.0.1"),
            (
                "ExternalIP=2001:db8::1 InternalIP=10.0.0.1",
                "10.0.0.1 2001:db8::1",
            ),
            ("ExternalIP=203.0.113.1", "203.0.113.1"),
            ("InternalIP=odd InternalIP=10.0.0.1", "10.0.0.1"),
        ];
        for (addresses, expected) in cases {
            assert_eq!(
                shown(&host_ips(&listed(addresses))),
                expected,
                "{addresses}"
            );
        }
    }

    #[test]
    fn the_object_comes_before_what_was_found() {
        let node = |addresses: &str| Node {
            status: Some(NodeStatus {
                addresses: Some(listed(addresses)),
                ..NodeStatus::default()
            }),
            ..Node::default()
        };
        let own: Vec<IpAddr> = vec!["fd00::9".parse().unwrap(), "10.0.0.9".parse().unwrap()];
        let mut config = NodeConfig::new("n1");
        let provided = node("InternalIP=10.0.0.1 Hostname=n1");
        assert_eq!(shown(&known(None, &config, &own)), "fd00::9 10.0.0.9");
        assert_eq!(shown(&known(None, &config, &[])), "");
        assert_eq!(shown(&known(Some(&provided), &config, &own)), "10.0.0.1");
        assert_eq!(shown(&known(Some(&Node::default()), &config, &own)), "");
        // Who is told its address by a cloud provider does not guess.
        config.registration.external_cloud_provider = true;
        assert_eq!(shown(&known(None, &config, &own)), "");
        config.node_ips = own.clone();
        assert_eq!(shown(&known(None, &config, &own)), "fd00::9 10.0.0.9");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_comes_late_is_found() {
        let facts = MemoryFacts::ordinary();
        facts.set_addresses(Vec::new());
        let (task, ips) = OwnIps::build(NodeConfig::new("n1"), Arc::new(facts.clone()));
        let task = tokio::spawn(task.run());
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(shown(&ips.now()), "");
        facts.set_addresses(vec![IpAddr::from([10, 0, 0, 1])]);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(shown(&ips.now()), "10.0.0.1");
        facts.set_addresses(vec![IpAddr::from([10, 0, 0, 2])]);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(shown(&ips.now()), "10.0.0.2");
        task.abort();
    }
}
