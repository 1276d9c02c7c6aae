//! The processes of a control plane and their command lines.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::parts::Part;

/// The addresses of services. Nothing in a test bed answers there.
const SERVICES: &str = "10.96.0.0/16";
/// The first of them, under which pods know the API server.
pub const API_SERVICE: &str = "10.96.0.1";

/// Who the API server is to the servers behind it.
pub const FRONT_PROXY: &str = "front-proxy-client";

/// One process of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    Etcd,
    Apiserver,
    ControllerManager,
    Scheduler,
}

impl Component {
    /// The name of its binary, its log and its command line.
    pub fn name(self) -> &'static str {
        self.part().name()
    }

    pub(super) fn part(self) -> Part {
        match self {
            Component::Etcd => Part::Etcd,
            Component::Apiserver => Part::KubeApiserver,
            Component::ControllerManager => Part::KubeControllerManager,
            Component::Scheduler => Part::KubeScheduler,
        }
    }
}

/// Controllers of things that no node agent sees. Each costs watches and memory.
const IDLE_CONTROLLERS: &[&str] = &[
    "clusterrole-aggregation-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "endpointslice-mirroring-controller",
    "ephemeral-volume-controller",
    "horizontal-pod-autoscaler-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-expander-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "replicationcontroller-controller",
    "resourcequota-controller",
    "service-cidr-controller",
    "validatingadmissionpolicy-status-controller",
    "volumeattributesclass-protection-controller",
];

/// Where a control plane's files are and where it listens.
#[derive(Clone, Debug)]
pub struct Site {
    pub dir: PathBuf,
    pub etcd_port: u16,
    pub port: u16,
    /// The machine's own address, where it has one that others could use.
    pub address: Option<Ipv4Addr>,
}

impl Site {
    pub fn pki(&self, file: &str) -> String {
        self.dir.join("pki").join(file).display().to_string()
    }

    pub fn kubeconfig(&self, name: &str) -> PathBuf {
        self.dir.join("kubeconfigs").join(format!("{name}.conf"))
    }

    pub fn etcd_data(&self) -> PathBuf {
        self.dir.join("etcd")
    }

    pub fn log(&self, component: Component) -> PathBuf {
        self.dir.join(format!("{}.log", component.name()))
    }
}

/// The arguments of etcd: one member that forgets on power loss, which no test bed survives anyway.
pub fn etcd(site: &Site) -> Vec<String> {
    let client = format!("http://127.0.0.1:{}", site.etcd_port);
    vec![
        "--name=bed".to_owned(),
        format!("--data-dir={}", site.etcd_data().display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        // It has no peers, so any port does and nobody needs to know it.
        "--listen-peer-urls=http://127.0.0.1:0".to_owned(),
        "--initial-advertise-peer-urls=http://127.0.0.1:2380".to_owned(),
        "--initial-cluster=bed=http://127.0.0.1:2380".to_owned(),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
        "--auto-compaction-mode=revision".to_owned(),
        "--auto-compaction-retention=10000".to_owned(),
    ]
}

pub fn apiserver(site: &Site, more: &[String]) -> Vec<String> {
    let bind = site.address.map_or("127.0.0.1", |_| "0.0.0.0");
    let advertise = site.address.unwrap_or(Ipv4Addr::LOCALHOST);
    let mut arguments = vec![
        format!("--etcd-servers=http://127.0.0.1:{}", site.etcd_port),
        format!("--bind-address={bind}"),
        format!("--advertise-address={advertise}"),
        format!("--secure-port={}", site.port),
        format!("--tls-cert-file={}", site.pki("apiserver.crt")),
        format!("--tls-private-key-file={}", site.pki("apiserver.key")),
        format!("--client-ca-file={}", site.pki("ca.crt")),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--enable-bootstrap-token-auth".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
        "--allow-privileged".to_owned(),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
        format!("--service-account-key-file={}", site.pki("sa.pub")),
        format!("--service-account-signing-key-file={}", site.pki("sa.key")),
        format!(
            "--kubelet-client-certificate={}",
            site.pki("apiserver-kubelet-client.crt")
        ),
        format!(
            "--kubelet-client-key={}",
            site.pki("apiserver-kubelet-client.key")
        ),
        // Other servers may stand behind it, known by a client certificate of this name.
        format!("--requestheader-client-ca-file={}", site.pki("ca.crt")),
        format!("--requestheader-allowed-names={FRONT_PROXY}"),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        format!(
            "--proxy-client-cert-file={}",
            site.pki("front-proxy-client.crt")
        ),
        format!(
            "--proxy-client-key-file={}",
            site.pki("front-proxy-client.key")
        ),
        // Nothing answers at the addresses of services.
        "--enable-aggregator-routing".to_owned(),
        // Names of nodes on a bed are in no DNS.
        "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname".to_owned(),
        // Without this it waits a minute for watches to end that nobody ends.
        "--shutdown-send-retry-after".to_owned(),
        "--profiling=false".to_owned(),
    ];
    arguments.extend_from_slice(more);
    arguments
}

pub fn controller_manager(site: &Site, signing: Option<Duration>, more: &[String]) -> Vec<String> {
    // Those that somebody asks for are not idle.
    let lists = more.iter().filter_map(|a| a.strip_prefix("--controllers="));
    let asked_for: Vec<&str> = lists.flat_map(|list| list.split(',')).collect();
    let idle = IDLE_CONTROLLERS
        .iter()
        .filter(|name| !asked_for.contains(name))
        .fold(String::new(), |mut list, name| {
            let _ = write!(list, ",-{name}");
            list
        });
    let mut arguments = vec![
        format!(
            "--kubeconfig={}",
            site.kubeconfig("controller-manager").display()
        ),
        format!("--controllers=*{idle}"),
        "--use-service-account-credentials".to_owned(),
        format!("--service-account-private-key-file={}", site.pki("sa.key")),
        format!("--root-ca-file={}", site.pki("ca.crt")),
        format!("--cluster-signing-cert-file={}", site.pki("ca.crt")),
        format!("--cluster-signing-key-file={}", site.pki("ca.key")),
        format!("--service-cluster-ip-range={SERVICES}"),
    ];
    arguments.extend(signing.map(|time| format!("--cluster-signing-duration={}s", time.as_secs())));
    arguments.extend(alone_and_quick());
    arguments.extend_from_slice(more);
    arguments
}

pub fn scheduler(site: &Site, more: &[String]) -> Vec<String> {
    let mut arguments = vec![format!(
        "--kubeconfig={}",
        site.kubeconfig("scheduler").display()
    )];
    arguments.extend(alone_and_quick());
    arguments.extend_from_slice(more);
    arguments
}

/// Nobody to share the lead with, nobody who asks, and no waiting for one's own client.
fn alone_and_quick() -> [String; 5] {
    [
        "--leader-elect=false",
        "--secure-port=0",
        "--profiling=false",
        "--kube-api-qps=300",
        "--kube-api-burst=600",
    ]
    .map(str::to_owned)
}

/// Writes the command line where the keeper looks for it.
pub fn write_command(dir: &Path, name: &str, program: &Path, arguments: &[String]) -> Result<()> {
    // Two processors are what small machines have; more threads would only crowd out the agent.
    let mut text = format!("program={}\nenv=GOMAXPROCS=2\n", program.display());
    for argument in arguments {
        let _ = writeln!(text, "arg={argument}");
    }
    let path = dir.join(format!("{name}.command"));
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> Site {
        Site {
            dir: PathBuf::from("/bed"),
            etcd_port: 2,
            port: 3,
            address: Some(Ipv4Addr::new(192, 0, 2, 7)),
        }
    }

    #[test]
    fn what_a_test_adds_comes_last() {
        let more = ["--v=4".to_owned()];
        let last = |arguments: Vec<String>| arguments.last().cloned();
        assert_eq!(last(apiserver(&site(), &more)).as_deref(), Some("--v=4"));
        assert_eq!(last(scheduler(&site(), &more)).as_deref(), Some("--v=4"));
        let minute = Some(Duration::from_secs(60));
        let arguments = controller_manager(&site(), minute, &more);
        assert!(arguments.contains(&"--cluster-signing-duration=60s".to_owned()));
        assert_eq!(last(arguments).as_deref(), Some("--v=4"));
    }

    #[test]
    fn controllers_that_are_asked_for_run() {
        let more = ["--controllers=ephemeral-volume-controller,-ttl-controller".to_owned()];
        let controllers = |more: &[String]| {
            let arguments = controller_manager(&site(), None, more);
            let mut lists = arguments.into_iter();
            lists.find(|a| a.starts_with("--controllers=*")).unwrap()
        };
        assert!(controllers(&[]).contains(",-ephemeral-volume-controller,"));
        assert!(!controllers(&more).contains("ephemeral-volume-controller"));
        assert!(controllers(&more).contains(",-endpoints-controller,"));
    }

    #[test]
    fn a_machine_without_an_address_is_served_on_loopback() {
        let lonely = Site {
            address: None,
            ..site()
        };
        assert!(apiserver(&lonely, &[]).contains(&"--bind-address=127.0.0.1".to_owned()));
        assert!(apiserver(&site(), &[]).contains(&"--advertise-address=192.0.2.7".to_owned()));
    }
}
