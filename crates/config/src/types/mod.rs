//! KubeletConfiguration of the group kubelet.config.k8s.io/v1beta1, whole.
//!
//! In a file all fields stand side by side; here they stand in sections, one module each. [`KubeletConfiguration`]
//! joins them and keeps the file's flat form.

pub mod allocatable;
pub mod cgroups;
pub mod eviction;
pub mod images;
pub mod managers;
pub mod network;
pub mod node;
pub mod process;
pub mod runtime;
pub mod security;
pub mod server;
pub mod shutdown;
pub mod sources;
pub mod storage;

use serde_json::{Map, Value};

use crate::decode::{Decoder, FieldDoc, Section};
use crate::duration::Duration;
use crate::gates::{FeatureGates, Gate};

/// The only version there is.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// The kind of a configuration file.
pub const KIND: &str = "KubeletConfiguration";

macro_rules! sections {
    ($( $(#[doc = $doc:literal])+ $field:ident: $module:ident::$section:ident, )*) => {
        /// A complete configuration: every field has its value, defaults included.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct KubeletConfiguration {
            $( $(#[doc = $doc])+ pub $field: $module::$section, )*
        }

        impl KubeletConfiguration {
            fn decode_sections(map: &Map<String, Value>, cx: &mut Decoder) -> Self {
                Self { $( $field: $module::$section::decode_fields(map, cx), )* }
            }

            fn encode_sections(&self, out: &mut Map<String, Value>) {
                $( self.$field.encode_fields(out); )*
            }

            fn field_names() -> Vec<&'static str> {
                let mut names = vec!["apiVersion", "kind"];
                $( names.extend_from_slice($module::$section::NAMES); )*
                names
            }

            /// The sections with their title and the documentation of their fields, in order.
            #[must_use]
            pub fn docs() -> Vec<(&'static str, Vec<FieldDoc>)> {
                vec![ $( (concat!($($doc),+).trim(), $module::$section::docs()), )* ]
            }
        }
    };
}

sections! {
    /// Pod sources
    sources: sources::PodSources,
    /// Servers
    server: server::Server,
    /// TLS, authentication, authorization
    security: security::Security,
    /// The node and the API server
    node: node::Node,
    /// Images
    images: images::Images,
    /// Container runtime and containers
    runtime: runtime::Runtime,
    /// Network
    network: network::Network,
    /// Cgroups, memory and swap
    cgroups: cgroups::Cgroups,
    /// CPU, memory and topology managers
    managers: managers::ResourceManagers,
    /// Reservations
    allocatable: allocatable::Allocatable,
    /// Eviction
    eviction: eviction::Eviction,
    /// Volumes and local storage
    storage: storage::Storage,
    /// Node shutdown
    shutdown: shutdown::Shutdown,
    /// The agent's process
    process: process::Process,
}

impl KubeletConfiguration {
    /// Reads the fields of `map`, fills in defaults and notes every complaint in `cx`. `gates` are those known so
    /// far; the file's own are applied on top, since some defaults depend on them.
    pub(crate) fn decode(map: &Map<String, Value>, gates: &FeatureGates, cx: &mut Decoder) -> Self {
        cx.note_unknown(map, &Self::field_names());
        let mut config = Self::decode_sections(map, cx);
        config.node.settle(map);
        config.images.settle(map);
        config.runtime.settle(map);
        let gates = gates.overlaid(&config.process.feature_gates);
        config.settle_gated(&gates);
        config
    }

    /// Defaults that exist only while their feature gate is on.
    fn settle_gated(&mut self, gates: &FeatureGates) {
        let period = &mut self
            .runtime
            .crash_loop_back_off
            .max_container_restart_period;
        if gates.enabled(Gate::KubeletCrashLoopBackOffMax) && period.is_none() {
            *period = Some(Duration::from_secs(300));
        }
        let policy = &mut self.images.pull_credentials_verification_policy;
        if gates.enabled(Gate::KubeletEnsureSecretPulledImages) && policy.is_empty() {
            "NeverVerifyPreloadedImages".clone_into(policy);
        }
    }

    /// The configuration of a file that sets nothing.
    #[must_use]
    pub fn file_defaults(gates: &FeatureGates) -> Self {
        let mut config = Self::default();
        config.settle_gated(gates);
        config
    }

    /// The configuration flags start from when there is no file: older than the file, and more open.
    #[must_use]
    pub fn flag_defaults(gates: &FeatureGates) -> Self {
        let mut config = Self::file_defaults(gates);
        config.security.authentication.anonymous.enabled = true;
        config.security.authentication.webhook.enabled = false;
        "AlwaysAllow".clone_into(&mut config.security.authorization.mode);
        config.server.read_only_port = 10255;
        config
    }

    /// The flat JSON form, as in a file.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut out = Map::new();
        out.insert("apiVersion".to_owned(), API_VERSION.into());
        out.insert("kind".to_owned(), KIND.into());
        self.encode_sections(&mut out);
        Value::Object(out)
    }

    /// The paths that a file may give relative to itself.
    pub(crate) fn paths_mut(&mut self) -> [&mut String; 7] {
        [
            &mut self.sources.static_pod_path,
            &mut self.security.authentication.x509.client_ca_file,
            &mut self.security.tls_cert_file,
            &mut self.security.tls_private_key_file,
            &mut self.network.resolv_conf,
            &mut self.storage.volume_plugin_dir,
            &mut self.sources.pod_logs_dir,
        ]
    }
}

impl serde::Serialize for KubeletConfiguration {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}
