//! Flags of the servers, their certificates and who may use them.

use super::Flag;
use super::Slot::{Bool, Duration, Int32, Ip, List, Text};

pub(super) const FLAGS: &[Flag] = &[
    Flag::of_field(
        "enable-server",
        "enableServer",
        Bool(|s| &mut s.config.server.enable_server),
        "Serve the HTTPS API at all.",
    ),
    Flag::of_field(
        "address",
        "address",
        Ip(|s| &mut s.config.server.address),
        "Address of the HTTPS API; 0.0.0.0 or :: for all.",
    ),
    Flag::of_field(
        "port",
        "port",
        Int32(|s| &mut s.config.server.port),
        "Port of the HTTPS API.",
    ),
    Flag::of_field(
        "read-only-port",
        "readOnlyPort",
        Int32(|s| &mut s.config.server.read_only_port),
        "Port of the read-only API without authentication; 0 turns it off.",
    ),
    Flag::of_field(
        "healthz-port",
        "healthzPort",
        Int32(|s| &mut s.config.server.healthz_port),
        "Port of the plain /healthz endpoint; 0 turns it off.",
    ),
    Flag::of_field(
        "healthz-bind-address",
        "healthzBindAddress",
        Ip(|s| &mut s.config.server.healthz_bind_address),
        "Address of the plain /healthz endpoint.",
    ),
    Flag::of_field(
        "streaming-connection-idle-timeout",
        "streamingConnectionIdleTimeout",
        Duration(|s| &mut s.config.server.streaming_connection_idle_timeout),
        "Close an exec, attach or port-forward stream after this long without traffic; 0 never does.",
    ),
    Flag::of_field(
        "enable-debugging-handlers",
        "enableDebuggingHandlers",
        Bool(|s| &mut s.config.server.enable_debugging_handlers),
        "Serve logs, exec, attach, port-forward and the other debugging paths.",
    ),
    Flag::of_field(
        "contention-profiling",
        "enableContentionProfiling",
        Bool(|s| &mut s.config.server.enable_contention_profiling),
        "Collect lock-contention profiles, when profiling is served.",
    ),
    Flag::of_field(
        "anonymous-auth",
        "authentication.anonymous.enabled",
        Bool(|s| &mut s.config.security.authentication.anonymous.enabled),
        "Treat requests that prove nothing as user system:anonymous.",
    ),
    Flag::of_field(
        "authentication-token-webhook",
        "authentication.webhook.enabled",
        Bool(|s| &mut s.config.security.authentication.webhook.enabled),
        "Check bearer tokens with the TokenReview API.",
    ),
    Flag::of_field(
        "authentication-token-webhook-cache-ttl",
        "authentication.webhook.cacheTTL",
        Duration(|s| &mut s.config.security.authentication.webhook.cache_ttl),
        "How long an answer about a token is kept.",
    ),
    Flag::of_field(
        "client-ca-file",
        "authentication.x509.clientCAFile",
        Text(|s| &mut s.config.security.authentication.x509.client_ca_file),
        "Accept client certificates signed by an authority in this file.",
    ),
    Flag::of_field(
        "authorization-mode",
        "authorization.mode",
        Text(|s| &mut s.config.security.authorization.mode),
        "AlwaysAllow, or Webhook to ask the API server.",
    ),
    Flag::of_field(
        "authorization-webhook-cache-authorized-ttl",
        "authorization.webhook.cacheAuthorizedTTL",
        Duration(|s| &mut s.config.security.authorization.webhook.cache_authorized_ttl),
        "How long a yes of the API server is kept.",
    ),
    Flag::of_field(
        "authorization-webhook-cache-unauthorized-ttl",
        "authorization.webhook.cacheUnauthorizedTTL",
        Duration(|s| {
            &mut s
                .config
                .security
                .authorization
                .webhook
                .cache_unauthorized_ttl
        }),
        "How long a no of the API server is kept.",
    ),
    Flag::of_field(
        "tls-cert-file",
        "tlsCertFile",
        Text(|s| &mut s.config.security.tls_cert_file),
        "Serving certificate, with any intermediates after it; without it a self-signed one is made in --cert-dir.",
    ),
    Flag::of_field(
        "tls-private-key-file",
        "tlsPrivateKeyFile",
        Text(|s| &mut s.config.security.tls_private_key_file),
        "Private key of the serving certificate.",
    ),
    Flag::of_field(
        "tls-cipher-suites",
        "tlsCipherSuites",
        List(|s| &mut s.config.security.tls_cipher_suites),
        "Cipher suites of the HTTPS API, by their IANA names.",
    ),
    Flag::of_field(
        "tls-min-version",
        "tlsMinVersion",
        Text(|s| &mut s.config.security.tls_min_version),
        "Lowest TLS version accepted: VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13.",
    ),
    Flag::of_field(
        "rotate-certificates",
        "rotateCertificates",
        Bool(|s| &mut s.config.security.rotate_certificates),
        "Renew the client certificate before it expires.",
    ),
    Flag::of_field(
        "rotate-server-certificates",
        "serverTLSBootstrap",
        Bool(|s| &mut s.config.security.server_tls_bootstrap),
        "Ask the API server for the serving certificate, and renew it.",
    ),
];
