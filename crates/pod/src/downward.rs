//! The downward API: what a pod may learn of itself, by field and by resource. Errors are what users read.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::api::{Container, ObjectFieldSelector, Pod, ResourceFieldSelector};
use crate::{PodRef, Quantity, containers};

/// Addresses, which the spec does not hold. Primary first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses<'a> {
    pub host_ips: &'a [String],
    pub pod_ips: &'a [String],
}

/// A field of the pod.
pub fn field(
    pod: &Pod,
    selector: &ObjectFieldSelector,
    at: Addresses<'_>,
) -> Result<String, String> {
    let version = selector.api_version.as_deref().unwrap_or("v1");
    if !matches!(version, "" | "v1") {
        return Err(format!("unsupported pod version: {version}"));
    }
    let path = selector.field_path.as_str();
    let meta = &pod.metadata;
    if let Some((map, key)) = subscripted(path) {
        let map = match map {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return Err(format!("field label does not support subscript: {path}")),
        };
        let value = map.as_ref().and_then(|m| m.get(key));
        return Ok(value.cloned().unwrap_or_default());
    }
    let reference = PodRef::of(pod);
    let spec = pod.spec.as_ref();
    let first = |ips: &[String]| ips.first().cloned().unwrap_or_default();
    Ok(match path {
        "metadata.name" => reference.name.to_string(),
        "metadata.namespace" => reference.namespace.to_string(),
        "metadata.uid" => reference.uid.to_string(),
        "metadata.labels" => format_map(meta.labels.as_ref()),
        "metadata.annotations" => format_map(meta.annotations.as_ref()),
        "spec.nodeName" | "spec.host" => spec.and_then(|s| s.node_name.clone()).unwrap_or_default(),
        "spec.serviceAccountName" => spec
            .and_then(|s| s.service_account_name.clone())
            .unwrap_or_default(),
        "status.hostIP" => first(at.host_ips),
        "status.hostIPs" => at.host_ips.join(","),
        "status.podIP" => first(at.pod_ips),
        "status.podIPs" => at.pod_ips.join(","),
        "spec.restartPolicy" | "spec.schedulerName" | "status.phase" => {
            return Err(format!("unsupported fieldPath: {path}"));
        }
        _ => return Err(format!("field label not supported: {path}")),
    })
}

/// `path['key']`.
fn subscripted(path: &str) -> Option<(&str, &str)> {
    let (map, key) = path.strip_suffix("']")?.split_once("['")?;
    (!map.is_empty()).then_some((map, key))
}

/// `key="value"` lines, sorted by key.
pub fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = map
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", quoted(value)))
        .collect();
    lines.join("\n")
}

/// In double quotes, with the escapes of Go, which readers of such files know.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                // Writing to a String cannot fail.
                let _ = match code {
                    0..0x80 => write!(out, "\\x{code:02x}"),
                    0x80..0x1_0000 => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push('"');
    out
}

/// Behind another character, where a combining mark is nothing special.
fn is_printable(c: char) -> bool {
    let text = String::from_iter(['a', c]);
    text.escape_debug().eq(text.chars())
}

/// A request or limit in units of the divisor, rounded up, of `container` or of the one the selector names. A
/// limit that is not set is the pod's, or what the node could give.
pub fn resource(
    pod: &Pod,
    container: Option<&Container>,
    selector: &ResourceFieldSelector,
    allocatable: &BTreeMap<String, Quantity>,
) -> Result<String, String> {
    let named = selector.container_name.as_deref().filter(|n| !n.is_empty());
    let container = match (named, container, pod.spec.as_ref()) {
        (Some(name), Some(own), _) if own.name == name => own,
        (Some(name), _, Some(spec)) => {
            let found = containers::find(spec, name);
            found
                .ok_or_else(|| format!("container {name} not found"))?
                .container
        }
        (None, Some(own), _) => own,
        (name, ..) => {
            return Err(format!("container {} not found", name.unwrap_or_default()));
        }
    };
    let unsupported = || format!("unsupported container resource : {}", selector.resource);
    let (kind, name) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let is_huge_pages = name.starts_with("hugepages-");
    if !is_huge_pages && !matches!(name, "cpu" | "memory" | "ephemeral-storage") {
        return Err(unsupported());
    }
    let resources = container.resources.as_ref();
    let amount = match kind {
        "requests" => parse(resources.and_then(|r| r.requests.as_ref()), name),
        "limits" => {
            let own = parse(resources.and_then(|r| r.limits.as_ref()), name);
            // Huge pages are never overcommitted: who has no limit has none.
            own.filter(|q| !q.is_zero())
                .or_else(|| (!is_huge_pages).then(|| default_limit(pod, name, allocatable))?)
        }
        _ => return Err(unsupported()),
    };
    let divisor = selector.divisor.as_ref().and_then(|d| d.0.parse().ok());
    let divisor = divisor.filter(|d: &Quantity| !d.is_zero() && !d.is_negative());
    Ok(divided(amount.unwrap_or(Quantity::ZERO), divisor, name == "cpu").to_string())
}

fn divided(amount: Quantity, divisor: Option<Quantity>, milli: bool) -> i64 {
    let (amount, divisor) = match milli {
        true => (
            amount.milli_value(),
            divisor.map_or(1000, Quantity::milli_value),
        ),
        false => (amount.value(), divisor.map_or(1, Quantity::value)),
    };
    let divisor = divisor.max(1);
    amount / divisor + i64::from(amount % divisor > 0)
}

fn parse(list: Option<&BTreeMap<String, ApiQuantity>>, resource: &str) -> Option<Quantity> {
    list?.get(resource)?.0.parse().ok()
}

/// The pod's own limit stands in where the node has any of the resource.
fn default_limit(
    pod: &Pod,
    resource: &str,
    allocatable: &BTreeMap<String, Quantity>,
) -> Option<Quantity> {
    let node = allocatable.get(resource).copied()?;
    let limits = pod
        .spec
        .as_ref()
        .and_then(|s| s.resources.as_ref()?.limits.as_ref());
    let of_pod =
        parse(limits, resource).filter(|q| !q.is_zero() && resource != "ephemeral-storage");
    Some(of_pod.unwrap_or(node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{PodSpec, ResourceRequirements};

    fn list(pairs: &[(&str, &str)]) -> Option<BTreeMap<String, ApiQuantity>> {
        let pairs = pairs.iter();
        Some(
            pairs
                .map(|(k, v)| (k.to_string(), ApiQuantity(v.to_string())))
                .collect(),
        )
    }

    fn pod() -> Pod {
        let container = Container {
            name: "c".into(),
            resources: Some(ResourceRequirements {
                requests: list(&[("cpu", "1500m"), ("memory", "100Mi")]),
                limits: list(&[("memory", "200Mi"), ("hugepages-2Mi", "4Mi")]),
                ..ResourceRequirements::default()
            }),
            ..Container::default()
        };
        let other = Container {
            name: "other".into(),
            ..Container::default()
        };
        let mut pod = Pod {
            spec: Some(PodSpec {
                containers: vec![container, other],
                node_name: Some("node-1".into()),
                service_account_name: Some("default".into()),
                ..PodSpec::default()
            }),
            ..Pod::default()
        };
        pod.metadata.name = Some("web".into());
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.uid = Some("u".into());
        pod.metadata.labels = Some(BTreeMap::from([
            ("b".into(), "2".into()),
            ("a".into(), "x\"y".into()),
        ]));
        pod
    }

    #[test]
    fn fields_of_the_pod() {
        let cases = [
            ("metadata.name", Ok("web")),
            ("metadata.namespace", Ok("ns")),
            ("metadata.uid", Ok("u")),
            ("metadata.labels['b']", Ok("2")),
            ("metadata.labels['none']", Ok("")),
            ("metadata.annotations['none']", Ok("")),
            ("metadata.labels", Ok("a=\"x\\\"y\"\nb=\"2\"")),
            ("metadata.annotations", Ok("")),
            ("spec.nodeName", Ok("node-1")),
            ("spec.host", Ok("node-1")),
            ("spec.serviceAccountName", Ok("default")),
            ("status.hostIP", Ok("192.0.2.1")),
            ("status.hostIPs", Ok("192.0.2.1,2001:db8::1")),
            ("status.podIP", Ok("10.0.0.5")),
            ("status.podIPs", Ok("10.0.0.5,fd00::5")),
            ("status.phase", Err("unsupported fieldPath: status.phase")),
            (
                "spec.containers",
                Err("field label not supported: spec.containers"),
            ),
            (
                "spec.x['y']",
                Err("field label does not support subscript: spec.x['y']"),
            ),
        ];
        let at = Addresses {
            host_ips: &["192.0.2.1".into(), "2001:db8::1".into()],
            pod_ips: &["10.0.0.5".into(), "fd00::5".into()],
        };
        for (path, expected) in cases {
            let selector = ObjectFieldSelector {
                api_version: Some("v1".into()),
                field_path: path.into(),
            };
            let got = field(&pod(), &selector, at);
            assert_eq!(got.as_deref().map_err(String::as_str), expected, "{path}");
        }
        let old = ObjectFieldSelector {
            api_version: Some("v2".into()),
            field_path: "metadata.name".into(),
        };
        assert_eq!(
            field(&pod(), &old, at),
            Err("unsupported pod version: v2".into())
        );
    }

    #[test]
    fn values_are_quoted_as_go_does() {
        let cases = [
            ("plain", r#""plain""#),
            ("a\nb\tc\\d", r#""a\nb\tc\\d""#),
            ("bell\u{7}\0\u{7f}", r#""bell\a\x00\x7f""#),
            ("ünïcode 日本 e\u{301}", "\"ünïcode 日本 e\u{301}\""),
            ("\u{301}first", "\"\u{301}first\""),
            (
                "nbsp\u{a0}\u{200b}\u{e0001}",
                r#""nbsp\u00a0\u200b\U000e0001""#,
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(quoted(text), expected);
        }
    }

    #[test]
    fn resources_are_rounded_up_and_limits_have_defaults() {
        let allocatable: BTreeMap<String, Quantity> = [("cpu", "4"), ("memory", "8Gi")]
            .map(|(k, v)| (k.to_owned(), v.parse().unwrap()))
            .into();
        let mut limited = pod();
        limited.spec.as_mut().unwrap().resources = Some(ResourceRequirements {
            limits: list(&[("cpu", "3"), ("ephemeral-storage", "1")]),
            ..ResourceRequirements::default()
        });
        let run = |pod: &Pod, of: Option<&str>, name: &str, divisor: Option<&str>| {
            let selector = ResourceFieldSelector {
                container_name: of.map(Into::into),
                divisor: divisor.map(|d| ApiQuantity(d.into())),
                resource: name.into(),
            };
            let container = pod.spec.as_ref().unwrap().containers.first();
            resource(pod, container, &selector, &allocatable)
        };
        let cases = [
            (None, "requests.cpu", None, "2"),
            (None, "requests.cpu", Some("0"), "2"),
            (None, "requests.cpu", Some("1m"), "1500"),
            (None, "requests.memory", Some("1Mi"), "100"),
            (None, "limits.memory", None, "209715200"),
            (None, "limits.memory", Some("150Mi"), "2"),
            (None, "limits.cpu", None, "4"),
            (None, "limits.hugepages-2Mi", Some("1Mi"), "4"),
            (None, "limits.hugepages-1Gi", None, "0"),
            (None, "limits.ephemeral-storage", None, "0"),
            (None, "requests.ephemeral-storage", None, "0"),
            (Some("c"), "limits.memory", Some("1Mi"), "200"),
            (Some("other"), "limits.memory", Some("1Gi"), "8"),
        ];
        for (of, name, divisor, expected) in cases {
            let got = run(&pod(), of, name, divisor);
            assert_eq!(got.as_deref(), Ok(expected), "{of:?} {name} {divisor:?}");
        }
        assert_eq!(run(&limited, None, "limits.cpu", None).as_deref(), Ok("3"));
        assert_eq!(
            run(&limited, Some("gone"), "limits.cpu", None),
            Err("container gone not found".into())
        );
        assert_eq!(
            run(&limited, None, "limits.gpu", None),
            Err("unsupported container resource : limits.gpu".into())
        );
    }
}
