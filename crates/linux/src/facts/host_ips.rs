//! The node's addresses as its pods are told them.

use std::net::IpAddr;

use tokio::sync::watch;

/// One owner finds the addresses; whoever needs them reads them here when it does, since a node may get its address
/// after its agent has started, or another one later. At most one per family, the preferred first; none while they
/// are not known.
#[derive(Clone, Debug)]
pub struct HostIps(watch::Receiver<Vec<IpAddr>>);

impl HostIps {
    pub fn new(known: watch::Receiver<Vec<IpAddr>>) -> Self {
        Self(known)
    }

    /// Addresses that do not change.
    pub fn fixed(ips: impl IntoIterator<Item = IpAddr>) -> Self {
        Self(watch::Sender::new(ips.into_iter().collect()).subscribe())
    }

    pub fn now(&self) -> Vec<IpAddr> {
        self.0.borrow().clone()
    }

    pub fn texts(&self) -> Vec<String> {
        self.0.borrow().iter().map(IpAddr::to_string).collect()
    }
}

impl Default for HostIps {
    fn default() -> Self {
        Self::fixed([])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_what_is_known_now() {
        let owner = watch::Sender::new(Vec::new());
        let ips = HostIps::new(owner.subscribe());
        assert!(ips.now().is_empty());
        owner.send_replace(vec![IpAddr::from([192, 0, 2, 1])]);
        assert_eq!(ips.texts(), ["192.0.2.1"]);
        drop(owner);
        assert_eq!(ips.now(), [IpAddr::from([192, 0, 2, 1])]);
        assert!(HostIps::default().texts().is_empty());
    }
}
