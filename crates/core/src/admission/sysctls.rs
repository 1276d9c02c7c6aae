//! Kernel settings a pod may change: those that are its own, and those the administrator allows.

use std::collections::BTreeMap;
use std::fmt;

use super::{AdmissionInputs, Rejection, Verdict};

const MAX_LENGTH: usize = 253;
const PATTERN: &str = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]";

/// Settings that touch nobody else, with the kernel from which on they are a namespace's own.
const SAFE: [(&str, Option<KernelVersion>); 12] = [
    ("kernel.shm_rmid_forced", None),
    ("net.ipv4.ip_local_port_range", None),
    ("net.ipv4.tcp_syncookies", None),
    ("net.ipv4.ping_group_range", None),
    ("net.ipv4.ip_unprivileged_port_start", None),
    (
        "net.ipv4.ip_local_reserved_ports",
        Some(KernelVersion(3, 16)),
    ),
    ("net.ipv4.tcp_keepalive_time", Some(KernelVersion(4, 5))),
    ("net.ipv4.tcp_fin_timeout", Some(KernelVersion(4, 6))),
    ("net.ipv4.tcp_keepalive_intvl", Some(KernelVersion(4, 5))),
    ("net.ipv4.tcp_keepalive_probes", Some(KernelVersion(4, 5))),
    ("net.ipv4.tcp_rmem", Some(KernelVersion(4, 15))),
    ("net.ipv4.tcp_wmem", Some(KernelVersion(4, 15))),
];

/// Major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion(pub u32, pub u32);

impl KernelVersion {
    /// From a release such as `6.1.0-18-amd64`.
    pub fn parse(release: &str) -> Option<Self> {
        let number = |text: &str| {
            let digits = text
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(text.len());
            text.get(..digits)?.parse().ok()
        };
        let (major, rest) = release.trim().split_once('.')?;
        Some(Self(major.parse().ok()?, number(rest)?))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Namespace::Ipc => "IPC",
            Namespace::Net => "Net",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SysctlError {
    #[error("sysctl {0:?} must have at most {MAX_LENGTH} characters and match regex {PATTERN}")]
    Malformed(String),
    #[error("the sysctls {0:?} are not known to be namespaced")]
    NotNamespaced(String),
}

/// Which sysctls pods may set. The default: those that are safe on every kernel.
#[derive(Clone, Debug)]
pub struct SysctlAllowlist {
    names: BTreeMap<String, Namespace>,
    prefixes: BTreeMap<String, Namespace>,
}

impl Default for SysctlAllowlist {
    fn default() -> Self {
        Self::new::<&str>(&[], None).unwrap_or_else(|_| Self::empty())
    }
}

impl SysctlAllowlist {
    /// The safe ones this kernel has, and the administrator's (`allowedUnsafeSysctls`; names, or
    /// patterns that end in `*`). With an unknown kernel only those every kernel has are safe.
    pub fn new<S: AsRef<str>>(
        allowed_unsafe: &[S],
        kernel: Option<KernelVersion>,
    ) -> Result<Self, SysctlError> {
        let safe = SAFE.iter().filter(|(_, since)| *since <= kernel);
        let safe = safe.map(|(name, _)| *name);
        let mut list = Self::empty();
        for pattern in safe.chain(allowed_unsafe.iter().map(AsRef::as_ref)) {
            list.allow(pattern)?;
        }
        Ok(list)
    }

    fn empty() -> Self {
        Self {
            names: BTreeMap::new(),
            prefixes: BTreeMap::new(),
        }
    }

    fn allow(&mut self, pattern: &str) -> Result<(), SysctlError> {
        if !is_pattern(pattern) {
            return Err(SysctlError::Malformed(pattern.to_owned()));
        }
        let name = normal(pattern);
        let (name, into) = match name.split_once('*') {
            Some((prefix, _)) => (prefix, &mut self.prefixes),
            None => (name.as_str(), &mut self.names),
        };
        let namespace =
            namespace(name).ok_or_else(|| SysctlError::NotNamespaced(name.to_owned()))?;
        into.insert(name.to_owned(), namespace);
        Ok(())
    }

    /// What is wrong with a setting in a pod that shares these of the host's namespaces.
    fn objection(&self, sysctl: &str, host_network: bool, host_ipc: bool) -> Option<String> {
        let name = normal(sysctl);
        let by_prefix = || {
            let mut prefixes = self.prefixes.iter();
            prefixes.find(|(prefix, _)| name.starts_with(prefix.as_str()))
        };
        let found = self.names.get_key_value(&name).or_else(by_prefix);
        let Some((_, namespace)) = found else {
            return Some(format!("{name:?} not allowlisted"));
        };
        let shared = match namespace {
            Namespace::Ipc => host_ipc,
            Namespace::Net => host_network,
        };
        shared.then(|| format!("{name:?} not allowed with host {namespace} enabled"))
    }
}

pub(super) fn sysctls(inputs: &AdmissionInputs<'_>) -> Verdict {
    let Some(spec) = inputs.pod.spec.as_ref() else {
        return Verdict::Admit;
    };
    let mut set = spec
        .security_context
        .iter()
        .flat_map(|s| &s.sysctls)
        .flatten();
    let host_network = spec.host_network == Some(true);
    let host_ipc = spec.host_ipc == Some(true);
    let list = &inputs.settings.sysctls;
    let objection = set.find_map(|s| list.objection(&s.name, host_network, host_ipc));
    match objection {
        None => Verdict::Admit,
        Some(why) => {
            let message = format!("forbidden sysctl: {why}");
            Verdict::Reject(Rejection::new("SysctlForbidden", message))
        }
    }
}

/// With dots between the parts. Where a slash comes first, slashes are the separators and dots belong
/// to the names, as in `net/ipv4/conf/eno2.100/rp_filter`.
fn normal(name: &str) -> String {
    match name.find(['.', '/']).map(|at| name.as_bytes()[at]) {
        Some(b'/') => {
            let swap = |c| match c {
                '.' => '/',
                '/' => '.',
                other => other,
            };
            name.chars().map(swap).collect()
        }
        _ => name.to_owned(),
    }
}

/// The namespace a setting (or all with a prefix) belongs to.
fn namespace(name: &str) -> Option<Namespace> {
    match name {
        "kernel.sem"
        | "kernel.shmall"
        | "kernel.shmmax"
        | "kernel.shmmni"
        | "kernel.shm_rmid_forced"
        | "kernel.shm"
        | "kernel.msgmax"
        | "kernel.msgmnb"
        | "kernel.msgmni"
        | "kernel.msg" => Some(Namespace::Ipc),
        _ if name.starts_with("net.") => Some(Namespace::Net),
        _ if name.starts_with("fs.mqueue.") => Some(Namespace::Ipc),
        _ => None,
    }
}

fn is_pattern(text: &str) -> bool {
    let outer = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let inner = |b: u8| outer(b) || matches!(b, b'-' | b'_');
    let segment = |s: &[u8]| match s {
        [] => false,
        [first, .., last] => outer(*first) && outer(*last) && s.iter().all(|b| inner(*b)),
        [only] => outer(*only),
    };
    let last_segment = |s: &[u8]| match s {
        [] => false,
        [rest @ .., last] => {
            (outer(*last) || *last == b'*')
                && rest.first().is_none_or(|b| outer(*b))
                && rest.iter().all(|b| inner(*b))
        }
    };
    let mut segments = text.as_bytes().rsplit(|b| matches!(b, b'.' | b'/'));
    text.len() <= MAX_LENGTH && segments.next().is_some_and(last_segment) && segments.all(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Option<KernelVersion> = Some(KernelVersion(6, 1));

    #[test]
    fn lists_are_checked() {
        let error = |pattern: &str| {
            SysctlAllowlist::new(&[pattern], NEW)
                .err()
                .map(|e| e.to_string())
        };
        for good in [
            "kernel.msg*",
            "kernel.sem",
            "kernel/msg*",
            "net.*",
            "fs.mqueue.*",
        ] {
            assert_eq!(error(good), None, "{good}");
        }
        for malformed in [
            " kernel.msg*",
            "kernel.msg* ",
            "net.-",
            "net.*.foo",
            "net.*/foo",
            "",
        ] {
            let expected = format!(
                "sysctl {malformed:?} must have at most 253 characters and match regex {PATTERN}"
            );
            assert_eq!(error(malformed), Some(expected));
        }
        for (foreign, name) in [
            ("foo", "foo"),
            ("foo*", "foo"),
            ("kernel.hostname", "kernel.hostname"),
        ] {
            let expected = format!("the sysctls {name:?} are not known to be namespaced");
            assert_eq!(error(foreign), Some(expected));
        }
    }

    #[test]
    fn who_may_set_what() {
        let list = SysctlAllowlist::new(&["kernel.msg*", "net.core.somaxconn"], NEW).unwrap();
        for (name, network, ipc, objection) in [
            ("kernel.shm_rmid_forced", false, false, None),
            ("kernel/shm_rmid_forced", false, false, None),
            ("net.ipv4.tcp_wmem", false, true, None),
            ("kernel.msgmax", true, false, None),
            ("net.core.somaxconn", false, false, None),
            (
                "kernel.sem",
                false,
                false,
                Some("\"kernel.sem\" not allowlisted"),
            ),
            (
                "net/ipv4/tcp_foo",
                false,
                false,
                Some("\"net.ipv4.tcp_foo\" not allowlisted"),
            ),
            (
                "net.ipv4.tcp_syncookies",
                true,
                false,
                Some("\"net.ipv4.tcp_syncookies\" not allowed with host Net enabled"),
            ),
            (
                "kernel.msgmax",
                false,
                true,
                Some("\"kernel.msgmax\" not allowed with host IPC enabled"),
            ),
        ] {
            let found = list.objection(name, network, ipc);
            assert_eq!(found.as_deref(), objection, "{name}");
        }
    }

    #[test]
    fn old_kernels_have_fewer_safe_ones() {
        let count = |kernel| {
            let list = SysctlAllowlist::new::<&str>(&[], kernel).unwrap();
            list.names.len()
        };
        assert_eq!(count(NEW), 12);
        assert_eq!(count(Some(KernelVersion(4, 5))), 9);
        assert_eq!(count(Some(KernelVersion(3, 10))), 5);
        assert_eq!(count(None), 5);
        assert_eq!(SysctlAllowlist::default().names.len(), 5);
    }

    #[test]
    fn kernel_releases() {
        assert_eq!(
            KernelVersion::parse("6.1.0-18-amd64"),
            Some(KernelVersion(6, 1))
        );
        assert_eq!(KernelVersion::parse("5.10-rc1"), Some(KernelVersion(5, 10)));
        assert_eq!(KernelVersion::parse("x"), None);
        assert_eq!(KernelVersion::parse("6."), None);
    }
}
