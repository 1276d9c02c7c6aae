//! Whether a pod's node selector and required node affinity match this node.

use krablet_pod::api::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

use super::NodeView;
use super::names::{is_label_value, is_qualified_name};

const OS_LABEL: &str = "kubernetes.io/os";

/// Both must match; of the affinity's terms one is enough.
pub fn matches_node(spec: &PodSpec, node: &NodeView) -> bool {
    let mut selector = spec.node_selector.iter().flatten();
    if !selector.all(|(key, value)| label(node, key) == Some(value)) {
        return false;
    }
    let required = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| {
            a.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    match required {
        None => true,
        Some(selector) => matches_any_term(&selector.node_selector_terms, node),
    }
}

/// One matching term is enough.
pub fn matches_any_term(terms: &[NodeSelectorTerm], node: &NodeView) -> bool {
    terms.iter().any(|term| matches_term(term, node))
}

/// The node is of its own operating system, whatever its label says at the moment.
fn label<'a>(node: &'a NodeView, key: &str) -> Option<&'a String> {
    match key {
        OS_LABEL => Some(&node.os),
        _ => node.labels.get(key),
    }
}

/// All requirements of a term must hold. An empty term matches nothing, and so does one with a
/// requirement that makes no sense.
fn matches_term(term: &NodeSelectorTerm, node: &NodeView) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    !(expressions.is_empty() && fields.is_empty())
        && expressions
            .iter()
            .all(|r| label_matches(r, label(node, &r.key)).unwrap_or(false))
        && fields
            .iter()
            .all(|r| field_matches(r, node).unwrap_or(false))
}

/// None: the requirement makes no sense.
fn label_matches(requirement: &NodeSelectorRequirement, found: Option<&String>) -> Option<bool> {
    let values = requirement.values.as_deref().unwrap_or_default();
    let well_formed =
        is_qualified_name(&requirement.key) && values.iter().all(|v| is_label_value(v));
    if !well_formed {
        return None;
    }
    let compare = |matches: fn(&i64, &i64) -> bool| match values {
        [value] => {
            let value: i64 = value.parse().ok()?;
            let found = found.and_then(|f| f.parse().ok());
            Some(found.is_some_and(|found: i64| matches(&found, &value)))
        }
        _ => None,
    };
    match requirement.operator.as_str() {
        "In" => (!values.is_empty()).then(|| found.is_some_and(|f| values.contains(f))),
        "NotIn" => (!values.is_empty()).then(|| !found.is_some_and(|f| values.contains(f))),
        "Exists" => values.is_empty().then_some(found.is_some()),
        "DoesNotExist" => values.is_empty().then_some(found.is_none()),
        "Gt" => compare(i64::gt),
        "Lt" => compare(i64::lt),
        _ => None,
    }
}

/// The node's name is the only field there is. None: the requirement makes no sense.
fn field_matches(requirement: &NodeSelectorRequirement, node: &NodeView) -> Option<bool> {
    let found = match requirement.key.as_str() {
        "metadata.name" => node.name.as_str(),
        _ => "",
    };
    let [value] = requirement.values.as_deref().unwrap_or_default() else {
        return None;
    };
    // A node without a name has no fields, and those match anything.
    let named = !node.name.is_empty();
    match requirement.operator.as_str() {
        "In" => Some(!named || found == value),
        "NotIn" => Some(!named || found != value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;

    fn node() -> NodeView {
        let labels = [("zone", "a"), ("size", "5"), ("word", "x"), ("empty", "")];
        NodeView {
            name: "n1".into(),
            os: "linux".into(),
            labels: labels
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into_iter()
                .collect::<BTreeMap<_, _>>(),
            ..NodeView::default()
        }
    }

    fn spec(selector: Value, terms: Value) -> PodSpec {
        let mut spec = json!({"containers": [], "nodeSelector": selector});
        if !terms.is_null() {
            spec["affinity"] = json!({"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
        }
        serde_json::from_value(spec).unwrap()
    }

    /// `key op v1 v2`.
    fn requirement(text: &str) -> Value {
        let parts: Vec<&str> = text.split(' ').collect();
        json!({"key": parts[0], "operator": parts[1], "values": parts[2..]})
    }

    #[test]
    fn operators() {
        for (text, expected) in [
            ("zone In a b", true),
            ("zone In b", false),
            ("zone In", false),
            ("none In a", false),
            ("zone NotIn a", false),
            ("zone NotIn b", true),
            ("zone NotIn", false),
            ("none NotIn a", true),
            ("zone Exists", true),
            ("empty Exists", true),
            ("none Exists", false),
            ("zone Exists a", false),
            ("none DoesNotExist", true),
            ("zone DoesNotExist", false),
            ("none DoesNotExist a", false),
            ("size Gt 4", true),
            ("size Gt 5", false),
            ("size Lt 6", true),
            ("size Lt 5", false),
            ("size Gt 4 5", false),
            ("size Gt x", false),
            ("word Gt 1", false),
            ("none Lt 1", false),
            ("zone Huh a", false),
            // A malformed key or value spoils the term, even where absence would match.
            ("-bad DoesNotExist", false),
            ("none NotIn -bad", false),
            ("kubernetes.io/os In linux", true),
            ("kubernetes.io/os In windows", false),
        ] {
            let terms = json!([{"matchExpressions": [requirement(text)]}]);
            let spec = spec(Value::Null, terms);
            assert_eq!(matches_node(&spec, &node()), expected, "{text}");
        }
    }

    #[test]
    fn fields() {
        for (text, expected) in [
            ("metadata.name In n1", true),
            ("metadata.name In n2", false),
            ("metadata.name NotIn n2", true),
            ("metadata.name NotIn n1", false),
            ("metadata.name In n1 n2", false),
            ("metadata.name In", false),
            ("metadata.name Exists", false),
            ("other In n1", false),
            ("other NotIn n1", true),
        ] {
            let terms = json!([{"matchFields": [requirement(text)]}]);
            let spec = spec(Value::Null, terms);
            assert_eq!(matches_node(&spec, &node()), expected, "{text}");
        }
    }

    #[test]
    fn terms_are_alternatives_and_requirements_are_not() {
        let good = requirement("zone In a");
        let bad = requirement("zone In b");
        let name = requirement("metadata.name In n1");
        for (terms, expected) in [
            (json!([]), false),
            (json!([{}]), false),
            (json!([{}, {"matchExpressions": [good]}]), true),
            (
                json!([{"matchExpressions": [bad]}, {"matchExpressions": [good]}]),
                true,
            ),
            (json!([{"matchExpressions": [good, bad]}]), false),
            (
                json!([{"matchExpressions": [bad], "matchFields": [name]}]),
                false,
            ),
            (
                json!([{"matchExpressions": [good], "matchFields": [name]}]),
                true,
            ),
        ] {
            let spec = spec(Value::Null, terms.clone());
            assert_eq!(matches_node(&spec, &node()), expected, "{terms}");
        }
    }

    #[test]
    fn selector_and_affinity_both_count() {
        let term = json!([{"matchExpressions": [requirement("zone In a")]}]);
        for (selector, terms, expected) in [
            (json!({"zone": "a", "size": "5"}), Value::Null, true),
            (json!({"zone": "a", "size": "6"}), Value::Null, false),
            (json!({"none": ""}), Value::Null, false),
            (json!({"empty": ""}), term.clone(), true),
            (json!({"zone": "b"}), term, false),
            (json!({"kubernetes.io/os": "linux"}), Value::Null, true),
        ] {
            let spec = spec(selector.clone(), terms);
            assert_eq!(matches_node(&spec, &node()), expected, "{selector}");
        }
    }
}
