use std::collections::BTreeMap;

use krablet_metrics::exposition::{Family, parse};

use super::*;
use crate::resource_metrics;
use crate::testing::{NOW, snapshot};

/// The page without the moments, each of which has to be the reading's.
fn families(text: &str) -> BTreeMap<String, Family> {
    let mut plain = String::new();
    let moment = format!(" {}", NOW * 1000);
    for line in text.lines() {
        plain.push_str(line.strip_suffix(&moment).unwrap_or(line));
        plain.push('\n');
    }
    parse(&plain).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn value(families: &BTreeMap<String, Family>, name: &str, id: &str) -> Option<f64> {
    let mut samples = families.get(name)?.samples.iter();
    let sample = samples.find(|s| s.label("id") == Some(id));
    sample.map(|s| s.value)
}

#[test]
fn containers_have_their_labels() {
    let all = families(&cadvisor_metrics(Some(&snapshot())).collect::<String>());
    let usage = &all["container_cpu_usage_seconds_total"];
    assert_eq!(usage.kind, "counter");
    let of = |id: &str| {
        let mut samples = usage.samples.iter();
        let sample = samples.find(|s| s.label("id") == Some(id)).unwrap();
        let names = ["container", "image", "name", "namespace", "pod", "cpu"];
        let labels = names.map(|name| sample.label(name).unwrap());
        format!("{} {}", labels.join("|"), sample.value)
    };
    assert_eq!(of("/"), "|||||total 9");
    assert_eq!(of("/kubepods"), "|||||total 4");
    assert_eq!(of("/kubepods/podu1"), "|||default|web|total 3");
    assert_eq!(
        of("/kubepods/podu1/s1"),
        "|pause:3|s1|default|web|total 0.5"
    );
    assert_eq!(
        of("/kubepods/podu1/c1"),
        "main|busybox:1|c1|default|web|total 2.5"
    );
}

#[test]
fn every_series_once_and_with_its_value() {
    let all = families(&cadvisor_metrics(Some(&snapshot())).collect::<String>());
    let of = |name: &str| value(&all, name, "/kubepods/podu1/c1").unwrap();
    for (name, expected) in [
        ("container_memory_working_set_bytes", 2000.0),
        ("container_memory_usage_bytes", 3000.0),
        ("container_memory_failures_total", 7.0),
        ("container_spec_memory_limit_bytes", 10_000.0),
        ("container_spec_cpu_quota", 20_000.0),
        ("container_cpu_cfs_throttled_seconds_total", 0.005),
        ("container_processes", 2.0),
        ("container_threads", 5.0),
        ("container_sockets", 3.0),
        ("container_ulimits_soft", 1024.0),
        ("container_fs_usage_bytes", 8192.0),
        ("container_fs_reads_bytes_total", 4096.0),
        ("container_fs_io_cost_usage_seconds_total", 2.5),
        ("container_pressure_cpu_waiting_seconds_total", 2.0),
        ("container_start_time_seconds", (NOW - 50) as f64),
        ("container_last_seen", NOW as f64),
    ] {
        assert_eq!(of(name), expected, "{name}");
    }
    let sandbox = "/kubepods/podu1/s1";
    let received = value(&all, "container_network_receive_bytes_total", sandbox);
    assert_eq!(received, Some(100.0));
    // Traffic is the pod's and counted once.
    assert_eq!(
        all["container_network_receive_bytes_total"].samples.len(),
        1
    );
    let device = all["container_fs_reads_total"].samples[0].label("device");
    assert_eq!(device, Some("/dev/vda"));
    assert_eq!(all["machine_cpu_cores"].samples[0].value, 2.0);
    assert_eq!(all["container_scrape_error"].samples[0].value, 0.0);
    assert!(!all.contains_key("container_pressure_memory_waiting_seconds_total"));
}

#[test]
fn without_a_quota_nothing_is_throttled() {
    let mut read = snapshot();
    let cgroup = &mut read.pods[0].containers[0].cgroup;
    cgroup.cpu.as_mut().unwrap().quota = None;
    let all = families(&cadvisor_metrics(Some(&read)).collect::<String>());
    let id = "/kubepods/podu1/c1";
    assert_eq!(value(&all, "container_cpu_cfs_periods_total", id), None);
    assert_eq!(value(&all, "container_spec_cpu_quota", id), None);
    assert!(value(&all, "container_spec_cpu_period", id).is_some());
}

#[test]
fn the_page_of_resources() {
    let text = resource_metrics(Some(&snapshot()));
    let expected = [
        "node_cpu_usage_seconds_total 9 1700000000000",
        "node_memory_working_set_bytes 2000 1700000000000",
        "node_swap_usage_bytes 64 1700000000000",
        r#"container_cpu_usage_seconds_total{container="main",namespace="default",pod="web"} 2.5 1700000000000"#,
        r#"container_memory_working_set_bytes{container="main",namespace="default",pod="web"} 2000 1700000000000"#,
        r#"container_swap_usage_bytes{container="main",namespace="default",pod="web"} 64 1700000000000"#,
        r#"container_swap_limit_bytes{container="main",namespace="default",pod="web"} 100 1700000000000"#,
        r#"container_start_time_seconds{container="main",namespace="default",pod="web"} 1699999950"#,
        r#"pod_cpu_usage_seconds_total{namespace="default",pod="web"} 3 1700000000000"#,
        r#"pod_memory_working_set_bytes{namespace="default",pod="web"} 2000 1700000000000"#,
        r#"pod_swap_usage_bytes{namespace="default",pod="web"} 64 1700000000000"#,
        "resource_scrape_error 0",
        "scrape_error 0",
    ];
    let samples: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
    for line in expected {
        assert!(samples.contains(&line), "{line}\n{text}");
    }
    assert_eq!(samples.len(), expected.len());
    families(&text);
}

#[test]
fn pages_of_a_failure_say_so() {
    let all = families(&cadvisor_metrics(None).collect::<String>());
    assert_eq!(all["container_scrape_error"].samples[0].value, 1.0);
    let all = families(&resource_metrics(None));
    assert_eq!(all["resource_scrape_error"].samples[0].value, 1.0);
}
