//! From a JSON value to typed fields and back, as Go's JSON rules have it, with every complaint collected.
//!
//! Each section of the configuration is one [`section!`]: the table of its fields with their JSON names, default
//! rules and help texts. Decoding, defaulting, encoding and the documentation all come from that one table, so
//! they cannot drift apart.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::duration::Duration;

/// Walks a value, remembering where it is and what was wrong.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    path: String,
    /// Values of the wrong type or out of range: path and reason.
    pub(crate) errors: Vec<(String, String)>,
    /// Paths of fields no table knows.
    pub(crate) unknown: Vec<String>,
}

/// Joins a parent path and a key; a key with a dot or bracket of its own stands in brackets.
pub(crate) fn join_path(parent: &str, key: &str) -> String {
    if key.contains(['.', '[', ']']) {
        format!("{parent}[{key}]")
    } else if parent.is_empty() {
        key.to_owned()
    } else {
        format!("{parent}.{key}")
    }
}

impl Decoder {
    /// Runs `inner` one level deeper.
    fn within<T>(&mut self, path: String, inner: impl FnOnce(&mut Self) -> T) -> T {
        let parent = std::mem::replace(&mut self.path, path);
        let result = inner(self);
        self.path = parent;
        result
    }

    /// Records that the value here cannot be used.
    pub(crate) fn refuse(&mut self, reason: impl Into<String>) {
        self.errors.push((self.path.clone(), reason.into()));
    }

    /// Records that the value here is of another type than wanted.
    pub(crate) fn wrong_type(&mut self, wanted: &str, found: &Value) {
        self.refuse(format!("want {wanted}, found {}", describe(found)));
    }

    /// The field `name` of `map`; null counts as not written.
    pub(crate) fn field<T: Field>(&mut self, map: &Map<String, Value>, name: &str) -> Option<T> {
        let value = map.get(name).filter(|value| !value.is_null())?;
        let path = join_path(&self.path, name);
        self.within(path, |cx| T::decode(value, cx))
    }

    /// Notes every key of `map` that is not in `known`.
    pub(crate) fn note_unknown(&mut self, map: &Map<String, Value>, known: &[&str]) {
        for key in map.keys() {
            if !known.contains(&key.as_str()) {
                self.unknown.push(join_path(&self.path, key));
            }
        }
    }

    /// The object here, or a complaint.
    pub(crate) fn object<'v>(&mut self, value: &'v Value) -> Option<&'v Map<String, Value>> {
        if value.is_object() {
            return value.as_object();
        }
        self.wrong_type("a mapping", value);
        None
    }
}

/// A value in the words of the person who wrote it, cut to a readable length.
fn describe(value: &Value) -> String {
    const READABLE: usize = 60;
    let cut = |text: String| {
        if text.chars().count() > READABLE {
            let head: String = text.chars().take(READABLE).collect();
            format!("{head}...")
        } else {
            text
        }
    };
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(b) => format!("the boolean {b}"),
        Value::Number(n) => format!("the number {n}"),
        Value::String(s) => cut(format!("the string {s:?}")),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    }
}

/// A type a configuration field can have.
pub(crate) trait Field: Default {
    /// The type's name in the documentation.
    fn kind() -> String;
    /// Reads a value that is not null; `None` after a complaint.
    fn decode(value: &Value, cx: &mut Decoder) -> Option<Self>;
    /// The JSON form.
    fn encode(&self) -> Value;
    /// Go's zero value, which many fields take for "not set".
    fn is_zero(&self) -> bool;
    /// Whether Go's `omitempty` drops it. Structures (durations are one) are never dropped.
    fn omitted(&self) -> bool {
        self.is_zero()
    }
    /// The fields inside, for the documentation.
    fn inner_docs() -> Vec<FieldDoc> {
        Vec::new()
    }
}

/// One field as the documentation shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldDoc {
    /// The JSON name, with the parents' names before it for a nested one.
    pub name: String,
    /// The type.
    pub kind: String,
    /// The default, when it is not the type's zero.
    pub default: Option<Value>,
    /// Whether only leaving the field out gives the default; otherwise its zero value does too.
    pub default_when_absent: bool,
    /// What it does.
    pub help: String,
}

/// A group of fields: the whole of a nested object, or a part of the flat top level.
pub(crate) trait Section: Default {
    /// The JSON names of its fields.
    const NAMES: &'static [&'static str];
    fn decode_fields(map: &Map<String, Value>, cx: &mut Decoder) -> Self;
    fn encode_fields(&self, out: &mut Map<String, Value>);
    fn docs() -> Vec<FieldDoc>;
}

/// Builds the documentation of one field and of those inside it.
pub(crate) fn document<T: Field>(
    name: &str,
    default: &T,
    rule: &str,
    help: &[&str],
) -> Vec<FieldDoc> {
    let help = help.iter().map(|line| line.trim()).collect::<Vec<_>>();
    let mut inner = T::inner_docs();
    for field in &mut inner {
        field.name = format!("{name}.{}", field.name);
    }
    let shown = if inner.is_empty() && !default.is_zero() {
        Some(default.encode())
    } else {
        None
    };
    let mut docs = vec![FieldDoc {
        name: name.to_owned(),
        kind: T::kind(),
        default_when_absent: shown.is_some() && rule == "absent",
        default: shown,
        help: help.join(" "),
    }];
    docs.append(&mut inner);
    docs
}

/// Declares a section: a struct whose every field names its JSON key and its default rule.
///
/// Rules: none (the zero value, left out when zero), `empty(x)` (`x` when missing or zero), `absent(x)` (`x` when
/// missing; always written), `always` (the zero value, always written).
macro_rules! section {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident {
            $(
                $(#[doc = $help:literal])+
                $field:ident: $type:ty = $json:literal $($rule:ident $(($default:expr))?)?;
            )*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $( $(#[doc = $help])+ pub $field: $type, )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $crate::decode::section!(@default $type; $($rule $(($default))?)?), )* }
            }
        }

        impl $crate::decode::Section for $name {
            const NAMES: &'static [&'static str] = &[$($json),*];

            fn decode_fields(
                map: &serde_json::Map<String, serde_json::Value>,
                cx: &mut $crate::decode::Decoder,
            ) -> Self {
                Self {
                    $( $field: $crate::decode::section!(
                        @decode cx.field::<$type>(map, $json); $type; $($rule $(($default))?)?
                    ), )*
                }
            }

            fn encode_fields(&self, out: &mut serde_json::Map<String, serde_json::Value>) {
                $( $crate::decode::section!(@encode out, $json, &self.$field; $($rule)?); )*
            }

            fn docs() -> Vec<$crate::decode::FieldDoc> {
                let defaults = Self::default();
                let mut docs = Vec::new();
                $( docs.append(&mut $crate::decode::document(
                    $json,
                    &defaults.$field,
                    concat!($(stringify!($rule))?),
                    &[$($help),+],
                )); )*
                docs
            }
        }
    };
    (@default $type:ty; ) => { <$type>::default() };
    (@default $type:ty; always) => { <$type>::default() };
    (@default $type:ty; $rule:ident($default:expr)) => { $default };
    (@decode $found:expr; $type:ty; ) => { $found.unwrap_or_default() };
    (@decode $found:expr; $type:ty; always) => { $found.unwrap_or_default() };
    (@decode $found:expr; $type:ty; absent($default:expr)) => { $found.unwrap_or_else(|| $default) };
    (@decode $found:expr; $type:ty; empty($default:expr)) => {
        $found
            .filter(|value| !$crate::decode::Field::is_zero(value))
            .unwrap_or_else(|| $default)
    };
    (@encode $out:ident, $json:literal, $value:expr; absent) => {
        $out.insert($json.to_owned(), $crate::decode::Field::encode($value));
    };
    (@encode $out:ident, $json:literal, $value:expr; always) => {
        $out.insert($json.to_owned(), $crate::decode::Field::encode($value));
    };
    (@encode $out:ident, $json:literal, $value:expr; $($rule:ident)?) => {
        if !$crate::decode::Field::omitted($value) {
            $out.insert($json.to_owned(), $crate::decode::Field::encode($value));
        }
    };
}
pub(crate) use section;

/// A nested object.
impl<S: Section + PartialEq> Field for S {
    fn kind() -> String {
        "mapping".to_owned()
    }

    fn decode(value: &Value, cx: &mut Decoder) -> Option<Self> {
        let map = cx.object(value)?;
        cx.note_unknown(map, Self::NAMES);
        Some(Self::decode_fields(map, cx))
    }

    fn encode(&self) -> Value {
        let mut out = Map::new();
        self.encode_fields(&mut out);
        Value::Object(out)
    }

    fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    fn omitted(&self) -> bool {
        false
    }

    fn inner_docs() -> Vec<FieldDoc> {
        Self::docs()
    }
}

impl Field for bool {
    fn kind() -> String {
        "boolean".to_owned()
    }

    fn decode(value: &Value, cx: &mut Decoder) -> Option<Self> {
        if value.as_bool().is_none() {
            cx.wrong_type("true or false", value);
        }
        value.as_bool()
    }

    fn encode(&self) -> Value {
        Value::Bool(*self)
    }

    fn is_zero(&self) -> bool {
        !self
    }
}

/// A whole number; `10250.0`, which YAML turns into 10250 before Go sees it, counts.
fn whole(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    if let Some(n) = number.as_i128() {
        return Some(n);
    }
    let float = number.as_f64()?;
    // Beyond 2^53 a float no longer names one whole number.
    (float.fract() == 0.0 && float.abs() < 9_007_199_254_740_992.0).then_some(float as i128)
}

macro_rules! integer_field {
    ($($type:ty),*) => { $(
        impl Field for $type {
            fn kind() -> String {
                "integer".to_owned()
            }

            fn decode(value: &Value, cx: &mut Decoder) -> Option<Self> {
                let Some(number) = whole(value) else {
                    cx.wrong_type("a whole number", value);
                    return None;
                };
                let fitting = <$type>::try_from(number).ok();
                if fitting.is_none() {
                    cx.refuse(format!("{number} is not between {} and {}", <$type>::MIN, <$type>::MAX));
                }
                fitting
            }

            fn encode(&self) -> Value {
                Value::from(*self)
            }

            fn is_zero(&self) -> bool {
                *self == 0
            }
        }
    )* };
}
integer_field!(i32, i64, u32);

impl Field for f64 {
    fn kind() -> String {
        "number".to_owned()
    }

    fn decode(value: &Value, cx: &mut Decoder) -> Option<Self> {
        if value.as_f64().is_none() {
            cx.wrong_type("a number", value);
        }
        value.as_f64()
    }

    fn encode(&self) -> Value {
        Value::from(*self)
    }

    fn is_zero(&self) -> bool {
        *self == 0.0
    }
}

impl Field for String {
    fn kind() -> String {
        "string".to_owned()
    }

    fn decode(value: &Value, cx: &mut Decoder) -> Option<Self> {
        if value.as_str().is_none() {
            cx.wrong_type("a string", value);
        }
        value.as_str().map(str::to_owned)
    }

    fn encode(&self) -> Value {
        Value::String(self.clone())
    }

    fn is_zero(&self) -> bool {
        self.is_empty()
    }
}

impl Field for Duration {
    fn kind() -> String {
        "duration".to_owned()
    }

    fn decode(value: &Value, cx: &mut Decoder) -> Option<Self> {
        let Some(text) = value.as_str() else {
            cx.wrong_type("a duration such as \"30s\"", value);
            return None;
        };
        text.parse()
            .map_err(|error: crate::DurationError| cx.refuse(error.to_string()))
            .ok()
    }

    fn encode(&self) -> Value {
        Value::String(self.to_string())
    }

    fn is_zero(&self) -> bool {
        Duration::is_zero(*self)
    }

    fn omitted(&self) -> bool {
        false
    }
}

impl<T: Field> Field for Option<T> {
    fn kind() -> String {
        T::kind()
    }

    fn decode(value: &Value, cx: &mut Decoder) -> Option<Self> {
        T::decode(value, cx).map(Some)
    }

    fn encode(&self) -> Value {
        self.as_ref().map_or(Value::Null, Field::encode)
    }

    fn is_zero(&self) -> bool {
        self.is_none()
    }

    fn inner_docs() -> Vec<FieldDoc> {
        T::inner_docs()
    }
}

impl<T: Field> Field for Vec<T> {
    fn kind() -> String {
        format!("list of {}", T::kind())
    }

    fn decode(value: &Value, cx: &mut Decoder) -> Option<Self> {
        let Some(items) = value.as_array() else {
            cx.wrong_type("a list", value);
            return None;
        };
        let mut list = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let path = format!("{}[{index}]", cx.path);
            // A null item is the zero value, as in Go.
            let decoded = match item {
                Value::Null => Some(T::default()),
                item => cx.within(path, |cx| T::decode(item, cx)),
            };
            list.extend(decoded);
        }
        Some(list)
    }

    fn encode(&self) -> Value {
        Value::Array(self.iter().map(Field::encode).collect())
    }

    fn is_zero(&self) -> bool {
        self.is_empty()
    }

    fn inner_docs() -> Vec<FieldDoc> {
        T::inner_docs()
    }
}

impl<T: Field> Field for BTreeMap<String, T> {
    fn kind() -> String {
        format!("mapping of {}", T::kind())
    }

    fn decode(value: &Value, cx: &mut Decoder) -> Option<Self> {
        let map = cx.object(value)?;
        let mut decoded = Self::new();
        for (key, item) in map {
            let path = join_path(&cx.path, key);
            let item = match item {
                Value::Null => Some(T::default()),
                item => cx.within(path, |cx| T::decode(item, cx)),
            };
            if let Some(item) = item {
                decoded.insert(key.clone(), item);
            }
        }
        Some(decoded)
    }

    fn encode(&self) -> Value {
        self.iter()
            .map(|(key, item)| (key.clone(), item.encode()))
            .collect::<Map<String, Value>>()
            .into()
    }

    fn is_zero(&self) -> bool {
        self.is_empty()
    }
}
