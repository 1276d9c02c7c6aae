//! Builds one document from the parser's events: anchors, merge keys, duplicates, lines, and the budget that
//! keeps a small file from becoming a large value.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Number, Value};

use crate::lines::{Below, Lines, push_index, push_key};
use crate::resolve::{Scalar, float_key};
use crate::{Document, Duplicate, Error, MAX_ALIAS_BYTES, MAX_DEPTH, MAX_DUPLICATES, MAX_NODES};

/// A finished value with what it costs to copy it.
#[derive(Clone)]
struct Node {
    value: Value,
    lines: Lines,
    cost: Cost,
}

#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    nodes: usize,
    bytes: usize,
    depth: usize,
}

impl Cost {
    fn take_in(&mut self, child: Cost) {
        self.nodes = self.nodes.saturating_add(child.nodes);
        self.bytes = self.bytes.saturating_add(child.bytes);
        self.depth = self.depth.max(child.depth + 1);
    }
}

/// What has been spent over a whole stream.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    nodes: usize,
    alias_bytes: usize,
}

impl Budget {
    fn spend_nodes(&mut self, nodes: usize, line: usize) -> Result<(), Error> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MAX_NODES {
            return Err(Error::at(
                line,
                format!(
                    "the document holds more than {MAX_NODES} values once its aliases are expanded"
                ),
            ));
        }
        Ok(())
    }

    fn spend_copy(&mut self, cost: Cost, line: usize) -> Result<(), Error> {
        self.alias_bytes = self.alias_bytes.saturating_add(cost.bytes);
        if self.alias_bytes > MAX_ALIAS_BYTES {
            return Err(Error::at(
                line,
                format!(
                    "excessive aliasing: anchors and aliases copy more than {MAX_ALIAS_BYTES} bytes"
                ),
            ));
        }
        self.spend_nodes(cost.nodes, line)
    }
}

enum Pending {
    Key { name: String, line: usize },
    Merge,
}

enum Collection {
    Items(Vec<Value>, Vec<Lines>),
    Fields {
        values: Map<String, Value>,
        lines: BTreeMap<String, Lines>,
        /// Keys merged in and not written yet: writing one of them is no duplicate.
        merged: BTreeSet<String>,
        pending: Option<Pending>,
    },
}

struct Frame {
    line: usize,
    anchor: usize,
    cost: Cost,
    collection: Collection,
}

/// One document in the making.
pub(crate) struct Builder<'b> {
    budget: &'b mut Budget,
    stack: Vec<Frame>,
    /// `None` while the anchored node is still open.
    anchors: BTreeMap<usize, Option<Node>>,
    duplicates: Vec<Duplicate>,
    root: Option<Node>,
}

impl<'b> Builder<'b> {
    pub(crate) fn new(budget: &'b mut Budget) -> Self {
        Self {
            budget,
            stack: Vec::new(),
            anchors: BTreeMap::new(),
            duplicates: Vec::new(),
            root: None,
        }
    }

    pub(crate) fn finish(self, line: usize) -> Document {
        let (value, lines) = match self.root {
            Some(node) => (node.value, node.lines),
            None => (Value::Null, Lines::leaf(line)),
        };
        Document {
            value,
            duplicates: self.duplicates,
            lines,
        }
    }

    /// Whether the next node is a mapping's key.
    pub(crate) fn wants_key(&self) -> bool {
        matches!(
            self.stack.last().map(|frame| &frame.collection),
            Some(Collection::Fields { pending: None, .. })
        )
    }

    /// A plain `<<` in a key's place.
    pub(crate) fn merge_key(&mut self) {
        if let Some(Frame {
            collection: Collection::Fields { pending, .. },
            ..
        }) = self.stack.last_mut()
        {
            *pending = Some(Pending::Merge);
        }
    }

    pub(crate) fn scalar(
        &mut self,
        scalar: &Scalar,
        text: String,
        line: usize,
        anchor: usize,
    ) -> Result<(), Error> {
        self.budget.spend_nodes(1, line)?;
        if self.wants_key() {
            let name = match scalar {
                Scalar::Text => text,
                Scalar::Bool(value) => value.to_string(),
                Scalar::Int(value) => value.to_string(),
                Scalar::Uint(value) => value.to_string(),
                Scalar::Float(value) => float_key(*value),
                Scalar::Null => return Err(Error::at(line, "a mapping key is null")),
            };
            if anchor != 0 {
                let node = leaf(Value::String(name.clone()), line);
                self.remember(anchor, &node, line)?;
            }
            return self.key(name, line);
        }
        let node = leaf(json(scalar, text, line)?, line);
        self.remember(anchor, &node, line)?;
        self.place(node, line)
    }

    pub(crate) fn open(&mut self, mapping: bool, line: usize, anchor: usize) -> Result<(), Error> {
        self.budget.spend_nodes(1, line)?;
        if self.wants_key() {
            return Err(Error::at(
                line,
                "a mapping or sequence cannot be a mapping key",
            ));
        }
        if self.stack.len() >= MAX_DEPTH {
            return Err(too_deep(line));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, None);
        }
        let collection = if mapping {
            Collection::Fields {
                values: Map::new(),
                lines: BTreeMap::new(),
                merged: BTreeSet::new(),
                pending: None,
            }
        } else {
            Collection::Items(Vec::new(), Vec::new())
        };
        self.stack.push(Frame {
            line,
            anchor,
            cost: Cost {
                nodes: 1,
                bytes: 0,
                depth: 1,
            },
            collection,
        });
        Ok(())
    }

    pub(crate) fn close(&mut self, line: usize) -> Result<(), Error> {
        let Some(frame) = self.stack.pop() else {
            return Err(Error::at(line, "a collection ends that never began"));
        };
        let (value, below) = match frame.collection {
            Collection::Items(values, lines) => (Value::Array(values), Below::Items(lines)),
            Collection::Fields { values, lines, .. } => {
                (Value::Object(values), Below::Fields(lines))
            }
        };
        let node = Node {
            value,
            lines: Lines {
                line: frame.line,
                below,
            },
            cost: frame.cost,
        };
        self.remember(frame.anchor, &node, line)?;
        self.place(node, line)
    }

    pub(crate) fn alias(&mut self, anchor: usize, line: usize) -> Result<(), Error> {
        let cost = match self.anchors.get(&anchor) {
            Some(Some(node)) => node.cost,
            Some(None) => return Err(Error::at(line, "an anchor's value contains itself")),
            None => return Err(Error::at(line, "an alias names an unknown anchor")),
        };
        if self.stack.len() + cost.depth > MAX_DEPTH {
            return Err(too_deep(line));
        }
        self.budget.spend_copy(cost, line)?;
        let Some(Some(node)) = self.anchors.get(&anchor) else {
            return Ok(());
        };
        if self.wants_key() {
            let name = match &node.value {
                Value::String(text) => text.clone(),
                Value::Bool(_) | Value::Number(_) => node.value.to_string(),
                _ => return Err(Error::at(line, "only a scalar can be a mapping key")),
            };
            return self.key(name, line);
        }
        let node = node.clone();
        self.place(node, line)
    }

    fn remember(&mut self, anchor: usize, node: &Node, line: usize) -> Result<(), Error> {
        if anchor != 0 {
            self.budget.spend_copy(node.cost, line)?;
            self.anchors.insert(anchor, Some(node.clone()));
        }
        Ok(())
    }

    fn key(&mut self, name: String, line: usize) -> Result<(), Error> {
        let Some(Frame {
            collection:
                Collection::Fields {
                    values,
                    merged,
                    pending,
                    ..
                },
            ..
        }) = self.stack.last_mut()
        else {
            return Err(Error::at(line, "a key stands outside a mapping"));
        };
        let again = values.contains_key(&name) && !merged.remove(&name);
        *pending = Some(Pending::Key { name, line });
        if again && self.duplicates.len() < MAX_DUPLICATES {
            let path = self.path();
            self.duplicates.push(Duplicate { path, line });
        }
        Ok(())
    }

    fn place(&mut self, node: Node, line: usize) -> Result<(), Error> {
        let Some(frame) = self.stack.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        frame.cost.take_in(node.cost);
        match &mut frame.collection {
            Collection::Items(values, lines) => {
                values.push(node.value);
                lines.push(node.lines);
                Ok(())
            }
            Collection::Fields {
                values,
                lines,
                merged,
                pending,
            } => match pending.take() {
                Some(Pending::Key { name, line }) => {
                    frame.cost.bytes = frame.cost.bytes.saturating_add(name.len());
                    let place = Lines { line, ..node.lines };
                    lines.insert(name.clone(), place);
                    values.insert(name, node.value);
                    Ok(())
                }
                Some(Pending::Merge) => {
                    for (fields, places) in maps_to_merge(node, line)? {
                        let new = fields.keys().filter(|key| !values.contains_key(*key));
                        merged.extend(new.cloned());
                        values.extend(fields);
                        lines.extend(places);
                    }
                    Ok(())
                }
                None => Err(Error::at(line, "only a scalar can be a mapping key")),
            },
        }
    }

    /// The path of the key just read.
    fn path(&self) -> String {
        let mut path = String::new();
        for frame in &self.stack {
            match &frame.collection {
                Collection::Items(values, _) => push_index(&mut path, values.len()),
                Collection::Fields { pending, .. } => match pending {
                    Some(Pending::Key { name, .. }) => push_key(&mut path, name),
                    Some(Pending::Merge) => push_key(&mut path, "<<"),
                    None => {}
                },
            }
        }
        path
    }
}

type MapToMerge = (Map<String, Value>, BTreeMap<String, Lines>);

/// The mappings a merge key stands for, the one that wins last. A merge overrides keys above it and is overridden by
/// keys below it, as go-yaml v2 does; of a list of mappings the first wins.
fn maps_to_merge(node: Node, line: usize) -> Result<Vec<MapToMerge>, Error> {
    let pairs: Vec<(Value, Below)> = match (node.value, node.lines.below) {
        (Value::Array(maps), Below::Items(places)) => {
            let places = places.into_iter().map(|place| place.below);
            maps.into_iter().zip(places).rev().collect()
        }
        single => vec![single],
    };
    pairs
        .into_iter()
        .map(|pair| match pair {
            (Value::Object(fields), Below::Fields(places)) => Ok((fields, places)),
            _ => Err(Error::at(
                line,
                "map merge requires map or sequence of maps as the value",
            )),
        })
        .collect()
}

fn leaf(value: Value, line: usize) -> Node {
    let bytes = match &value {
        Value::String(text) => text.len(),
        _ => 0,
    };
    Node {
        value,
        lines: Lines::leaf(line),
        cost: Cost {
            nodes: 1,
            bytes,
            depth: 0,
        },
    }
}

fn too_deep(line: usize) -> Error {
    Error::at(line, format!("nested deeper than {MAX_DEPTH} levels"))
}

fn json(scalar: &Scalar, text: String, line: usize) -> Result<Value, Error> {
    Ok(match scalar {
        Scalar::Null => Value::Null,
        Scalar::Bool(value) => Value::Bool(*value),
        Scalar::Int(value) => Value::Number((*value).into()),
        Scalar::Uint(value) => Value::Number((*value).into()),
        Scalar::Float(value) => Value::Number(float(*value).ok_or_else(|| {
            Error::at(
                line,
                format!(
                    "{} is not a number JSON can hold",
                    crate::resolve::shorten(&text)
                ),
            )
        })?),
        Scalar::Text => Value::String(text),
    })
}

/// Go hands floats on as JSON text, where 1000.0 is written `1000`: a whole float is an integer to the decoder.
fn float(value: f64) -> Option<Number> {
    /// Below this every whole float is exact.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= EXACT {
        return Some((value as i64).into());
    }
    Number::from_f64(value)
}
