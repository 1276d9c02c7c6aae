//! What the tests stand on: an authority that signs, a clock that follows tokio's, and an API
//! server that knows certificate signing requests and little else.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use krablet_kube::{Api, ApiError, Call, Kube, Verb, Watch, paths, pem};
use krablet_linux::WallClock;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, Issuer, KeyPair, PublicKeyData,
    SignatureAlgorithm,
};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use x509_parser::prelude::{FromDer, ParsedExtension, X509Certificate, X509CertificationRequest};

use crate::Pair;
use crate::csr::NodeKey;
use crate::names::Names;
use crate::pair::{Subject, node_user};

/// A moment in the tests' own time.
pub(crate) fn at(seconds: i64) -> Timestamp {
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    start + SignedDuration::from_secs(seconds)
}

struct PublicKey(Vec<u8>);

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = Issuer::new(params, KeyPair::generate().unwrap());
        Self { issuer }
    }

    /// The certificate a PKCS#10 request asks for.
    pub(crate) fn sign(&self, request: &[u8], from: Timestamp, to: Timestamp) -> Vec<u8> {
        let der = CertificateSigningRequestDer::from_pem_slice(request).unwrap();
        let (_, request) = X509CertificationRequest::from_der(&der).unwrap();
        let info = &request.certification_request_info;
        let key = info.subject_pki.subject_public_key.data.to_vec();
        let names = request.requested_extensions().into_iter().flatten();
        let names = names.filter_map(|e| match e {
            ParsedExtension::SubjectAlternativeName(names) => Some(Names::of(names)),
            _ => None,
        });
        let names = names.last().unwrap_or_default();
        self.certificate(
            &PublicKey(key),
            &Subject::of(&info.subject),
            &names,
            from,
            to,
        )
    }

    fn certificate(
        &self,
        key: &PublicKey,
        subject: &Subject,
        names: &Names,
        from: Timestamp,
        to: Timestamp,
    ) -> Vec<u8> {
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        let time = |t: Timestamp| epoch + Duration::from_secs(t.as_second().unsigned_abs());
        let mut name = DistinguishedName::new();
        for organization in &subject.organizations {
            name.push(DnType::OrganizationName, organization.as_str());
        }
        name.push(DnType::CommonName, subject.common_name.as_str());
        let mut params = CertificateParams::default();
        params.distinguished_name = name;
        params.subject_alt_names = names.alternatives().unwrap();
        params.not_before = time(from);
        params.not_after = time(to);
        let certificate = params.signed_by(key, &self.issuer).unwrap();
        pem::encoded("CERTIFICATE", certificate.der()).into_bytes()
    }

    /// A node's pair.
    pub(crate) fn pair(&self, node: &str, from: Timestamp, to: Timestamp) -> Pair {
        self.pair_of(&node_user(node), from, to)
    }

    pub(crate) fn pair_of(&self, user: &str, from: Timestamp, to: Timestamp) -> Pair {
        let key = NodeKey::generate().unwrap();
        let subject = Subject {
            common_name: user.into(),
            organizations: vec!["system:nodes".into()],
        };
        let chain = self.certificate(
            &PublicKey(key.raw_public_key()),
            &subject,
            &Names::default(),
            from,
            to,
        );
        Pair::from_pem(&chain, key.to_pem().as_bytes()).unwrap()
    }
}

/// A wall clock that goes with tokio's, and can be set. Clones show the same time.
#[derive(Clone)]
pub(crate) struct Clock {
    start: Instant,
    shown: Arc<Mutex<Timestamp>>,
}

impl Clock {
    /// Shows `time` now.
    pub(crate) fn at(time: Timestamp) -> Self {
        Self {
            start: Instant::now(),
            shown: Arc::new(Mutex::new(time)),
        }
    }

    pub(crate) fn step(&self, by: SignedDuration) {
        *self.shown.lock().unwrap() += by;
    }
}

impl WallClock for Clock {
    fn now(&self) -> Timestamp {
        let gone = SignedDuration::try_from(self.start.elapsed()).unwrap();
        *self.shown.lock().unwrap() + gone
    }
}

/// What the control plane does about requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Certificates of this life, dated back, after a while.
    Sign {
        life: i64,
        dated_back: i64,
        after: Duration,
    },
    SignAnotherKey,
    Deny,
    Fail,
    Ignore,
}

pub(crate) fn sign(life: i64) -> Policy {
    Policy::Sign {
        life,
        dated_back: 0,
        after: Duration::ZERO,
    }
}

type Fault = Box<dyn FnMut(&Call) -> Option<ApiError> + Send>;

struct Requests {
    objects: BTreeMap<String, (CertificateSigningRequest, Instant)>,
    version: u64,
    policy: Policy,
    /// So many watches end without a word.
    closing: usize,
    /// So many watches stay silent.
    silent: usize,
    fault: Option<Fault>,
    calls: Vec<String>,
}

/// An API server in memory.
pub(crate) struct Server {
    authority: Authority,
    clock: Clock,
    requests: Mutex<Requests>,
    changed: watch::Sender<u64>,
    /// Whoever shows an expired certificate is refused.
    shown: Option<watch::Receiver<Option<Arc<CertifiedKey>>>>,
}

impl Server {
    pub(crate) fn new(clock: Clock, policy: Policy) -> Arc<Self> {
        Self::authenticating(clock, policy, None)
    }

    pub(crate) fn authenticating(
        clock: Clock,
        policy: Policy,
        shown: Option<watch::Receiver<Option<Arc<CertifiedKey>>>>,
    ) -> Arc<Self> {
        let requests = Requests {
            objects: BTreeMap::new(),
            version: 0,
            policy,
            closing: 0,
            silent: 0,
            fault: None,
            calls: Vec::new(),
        };
        Arc::new(Self {
            authority: Authority::new(),
            clock,
            requests: Mutex::new(requests),
            changed: watch::channel(0).0,
            shown,
        })
    }

    pub(crate) fn kube(self: &Arc<Self>) -> Kube {
        Kube::new(Arc::new(Door(self.clone())))
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap()
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        self.lock().policy = policy;
        self.changed.send_modify(|v| *v += 1);
    }

    /// Signers of all requests that were made.
    pub(crate) fn signers(&self) -> Vec<String> {
        let requests = self.lock();
        let objects = requests.objects.values();
        objects
            .map(|(csr, _)| csr.spec.signer_name.clone())
            .collect()
    }

    pub(crate) fn close_watches(&self, count: usize) {
        self.lock().closing = count;
    }

    pub(crate) fn silence_watches(&self, count: usize) {
        self.lock().silent = count;
    }

    pub(crate) fn set_fault(&self, fault: impl FnMut(&Call) -> Option<ApiError> + Send + 'static) {
        self.lock().fault = Some(Box::new(fault));
    }

    pub(crate) fn clear_fault(&self) {
        self.lock().fault = None;
    }

    /// Verb and the end of the path, in order.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.lock().calls.clone()
    }

    pub(crate) fn count(&self, verb: &str) -> usize {
        self.calls().iter().filter(|c| c.starts_with(verb)).count()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.lock().objects.keys().cloned().collect()
    }

    pub(crate) fn delete_all(&self) {
        self.lock().objects.clear();
        self.changed.send_modify(|v| *v += 1);
    }

    fn admit(&self, verb: &str, call: &Call) -> Result<(), ApiError> {
        let mut requests = self.lock();
        let end = call.path.rsplit('/').next().unwrap_or_default();
        requests.calls.push(format!("{verb} {end}"));
        if let Some(error) = requests.fault.as_mut().and_then(|fault| fault(call)) {
            return Err(error);
        }
        let Some(shown) = &self.shown else {
            return Ok(());
        };
        let now = self.clock.now().as_second();
        let leaf = shown.borrow().as_ref().map(|k| k.cert[0].clone());
        let valid = leaf.is_some_and(|leaf| {
            let (_, leaf) = X509Certificate::from_der(&leaf).unwrap();
            let validity = leaf.validity();
            validity.not_before.timestamp() <= now && now <= validity.not_after.timestamp()
        });
        match valid {
            true => Ok(()),
            false => Err(status(401, "Unauthorized", "Unauthorized")),
        }
    }

    fn create(&self, body: &[u8]) -> Result<Bytes, ApiError> {
        let mut csr: CertificateSigningRequest = serde_json::from_slice(body).unwrap();
        let mut requests = self.lock();
        requests.version += 1;
        let version = requests.version;
        let metadata = &mut csr.metadata;
        let name = metadata
            .name
            .clone()
            .or_else(|| Some(format!("{}{version}", metadata.generate_name.as_ref()?)))
            .unwrap();
        if requests.objects.contains_key(&name) {
            return Err(status(409, "AlreadyExists", "already exists"));
        }
        metadata.name = Some(name.clone());
        metadata.uid = Some(format!("uid-{version}"));
        metadata.resource_version = Some(version.to_string());
        requests.objects.insert(name, (csr.clone(), Instant::now()));
        drop(requests);
        self.changed.send_modify(|v| *v += 1);
        Ok(serde_json::to_vec(&csr).unwrap().into())
    }

    /// Does what the policy asks for by now; tells when there is more to do.
    fn settle(&self) -> Option<Instant> {
        let mut requests = self.lock();
        let (policy, mut next) = (requests.policy, None);
        let mut version = requests.version;
        for (csr, made) in requests.objects.values_mut() {
            if csr.status.is_some() || policy == Policy::Ignore {
                continue;
            }
            if let Policy::Sign { after, .. } = policy
                && Instant::now() < *made + after
            {
                next = Some(*made + after);
                continue;
            }
            version += 1;
            csr.metadata.resource_version = Some(version.to_string());
            csr.status = Some(self.decide(policy, &csr.spec.request.0));
        }
        requests.version = version;
        next
    }

    fn decide(&self, policy: Policy, request: &[u8]) -> CertificateSigningRequestStatus {
        let now = self.clock.now();
        let seconds = SignedDuration::from_secs;
        let (condition, certificate) = match policy {
            Policy::Sign {
                life, dated_back, ..
            } => {
                let (from, to) = (now - seconds(dated_back), now + seconds(life));
                ("Approved", Some(self.authority.sign(request, from, to)))
            }
            Policy::SignAnotherKey => {
                let other = NodeKey::generate().unwrap().request("node-1").unwrap();
                let to = now + seconds(60);
                let chain = self.authority.sign(other.as_bytes(), now, to);
                ("Approved", Some(chain))
            }
            Policy::Deny => ("Denied", None),
            Policy::Fail => ("Failed", None),
            Policy::Ignore => unreachable!("ignored"),
        };
        let condition = CertificateSigningRequestCondition {
            type_: condition.into(),
            status: "True".into(),
            reason: Some("Policy".into()),
            message: Some("so it was decided".into()),
            ..Default::default()
        };
        CertificateSigningRequestStatus {
            certificate: certificate.map(ByteString),
            conditions: Some(vec![condition]),
        }
    }

    fn get(&self, name: &str) -> Result<Bytes, ApiError> {
        self.settle();
        match self.lock().objects.get(name) {
            Some((csr, _)) => Ok(serde_json::to_vec(csr).unwrap().into()),
            None => Err(status(404, "NotFound", "not found")),
        }
    }

    /// A line if the object changed after `seen`.
    fn line(&self, name: &str, seen: u64) -> Option<(u64, Bytes)> {
        let requests = self.lock();
        let (csr, _) = requests.objects.get(name)?;
        let version = csr.metadata.resource_version.as_ref()?.parse().ok()?;
        let line = serde_json::json!({"type": "MODIFIED", "object": csr});
        (version > seen).then(|| (version, serde_json::to_vec(&line).unwrap().into()))
    }
}

struct Door(Arc<Server>);

#[async_trait]
impl Api for Door {
    async fn call(&self, call: Call) -> Result<Bytes, ApiError> {
        tokio::task::yield_now().await;
        match call.verb {
            Verb::Create => {
                assert_eq!(call.path, paths::CERTIFICATE_SIGNING_REQUESTS);
                self.0.admit("create", &call)?;
                self.0.create(call.body.as_ref().unwrap())
            }
            Verb::Get => {
                self.0.admit("get", &call)?;
                let name = call.path.rsplit('/').next().unwrap();
                self.0.get(name)
            }
            other => panic!("{other:?} {}", call.path),
        }
    }

    async fn watch(&self, call: Call) -> Result<Watch, ApiError> {
        tokio::task::yield_now().await;
        assert_eq!(call.path, paths::CERTIFICATE_SIGNING_REQUESTS);
        self.0.admit("watch", &call)?;
        let query: BTreeMap<_, _> = call.query.iter().cloned().collect();
        let name = query["fieldSelector"].strip_prefix("metadata.name=");
        let name = name.unwrap().to_owned();
        let seen: u64 = query["resourceVersion"].parse().unwrap();
        {
            let mut requests = self.0.lock();
            if requests.closing > 0 {
                requests.closing -= 1;
                return Ok(futures::stream::empty().boxed());
            }
            if requests.silent > 0 {
                requests.silent -= 1;
                return Ok(futures::stream::pending().boxed());
            }
        }
        let server = self.0.clone();
        let changed = server.changed.subscribe();
        let state = (server, changed, name, seen);
        let lines =
            futures::stream::unfold(state, |(server, mut changed, name, seen)| async move {
                loop {
                    let next = server.settle();
                    if let Some((version, line)) = server.line(&name, seen) {
                        return Some((Ok(line), (server, changed, name, version)));
                    }
                    let due = async {
                        match next {
                            Some(next) => sleep_until(next).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        biased;
                        () = due => {}
                        _ = changed.changed() => {}
                    }
                }
            });
        Ok(lines.boxed())
    }

    fn reconnect(&self) {}
}

pub(crate) fn status(code: u16, reason: &str, message: &str) -> ApiError {
    ApiError::Status {
        code,
        reason: reason.into(),
        message: message.into(),
        retry_after: None,
    }
}

/// A kubeconfig with this user.
pub(crate) fn kubeconfig(user: &str) -> String {
    format!(
        r#"{{"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{{"name": "k", "cluster": {{"server": "https://10.0.0.1:6443"}}}}],
            "contexts": [{{"name": "c", "context": {{"cluster": "k", "user": "u"}}}}],
            "users": [{{"name": "u", "user": {user}}}]}}"#
    )
}

/// A user whose pair is in a file.
pub(crate) fn user_of_file(path: &Path) -> String {
    let path = path.display();
    format!(r#"{{"client-certificate": "{path}", "client-key": "{path}"}}"#)
}

/// A user whose pair stands in the kubeconfig.
pub(crate) fn user_with(pair: &Pair) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(pair.to_pem());
    format!(r#"{{"client-certificate-data": "{text}", "client-key-data": "{text}"}}"#)
}
