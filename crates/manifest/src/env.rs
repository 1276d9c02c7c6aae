//! Environment variables and the fields they may be filled from.

use krablet_pod::api::{
    EnvFromSource, EnvVar, EnvVarSource, ObjectFieldSelector, ResourceFieldSelector,
};

use crate::problem::{Path, Report, text};
use crate::volumes::no_backsteps;
use crate::{names, resources};

const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
pub(crate) const VOLUME_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
/// Fields that exist but may only be read in some places.
const KNOWN_FIELDS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.phase",
    "status.podIP",
    "status.podIPs",
];

pub(crate) fn variables(report: &mut Report, path: &Path, variables: &[EnvVar]) {
    for (i, variable) in variables.iter().enumerate() {
        let path = path.index(i);
        match variable.name.as_str() {
            "" => report.required(&path.child("name"), ""),
            name => report.invalid_each(&path.child("name"), name, names::env_name(name)),
        }
        if let Some(source) = &variable.value_from {
            value_from(
                report,
                &path.child("valueFrom"),
                source,
                text(&variable.value),
            );
        }
    }
}

fn value_from(report: &mut Report, path: &Path, source: &EnvVarSource, value: &str) {
    let mut sources = 0;
    if let Some(field) = &source.field_ref {
        sources += 1;
        field_ref(report, &path.child("fieldRef"), field, &ENV_FIELDS);
    }
    if let Some(field) = &source.resource_field_ref {
        sources += 1;
        resource_ref(report, &path.child("resourceFieldRef"), field, false);
    }
    for (name, key) in [
        (
            "configMapKeyRef",
            source
                .config_map_key_ref
                .as_ref()
                .map(|r| (&r.name, &r.key)),
        ),
        (
            "secretKeyRef",
            source.secret_key_ref.as_ref().map(|r| (&r.name, &r.key)),
        ),
    ] {
        let Some((object, key)) = key else { continue };
        sources += 1;
        let path = path.child(name);
        report.invalid_each(&path.child("name"), object, names::dns_subdomain(object));
        match key.as_str() {
            "" => report.required(&path.child("key"), ""),
            key => report.invalid_each(&path.child("key"), key, names::config_key(key)),
        }
    }
    if let Some(file) = &source.file_key_ref {
        sources += 1;
        let path = path.child("fileKeyRef");
        match file.key.as_str() {
            "" => report.required(&path.child("key"), ""),
            key => report.invalid_each(&path.child("key"), key, names::env_name(key)),
        }
        match file.volume_name.as_str() {
            "" => report.required(&path.child("volumeName"), ""),
            name => report.invalid_each(&path.child("volumeName"), name, names::dns_label(name)),
        }
        match file.path.as_str() {
            "" => report.required(&path.child("path"), ""),
            file => no_backsteps(report, &path.child("path"), file),
        }
    }
    if sources == 0 {
        report.invalid(
            path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        );
    } else if !value.is_empty() {
        report.invalid(path, "", "may not be specified when `value` is not empty");
    } else if sources > 1 {
        report.invalid(
            path,
            "",
            "may not have more than one field specified at a time",
        );
    }
}

pub(crate) fn field_ref(
    report: &mut Report,
    path: &Path,
    field: &ObjectFieldSelector,
    allowed: &[&str],
) {
    let version = text(&field.api_version);
    if version.is_empty() {
        return report.required(&path.child("apiVersion"), "");
    }
    let written = field.field_path.as_str();
    let path_of_field = path.child("fieldPath");
    if written.is_empty() {
        return report.required(&path_of_field, "");
    }
    if version != "v1" {
        let detail = format!("error converting fieldPath: unsupported pod version: {version}");
        return report.invalid(&path_of_field, written, detail);
    }
    match subscript(written) {
        Some(("metadata.annotations", key)) => {
            report.invalid_each(path, key, names::qualified_name(&key.to_lowercase()));
        }
        Some(("metadata.labels", key)) => {
            report.invalid_each(path, key, names::qualified_name(key))
        }
        Some(_) => report.invalid(
            &path_of_field,
            written,
            format!(
                "error converting fieldPath: field label does not support subscript: {written}"
            ),
        ),
        None => {
            let name = if written == "spec.host" {
                "spec.nodeName"
            } else {
                written
            };
            if !KNOWN_FIELDS.contains(&name) {
                let detail =
                    format!("error converting fieldPath: field label not supported: {written}");
                report.invalid(&path_of_field, written, detail);
            } else if !allowed.contains(&name) {
                report.unsupported(&path_of_field, name, allowed);
            }
        }
    }
}

/// `metadata.labels['key']` into the map and the key.
fn subscript(field: &str) -> Option<(&str, &str)> {
    let (map, key) = field.strip_suffix("']")?.split_once("['")?;
    (!map.is_empty()).then_some((map, key))
}

pub(crate) fn resource_ref(
    report: &mut Report,
    path: &Path,
    field: &ResourceFieldSelector,
    in_volume: bool,
) {
    let name = field.resource.as_str();
    let huge = name.starts_with("limits.hugepages-") || name.starts_with("requests.hugepages-");
    if in_volume && text(&field.container_name).is_empty() {
        report.required(&path.child("containerName"), "");
    } else if name.is_empty() {
        report.required(&path.child("resource"), "");
    } else if !RESOURCE_FIELDS.contains(&name) && !huge {
        report.unsupported(&path.child("resource"), name, &RESOURCE_FIELDS);
    }
    let Some(written) = &field.divisor else {
        return;
    };
    let Some(divisor) = resources::quantity(report, &path.child("divisor"), written) else {
        return;
    };
    const SIZES: [&str; 13] = [
        "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
    ];
    let (fits, allowed): (&[&str], &str) = match name {
        "limits.cpu" | "requests.cpu" => (&["1m", "1"], "1m and 1"),
        _ if RESOURCE_FIELDS.contains(&name) || huge => (
            &SIZES,
            "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei",
        ),
        _ => return,
    };
    if !divisor.is_zero() && !fits.contains(&divisor.to_string().as_str()) {
        let kind = name.split_once('.').map_or(name, |(_, kind)| kind);
        let detail =
            format!("only divisor's values {allowed} are supported with the {kind} resource");
        report.invalid(&path.child("divisor"), name, detail);
    }
}

pub(crate) fn whole_sources(report: &mut Report, path: &Path, sources: &[EnvFromSource]) {
    for (i, source) in sources.iter().enumerate() {
        let path = path.index(i);
        let prefix = text(&source.prefix);
        if !prefix.is_empty() {
            report.invalid_each(&path.child("prefix"), prefix, names::env_name(prefix));
        }
        let refs = [
            (
                "configMapRef",
                source.config_map_ref.as_ref().map(|r| &r.name),
            ),
            ("secretRef", source.secret_ref.as_ref().map(|r| &r.name)),
        ];
        let mut found = 0;
        for (field, name) in refs {
            let Some(name) = name else { continue };
            found += 1;
            let path = path.child(field).child("name");
            match name.as_str() {
                "" => report.required(&path, ""),
                name => report.invalid_each(&path, name, names::dns_subdomain(name)),
            }
        }
        match found {
            0 => report.invalid(
                &path,
                "",
                "must specify one of: `configMapRef` or `secretRef`",
            ),
            1 => {}
            _ => report.invalid(
                &path,
                "",
                "may not have more than one field specified at a time",
            ),
        }
    }
}
