//! Which credentials are tried for an image, and in which order.

use std::collections::BTreeMap;

use krablet_pod::hash::go_json_string;
use sha2::{Digest, Sha256};

use crate::docker_config::{DockerConfig, Login};
use crate::hidden::Hidden;
use crate::location::Location;

/// What a registry of no name is called in files of credentials.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// Which object of the cluster credentials came from. Without one, all pods of the node may use them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Secret(Coordinates),
    ServiceAccount(Coordinates),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Coordinates {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// One way to make oneself known to a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    pub username: Hidden,
    pub password: Hidden,
    pub source: Option<Source>,
    /// Of user, password and mail, as the kubelet hashes them: what was pulled with these credentials may
    /// be used by whoever has the same.
    pub hash: String,
}

impl Credential {
    fn new(login: &Login, source: Option<&Source>) -> Self {
        Self {
            username: login.username.clone(),
            password: login.password.clone(),
            source: source.cloned(),
            hash: hash(login),
        }
    }
}

fn hash(login: &Login) -> String {
    let fields = [
        ("username", &login.username),
        ("password", &login.password),
        ("email", &login.email),
    ];
    let set = fields
        .iter()
        .filter(|(_, value)| !value.expose().is_empty());
    let json = set.map(|(name, value)| format!("\"{name}\":{}", go_json_string(value.expose())));
    let json = format!("{{{}}}", json.collect::<Vec<_>>().join(","));
    hex(&Sha256::digest(json))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Credentials by the place they are for.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    places: BTreeMap<String, (Location, Vec<Credential>)>,
}

impl Keyring {
    /// Adds what a file or a secret holds; places that cannot be read are left out.
    pub fn add(&mut self, source: Option<&Source>, config: &DockerConfig) {
        for (place, login) in config {
            let Some(location) = normal_place(place) else {
                tracing::error!(place, "Entry in dockercfg invalid, ignoring");
                continue;
            };
            let key = format!("{}{}", location.authority, location.path);
            let (_, credentials) = self.places.entry(key).or_insert((location, Vec::new()));
            credentials.push(Credential::new(login, source));
        }
    }

    /// Credentials for a repository; those of longer places come first.
    pub fn lookup(&self, repository: &str) -> Vec<Credential> {
        let Ok(target) = Location::parse(repository) else {
            return Vec::new();
        };
        let meant = self.places.values().rev();
        let meant = meant.filter(|(place, _)| place.means(&target));
        let found: Vec<Credential> = meant.flat_map(|(_, c)| c.iter().cloned()).collect();
        if found.is_empty()
            && is_default_registry(repository)
            && let Some((_, credentials)) = self.places.get(DEFAULT_REGISTRY)
        {
            return credentials.clone();
        }
        found
    }
}

/// `https://host/v1/`, `https://host/v2/` and `host` are all the same place.
fn normal_place(place: &str) -> Option<Location> {
    let schemeless = ["https://", "http://"]
        .iter()
        .find_map(|scheme| place.strip_prefix(scheme))
        .unwrap_or(place);
    let mut location = Location::parse(schemeless).ok()?;
    if location.path.starts_with("/v1/") || location.path.starts_with("/v2/") {
        location.path.drain(..3);
    }
    if location.path == "/" {
        location.path.clear();
    }
    Some(location)
}

fn is_default_registry(repository: &str) -> bool {
    match repository.split_once('/') {
        None => !repository.is_empty(),
        Some((first, _)) => {
            matches!(first, "docker.io" | "index.docker.io")
                || (!first.is_empty() && !first.contains(['.', ':']))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docker_config::read_dockercfg;

    /// A ring where each place's user is the place itself.
    fn ring(places: &[&str]) -> Keyring {
        let mut ring = Keyring::default();
        for place in places {
            let entry = serde_json::json!({*place: {"username": place, "password": "p"}});
            let config = read_dockercfg(entry.to_string().as_bytes()).unwrap();
            ring.add(None, &config);
        }
        ring
    }

    #[test]
    fn whose_credentials_are_tried() {
        let places = [
            "r.io",
            "r.io/team",
            "https://r.io/v2/team/app",
            "*.r.io",
            "https://index.docker.io/v1/",
            "http://plain.io:5000/v1/",
            "bad host",
        ];
        let cases: [(&str, &[&str]); 8] = [
            ("r.io/x", &["r.io"]),
            ("r.io/team/x", &["r.io/team", "r.io"]),
            (
                "r.io/team/app",
                &["https://r.io/v2/team/app", "r.io/team", "r.io"],
            ),
            ("a.r.io/x", &["*.r.io"]),
            (
                "docker.io/library/busybox",
                &["https://index.docker.io/v1/"],
            ),
            ("plain.io:5000/x", &["http://plain.io:5000/v1/"]),
            ("plain.io/x", &[]),
            ("other.io/x", &[]),
        ];
        let ring = ring(&places);
        for (repository, expected) in cases {
            let found = ring.lookup(repository);
            let users: Vec<&str> = found.iter().map(|c| c.username.expose()).collect();
            assert_eq!(users, expected, "{repository}");
        }
    }

    #[test]
    fn several_logins_of_one_place_keep_their_order() {
        let ring = ring(&["r.io", "https://r.io", "r.io/v1/"]);
        let found = ring.lookup("r.io/a");
        let users: Vec<&str> = found.iter().map(|c| c.username.expose()).collect();
        assert_eq!(users, ["r.io", "https://r.io", "r.io/v1/"]);
    }

    /// From the kubelet's own JSON: a record written by one is read by the other.
    #[test]
    fn hashes_are_the_kubelets() {
        let login = |user: &str, password: &str| Login {
            username: Hidden::new(user),
            password: Hidden::new(password),
            email: Hidden::default(),
        };
        let of = |json: &str| hex(&Sha256::digest(json));
        assert_eq!(
            hash(&login("u", "p")),
            of(r#"{"username":"u","password":"p"}"#)
        );
        assert_eq!(hash(&login("", "a<b")), of(r#"{"password":"a\u003cb"}"#));
        assert_eq!(hash(&Login::default()), of("{}"));
    }

    #[test]
    fn credentials_are_not_printed() {
        let mut ring = Keyring::default();
        let config = read_dockercfg(br#"{"r.io": {"username": "anna", "password": "geheim"}}"#);
        let source = Source::Secret(Coordinates::default());
        ring.add(Some(&source), &config.unwrap());
        let printed = format!("{ring:?} {:?}", ring.lookup("r.io/a"));
        assert!(
            !printed.contains("geheim") && !printed.contains("anna"),
            "{printed}"
        );
    }
}
