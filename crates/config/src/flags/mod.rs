//! The command line: one table of flags, each with its type, default, help and the field it sets.
//!
//! Parsing follows the rules of Go's pflag, which scripts and unit files rely on; see `parse.rs`.

mod parse;
mod set;
mod table;
mod table_kubelet;
mod table_node;
mod table_pods;
mod table_server;

use std::collections::BTreeMap;

use crate::duration::Duration;
use crate::quantity::Quantity;
use crate::types::KubeletConfiguration;
use crate::types::managers::MemoryReservation;
use crate::types::node::Taint;
use crate::types::process::VModule;

pub use parse::FlagError;
pub(crate) use parse::{Given, parse};
pub(crate) use set::{apply, apply_config, is_ip, is_memory_type, is_taint_effect};
pub use table::{all, find};

/// Settings that exist only as flags, since they belong to one node or one run.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeletFlags {
    /// The configuration file.
    pub config: String,
    /// The directory of drop-in configuration files.
    pub config_dir: String,
    /// Credentials for the API server; empty runs without one.
    pub kubeconfig: String,
    /// Credentials to ask for credentials with.
    pub bootstrap_kubeconfig: String,
    /// Node name instead of the host's.
    pub hostname_override: String,
    /// Address of the node, or two for dual stack.
    pub node_ip: String,
    /// Directory of the agent's certificates.
    pub cert_dir: String,
    /// Empty or `external`.
    pub cloud_provider: String,
    /// Directory of the agent's state.
    pub root_dir: String,
    /// Labels the node is registered with.
    pub node_labels: BTreeMap<String, String>,
    /// Use the runtime's seccomp profile where a pod names none.
    pub seccomp_default: bool,
    /// File that only one agent holds at a time.
    pub lock_file: String,
    /// Give way when another agent wants that file.
    pub exit_on_lock_contention: bool,
    /// ConfigMaps and secrets of a node without an API server; empty for none.
    pub local_objects_dir: String,
    /// Keep secrets, tokens and certificates for starts without an API server.
    pub checkpoint_secrets: bool,
    /// Flags about the runtime and old switches.
    pub runtime: RuntimeFlags,
    /// Flags that end the run at once.
    pub meta: MetaFlags,
}

/// Flags about the runtime, dead containers and measuring.
#[derive(Clone, Debug, PartialEq)]
pub struct RuntimeFlags {
    /// Cgroup of the runtime's processes, for their statistics.
    pub runtime_cgroups: String,
    /// Configuration of credential provider plugins: a file, or a directory of them.
    pub image_credential_provider_config: String,
    /// Directory of the credential provider plugins.
    pub image_credential_provider_bin_dir: String,
    /// Youngest age of a dead container that may be removed.
    pub minimum_container_ttl: Duration,
    /// Dead containers kept for each container.
    pub max_dead_containers_per_container: i32,
    /// Dead containers kept in all; negative takes the limit off.
    pub max_dead_containers: i32,
    /// Program that mounts instead of `mount`.
    pub experimental_mounter_path: String,
    /// Leave hard eviction thresholds out of what pods can get.
    pub experimental_allocatable_ignore_eviction: bool,
    /// How often container statistics are taken.
    pub housekeeping_interval: Duration,
    /// Directory of links to container logs, which log collectors follow.
    pub container_logs_dir: String,
}

/// Flags that ask for a text instead of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaFlags {
    /// Print the flags.
    pub help: bool,
    /// Print the version, or report another one.
    pub version: VersionFlag,
}

/// The value of `--version`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VersionFlag {
    /// Not asked for.
    #[default]
    No,
    /// One line.
    Short,
    /// Everything known about the build.
    Raw,
    /// Report this version, such as `v1.36.4-vendor.1`, from now on.
    ReportAs(String),
}

impl Default for KubeletFlags {
    fn default() -> Self {
        Self {
            config: String::new(),
            config_dir: String::new(),
            kubeconfig: String::new(),
            bootstrap_kubeconfig: String::new(),
            hostname_override: String::new(),
            node_ip: String::new(),
            cert_dir: "/var/lib/kubelet/pki".to_owned(),
            cloud_provider: String::new(),
            root_dir: "/var/lib/kubelet".to_owned(),
            node_labels: BTreeMap::new(),
            seccomp_default: false,
            lock_file: String::new(),
            exit_on_lock_contention: false,
            local_objects_dir: String::new(),
            checkpoint_secrets: true,
            runtime: RuntimeFlags::default(),
            meta: MetaFlags::default(),
        }
    }
}

impl Default for RuntimeFlags {
    fn default() -> Self {
        Self {
            runtime_cgroups: String::new(),
            image_credential_provider_config: String::new(),
            image_credential_provider_bin_dir: String::new(),
            minimum_container_ttl: Duration::ZERO,
            max_dead_containers_per_container: 1,
            max_dead_containers: -1,
            experimental_mounter_path: String::new(),
            experimental_allocatable_ignore_eviction: false,
            housekeeping_interval: Duration::from_secs(10),
            container_logs_dir: "/var/log/containers".to_owned(),
        }
    }
}

/// What flags write to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) flags: KubeletFlags,
    pub(crate) config: KubeletConfiguration,
}

type Get<T> = fn(&mut Settings) -> &mut T;

/// The place a flag's value goes to; its type decides how the text is read.
#[derive(Clone, Copy)]
pub(crate) enum Slot {
    Bool(Get<bool>),
    Int32(Get<i32>),
    Int64(Get<i64>),
    Text(Get<String>),
    Duration(Get<Duration>),
    /// An IP address; an empty text changes nothing.
    Ip(Get<String>),
    /// A list: commas separate, repeats append.
    List(Get<Vec<String>>),
    /// `key=value` pairs: commas separate, repeats add.
    Pairs(Get<BTreeMap<String, String>>),
    /// One `key=value` pair for each time the flag is given, since values hold commas.
    OnePair(Get<BTreeMap<String, String>>),
    /// `key<value` pairs: commas separate, repeats add.
    Thresholds(Get<BTreeMap<String, String>>),
    /// `key=value` pairs whose value may be missing; repeats add to what is there.
    Labels(Get<BTreeMap<String, String>>),
    /// `key=true|false` pairs: commas separate, repeats add.
    Gates(Get<BTreeMap<String, bool>>),
    /// `name:value` pairs: commas separate, repeats add, a name may have many values.
    Headers(Get<BTreeMap<String, Vec<String>>>),
    /// `key=value:effect` taints: commas separate, the last flag counts.
    Taints(Get<Vec<Taint>>),
    /// `node:type=amount,...` reservations: semicolons separate, repeats append.
    ReservedMemory(Get<Vec<MemoryReservation>>),
    /// A log level.
    Verbosity(Get<u32>),
    /// `pattern=level` pairs: commas separate, repeats append to what is there.
    VModule(Get<Vec<VModule>>),
    Quantity(Get<Quantity>),
    Version(Get<VersionFlag>),
    /// Checked and forgotten: a switch of the statistics library that upstream let slip into its flags.
    Ignored(IgnoredKind, &'static str),
}

/// The type of a flag whose value is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IgnoredKind {
    Text,
    Bool,
    Int,
    Duration,
}

/// How long a flag will be with us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Here to stay.
    Current,
    /// Replaced by a field of the configuration file.
    UseField,
    /// Deprecated for another reason.
    Deprecated(&'static str),
}

/// One flag.
pub struct Flag {
    /// Name without dashes.
    pub name: &'static str,
    /// One-letter form.
    pub short: Option<char>,
    /// Field of the configuration file that it sets.
    pub field: Option<&'static str>,
    /// What it does.
    pub help: &'static str,
    pub(crate) standing: Standing,
    pub(crate) slot: Slot,
}

impl Flag {
    /// A flag without a field in the configuration file.
    pub(crate) const fn own(name: &'static str, slot: Slot, help: &'static str) -> Self {
        Self {
            name,
            short: None,
            field: None,
            help,
            standing: Standing::Current,
            slot,
        }
    }

    /// A deprecated flag for a field of the configuration file.
    pub(crate) const fn of_field(
        name: &'static str,
        field: &'static str,
        slot: Slot,
        help: &'static str,
    ) -> Self {
        Self {
            name,
            short: None,
            field: Some(field),
            help,
            standing: Standing::UseField,
            slot,
        }
    }

    /// A switch of the statistics library, accepted and ignored.
    pub(crate) const fn ignored(
        name: &'static str,
        kind: IgnoredKind,
        default: &'static str,
    ) -> Self {
        Self {
            name,
            short: None,
            field: None,
            help: "Accepted for compatibility, without effect.",
            standing: Standing::Deprecated("it belongs to a library and has no effect here"),
            slot: Slot::Ignored(kind, default),
        }
    }

    /// The same flag, here to stay.
    pub(crate) const fn current(mut self) -> Self {
        self.standing = Standing::Current;
        self
    }

    /// The same flag, deprecated.
    pub(crate) const fn deprecated(mut self, why: &'static str) -> Self {
        self.standing = Standing::Deprecated(why);
        self
    }

    /// The same flag with a one-letter form.
    pub(crate) const fn short(mut self, letter: char) -> Self {
        self.short = Some(letter);
        self
    }

    /// Whether the flag may stand without a value, which then is `true`.
    pub(crate) const fn is_switch(&self) -> bool {
        matches!(
            self.slot,
            Slot::Bool(_) | Slot::Version(_) | Slot::Ignored(IgnoredKind::Bool, _)
        )
    }

    /// Why it should no longer be used, if so.
    #[must_use]
    pub fn deprecation(&self) -> Option<String> {
        match (self.standing, self.field) {
            (Standing::Current, _) => None,
            (Standing::UseField, Some(field)) => {
                Some(format!("set {field} in the configuration file instead"))
            }
            (Standing::UseField, None) => None,
            (Standing::Deprecated(why), _) => Some(why.to_owned()),
        }
    }

    /// The type of the value, as the documentation writes it.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self.slot {
            Slot::Bool(_) | Slot::Ignored(IgnoredKind::Bool, _) => "bool",
            Slot::Int32(_) | Slot::Int64(_) | Slot::Ignored(IgnoredKind::Int, _) => "int",
            Slot::Text(_) | Slot::Ignored(IgnoredKind::Text, _) => "string",
            Slot::Duration(_) | Slot::Ignored(IgnoredKind::Duration, _) => "duration",
            Slot::Ip(_) => "IP address",
            Slot::List(_) => "list",
            Slot::Pairs(_) | Slot::Labels(_) => "key=value,...",
            Slot::OnePair(_) => "key=value, repeated",
            Slot::Thresholds(_) => "signal<value,...",
            Slot::Gates(_) => "Gate=true|false,...",
            Slot::Headers(_) => "name:value,...",
            Slot::Taints(_) => "key=value:effect,...",
            Slot::ReservedMemory(_) => "node:type=amount,...",
            Slot::Verbosity(_) => "level",
            Slot::VModule(_) => "pattern=level,...",
            Slot::Quantity(_) => "quantity",
            Slot::Version(_) => "true|false|raw|vX.Y.Z",
        }
    }

    /// The value the flag has when it is not given and there is no configuration file.
    #[must_use]
    pub fn default_text(&self) -> String {
        set::show(self.slot, &mut Settings::default())
    }
}

impl std::fmt::Debug for Flag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "--{}", self.name)
    }
}

impl Default for Settings {
    /// What a command line without any flag gives.
    fn default() -> Self {
        Self {
            flags: KubeletFlags::default(),
            config: KubeletConfiguration::flag_defaults(&crate::FeatureGates::defaults()),
        }
    }
}
