//! What one client may take of what there is for all: who has as many things under way as he may is sent away, and others
//! never notice.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who counts as one: an address of IPv4, or the /64 that one of IPv6 lies in, for a single machine may have all of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Origin(IpAddr);

impl From<IpAddr> for Origin {
    fn from(address: IpAddr) -> Self {
        const NETWORK: u128 = !0 << 64;
        // On a socket for both families IPv4 looks like IPv6: all of it would be in one network.
        Self(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

/// How many things each has under way. Clones are one.
#[derive(Clone)]
pub(crate) struct Shares {
    most: usize,
    held: Arc<Mutex<BTreeMap<Origin, usize>>>,
}

impl Shares {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            held: Arc::default(),
        }
    }

    /// `None` for who has as many as he may. Of whom nothing is known, nothing is counted.
    pub(crate) fn take(&self, of: Option<Origin>) -> Option<Share> {
        if let Some(origin) = of {
            let mut held = self.lock();
            let count = held.entry(origin).or_default();
            if *count >= self.most {
                return None;
            }
            *count += 1;
        }
        let shares = self.clone();
        Some(Share { shares, of })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Origin, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}

/// One thing that somebody has under way, until dropped.
pub(crate) struct Share {
    shares: Shares,
    of: Option<Origin>,
}

impl Drop for Share {
    fn drop(&mut self) {
        let Some(origin) = self.of else {
            return;
        };
        let mut held = self.shares.lock();
        if let Some(count) = held.get_mut(&origin) {
            *count -= 1;
            if *count == 0 {
                held.remove(&origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_counts_as_one() {
        let cases = [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("::ffff:10.0.0.1", "::ffff:10.0.0.2", false),
            ("fd00:0:0:1::1", "fd00:0:0:1:ffff::2", true),
            ("fd00:0:0:1::1", "fd00:0:0:2::1", false),
            ("127.0.0.1", "::1", false),
        ];
        for (one, other, same) in cases {
            let origin = |text: &str| Origin::from(text.parse::<IpAddr>().unwrap());
            assert_eq!(origin(one) == origin(other), same, "{one} {other}");
        }
    }

    #[test]
    fn everybody_has_his_own() {
        let shares = Shares::new(2);
        let origin = |text: &str| Some(Origin::from(text.parse::<IpAddr>().unwrap()));
        let (one, other) = (origin("10.0.0.1"), origin("10.0.0.2"));
        let first = shares.take(one);
        let second = shares.take(one);
        assert!(first.is_some() && second.is_some() && shares.take(one).is_none());
        assert!(shares.take(other).is_some());
        drop(first);
        assert!(shares.take(one).is_some(), "again, with the first gone");
        let unknown: Vec<_> = (0..9).map(|_| shares.take(None)).collect();
        assert!(unknown.iter().all(Option::is_some));
        drop((second, unknown));
        assert!(shares.is_empty());
    }
}
