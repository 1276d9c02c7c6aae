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
/// Of the link and of the host's network. There is one of these addresses, so there is one of these names: what a benchmark
/// that was killed has left is found by it.
const NAME: &str = "krablet-bench";

/// Gone when dropped.
pub struct Link(());

impl Link {
    pub fn up() -> Result<Self> {
        // There is hardly ever anything to take down; what stays in the way, the commands below tell of.
        let _ = down();
        run(&format!("ip netns add {NAME}"))?;
        let link = Self(());
        for command in [
            format!("ip link add {NAME} type veth peer name eth0 netns {NAME}"),
            format!("ip addr add {NODE}/30 dev {NAME}"),
            format!("ip link set {NAME} up"),
            format!("ip -n {NAME} addr add {HOST}/30 dev eth0"),
            format!("ip -n {NAME} link set eth0 up"),
            format!("ip -n {NAME} route add default via {NODE}"),
            // What comes from the node is what is measured.
            format!("tc qdisc add dev {NAME} root tbf rate {SPEED} burst 256kb latency 50ms"),
        ] {
            run(&command)?;
        }
        Ok(link)
    }

    /// A connection from the host to an address of the node's, or of a pod's on it.
    pub async fn connect(&self, to: SocketAddr) -> Result<TcpStream> {
        let place = format!("/run/netns/{NAME}");
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
        if let Err(why) = down() {
            eprintln!("{why:#}");
        }
    }
}

/// The link first: both of its ends are gone when the command is through, while those of a network go some time after it.
fn down() -> Result<()> {
    let link = run(&format!("ip link del {NAME}"));
    run(&format!("ip netns del {NAME}"))?;
    link
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
