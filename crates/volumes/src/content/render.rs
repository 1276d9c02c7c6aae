//! From a volume's spec to the files it is to show.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use krablet_core::admission::NodeView;
use krablet_linux::{TreeFiles, WallClock};
use krablet_objects::{ObjectError, Objects};
use krablet_pod::api::{
    ClusterTrustBundleProjection, ConfigMap, KeyToPath, ProjectedVolumeSource, Secret,
    ServiceAccountTokenProjection, VolumeProjection,
};
use krablet_pod::{PodRef, PodUid};
use krablet_tokens::{TokenError, Tokens, Wanted};
use tokio::sync::watch;

use crate::anchors;
use crate::cluster::ClusterObjects;
use crate::error::SetUpError;
use crate::payload::{self, DEFAULT_MODE, Files};
use crate::plugin::VolumeRequest;

/// Where values come from.
pub struct Renderer {
    pub objects: Arc<dyn Objects>,
    /// None on a node without a cluster.
    pub tokens: Option<Tokens>,
    pub cluster: Option<Arc<dyn ClusterObjects>>,
    pub node: watch::Receiver<Arc<NodeView>>,
    /// Whether trust bundles are offered.
    pub trust_bundles: bool,
    pub clock: Arc<dyn WallClock>,
}

/// Trust bundles are few and change rarely: they are looked at anew, not watched.
const BUNDLES_EVERY: SignedDuration = SignedDuration::from_secs(30);

/// What a volume is to show now.
pub(super) struct Rendered {
    pub files: TreeFiles,
    /// When it will be another.
    pub renew_at: Option<Timestamp>,
}

/// One object of one namespace, in the words of its projection.
struct Chosen<'a> {
    name: &'a str,
    items: &'a [KeyToPath],
    mode: i32,
    optional: bool,
}

impl Renderer {
    pub(super) async fn render(&self, request: &VolumeRequest<'_>) -> Result<Rendered, SetUpError> {
        let volume = request.volume;
        let mut renew_at = None;
        let files = if let Some(source) = &volume.config_map {
            let chosen = Chosen {
                name: &source.name,
                items: source.items.as_deref().unwrap_or_default(),
                mode: source.default_mode.unwrap_or(DEFAULT_MODE),
                optional: source.optional.unwrap_or(false),
            };
            self.config_map(request, &chosen).await?
        } else if let Some(source) = &volume.secret {
            let chosen = Chosen {
                name: source.secret_name.as_deref().unwrap_or_default(),
                items: source.items.as_deref().unwrap_or_default(),
                mode: source.default_mode.unwrap_or(DEFAULT_MODE),
                optional: source.optional.unwrap_or(false),
            };
            self.secret(request, &chosen).await?
        } else if let Some(source) = &volume.downward_api {
            let items = source.items.as_deref().unwrap_or_default();
            let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
            self.downward(request, items, mode)?
        } else if let Some(source) = &volume.projected {
            self.projected(request, source, &mut renew_at).await?
        } else {
            Files::new()
        };
        Ok(Rendered {
            files: payload::checked(files)?,
            renew_at,
        })
    }

    pub(super) fn forget(&self, uid: &PodUid) {
        if let Some(tokens) = &self.tokens {
            tokens.forget(uid);
        }
    }

    async fn config_map(
        &self,
        request: &VolumeRequest<'_>,
        chosen: &Chosen<'_>,
    ) -> Result<Files, SetUpError> {
        let asked = self.objects.config_map(request.namespace(), chosen.name);
        let object = or_empty::<ConfigMap>(asked.await, chosen.optional)?;
        payload::of_config_map(chosen.items, &object, chosen.mode, chosen.optional)
    }

    async fn secret(
        &self,
        request: &VolumeRequest<'_>,
        chosen: &Chosen<'_>,
    ) -> Result<Files, SetUpError> {
        let asked = self.objects.secret(request.namespace(), chosen.name);
        let object = or_empty::<Secret>(asked.await, chosen.optional)?;
        payload::of_secret(chosen.items, &object, chosen.mode, chosen.optional)
    }

    fn downward(
        &self,
        request: &VolumeRequest<'_>,
        items: &[krablet_pod::api::DownwardAPIVolumeFile],
        mode: i32,
    ) -> Result<Files, SetUpError> {
        let node = self.node.borrow().clone();
        payload::of_downward(items, request.pod, mode, &node.allocatable)
    }

    /// All sources are looked at, so that everything that is wrong is told at once.
    async fn projected(
        &self,
        request: &VolumeRequest<'_>,
        source: &ProjectedVolumeSource,
        renew_at: &mut Option<Timestamp>,
    ) -> Result<Files, SetUpError> {
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let mut files = Files::new();
        let mut problems: Vec<SetUpError> = Vec::new();
        for part in source.sources.iter().flatten() {
            match self.part(request, part, mode, renew_at).await {
                Ok(found) => files.extend(found),
                Err(problem) => problems.push(problem),
            }
        }
        match problems.len() {
            0 => Ok(files),
            1 => Err(problems.remove(0)),
            _ => {
                let mut texts: Vec<String> = Vec::new();
                for text in problems.iter().map(ToString::to_string) {
                    if !texts.contains(&text) {
                        texts.push(text);
                    }
                }
                Err(SetUpError::Several(texts))
            }
        }
    }

    async fn part(
        &self,
        request: &VolumeRequest<'_>,
        part: &VolumeProjection,
        mode: i32,
        renew_at: &mut Option<Timestamp>,
    ) -> Result<Files, SetUpError> {
        if let Some(source) = &part.secret {
            let chosen = Chosen {
                name: &source.name,
                items: source.items.as_deref().unwrap_or_default(),
                mode,
                optional: source.optional.unwrap_or(false),
            };
            self.secret(request, &chosen).await
        } else if let Some(source) = &part.config_map {
            let chosen = Chosen {
                name: &source.name,
                items: source.items.as_deref().unwrap_or_default(),
                mode,
                optional: source.optional.unwrap_or(false),
            };
            self.config_map(request, &chosen).await
        } else if let Some(source) = &part.downward_api {
            let items = source.items.as_deref().unwrap_or_default();
            self.downward(request, items, mode)
        } else if let Some(source) = &part.service_account_token {
            let (bytes, at) = self.token(request, source).await?;
            *renew_at = [*renew_at, at].into_iter().flatten().min();
            let file = payload::private(bytes, mode, request.pod, request.fs_group());
            Ok(Files::from([(source.path.clone(), file)]))
        } else if let Some(source) = &part.cluster_trust_bundle {
            let bytes = self.anchors(source).await?.into_bytes();
            let again = self.clock.now().saturating_add(BUNDLES_EVERY);
            let again = again.unwrap_or(Timestamp::MAX);
            *renew_at = Some(renew_at.map_or(again, |at| at.min(again)));
            let file = payload::private(bytes, mode, request.pod, request.fs_group());
            Ok(Files::from([(source.path.clone(), file)]))
        } else if part.pod_certificate.is_some() {
            Err(SetUpError::UnsupportedSource("podCertificate"))
        } else {
            Ok(Files::new())
        }
    }

    async fn token(
        &self,
        request: &VolumeRequest<'_>,
        source: &ServiceAccountTokenProjection,
    ) -> Result<(Vec<u8>, Option<Timestamp>), SetUpError> {
        let tokens = self.tokens.as_ref().ok_or(TokenError::Standalone)?;
        let account = request.spec().and_then(|s| s.service_account_name.clone());
        let token = tokens
            .get(&Wanted {
                pod: PodRef::of(request.pod),
                service_account: account.unwrap_or_default(),
                audience: source.audience.clone().filter(|a| !a.is_empty()),
                expiration_seconds: source.expiration_seconds,
            })
            .await?;
        Ok((token.text.as_bytes().to_vec(), token.renew_at))
    }

    async fn anchors(&self, source: &ClusterTrustBundleProjection) -> Result<String, SetUpError> {
        let failed = |why: String| SetUpError::TrustBundle(why);
        let offered = self.cluster.as_ref().filter(|_| self.trust_bundles);
        let Some(cluster) = offered else {
            let why = "ClusterTrustBundle projection is not supported in static kubelet mode";
            return Err(failed(why.to_owned()));
        };
        let optional = source.optional.unwrap_or(false);
        let found = match (&source.name, &source.signer_name) {
            (Some(name), _) => {
                let asked = cluster.trust_bundle(name).await;
                let found =
                    asked.map_err(|e| failed(format!("while getting ClusterTrustBundle: {e}")))?;
                if found.is_none() && !optional {
                    return Err(failed(format!(
                        "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {name:?} not found"
                    )));
                }
                found.into_iter().collect()
            }
            (None, Some(signer)) => {
                // No selector selects nothing; an empty one selects everything.
                let found = match &source.label_selector {
                    None => Vec::new(),
                    Some(labels) => cluster
                        .trust_bundles(signer, labels)
                        .await
                        .map_err(|e| failed(format!("while listing ClusterTrustBundles: {e}")))?,
                };
                if found.is_empty() && !optional {
                    let why = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
                    return Err(failed(why.to_owned()));
                }
                found
            }
            (None, None) => {
                let why =
                    "ClusterTrustBundle projection requires either name or signerName to be set";
                return Err(failed(why.to_owned()));
            }
        };
        Ok(anchors::normalized(&found))
    }
}

/// An object that may be missing and is, is one without content.
fn or_empty<T: Default>(
    asked: Result<Arc<T>, ObjectError>,
    optional: bool,
) -> Result<Arc<T>, ObjectError> {
    match asked {
        Err(e) if optional && e.is_not_found() => Ok(Arc::default()),
        other => other,
    }
}
