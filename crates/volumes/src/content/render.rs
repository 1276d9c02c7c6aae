//! From a volume's spec to the files it is to show.

use std::sync::Arc;

use jiff::Timestamp;
use krablet_core::admission::NodeView;
use krablet_linux::TreeFiles;
use krablet_objects::{ObjectError, Objects};
use krablet_pod::api::{
    ClusterTrustBundleProjection, ConfigMap, KeyToPath, PodCertificateProjection,
    ProjectedVolumeSource, Secret, ServiceAccountTokenProjection, VolumeProjection,
};
use krablet_pod::{PodRef, PodUid};
use krablet_podcerts::{Bundle, CertificateError, PodCertificates};
use krablet_tokens::{TokenError, Tokens, Wanted};
use tokio::sync::watch;

use crate::error::SetUpError;
use crate::payload::{self, DEFAULT_MODE, Files};
use crate::plugin::VolumeRequest;
use crate::trust::TrustBundles;

/// Where values come from.
pub struct Renderer {
    pub objects: Arc<dyn Objects>,
    /// None on a node without a cluster.
    pub tokens: Option<Tokens>,
    pub certificates: Option<PodCertificates>,
    pub trust_bundles: Option<TrustBundles>,
    pub node: watch::Receiver<Arc<NodeView>>,
}

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
        if let Some(certificates) = &self.certificates {
            certificates.forget(uid);
        }
        if let Some(bundles) = &self.trust_bundles {
            bundles.forget(uid);
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
        for (index, part) in source.sources.iter().flatten().enumerate() {
            match self.part(request, (index, part), mode, renew_at).await {
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
        (index, part): (usize, &VolumeProjection),
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
            *renew_at = earlier(*renew_at, at);
            let file = payload::private(bytes, mode, request.pod, request.fs_group());
            Ok(Files::from([(source.path.clone(), file)]))
        } else if let Some(source) = &part.cluster_trust_bundle {
            let bytes = self.anchors(request, source).await?.into_bytes();
            let file = payload::private(bytes, mode, request.pod, request.fs_group());
            Ok(Files::from([(source.path.clone(), file)]))
        } else if let Some(source) = &part.pod_certificate {
            let bundle = self.certificate(request, index, source).await?;
            *renew_at = earlier(*renew_at, Some(bundle.look_at));
            let private = |text: &str| {
                let bytes = text.as_bytes().to_vec();
                payload::private(bytes, mode, request.pod, request.fs_group())
            };
            Ok(payload::of_certificate(source, &bundle, private))
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
        let token = tokens
            .get(&Wanted {
                pod: PodRef::of(request.pod),
                service_account: account(request),
                audience: source.audience.clone().filter(|a| !a.is_empty()),
                expiration_seconds: source.expiration_seconds,
            })
            .await?;
        Ok((token.text.as_bytes().to_vec(), token.renew_at))
    }

    async fn certificate(
        &self,
        request: &VolumeRequest<'_>,
        index: usize,
        source: &PodCertificateProjection,
    ) -> Result<Bundle, SetUpError> {
        let certificates = self.certificates.as_ref();
        let certificates = certificates.ok_or(CertificateError::NotOffered)?;
        let bundle = certificates
            .get(&krablet_podcerts::Wanted {
                pod: PodRef::of(request.pod),
                volume: request.volume.name.clone(),
                source: index,
                service_account: account(request),
                signer: source.signer_name.clone(),
                key_type: source.key_type.clone(),
                max_seconds: source.max_expiration_seconds,
                annotations: source.user_annotations.clone().unwrap_or_default(),
            })
            .await?;
        Ok(bundle)
    }

    async fn anchors(
        &self,
        request: &VolumeRequest<'_>,
        source: &ClusterTrustBundleProjection,
    ) -> Result<String, SetUpError> {
        let shown = match &self.trust_bundles {
            Some(bundles) => bundles.show(request.uid, source).await,
            None => {
                let why = "ClusterTrustBundle projection is not supported in static kubelet mode";
                Err(why.to_owned())
            }
        };
        shown.map_err(SetUpError::TrustBundle)
    }
}

fn account(request: &VolumeRequest<'_>) -> String {
    let spec = request.spec();
    spec.and_then(|s| s.service_account_name.clone())
        .unwrap_or_default()
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    [one, other].into_iter().flatten().min()
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
