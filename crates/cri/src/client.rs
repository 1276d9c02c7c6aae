//! The gRPC client of the runtime: deadlines, size caps, what counts as success, and the record
//! of calls. One connection carries the calls, another the event stream, so that a reader who
//! falls behind on events cannot hold up answers.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, TryFutureExt};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::calls::{Call, CallLog};
use crate::endpoint::Endpoint;
use crate::service::{EventStream, Result, RuntimeService};
use crate::v1::runtime_service_client::RuntimeServiceClient;
use crate::{Code, Error, v1};

/// Answers and events larger than this are refused.
pub const MAX_MESSAGE: usize = 16 << 20;
/// What is kept of each of a command's two outputs.
pub const MAX_EXEC_OUTPUT: usize = 16 << 20;
/// An answer with both outputs full, and its framing.
const MAX_EXEC_MESSAGE: usize = 2 * MAX_EXEC_OUTPUT + (64 << 10);

/// A subscription not refused by then stands.
const SUBSCRIBED_AFTER: Duration = Duration::from_millis(250);

/// The most a container is given to end. Whoever asks for more means "as long as it takes"; and what
/// a runtime would make of centuries, in nanoseconds, is a number below zero and so no grace at all.
const LONGEST_GRACE: Duration = Duration::from_secs(365 * 24 * 3600);
/// The most that is waited for any answer. A deadline has eight digits on the wire, and one that does
/// not fit would be a panic.
const LONGEST_WAIT: Duration = LONGEST_GRACE.saturating_mul(10);

/// How long to wait for the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// `runtimeRequestTimeout`; sandbox starts get twice as long.
    pub request: Duration,
    /// What a runtime gets to clean up a command it timed out, before we give up on it.
    pub exec_slack: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(120),
            exec_slack: Duration::from_secs(15),
        }
    }
}

/// What all calls over one connection share.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) deadlines: Deadlines,
    pub(crate) log: CallLog,
}

impl Caller {
    /// Makes one call with the ordinary deadline.
    pub(crate) async fn call<Q, A, F>(
        &self,
        call: Call,
        object: &str,
        request: Q,
        rpc: impl FnOnce(Request<Q>) -> F,
    ) -> Result<A>
    where
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        let deadline = Some(self.deadlines.request);
        self.call_within(call, object, deadline, request, rpc).await
    }

    pub(crate) async fn call_within<Q, A, F>(
        &self,
        call: Call,
        object: &str,
        deadline: Option<Duration>,
        request: Q,
        rpc: impl FnOnce(Request<Q>) -> F,
    ) -> Result<A>
    where
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        let entry = self.log.begin(call, object);
        let mut request = Request::new(request);
        let answer = match deadline {
            Some(deadline) => {
                let deadline = deadline.min(LONGEST_WAIT);
                // The runtime is told, and we hold it to that: the header alone would not bound
                // the time between the head of an answer and its body.
                request.set_timeout(deadline);
                tokio::time::timeout(deadline, rpc(request))
                    .await
                    .unwrap_or_else(|_| Err(Status::deadline_exceeded(DEADLINE)))
            }
            None => rpc(request).await,
        };
        entry.finish(answer.is_err());
        answer
            .map(Response::into_inner)
            .map_err(|status| to_error(call, status))
    }
}

const DEADLINE: &str = "context deadline exceeded";

pub(crate) fn to_error(call: Call, status: Status) -> Error {
    let message = status.message();
    // The channel's own timer tells of the deadline in these words.
    if status.code() == Code::Cancelled && message.eq_ignore_ascii_case("timeout expired") {
        return Error::deadline(call.name());
    }
    let source = std::error::Error::source(&status);
    let message = match innermost(source) {
        // "transport error" alone helps nobody; say what the transport said.
        Some(cause) if status.code() == Code::Unavailable || status.code() == Code::Unknown => {
            format!("{message}: {cause}")
        }
        _ => message.to_owned(),
    };
    Error::new(call.name(), status.code(), message)
}

fn innermost(source: Option<&(dyn std::error::Error + 'static)>) -> Option<String> {
    let mut cause = source?;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    Some(cause.to_string())
}

/// What a list is restricted to, if to anything.
fn asked_for(labels: Option<&BTreeMap<String, String>>) -> String {
    let values = labels.into_iter().flat_map(BTreeMap::values);
    values.cloned().collect::<Vec<_>>().join(",")
}

/// A call whose object is already gone has done what was asked.
pub(crate) fn gone_is_done<T>(result: Result<T>) -> Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// An answer the interface promises and the runtime left out.
fn missing(call: Call, what: &str) -> Error {
    Error::new(call.name(), Code::Internal, format!("{what} is not set"))
}

/// The runtime behind a socket. Clones share the connections.
#[derive(Clone)]
pub struct RuntimeClient {
    caller: Caller,
    calls: RuntimeServiceClient<Channel>,
    events: RuntimeServiceClient<Channel>,
}

impl RuntimeClient {
    /// Nothing is sent before the first call.
    pub fn new(endpoint: &Endpoint, deadlines: Deadlines, log: CallLog) -> Self {
        let client =
            |channel| RuntimeServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        Self {
            caller: Caller { deadlines, log },
            calls: client(endpoint.channel()),
            events: client(endpoint.channel()),
        }
    }

    /// What it is being asked, by whoever shares the log.
    pub fn log(&self) -> &CallLog {
        &self.caller.log
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    pub(crate) fn rpc(&self) -> RuntimeServiceClient<Channel> {
        self.calls.clone()
    }
}

#[async_trait]
impl RuntimeService for RuntimeClient {
    async fn version(&self) -> Result<v1::VersionResponse> {
        let mut rpc = self.rpc();
        let request = v1::VersionRequest::default();
        let call = |r| async move { rpc.version(r).await };
        self.caller.call(Call::Version, "", request, call).await
    }

    async fn status(&self) -> Result<v1::StatusResponse> {
        let mut rpc = self.rpc();
        let request = v1::StatusRequest::default();
        let call = |r| async move { rpc.status(r).await };
        self.caller.call(Call::Status, "", request, call).await
    }

    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse> {
        let mut rpc = self.rpc();
        let request = v1::RuntimeConfigRequest {};
        let call = |r| async move { rpc.runtime_config(r).await };
        self.caller
            .call(Call::RuntimeConfig, "", request, call)
            .await
    }

    async fn update_runtime_config(&self, pod_cidr: &str) -> Result<()> {
        let mut rpc = self.rpc();
        let network_config = Some(v1::NetworkConfig {
            pod_cidr: pod_cidr.to_owned(),
        });
        let request = v1::UpdateRuntimeConfigRequest {
            runtime_config: Some(v1::RuntimeConfig { network_config }),
        };
        let call = |r| async move { rpc.update_runtime_config(r).await };
        self.caller
            .call(Call::UpdateRuntimeConfig, "", request, call)
            .await?;
        Ok(())
    }

    async fn run_pod_sandbox(
        &self,
        config: v1::PodSandboxConfig,
        runtime_handler: &str,
    ) -> Result<String> {
        let mut rpc = self.rpc();
        let object = match &config.metadata {
            Some(pod) => format!("{}/{}", pod.namespace, pod.name),
            None => String::new(),
        };
        let request = v1::RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: runtime_handler.to_owned(),
        };
        let deadline = Some(self.caller.deadlines.request.saturating_mul(2));
        let call = |r| async move { rpc.run_pod_sandbox(r).await };
        let answer = self
            .caller
            .call_within(Call::RunPodSandbox, &object, deadline, request, call)
            .await?;
        if answer.pod_sandbox_id.is_empty() {
            return Err(missing(Call::RunPodSandbox, "pod_sandbox_id"));
        }
        Ok(answer.pod_sandbox_id)
    }

    async fn stop_pod_sandbox(&self, sandbox_id: &str) -> Result<()> {
        let mut rpc = self.rpc();
        let request = v1::StopPodSandboxRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
        };
        let call = |r| async move { rpc.stop_pod_sandbox(r).await };
        gone_is_done(
            self.caller
                .call(Call::StopPodSandbox, sandbox_id, request, call)
                .await,
        )
    }

    async fn remove_pod_sandbox(&self, sandbox_id: &str) -> Result<()> {
        let mut rpc = self.rpc();
        let request = v1::RemovePodSandboxRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
        };
        let call = |r| async move { rpc.remove_pod_sandbox(r).await };
        gone_is_done(
            self.caller
                .call(Call::RemovePodSandbox, sandbox_id, request, call)
                .await,
        )
    }

    async fn pod_sandbox_status(&self, sandbox_id: &str) -> Result<v1::PodSandboxStatus> {
        let mut rpc = self.rpc();
        let request = v1::PodSandboxStatusRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            verbose: false,
        };
        let call = |r| async move { rpc.pod_sandbox_status(r).await };
        self.caller
            .call(Call::PodSandboxStatus, sandbox_id, request, call)
            .await?
            .status
            .ok_or_else(|| missing(Call::PodSandboxStatus, "status"))
    }

    async fn list_pod_sandbox(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>> {
        let mut rpc = self.rpc();
        let object = asked_for(filter.as_ref().map(|f| &f.label_selector));
        let request = v1::ListPodSandboxRequest { filter };
        let call = |r| async move { rpc.list_pod_sandbox(r).await };
        let answer = (self.caller).call(Call::ListPodSandbox, &object, request, call);
        Ok(answer.await?.items)
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: v1::UpdatePodSandboxResourcesRequest,
    ) -> Result<()> {
        let mut rpc = self.rpc();
        let object = request.pod_sandbox_id.clone();
        let call = |r| async move { rpc.update_pod_sandbox_resources(r).await };
        self.caller
            .call(Call::UpdatePodSandboxResources, &object, request, call)
            .await?;
        Ok(())
    }

    async fn create_container(
        &self,
        sandbox_id: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String> {
        let mut rpc = self.rpc();
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let call = |r| async move { rpc.create_container(r).await };
        let answer = self
            .caller
            .call(Call::CreateContainer, sandbox_id, request, call)
            .await?;
        if answer.container_id.is_empty() {
            return Err(missing(Call::CreateContainer, "container_id"));
        }
        Ok(answer.container_id)
    }

    async fn start_container(&self, container_id: &str) -> Result<()> {
        let mut rpc = self.rpc();
        let request = v1::StartContainerRequest {
            container_id: container_id.to_owned(),
        };
        let call = |r| async move { rpc.start_container(r).await };
        self.caller
            .call(Call::StartContainer, container_id, request, call)
            .await?;
        Ok(())
    }

    async fn stop_container(&self, container_id: &str, grace_seconds: i64) -> Result<()> {
        let mut rpc = self.rpc();
        let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(0));
        let grace = grace.min(LONGEST_GRACE);
        let request = v1::StopContainerRequest {
            container_id: container_id.to_owned(),
            timeout: i64::try_from(grace.as_secs()).unwrap_or(i64::MAX),
        };
        let deadline = Some(self.caller.deadlines.request.saturating_add(grace));
        let call = |r| async move { rpc.stop_container(r).await };
        gone_is_done(
            self.caller
                .call_within(Call::StopContainer, container_id, deadline, request, call)
                .await,
        )
    }

    async fn remove_container(&self, container_id: &str) -> Result<()> {
        let mut rpc = self.rpc();
        let request = v1::RemoveContainerRequest {
            container_id: container_id.to_owned(),
        };
        let call = |r| async move { rpc.remove_container(r).await };
        gone_is_done(
            self.caller
                .call(Call::RemoveContainer, container_id, request, call)
                .await,
        )
    }

    async fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>> {
        let mut rpc = self.rpc();
        let object = asked_for(filter.as_ref().map(|f| &f.label_selector));
        let request = v1::ListContainersRequest { filter };
        let call = |r| async move { rpc.list_containers(r).await };
        let answer = (self.caller).call(Call::ListContainers, &object, request, call);
        Ok(answer.await?.containers)
    }

    async fn container_status(&self, container_id: &str) -> Result<v1::ContainerStatus> {
        let mut rpc = self.rpc();
        let request = v1::ContainerStatusRequest {
            container_id: container_id.to_owned(),
            verbose: false,
        };
        let call = |r| async move { rpc.container_status(r).await };
        self.caller
            .call(Call::ContainerStatus, container_id, request, call)
            .await?
            .status
            .ok_or_else(|| missing(Call::ContainerStatus, "status"))
    }

    async fn update_container_resources(
        &self,
        request: v1::UpdateContainerResourcesRequest,
    ) -> Result<()> {
        let mut rpc = self.rpc();
        let object = request.container_id.clone();
        let call = |r| async move { rpc.update_container_resources(r).await };
        self.caller
            .call(Call::UpdateContainerResources, &object, request, call)
            .await?;
        Ok(())
    }

    async fn reopen_container_log(&self, container_id: &str) -> Result<()> {
        let mut rpc = self.rpc();
        let request = v1::ReopenContainerLogRequest {
            container_id: container_id.to_owned(),
        };
        let call = |r| async move { rpc.reopen_container_log(r).await };
        self.caller
            .call(Call::ReopenContainerLog, container_id, request, call)
            .await?;
        Ok(())
    }

    async fn exec_sync(
        &self,
        container_id: &str,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<v1::ExecSyncResponse> {
        let mut rpc = self.rpc().max_decoding_message_size(MAX_EXEC_MESSAGE);
        let request = v1::ExecSyncRequest {
            container_id: container_id.to_owned(),
            cmd: command,
            // Whole seconds, and 0 would mean none.
            timeout: i64::try_from(timeout.as_millis().div_ceil(1000)).unwrap_or(i64::MAX),
        };
        let slack = self.caller.deadlines.exec_slack;
        // Without a timeout a command may run as long as it likes.
        let deadline = (!timeout.is_zero()).then(|| timeout.saturating_add(slack));
        let call = |r| async move { rpc.exec_sync(r).await };
        let mut answer = self
            .caller
            .call_within(Call::ExecSync, container_id, deadline, request, call)
            .await?;
        answer.stdout.truncate(MAX_EXEC_OUTPUT);
        answer.stderr.truncate(MAX_EXEC_OUTPUT);
        Ok(answer)
    }

    async fn container_events(&self) -> Result<EventStream> {
        const CALL: Call = Call::GetContainerEvents;
        let entry = self.caller.log.begin(CALL, "");
        let mut rpc = self.events.clone();
        let mut head = Box::pin(async move {
            let answer = rpc.get_container_events(v1::GetEventsRequest {}).await;
            answer
                .map(Response::into_inner)
                .map_err(|s| to_error(CALL, s))
        });
        // A refusal comes at once. The head of a good answer may come only with the first event,
        // which can be hours away, so after a moment the rest of the wait is the stream's.
        let answer = tokio::time::timeout(SUBSCRIBED_AFTER, &mut head).await;
        entry.finish(matches!(answer, Ok(Err(_))));
        let events = |stream: tonic::Streaming<_>| stream.map(|e| e.map_err(|s| to_error(CALL, s)));
        match answer {
            Ok(Ok(stream)) => Ok(events(stream).boxed()),
            Ok(Err(error)) => Err(error),
            Err(_) => Ok(head.map_ok(events).try_flatten_stream().boxed()),
        }
    }
}
