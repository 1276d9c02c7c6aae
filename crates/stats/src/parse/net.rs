//! `/proc/PID/net/dev`.

use crate::reading::{Interface, Traffic};

/// Devices that would count traffic twice, or traffic that leaves nobody.
const LEFT_OUT: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

pub fn interfaces(text: &str) -> Vec<Interface> {
    text.lines().filter_map(interface).collect()
}

fn interface(line: &str) -> Option<Interface> {
    let (name, rest) = line.split_once(':')?;
    let name = name.trim();
    if LEFT_OUT.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    let mut numbers = rest.split_ascii_whitespace();
    let mut side = |skip: usize| {
        let mut next = || numbers.next()?.parse().ok();
        let traffic = Traffic {
            bytes: next()?,
            packets: next()?,
            errors: next()?,
            dropped: next()?,
        };
        for _ in 0..skip {
            numbers.next()?;
        }
        Some(traffic)
    };
    Some(Interface {
        name: name.to_owned(),
        received: side(4)?,
        sent: side(0)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_and_what_does_not() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
            lo: 59 7 0 0 0 0 0 0 59 7 0 0 0 0 0 0\n  \
            eth0: 100 2 3 4 0 0 0 5 200 6 7 8 0 0 0 0\n\
            vethab12@if3: 1 1 1 1 0 0 0 0 1 1 1 1 0 0 0 0\nbond0:1 2 3\n";
        let found = interfaces(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "eth0");
        let numbers = |t: Traffic| [t.bytes, t.packets, t.errors, t.dropped];
        assert_eq!(numbers(found[0].received), [100, 2, 3, 4]);
        assert_eq!(numbers(found[0].sent), [200, 6, 7, 8]);
    }
}
