//! Lines, duplicates, documents and budgets.

use krablet_yaml::{Duplicate, MAX_DEPTH, parse, parse_documents};
use serde_json::json;

const POD: &str = "\
# a comment
apiVersion: v1
metadata:
  annotations:
    a.b/c: x
    plain: y
spec:
  containers:
  - name: one
    image: a
  - name: two

    image: b
";

#[test]
fn fields_know_their_lines() {
    let document = parse(POD.as_bytes()).unwrap();
    for (path, line) in [
        ("", Some(2)),
        ("apiVersion", Some(2)),
        ("metadata.annotations[a.b/c]", Some(5)),
        ("metadata.annotations[plain]", Some(6)),
        ("metadata.annotations.plain", Some(6)),
        ("spec.containers", Some(8)),
        ("spec.containers[0]", Some(9)),
        ("spec.containers[1].image", Some(13)),
        ("spec.containers[2]", None),
        ("spec.nothing", None),
        ("spec.containers[x]", None),
    ] {
        assert_eq!(document.line_of(path), line, "{path}");
    }
    assert_eq!(
        document.nearest_line("spec.containers[1].ports[0].protocol"),
        11
    );
}

#[test]
fn json_fields_know_their_lines() {
    let text =
        "\u{feff}{\n\t\"a\": {\n\t\t\"b.c\": [1,\n 2],\r\n\"d\": \"\\ud83d\\ude00\\n\"}\n}\n";
    let document = parse(text.as_bytes()).unwrap();
    assert_eq!(document.value, json!({"a": {"b.c": [1, 2], "d": "😀\n"}}));
    assert_eq!(document.line_of("a[b.c][1]"), Some(4));
    assert_eq!(document.line_of("a.d"), Some(5));
}

#[test]
fn crlf_counts_one_line() {
    let document = parse(POD.replace('\n', "\r\n").as_bytes()).unwrap();
    assert_eq!(document.line_of("spec.containers[1].image"), Some(13));
}

#[test]
fn duplicates_are_listed_and_the_last_wins() {
    let text = "a: 1\nb:\n- {x: 1, x: 2}\na: 3\nc.d: 1\nc.d: 2\n";
    let document = parse(text.as_bytes()).unwrap();
    assert_eq!(document.value, json!({"a": 3, "b": [{"x": 2}], "c.d": 2}));
    let want = [("b[0].x", 3), ("a", 4), ("[c.d]", 6)].map(|(path, line)| Duplicate {
        path: path.into(),
        line,
    });
    assert_eq!(document.duplicates, want);
    let json = parse(br#"{"a": 1, "a": {"b": 2}}"#).unwrap();
    assert_eq!(json.duplicates.len(), 1);
    assert_eq!(json.value, json!({"a": {"b": 2}}));
}

#[test]
fn merged_keys_are_not_duplicates() {
    let text = "base: &b {x: 1, z: 2}\nd:\n  <<: *b\n  z: 3\n";
    let document = parse(text.as_bytes()).unwrap();
    assert!(document.duplicates.is_empty());
    assert_eq!(document.line_of("d.z"), Some(4));
    assert_eq!(document.line_of("d.x"), Some(1));
}

#[test]
fn documents_are_told_apart() {
    let all = parse_documents(b"---\na: 1\n---\n# nothing\n---\nb: 2\n").unwrap();
    let values: Vec<_> = all.iter().map(|document| document.value.clone()).collect();
    assert_eq!(values, [json!({"a": 1}), json!(null), json!({"b": 2})]);
    assert_eq!(all[2].line_of("b"), Some(6));
    let error = parse(b"a: 1\n---\nb: 2\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 3: a second document begins here, but exactly one is expected"
    );
    assert_eq!(parse(b"a: 1\n---\n").unwrap().value, json!({"a": 1}));
    assert!(parse(b"").unwrap().value.is_null());
}

#[test]
fn bombs_are_refused() {
    let mut laughs = String::from("a0: &a0 [lol, lol, lol]\n");
    for level in 1..12 {
        let below = format!("*a{}, ", level - 1).repeat(9);
        laughs.push_str(&format!(
            "a{level}: &a{level} [{}]\n",
            below.trim_end_matches(", ")
        ));
    }
    let long = format!(
        "a: &a {}\nb: [{}]\n",
        "x".repeat(1 << 20),
        "*a, ".repeat(64)
    );
    let deep_flow = "[".repeat(100_000);
    let deep_json = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    let mut deep_block = String::new();
    for level in 0..400 {
        deep_block.push_str(&" ".repeat(level));
        deep_block.push_str("a:\n");
    }
    let mut deep_alias = String::from("a0: &a0 [x]\n");
    for level in 1..MAX_DEPTH + 4 {
        deep_alias.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
    }
    let wide = "- \n".repeat(1_000_000);
    for (text, message) in [
        (laughs, "once its aliases are expanded"),
        (long, "excessive aliasing"),
        (deep_flow, "recursion limit exceeded"),
        (deep_json, "nested deeper than 128 levels"),
        (deep_block, "nested deeper than 128 levels"),
        (deep_alias, "nested deeper than 128 levels"),
        (wide, "holds more than 250000 values"),
        ("a: &a [*a]\n".into(), "contains itself"),
        ("a: &a\n  <<: *a\n".into(), "contains itself"),
    ] {
        let error = parse(text.as_bytes()).expect_err(message);
        assert!(error.to_string().contains(message), "{error}");
        assert!(error.line.is_some());
    }
}

#[test]
fn bad_bytes_name_their_line() {
    let error = parse(b"a: 1\nb: \xff\n").unwrap_err();
    assert_eq!(error.to_string(), "line 2: the text is not valid UTF-8");
    let error = parse(b"a: 1\nb: \x00\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 2: control characters are not allowed (U+0000)"
    );
    let error = parse(b"a: .inf\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 1: .inf is not a number JSON can hold"
    );
}

#[test]
fn keys_over_a_merge_are_told_apart_from_keys_written_twice() {
    let text = "b: &b {x: 1}\nd:\n  p: 1\n  <<: *b\n  x: 2\n  x: 3\n  p: 4\n";
    let document = parse(text.as_bytes()).unwrap();
    let paths: Vec<_> = document
        .duplicates
        .iter()
        .map(|d| d.path.as_str())
        .collect();
    assert_eq!(paths, ["d.x", "d.p"]);
}
