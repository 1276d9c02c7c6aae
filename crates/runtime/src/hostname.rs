//! What a pod is called from inside: its hostname and domain.

use krablet_pod::api::{Pod, PodSpec};

use crate::config::DnsSettings;

/// The kernel keeps 64 bytes for a name, one of them for its end.
const HOSTNAME_MAX: usize = 63;
const FQDN_MAX: usize = 64;

/// Short hostname and domain (empty without `subdomain`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodHostname {
    pub hostname: String,
    pub domain: String,
}

pub(crate) fn pod_hostname(pod: &Pod, dns: &DnsSettings) -> Result<PodHostname, String> {
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let default = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&default);
    let own = spec.hostname_override.as_ref();
    if let Some(name) = own.filter(|_| dns.hostname_override) {
        return Ok(PodHostname {
            hostname: cut(pod_name, name)?,
            domain: String::new(),
        });
    }
    let hostname = spec.hostname.as_deref().filter(|h| !h.is_empty());
    let domain = match spec.subdomain.as_deref().filter(|s| !s.is_empty()) {
        Some(subdomain) => format!("{subdomain}.{namespace}.svc.{}", dns.cluster_domain),
        None => String::new(),
    };
    Ok(PodHostname {
        hostname: cut(pod_name, hostname.unwrap_or(pod_name))?,
        domain,
    })
}

/// The name the kernel is told: the short one, or all of it where the pod asks for that.
pub(crate) fn kernel_hostname(pod: &Pod, name: &PodHostname) -> Result<String, String> {
    let as_fqdn = pod
        .spec
        .as_ref()
        .and_then(|s| s.set_hostname_as_fqdn)
        .unwrap_or(false);
    if !as_fqdn || name.domain.is_empty() {
        return Ok(name.hostname.clone());
    }
    let fqdn = format!("{}.{}", name.hostname, name.domain);
    if fqdn.len() > FQDN_MAX {
        return Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long ({FQDN_MAX} characters is the max, {} characters requested)",
            fqdn.len()
        ));
    }
    Ok(fqdn)
}

fn cut(pod_name: &str, hostname: &str) -> Result<String, String> {
    if hostname.len() <= HOSTNAME_MAX {
        return Ok(hostname.to_string());
    }
    let end = (0..=HOSTNAME_MAX)
        .rev()
        .find(|i| hostname.is_char_boundary(*i));
    let cut = hostname[..end.unwrap_or_default()].trim_end_matches(['-', '.']);
    if cut.is_empty() {
        return Err(format!(
            "hostname for pod {pod_name:?} was invalid: {hostname:?}"
        ));
    }
    Ok(cut.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, spec: PodSpec) -> Pod {
        let mut pod = Pod {
            spec: Some(spec),
            ..Pod::default()
        };
        pod.metadata.name = Some(name.into());
        pod.metadata.namespace = Some("ns".into());
        pod
    }

    fn dns(hostname_override: bool) -> DnsSettings {
        DnsSettings {
            cluster_domain: "cluster.local".into(),
            hostname_override,
            ..DnsSettings::default()
        }
    }

    fn names(pod: &Pod) -> (String, String) {
        let name = pod_hostname(pod, &dns(true)).unwrap();
        let kernel = kernel_hostname(pod, &name).unwrap();
        (kernel, name.domain)
    }

    #[test]
    fn hostname_and_domain() {
        let plain = pod("web", PodSpec::default());
        assert_eq!(names(&plain), ("web".into(), "".into()));

        let named = pod(
            "web",
            PodSpec {
                hostname: Some("front".into()),
                subdomain: Some("sub".into()),
                ..PodSpec::default()
            },
        );
        let domain = "sub.ns.svc.cluster.local".to_string();
        assert_eq!(names(&named), ("front".into(), domain.clone()));

        let mut fqdn = named.clone();
        fqdn.spec.as_mut().unwrap().set_hostname_as_fqdn = Some(true);
        assert_eq!(
            names(&fqdn),
            ("front.sub.ns.svc.cluster.local".into(), domain)
        );
    }

    #[test]
    fn long_names_are_cut_and_do_not_end_in_a_dash() {
        let long = format!("{}-{}", "a".repeat(62), "b".repeat(20));
        assert_eq!(names(&pod(&long, PodSpec::default())).0, "a".repeat(62));
    }

    #[test]
    fn too_long_a_fqdn_is_refused() {
        let p = pod(
            &"a".repeat(60),
            PodSpec {
                subdomain: Some("sub".into()),
                set_hostname_as_fqdn: Some(true),
                ..PodSpec::default()
            },
        );
        let name = pod_hostname(&p, &dns(true)).unwrap();
        assert_eq!(
            kernel_hostname(&p, &name).unwrap_err(),
            format!(
                "failed to construct FQDN from pod hostname and cluster domain, FQDN {}.sub.ns.svc.cluster.local is too long (64 characters is the max, 85 characters requested)",
                "a".repeat(60)
            )
        );
    }

    #[test]
    fn a_name_of_its_own_stands_alone_behind_its_gate() {
        let p = pod(
            "web",
            PodSpec {
                hostname: Some("front".into()),
                hostname_override: Some("db.example".into()),
                ..PodSpec::default()
            },
        );
        let found = |on: bool| pod_hostname(&p, &dns(on)).unwrap();
        assert_eq!(found(true).hostname, "db.example");
        assert_eq!(
            (found(true).domain, found(false).domain),
            Default::default()
        );
        assert_eq!(found(false).hostname, "front");
    }
}
