//! Where static pods come from: a directory, a URL.

use std::sync::Arc;
use std::time::Duration;

use krablet_agent::{Adoption, AgentDeps, AgentHandle};
use krablet_config::{Gate, Loaded};
use krablet_linux::InotifyWatch;
use krablet_manifest::{Place, References};
use krablet_sources::{
    Decode, FileSource, FileSourceConfig, Origin, TakeOver, UrlSource, UrlSourceConfig,
};
use tokio::task::JoinSet;
use tracing::warn;

use crate::cluster::Ground;

/// Starts the sources of static pods that the configuration names.
pub fn start(ground: &Ground<'_>, deps: &AgentDeps, handle: &AgentHandle, tasks: &mut JoinSet<()>) {
    let sources = &ground.loaded.config.sources;
    let decode = decoder(ground.name, references_of(ground.loaded));
    let default = Duration::from_secs(20);
    let adoption = Adoption::new(
        handle.observer.clone(),
        deps.files.clone(),
        ground.root.clone(),
    );
    let adoption: Option<Arc<dyn TakeOver>> = Some(Arc::new(adoption));
    if !sources.static_pod_path.is_empty() {
        let source = FileSource::new(
            FileSourceConfig {
                path: sources.static_pod_path.clone().into(),
                check_frequency: sources.file_check_frequency.to_std().unwrap_or(default),
            },
            deps.files.clone(),
            Arc::new(InotifyWatch),
            decode.clone(),
            adoption.clone(),
        );
        tasks.spawn(source.run(handle.sets.clone()));
    }
    if !sources.static_pod_url.is_empty() {
        let headers = sources.static_pod_url_header.iter();
        let headers = headers
            .flat_map(|(name, values)| values.iter().map(move |v| (name.clone(), v.clone())));
        let source = UrlSource::new(
            UrlSourceConfig {
                url: sources.static_pod_url.clone(),
                headers: headers.collect(),
                check_frequency: sources.http_check_frequency.to_std().unwrap_or(default),
            },
            deps.net.clone(),
            decode,
            adoption,
        );
        tasks.spawn(source.run(handle.sets.clone()));
    }
    let none = sources.static_pod_path.is_empty() && sources.static_pod_url.is_empty();
    if none && deps.cluster.is_none() {
        warn!("Neither staticPodPath nor staticPodURL is set: this node will run no pods");
    }
}

/// What static pods of this node may refer to.
fn references_of(loaded: &Loaded) -> References {
    let refused = loaded.gates.enabled(Gate::PreventStaticPodAPIReferences);
    match (refused, loaded.flags.local_objects_dir.is_empty()) {
        (false, _) => References::All,
        (true, false) => References::LocalObjects,
        (true, true) => References::None,
    }
}

/// Manifests become static pods of this node; what has no effect in them is told in the log.
fn decoder(node_name: &str, references: References) -> Decode {
    let node_name = node_name.to_owned();
    Arc::new(move |bytes, origin| {
        let place = match origin {
            Origin::File(path) => Place::File(path.display().to_string()),
            Origin::Url(url) => Place::Url(url.clone()),
        };
        let origin = krablet_manifest::Origin {
            place,
            node_name: node_name.clone(),
            references,
        };
        let decoded = krablet_manifest::decode(bytes, &origin).map_err(|e| e.to_string())?;
        for warning in &decoded.warnings {
            warn!(manifest = ?origin.place, "Manifest: {warning}");
        }
        Ok(decoded.pods)
    })
}
