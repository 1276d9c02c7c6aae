//! Metadata of a static pod: name, namespace, labels, annotations, owners.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use krablet_pod::api::PodSpec;

use crate::names;
use crate::problem::{Path, Report, list, on, text};

/// Bytes of all annotation keys and values together.
const ANNOTATIONS_MAX: usize = 256 << 10;
const APPARMOR_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

pub(crate) fn check(report: &mut Report, meta: &ObjectMeta, spec: &PodSpec) {
    let path = Path::root("metadata");
    if let Some(prefix) = meta
        .generate_name
        .as_deref()
        .filter(|name| !name.is_empty())
    {
        let masked = match prefix.strip_suffix('-') {
            Some(stem) if !stem.is_empty() => stem,
            _ => prefix,
        };
        report.invalid_each(
            &path.child("generateName"),
            prefix,
            names::dns_subdomain(masked),
        );
    }
    match text(&meta.name) {
        "" => report.required(&path.child("name"), "name or generateName is required"),
        name => report.invalid_each(&path.child("name"), name, names::dns_subdomain(name)),
    }
    match text(&meta.namespace) {
        "" => report.required(&path.child("namespace"), ""),
        name => report.invalid_each(&path.child("namespace"), name, names::dns_label(name)),
    }
    uid(report, &path.child("uid"), text(&meta.uid));
    if let Some(labels) = &meta.labels {
        self::labels(report, &path.child("labels"), labels);
    }
    if let Some(annotations) = &meta.annotations {
        self::annotations(report, &path.child("annotations"), annotations, spec);
    }
    owners(report, &path.child("ownerReferences"), meta);
    for finalizer in list(&meta.finalizers) {
        let path = path.child("finalizers");
        report.invalid_each(&path, finalizer, names::qualified_name(finalizer));
    }
}

/// A given UID names directories and cgroups, so it must be safe as one.
fn uid(report: &mut Report, path: &Path, uid: &str) {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if !uid.bytes().all(fits) || uid.len() > 63 {
        report.invalid(
            path,
            uid,
            "must be at most 63 letters, digits and hyphens, because directories are named after it",
        );
    }
}

pub(crate) fn labels(report: &mut Report, path: &Path, labels: &BTreeMap<String, String>) {
    for (key, value) in labels {
        report.invalid_each(path, key, names::qualified_name(key));
        report.invalid_each(path, value, names::label_value(value));
    }
}

fn annotations(
    report: &mut Report,
    path: &Path,
    annotations: &BTreeMap<String, String>,
    spec: &PodSpec,
) {
    let mut size = 0;
    let containers: BTreeSet<&str> = krablet_pod::containers::all(spec)
        .map(|found| found.container.name.as_str())
        .collect();
    for (key, value) in annotations {
        size += key.len() + value.len();
        report.invalid_each(path, key, names::qualified_name(&key.to_lowercase()));
        if let Some(container) = key.strip_prefix(APPARMOR_PREFIX) {
            let exists = containers.contains(container);
            apparmor(report, &path.key(key), container, value, exists);
        }
        if key == DELETION_COST && !is_cost(value) {
            report.invalid(&path.key(key), value, "must be a 32bit integer");
        }
    }
    if size > ANNOTATIONS_MAX {
        report.too_long(path, ANNOTATIONS_MAX);
    }
}

/// The controller that reads the cost takes no plus sign and no leading zeros.
fn is_cost(value: &str) -> bool {
    let digits = value.strip_prefix('-').unwrap_or(value);
    let leading_zero = digits.len() > 1 && digits.starts_with('0');
    value.parse::<i32>().is_ok() && !value.starts_with('+') && !leading_zero
}

fn apparmor(report: &mut Report, path: &Path, container: &str, profile: &str, exists: bool) {
    if !exists {
        report.invalid(path, container, "container not found");
    }
    let known = matches!(profile, "" | "runtime/default" | "unconfined")
        || profile.starts_with("localhost/");
    if !known {
        report.invalid(
            path,
            profile,
            format!("invalid AppArmor profile name: {profile:?}"),
        );
    }
}

fn owners(report: &mut Report, path: &Path, meta: &ObjectMeta) {
    let mut controller: Option<String> = None;
    for owner in list(&meta.owner_references) {
        if owner
            .api_version
            .rsplit('/')
            .next()
            .is_none_or(str::is_empty)
        {
            report.invalid(
                &path.child("apiVersion"),
                &owner.api_version,
                "version must not be empty",
            );
        }
        for (field, value) in [
            ("kind", &owner.kind),
            ("name", &owner.name),
            ("uid", &owner.uid),
        ] {
            if value.is_empty() {
                report.invalid(&path.child(field), value, "must not be empty");
            }
        }
        if owner.api_version == "v1" && owner.kind == "Event" {
            report.invalid(path, &owner.kind, "an Event may not be an owner");
        }
        if on(owner.controller) {
            let name = format!("{}/{}", owner.kind, owner.name);
            match &controller {
                Some(first) => report.invalid(
                    path,
                    &name,
                    format!("only one owner may be the controller, and {first} is one already"),
                ),
                None => controller = Some(name),
            }
        }
    }
}

pub(crate) fn selector(report: &mut Report, path: &Path, selector: Option<&LabelSelector>) {
    let Some(selector) = selector else { return };
    if let Some(wanted) = &selector.match_labels {
        labels(report, &path.child("matchLabels"), wanted);
    }
    for (i, rule) in list(&selector.match_expressions).iter().enumerate() {
        let path = path.child("matchExpressions").index(i);
        let values = list(&rule.values);
        match rule.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => report.required(
                &path.child("values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            ),
            "Exists" | "DoesNotExist" if !values.is_empty() => report.forbidden(
                &path.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => report.invalid(
                &path.child("operator"),
                other,
                "not a valid selector operator",
            ),
        }
        report.invalid_each(
            &path.child("key"),
            &rule.key,
            names::qualified_name(&rule.key),
        );
        for (i, value) in values.iter().enumerate() {
            report.invalid_each(
                &path.child("values").index(i),
                value,
                names::label_value(value),
            );
        }
    }
}
