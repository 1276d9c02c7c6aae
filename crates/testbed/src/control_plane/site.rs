//! A control plane's place on the machine: directory, keeper, certificates, command lines.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use serde_json::Value;

use super::client::{Client, Credentials};
use super::components::{self, API_SERVICE, Component, FRONT_PROXY, Site};
use super::kubeconfig::{self, Kubeconfig, Trust, User, write_private};
use super::objects::Token;
use super::pki::{self, Authority, ClientCertificate, Pair};
use super::{ControlPlane, ControlPlaneOptions};
use crate::keeper::Keeper;
use crate::parts::{self, Part};
use crate::{cache, layout, ports, vm};

/// The group that may do everything.
const MASTERS: &str = "system:masters";

/// A control plane whose keeper is on watch and whose components are not started yet.
pub fn prepare(options: ControlPlaneOptions) -> Result<ControlPlane> {
    let mut wanted: Vec<Part> = options
        .components()
        .into_iter()
        .map(Component::part)
        .collect();
    wanted.push(Part::Kubectl);
    let bins = parts::ensure(&wanted)?;
    crate::keeper::program()?;
    let site = Site {
        dir: PathBuf::new(),
        etcd_port: ports::steady()?,
        port: ports::steady()?,
        address: own_address(),
    };
    let authority = Authority::new("kubernetes")?;
    let own = authority.pair();
    let admin = authority.client(&ClientCertificate::new("kubernetes-admin", MASTERS))?;
    let admin = Client::new(
        site.port,
        &own.certificate,
        Credentials::Certificate(&admin),
    )?;
    let registry = cache::lock("beds")?;
    let (name, dir) = claim()?;
    let keeper = match watched(&dir, &bins) {
        Ok(keeper) => keeper,
        Err(why) => {
            // No keeper watches over it yet.
            let _ = fs::remove_dir_all(&dir);
            return Err(why);
        }
    };
    drop(registry);
    let plane = ControlPlane {
        name,
        site: Site { dir, ..site },
        bins,
        keeper: Arc::new(Mutex::new(keeper)),
        options,
        foreign: Authority::new("kubernetes")?,
        token: Token::from_digits(&cache::sha256(own.key.as_bytes())),
        authority,
        admin,
        pids: Mutex::new(BTreeMap::new()),
    };
    plane.write_certificates()?;
    Ok(plane)
}

/// A directory of its own among those of the beds.
fn claim() -> Result<(String, PathBuf)> {
    let root = layout::beds_root();
    fs::create_dir_all(&root).with_context(|| format!("making {}", root.display()))?;
    loop {
        let name = format!("plane{}", layout::unique());
        let dir = root.join(&name);
        match fs::create_dir(&dir) {
            Ok(()) => return Ok((name, dir)),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e).with_context(|| format!("making {}", dir.display())),
        }
    }
}

fn watched(dir: &Path, bins: &parts::Bins) -> Result<Keeper> {
    let spec = format!(
        "registry={}\npath={}\n",
        cache::lock_path("beds")?.display(),
        bins.path_variable()
    );
    fs::write(dir.join("bed.spec"), spec)?;
    Keeper::start(dir)
}

/// The address of the interface that leads to the world, found without sending anything.
fn own_address() -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(198, 51, 100, 1), 9)).ok()?;
    match socket.local_addr().ok()?.ip() {
        IpAddr::V4(address) if !address.is_loopback() && !address.is_unspecified() => Some(address),
        _ => None,
    }
}

/// Kubeconfig files; every path is readable by root alone.
impl ControlPlane {
    /// The file of an administrator who may do everything.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.site.kubeconfig("admin")
    }

    /// The file a node joins with: a bootstrap token, and nothing else but the authority.
    pub fn bootstrap_kubeconfig(&self) -> PathBuf {
        self.site.kubeconfig("bootstrap")
    }

    /// The token in it.
    pub fn bootstrap_token(&self) -> String {
        self.token.to_string()
    }

    /// A file with the certificate of the node of that name, as `kubeadm init` leaves on its machine.
    pub fn node_kubeconfig(&self, name: &str) -> Result<PathBuf> {
        let user = User::Certificate(ClientCertificate::node(name));
        let wish = Kubeconfig {
            user,
            ..Kubeconfig::default()
        };
        self.kubeconfig_with(&format!("node-{name}"), &wish)
    }

    /// A file of that name in the control plane's directory that says what is wished for.
    pub fn kubeconfig_with(&self, file: &str, wish: &Kubeconfig) -> Result<PathBuf> {
        let path = self.site.kubeconfig(file);
        let text = serde_json::to_string_pretty(&self.kubeconfig_value(wish)?)?;
        write_private(&path, &text)?;
        Ok(path)
    }

    /// The same as a value, for whoever wants to change it before it is written. It is JSON, which is
    /// YAML too.
    pub fn kubeconfig_value(&self, wish: &Kubeconfig) -> Result<Value> {
        let authority = match wish.trust {
            Trust::Cluster => &self.authority,
            Trust::Foreign => &self.foreign,
        };
        let own = self.server_url();
        let server = wish.server.as_deref().unwrap_or(&own);
        let with_pair = |pair: Pair| kubeconfig::with_certificate(&pair);
        let (name, user) = match &wish.user {
            User::Nobody => ("nobody", serde_json::json!({})),
            User::Token(token) => (
                "tls-bootstrap-token-user",
                serde_json::json!({"token": token}),
            ),
            User::Certificate(who) => (
                who.common_name.as_str(),
                with_pair(self.authority.client(who)?),
            ),
            User::ForeignCertificate(who) => (
                who.common_name.as_str(),
                with_pair(self.foreign.client(who)?),
            ),
        };
        Ok(kubeconfig::document(
            server,
            &authority.certificate(),
            name,
            &user,
        ))
    }

    /// A client certificate of the cluster's authority, in PEM.
    pub fn client_certificate(&self, who: &ClientCertificate) -> Result<Pair> {
        self.authority.client(who)
    }

    fn write_certificates(&self) -> Result<()> {
        for sub in ["pki", "kubeconfigs", "home"] {
            fs::create_dir(self.dir().join(sub))?;
        }
        let mut names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "127.0.0.1",
            "::1",
            API_SERVICE,
        ]
        .map(str::to_owned)
        .to_vec();
        names.extend(self.site.address.map(|address| address.to_string()));
        names.push(vm::HOST.to_string());
        let front_proxy = ClientCertificate::new(FRONT_PROXY, "");
        let kubelet_client = ClientCertificate::new("kube-apiserver-kubelet-client", MASTERS);
        for (name, pair) in [
            ("ca", self.authority.pair()),
            ("apiserver", self.authority.server("kube-apiserver", names)?),
            (
                "apiserver-kubelet-client",
                self.authority.client(&kubelet_client)?,
            ),
            (FRONT_PROXY, self.authority.client(&front_proxy)?),
        ] {
            fs::write(self.site.pki(&format!("{name}.crt")), pair.certificate)?;
            write_private(self.site.pki(&format!("{name}.key")).as_ref(), &pair.key)?;
        }
        let (private, public) = pki::token_key()?;
        fs::write(self.site.pki("sa.pub"), public)?;
        write_private(self.site.pki("sa.key").as_ref(), &private)
    }

    /// Writes what depends on the ports: command lines and kubeconfigs.
    pub(super) fn write_files(&self) -> Result<()> {
        for (file, user) in [
            ("admin", certificate("kubernetes-admin", MASTERS)),
            (
                "controller-manager",
                certificate("system:kube-controller-manager", ""),
            ),
            ("scheduler", certificate("system:kube-scheduler", "")),
            ("bootstrap", User::Token(self.token.to_string())),
        ] {
            let wish = Kubeconfig {
                user,
                ..Kubeconfig::default()
            };
            self.kubeconfig_with(file, &wish)?;
        }
        let (site, options) = (&self.site, &self.options);
        for component in options.components() {
            let arguments = match component {
                Component::Etcd => components::etcd(site),
                Component::Apiserver => components::apiserver(site, &options.apiserver_args),
                Component::ControllerManager => components::controller_manager(
                    site,
                    options.signing_duration,
                    &options.controller_manager_args,
                ),
                Component::Scheduler => components::scheduler(site, &options.scheduler_args),
            };
            let program = self.bins.path(component.name())?;
            components::write_command(&site.dir, component.name(), &program, &arguments)?;
        }
        Ok(())
    }
}

fn certificate(common_name: &str, organization: &str) -> User {
    User::Certificate(ClientCertificate::new(common_name, organization))
}
