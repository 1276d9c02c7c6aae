//! Which of a pod's addresses its containers are told.

/// The first address of the node's family, then the first of the other.
pub(super) fn family_ordered(pod_ips: &[String], host_ips: &[String]) -> Vec<String> {
    let v6 = host_ips.first().is_some_and(|ip| ip.contains(':'));
    let of = |v6: bool| pod_ips.iter().find(move |ip| ip.contains(':') == v6);
    of(v6).into_iter().chain(of(!v6)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_the_nodes_family() {
        let pod = [
            "fd00::5".to_string(),
            "10.0.0.5".to_string(),
            "10.0.0.6".to_string(),
        ];
        let v4 = ["192.0.2.1".to_string()];
        let v6 = ["2001:db8::1".to_string()];
        assert_eq!(family_ordered(&pod, &v4), ["10.0.0.5", "fd00::5"]);
        assert_eq!(family_ordered(&pod, &v6), ["fd00::5", "10.0.0.5"]);
        assert_eq!(family_ordered(&[], &v4), [""; 0]);
    }
}
