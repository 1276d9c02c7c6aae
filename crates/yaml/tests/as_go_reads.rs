//! Values recorded from Go's `sigs.k8s.io/yaml` for the corners where YAML parsers part ways.
//! `differs` in a record says why this reader answers otherwise on purpose.

use serde_json::Value;

#[derive(Debug, serde::Deserialize)]
struct Case {
    text: String,
    value: Option<Value>,
    error: Option<String>,
    differs: Option<String>,
}

#[test]
fn recorded_answers_hold() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("data/go.json")).unwrap();
    assert!(cases.len() > 200);
    let mut wrong = Vec::new();
    for case in &cases {
        let got = krablet_yaml::parse(case.text.as_bytes());
        let want = (case.error.is_none(), case.value.clone());
        let same = match &got {
            Ok(document) => {
                want == (true, Some(document.value.clone()))
                    || (want.0 && case.value.is_none() && document.value.is_null())
            }
            Err(_) => !want.0,
        };
        if same == case.differs.is_some() {
            wrong.push(format!("{case:?}\n   got {:?}", got.map(|d| d.value)));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
