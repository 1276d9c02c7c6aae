//! Where the services of a namespace are, in variables: those of the first days of Kubernetes, and those that
//! linked Docker containers had.

use std::collections::BTreeMap;
use std::sync::Arc;

use indexmap::IndexMap;
use krablet_pod::api::{Service, ServicePort};

/// The service of the API server, told to everyone.
const MASTER: (&str, &str) = ("default", "kubernetes");

/// For a pod of this namespace; with `links` its neighbours' services too. By name of the service.
pub(super) fn variables(
    services: &[Arc<Service>],
    namespace: &str,
    links: bool,
) -> IndexMap<String, String> {
    let mut told: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let own = service.metadata.namespace.as_deref().unwrap_or_default();
        if cluster_ip(service).is_none() {
            continue;
        }
        if (own, name) == MASTER {
            // A service of that name in the pod's own namespace comes first.
            told.entry(name).or_insert(service);
        } else if own == namespace && links {
            told.insert(name, service);
        }
    }
    let mut variables = IndexMap::new();
    for (name, service) in told {
        of_service(&variable_name(name), service, &mut variables);
    }
    variables
}

/// None of a service without an address of its own.
fn cluster_ip(service: &Service) -> Option<&str> {
    let ip = service.spec.as_ref()?.cluster_ip.as_deref()?;
    (!ip.is_empty() && ip != "None").then_some(ip)
}

fn variable_name(text: &str) -> String {
    text.replace('-', "_").to_uppercase()
}

fn of_service(prefix: &str, service: &Service, out: &mut IndexMap<String, String>) {
    let Some(ip) = cluster_ip(service) else {
        return;
    };
    let ports = service.spec.as_ref().and_then(|s| s.ports.as_deref());
    let ports = ports.unwrap_or_default();
    out.insert(format!("{prefix}_SERVICE_HOST"), ip.to_owned());
    if let Some(first) = ports.first() {
        out.insert(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
    }
    for port in ports {
        if let Some(name) = port.name.as_deref().filter(|n| !n.is_empty()) {
            let name = variable_name(name);
            out.insert(
                format!("{prefix}_SERVICE_PORT_{name}"),
                port.port.to_string(),
            );
        }
    }
    if let Some(first) = ports.first() {
        out.insert(format!("{prefix}_PORT"), url(ip, first));
    }
    for port in ports {
        let number = port.port;
        let prefix = format!("{prefix}_PORT_{number}_{}", protocol(port).to_uppercase());
        out.insert(prefix.clone(), url(ip, port));
        out.insert(format!("{prefix}_PROTO"), protocol(port).to_lowercase());
        out.insert(format!("{prefix}_PORT"), number.to_string());
        out.insert(format!("{prefix}_ADDR"), ip.to_owned());
    }
}

fn protocol(port: &ServicePort) -> &str {
    let named = port.protocol.as_deref().filter(|p| !p.is_empty());
    named.unwrap_or("TCP")
}

fn url(ip: &str, port: &ServicePort) -> String {
    let (protocol, number) = (protocol(port).to_lowercase(), port.port);
    match ip.contains(':') {
        true => format!("{protocol}://[{ip}]:{number}"),
        false => format!("{protocol}://{ip}:{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_pod::api::ServiceSpec;

    fn service(
        namespace: &str,
        name: &str,
        ip: &str,
        ports: &[(&str, i32, Option<&str>)],
    ) -> Arc<Service> {
        let ports = ports.iter().map(|(name, port, protocol)| ServicePort {
            name: Some(name.to_string()),
            port: *port,
            protocol: protocol.map(Into::into),
            ..ServicePort::default()
        });
        let mut service = Service {
            spec: Some(ServiceSpec {
                cluster_ip: Some(ip.into()),
                ports: Some(ports.collect()),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        };
        service.metadata.namespace = Some(namespace.into());
        service.metadata.name = Some(name.into());
        Arc::new(service)
    }

    fn told(services: &[Arc<Service>], namespace: &str, links: bool) -> Vec<String> {
        let variables = variables(services, namespace, links).into_iter();
        variables.map(|(k, v)| format!("{k}={v}")).collect()
    }

    #[test]
    fn every_variable_of_a_service() {
        let all = [service(
            "ns",
            "my-db",
            "10.0.0.7",
            &[("", 5432, None), ("dns-tcp", 53, Some("UDP"))],
        )];
        assert_eq!(
            told(&all, "ns", true),
            [
                "MY_DB_SERVICE_HOST=10.0.0.7",
                "MY_DB_SERVICE_PORT=5432",
                "MY_DB_SERVICE_PORT_DNS_TCP=53",
                "MY_DB_PORT=tcp://10.0.0.7:5432",
                "MY_DB_PORT_5432_TCP=tcp://10.0.0.7:5432",
                "MY_DB_PORT_5432_TCP_PROTO=tcp",
                "MY_DB_PORT_5432_TCP_PORT=5432",
                "MY_DB_PORT_5432_TCP_ADDR=10.0.0.7",
                "MY_DB_PORT_53_UDP=udp://10.0.0.7:53",
                "MY_DB_PORT_53_UDP_PROTO=udp",
                "MY_DB_PORT_53_UDP_PORT=53",
                "MY_DB_PORT_53_UDP_ADDR=10.0.0.7",
            ]
        );
    }

    #[test]
    fn which_services_a_pod_is_told() {
        let https = [("https", 443, Some("TCP"))];
        let all = [
            service("default", "kubernetes", "10.0.0.1", &https),
            service("default", "web", "10.0.0.2", &https),
            service("ns", "headless", "None", &https),
            service("ns", "outside", "", &https),
            service("ns", "web", "fd00::7", &https),
            service("other", "web", "10.0.0.4", &https),
        ];
        let hosts = |namespace: &str, links: bool| {
            let mut hosts = told(&all, namespace, links);
            hosts.retain(|v| v.contains("_SERVICE_HOST="));
            hosts
        };
        let kubernetes = "KUBERNETES_SERVICE_HOST=10.0.0.1";
        assert_eq!(hosts("ns", true), [kubernetes, "WEB_SERVICE_HOST=fd00::7"]);
        assert_eq!(hosts("ns", false), [kubernetes]);
        assert_eq!(
            hosts("default", true),
            [kubernetes, "WEB_SERVICE_HOST=10.0.0.2"]
        );
        assert_eq!(hosts("nowhere", true), [kubernetes]);
        assert!(told(&all, "ns", true).contains(&"WEB_PORT=tcp://[fd00::7]:443".to_owned()));
    }

    #[test]
    fn a_neighbour_may_take_the_name_of_the_master() {
        let ports = [("p", 1, None)];
        let master = service("default", "kubernetes", "10.0.0.1", &ports);
        let own = service("ns", "kubernetes", "10.0.0.9", &ports);
        for all in [[master.clone(), own.clone()], [own, master]] {
            let host = |links| told(&all, "ns", links).remove(0);
            assert_eq!(host(true), "KUBERNETES_SERVICE_HOST=10.0.0.9");
            assert_eq!(host(false), "KUBERNETES_SERVICE_HOST=10.0.0.1");
        }
    }

    #[test]
    fn a_service_without_ports_has_a_host_only() {
        let all = [service("ns", "odd", "10.0.0.1", &[])];
        assert_eq!(told(&all, "ns", true), ["ODD_SERVICE_HOST=10.0.0.1"]);
    }
}
