//! Lifecycle hooks: a command in the container, a request to it, or a pause.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use krablet_cri::RuntimeService;
use krablet_events::{Recorder, Subject, reason};
use krablet_metrics::{Counter, RuntimeMetrics};
use krablet_net::{HOOK_USER_AGENT, HttpGet, Net, NetError, Redirects, pod_headers, pod_url};
use krablet_pod::api::{ContainerPort, HTTPGetAction, LifecycleHandler};
use krablet_pod::{ContainerId, PodRef};

use crate::config::RuntimeDeps;
use crate::container_config::format_pod;

/// Hooks have no timeout of their own; whoever runs one may give it up.
const NO_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// Of an answer only that it came is of interest.
const BODY_LIMIT: usize = 10 << 10;

/// The container a hook is for.
pub(crate) struct HookTarget<'a> {
    pub pod: &'a PodRef,
    pub container: &'a str,
    pub id: &'a ContainerId,
    pub ports: &'a [ContainerPort],
    /// Where the pod is reached.
    pub ip: Option<&'a str>,
}

pub(crate) struct Hooks {
    runtime: Arc<dyn RuntimeService>,
    net: Arc<dyn Net>,
    recorder: Recorder,
    metrics: RuntimeMetrics,
}

/// A sleep that counts itself when it is dropped before its end.
struct Sleeping<'a> {
    cut_short: Option<&'a Counter>,
}

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        if let Some(counter) = self.cut_short {
            counter.add(1);
        }
    }
}

impl Hooks {
    pub(crate) fn new(deps: &RuntimeDeps) -> Self {
        Self {
            runtime: deps.runtime.clone(),
            net: deps.net.clone(),
            recorder: deps.recorder.clone(),
            metrics: deps.metrics.clone(),
        }
    }

    /// Runs a hook to its end. The error is the message of the waiting state; it may hold what the
    /// command printed, so it belongs in no event.
    pub(crate) async fn run(
        &self,
        target: &HookTarget<'_>,
        handler: &LifecycleHandler,
    ) -> Result<(), String> {
        let whose = || {
            format!(
                "for Container {:?} in Pod {:?}",
                target.container,
                format_pod(target.pod)
            )
        };
        if let Some(exec) = &handler.exec {
            let command = exec.command.clone().unwrap_or_default();
            let shown = command.join(" ");
            self.exec(target.id, command).await.map_err(|(error, output)| {
                format!(
                    "Exec lifecycle hook ([{shown}]) {} failed - error: {error}, message: {output:?}",
                    whose()
                )
            })
        } else if let Some(get) = &handler.http_get {
            self.http_get(target, get).await.map_err(|error| {
                let path = get.path.as_deref().unwrap_or_default();
                format!(
                    "HTTP lifecycle hook ({path}) {} failed - error: {error}",
                    whose()
                )
            })
        } else if let Some(sleep) = &handler.sleep {
            let mut sleeping = Sleeping {
                cut_short: Some(&self.metrics.sleeps_cut_short),
            };
            tokio::time::sleep(Duration::from_secs(
                u64::try_from(sleep.seconds).unwrap_or(0),
            ))
            .await;
            sleeping.cut_short = None;
            Ok(())
        } else {
            Err(format!("Cannot run handler: invalid handler {}", whose()))
        }
    }

    /// The error, and what the command printed.
    async fn exec(&self, id: &ContainerId, command: Vec<String>) -> Result<(), (String, String)> {
        let shown = command.join(" ");
        let answer = self
            .runtime
            .exec_sync(id.as_str(), command, Duration::ZERO)
            .await;
        let answer = answer.map_err(|e| (e.to_string(), String::new()))?;
        if answer.exit_code == 0 {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&answer.stderr).into_owned();
        let output = format!("{}{stderr}", String::from_utf8_lossy(&answer.stdout));
        let error = format!(
            "command '{shown}' exited with {}: {stderr}",
            answer.exit_code
        );
        Err((error, output))
    }

    /// Any answer will do, whatever its status. A server that answers HTTPS in plain HTTP is asked
    /// again in plain HTTP, as it always was.
    async fn http_get(&self, target: &HookTarget<'_>, get: &HTTPGetAction) -> Result<(), String> {
        let request = http_request(get, target.ports, target.ip)?;
        let error = match self.net.http_get(request.clone()).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        if error == NetError::PlainHttp {
            let authority = request.url.trim_start_matches("https://");
            let authority = authority.split(['/', '?']).next().unwrap_or_default();
            let authority = authority.to_string();
            if self.net.http_get(in_plain_http(request)).await.is_ok() {
                let message = format!(
                    "request to HTTPS lifecycle hook {authority} got HTTP response, retry with HTTP succeeded"
                );
                let subject = Subject::Pod(target.pod.clone());
                self.recorder
                    .warning(subject, reason::LIFECYCLE_HTTP_FALLBACK, message);
                self.metrics.http_fallbacks.add(1);
                return Ok(());
            }
        }
        Err(error.to_string())
    }
}

fn in_plain_http(mut request: HttpGet) -> HttpGet {
    if let Some(rest) = request.url.strip_prefix("https://") {
        request.url = format!("http://{rest}");
    }
    // A secret meant for an encrypted connection stays out of a plain one.
    request
        .headers
        .retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
    request
}

fn http_request(
    get: &HTTPGetAction,
    ports: &[ContainerPort],
    ip: Option<&str>,
) -> Result<HttpGet, String> {
    let host = get.host.as_deref().filter(|h| !h.is_empty()).or(ip);
    let host = host.ok_or("failed to find networking container: the pod has no address")?;
    let port = container_port(&get.port, ports)?;
    let scheme = get.scheme.as_deref().unwrap_or_default();
    let path = get.path.as_deref().unwrap_or_default();
    let given = get.http_headers.iter().flatten();
    Ok(HttpGet {
        url: pod_url(scheme, host, port, path),
        headers: pod_headers(
            HOOK_USER_AGENT,
            given.map(|h| (h.name.as_str(), h.value.as_str())),
        ),
        timeout: NO_TIMEOUT,
        body_limit: BODY_LIMIT,
        verify_tls: false,
        redirects: Redirects::SameHost,
    })
}

/// A number, or the name of one of the container's ports.
fn container_port(port: &IntOrString, ports: &[ContainerPort]) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => i64::from(*number),
        IntOrString::String(name) => {
            let named = ports.iter().find(|p| p.name.as_deref() == Some(name));
            match named {
                Some(port) => i64::from(port.container_port),
                None => name.parse().map_err(|_| format!("port {name} not found"))?,
            }
        }
    };
    u16::try_from(number)
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| format!("invalid port number: {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_pod::api::HTTPHeader;

    fn get(port: IntOrString) -> HTTPGetAction {
        HTTPGetAction {
            path: Some("/stop?x=1".into()),
            port,
            ..HTTPGetAction::default()
        }
    }

    #[test]
    fn requests() {
        let ports = [ContainerPort {
            name: Some("web".into()),
            container_port: 8080,
            ..ContainerPort::default()
        }];
        let named = get(IntOrString::String("web".into()));
        let request = http_request(&named, &ports, Some("10.0.0.1")).unwrap();
        assert_eq!(request.url, "http://10.0.0.1:8080/stop?x=1");
        assert_eq!(
            request.headers,
            [("User-Agent", "kube-lifecycle/1.36"), ("Accept", "*/*")]
                .map(|(n, v)| (n.to_string(), v.to_string()))
        );

        let secure = HTTPGetAction {
            scheme: Some("HTTPS".into()),
            host: Some("fd00::1".into()),
            http_headers: Some(vec![
                HTTPHeader {
                    name: "Authorization".into(),
                    value: "Bearer x".into(),
                },
                HTTPHeader {
                    name: "accept".into(),
                    value: "".into(),
                },
            ]),
            ..get(IntOrString::Int(443))
        };
        let request = http_request(&secure, &[], None).unwrap();
        assert_eq!(request.url, "https://[fd00::1]:443/stop?x=1");
        assert_eq!(request.headers.len(), 2);
        let plain = in_plain_http(request);
        assert_eq!(plain.url, "http://[fd00::1]:443/stop?x=1");
        assert_eq!(plain.headers.len(), 1);
    }

    #[test]
    fn urls() {
        for (scheme, host, path, url) in [
            (None, None, None, "http://10.0.0.1:80"),
            (Some("HTTP"), None, Some("bye"), "http://10.0.0.1:80/bye"),
            (
                Some("HTTPS"),
                Some("fd00::1"),
                Some("/bye"),
                "https://[fd00::1]:80/bye",
            ),
            (
                None,
                Some("[fd00::1]"),
                Some("/bye"),
                "http://[fd00::1]:80/bye",
            ),
            (
                None,
                Some(""),
                Some("/say good bye"),
                "http://10.0.0.1:80/say%20good%20bye",
            ),
            (
                None,
                None,
                Some("/bye?to=<all>&at=100%25"),
                "http://10.0.0.1:80/bye?to=%3Call%3E&at=100%25",
            ),
        ] {
            let get = HTTPGetAction {
                scheme: scheme.map(str::to_owned),
                host: host.map(str::to_owned),
                path: path.map(str::to_owned),
                ..get(IntOrString::Int(80))
            };
            let request = http_request(&get, &[], Some("10.0.0.1")).unwrap();
            assert_eq!(request.url, url, "{path:?}");
        }
    }

    #[test]
    fn ports_that_are_none() {
        for port in [
            IntOrString::Int(0),
            IntOrString::Int(70000),
            IntOrString::String("x".into()),
        ] {
            assert!(http_request(&get(port), &[], Some("10.0.0.1")).is_err());
        }
        assert!(http_request(&get(IntOrString::String("80".into())), &[], Some("a")).is_ok());
        assert!(http_request(&get(IntOrString::Int(80)), &[], None).is_err());
    }
}
