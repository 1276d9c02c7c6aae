//! Ports, TLS and access rules.

use super::Checks;
use crate::KUBERNETES_VERSION;
use crate::gates::{FeatureGates, Gate};
use crate::types::KubeletConfiguration;

const TLS_VERSIONS: &[&str] = &[
    "VersionTLS10",
    "VersionTLS11",
    "VersionTLS12",
    "VersionTLS13",
];

/// Suites whose names are accepted and that TLS here can speak.
const CIPHERS: &[&str] = &[
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];

/// Suites whose names are accepted although nothing here speaks them any more.
const OLD_CIPHERS: &[&str] = &[
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

pub(super) fn check(config: &KubeletConfiguration, gates: &FeatureGates, checks: &mut Checks) {
    let server = &config.server;
    checks.between("port", server.port.into(), 1, 65535);
    checks.between("readOnlyPort", server.read_only_port.into(), 0, 65535);
    checks.between("healthzPort", server.healthz_port.into(), 0, 65535);
    checks.require(
        !server.enable_system_log_query || gates.enabled(Gate::NodeLogQuery),
        "enableSystemLogQuery",
        || "needs the feature gate NodeLogQuery".to_owned(),
    );
    checks.require(
        !server.enable_system_log_query || server.enable_system_log_handler,
        "enableSystemLogQuery",
        || "needs enableSystemLogHandler".to_owned(),
    );
    check_metrics_version(&server.show_hidden_metrics_for_version, checks);
    check_security(config, gates, checks);
}

/// Only metrics hidden by the version before this one can be shown again.
fn check_metrics_version(version: &str, checks: &mut Checks) {
    let mut parts = KUBERNETES_VERSION.trim_start_matches('v').split('.');
    let major = parts.next().unwrap_or_default();
    let minor: u32 = parts.next().and_then(|p| p.parse().ok()).unwrap_or(1);
    let previous = format!("{major}.{}", minor - 1);
    checks.require(
        version.is_empty() || version == previous,
        "showHiddenMetricsForVersion",
        || format!("{version:?} must be left out or be {previous:?}, the previous minor version"),
    );
}

fn check_security(config: &KubeletConfiguration, gates: &FeatureGates, checks: &mut Checks) {
    let security = &config.security;
    checks.one_of(
        "authorization.mode",
        &security.authorization.mode,
        &["AlwaysAllow", "Webhook"],
    );
    checks.require(
        !security.server_tls_bootstrap || gates.enabled(Gate::RotateKubeletServerCertificate),
        "serverTLSBootstrap",
        || "needs the feature gate RotateKubeletServerCertificate".to_owned(),
    );
    if !security.tls_min_version.is_empty() {
        checks.one_of("tlsMinVersion", &security.tls_min_version, TLS_VERSIONS);
    }
    for (index, suite) in security.tls_cipher_suites.iter().enumerate() {
        let known = CIPHERS.contains(&suite.as_str()) || OLD_CIPHERS.contains(&suite.as_str());
        checks.require(known, &format!("tlsCipherSuites[{index}]"), || {
            format!("{suite:?} is not a known cipher suite")
        });
    }
    let curves = &security.tls_curve_preferences;
    for (index, curve) in curves.iter().enumerate() {
        let field = format!("tlsCurvePreferences[{index}]");
        checks.between(&field, (*curve).into(), 1, 65535);
        let repeated = curves.iter().take(index).any(|earlier| earlier == curve);
        checks.require(!repeated, &field, || format!("{curve} is listed twice"));
    }
}

pub(super) fn notes(config: &KubeletConfiguration) -> Vec<String> {
    config
        .security
        .tls_cipher_suites
        .iter()
        .filter(|suite| OLD_CIPHERS.contains(&suite.as_str()))
        .map(|suite| format!("cipher suite {suite} is insecure and never offered"))
        .collect()
}
