//! Ports for servers that cannot be told to choose one themselves.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A loopback port that nobody listens on and that this process was not given before.
pub fn free() -> Result<u16> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        if given.insert(port) {
            return Ok(port);
        }
    }
}

/// Below the ports that the kernel gives to outgoing connections.
const STEADY: std::ops::Range<u16> = 12_000..28_000;

/// The same for a server that goes away and comes back: no connection of somebody else's takes the
/// port in between.
pub fn steady() -> Result<u16> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    // Processes begin at different places, so that they do not race for the same port.
    let size = STEADY.end - STEADY.start;
    let seed = std::process::id().wrapping_mul(2_654_435_761) >> 16;
    let begin = u16::try_from(seed % u32::from(size))?;
    (0..size)
        .map(|step| STEADY.start + (begin + step) % size)
        .find(|port| {
            !given.contains(port)
                && TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok()
                && given.insert(*port)
        })
        .with_context(|| format!("all ports of {STEADY:?} are taken"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_port_is_given_twice() {
        let ports = [(); 5].map(|()| super::steady().unwrap());
        let apart: std::collections::BTreeSet<u16> = ports.into_iter().collect();
        assert_eq!(apart.len(), 5);
        assert!(apart.iter().all(|port| super::STEADY.contains(port)));
    }
}
