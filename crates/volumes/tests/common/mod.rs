//! A cluster and a node in memory, for volumes to be set up on.

#![allow(dead_code)] // each test uses some of it

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use jiff::SignedDuration;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use krablet_core::admission::NodeView;
use krablet_events::Recorder;
use krablet_kube::OnDemand;
use krablet_linux::fake::{FakeTools, FixedClock, MemoryFiles};
use krablet_linux::{EntryKind, Files, Mounts, Trees, WallClock};
use krablet_objects::FakeObjects;
use krablet_pod::api::{PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use krablet_pod::paths::RootDir;
use krablet_podcerts::{CertificateDeps, NotAsked, PodCertificates, Request, Signing, Wanted};
use krablet_tokens::{Issuer, NotIssued, Tokens};
use krablet_volumes::{
    ClusterObjects, TrustBundle, TrustBundles, Volumes, VolumesConfig, VolumesDeps,
};
use serde_json::{Value, json};
use tokio::sync::watch;

pub const UID: &str = "u-1";
pub const ROOT: &str = "/var/lib/kubelet";

/// Objects of an API server, by name.
#[derive(Clone, Default)]
pub struct FakeCluster(pub Arc<Mutex<Stored>>);

#[derive(Default)]
pub struct Stored {
    pub claims: BTreeMap<String, Value>,
    pub volumes: BTreeMap<String, Value>,
    /// By namespace and name.
    pub secrets: BTreeMap<String, Secret>,
    pub calls: usize,
    /// Tokens handed out.
    pub tokens: usize,
    pub away: bool,
}

impl FakeCluster {
    pub fn with<T>(&self, f: impl FnOnce(&mut Stored) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }

    fn asked<T>(&self, f: impl FnOnce(&mut Stored) -> Result<T, String>) -> Result<T, String> {
        self.with(|stored| {
            stored.calls += 1;
            match stored.away {
                true => Err("no route to host".to_owned()),
                false => f(stored),
            }
        })
    }
}

#[async_trait]
impl ClusterObjects for FakeCluster {
    async fn claim(&self, _: &str, name: &str) -> Result<PersistentVolumeClaim, String> {
        self.asked(|s| {
            let found = s.claims.get(name).cloned();
            let found =
                found.ok_or_else(|| format!("persistentvolumeclaims {name:?} not found"))?;
            Ok(serde_json::from_value(found).unwrap())
        })
    }

    async fn persistent_volume(&self, name: &str) -> Result<PersistentVolume, String> {
        self.asked(|s| {
            let found = s.volumes.get(name).cloned();
            let found = found.ok_or_else(|| format!("persistentvolumes {name:?} not found"))?;
            Ok(serde_json::from_value(found).unwrap())
        })
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Secret, String> {
        self.asked(|s| {
            let found = s.secrets.get(&format!("{namespace}/{name}")).cloned();
            found.ok_or_else(|| format!("secrets {name:?} not found"))
        })
    }
}

struct FakeIssuer(FakeCluster, FixedClock);

#[async_trait]
impl Issuer for FakeIssuer {
    async fn issue(
        &self,
        _: &str,
        _: &str,
        request: TokenRequest,
    ) -> Result<TokenRequest, NotIssued> {
        let asked = self.0.asked(|s| {
            s.tokens += 1;
            Ok(s.tokens)
        });
        let number = asked.map_err(|text| NotIssued {
            text,
            passing: true,
        })?;
        let seconds = request.spec.as_ref().and_then(|s| s.expiration_seconds);
        let life = SignedDuration::from_secs(seconds.unwrap_or(3600));
        Ok(TokenRequest {
            status: Some(TokenRequestStatus {
                expiration_timestamp: Some(Time(self.1.now() + life)),
                token: Some(format!("token-{number}")),
            }),
            ..request
        })
    }
}

/// Signs whatever it is asked to sign, at once, and says for how many minutes that is good; or leaves all requests alone.
#[derive(Clone)]
pub struct FakeSigner {
    list: watch::Sender<Option<Vec<Arc<Request>>>>,
    pub idle: Arc<AtomicBool>,
}

impl Default for FakeSigner {
    fn default() -> Self {
        Self {
            list: watch::Sender::new(Some(Vec::new())),
            idle: Arc::default(),
        }
    }
}

impl FakeSigner {
    fn certificates(&self, clock: Arc<dyn WallClock>) -> PodCertificates {
        let wall = clock.clone();
        PodCertificates::new(CertificateDeps {
            signing: Arc::new(self.clone()),
            requests: OnDemand::of(self.list.subscribe()),
            clock,
            recorder: Recorder::new(move || wall.now()),
            shelf: None,
            seed: 1,
        })
    }
}

#[async_trait]
impl Signing for FakeSigner {
    async fn ask(&self, wanted: &Wanted, _: Vec<u8>) -> Result<String, NotAsked> {
        let number = self.list.borrow().iter().flatten().count() + 1;
        let name = format!("req-{number}");
        if !self.idle.load(Ordering::Relaxed) {
            let chain = krablet_kube::pem::encoded("CERTIFICATE", name.as_bytes());
            let request = json!({
                "metadata": {"name": name, "namespace": &*wanted.pod.namespace},
                "status": {
                    "conditions": [{"type": "Issued"}],
                    "certificateChain": chain,
                    "beginRefreshAt": "1970-01-01T00:30:00Z",
                    "notAfter": "1970-01-01T01:00:00Z",
                },
            });
            let request = Arc::new(serde_json::from_value(request).unwrap());
            self.list.send_modify(|list| {
                list.get_or_insert_default().push(request);
            });
        }
        Ok(name)
    }
}

/// Everything around the volumes of a node.
pub struct World {
    pub objects: FakeObjects,
    pub cluster: FakeCluster,
    pub clock: FixedClock,
    pub tools: FakeTools,
    pub bundles: watch::Sender<Option<Vec<Arc<TrustBundle>>>>,
    pub signer: FakeSigner,
}

impl Default for World {
    fn default() -> Self {
        Self {
            objects: FakeObjects::new(),
            cluster: FakeCluster::default(),
            clock: FixedClock::default(),
            tools: FakeTools::default(),
            bundles: watch::Sender::new(Some(Vec::new())),
            signer: FakeSigner::default(),
        }
    }
}

impl World {
    pub fn deps(
        &self,
        files: Arc<dyn Files>,
        trees: Arc<dyn Trees>,
        mounts: Arc<dyn Mounts>,
    ) -> VolumesDeps {
        let issuer = FakeIssuer(self.cluster.clone(), self.clock.clone());
        let clock = Arc::new(self.clock.clone());
        let node = NodeView {
            name: "n1".to_owned(),
            labels: [("kubernetes.io/hostname".to_owned(), "n1".to_owned())].into(),
            ..NodeView::default()
        };
        VolumesDeps {
            files,
            trees,
            mounts,
            tools: Arc::new(self.tools.clone()),
            clock: clock.clone(),
            objects: Arc::new(self.objects.clone()),
            cluster: Some(Arc::new(self.cluster.clone())),
            tokens: Some(Tokens::new(Arc::new(issuer), clock.clone(), 1, None)),
            certificates: Some(self.signer.certificates(clock)),
            trust_bundles: Some(self.trust_bundles()),
            node: watch::Sender::new(Arc::new(node)).subscribe(),
            metrics: Default::default(),
        }
    }

    pub fn trust_bundles(&self) -> TrustBundles {
        TrustBundles::new(OnDemand::of(self.bundles.subscribe()), None)
    }

    pub fn put_bundle(&self, name: &str, pem: &str) {
        let object = json!({"metadata": {"name": name}, "spec": {"trustBundle": pem}});
        let object = serde_json::from_value(object).unwrap();
        self.bundles.send_modify(|bundles| {
            bundles.get_or_insert_default().push(Arc::new(object));
        });
    }

    pub fn in_memory(&self, files: &MemoryFiles) -> VolumesDeps {
        let disk = Arc::new(files.clone());
        self.deps(disk.clone(), disk, Arc::new(files.mounts()))
    }

    pub fn put_config_map(&self, name: &str, data: Value) {
        let object = json!({"metadata": {"name": name, "namespace": "ns"}, "data": data});
        self.objects
            .put_config_map(serde_json::from_value(object).unwrap());
    }

    /// Values in plain text.
    pub fn put_secret(&self, name: &str, data: &[(&str, &str)]) {
        let mut object: krablet_pod::api::Secret =
            serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ns"}})).unwrap();
        let data = data.iter().map(|(key, value)| {
            let bytes = k8s_openapi::ByteString(value.as_bytes().to_vec());
            (key.to_string(), bytes)
        });
        object.data = Some(data.collect());
        self.objects.put_secret(object);
    }

    /// A claim that is bound to a volume of this source.
    pub fn put_claim(&self, claim: &str, volume: &str, source: Value) {
        let mut spec = source;
        spec["claimRef"] = json!({"uid": format!("{claim}-uid")});
        self.cluster.with(|s| {
            s.claims.insert(
                claim.to_owned(),
                json!({"metadata": {"name": claim, "namespace": "ns", "uid": format!("{claim}-uid")},
                       "spec": {"volumeName": volume}, "status": {"phase": "Bound"}}),
            );
            s.volumes.insert(
                volume.to_owned(),
                json!({"metadata": {"name": volume}, "spec": spec}),
            );
        });
    }
}

/// A pod whose one container mounts each of these volumes.
pub fn pod(volumes: &str) -> Pod {
    let volumes: Value = serde_json::from_str(volumes).unwrap();
    let mounts: Vec<Value> = volumes
        .as_array()
        .unwrap()
        .iter()
        .map(|v| json!({"name": v["name"], "mountPath": format!("/{}", v["name"].as_str().unwrap())}))
        .collect();
    serde_json::from_value(json!({
        "metadata": {"uid": UID, "name": "web", "namespace": "ns", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "volumeMounts": mounts}], "volumes": volumes,
                 "serviceAccountName": "robot"},
    }))
    .unwrap()
}

pub fn agent(world: &World, files: &MemoryFiles) -> Volumes {
    let config = VolumesConfig::new(RootDir::new(ROOT));
    Volumes::new(config, world.in_memory(files))
}

pub fn node() -> MemoryFiles {
    let files = MemoryFiles::default();
    files.put(Path::new(ROOT), EntryKind::Directory).unwrap();
    files
        .put_file(Path::new("/srv/data/precious"), b"x")
        .unwrap();
    files
}

pub fn world() -> World {
    let world = World::default();
    world.put_config_map("settings", json!({"key": "value"}));
    world.put_secret("keys", &[("user", "me"), ("word", "hidden")]);
    world.put_claim("data", "pv-1", json!({"local": {"path": "/srv/data"}}));
    world
}

pub async fn told(volumes: &Volumes, pod: &Pod) -> Vec<String> {
    match volumes.set_up(pod).await {
        Ok(done) => done.stale.iter().map(ToString::to_string).collect(),
        Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
    }
}

/// Nothing of a pod is left.
pub async fn assert_gone(files: &MemoryFiles, note: &str) {
    let left: Vec<_> = files
        .paths()
        .into_iter()
        .filter(|p| p.starts_with(format!("{ROOT}/pods")) && p.components().count() > 5)
        .collect();
    assert_eq!(left, Vec::<PathBuf>::new(), "{note}");
    let mounts = files.mounts().below(Path::new("/")).await.unwrap();
    assert_eq!(mounts, [], "{note}");
    assert!(
        files.content(Path::new("/srv/data/precious")).is_some(),
        "{note}"
    );
}

/// Where a pod's emptyDirs are.
pub const EMPTY_DIRS: &str = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~empty-dir";

/// An agent over these files, in a world with nothing in it.
pub fn agent_over(files: &MemoryFiles) -> Volumes {
    let config = VolumesConfig::new(RootDir::new(ROOT));
    Volumes::new(config, World::default().in_memory(files))
}

/// A pod with volumes that are directories, mounts, and of the node.
pub fn full_pod() -> Pod {
    pod(r#"[{"name":"disk","emptyDir":{}},
            {"name":"ram","emptyDir":{"medium":"Memory","sizeLimit":"1Mi"}},
            {"name":"ram2","emptyDir":{"medium":"Memory"}},
            {"name":"host","hostPath":{"path":"/srv/data","type":"Directory"}}]"#)
}

/// What lies below the root directory.
pub fn under_root(files: &MemoryFiles) -> Vec<String> {
    files
        .paths()
        .iter()
        .filter_map(|p| p.strip_prefix(ROOT).ok())
        .map(|p| p.display().to_string())
        .filter(|p| !p.is_empty())
        .collect()
}

/// Of plugins neither.
pub async fn assert_nothing_left(files: &MemoryFiles, note: &str) {
    let mut left = under_root(files);
    left.retain(|p| p != "pods");
    assert_eq!(left, Vec::<String>::new(), "{note}");
    assert_gone(files, note).await;
}
