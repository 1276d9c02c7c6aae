//! DNS, host names and host ports of a pod.

use krablet_pod::api::{PodDNSConfig, PodSpec};

use crate::names;
use crate::problem::{Path, Report, list, on, text};

const NAMESERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCH_CHARACTERS_MAX: usize = 2048;
const HOSTNAME_MAX: usize = 64;

pub(crate) fn check(report: &mut Report, path: &Path, spec: &PodSpec) {
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    report.one_of(&path.child("dnsPolicy"), text(&spec.dns_policy), &policies);
    dns(report, &path.child("dnsConfig"), spec);
    for (i, alias) in list(&spec.host_aliases).iter().enumerate() {
        let path = path.child("hostAliases").index(i);
        report.invalid_each(&path.child("ip"), &alias.ip, names::ip_address(&alias.ip));
        for (j, name) in list(&alias.hostnames).iter().enumerate() {
            report.invalid_each(
                &path.child("hostnames").index(j),
                name,
                names::dns_subdomain(name),
            );
        }
    }
    for (field, name) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        let name = text(name);
        if !name.is_empty() {
            report.invalid_each(&path.child(field), name, names::dns_label(name));
        }
    }
    hostname_override(report, &path.child("hostnameOverride"), spec);
    if on(spec.host_network) {
        host_network_ports(report, &path.child("containers"), spec);
    }
}

fn dns(report: &mut Report, path: &Path, spec: &PodSpec) {
    if text(&spec.dns_policy) == "None" {
        match &spec.dns_config {
            None => {
                return report.required(path, "must provide `dnsConfig` when `dnsPolicy` is None");
            }
            Some(config) if list(&config.nameservers).is_empty() => {
                return report.required(
                    &path.child("nameservers"),
                    "must provide at least one DNS nameserver when `dnsPolicy` is None",
                );
            }
            Some(_) => {}
        }
    }
    if let Some(config) = &spec.dns_config {
        dns_config(report, path, config);
    }
}

fn dns_config(report: &mut Report, path: &Path, config: &PodDNSConfig) {
    let (servers, searches) = (list(&config.nameservers), list(&config.searches));
    let servers_path = path.child("nameservers");
    if servers.len() > NAMESERVERS_MAX {
        let detail = format!("must not have more than {NAMESERVERS_MAX} nameservers");
        report.invalid(&servers_path, &servers.join(" "), detail);
    }
    for (i, server) in servers.iter().enumerate() {
        report.invalid_each(&servers_path.index(i), server, names::ip_address(server));
    }
    let searches_path = path.child("searches");
    if searches.len() > SEARCHES_MAX {
        let detail = format!("must not have more than {SEARCHES_MAX} search paths");
        report.invalid(&searches_path, &searches.join(" "), detail);
    }
    if searches.join(" ").len() > SEARCH_CHARACTERS_MAX {
        let detail = format!(
            "must not have more than {SEARCH_CHARACTERS_MAX} characters (including spaces) in the search list"
        );
        report.invalid(&searches_path, &searches.join(" "), detail);
    }
    for (i, search) in searches
        .iter()
        .enumerate()
        .filter(|(_, search)| *search != ".")
    {
        let name = search.strip_suffix('.').unwrap_or(search);
        report.invalid_each(&searches_path.index(i), name, names::dns_search(name));
    }
    for (i, option) in list(&config.options).iter().enumerate() {
        if text(&option.name).is_empty() {
            report.required(&path.child("options").index(i), "must not be empty");
        }
    }
}

fn hostname_override(report: &mut Report, path: &Path, spec: &PodSpec) {
    let Some(name) = &spec.hostname_override else {
        return;
    };
    if on(spec.set_hostname_as_fqdn) {
        report.forbidden(path, "may not be specified when setHostnameAsFQDN is true");
    }
    if on(spec.host_network) {
        report.forbidden(path, "may not be specified when hostNetwork is true");
    }
    if name.len() > HOSTNAME_MAX {
        report.too_long(path, HOSTNAME_MAX);
    }
    report.invalid_each(path, name, names::dns_subdomain(name));
}

fn host_network_ports(report: &mut Report, path: &Path, spec: &PodSpec) {
    for (i, container) in spec.containers.iter().enumerate() {
        for (j, port) in list(&container.ports).iter().enumerate() {
            let host = port.host_port.unwrap_or_default();
            if host != port.container_port {
                let path = path.index(i).child("ports").index(j).child("hostPort");
                report.invalid(
                    &path,
                    &host,
                    "must match `containerPort` when `hostNetwork` is true",
                );
            }
        }
    }
}
