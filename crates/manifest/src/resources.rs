//! Requests, limits, overhead: names, quantities, and how they fit together.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;
use krablet_pod::Quantity;
use krablet_pod::api::{Container, PodSpec, ResourceRequirements};
use krablet_pod::containers::{init_containers, is_sidecar};

use crate::names;
use crate::problem::{Path, Report, list, text};

const HUGE_PAGES: &str = "hugepages-";

/// Resources known by a bare name, beside huge pages. Most of them mean something in a quota only.
const STANDARD: [&str; 20] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];

pub(crate) type Amounts = BTreeMap<String, Written>;

/// Who asks for the resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    Container,
    Pod,
}

pub(crate) fn is_huge_page(name: &str) -> bool {
    name.starts_with(HUGE_PAGES)
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

pub(crate) fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

pub(crate) fn fits_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_huge_page(name)
}

pub(crate) fn requirements(
    report: &mut Report,
    path: &Path,
    wanted: &ResourceRequirements,
    asker: Asker,
    claims: &BTreeSet<&str>,
) {
    let none = Amounts::new();
    let limits = wanted.limits.as_ref().unwrap_or(&none);
    let requests = wanted.requests.as_ref().unwrap_or(&none);
    amounts(report, &path.child("limits"), limits, asker);
    amounts(report, &path.child("requests"), requests, asker);
    for (name, request) in requests {
        within_limit(report, path, name, request, limits.get(name));
    }
    let has = |test: fn(&str) -> bool| limits.keys().chain(requests.keys()).any(|name| test(name));
    if has(is_huge_page) && !has(|name| matches!(name, "cpu" | "memory")) {
        report.forbidden(path, "HugePages require cpu or memory");
    }
    claim_names(report, &path.child("claims"), wanted, claims);
}

pub(crate) fn amounts(report: &mut Report, path: &Path, amounts: &Amounts, asker: Asker) {
    for (name, written) in amounts {
        let path = path.key(name);
        name_fits(report, &path, name, asker);
        let Some(amount) = quantity(report, &path, written) else {
            continue;
        };
        if amount.is_negative() {
            report.invalid(&path, &written.0, "must be greater than or equal to 0");
        }
        if is_extended(name) && amount.milli_value() % 1000 != 0 {
            report.invalid(&path, &written.0, "must be an integer");
        }
        if is_huge_page(name) && !is_page_multiple(name, amount) {
            report.invalid(
                &path,
                &written.0,
                format!("{} is not positive integer multiple of {name}", written.0),
            );
        }
    }
}

/// Reads a quantity; a bad one is a problem and no value.
pub(crate) fn quantity(report: &mut Report, path: &Path, written: &Written) -> Option<Quantity> {
    match written.0.parse() {
        Ok(amount) => Some(amount),
        Err(error) => {
            let error: krablet_pod::quantity::QuantityError = error;
            report.invalid(path, &written.0, error.to_string());
            None
        }
    }
}

fn name_fits(report: &mut Report, path: &Path, name: &str, asker: Asker) {
    let wrong = names::qualified_name(name);
    if !wrong.is_empty() {
        report.invalid_each(path, name, wrong);
        return;
    }
    let bare = !name.contains('/');
    if bare
        && !STANDARD.contains(&name)
        && !is_huge_page(name)
        && !name.starts_with("requests.hugepages-")
    {
        report.invalid(
            path,
            name,
            "must be a standard resource type or fully qualified",
        );
    } else if asker == Asker::Pod && !fits_pod_level(name) {
        report.unsupported(path, name, &["cpu", HUGE_PAGES, "memory"]);
    } else if bare && !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !is_huge_page(name)
    {
        report.invalid(path, name, "must be a standard resource for containers");
    } else if !bare && !is_native(name) && !is_extended(name) {
        report.invalid(path, name, "doesn't follow extended resource name standard");
    }
}

fn within_limit(
    report: &mut Report,
    path: &Path,
    name: &str,
    request: &Written,
    limit: Option<&Written>,
) {
    let Some(limit) = limit else {
        if !may_overcommit(name) {
            report.required(
                &path.child("limits"),
                "Limit must be set for non overcommitable resources",
            );
        }
        return;
    };
    // A quantity that cannot be read has been told already.
    let (Ok(wanted), Ok(most)) = (request.0.parse::<Quantity>(), limit.0.parse::<Quantity>())
    else {
        return;
    };
    if wanted != most && !may_overcommit(name) {
        let detail = format!("must be equal to {name} limit of {}", limit.0);
        report.invalid(&path.child("requests"), &request.0, detail);
    } else if wanted > most {
        let detail = format!("must be less than or equal to {name} limit of {}", limit.0);
        report.invalid(&path.child("requests"), &request.0, detail);
    }
}

fn is_page_multiple(name: &str, amount: Quantity) -> bool {
    let size = name.strip_prefix(HUGE_PAGES).unwrap_or_default();
    match size.parse::<Quantity>() {
        Ok(page) if page > Quantity::ZERO && page.milli_value() % 1000 == 0 => {
            amount.value().checked_rem(page.value()) == Some(0)
        }
        _ => false,
    }
}

fn claim_names(
    report: &mut Report,
    path: &Path,
    wanted: &ResourceRequirements,
    known: &BTreeSet<&str>,
) {
    let mut seen = BTreeSet::new();
    for (i, claim) in list(&wanted.claims).iter().enumerate() {
        let path = path.index(i);
        if claim.name.is_empty() {
            report.required(&path, "");
            continue;
        }
        let request = text(&claim.request);
        if !request.is_empty() {
            report.invalid_each(&path.child("request"), request, names::dns_label(request));
        }
        if !seen.insert((claim.name.as_str(), request)) {
            report.duplicate(&path, &claim.name);
        }
        if !known.contains(claim.name.as_str()) {
            report.not_found(&path, &claim.name);
        }
    }
}

/// Requests and limits of the pod as a whole.
pub(crate) fn pod_level(report: &mut Report, path: &Path, spec: &PodSpec, claims: &BTreeSet<&str>) {
    let Some(wanted) = &spec.resources else {
        return;
    };
    let path = path.child("resources");
    if wanted.claims.is_some() {
        report.forbidden(
            &path.child("claims"),
            "claims may not be set for Resources at pod-level",
        );
    }
    let bare = ResourceRequirements {
        claims: None,
        ..wanted.clone()
    };
    requirements(report, &path, &bare, Asker::Pod, claims);

    let none = Amounts::new();
    let requests = wanted.requests.as_ref().unwrap_or(&none);
    let limits = wanted.limits.as_ref().unwrap_or(&none);
    for (name, sum) in aggregate(spec, |resources| resources.requests.as_ref()) {
        at_least(
            report,
            &path.child("requests").key(&name),
            requests.get(&name),
            sum,
            "requests",
        );
    }
    for (name, sum) in aggregate(spec, |resources| resources.limits.as_ref()) {
        if is_huge_page(&name) {
            at_least(
                report,
                &path.child("limits").key(&name),
                limits.get(&name),
                sum,
                "limits",
            );
        }
    }
    for (i, container) in spec.containers.iter().enumerate() {
        for (name, limit) in container
            .resources
            .iter()
            .flat_map(|r| r.limits.iter().flatten())
        {
            let most = limits.get(name);
            let over = most.is_some_and(|most| more_than(limit, most));
            if let (true, Some(most)) = (over, most) {
                let path = Path::root("spec").child("containers").index(i);
                let path = path.child("resources").child("limits").key(name);
                report.invalid(
                    &path,
                    &limit.0,
                    format!("must be less than or equal to pod limits of {}", most.0),
                );
            }
        }
    }
}

fn more_than(one: &Written, other: &Written) -> bool {
    match (one.0.parse::<Quantity>(), other.0.parse::<Quantity>()) {
        (Ok(one), Ok(other)) => one > other,
        _ => false,
    }
}

fn at_least(
    report: &mut Report,
    path: &Path,
    written: Option<&Written>,
    sum: Quantity,
    what: &str,
) {
    let Some(written) = written else { return };
    if written
        .0
        .parse::<Quantity>()
        .is_ok_and(|amount| amount < sum)
    {
        let detail =
            format!("must be greater than or equal to aggregate container {what} of {sum}");
        report.invalid(path, &written.0, detail);
    }
}

/// What a pod's containers need together: the regular ones and sidecars at once, or one init container beside the
/// sidecars started before it, whichever is more.
pub(crate) fn aggregate<'s>(
    spec: &'s PodSpec,
    pick: impl Fn(&'s ResourceRequirements) -> Option<&'s Amounts>,
) -> BTreeMap<String, Quantity> {
    let read = |container: &'s Container| -> Vec<(String, Quantity)> {
        container
            .resources
            .as_ref()
            .and_then(&pick)
            .into_iter()
            .flatten()
            .filter_map(|(name, written)| Some((name.clone(), written.0.parse().ok()?)))
            .collect()
    };
    let mut running: BTreeMap<String, Quantity> = BTreeMap::new();
    let mut starting: BTreeMap<String, Quantity> = BTreeMap::new();
    for container in init_containers(spec) {
        for (name, amount) in read(container) {
            if is_sidecar(container) {
                add(&mut running, name, amount);
            } else {
                let beside = running.get(&name).copied().unwrap_or(Quantity::ZERO);
                let most = starting.entry(name).or_insert(Quantity::ZERO);
                *most = (*most).max(beside.saturating_add(amount));
            }
        }
    }
    for container in &spec.containers {
        for (name, amount) in read(container) {
            add(&mut running, name, amount);
        }
    }
    for (name, amount) in starting {
        let most = running.entry(name).or_insert(amount);
        *most = (*most).max(amount);
    }
    running
}

fn add(sums: &mut BTreeMap<String, Quantity>, name: String, amount: Quantity) {
    let sum = sums.entry(name).or_insert(Quantity::ZERO);
    *sum = sum.saturating_add(amount);
}
