//! Probes and lifecycle hooks: their handlers and numbers.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use krablet_pod::api::{
    ExecAction, GRPCAction, HTTPGetAction, Lifecycle, LifecycleHandler, Probe, SleepAction,
    TCPSocketAction,
};

use crate::names;
use crate::problem::{Path, Report, list, text};

/// Signals by name, the real-time ones (`SIGRTMIN+1`) apart.
const SIGNALS: [&str; 34] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

/// What the handlers of a container are judged against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings<'s> {
    pub(crate) grace: Option<i64>,
    pub(crate) os: Option<&'s str>,
}

/// Which probe it is: each kind has a rule of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Liveness,
    Readiness,
    Startup,
}

impl Kind {
    pub(crate) fn field(self) -> &'static str {
        match self {
            Kind::Liveness => "livenessProbe",
            Kind::Readiness => "readinessProbe",
            Kind::Startup => "startupProbe",
        }
    }
}

pub(crate) fn probe(report: &mut Report, path: &Path, probe: &Probe, kind: Kind) {
    handler(report, path, &Handler::of_probe(probe), None);
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        if let Some(value) = value.filter(|value| *value < 0) {
            report.invalid(
                &path.child(field),
                &value,
                "must be greater than or equal to 0",
            );
        }
    }
    let grace_path = path.child("terminationGracePeriodSeconds");
    if let Some(grace) = probe.termination_grace_period_seconds {
        if grace <= 0 {
            report.invalid(&grace_path, &grace, "must be greater than 0");
        }
        if kind == Kind::Readiness {
            report.invalid(&grace_path, &grace, "must not be set for readinessProbes");
        }
    }
    let successes = probe.success_threshold.unwrap_or_default();
    if kind != Kind::Readiness && successes != 1 {
        report.invalid(&path.child("successThreshold"), &successes, "must be 1");
    }
}

pub(crate) fn lifecycle(
    report: &mut Report,
    path: &Path,
    hooks: &Lifecycle,
    around: Surroundings<'_>,
) {
    for (field, hook) in [
        ("postStart", &hooks.post_start),
        ("preStop", &hooks.pre_stop),
    ] {
        if let Some(hook) = hook {
            handler(
                report,
                &path.child(field),
                &Handler::of_hook(hook),
                around.grace,
            );
        }
    }
    if let Some(signal) = &hooks.stop_signal {
        let path = path.child("stopSignal");
        match around.os {
            None | Some("") => {
                report.forbidden(
                    &path,
                    "may not be set for containers with empty `spec.os.name`",
                );
            }
            Some("windows") => report.one_of(&path, signal, &["SIGKILL", "SIGTERM"]),
            Some(_) if is_real_time(signal) => {}
            Some(_) => report.one_of(&path, signal, &SIGNALS),
        }
    }
}

/// `SIGRTMIN` to `SIGRTMIN+15`, `SIGRTMAX-14` to `SIGRTMAX`.
fn is_real_time(signal: &str) -> bool {
    let offset = |text: &str, sign: char, most: u8| {
        text.is_empty()
            || text
                .strip_prefix(sign)
                .filter(|digits| !digits.starts_with(['0', '+']))
                .and_then(|digits| digits.parse::<u8>().ok())
                .is_some_and(|offset| offset <= most)
    };
    signal
        .strip_prefix("SIGRTMIN")
        .is_some_and(|rest| offset(rest, '+', 15))
        || signal
            .strip_prefix("SIGRTMAX")
            .is_some_and(|rest| offset(rest, '-', 14))
}

/// A probe's or hook's handler, of which exactly one kind may be set.
#[derive(Default)]
struct Handler<'h> {
    exec: Option<&'h ExecAction>,
    http: Option<&'h HTTPGetAction>,
    tcp: Option<&'h TCPSocketAction>,
    grpc: Option<&'h GRPCAction>,
    sleep: Option<&'h SleepAction>,
}

impl<'h> Handler<'h> {
    fn of_probe(probe: &'h Probe) -> Self {
        Self {
            exec: probe.exec.as_ref(),
            http: probe.http_get.as_ref(),
            tcp: probe.tcp_socket.as_ref(),
            grpc: probe.grpc.as_ref(),
            sleep: None,
        }
    }

    fn of_hook(hook: &'h LifecycleHandler) -> Self {
        Self {
            exec: hook.exec.as_ref(),
            http: hook.http_get.as_ref(),
            tcp: hook.tcp_socket.as_ref(),
            grpc: None,
            sleep: hook.sleep.as_ref(),
        }
    }
}

fn handler(report: &mut Report, path: &Path, handler: &Handler<'_>, grace: Option<i64>) {
    let mut found = false;
    let mut first = |report: &mut Report, field: &str| {
        if found {
            report.forbidden(
                &path.child(field),
                "may not specify more than 1 handler type",
            );
        }
        !std::mem::replace(&mut found, true)
    };
    if let Some(exec) = handler.exec
        && first(report, "exec")
        && list(&exec.command).is_empty()
    {
        report.required(&path.child("exec").child("command"), "");
    }
    if let Some(http) = handler.http
        && first(report, "httpGet")
    {
        http_get(report, &path.child("httpGet"), http);
    }
    if let Some(tcp) = handler.tcp
        && first(report, "tcpSocket")
    {
        port(report, &path.child("tcpSocket").child("port"), &tcp.port);
    }
    if let Some(grpc) = handler.grpc
        && first(report, "grpc")
    {
        let wrong = names::port_number(i64::from(grpc.port));
        report.invalid_each(&path.child("grpc").child("port"), &grpc.port, wrong);
    }
    if let Some(sleep) = handler.sleep
        && first(report, "sleep")
        && let Some(grace) = grace
        && !(0..=grace).contains(&sleep.seconds)
    {
        let detail =
            format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        report.invalid(&path.child("sleep"), &sleep.seconds, detail);
    }
    if !found {
        report.required(path, "must specify a handler type");
    }
}

fn http_get(report: &mut Report, path: &Path, http: &HTTPGetAction) {
    if text(&http.path).is_empty() {
        report.required(&path.child("path"), "");
    }
    port(report, &path.child("port"), &http.port);
    match text(&http.scheme) {
        "HTTP" | "HTTPS" => {}
        other => report.unsupported(&path.child("scheme"), other, &["HTTP", "HTTPS"]),
    }
    for header in list(&http.http_headers) {
        report.invalid_each(
            &path.child("httpHeaders"),
            &header.name,
            names::header_name(&header.name),
        );
    }
}

fn port(report: &mut Report, path: &Path, port: &IntOrString) {
    match port {
        IntOrString::Int(number) => {
            report.invalid_each(path, number, names::port_number(i64::from(*number)));
        }
        IntOrString::String(name) => report.invalid_each(path, name, names::port_name(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::is_real_time;

    #[test]
    fn real_time_signals_have_their_bounds() {
        for signal in [
            "SIGRTMIN",
            "SIGRTMIN+1",
            "SIGRTMIN+15",
            "SIGRTMAX",
            "SIGRTMAX-14",
        ] {
            assert!(is_real_time(signal), "{signal}");
        }
        for signal in [
            "SIGRTMIN+16",
            "SIGRTMIN-1",
            "SIGRTMAX-15",
            "SIGRTMIN+",
            "SIGRTMIN+01",
            "SIGTERM",
        ] {
            assert!(!is_real_time(signal), "{signal}");
        }
    }
}
