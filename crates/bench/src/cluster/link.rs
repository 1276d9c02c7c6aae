//! A host of its own behind a network of a gigabit a second, which is where those who ask a node for something are.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::net::TcpStream;

/// The node's end of the link: agents listen there and nowhere else.
pub const NODE: Ipv4Addr = Ipv4Addr::new(10, 231, 255, 1);
/// The host's end.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 231, 255, 2);
pub const SPEED: &str = "1gbit";

/// Gone when dropped.
pub struct Link {
    name: String,
}

impl Link {
    pub fn up() -> Result<Self> {
        let name = format!("krablet{}", std::process::id());
        run(&format!("ip netns add {name}"))?;
        let link = Self { name };
        let Self { name } = &link;
        for command in [
            format!("ip link add {name} type veth peer name eth0 netns {name}"),
            format!("ip addr add {NODE}/30 dev {name}"),
            format!("ip link set {name} up"),
            format!("ip -n {name} addr add {HOST}/30 dev eth0"),
            format!("ip -n {name} link set eth0 up"),
            format!("ip -n {name} route add default via {NODE}"),
            // What comes from the node is what is measured.
            format!("tc qdisc add dev {name} root tbf rate {SPEED} burst 256kb latency 50ms"),
        ] {
            run(&command)?;
        }
        Ok(link)
    }

    /// A connection from the host to an address of the node's, or of a pod's on it.
    pub async fn connect(&self, to: SocketAddr) -> Result<TcpStream> {
        let place = format!("/run/netns/{}", self.name);
        let connect = move || -> Result<std::net::TcpStream> {
            let space = std::fs::File::open(&place).context(place)?;
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))?;
            let stream = std::net::TcpStream::connect(to)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        // A thread of its own: it stays where it went.
        let (done, stream) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || done.send(connect()));
        Ok(TcpStream::from_std(stream.await??)?)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Err(why) = run(&format!("ip netns del {}", self.name)) {
            eprintln!("{why:#}");
        }
    }
}

fn run(command: &str) -> Result<()> {
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output();
    let output = output.with_context(|| command.to_owned())?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command}: {told}");
    Ok(())
}
