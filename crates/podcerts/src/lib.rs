//! Certificates of pods: for each a key made here, a PodCertificateRequest that names the pod, and what its signer
//! answers. Kept in memory and, for a later life, on the shelf of secrets; renewed when the signer says. An API server that
//! is away takes no certificate from anybody.

mod course;
mod kept;
mod keys;
mod request;
mod signing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use krablet_checkpoint::Shelf;
use krablet_events::{Recorder, Subject};
use krablet_kube::{Api, OnDemand, OnDemandTask, ReflectorConfig, on_demand, paths};
use krablet_linux::WallClock;
use krablet_pod::{PodRef, PodUid};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use course::{Asked, Course, News};

pub use kept::kept_name;
pub use request::Request;
pub use signing::{KubeSigning, NotAsked, Signing};

/// Most signers answer at once: a pod waits so long before it is told that it has to wait.
const PROMPT: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("credential bundle is not issued yet")]
    Waiting,
    #[error("PodCertificateRequest was permanently {what}: reason={reason:?} message={message:?}")]
    Refused {
        what: &'static str,
        reason: String,
        message: String,
    },
    #[error("while creating initial PodCertificateRequest: {0}")]
    NotAsked(String),
    #[error(
        "podCertificate projection is not supported in static kubelet mode, or without the feature gate PodCertificateRequest"
    )]
    NotOffered,
}

/// Which certificate: that of one source of a projected volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    pub pod: PodRef,
    pub volume: String,
    /// Which of the volume's sources.
    pub source: usize,
    pub service_account: String,
    pub signer: String,
    pub key_type: String,
    /// None for what the server likes best.
    pub max_seconds: Option<i32>,
    /// What the user wants the signer to know.
    pub annotations: BTreeMap<String, String>,
}

/// A key and its certificates, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Bundle {
    pub key: Arc<str>,
    pub chain: Arc<str>,
    /// When it is worth asking again.
    pub look_at: Timestamp,
}

/// What all certificates of a node work with.
pub struct CertificateDeps {
    pub signing: Arc<dyn Signing>,
    pub requests: OnDemand<Request>,
    pub clock: Arc<dyn WallClock>,
    pub recorder: Recorder,
    /// For a later life.
    pub shelf: Option<Shelf>,
    pub seed: u64,
}

/// The certificates of all pods. Clones share them.
#[derive(Clone)]
pub struct PodCertificates {
    inner: Arc<Inner>,
}

struct Inner {
    deps: CertificateDeps,
    /// Of pods that were not forgotten.
    courses: Mutex<BTreeMap<PodUid, BTreeMap<Wanted, Course>>>,
    /// So that the certificates of a node are not all renewed at once.
    spread: Mutex<StdRng>,
}

/// The requests of this node, listed and watched from the first one on.
pub fn requests_of(
    api: Arc<dyn Api>,
    node: &str,
    seed: u64,
) -> (OnDemand<Request>, OnDemandTask<Request>) {
    let config = ReflectorConfig {
        path: paths::POD_CERTIFICATE_REQUESTS.to_owned(),
        query: vec![("fieldSelector", format!("spec.nodeName={node}"))],
        slim: Box::new(|_: &mut Request, _| ()),
        seed,
    };
    on_demand(api, config)
}

impl PodCertificates {
    pub fn new(deps: CertificateDeps) -> Self {
        let spread = Mutex::new(StdRng::seed_from_u64(deps.seed));
        Self {
            inner: Arc::new(Inner {
                deps,
                courses: Mutex::default(),
                spread,
            }),
        }
    }

    /// The certificate there is; asks for one if it is time for that. Calls for one pod come one after another.
    pub async fn get(&self, wanted: &Wanted) -> Result<Bundle, CertificateError> {
        let inner = &*self.inner;
        let now = inner.deps.clock.now();
        let course = inner.course(wanted).await;
        let mut course = inner.look(wanted, course, now);
        if course.asks(now) {
            course = match inner.ask(wanted, now).await {
                Ok(asked) => inner.until_decided(wanted, course.asked(asked), now).await,
                Err(why) if course == Course::New => {
                    return Err(CertificateError::NotAsked(why.text));
                }
                Err(why) => {
                    let PodRef { uid, .. } = &wanted.pod;
                    tracing::warn!(pod = %wanted.pod, podUID = %uid, volume = wanted.volume, err = why.text, "Couldn't renew a certificate of the pod");
                    course
                }
            };
        }
        let bundle = course.bundle(now);
        inner.keep(wanted, course);
        bundle
    }

    /// The pod is gone, and its certificates with it.
    pub fn forget(&self, uid: &PodUid) {
        self.inner.courses().remove(uid);
        if let Some(shelf) = &self.inner.deps.shelf {
            shelf.remove(&kept_name(uid));
        }
    }

    /// How many certificates are in which state, by signer.
    pub fn states(&self) -> BTreeMap<(String, &'static str), usize> {
        let now = self.inner.deps.clock.now();
        let mut states = BTreeMap::new();
        for (wanted, course) in self.inner.courses().values().flatten() {
            let state = (wanted.signer.clone(), course.state(now));
            *states.entry(state).or_default() += 1;
        }
        states
    }

    /// Tells of each pod one of whose requests has been decided. Never ends.
    pub async fn watch(self, ring: impl Fn(BTreeSet<PodUid>)) {
        let mut requests = self.inner.deps.requests.clone();
        loop {
            requests.changed().await;
            ring(self.inner.decided());
        }
    }
}

impl Inner {
    fn courses(&self) -> MutexGuard<'_, BTreeMap<PodUid, BTreeMap<Wanted, Course>>> {
        self.courses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn share(&self) -> f64 {
        let mut spread = self.spread.lock().unwrap_or_else(PoisonError::into_inner);
        spread.random()
    }

    async fn course(&self, wanted: &Wanted) -> Course {
        let known = {
            let courses = self.courses();
            let of_pod = courses.get(&wanted.pod.uid);
            of_pod.and_then(|of_pod| of_pod.get(wanted).cloned())
        };
        match (known, &self.deps.shelf) {
            (Some(course), _) => course,
            (None, Some(shelf)) => kept::load(shelf, wanted).await.unwrap_or_default(),
            (None, None) => Course::New,
        }
    }

    fn look(&self, wanted: &Wanted, course: Course, now: Timestamp) -> Course {
        let known = self.deps.requests.known();
        let namespace = &*wanted.pod.namespace;
        let (course, news) = course.look(namespace, known.as_deref(), now, self.share());
        for News { reason, message } in news {
            let subject = Subject::Pod(wanted.pod.clone());
            self.deps.recorder.warning(subject, reason, message);
        }
        course
    }

    async fn ask(&self, wanted: &Wanted, now: Timestamp) -> Result<Asked, NotAsked> {
        // Whoever cannot be heard is not asked: the answer would be lost.
        let heard = self.deps.requests.all().await;
        heard.map_err(|e| NotAsked {
            text: format!("while listing PodCertificateRequests: {e}"),
            passing: e.is_passing(),
        })?;
        let key_type = wanted.key_type.clone();
        let made = tokio::task::spawn_blocking(move || keys::make(&key_type)).await;
        let made = made.unwrap_or_else(|e| Err(e.to_string()));
        let made = made.map_err(|text| NotAsked {
            text,
            passing: false,
        })?;
        let name = self.deps.signing.ask(wanted, made.request).await?;
        Ok(Asked::new(name, made.key.into(), now, self.share()))
    }

    /// Gives the signer a moment, if the pod has nothing yet.
    async fn until_decided(&self, wanted: &Wanted, course: Course, now: Timestamp) -> Course {
        // Kept first: nobody else has the key, should the pod be in a hurry.
        self.keep(wanted, course.clone());
        if let Course::Asked(asked) = &course {
            let namespace = &*wanted.pod.namespace;
            let decided = |known: &[Arc<Request>]| {
                let found = course::find(known, namespace, &asked.name);
                found.is_some_and(|request| request.verdict().is_some())
            };
            self.deps.requests.within(PROMPT, decided).await;
        }
        self.look(wanted, course, now)
    }

    fn keep(&self, wanted: &Wanted, course: Course) {
        let mut courses = self.courses();
        let of_pod = courses.entry(wanted.pod.uid.clone()).or_default();
        let before = of_pod.insert(wanted.clone(), course.clone());
        if before.as_ref() != Some(&course)
            && let Some(shelf) = &self.deps.shelf
        {
            kept::put(shelf, &wanted.pod.uid, of_pod);
        }
    }

    /// Pods that wait for what is known by now.
    fn decided(&self) -> BTreeSet<PodUid> {
        let known = self.deps.requests.known().unwrap_or_default();
        let decided = |(wanted, course): (&Wanted, &Course)| {
            let asked = course.waits_for()?;
            course::find(&known, &wanted.pod.namespace, &asked.name)?.verdict()
        };
        let courses = self.courses();
        let pods = courses.iter();
        let pods = pods.filter(|(_, of_pod)| of_pod.iter().any(|one| decided(one).is_some()));
        pods.map(|(uid, _)| uid.clone()).collect()
    }
}

#[cfg(test)]
mod tests;
