//! TCP connections, and connection errors in the words users know.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};

use crate::NetError;

/// `host:port`, with IPv6 addresses in brackets, unless they came with them.
pub fn join_host_port(host: &str, port: u16) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// A connection to the first address of `host` that takes one.
///
/// No SO_LINGER: on Linux it would let `close` hold up the thread until a silent peer answers,
/// and it does not shorten TIME-WAIT.
pub async fn connect(host: &str, port: u16, deadline: Instant) -> Result<TcpStream, NetError> {
    let timed_out = || NetError::ConnectTimeout(join_host_port(host, port));
    // An address is not looked up: that would cost a thread of the blocking pool.
    if let Ok(ip) = host.parse::<IpAddr>() {
        let address = SocketAddr::new(ip, port);
        return timeout_at(deadline, TcpStream::connect(address))
            .await
            .map_err(|_| timed_out())?
            .map_err(|e| refused(&join_host_port(host, port), &e));
    }
    let attempt = async {
        let addresses = lookup_host((host, port))
            .await
            .map_err(|_| no_such_host(host))?;
        let mut last = no_such_host(host);
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(e) => last = refused(&address.to_string(), &e),
            }
        }
        Err(last)
    };
    timeout_at(deadline, attempt)
        .await
        .map_err(|_| timed_out())?
}

fn no_such_host(host: &str) -> NetError {
    NetError::Connect(format!("dial tcp: lookup {host}: no such host"))
}

fn refused(address: &str, error: &io::Error) -> NetError {
    NetError::Connect(format!("dial tcp {address}: connect: {}", words(error)))
}

/// An error of the system without Rust's decoration: `connection refused`.
pub fn words(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text
        .split_once(" (os error")
        .map_or(text.as_str(), |(t, _)| t);
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}
