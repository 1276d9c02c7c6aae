//! The HTTPS port: which certificate is shown there, and who is let in.

mod fresh;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use jiff::Timestamp;
use krablet_access::{Authenticator, Authorizer, ClientCertificates, SubjectReviews, TokenReviews};
use krablet_agent::AgentHandle;
use krablet_config::{Gate, KUBERNETES_VERSION, KubeletConfiguration, Loaded};
use krablet_identity::serving::{self, ServingFiles};
use krablet_identity::{CertStore, PairFiles, ServingDeps, ServingRotation};
use krablet_kube::Kube;
use krablet_linux::{HostFiles, SystemClock, WallClock as _};
use krablet_metrics::ProcessStats;
use krablet_pod::api::PodStatus;
use krablet_pod::observed::ObservedPod;
use krablet_pod::{PodRef, PodUid};
use krablet_server::{
    About, Access, Checkpoints, Debug, HealthRecord, Inside, Listener, NodeLogs, SecureParts,
    ServingPair, SetVerbosity, TlsLimits, Version, serve_secure,
};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use crate::checkpointing::ByRuntime;
use crate::doors::{ClusterDoor, Doors};
use crate::flagz;

use fresh::Fresh;

/// Without an API server nobody could be told from anybody else by the rules that are set: the port stays shut then,
/// and the log says what to change.
pub async fn open(
    doors: Doors<'_>,
    address: SocketAddr,
    record: HealthRecord,
    tasks: &mut JoinSet<()>,
) -> Result<()> {
    let config = &doors.loaded.config;
    if doors.cluster.is_none() && asks_the_api_server(config) {
        info!(
            "The HTTPS port stays shut: this node stands alone, and authentication.webhook or authorization.mode Webhook \
             needs an API server"
        );
        return Ok(());
    }
    let certificates = client_certificates(config)?;
    // A port that is in use ends the agent, as it does the kubelet: most likely that of another one, and the service manager
    // tries again.
    let listener = Listener::tcp(address).await.context("port")?;
    let pair = match &doors.cluster {
        Some(cluster) if config.security.server_tls_bootstrap => {
            issued_pair(&doors, cluster, tasks).await?
        }
        _ => {
            let files = serving_files(&doors).await?;
            let pair = read_pair(&files)?;
            tasks.spawn(fresh_pair(&pair, files).run());
            pair
        }
    };
    let parts = SecureParts {
        access: access(&doors, certificates.clone()),
        inside: Arc::new(House {
            handle: doors.handle.clone(),
            configuration: config.to_json(),
        }),
        view: doors.view.clone(),
        runtime: doors.runtime.clone(),
        streaming: doors.runtime.clone(),
        debugging: config.server.enable_debugging_handlers,
        idle: config
            .server
            .streaming_connection_idle_timeout
            .to_std()
            .unwrap_or_default(),
        record,
        node_logs: node_logs(doors.loaded),
        split_logs: doors.loaded.gates.enabled(Gate::PodLogsQuerySplitStreams),
        about: about(doors.loaded),
        debug: Debug {
            profiling: config.server.enable_profiling_handler,
            flags: config.server.enable_debug_flags_handler,
            verbosity: Some(set_verbosity(&doors)),
        },
        checkpoints: checkpoints(&doors),
        statistics: Some(doors.statistics.clone()),
        requests: doors.view.counted().http.clone(),
    };
    let limits = TlsLimits {
        min_version: config.security.tls_min_version.clone(),
        cipher_suites: config.security.tls_cipher_suites.clone(),
        groups: config.security.tls_curve_preferences.clone(),
    };
    keep_fresh(certificates, config, tasks);
    info!(address = %address, "Serving the HTTPS port");
    tasks.spawn(async move {
        // Nothing but a setting can be in the way, and so it will be until the next start.
        if let Err(why) = serve_secure(listener, &pair, &limits, parts).await {
            error!(err = why, "The HTTPS port cannot be served");
        }
        std::future::pending::<()>().await;
    });
    Ok(())
}

fn asks_the_api_server(config: &KubeletConfiguration) -> bool {
    let security = &config.security;
    security.authentication.webhook.enabled || security.authorization.mode == "Webhook"
}

async fn serving_files(doors: &Doors<'_>) -> Result<ServingFiles> {
    let security = &doors.loaded.config.security;
    if !security.tls_cert_file.is_empty() {
        return Ok(ServingFiles {
            certificate: PathBuf::from(&security.tls_cert_file),
            key: PathBuf::from(&security.tls_private_key_file),
        });
    }
    if security.server_tls_bootstrap {
        warn!("serverTLSBootstrap: this node stands alone, a self-signed certificate is shown");
    }
    let directory = Path::new(&doors.loaded.flags.cert_dir);
    let (name, ips) = (doors.node_name, doors.node_ips);
    serving::self_signed(directory, name, ips, &HostFiles, SystemClock.now())
        .await
        .context("--cert-dir: cannot make a serving certificate")
}

/// What the cluster issues to this node. Until it has, handshakes fail.
async fn issued_pair(
    doors: &Doors<'_>,
    cluster: &ClusterDoor,
    tasks: &mut JoinSet<()>,
) -> Result<ServingPair> {
    let (flags, security) = (&doors.loaded.flags, &doors.loaded.config.security);
    let given = (!security.tls_cert_file.is_empty()).then(|| PairFiles {
        certificate: security.tls_cert_file.clone().into(),
        key: security.tls_private_key_file.clone().into(),
    });
    let store = CertStore::open_serving(flags.cert_dir.clone().into(), Arc::new(HostFiles)).await;
    let store = store.context("--cert-dir")?.with_named(given, false);
    let (publish, mut issued) = watch::channel(None);
    let clock = Arc::new(SystemClock);
    let rotation = ServingRotation::build(ServingDeps {
        node_name: doors.node_name.to_owned(),
        node: cluster.node.clone(),
        kube: cluster.kube.clone(),
        store,
        publish,
        host_alone: doors.loaded.gates.enabled(Gate::AllowDNSOnlyNodeCSR),
        seed: clock.now().as_nanosecond() as u64,
        clock,
    });
    let (rotation, counted) = rotation.await;
    doors.view.count_serving(counted);
    tasks.spawn(rotation.run());
    let pair = ServingPair::default();
    let shown = pair.clone();
    tasks.spawn(async move {
        loop {
            let newest = issued.borrow_and_update().clone();
            if let Some(newest) = newest {
                shown.show(newest);
            }
            if issued.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    });
    Ok(pair)
}

fn set_verbosity(doors: &Doors<'_>) -> SetVerbosity {
    let verbosity = doors.verbosity.clone();
    Arc::new(move |level| verbosity.set(level))
}

fn node_logs(loaded: &Loaded) -> NodeLogs {
    let server = &loaded.config.server;
    let mut logs = NodeLogs::default();
    logs.served = server.enable_system_log_handler;
    logs.queried = server.enable_system_log_query && loaded.gates.enabled(Gate::NodeLogQuery);
    logs
}

fn about(loaded: &Loaded) -> About {
    let on = |gate| loaded.gates.enabled(gate);
    let binary = KUBERNETES_VERSION.trim_start_matches('v');
    let emulated = binary.rsplit_once('.').map_or(binary, |(minor, _)| minor);
    let started = || {
        let stats = ProcessStats::read().ok();
        let seconds = stats.map(|stats| stats.start_seconds as i64);
        let started = seconds.and_then(|s| Timestamp::from_second(s).ok());
        started.unwrap_or_else(|| SystemClock.now())
    };
    About {
        flags: on(Gate::ComponentFlagz).then(flagz::of_command_line),
        status: on(Gate::ComponentStatusz).then(|| Version {
            started: started(),
            binary: binary.to_owned(),
            emulated: emulated.to_owned(),
        }),
    }
}

fn checkpoints(doors: &Doors<'_>) -> Option<Checkpoints> {
    let enabled = doors.loaded.gates.enabled(Gate::ContainerCheckpoint);
    enabled.then(|| Checkpoints {
        directory: doors.root.path().join("checkpoints"),
        runtime: Arc::new(ByRuntime(doors.runtime.clone())),
    })
}

fn read_pair(files: &ServingFiles) -> Result<ServingPair> {
    let (certificate, key) = read_both(files)?;
    ServingPair::new(&certificate, &key)
        .map_err(|why| anyhow!("{}: {why}", files.certificate.display()))
}

fn read_both(files: &ServingFiles) -> Result<(Vec<u8>, Vec<u8>)> {
    let read = |path: &Path| std::fs::read(path).with_context(|| path.display().to_string());
    Ok((read(&files.certificate)?, read(&files.key)?))
}

fn client_certificates(config: &KubeletConfiguration) -> Result<Option<ClientCertificates>> {
    let file = &config.security.authentication.x509.client_ca_file;
    if file.is_empty() {
        return Ok(None);
    }
    let place = || format!("authentication.x509.clientCAFile: {file}");
    let text = std::fs::read(file).with_context(place)?;
    let certificates = ClientCertificates::new(&text);
    certificates
        .map(Some)
        .map_err(|why| anyhow!("{}: {why}", place()))
}

fn access(doors: &Doors<'_>, certificates: Option<ClientCertificates>) -> Access {
    let security = &doors.loaded.config.security;
    let kube = doors.cluster.as_ref().map(|c| c.kube.clone());
    let tokens = |kube: Kube| {
        let lasts = security.authentication.webhook.cache_ttl;
        TokenReviews::new(kube, lasts.to_std().unwrap_or_default())
    };
    let webhook = &security.authorization.webhook;
    let reviews = |kube: Kube| {
        let allowed = webhook.cache_authorized_ttl.to_std().unwrap_or_default();
        let denied = webhook.cache_unauthorized_ttl.to_std().unwrap_or_default();
        SubjectReviews::new(kube, doors.node_name.to_owned(), allowed, denied)
    };
    let by_token = security.authentication.webhook.enabled;
    let by_review = security.authorization.mode == "Webhook";
    Access {
        authenticator: Authenticator {
            certificates,
            tokens: kube.clone().filter(|_| by_token).map(tokens),
            anonymous: security.authentication.anonymous.enabled,
        },
        authorizer: match kube.filter(|_| by_review) {
            Some(kube) => Authorizer::Webhook(reviews(kube)),
            None => Authorizer::AlwaysAllow,
        },
    }
}

/// The pair, read again when one of its two files changes, wherever each lies.
fn fresh_pair(pair: &ServingPair, files: ServingFiles) -> Fresh<2> {
    let pair = pair.clone();
    Fresh::new([files.certificate, files.key], move |[certificate, key]| {
        pair.replace(certificate, key)
    })
}

/// Authorities that change take effect without a restart; what cannot be used leaves the old in force.
fn keep_fresh(
    certificates: Option<ClientCertificates>,
    config: &KubeletConfiguration,
    tasks: &mut JoinSet<()>,
) {
    if let Some(certificates) = certificates {
        let file = PathBuf::from(&config.security.authentication.x509.client_ca_file);
        let fresh = Fresh::new([file], move |[text]| certificates.replace(text));
        tasks.spawn(fresh.run());
    }
}

struct House {
    handle: AgentHandle,
    configuration: Value,
}

impl Inside for House {
    fn observed(&self, uid: &PodUid) -> Option<Arc<ObservedPod>> {
        self.handle.observer.latest(uid)
    }

    fn all_observed(&self) -> Vec<Arc<ObservedPod>> {
        self.handle.observer.all()
    }

    fn status(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.handle.status.status(uid)
    }

    fn configuration(&self) -> Value {
        self.configuration.clone()
    }

    fn api_uid(&self, uid: &PodUid) -> Option<PodUid> {
        let mirror = self.handle.desired.mirror_of(uid)?;
        Some(PodRef::of(&mirror).uid)
    }
}
