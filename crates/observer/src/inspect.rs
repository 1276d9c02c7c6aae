//! The calls of one observation: a pod's two filtered lists and the statuses that are not known
//! yet, or the two full lists of an audit. Every call ends by the observation's deadline, and an
//! error names the call and the pod.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use krablet_cri::{RuntimeService, v1};
use krablet_linux::Files;
use krablet_pod::observed::{ContainerState, ObservedContainer, ObservedPod, ObservedSandbox};
use krablet_pod::{PodRef, PodUid, Ticket, labels};
use tokio::time::{Instant, timeout, timeout_at};

use crate::ObserveError;
use crate::convert::{self, Listed};
use crate::message::{self, LastWords};

/// How often a pod is listed again because something vanished between list and status.
const ROUNDS: usize = 4;

/// What an observation reaches out to.
#[derive(Clone)]
pub(crate) struct Reach {
    pub runtime: Arc<dyn RuntimeService>,
    pub files: Arc<dyn Files>,
    /// For all calls of one observation together.
    pub limit: Duration,
    pub deadline: Instant,
}

/// Why a look at a pod did not come to its end.
enum Interrupted {
    /// Something listed is no longer there: list again.
    Vanished(ObserveError),
    Failed(ObserveError),
}

impl Reach {
    async fn call<T>(
        &self,
        call: &'static str,
        object: &str,
        of: &str,
        answer: impl Future<Output = krablet_cri::Result<T>>,
    ) -> Result<T, Interrupted> {
        let named = || match object.is_empty() {
            true => of.to_owned(),
            false => format!("{object} of {of}"),
        };
        match timeout_at(self.deadline, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                let vanished = error.is_not_found();
                let error = ObserveError::Call {
                    object: named(),
                    error,
                };
                Err(match vanished {
                    true => Interrupted::Vanished(error),
                    false => Interrupted::Failed(error),
                })
            }
            Err(_) => Err(Interrupted::Failed(ObserveError::Deadline {
                call,
                object: named(),
                limit: self.limit,
            })),
        }
    }

    /// Both full lists, sorted by pod.
    pub(crate) async fn list_all(&self) -> Result<BTreeMap<PodUid, Listed>, ObserveError> {
        match self.lists("all pods", None).await {
            Ok((sandboxes, containers)) => Ok(convert::by_pod(sandboxes, containers)),
            Err(Interrupted::Vanished(error) | Interrupted::Failed(error)) => Err(error),
        }
    }

    async fn lists(
        &self,
        of: &str,
        uid: Option<&PodUid>,
    ) -> Result<(Vec<v1::PodSandbox>, Vec<v1::Container>), Interrupted> {
        let selector = || -> Option<BTreeMap<_, _>> {
            Some([(labels::POD_UID.to_owned(), uid?.to_string())].into())
        };
        let sandboxes = selector().map(|label_selector| v1::PodSandboxFilter {
            label_selector,
            ..Default::default()
        });
        let containers = selector().map(|label_selector| v1::ContainerFilter {
            label_selector,
            ..Default::default()
        });
        let sandboxes = self.runtime.list_pod_sandbox(sandboxes);
        let containers = self.runtime.list_containers(containers);
        futures::try_join!(
            self.call("ListPodSandbox", "", of, sandboxes),
            self.call("ListContainers", "", of, containers),
        )
    }

    /// Everything the runtime holds of one pod, or that it holds nothing.
    pub(crate) async fn pod(
        &self,
        pod: &PodRef,
        ticket: Ticket,
        previous: Option<&ObservedPod>,
    ) -> Result<ObservedPod, ObserveError> {
        let mut rounds = 1;
        loop {
            match self.look(pod, ticket, previous).await {
                Ok(seen) => return Ok(seen),
                Err(Interrupted::Vanished(_)) if rounds < ROUNDS => rounds += 1,
                Err(Interrupted::Vanished(error) | Interrupted::Failed(error)) => {
                    return Err(error);
                }
            }
        }
    }

    async fn look(
        &self,
        pod: &PodRef,
        ticket: Ticket,
        previous: Option<&ObservedPod>,
    ) -> Result<ObservedPod, Interrupted> {
        let of = format!("pod {pod} ({})", pod.uid);
        let (sandboxes, containers) = self.lists(&of, Some(&pod.uid)).await?;
        let mut listed = convert::by_pod(sandboxes, containers);
        // A filter the runtime did not honour must not mix pods.
        let Some(listed) = listed.remove(&pod.uid) else {
            return Ok(ObservedPod::absent(pod.clone(), ticket));
        };
        let mut seen = ObservedPod::absent(listed.pod, ticket);
        for sandbox in &listed.sandboxes {
            let known =
                previous.and_then(|p| p.sandboxes.iter().find(|s| s.id.as_str() == sandbox.id));
            seen.sandboxes
                .push(self.sandbox(&of, sandbox, known).await?);
        }
        for container in &listed.containers {
            let known =
                previous.and_then(|p| p.containers.iter().find(|c| c.id.as_str() == container.id));
            seen.containers
                .push(self.container(&of, container, known).await?);
        }
        convert::sort(&mut seen);
        Ok(seen)
    }

    /// Addresses are asked for once, when the sandbox is ready; nobody wants them of one that is not.
    async fn sandbox(
        &self,
        of: &str,
        listed: &v1::PodSandbox,
        known: Option<&ObservedSandbox>,
    ) -> Result<ObservedSandbox, Interrupted> {
        let addressed = known.is_some_and(|k| k.host_network || !k.ips.is_empty());
        if addressed || !convert::is_ready(listed.state) {
            return Ok(convert::listed_sandbox(listed, known));
        }
        let answer = self.runtime.pod_sandbox_status(&listed.id);
        let object = format!("sandbox {}", listed.id);
        let status = self.call("PodSandboxStatus", &object, of, answer).await?;
        Ok(convert::sandbox(status))
    }

    /// An exited container never changes, so it is asked about once.
    async fn container(
        &self,
        of: &str,
        listed: &v1::Container,
        known: Option<&ObservedContainer>,
    ) -> Result<ObservedContainer, Interrupted> {
        let exited = convert::state(listed.state) == ContainerState::Exited;
        if let Some(known) = known.filter(|k| exited && k.exit.is_some()) {
            return Ok(known.clone());
        }
        let answer = self.runtime.container_status(&listed.id);
        let object = format!("container {}", listed.id);
        let status = self.call("ContainerStatus", &object, of, answer).await?;
        let last = match convert::state(status.state) {
            ContainerState::Exited => message::read(&*self.files, &status).await,
            _ => Ok(LastWords::default()),
        };
        let last = last.map_err(|error| {
            let object = format!("{object} of {of}");
            Interrupted::Failed(ObserveError::End { object, error })
        })?;
        Ok(convert::container(status, &listed.pod_sandbox_id, last))
    }

    /// Whether the runtime answers at all.
    pub(crate) async fn ping(&self, limit: Duration) -> Result<(), String> {
        match timeout(limit, self.runtime.version()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("Version: {error}")),
            Err(_) => Err(format!("Version: no answer within {limit:?}")),
        }
    }
}
