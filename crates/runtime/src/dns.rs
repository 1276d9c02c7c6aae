//! The resolver settings of a pod, from its policy, the cluster's and the node's.

use std::path::Path;

use krablet_cri::v1;
use krablet_events::{Recorder, Subject};
use krablet_linux::Files;
use krablet_pod::api::{Pod, PodDNSConfigOption};

use crate::config::DnsSettings;

/// The reason of events about the node's resolver file.
const CHECK_LIMITS: &str = "CheckLimitsForResolvConf";
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
/// Longer search domains make some resolvers abort.
const MAX_SEARCH_DOMAIN: usize = 253;
/// Reading more of a resolver file is refused.
pub const RESOLV_CONF_LIMIT: usize = 10 << 20;

/// The parts of a resolver file that pods inherit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    pub nameservers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

/// Nameservers accumulate; the last `search` line wins; a later option replaces an earlier one.
pub fn parse_resolv_conf(text: &str) -> Result<ResolvConf, String> {
    let mut conf = ResolvConf::default();
    for line in text.lines().map(str::trim).filter(|l| !l.starts_with('#')) {
        let mut fields = line.split_whitespace();
        match fields.next() {
            Some("nameserver") => match fields.next() {
                Some(server) => conf.nameservers.push(server.into()),
                None => return Err("nameserver list is empty ".into()),
            },
            Some("search") => {
                conf.searches = fields
                    .filter(|s| *s != ".")
                    .map(|s| s.strip_suffix('.').unwrap_or(s).to_string())
                    .collect();
            }
            Some("options") => {
                for option in fields {
                    set_option(&mut conf.options, option.to_string());
                }
            }
            _ => {}
        }
    }
    Ok(conf)
}

/// What in the node's own resolver file would not fit into every pod's, in words.
pub(crate) fn beyond_limits(
    path: &Path,
    host: &ResolvConf,
    cluster_domain: &str,
) -> Option<String> {
    let path = path.display();
    // Three domains of the cluster come before the node's.
    let most = match cluster_domain.is_empty() {
        true => MAX_SEARCHES,
        false => MAX_SEARCHES - 3,
    };
    if host.searches.len() > most {
        return Some(format!(
            "Resolv.conf file '{path}' contains search line consisting of more than {most} domains!"
        ));
    }
    if host.searches.iter().any(|s| s.len() > MAX_SEARCH_DOMAIN) {
        return Some(format!(
            "Resolv.conf file \"{path}\" contains a search path which length is more than allowed {MAX_SEARCH_DOMAIN} chars!"
        ));
    }
    (host.searches.join(" ").len() > MAX_SEARCH_CHARS).then(|| {
        format!(
            "Resolv.conf file '{path}' contains search line which length is more than allowed {MAX_SEARCH_CHARS} chars!"
        )
    })
}

/// Tells the cluster when the node's resolver file cannot be read or is too much for pods.
pub async fn check_node_resolver(settings: &DnsSettings, files: &dyn Files, recorder: &Recorder) {
    let Some(path) = &settings.resolv_conf else {
        return;
    };
    let told = match files.read(path, RESOLV_CONF_LIMIT).await {
        Ok(bytes) => match parse_resolv_conf(&String::from_utf8_lossy(&bytes)) {
            Ok(host) => beyond_limits(path, &host, &settings.cluster_domain),
            Err(why) => Some(why),
        },
        Err(why) => Some(format!("open {}: {why}", path.display())),
    };
    if let Some(text) = told {
        recorder.warning(Subject::Node, CHECK_LIMITS, text);
    }
}

fn option_name(option: &str) -> &str {
    option.split_once(':').map_or(option, |(name, _)| name)
}

fn set_option(options: &mut Vec<String>, option: String) {
    let same = options
        .iter()
        .position(|o| option_name(o) == option_name(&option));
    match same {
        Some(at) => options[at] = option,
        None => options.push(option),
    }
}

/// Something about a pod's resolver that its owner should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DnsWarning {
    /// The pod wants the cluster's DNS and the node knows none.
    MissingClusterDns,
    /// Limits were exceeded; the text is the event's.
    Forming(String),
}

pub(crate) const MISSING_CLUSTER_DNS: &str = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.";

enum Base {
    Cluster,
    Host,
    None,
}

fn base(policy: &str, host_network: bool) -> Base {
    match policy {
        "None" => Base::None,
        "Default" => Base::Host,
        "ClusterFirst" if host_network => Base::Host,
        _ => Base::Cluster,
    }
}

/// `host` is the node's resolver file, read now.
pub(crate) fn pod_dns(
    pod: &Pod,
    settings: &DnsSettings,
    host_ips: &[String],
    host: &ResolvConf,
) -> (v1::DnsConfig, Vec<DnsWarning>) {
    let mut warnings = Vec::new();
    let spec = pod.spec.as_ref();
    let policy = spec
        .and_then(|s| s.dns_policy.as_deref())
        .unwrap_or("ClusterFirst");
    let host_network = spec.and_then(|s| s.host_network).unwrap_or(false);
    let mut config = match base(policy, host_network) {
        Base::None => v1::DnsConfig::default(),
        Base::Cluster if !settings.cluster_dns.is_empty() => v1::DnsConfig {
            servers: settings.cluster_dns.clone(),
            searches: cluster_searches(pod, settings, host),
            options: vec!["ndots:5".into()],
        },
        Base::Cluster => {
            warnings.push(DnsWarning::MissingClusterDns);
            host_dns(settings, host_ips, host)
        }
        Base::Host => host_dns(settings, host_ips, host),
    };
    if let Some(own) = spec.and_then(|s| s.dns_config.as_ref()) {
        config
            .servers
            .extend(own.nameservers.clone().unwrap_or_default());
        config
            .searches
            .extend(own.searches.clone().unwrap_or_default());
        omit_duplicates(&mut config.servers);
        omit_duplicates(&mut config.searches);
        for option in own.options.iter().flatten() {
            set_option(&mut config.options, option_text(option));
        }
    }
    fit_limits(&mut config, &mut warnings);
    (config, warnings)
}

fn option_text(option: &PodDNSConfigOption) -> String {
    let name = option.name.clone().unwrap_or_default();
    match option.value.as_deref() {
        None | Some("") => name,
        Some(value) => format!("{name}:{value}"),
    }
}

fn cluster_searches(pod: &Pod, settings: &DnsSettings, host: &ResolvConf) -> Vec<String> {
    let domain = &settings.cluster_domain;
    if domain.is_empty() {
        return host.searches.clone();
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut searches = vec![
        format!("{namespace}.svc.{domain}"),
        format!("svc.{domain}"),
        domain.clone(),
    ];
    searches.extend(host.searches.iter().cloned());
    omit_duplicates(&mut searches);
    searches
}

/// The node's own resolver; without a resolver file, lookups are kept on the local machine.
fn host_dns(settings: &DnsSettings, host_ips: &[String], host: &ResolvConf) -> v1::DnsConfig {
    if settings.resolv_conf.is_some() {
        return v1::DnsConfig {
            servers: host.nameservers.clone(),
            searches: host.searches.clone(),
            options: host.options.clone(),
        };
    }
    let local = |ip: &String| if ip.contains(':') { "::1" } else { "127.0.0.1" };
    let mut servers: Vec<String> = host_ips.iter().map(|ip| local(ip).into()).collect();
    if servers.is_empty() {
        servers.push("127.0.0.1".into());
    }
    v1::DnsConfig {
        servers,
        searches: vec![".".into()],
        options: Vec::new(),
    }
}

fn omit_duplicates(list: &mut Vec<String>) {
    let mut seen = std::collections::BTreeSet::new();
    list.retain(|item| seen.insert(item.clone()));
}

fn fit_limits(config: &mut v1::DnsConfig, warnings: &mut Vec<DnsWarning>) {
    if config.servers.len() > MAX_NAMESERVERS {
        config.servers.truncate(MAX_NAMESERVERS);
        warnings.push(DnsWarning::Forming(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            config.servers.join(" ")
        )));
    }
    let before = config.searches.len();
    config.searches.truncate(MAX_SEARCHES);
    config.searches.retain(|s| s.len() <= MAX_SEARCH_DOMAIN);
    while config.searches.join(" ").len() > MAX_SEARCH_CHARS {
        config.searches.pop();
    }
    if config.searches.len() < before {
        warnings.push(DnsWarning::Forming(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            config.searches.join(" ")
        )));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_pod::api::{PodDNSConfig, PodSpec};
    use proptest::prelude::*;

    fn host() -> ResolvConf {
        parse_resolv_conf(
            "# comment\nnameserver 1.1.1.1\nnameserver 2.2.2.2\nsearch old\nsearch corp.example. .\noptions ndots:2 rotate\noptions ndots:3\n",
        )
        .unwrap()
    }

    fn settings(cluster_dns: &[&str]) -> DnsSettings {
        DnsSettings {
            cluster_dns: cluster_dns.iter().map(|s| s.to_string()).collect(),
            cluster_domain: "cluster.local".into(),
            resolv_conf: Some("/etc/resolv.conf".into()),
            ..DnsSettings::default()
        }
    }

    fn pod(policy: &str, host_network: bool) -> Pod {
        let mut pod = Pod {
            spec: Some(PodSpec {
                dns_policy: Some(policy.into()),
                host_network: Some(host_network),
                ..PodSpec::default()
            }),
            ..Pod::default()
        };
        pod.metadata.namespace = Some("ns".into());
        pod
    }

    fn show(c: &v1::DnsConfig) -> String {
        format!(
            "{} | {} | {}",
            c.servers.join(" "),
            c.searches.join(" "),
            c.options.join(" ")
        )
    }

    #[test]
    fn resolver_file() {
        let conf = host();
        assert_eq!(conf.nameservers, ["1.1.1.1", "2.2.2.2"]);
        assert_eq!(conf.searches, ["corp.example"]);
        assert_eq!(conf.options, ["ndots:3", "rotate"]);
        assert!(parse_resolv_conf("nameserver\n").is_err());
    }

    #[test]
    fn policies() {
        const HOST: &str = "1.1.1.1 2.2.2.2 | corp.example | ndots:3 rotate";
        const CLUSTER: &str = "10.96.0.10 | ns.svc.cluster.local svc.cluster.local cluster.local corp.example | ndots:5";
        let cases = [
            ("Default", false, true, HOST, 0),
            ("ClusterFirst", false, true, CLUSTER, 0),
            ("ClusterFirst", true, true, HOST, 0),
            ("ClusterFirstWithHostNet", true, true, CLUSTER, 0),
            ("None", false, true, " |  | ", 0),
            ("ClusterFirst", false, false, HOST, 1),
            ("ClusterFirst", true, false, HOST, 0),
        ];
        for (policy, host_network, cluster, expected, warned) in cases {
            let dns = if cluster { vec!["10.96.0.10"] } else { vec![] };
            let (got, warnings) =
                pod_dns(&pod(policy, host_network), &settings(&dns), &[], &host());
            assert_eq!(show(&got), expected, "{policy} {host_network} {cluster}");
            assert_eq!(warnings.len(), warned, "{policy} {host_network} {cluster}");
        }
    }

    #[test]
    fn own_settings_are_merged_in() {
        let mut p = pod("Default", false);
        p.spec.as_mut().unwrap().dns_config = Some(PodDNSConfig {
            nameservers: Some(vec!["2.2.2.2".into(), "3.3.3.3".into()]),
            searches: Some(vec!["a.example".into()]),
            options: Some(vec![
                PodDNSConfigOption {
                    name: Some("ndots".into()),
                    value: Some("1".into()),
                },
                PodDNSConfigOption {
                    name: Some("edns0".into()),
                    value: None,
                },
            ]),
        });
        let (got, warnings) = pod_dns(&p, &settings(&[]), &[], &host());
        assert_eq!(
            show(&got),
            "1.1.1.1 2.2.2.2 3.3.3.3 | corp.example a.example | ndots:1 rotate edns0"
        );
        assert_eq!(warnings, []);
    }

    #[test]
    fn limits_are_kept_and_told() {
        let mut wide = host();
        wide.nameservers = (1..=5).map(|i| format!("{i}.{i}.{i}.{i}")).collect();
        wide.searches = (0..40).map(|i| format!("s{i}")).collect();
        let (got, warnings) = pod_dns(&pod("Default", false), &settings(&[]), &[], &wide);
        assert_eq!((got.servers.len(), got.searches.len()), (3, 32));
        assert_eq!(warnings.len(), 2);

        wide.searches = (0..20)
            .map(|i| format!("{i:02}{}", "x".repeat(198)))
            .collect();
        let (got, _) = pod_dns(&pod("Default", false), &settings(&[]), &[], &wide);
        assert_eq!(got.searches.len(), 10);
    }

    #[test]
    fn a_node_whose_own_file_is_too_much_is_told_of() {
        let told = |searches: Vec<String>, domain: &str| {
            let host = ResolvConf {
                searches,
                ..ResolvConf::default()
            };
            beyond_limits(Path::new("/r"), &host, domain)
        };
        let many = |count: usize, length: usize| vec!["x".repeat(length); count];
        assert_eq!(told(many(29, 5), "c"), None);
        assert_eq!(told(many(32, 5), ""), None);
        assert_eq!(
            told(many(30, 5), "c").unwrap(),
            "Resolv.conf file '/r' contains search line consisting of more than 29 domains!"
        );
        assert_eq!(
            told(many(1, 254), "c").unwrap(),
            "Resolv.conf file \"/r\" contains a search path which length is more than allowed 253 chars!"
        );
        assert_eq!(
            told(many(9, 253), "c").unwrap(),
            "Resolv.conf file '/r' contains search line which length is more than allowed 2048 chars!"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever the file says, pods get no more than fits, and all of it comes from the file.
        #[test]
        fn any_file_is_read_and_made_to_fit(text in "((nameserver|search|options|#|;)?[ \t]?[a-z.:0-9 \t]{0,40}\n|\\PC{0,12}){0,60}") {
            if let Ok(host) = parse_resolv_conf(&text) {
                for word in host.nameservers.iter().chain(&host.searches).chain(&host.options) {
                    prop_assert!(text.contains(word.as_str()), "{word}");
                }
                let (got, _) = pod_dns(&pod("Default", false), &settings(&[]), &[], &host);
                prop_assert!(got.servers.len() <= MAX_NAMESERVERS);
                prop_assert!(got.searches.len() <= MAX_SEARCHES);
                prop_assert!(got.searches.join(" ").len() <= MAX_SEARCH_CHARS);
            }
        }

        /// What was read and is written again reads as the same.
        #[test]
        fn a_file_written_again_reads_the_same(
            nameservers in prop::collection::vec("[0-9a-f:.]{1,12}", 0..5),
            searches in prop::collection::vec("[a-z]{1,8}(\\.[a-z]{1,8}){0,2}", 0..6),
            options in prop::collection::btree_map("[a-z]{1,6}", "(:[0-9]{1,2})?", 0..4),
        ) {
            let options: Vec<String> = options.into_iter().map(|(k, v)| k + &v).collect();
            let mut text = String::new();
            for server in &nameservers {
                text += &format!("nameserver {server}\n");
            }
            text += &format!("search {}\noptions {}\n", searches.join(" "), options.join(" "));
            prop_assert_eq!(parse_resolv_conf(&text), Ok(ResolvConf { nameservers, searches, options }));
        }
    }

    #[test]
    fn without_a_resolver_file_lookups_stay_local() {
        let no_file = DnsSettings::default();
        let ips = ["10.0.0.1".to_string(), "fd00::1".to_string()];
        let (got, _) = pod_dns(
            &pod("Default", false),
            &no_file,
            &ips,
            &ResolvConf::default(),
        );
        assert_eq!(show(&got), "127.0.0.1 ::1 | . | ");
    }
}
