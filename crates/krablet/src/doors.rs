//! Opens the agent's doors: the socket of its own commands, the one of the pod resources service, health, the read-only
//! port and the HTTPS port.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use krablet_agent::AgentHandle;
use krablet_config::Loaded;
use krablet_cri::RuntimeClient;
use krablet_identity::SeenNode;
use krablet_kube::Kube;
use krablet_pod::paths::RootDir;
use krablet_server::{HealthRecord, Listener, OpenParts, Statistics};
use tokio::task::JoinSet;
use tracing::info;

use crate::logging::Verbosity;
use crate::view::AgentView;
use crate::{control_socket, pod_resources, secure};

/// What the doors lead to.
pub struct Doors<'a> {
    pub loaded: &'a Loaded,
    pub root: &'a RootDir,
    pub node_name: &'a str,
    pub node_ips: &'a [IpAddr],
    pub view: Arc<AgentView>,
    pub handle: &'a AgentHandle,
    /// `None` on a node that stands alone.
    pub cluster: Option<ClusterDoor>,
    pub runtime: Arc<RuntimeClient>,
    pub statistics: Arc<dyn Statistics>,
    pub verbosity: Verbosity,
}

/// What the HTTPS port needs of a cluster.
pub struct ClusterDoor {
    pub kube: Kube,
    /// The Node object as last seen.
    pub node: SeenNode,
}

impl Doors<'_> {
    pub async fn open(self, tasks: &mut JoinSet<()>) -> Result<()> {
        let view = &self.view;
        let record = HealthRecord::default();
        let control = Listener::unix(&control_socket(self.root.path()))?;
        tasks.spawn(krablet_server::serve_control(control, view.clone()));
        pod_resources::open(self.root.path(), view.clone(), tasks)?;
        let server = &self.loaded.config.server;
        let health = &server.healthz_bind_address;
        if let Some(address) = address("healthzBindAddress", health, server.healthz_port)? {
            let listener = Listener::tcp(address).await.context("healthzPort")?;
            let door = krablet_server::serve_healthz(listener, view.clone(), record.clone());
            tasks.spawn(door);
        }
        if !server.enable_server {
            return Ok(());
        }
        if let Some(address) = address("address", &server.address, server.read_only_port)? {
            let listener = Listener::tcp(address).await.context("readOnlyPort")?;
            info!(address = %address, "Serving the read-only port");
            let parts = OpenParts {
                view: view.clone(),
                record: record.clone(),
                statistics: Some(self.statistics.clone()),
            };
            let requests = view.counted().http.clone();
            tasks.spawn(krablet_server::serve_read_only(listener, parts, requests));
        }
        if let Some(address) = address("address", &server.address, server.port)? {
            secure::open(self, address, record, tasks).await?;
        }
        Ok(())
    }
}

/// Port 0 means that the door stays shut.
fn address(field: &str, ip: &str, port: i32) -> Result<Option<SocketAddr>> {
    let port = u16::try_from(port).unwrap_or_default();
    if port == 0 {
        return Ok(None);
    }
    let ip: IpAddr = ip
        .parse()
        .with_context(|| format!("{field}: {ip:?} is no address"))?;
    Ok(Some(SocketAddr::new(ip, port)))
}
