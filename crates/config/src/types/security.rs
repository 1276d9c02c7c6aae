//! TLS, authentication and authorization of the HTTPS API.

use crate::decode::section;
use crate::duration::Duration;

section! {
    /// Certificates and access rules.
    pub struct Security {
        /// Serving certificate, with any intermediates after it.
        tls_cert_file: String = "tlsCertFile";
        /// Private key of the serving certificate.
        tls_private_key_file: String = "tlsPrivateKeyFile";
        /// Cipher suites of the HTTPS API, by their IANA names; TLS 1.3 suites are always on.
        tls_cipher_suites: Vec<String> = "tlsCipherSuites";
        /// Key-exchange groups of the HTTPS API, by their IANA numbers.
        tls_curve_preferences: Vec<i32> = "tlsCurvePreferences";
        /// Lowest TLS version accepted: VersionTLS10 to VersionTLS13; empty is VersionTLS12.
        tls_min_version: String = "tlsMinVersion";
        /// Renew the client certificate before it expires.
        rotate_certificates: bool = "rotateCertificates";
        /// Ask the API server for the serving certificate, and renew it.
        server_tls_bootstrap: bool = "serverTLSBootstrap";
        /// Who may talk to the HTTPS API.
        authentication: Authentication = "authentication";
        /// What they may do.
        authorization: Authorization = "authorization";
    }
}

section! {
    /// Ways to prove who is asking.
    pub struct Authentication {
        /// By client certificate.
        x509: X509Authentication = "x509";
        /// By bearer token, through the TokenReview API.
        webhook: WebhookAuthentication = "webhook";
        /// Not at all.
        anonymous: AnonymousAuthentication = "anonymous";
    }
}

section! {
    /// Client certificates.
    pub struct X509Authentication {
        /// Certificates signed by an authority in this file are accepted.
        client_ca_file: String = "clientCAFile";
    }
}

section! {
    /// Bearer tokens.
    pub struct WebhookAuthentication {
        /// Accept bearer tokens.
        enabled: bool = "enabled" absent(true);
        /// How long an answer about a token is kept.
        cache_ttl: Duration = "cacheTTL" empty(Duration::from_mins(2));
    }
}

section! {
    /// Requests without proof.
    pub struct AnonymousAuthentication {
        /// Treat requests no other way accepted as user system:anonymous.
        enabled: bool = "enabled" absent(false);
    }
}

section! {
    /// Decisions about authenticated requests.
    pub struct Authorization {
        /// AlwaysAllow, or Webhook to ask the API server.
        mode: String = "mode" empty("Webhook".to_owned());
        /// Caching of the API server's answers.
        webhook: WebhookAuthorization = "webhook";
    }
}

section! {
    /// How long answers are kept.
    pub struct WebhookAuthorization {
        /// How long a yes is kept.
        cache_authorized_ttl: Duration = "cacheAuthorizedTTL" empty(Duration::from_mins(5));
        /// How long a no is kept.
        cache_unauthorized_ttl: Duration = "cacheUnauthorizedTTL" empty(Duration::from_secs(30));
    }
}
