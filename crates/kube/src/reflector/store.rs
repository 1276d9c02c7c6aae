//! The objects as they are known, and what lists and watch lines do to them. Pure but for a line in the log.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::Slim;
use crate::ApiError;

/// Namespace and name.
type Key = (String, String);

/// How many objects that cannot be read are remembered as told of.
const MAX_TOLD: usize = 256;

struct Kept<T> {
    uid: String,
    version: String,
    object: Arc<T>,
}

pub(super) struct Store<T> {
    objects: BTreeMap<Key, Kept<T>>,
    slim: Slim<T>,
    /// Objects that could not be read and were told of.
    told: BTreeMap<Key, String>,
}

/// The pages of a list so far.
pub(super) struct Listing<T> {
    objects: BTreeMap<Key, Kept<T>>,
    told: BTreeMap<Key, String>,
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }
}

/// How a list goes on after one page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Paged {
    pub(super) version: String,
    /// The token of the next page.
    pub(super) rest: Option<String>,
}

/// What a line of a watch says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) version: Option<String>,
    /// Something is different now.
    pub(super) changed: bool,
}

#[derive(Deserialize)]
struct RawList<'a> {
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(rename = "continue", default)]
    rest: Option<String>,
}

#[derive(Deserialize)]
struct RawLine<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// As much of an object as tells which one it is.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow, default)]
    metadata: Meta<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta<'a> {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    #[serde(borrow)]
    managed_fields: Option<&'a RawValue>,
}

impl Meta<'_> {
    fn key(&self) -> Key {
        (self.namespace.clone(), self.name.clone())
    }
}

impl<T: DeserializeOwned> Store<T> {
    pub(super) fn new(slim: Slim<T>) -> Self {
        Self {
            objects: BTreeMap::new(),
            slim,
            told: BTreeMap::new(),
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<T>> {
        self.objects
            .values()
            .map(|kept| kept.object.clone())
            .collect()
    }

    /// Takes a page in. What is known already is not decoded again.
    pub(super) fn page(&self, listing: &mut Listing<T>, page: &[u8]) -> Result<Paged, ApiError> {
        let page: RawList<'_> = decode(page)?;
        for item in page.items.unwrap_or_default() {
            let head: Head<'_> = decode(item.get().as_bytes())?;
            let key = head.metadata.key();
            let old = self.objects.get(&key);
            match old.filter(|old| old.is(&head.metadata)) {
                Some(old) => {
                    listing.objects.insert(key, old.share());
                }
                None => match self.read(&head.metadata, item) {
                    Ok(kept) => {
                        listing.objects.insert(key, kept);
                    }
                    Err(error) => {
                        // What could be read of it before is better than nothing.
                        let old = old.filter(|old| old.uid == head.metadata.uid);
                        if let Some(old) = old {
                            listing.objects.insert(key.clone(), old.share());
                        }
                        let known = self.told.contains_key(&key);
                        note(&mut listing.told, known, key, &error);
                    }
                },
            }
        }
        Ok(Paged {
            version: page.metadata.resource_version,
            rest: page.metadata.rest.filter(|rest| !rest.is_empty()),
        })
    }

    /// The list is complete.
    pub(super) fn replace(&mut self, listing: Listing<T>) {
        self.objects = listing.objects;
        self.told = listing.told;
    }

    /// An ERROR line comes back as the error it tells of.
    pub(super) fn line(&mut self, line: &[u8]) -> Result<Told, ApiError> {
        let line: RawLine<'_> = decode(line)?;
        let object = line.object.get().as_bytes();
        if line.kind == "ERROR" {
            return Err(ApiError::from_watch(object));
        }
        let head: Head<'_> = decode(object)?;
        let version = Some(head.metadata.resource_version.clone());
        let version = version.filter(|version| !version.is_empty());
        let changed = match line.kind {
            "ADDED" | "MODIFIED" => self.put(&head.metadata, line.object),
            "DELETED" => self.remove(&head.metadata),
            // A bookmark, or a kind that is yet to be invented.
            _ => false,
        };
        Ok(Told { version, changed })
    }

    fn put(&mut self, meta: &Meta<'_>, object: &RawValue) -> bool {
        let key = meta.key();
        if self.objects.get(&key).is_some_and(|old| old.is(meta)) {
            return false;
        }
        match self.read(meta, object) {
            Ok(kept) => {
                self.told.remove(&key);
                self.objects.insert(key, kept);
                true
            }
            Err(error) => {
                let known = self.told.contains_key(&key);
                // Another one of the same name has taken its place.
                let other = self
                    .objects
                    .get(&key)
                    .is_some_and(|old| old.uid != meta.uid);
                if other {
                    self.objects.remove(&key);
                }
                note(&mut self.told, known, key, &error);
                other
            }
        }
    }

    fn remove(&mut self, meta: &Meta<'_>) -> bool {
        let key = meta.key();
        self.told.remove(&key);
        self.objects.remove(&key).is_some()
    }

    fn read(&self, meta: &Meta<'_>, object: &RawValue) -> Result<Kept<T>, ApiError> {
        let mut read: T = decode(unmanaged(object, meta.managed_fields).as_bytes())?;
        let before = self.objects.get(&meta.key());
        let before = before.filter(|before| before.uid == meta.uid);
        (self.slim)(&mut read, before.map(|before| &*before.object));
        Ok(Kept {
            uid: meta.uid.clone(),
            version: meta.resource_version.clone(),
            object: Arc::new(read),
        })
    }
}

impl<T> Kept<T> {
    fn is(&self, meta: &Meta<'_>) -> bool {
        self.uid == meta.uid && self.version == meta.resource_version
    }

    fn share(&self) -> Self {
        Self {
            uid: self.uid.clone(),
            version: self.version.clone(),
            object: self.object.clone(),
        }
    }
}

/// The object without a word of who wrote which of its fields. Nobody here asks for that, and of a pod it is more than half:
/// decoded, a tree of many small pieces, gone in a moment, among which things settle that stay.
fn unmanaged<'a>(object: &'a RawValue, managed_fields: Option<&RawValue>) -> Cow<'a, str> {
    let whole = object.get();
    let cut = managed_fields.and_then(|part| {
        let part = part.get();
        let begin = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
        let after = whole.get(begin.checked_add(part.len())?..)?;
        Some([whole.get(..begin)?, "null", after].concat())
    });
    cut.map_or(Cow::Borrowed(whole), Cow::Owned)
}

/// One object that cannot be read costs nobody else anything, and one line in the log.
fn note(told: &mut BTreeMap<Key, String>, known: bool, key: Key, error: &ApiError) {
    if !known {
        tracing::warn!(
            namespace = key.0,
            name = key.1,
            "object is left out: {error}"
        );
    }
    if told.len() < MAX_TOLD {
        told.insert(key, error.to_string());
    }
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|e| ApiError::Decode(e.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Thing {
        value: u32,
        #[serde(default)]
        bulk: String,
    }

    fn slim() -> Slim<Thing> {
        Box::new(|thing, _| thing.bulk = String::new())
    }

    fn thing(name: &str, version: &str, value: Value) -> Value {
        json!({
            "metadata": {"namespace": "n", "name": name, "uid": name, "resourceVersion": version},
            "value": value, "bulk": "much",
        })
    }

    fn list(store: &mut Store<Thing>, items: &[Value]) {
        let mut listing = Listing::default();
        let page = json!({"metadata": {"resourceVersion": "9"}, "items": items}).to_string();
        let paged = store.page(&mut listing, page.as_bytes()).unwrap();
        assert_eq!((paged.version.as_str(), paged.rest), ("9", None));
        store.replace(listing);
    }

    fn line(store: &mut Store<Thing>, kind: &str, object: &Value) -> Result<Told, ApiError> {
        let line = json!({"type": kind, "object": object}).to_string();
        store.line(line.as_bytes())
    }

    fn values(store: &Store<Thing>) -> Vec<u32> {
        store.all().iter().map(|thing| thing.value).collect()
    }

    #[test]
    fn the_one_before_is_shown_unless_it_is_another() {
        let add = |now: &mut Thing, before: Option<&Thing>| {
            now.value += before.map_or(0, |before| before.value);
        };
        let mut store = Store::new(Box::new(add));
        list(&mut store, &[thing("a", "1", json!(1))]);
        line(&mut store, "MODIFIED", &thing("a", "2", json!(10))).unwrap();
        assert_eq!(values(&store), [11]);
        list(&mut store, &[thing("a", "3", json!(100))]);
        assert_eq!(values(&store), [111]);
        let mut other = thing("a", "4", json!(5));
        other["metadata"]["uid"] = json!("another");
        line(&mut store, "ADDED", &other).unwrap();
        assert_eq!(values(&store), [5]);
    }

    #[test]
    fn what_did_not_change_stays_the_same_allocation() {
        let mut store = Store::new(slim());
        list(
            &mut store,
            &[thing("a", "1", json!(1)), thing("b", "2", json!(2))],
        );
        let before = store.all();
        assert_eq!(before[0].bulk, "", "slimmed");
        list(
            &mut store,
            &[thing("a", "1", json!(1)), thing("b", "3", json!(3))],
        );
        let after = store.all();
        assert!(Arc::ptr_eq(&before[0], &after[0]));
        assert!(!Arc::ptr_eq(&before[1], &after[1]));
        let told = line(&mut store, "ADDED", &thing("a", "1", json!(1))).unwrap();
        assert!(!told.changed, "a duplicate");
        // After the store behind the server was replaced, versions may come again.
        let mut other = thing("a", "1", json!(7));
        other["metadata"]["uid"] = json!("z");
        list(&mut store, &[other]);
        assert_eq!(values(&store), [7]);
    }

    #[test]
    fn lines() {
        let mut store = Store::new(slim());
        let mut tell = |kind: &str, object: Value| {
            let told = line(&mut store, kind, &object).unwrap();
            let version = told.version.unwrap_or_default();
            (version, told.changed, values(&store))
        };
        let told = tell("ADDED", thing("a", "1", json!(1)));
        assert_eq!(told, ("1".into(), true, vec![1]));
        let told = tell("MODIFIED", thing("a", "2", json!(2)));
        assert_eq!(told, ("2".into(), true, vec![2]));
        let told = tell("BOOKMARK", json!({"metadata": {"resourceVersion": "5"}}));
        assert_eq!(told, ("5".into(), false, vec![2]));
        let told = tell("DELETED", thing("a", "6", json!(2)));
        assert_eq!(told, ("6".into(), true, vec![]));
        let gone = line(&mut store, "ERROR", &json!({"code": 410}));
        assert!(gone.is_err_and(|e| e.is_expired()));
    }

    #[test]
    fn an_object_that_cannot_be_read_costs_nobody_else_anything() {
        let mut store = Store::new(slim());
        list(
            &mut store,
            &[thing("a", "1", json!("?")), thing("b", "2", json!(2))],
        );
        assert_eq!(values(&store), [2]);
        assert_eq!(store.told.len(), 1);
        // The last one that could be read stands.
        let told = line(&mut store, "MODIFIED", &thing("b", "3", json!("?"))).unwrap();
        assert_eq!((told.version.as_deref(), told.changed), (Some("3"), false));
        assert_eq!(values(&store), [2]);
        list(&mut store, &[thing("b", "3", json!("?"))]);
        assert_eq!(values(&store), [2]);
        assert_eq!(store.told.len(), 1);
        // But not for another one of the same name.
        let mut other = thing("b", "4", json!("?"));
        other["metadata"]["uid"] = json!("z");
        assert!(line(&mut store, "ADDED", &other).unwrap().changed);
        assert!(values(&store).is_empty());
        line(&mut store, "DELETED", &other).unwrap();
        assert!(store.told.is_empty());
    }

    #[test]
    fn who_wrote_which_field_is_not_read() {
        let managed = r#"[{"manager":"é","fieldsV1":{"f:metadata":{"f:managedFields":{}}}}]"#;
        // What it says, and what is left of it.
        let cases = [
            (r#"{"metadata":{"managedFields":M,"name":"a"}}"#, "null"),
            (
                r#" { "metadata" : { "name" : "é" , "managedFields" : M } , "b" : [1] } "#,
                "null",
            ),
            (
                r#"{"b":"\u00e9","metadata":{"managedFields":null}}"#,
                "null",
            ),
            // Only there.
            (
                r#"{"managedFields":M,"metadata":{"annotations":{"managedFields":"x"}}}"#,
                "M",
            ),
            (r#"{"spec":{"metadata":{"managedFields":M}}}"#, "M"),
            ("{}", "M"),
        ];
        for (text, left) in cases {
            let (text, expected) = (text.replace('M', managed), text.replace('M', left));
            // Within something else, as in a line or a list.
            let outer = format!("[{text}]");
            let objects: Vec<&RawValue> = serde_json::from_str(&outer).unwrap();
            let head: Head<'_> = decode(objects[0].get().as_bytes()).unwrap();
            let left = unmanaged(objects[0], head.metadata.managed_fields);
            let expected = expected.replace('M', managed);
            assert_eq!(left, expected.trim());
        }
    }

    #[test]
    fn pages() {
        let store = Store::<Thing>::new(slim());
        let mut listing = Listing::default();
        let page = json!({"metadata": {"resourceVersion": "9", "continue": "c"}, "items": null});
        let paged = store
            .page(&mut listing, page.to_string().as_bytes())
            .unwrap();
        assert_eq!(paged.rest.as_deref(), Some("c"));
        assert!(store.page(&mut listing, b"[").is_err());
    }
}
