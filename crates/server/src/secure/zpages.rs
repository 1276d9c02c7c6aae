//! `/flagz` and `/statusz`: what the agent was started with, and since when it runs. Text for people; objects for who
//! asks for them by kind.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{SharedDoor, all_paths};
use crate::answers::{not_found, refuse};

const COMPONENT: &str = "kubelet";
const CAUTION: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.";
const GROUP: &str = "config.k8s.io";

/// What the two pages tell.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Command-line flags with their values; `None` with the gate `ComponentFlagz` off.
    pub flags: Option<BTreeMap<String, String>>,
    /// `None` with the gate `ComponentStatusz` off.
    pub status: Option<Version>,
}

#[derive(Clone, Debug, Default)]
pub struct Version {
    pub started: Timestamp,
    /// As `1.36.4`.
    pub binary: String,
    /// As `1.36`.
    pub emulated: String,
}

pub(super) async fn flagz(State(door): State<SharedDoor>, asked: HeaderMap) -> Response {
    let Some(flags) = &door.parts.about.flags else {
        return not_found().await;
    };
    match form("Flagz", &asked) {
        Form::Text => text(flags_text(flags)),
        Form::Object(version) => object(version, "Flagz", json!({"flags": flags})),
        Form::Unknown => unknown(),
    }
}

pub(super) async fn statusz(State(door): State<SharedDoor>, asked: HeaderMap) -> Response {
    let Some(status) = &door.parts.about.status else {
        return not_found().await;
    };
    let (now, paths) = (door.parts.view.now(), folders(all_paths()));
    match form("Statusz", &asked) {
        Form::Text => text(status_text(status, now, &paths)),
        Form::Object(version) => object(version, "Statusz", status_object(status, now, &paths)),
        Form::Unknown => unknown(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    /// In this version of the API.
    Object(&'static str),
    Unknown,
}

/// The first form in the list of what the client takes that there is.
fn form(kind: &str, asked: &HeaderMap) -> Form {
    let accepted = asked.get(header::ACCEPT).and_then(|v| v.to_str().ok());
    let accepted = accepted.unwrap_or_default().trim();
    if accepted.is_empty() {
        return Form::Text;
    }
    let mut forms = accepted.split(',').map(|media| one_form(kind, media));
    let known = forms.find(|form| *form != Form::Unknown);
    known.unwrap_or(Form::Unknown)
}

fn one_form(kind: &str, media: &str) -> Form {
    let mut words = media.split(';').map(str::trim);
    let media = words.next().unwrap_or_default();
    let parameters: BTreeMap<&str, &str> = words.filter_map(|w| w.split_once('=')).collect();
    let is = |name: &str, value: &str| parameters.get(name) == Some(&value);
    match media {
        "text/plain" | "text/*" | "*/*" if !parameters.contains_key("as") => Form::Text,
        "application/json" if is("as", kind) && is("g", GROUP) => match parameters.get("v") {
            Some(&"v1beta1") => Form::Object("v1beta1"),
            Some(&"v1alpha1") => Form::Object("v1alpha1"),
            _ => Form::Unknown,
        },
        _ => Form::Unknown,
    }
}

fn text(words: String) -> Response {
    let plain = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    (plain, words).into_response()
}

fn object(version: &str, kind: &str, content: Value) -> Response {
    let mut object = json!({
        "kind": kind,
        "apiVersion": format!("{GROUP}/{version}"),
        "metadata": {"name": COMPONENT},
    });
    if let (Some(object), Value::Object(content)) = (object.as_object_mut(), content) {
        object.extend(content);
    }
    axum::Json(object).into_response()
}

fn unknown() -> Response {
    let why = "only text/plain, and application/json with g, v and as of the kind, are told\n";
    refuse(StatusCode::NOT_ACCEPTABLE, why)
}

fn flags_text(flags: &BTreeMap<String, String>) -> String {
    let lines = flags
        .iter()
        .map(|(name, value)| format!("{name}={value}\n"));
    let lines: String = lines.collect();
    format!("\n{COMPONENT} flagz\n{CAUTION}\n{lines}")
}

fn status_text(status: &Version, now: Timestamp, paths: &[String]) -> String {
    let started = status.started.strftime("%a %b %e %H:%M:%S UTC %Y");
    let up = uptime(status, now);
    let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
    let Version {
        binary, emulated, ..
    } = status;
    format!(
        "\n{COMPONENT} statusz\n{CAUTION}\n\n\
         Started: {started}\n\
         Up: {hours} hr {minutes:02} min {seconds:02} sec\n\
         Go version: none\n\
         Binary version: {binary}\n\
         Emulation version: {emulated}\n\
         Paths: {}\n",
        paths.join(" ")
    )
}

fn status_object(status: &Version, now: Timestamp, paths: &[String]) -> Value {
    json!({
        "startTime": status.started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "uptimeSeconds": uptime(status, now),
        "goVersion": "",
        "binaryVersion": status.binary,
        "emulationVersion": status.emulated,
        "paths": paths,
    })
}

fn uptime(status: &Version, now: Timestamp) -> i64 {
    now.duration_since(status.started).as_secs().max(0)
}

/// The first parts of paths, each once, sorted.
fn folders<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let first = paths.filter_map(|path| path.split('/').nth(1).filter(|name| !name.is_empty()));
    let first: BTreeSet<String> = first.map(|name| format!("/{name}")).collect();
    first.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pages() {
        let flags = [("v", "2"), ("config", "/etc/kubelet.yaml")];
        let flags = flags.map(|(n, v)| (n.to_owned(), v.to_owned())).into();
        let page = flags_text(&flags);
        assert!(page.starts_with("\nkubelet flagz\nWarning: "));
        assert!(page.ends_with("only.\nconfig=/etc/kubelet.yaml\nv=2\n"));
        let status = Version {
            started: "2026-01-02T03:04:05Z".parse().unwrap(),
            binary: "1.36.4".into(),
            emulated: "1.36".into(),
        };
        let now = "2026-01-03T04:05:07Z".parse().unwrap();
        let paths = folders(["/metrics/slis", "/metrics", "/", "/configz"].into_iter());
        let page = status_text(&status, now, &paths);
        assert!(
            page.ends_with(
                "\n\nStarted: Fri Jan  2 03:04:05 UTC 2026\nUp: 25 hr 01 min 02 sec\nGo version: none\nBinary version: 1.36.4\nEmulation version: 1.36\nPaths: /configz /metrics\n"
            ),
            "{page}"
        );
        assert_eq!(
            status_object(&status, now, &paths),
            json!({"startTime": "2026-01-02T03:04:05Z", "uptimeSeconds": 90062, "goVersion": "", "binaryVersion": "1.36.4",
                   "emulationVersion": "1.36", "paths": ["/configz", "/metrics"]})
        );
    }

    #[test]
    fn forms() {
        let asked = |accept: &str| {
            let mut head = HeaderMap::new();
            head.insert(header::ACCEPT, accept.parse().unwrap());
            form("Flagz", &head)
        };
        assert_eq!(form("Flagz", &HeaderMap::new()), Form::Text);
        for (accept, expected) in [
            ("*/*", Form::Text),
            ("text/plain", Form::Text),
            (
                "application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
                Form::Object("v1beta1"),
            ),
            (
                "application/json; v=v1alpha1; g=config.k8s.io; as=Flagz, */*",
                Form::Object("v1alpha1"),
            ),
            (
                "application/json;v=v1beta1;g=config.k8s.io;as=Statusz",
                Form::Unknown,
            ),
            ("application/json, */*", Form::Text),
            ("application/json", Form::Unknown),
            ("application/yaml", Form::Unknown),
        ] {
            assert_eq!(asked(accept), expected, "{accept}");
        }
    }

    proptest! {
        #[test]
        fn any_accept_header_names_a_form_or_none(
            accept in "((application/json|text/plain|text/\\*|\\*/\\*|[a-z/*]{0,9})(; ?(v=v1beta1|v=v1alpha1|g=config\\.k8s\\.io|as=Flagz|as=[A-Z]?|q=0\\.[0-9]|[ -~]{0,4})){0,3}(, ?)?){0,3}",
        ) {
            let mut head = HeaderMap::new();
            let Ok(value) = accept.parse() else { return Ok(()); };
            head.insert(header::ACCEPT, value);
            match form("Flagz", &head) {
                Form::Object(version) => {
                    for word in ["application/json", "as=Flagz", "g=config.k8s.io", version] {
                        prop_assert!(accept.contains(word), "{word}");
                    }
                }
                Form::Text => prop_assert!(accept.trim().is_empty() || accept.contains("*/*") || accept.contains("text/")),
                Form::Unknown => prop_assert!(!accept.trim().is_empty()),
            }
        }
    }
}
