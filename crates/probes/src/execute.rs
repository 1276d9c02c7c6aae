//! One execution of one probe: what is asked, and what the answer means, in upstream's words.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use krablet_core::backoff::go_duration;
use krablet_core::probe::{Outcome, ProbeKind, TRIES, Timing};
use krablet_cri::RuntimeService;
use krablet_events::reason;
use krablet_net::{
    GrpcHealth, HttpGet, Net, NetError, PROBE_USER_AGENT, Redirects, join_host_port, pod_headers,
    pod_url,
};
use krablet_pod::api::{
    Container, ExecAction, GRPCAction, HTTPGetAction, Pod, Probe, TCPSocketAction,
};
use krablet_pod::containers::find;
use krablet_pod::{ContainerId, PodRef};

use crate::expand::expand;

/// What is read of an answer, and kept of a command's output.
const MAX_OUTPUT: usize = 10 * 1024;

/// An execution that is due.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) spec: Arc<Pod>,
    pub(crate) pod: PodRef,
    pub(crate) container: Arc<str>,
    pub(crate) kind: ProbeKind,
    pub(crate) id: ContainerId,
    pub(crate) ip: Option<Arc<str>>,
    pub(crate) timing: Timing,
}

/// How it went, and the event it makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) outcome: Outcome,
    pub(crate) event: Option<(&'static str, String)>,
}

/// What one try came to.
enum Answer {
    Success,
    Warning(String),
    Failure(String),
    /// A command that did not end in time.
    Hung(String),
    /// Nothing can be concluded; the state upstream names in the event.
    Error(&'static str, String),
}

const UNKNOWN: &str = "unknown";
const FAILURE: &str = "failure";

/// The probe of `kind` of a container.
pub(crate) fn probe_of(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Startup => container.startup_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
    }
}

/// Tries until there is a result, a few times at most. Dropping this ends the try under way.
pub(crate) async fn execute(job: &Job, runtime: &dyn RuntimeService, net: &dyn Net) -> Report {
    let mut answer = attempt(job, runtime, net).await;
    for _ in 1..TRIES {
        if !matches!(answer, Answer::Error(..)) {
            break;
        }
        answer = attempt(job, runtime, net).await;
    }
    let kind = job.kind.as_str();
    match answer {
        Answer::Success => Report {
            outcome: Outcome::Success,
            event: None,
        },
        Answer::Warning(text) => Report {
            outcome: Outcome::Success,
            event: Some((
                reason::PROBE_WARNING,
                format!("{kind} probe warning: {text}"),
            )),
        },
        Answer::Failure(text) => failed(kind, Outcome::Failure, &text),
        Answer::Hung(text) => failed(kind, Outcome::Hung, &text),
        Answer::Error(state, text) => {
            let message = format!("{kind} probe errored and resulted in {state} state: {text}");
            Report {
                outcome: Outcome::Error,
                event: Some((reason::UNHEALTHY, message)),
            }
        }
    }
}

fn failed(kind: &str, outcome: Outcome, text: &str) -> Report {
    Report {
        outcome,
        event: Some((reason::UNHEALTHY, format!("{kind} probe failed: {text}"))),
    }
}

async fn attempt(job: &Job, runtime: &dyn RuntimeService, net: &dyn Net) -> Answer {
    let container = job
        .spec
        .spec
        .as_ref()
        .and_then(|spec| find(spec, &job.container));
    let probe = container.and_then(|c| Some((c.container, probe_of(c.container, job.kind)?)));
    let Some((container, probe)) = probe else {
        return Answer::Success;
    };
    if let Some(action) = &probe.exec {
        exec(job, container, action, runtime).await
    } else if let Some(action) = &probe.http_get {
        http_get(job, container, action, net).await
    } else if let Some(action) = &probe.tcp_socket {
        tcp_socket(job, container, action, net).await
    } else if let Some(action) = &probe.grpc {
        grpc(job, action, net).await
    } else {
        let pod = &job.pod;
        let text = format!(
            "missing probe handler for {}_{}({}):{}",
            pod.name, pod.namespace, pod.uid, job.container
        );
        Answer::Error(UNKNOWN, text)
    }
}

async fn exec(
    job: &Job,
    container: &Container,
    action: &ExecAction,
    runtime: &dyn RuntimeService,
) -> Answer {
    let env = container.env.as_deref().unwrap_or_default();
    let command = action.command.iter().flatten();
    let command: Vec<String> = command.map(|word| expand(word, env)).collect();
    let words = command.join(" ");
    let timeout = job.timing.timeout;
    match runtime.exec_sync(job.id.as_str(), command, timeout).await {
        Ok(answer) if answer.exit_code == 0 => Answer::Success,
        Ok(mut answer) => {
            answer.stdout.extend_from_slice(&answer.stderr);
            answer.stdout.truncate(MAX_OUTPUT);
            Answer::Failure(String::from_utf8_lossy(&answer.stdout).into_owned())
        }
        Err(e) if e.is_deadline() => Answer::Hung(format!(
            "command timed out: {words:?} timed out after {}",
            go_duration(timeout)
        )),
        Err(e) => Answer::Error(UNKNOWN, e.to_string()),
    }
}

async fn http_get(
    job: &Job,
    container: &Container,
    action: &HTTPGetAction,
    net: &dyn Net,
) -> Answer {
    let (host, port) = match endpoint(job, container, action.host.as_deref(), &action.port) {
        Ok(endpoint) => endpoint,
        Err(text) => return Answer::Error(UNKNOWN, text),
    };
    let headers = action.http_headers.iter().flatten();
    let request = HttpGet {
        url: pod_url(
            action.scheme.as_deref().unwrap_or_default(),
            &host,
            port,
            action.path.as_deref().unwrap_or_default(),
        ),
        headers: pod_headers(
            PROBE_USER_AGENT,
            headers.map(|h| (h.name.as_str(), h.value.as_str())),
        ),
        timeout: job.timing.timeout,
        body_limit: MAX_OUTPUT,
        verify_tls: false,
        redirects: Redirects::SameHost,
    };
    match net.http_get(request.clone()).await {
        Ok(answer) => match answer.status {
            200..=299 => Answer::Success,
            300..=399 => Answer::Warning(format!(
                "Probe terminated redirects, Response body: {}",
                String::from_utf8_lossy(&answer.body)
            )),
            code => Answer::Failure(format!("HTTP probe failed with statuscode: {code}")),
        },
        Err(e @ NetError::Body(_)) => Answer::Error(FAILURE, request.failure(&e)),
        Err(e) => Answer::Failure(request.failure(&e)),
    }
}

async fn tcp_socket(
    job: &Job,
    container: &Container,
    action: &TCPSocketAction,
    net: &dyn Net,
) -> Answer {
    let (host, port) = match endpoint(job, container, action.host.as_deref(), &action.port) {
        Ok(endpoint) => endpoint,
        Err(text) => return Answer::Error(UNKNOWN, text),
    };
    match net.tcp_connect(&host, port, job.timing.timeout).await {
        Ok(()) => Answer::Success,
        Err(e) => Answer::Failure(e.to_string()),
    }
}

async fn grpc(job: &Job, action: &GRPCAction, net: &dyn Net) -> Answer {
    let endpoint = host(job, None).and_then(|host| Ok((host, number(action.port)?)));
    let (host, port) = match endpoint {
        Ok(endpoint) => endpoint,
        Err(text) => return Answer::Error(UNKNOWN, text),
    };
    let service = action.service.as_deref().unwrap_or_default();
    let timeout = job.timing.timeout;
    let address = join_host_port(&host, port);
    let within = go_duration(timeout);
    Answer::Failure(match net.grpc_health(&host, port, service, timeout).await {
        Ok(GrpcHealth::Serving) => return Answer::Success,
        Ok(other) => format!("service unhealthy (responded with {:?})", other.name()),
        Err(NetError::ConnectTimeout(_)) => format!(
            "timeout: failed to connect service {address:?} within {within}: context deadline exceeded"
        ),
        Err(NetError::Timeout) => format!("timeout: health rpc did not complete within {within}"),
        Err(NetError::Connect(text)) => format!(
            "error: failed to connect service at {address:?}: connection error: desc = \"transport: Error while dialing: {text}\""
        ),
        Err(e @ NetError::HealthUnimplemented(_)) => format!("error: {e}"),
        Err(e) => format!("error: health rpc probe failed: {e}"),
    })
}

fn endpoint(
    job: &Job,
    container: &Container,
    named: Option<&str>,
    port: &IntOrString,
) -> Result<(String, u16), String> {
    Ok((host(job, named)?, resolve_port(container, port)?))
}

fn host(job: &Job, named: Option<&str>) -> Result<String, String> {
    named
        .filter(|host| !host.is_empty())
        .or(job.ip.as_deref())
        .map(ToString::to_string)
        .ok_or_else(|| "the pod has no IP address".to_string())
}

/// A port by number, by name, or by a number written as a name.
fn resolve_port(container: &Container, port: &IntOrString) -> Result<u16, String> {
    match port {
        IntOrString::Int(port) => number(*port),
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            match ports.find(|p| p.name.as_deref() == Some(name)) {
                Some(port) => number(port.container_port),
                None => number(
                    name.parse()
                        .map_err(|_| format!("strconv.Atoi: parsing {name:?}: invalid syntax"))?,
                ),
            }
        }
    }
}

fn number(port: i32) -> Result<u16, String> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| format!("invalid port number: {port}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_pod::api::ContainerPort;

    #[test]
    fn ports_go_by_number_and_name() {
        let container = Container {
            ports: Some(vec![ContainerPort {
                name: Some("web".into()),
                container_port: 8080,
                ..ContainerPort::default()
            }]),
            ..Container::default()
        };
        let text = |s: &str| IntOrString::String(s.into());
        for (port, resolved) in [
            (IntOrString::Int(80), Ok(80)),
            (text("web"), Ok(8080)),
            (text("81"), Ok(81)),
            (IntOrString::Int(0), Err("invalid port number: 0")),
            (IntOrString::Int(70000), Err("invalid port number: 70000")),
            (
                text("x"),
                Err("strconv.Atoi: parsing \"x\": invalid syntax"),
            ),
        ] {
            let resolved = resolved.map_err(String::from);
            assert_eq!(resolve_port(&container, &port), resolved);
        }
    }
}
