use std::path::Path;

use krablet_linux::fake::FixedClock;

use super::*;

fn of(user: &str) -> Result<Credentials, KubeconfigError> {
    let text = format!(
        "current-context: x\nclusters: [{{name: c, cluster: {{server: a}}}}]\n\
         users: [{{name: u, user: {user}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n"
    );
    let config = Kubeconfig::parse(Path::new("/k/config"), text.as_bytes())?;
    Credentials::of(&config, Arc::new(FixedClock::default()))
}

fn pair() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(Vec::new()).unwrap();
    let pem = |label: &str, der: &[u8]| {
        let text = STANDARD.encode(der);
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
    };
    let key = made.signing_key.serialized_der();
    (pem("CERTIFICATE", made.cert.der()), pem("PRIVATE KEY", key))
}

#[test]
fn pairs_that_fit_and_pairs_that_do_not() {
    let (a, b) = (pair(), pair());
    assert!(load_identity(a.0.as_bytes(), a.1.as_bytes()).is_ok());
    let both = format!("{}{}", a.1, a.0);
    assert!(load_identity(both.as_bytes(), both.as_bytes()).is_ok());
    let cases = [
        (
            &a.0,
            &b.1,
            "the client key does not belong to the client certificate",
        ),
        (&a.1, &a.1, "there is no certificate in the PEM text"),
    ];
    for (certificate, key, expected) in cases {
        let error = load_identity(certificate.as_bytes(), key.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    let no_key = load_identity(a.0.as_bytes(), a.0.as_bytes()).unwrap_err();
    assert!(
        no_key
            .to_string()
            .starts_with("cannot read the client key: ")
    );
}

#[test]
fn complaints_name_the_field() {
    let (a, b) = (pair(), pair());
    let data = |pem: &str| STANDARD.encode(pem);
    let mismatch = format!(
        "{{client-certificate-data: {}, client-key-data: {}}}",
        data(&a.0),
        data(&b.1)
    );
    let cases = [
        (
            "{client-certificate: a.pem, client-key: a.pem}".to_owned(),
            "users[0].user.client-certificate: cannot read /k/a.pem: No such file or directory (os error 2)",
        ),
        (
            mismatch,
            "users[0].user.client-certificate: the client key does not belong to the client certificate",
        ),
        (
            "{token: \"a\\u0007b\"}".to_owned(),
            "users[0].user.token: holds characters no header can carry",
        ),
    ];
    for (user, expected) in cases {
        let error = of(&user).unwrap_err().to_string();
        assert_eq!(error, format!("/k/config: {expected}"));
    }
}

#[tokio::test]
async fn what_is_said_goes_before_the_plugin() {
    let exec = "exec: {command: x, apiVersion: client.authentication.k8s.io/v1beta1}";
    let with_token = of(&format!("{{token: a, {exec}}}")).unwrap();
    assert!(with_token.exec.is_none());
    assert!(of(&format!("{{{exec}}}")).unwrap().exec.is_some());
    let presented = with_token.present().await.unwrap();
    let header = presented.authorization.unwrap();
    assert!(header.is_sensitive() && header == "Bearer a");
    assert!(!format!("{with_token:?}").contains("Bearer"));
}
