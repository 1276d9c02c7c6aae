//! Taking a node over from another agent: a static pod that already runs goes on under the UID it
//! has, instead of being restarted because this agent would call it differently.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use krablet_linux::Files;
use krablet_observer::{ObserveError, ObserverHandle};
use krablet_pod::api::Pod;
use krablet_pod::containers;
use krablet_pod::hash::container_hash_text;
use krablet_pod::observed::ObservedPod;
use krablet_pod::paths::RootDir;
use krablet_pod::{PodRef, PodUid};
use tokio::sync::OnceCell;
use tracing::warn;

/// In a taken-over pod's directory: the UID its manifest would have had here.
const MARK: &str = "krablet-taken-over";
const MARK_LIMIT: usize = 256;
const LOOK_AGAIN: Duration = Duration::from_secs(1);

pub struct Adoption {
    observer: ObserverHandle,
    files: Arc<dyn Files>,
    root: RootDir,
    /// What ran when this agent started.
    found: OnceCell<Vec<Arc<ObservedPod>>>,
}

impl Adoption {
    pub fn new(observer: ObserverHandle, files: Arc<dyn Files>, root: RootDir) -> Self {
        Self {
            observer,
            files,
            root,
            found: OnceCell::new(),
        }
    }

    /// Nothing can start before the runtime answers, so nothing is lost by waiting for its list; but
    /// without it a pod that was taken over would be restarted.
    async fn found(&self) -> &[Arc<ObservedPod>] {
        let look = || async {
            let mut told = false;
            loop {
                match self.observer.all_newer_than(self.observer.ticket()).await {
                    Ok(found) => return found,
                    Err(ObserveError::Stopped) => return Vec::new(),
                    Err(e) if !told => {
                        warn!(err = %e, "Waiting for the list of running pods, to know which of them are to be taken over");
                        told = true;
                    }
                    Err(_) => {}
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        self.found.get_or_init(look).await
    }

    fn mark(&self, uid: &PodUid) -> PathBuf {
        self.root.pod(uid).join(MARK)
    }

    /// Whether this agent made the pod: its directory has this agent's record of volumes.
    async fn is_ours(&self, uid: &PodUid) -> bool {
        let record = self.root.pod(uid).join(krablet_volumes::RECORD_FILE);
        self.files.lstat(&record).await.is_ok()
    }
}

#[async_trait]
impl krablet_sources::TakeOver for Adoption {
    async fn running_as(&self, pod: &Pod, manifest_changed: Timestamp) -> Option<PodUid> {
        let wanted = PodRef::of(pod);
        let mut candidates = self.found().await.iter();
        let running = candidates.find(|o| runs_as(pod, &wanted, o))?;
        let uid = &running.pod.uid;
        let mark = self.mark(uid);
        if let Ok(known) = self.files.read(&mark, MARK_LIMIT).await {
            // Taken over before: it stays so as long as the manifest says the same.
            return (known == wanted.uid.as_str().as_bytes()).then(|| uid.clone());
        }
        if self.is_ours(uid).await || !older(manifest_changed, running) {
            return None;
        }
        let made = self.files.create_dir_all(&self.root.pod(uid), 0o750).await;
        let text = wanted.uid.as_str().as_bytes();
        let written = match made {
            Ok(()) => self.files.write_atomic(&mark, text, 0o600).await,
            Err(e) => Err(e),
        };
        if let Err(e) = written {
            warn!(pod = %wanted, podUID = %uid, err = %e, "Cannot note the take-over of a static pod, it will be restarted");
            return None;
        }
        Some(uid.clone())
    }
}

/// The running pod has the name of the wanted one, another UID, and containers of exactly the same
/// names and images.
fn runs_as(pod: &Pod, wanted: &PodRef, running: &ObservedPod) -> bool {
    let Some(spec) = &pod.spec else {
        return false;
    };
    let same_name = running.pod.full_name() == wanted.full_name();
    if !same_name || running.pod.uid == wanted.uid || !running.is_alive() {
        return false;
    }
    let names_match = running
        .containers
        .iter()
        .all(|c| containers::find(spec, &c.name).is_some());
    let hashes_match = spec.containers.iter().all(|c| {
        let newest = running.newest(&c.name);
        newest.is_some_and(|n| n.memory.hash.as_deref() == Some(container_hash_text(c).as_str()))
    });
    names_match && hashes_match
}

/// The manifest has not changed since the pod's sandbox was made. Of a manifest whose age is not
/// known (`Timestamp::MAX`) nobody can say that.
fn older(manifest_changed: Timestamp, running: &ObservedPod) -> bool {
    let made = running.sandboxes.iter().map(|s| s.created_at).max();
    made.is_some_and(|made| manifest_changed.as_nanosecond() <= i128::from(made))
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_pod::Ticket;
    use krablet_pod::api::{Container, PodSpec};
    use krablet_pod::observed::{
        ContainerMemory, ContainerState, ObservedContainer, ObservedSandbox,
    };

    fn container(name: &str, image: &str) -> Container {
        Container {
            name: name.into(),
            image: Some(image.into()),
            ..Container::default()
        }
    }

    fn pod(containers: Vec<Container>) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.uid = Some("ours".into());
        pod.metadata.name = Some("web-node".into());
        pod.metadata.namespace = Some("ns".into());
        pod.spec = Some(PodSpec {
            containers,
            ..PodSpec::default()
        });
        pod
    }

    fn running(uid: &str, name: &str, containers: &[(&str, &str)]) -> ObservedPod {
        let observed = |(name, image): &(&str, &str)| ObservedContainer {
            id: (*name).into(),
            name: (*name).into(),
            sandbox_id: "s".into(),
            state: ContainerState::Running,
            attempt: 0,
            created_at: 0,
            started_at: 0,
            exit: None,
            image: (*image).into(),
            image_ref: (*image).into(),
            user: None,
            resources: None,
            memory: ContainerMemory {
                hash: Some(container_hash_text(&container(name, image))),
                ..ContainerMemory::default()
            },
            log_path: String::new(),
        };
        ObservedPod {
            pod: PodRef::new(uid, "ns", name),
            ticket: Ticket(1),
            sandboxes: vec![ObservedSandbox {
                id: "s".into(),
                ready: true,
                attempt: 0,
                created_at: 5_000_000_000,
                ips: vec![],
                host_network: false,
                source: None,
            }],
            containers: containers.iter().map(observed).collect(),
        }
    }

    #[test]
    fn only_the_same_pod_is_taken_over() {
        let pod = pod(vec![container("a", "i:1"), container("b", "i:2")]);
        let wanted = PodRef::of(&pod);
        let both = [("a", "i:1"), ("b", "i:2")];
        let cases = [
            (running("theirs", "web-node", &both), true),
            (running("ours", "web-node", &both), false),
            (running("theirs", "db-node", &both), false),
            (running("theirs", "web-node", &both[..1]), false),
            (
                running("theirs", "web-node", &[("a", "i:1"), ("b", "i:3")]),
                false,
            ),
            (
                running(
                    "theirs",
                    "web-node",
                    &[("a", "i:1"), ("b", "i:2"), ("c", "i")],
                ),
                false,
            ),
        ];
        for (candidate, expected) in cases {
            assert_eq!(
                runs_as(&pod, &wanted, &candidate),
                expected,
                "{candidate:?}"
            );
        }
    }

    #[test]
    fn a_manifest_changed_since_is_another_pod() {
        let candidate = running("theirs", "web-node", &[]);
        let at = |s| Timestamp::from_second(s).unwrap();
        assert!(older(at(5), &candidate));
        assert!(!older(Timestamp::new(5, 1).unwrap(), &candidate));
        assert!(!older(at(6), &candidate));
        assert!(!older(Timestamp::MAX, &candidate));
    }
}
