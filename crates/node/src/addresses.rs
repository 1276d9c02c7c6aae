//! Under which addresses the node is reached.

use std::net::IpAddr;
use std::time::Duration;

use krablet_linux::MachineFacts;
use krablet_pod::api::NodeAddress;

use crate::config::NodeConfig;

/// How long the resolver may keep the node from telling its address.
const LOOKUP_LIMIT: Duration = Duration::from_secs(1);

/// The address list for a status that has `old`; none leaves it alone. With an external cloud
/// provider the node only gives a first hint: what is there already is the provider's.
pub(crate) fn addresses(
    config: &NodeConfig,
    old: &[NodeAddress],
    ips: Option<&[IpAddr]>,
) -> Option<Vec<NodeAddress>> {
    let hostname = address("Hostname", config.hostname.clone());
    if config.registration.external_cloud_provider {
        if !old.is_empty() {
            return None;
        }
        if config.node_ips.is_empty() {
            return Some(vec![hostname]);
        }
    }
    let ips = ips?.iter().map(|ip| address("InternalIP", ip.to_string()));
    Some(ips.chain([hostname]).collect())
}

fn address(kind: &str, address: String) -> NodeAddress {
    NodeAddress {
        type_: kind.to_owned(),
        address,
    }
}

/// What an external cloud provider is told of `--node-ip`.
pub(crate) fn provided_ip(config: &NodeConfig) -> Option<String> {
    let given = specified(config);
    let tell = config.registration.external_cloud_provider && !given.is_empty();
    let texts: Vec<String> = given.iter().map(IpAddr::to_string).collect();
    tell.then(|| texts.join(","))
}

fn specified(config: &NodeConfig) -> Vec<IpAddr> {
    let given = config.node_ips.iter().filter(|ip| !ip.is_unspecified());
    given.take(2).copied().collect()
}

/// The node's own addresses: those given, else one that is found by the host name, by the node's
/// name, by the default route, or on an interface. One found before is kept while the machine has
/// it, so a resolver that comes and goes does not move the node.
pub async fn node_ips(
    config: &NodeConfig,
    facts: &dyn MachineFacts,
    last: &[IpAddr],
) -> Result<Vec<IpAddr>, String> {
    let given = specified(config);
    for ip in &given {
        validate(*ip, facts).await?;
    }
    if !given.is_empty() {
        return Ok(given);
    }
    if let Ok(ip) = config.hostname.parse() {
        return Ok(vec![ip]);
    }
    if let [last] = last
        && validate(*last, facts).await.is_ok()
    {
        return Ok(vec![*last]);
    }
    match found(config, facts).await {
        Some(ip) => Ok(vec![ip]),
        None => Err(format!("can't get ip address of node {}", config.name)),
    }
}

async fn found(config: &NodeConfig, facts: &dyn MachineFacts) -> Option<IpAddr> {
    let prefer_v6 = config.node_ips.first().is_some_and(IpAddr::is_ipv6);
    let looked_up = tokio::time::timeout(LOOKUP_LIMIT, facts.lookup(&config.name)).await;
    let mut named = Vec::new();
    for ip in looked_up.unwrap_or_default() {
        if validate(ip, facts).await.is_ok() {
            named.push(ip);
        }
    }
    let preferred = |ips: &[IpAddr]| {
        let wanted = ips.iter().find(|ip| ip.is_ipv6() == prefer_v6);
        wanted.or(ips.first()).copied()
    };
    if let Some(ip) = preferred(&named) {
        return Some(ip);
    }
    for v6 in [prefer_v6, !prefer_v6] {
        if let Some(ip) = facts.default_ip(v6).await {
            return Some(ip);
        }
    }
    preferred(&(config.interface_ips)())
}

async fn validate(ip: IpAddr, facts: &dyn MachineFacts) -> Result<(), String> {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let fault = if ip.is_loopback() {
        "nodeIP can't be loopback address".to_owned()
    } else if ip.is_multicast() {
        "nodeIP can't be a multicast address".to_owned()
    } else if link_local {
        "nodeIP can't be a link-local unicast address".to_owned()
    } else if ip.is_unspecified() {
        "nodeIP can't be an all zeros address".to_owned()
    } else if !facts.owns(ip).await {
        format!(
            "node IP: {:?} not found in the host's network interfaces",
            ip.to_string()
        )
    } else {
        return Ok(());
    };
    Err(format!("failed to validate nodeIP: {fault}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_linux::facts::MemoryFacts;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn config(node_ips: &[&str]) -> NodeConfig {
        let mut config = NodeConfig::new("n1");
        config.node_ips = node_ips.iter().map(|text| ip(text)).collect();
        config
    }

    fn shown(list: Option<Vec<NodeAddress>>) -> String {
        let text = |a: NodeAddress| format!("{}={}", a.type_, a.address);
        let list = list.map(|list| list.into_iter().map(text).collect::<Vec<_>>().join(" "));
        list.unwrap_or_else(|| "kept".to_owned())
    }

    #[test]
    fn addresses_with_and_without_a_cloud_provider() {
        let old = [address("InternalIP", "9.9.9.9".to_owned())];
        let dual = [ip("10.0.0.1"), ip("fd00::1")];
        let mut plain = config(&[]);
        plain.hostname = "host".to_owned();
        let cases = [
            (
                &plain,
                &old[..],
                Some(&dual[..1]),
                "InternalIP=10.0.0.1 Hostname=host",
            ),
            (
                &plain,
                &old[..0],
                Some(&dual[..]),
                "InternalIP=10.0.0.1 InternalIP=fd00::1 Hostname=host",
            ),
            (&plain, &old[..], None, "kept"),
        ];
        for (config, old, ips, expected) in cases {
            assert_eq!(shown(addresses(config, old, ips)), expected);
        }
        plain.registration.external_cloud_provider = true;
        assert_eq!(shown(addresses(&plain, &old, Some(&dual))), "kept");
        assert_eq!(shown(addresses(&plain, &[], Some(&dual))), "Hostname=host");
        plain.node_ips = vec![dual[0]];
        let hinted = addresses(&plain, &[], Some(&dual[..1]));
        assert_eq!(shown(hinted), "InternalIP=10.0.0.1 Hostname=host");
    }

    #[test]
    fn the_cloud_provider_is_told_of_given_addresses_only() {
        let mut config = config(&["10.0.0.1", "fd00::1"]);
        assert_eq!(provided_ip(&config), None);
        config.registration.external_cloud_provider = true;
        assert_eq!(provided_ip(&config).as_deref(), Some("10.0.0.1,fd00::1"));
        config.node_ips = vec![ip("::")];
        assert_eq!(provided_ip(&config), None);
    }

    #[tokio::test(start_paused = true)]
    async fn own_addresses_are_found_in_a_fixed_order() {
        let facts = MemoryFacts::ordinary();
        facts.set_addresses(vec![ip("10.0.0.1"), ip("10.0.0.2"), ip("fd00::1")]);
        let ask = async |config: &NodeConfig, last: &[IpAddr]| {
            let found = node_ips(config, &facts, last).await;
            found.map(|ips| {
                ips.iter()
                    .map(IpAddr::to_string)
                    .collect::<Vec<_>>()
                    .join(",")
            })
        };
        let found = |text: &str| Ok(text.to_owned());
        assert_eq!(
            ask(&config(&["10.0.0.2", "fd00::1"]), &[]).await,
            found("10.0.0.2,fd00::1")
        );
        assert_eq!(ask(&config(&["::"]), &[]).await, found("fd00::1"));
        assert_eq!(ask(&config(&[]), &[]).await, found("10.0.0.1"));
        facts.set_name("n1", vec![ip("127.0.1.1"), ip("10.0.0.2")]);
        assert_eq!(ask(&config(&[]), &[]).await, found("10.0.0.2"));
        assert_eq!(
            ask(&config(&[]), &[ip("10.0.0.1")]).await,
            found("10.0.0.1")
        );
        assert_eq!(
            ask(&config(&[]), &[ip("10.0.0.9")]).await,
            found("10.0.0.2")
        );
        let mut by_host = config(&[]);
        by_host.hostname = "192.0.2.7".to_owned();
        assert_eq!(ask(&by_host, &[]).await, found("192.0.2.7"));
        let foreign = ask(&config(&["192.0.2.7"]), &[]).await;
        assert_eq!(
            foreign.unwrap_err(),
            "failed to validate nodeIP: node IP: \"192.0.2.7\" not found in the host's network interfaces"
        );
        let loopback = ask(&config(&["127.0.0.1"]), &[]).await;
        assert_eq!(
            loopback.unwrap_err(),
            "failed to validate nodeIP: nodeIP can't be loopback address"
        );
        facts.set_addresses(Vec::new());
        let nothing = ask(&config(&[]), &[]).await;
        assert_eq!(nothing.unwrap_err(), "can't get ip address of node n1");
    }
}
