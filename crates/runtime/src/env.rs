//! A container's environment, as far as this node knows the values on its own.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use krablet_pod::api::{Container, EnvVarSource, Pod, ResourceFieldSelector};
use krablet_pod::{PodRef, Quantity, containers};

use crate::config::NodeFacts;
use crate::expand::expand;

/// In the order of declaration; a name declared again keeps its place and takes the later value.
pub(crate) type Envs = Vec<(String, String)>;

pub(crate) struct EnvInputs<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub pod_ips: &'a [String],
    pub node: &'a NodeFacts,
}

/// The variables, or why one of them has no value: the message of `CreateContainerConfigError`.
pub(crate) fn environment(inputs: &EnvInputs<'_>) -> Result<Envs, String> {
    let namespace = inputs.pod.metadata.namespace.as_deref().unwrap_or_default();
    for source in inputs.container.env_from.iter().flatten() {
        if let Some(r) = &source.config_map_ref {
            return Err(no_client("configMap", namespace, &r.name));
        }
        if let Some(r) = &source.secret_ref {
            return Err(no_client("secret", namespace, &r.name));
        }
    }
    let mut envs: Envs = Vec::new();
    for var in inputs.container.env.iter().flatten() {
        let value = match (var.value.as_deref(), &var.value_from) {
            (Some(text), _) if !text.is_empty() => expand(text, |name| lookup(&envs, name)),
            (_, Some(source)) => from_source(inputs, namespace, source)?,
            _ => String::new(),
        };
        match envs.iter_mut().find(|(name, _)| *name == var.name) {
            Some((_, old)) => *old = value,
            None => envs.push((var.name.clone(), value)),
        }
    }
    Ok(envs)
}

pub(crate) fn lookup(envs: &Envs, name: &str) -> Option<String> {
    envs.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone())
}

fn no_client(kind: &str, namespace: &str, name: &str) -> String {
    format!("couldn't get {kind} {namespace}/{name}, no kubeClient defined")
}

fn from_source(
    inputs: &EnvInputs<'_>,
    namespace: &str,
    source: &EnvVarSource,
) -> Result<String, String> {
    if let Some(field) = &source.field_ref {
        let version = field.api_version.as_deref().unwrap_or("v1");
        if !matches!(version, "" | "v1") {
            return Err(format!("unsupported pod version: {version}"));
        }
        field_value(inputs, &field.field_path)
    } else if let Some(resource) = &source.resource_field_ref {
        resource_value(inputs, resource)
    } else if let Some(r) = &source.config_map_key_ref {
        Err(no_client("configMap", namespace, &r.name))
    } else if let Some(r) = &source.secret_key_ref {
        Err(no_client("secret", namespace, &r.name))
    } else if source.file_key_ref.is_some() {
        Err("couldn't parse env file".into())
    } else {
        Ok(String::new())
    }
}

/// A field of the pod that the downward API offers.
fn field_value(inputs: &EnvInputs<'_>, path: &str) -> Result<String, String> {
    let pod = inputs.pod;
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
        "status.hostIP" => first(&inputs.node.host_ips),
        "status.hostIPs" => inputs.node.host_ips.join(","),
        "status.podIP" => first(inputs.pod_ips),
        "status.podIPs" => inputs.pod_ips.join(","),
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
fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = map
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    lines.join("\n")
}

/// A request or limit in units of the divisor, rounded up. A limit that is not set is what the
/// node could give.
fn resource_value(inputs: &EnvInputs<'_>, field: &ResourceFieldSelector) -> Result<String, String> {
    let named = field.container_name.as_deref().filter(|n| !n.is_empty());
    let container = match (named, inputs.pod.spec.as_ref()) {
        (Some(name), Some(spec)) if name != inputs.container.name => {
            containers::find(spec, name)
                .ok_or_else(|| format!("container {name} not found"))?
                .container
        }
        _ => inputs.container,
    };
    let unsupported = || format!("unsupported container resource : {}", field.resource);
    let (kind, resource) = field.resource.split_once('.').ok_or_else(unsupported)?;
    let supported = matches!(resource, "cpu" | "memory" | "ephemeral-storage")
        || resource.starts_with("hugepages-");
    let resources = container.resources.as_ref();
    let amount = match kind {
        _ if !supported => return Err(unsupported()),
        "requests" => parse(resources.and_then(|r| r.requests.as_ref()), resource),
        "limits" => parse(resources.and_then(|r| r.limits.as_ref()), resource)
            .filter(|q| !q.is_zero())
            .or_else(|| pod_limit(inputs.pod, resource))
            .or_else(|| inputs.node.allocatable.get(resource).copied()),
        _ => return Err(unsupported()),
    };
    let divisor = field.divisor.as_ref().and_then(|d| d.0.parse().ok());
    let divisor = divisor.filter(|d: &Quantity| !d.is_zero() && !d.is_negative());
    Ok(divided(amount.unwrap_or(Quantity::ZERO), divisor, resource == "cpu").to_string())
}

fn divided(amount: Quantity, divisor: Option<Quantity>, milli: bool) -> i64 {
    let (amount, divisor) = match milli {
        true => (
            amount.milli_value(),
            divisor.map_or(1000, Quantity::milli_value),
        ),
        false => (amount.value(), divisor.map_or(1, Quantity::value)),
    };
    amount / divisor + i64::from(amount % divisor > 0)
}

fn parse(list: Option<&BTreeMap<String, ApiQuantity>>, resource: &str) -> Option<Quantity> {
    list?.get(resource)?.0.parse().ok()
}

fn pod_limit(pod: &Pod, resource: &str) -> Option<Quantity> {
    let limits = pod.spec.as_ref()?.resources.as_ref()?.limits.as_ref();
    parse(limits, resource).filter(|q| !q.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_pod::api::{
        ConfigMapKeySelector, EnvVar, ObjectFieldSelector, PodSpec, ResourceRequirements,
    };

    fn plain(name: &str, value: &str) -> EnvVar {
        EnvVar {
            name: name.into(),
            value: Some(value.into()),
            value_from: None,
        }
    }

    fn from(name: &str, source: EnvVarSource) -> EnvVar {
        EnvVar {
            name: name.into(),
            value: None,
            value_from: Some(source),
        }
    }

    fn field(path: &str) -> EnvVarSource {
        EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: None,
                field_path: path.into(),
            }),
            ..EnvVarSource::default()
        }
    }

    fn resource(name: &str, divisor: Option<&str>) -> EnvVarSource {
        EnvVarSource {
            resource_field_ref: Some(ResourceFieldSelector {
                container_name: None,
                divisor: divisor.map(|d| ApiQuantity(d.into())),
                resource: name.into(),
            }),
            ..EnvVarSource::default()
        }
    }

    fn run(env: Vec<EnvVar>) -> Result<Envs, String> {
        let list = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            Some(
                pairs
                    .map(|(k, v)| (k.to_string(), ApiQuantity(v.to_string())))
                    .collect(),
            )
        };
        let container = Container {
            name: "c".into(),
            env: Some(env),
            resources: Some(ResourceRequirements {
                requests: list(&[("cpu", "1500m"), ("memory", "100Mi")]),
                limits: list(&[("memory", "200Mi")]),
                ..ResourceRequirements::default()
            }),
            ..Container::default()
        };
        let mut pod = Pod {
            spec: Some(PodSpec {
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
        let node = NodeFacts {
            host_ips: vec!["192.0.2.1".into(), "2001:db8::1".into()],
            allocatable: BTreeMap::from([("cpu".into(), "4".parse().unwrap())]),
            ..NodeFacts::default()
        };
        environment(&EnvInputs {
            pod: &pod,
            container: &container,
            pod_ips: &["10.0.0.5".into(), "fd00::5".into()],
            node: &node,
        })
    }

    #[test]
    fn values_see_earlier_ones_and_a_later_one_wins() {
        let got = run(vec![
            plain("A", "1"),
            plain("B", "$(A)-$(C)-$$(A)"),
            plain("A", "2"),
            plain("D", "$(A)"),
            plain("E", ""),
        ])
        .unwrap();
        let expected = [("A", "2"), ("B", "1-$(C)-$(A)"), ("D", "2"), ("E", "")];
        assert_eq!(got, expected.map(|(k, v)| (k.to_string(), v.to_string())));
    }

    #[test]
    fn fields_of_the_pod() {
        let cases = [
            ("metadata.name", Ok("web")),
            ("metadata.uid", Ok("u")),
            ("metadata.labels['b']", Ok("2")),
            ("metadata.labels['none']", Ok("")),
            ("metadata.labels", Ok("a=\"x\\\"y\"\nb=\"2\"")),
            ("spec.nodeName", Ok("node-1")),
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
        for (path, expected) in cases {
            let got = run(vec![from("X", field(path))]).map(|e| e[0].1.clone());
            assert_eq!(got.as_deref().map_err(String::as_str), expected, "{path}");
        }
    }

    #[test]
    fn resources_are_rounded_up_and_limits_fall_back_to_the_node() {
        let cases = [
            ("requests.cpu", None, "2"),
            ("requests.cpu", Some("1m"), "1500"),
            ("requests.memory", Some("1Mi"), "100"),
            ("limits.memory", None, "209715200"),
            ("limits.memory", Some("150Mi"), "2"),
            ("limits.cpu", None, "4"),
            ("requests.ephemeral-storage", None, "0"),
        ];
        for (name, divisor, expected) in cases {
            let got = run(vec![from("X", resource(name, divisor))]).unwrap();
            assert_eq!(got[0].1, expected, "{name} {divisor:?}");
        }
        assert!(run(vec![from("X", resource("limits.gpu", None))]).is_err());
    }

    #[test]
    fn what_needs_an_api_server_is_refused_by_name() {
        let source = EnvVarSource {
            config_map_key_ref: Some(ConfigMapKeySelector {
                key: "k".into(),
                name: "cfg".into(),
                optional: None,
            }),
            ..EnvVarSource::default()
        };
        assert_eq!(
            run(vec![from("X", source)]),
            Err("couldn't get configMap ns/cfg, no kubeClient defined".into())
        );
    }
}
