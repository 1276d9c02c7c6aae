//! Bytes to static pods: the document, its kind, its types, then defaults, identity, validation, references.

use krablet_pod::api::Pod;
use krablet_yaml::Document;
use serde_json::Value;

use crate::{Decoded, MAX_BYTES, MAX_WARNINGS, Origin, Place, References, Refusal, Warning};
use crate::{api_references, defaults, make_static, validate};

/// Decodes a manifest into the static pods of a node, defaulted, named and validated. One bad pod refuses the
/// whole list it is in. A file holds one pod; a URL may also serve a `PodList` or a `List` of pods.
///
/// # Errors
/// The first stage that fails says why; of validation, every problem is told.
pub fn decode(bytes: &[u8], origin: &Origin) -> Result<Decoded, Refusal> {
    if bytes.len() > MAX_BYTES {
        return Err(Refusal::TooLarge);
    }
    let mut warnings = Warnings::default();
    let document = first_document(bytes, &mut warnings)?;
    for duplicate in &document.duplicates {
        warnings.add(
            Some(duplicate.line),
            format!("duplicate field {:?}", duplicate.path),
        );
    }
    let pods = match kind(&document)? {
        "Pod" => vec![pod(
            &document,
            &document.value,
            None,
            origin,
            &mut warnings,
        )?],
        kind if matches!(origin.place, Place::File(_)) => {
            return Err(Refusal::NotAPod {
                line: document.nearest_line("kind"),
                message: format!("kind {kind}: a file holds a single Pod"),
            });
        }
        _ => list(&document, origin, &mut warnings)?,
    };
    Ok(Decoded {
        pods,
        warnings: warnings.0,
    })
}

#[derive(Default)]
struct Warnings(Vec<Warning>);

impl Warnings {
    fn add(&mut self, line: Option<usize>, message: String) {
        if self.0.len() < MAX_WARNINGS {
            self.0.push(Warning { line, message });
        }
    }
}

/// The first document with content. Upstream never looks at what follows it; here that is worth a warning.
fn first_document(bytes: &[u8], warnings: &mut Warnings) -> Result<Document, Refusal> {
    let mut documents = krablet_yaml::parse_documents(bytes)?
        .into_iter()
        .filter(|document| !document.value.is_null());
    let first = documents.next().ok_or(Refusal::Empty)?;
    if let Some(second) = documents.next() {
        let message = "only the first document of a manifest is used, the rest is ignored";
        warnings.add(Some(second.nearest_line("")), message.to_owned());
    }
    Ok(first)
}

/// The kind of the document, one of those that can hold pods.
fn kind(document: &Document) -> Result<&str, Refusal> {
    let refuse = |path: &str, message: String| {
        Err(Refusal::NotAPod {
            line: document.nearest_line(path),
            message,
        })
    };
    let Value::Object(fields) = &document.value else {
        return refuse(
            "",
            "a manifest is a mapping with apiVersion and kind".to_owned(),
        );
    };
    let version = match fields.get("apiVersion").and_then(Value::as_str) {
        Some(version) if !version.is_empty() => version,
        _ => return refuse("apiVersion", "apiVersion is missing".to_owned()),
    };
    let kind = match fields.get("kind").and_then(Value::as_str) {
        Some(kind) if !kind.is_empty() => kind,
        _ => return refuse("kind", "kind is missing".to_owned()),
    };
    if version != "v1" || !matches!(kind, "Pod" | "PodList" | "List") {
        let message =
            format!("kind {kind} of version {version} is not a pod (kind Pod, apiVersion v1)");
        return refuse("kind", message);
    }
    Ok(kind)
}

fn list(
    document: &Document,
    origin: &Origin,
    warnings: &mut Warnings,
) -> Result<Vec<Pod>, Refusal> {
    let items = match document.value.get("items") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(_) => {
            return Err(Refusal::WrongType {
                path: "items".to_owned(),
                line: document.nearest_line("items"),
                message: "expected a list of pods".to_owned(),
            });
        }
    };
    let mut pods = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        for (field, wanted) in [("apiVersion", "v1"), ("kind", "Pod")] {
            let found = item.get(field).and_then(Value::as_str).unwrap_or(wanted);
            if found != wanted {
                let path = format!("items[{i}].{field}");
                return Err(Refusal::NotAPod {
                    line: document.nearest_line(&path),
                    message: format!(
                        "{path} is {found}, only pods (kind Pod, apiVersion v1) can be run"
                    ),
                });
            }
        }
        pods.push(pod(document, item, Some(i), origin, warnings)?);
    }
    Ok(pods)
}

fn pod(
    document: &Document,
    value: &Value,
    item: Option<usize>,
    origin: &Origin,
    warnings: &mut Warnings,
) -> Result<Pod, Refusal> {
    let place = Item { document, item };
    let mut pod = place.typed(value, warnings)?;
    if pod.metadata.name.as_deref().is_none_or(str::is_empty) {
        return Err(Refusal::NoName {
            line: place.line("metadata.name"),
        });
    }
    defaults::apply(&mut pod);
    for field in make_static(&mut pod, origin) {
        let message = format!("field {field:?} is ignored, the node sets it itself");
        warnings.add(Some(place.line(field)), message);
    }
    let problems = validate(&pod);
    if let Some(first) = problems.first() {
        return Err(Refusal::Invalid {
            line: place.line(&first.path),
            item,
            problems,
        });
    }
    let mut references = api_references(&pod);
    references.retain(|(resource, _)| match origin.references {
        References::None => true,
        References::LocalObjects => !matches!(*resource, "configmaps" | "secrets"),
        References::All => false,
    });
    if let Some((_, path)) = references.first() {
        return Err(Refusal::References {
            line: place.line(path),
            references,
        });
    }
    Ok(pod)
}

/// A pod's place in its document.
struct Item<'d> {
    document: &'d Document,
    item: Option<usize>,
}

impl Item<'_> {
    fn path(&self, path: &str) -> String {
        match self.item {
            Some(i) if path.is_empty() => format!("items[{i}]"),
            Some(i) => format!("items[{i}].{path}"),
            None => path.to_owned(),
        }
    }

    fn line(&self, path: &str) -> usize {
        self.document.nearest_line(&self.path(path))
    }

    /// Decodes the types. Unknown fields are warnings, as upstream's lenient decoder lets them pass.
    fn typed(&self, value: &Value, warnings: &mut Warnings) -> Result<Pod, Refusal> {
        let mut track = serde_path_to_error::Track::new();
        let mut unknown: Vec<String> = Vec::new();
        let inner = serde_path_to_error::Deserializer::new(value, &mut track);
        let result = serde_ignored::deserialize(inner, |path| {
            if unknown.len() < MAX_WARNINGS {
                let mut text = String::new();
                ignored_path(&path, &mut text);
                unknown.push(text);
            }
        });
        for path in unknown {
            warnings.add(
                Some(self.line(&path)),
                format!("unknown field {:?}", self.path(&path)),
            );
        }
        result.map_err(|error: serde_json::Error| {
            let path = error_path(&track.path());
            Refusal::WrongType {
                line: self.line(&path),
                path: self.path(&path),
                message: error.to_string(),
            }
        })
    }
}

fn push_key(path: &mut String, key: &str) {
    if key.is_empty() || key.contains(['.', '[', ']']) {
        path.push_str(&format!("[{key}]"));
    } else {
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
    }
}

fn ignored_path(path: &serde_ignored::Path<'_>, text: &mut String) {
    use serde_ignored::Path;
    match path {
        Path::Root => {}
        Path::Seq { parent, index } => {
            ignored_path(parent, text);
            text.push_str(&format!("[{index}]"));
        }
        Path::Map { parent, key } => {
            ignored_path(parent, text);
            push_key(text, key);
        }
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => {
            ignored_path(parent, text);
        }
    }
}

fn error_path(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut text = String::new();
    for segment in path.iter() {
        match segment {
            Segment::Seq { index } => text.push_str(&format!("[{index}]")),
            Segment::Map { key } => push_key(&mut text, key),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    text
}
