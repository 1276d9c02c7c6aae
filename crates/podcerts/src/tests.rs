use super::*;

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use krablet_linux::fake::{FixedClock, MemoryFiles};
use request::{Condition, Metadata, Status};
use tokio::sync::watch;

pub(crate) fn wanted(uid: &str) -> Wanted {
    Wanted {
        pod: PodRef::new(uid, "ns", "web"),
        volume: "cert".to_owned(),
        source: 0,
        service_account: "robot".to_owned(),
        signer: "example.com/ca".to_owned(),
        key_type: "ED25519".to_owned(),
        max_seconds: None,
        annotations: BTreeMap::new(),
    }
}

type List = watch::Sender<Option<Vec<Arc<Request>>>>;

/// Names requests `req-1`, `req-2` and so on, and signs them at once if it is told to.
struct Signer {
    list: List,
    asked: Mutex<Vec<Wanted>>,
    away: Mutex<bool>,
    prompt: bool,
    clock: FixedClock,
}

impl Signer {
    fn decide(&self, name: &str, kind: &str) {
        let now = self.clock.now();
        let minutes = |minutes| Some(Time(now + jiff::SignedDuration::from_mins(minutes)));
        let request = Request {
            metadata: Metadata {
                name: name.to_owned(),
                namespace: "ns".to_owned(),
            },
            status: Status {
                conditions: vec![Condition {
                    kind: kind.to_owned(),
                    ..Condition::default()
                }],
                certificate_chain: krablet_kube::pem::encoded("CERTIFICATE", name.as_bytes()),
                begin_refresh_at: minutes(30),
                not_after: minutes(60),
            },
        };
        self.list.send_modify(|list| {
            list.get_or_insert_default().push(Arc::new(request));
        });
    }
}

#[async_trait]
impl Signing for Signer {
    async fn ask(&self, wanted: &Wanted, stub: Vec<u8>) -> Result<String, NotAsked> {
        assert!(!stub.is_empty());
        if *self.away.lock().unwrap() {
            return Err(NotAsked {
                text: "no route to host".to_owned(),
                passing: true,
            });
        }
        let name = {
            let mut asked = self.asked.lock().unwrap();
            asked.push(wanted.clone());
            format!("req-{}", asked.len())
        };
        if self.prompt {
            self.decide(&name, "Issued");
        }
        Ok(name)
    }
}

struct Bench {
    certificates: PodCertificates,
    signer: Arc<Signer>,
    clock: FixedClock,
    recorder: Recorder,
}

fn bench(prompt: bool, shelf: Option<Shelf>) -> Bench {
    let clock = FixedClock::default();
    let (list, listed) = watch::channel(Some(Vec::new()));
    let signer = Arc::new(Signer {
        list,
        asked: Mutex::default(),
        away: Mutex::default(),
        prompt,
        clock: clock.clone(),
    });
    let wall = clock.clone();
    let recorder = Recorder::new(move || wall.now());
    let certificates = PodCertificates::new(CertificateDeps {
        signing: signer.clone(),
        requests: OnDemand::of(listed),
        clock: Arc::new(clock.clone()),
        recorder: recorder.clone(),
        shelf,
        seed: 1,
    });
    Bench {
        certificates,
        signer,
        clock,
        recorder,
    }
}

fn leaf(name: &str) -> String {
    krablet_kube::pem::encoded("CERTIFICATE", name.as_bytes())
}

#[tokio::test]
async fn a_prompt_signer_keeps_nobody_waiting_and_is_asked_again_in_time() {
    let Bench {
        certificates,
        signer,
        clock,
        ..
    } = bench(true, None);
    let first = certificates.get(&wanted("u")).await.unwrap();
    assert_eq!(*first.chain, *leaf("req-1"));
    assert!(first.key.starts_with("-----BEGIN PRIVATE KEY-----\n"));
    assert!(certificates.get(&wanted("u")).await.unwrap() == first);
    assert_eq!(signer.asked.lock().unwrap().len(), 1);
    let other = certificates.get(&wanted("v")).await.unwrap();
    assert_ne!(other.key, first.key);

    clock.set(first.look_at);
    let new = certificates.get(&wanted("u")).await.unwrap();
    assert_eq!(signer.asked.lock().unwrap().len(), 3);
    assert_eq!(*new.chain, *leaf("req-3"));
    assert_ne!(new.key, first.key);
    let states = certificates.states();
    assert_eq!(states, [(("example.com/ca".to_owned(), "fresh"), 2)].into());
    certificates.forget(&"u".into());
    certificates.forget(&"v".into());
    assert_eq!(certificates.states(), BTreeMap::new());
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_told_of_when_his_request_is_decided() {
    let Bench {
        certificates,
        signer,
        recorder,
        ..
    } = bench(false, None);
    for uid in ["u", "v"] {
        let waiting = certificates.get(&wanted(uid)).await.err();
        assert_eq!(waiting, Some(CertificateError::Waiting), "{uid}");
    }
    let (rung, mut heard) = watch::channel(BTreeSet::new());
    let watching = tokio::spawn(certificates.clone().watch(move |pods| {
        rung.send_if_modified(|rung| {
            let before = rung.len();
            rung.extend(pods);
            rung.len() > before
        });
    }));
    tokio::task::yield_now().await;
    signer.decide("req-2", "Denied");
    let of_v = BTreeSet::from(["v".into()]);
    heard.wait_for(|rung| *rung == of_v).await.unwrap();
    let refused = certificates.get(&wanted("v")).await.err().unwrap();
    assert!(matches!(
        refused,
        CertificateError::Refused { what: "denied", .. }
    ));
    let told = recorder.since(0);
    let reasons: Vec<&str> = told.iter().map(|event| &*event.reason).collect();
    assert_eq!(reasons, ["Denied"]);
    signer.decide("req-1", "Issued");
    heard.wait_for(|rung| rung.len() == 2).await.unwrap();
    assert_eq!(
        *certificates.get(&wanted("u")).await.unwrap().chain,
        *leaf("req-1")
    );
    watching.abort();
}

#[tokio::test]
async fn a_server_that_is_away_takes_no_certificate() {
    let Bench {
        certificates,
        signer,
        clock,
        ..
    } = bench(true, None);
    *signer.away.lock().unwrap() = true;
    let error = certificates.get(&wanted("u")).await.err().unwrap();
    assert_eq!(
        error.to_string(),
        "while creating initial PodCertificateRequest: no route to host"
    );
    *signer.away.lock().unwrap() = false;
    let first = certificates.get(&wanted("u")).await.unwrap();
    *signer.away.lock().unwrap() = true;
    clock.set(first.look_at);
    let old = certificates.get(&wanted("u")).await.unwrap();
    assert!(old.key == first.key && old.look_at > first.look_at);
    clock.advance(Duration::from_secs(24 * 3600));
    assert!(certificates.get(&wanted("u")).await.unwrap().key == first.key);
    let states = certificates.states();
    assert_eq!(
        states,
        [(("example.com/ca".to_owned(), "expired"), 1)].into()
    );
    let mut odd = wanted("u");
    odd.key_type = "DSA".to_owned();
    *signer.away.lock().unwrap() = false;
    let error = certificates.get(&odd).await.err().unwrap().to_string();
    assert!(error.ends_with("unknown key type \"DSA\""), "{error}");
}

#[tokio::test]
async fn a_later_life_has_the_certificates_of_this_one() {
    let files = Arc::new(MemoryFiles::default());
    let (shelf, task) = krablet_checkpoint::shelf(files.clone(), "/kept");
    let first = {
        let Bench { certificates, .. } = bench(true, Some(shelf));
        let first = certificates.get(&wanted("u")).await.unwrap();
        certificates.get(&wanted("gone")).await.unwrap();
        certificates.forget(&"gone".into());
        first
    };
    task.run().await;

    let (shelf, _task) = krablet_checkpoint::shelf(files, "/kept");
    let Bench {
        certificates,
        signer,
        ..
    } = bench(true, Some(shelf));
    *signer.away.lock().unwrap() = true;
    let kept = certificates.get(&wanted("u")).await.unwrap();
    assert!((&kept.key, &kept.chain) == (&first.key, &first.chain));
    let mut other = wanted("u");
    other.signer = "example.com/other".to_owned();
    assert!(certificates.get(&other).await.is_err());
    assert!(certificates.get(&wanted("gone")).await.is_err());
}
