use super::*;
use serde_json::{Value, json};

fn config_map(value: Value) -> ConfigMap {
    serde_json::from_value(value).unwrap()
}

fn items(value: Value) -> Vec<KeyToPath> {
    serde_json::from_value(value).unwrap()
}

/// `path mode content` of each file.
fn shown(files: Result<Files, SetUpError>) -> Result<Vec<String>, String> {
    let files = files.map_err(|e| e.to_string())?;
    let line = |(path, file): (&String, &TreeFile)| {
        let text = String::from_utf8_lossy(&file.bytes);
        format!("{path} {:o} {text}", file.mode)
    };
    Ok(files.iter().map(line).collect())
}

#[test]
fn config_maps_by_key_and_by_item() {
    let object = config_map(json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": "Mw=="}}));
    let of = |list: Value, optional| shown(of_config_map(&items(list), &object, 0o644, optional));
    assert_eq!(
        of(json!([]), false).unwrap(),
        ["a 644 1", "b 644 2", "c 644 3"]
    );
    let chosen = json!([{"key": "c", "path": "deep/c"}, {"key": "a", "path": "x", "mode": 0o400}]);
    assert_eq!(of(chosen, false).unwrap(), ["deep/c 644 3", "x 400 1"]);
    let missing = json!([{"key": "no", "path": "n"}, {"key": "a", "path": "a"}]);
    assert_eq!(
        of(missing.clone(), false).unwrap_err(),
        "configmap references non-existent config key: no"
    );
    assert_eq!(of(missing, true).unwrap(), ["a 644 1"]);
}

#[test]
fn secrets_by_key_and_by_item() {
    let object: Secret =
        serde_json::from_value(json!({"data": {"a": "MQ==", "b": "Mg=="}})).unwrap();
    let of = |list: Value, optional| shown(of_secret(&items(list), &object, 0o4440, optional));
    // Bits beyond the plain rights are dropped.
    assert_eq!(of(json!([]), false).unwrap(), ["a 440 1", "b 440 2"]);
    let missing = json!([{"key": "no", "path": "n"}]);
    assert_eq!(
        of(missing.clone(), false).unwrap_err(),
        "references non-existent secret key: no"
    );
    assert!(of(missing, true).unwrap().is_empty());
}

fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u", "labels": {"b": "2", "a": "1"},
                     "annotations": {"note": "two\nlines"}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"memory": "64Mi"}}}]},
    }))
    .unwrap()
}

#[test]
fn what_a_pod_knows_of_itself() {
    let of = |list: Value| {
        let items: Vec<DownwardAPIVolumeFile> = serde_json::from_value(list).unwrap();
        let node = BTreeMap::from([("cpu".to_owned(), "4".parse().unwrap())]);
        shown(of_downward(&items, &pod(), 0o644, &node))
    };
    let field = |path: &str, field: &str| json!({"path": path, "fieldRef": {"fieldPath": field}});
    let resource = |resource: &str, container: &str| json!({"path": "r", "resourceFieldRef": {"resource": resource, "containerName": container, "divisor": "1"}});
    assert_eq!(
        of(json!([
            field("labels", "metadata.labels"),
            field("notes", "metadata.annotations"),
            field("one", "metadata.labels['a']")
        ]))
        .unwrap(),
        [
            "labels 644 a=\"1\"\nb=\"2\"",
            "notes 644 note=\"two\\nlines\"",
            "one 644 1"
        ]
    );
    assert_eq!(
        of(json!([resource("limits.memory", "c")])).unwrap(),
        ["r 644 67108864"]
    );
    assert_eq!(
        of(json!([resource("limits.cpu", "c")])).unwrap(),
        ["r 644 4"]
    );
    assert_eq!(
        of(json!([field("x", "status.podIP")])).unwrap_err(),
        "unsupported fieldPath: status.podIP"
    );
    assert_eq!(
        of(json!([
            resource("limits.cpu", "none"),
            field("x", "spec.nodeName")
        ]))
        .unwrap_err(),
        "[container none not found, unsupported fieldPath: spec.nodeName]"
    );
}

#[test]
fn who_a_token_is_for() {
    let case = |pod_user: Option<i64>, users: &[Option<i64>], group: Option<i64>| {
        let containers: Vec<Value> = users
            .iter()
            .map(|user| json!({"name": "c", "securityContext": {"runAsUser": user}}))
            .collect();
        let pod: Pod = serde_json::from_value(json!({
            "spec": {"containers": containers, "securityContext": {"runAsUser": pod_user}},
        }))
        .unwrap();
        let file = private(b"t".to_vec(), 0o644, &pod, group);
        (file.mode, file.owner)
    };
    assert_eq!(case(None, &[None], None), (0o644, None));
    assert_eq!(case(Some(7), &[None, None], None), (0o600, Some(7)));
    assert_eq!(case(Some(7), &[None, Some(8)], None), (0o644, None));
    assert_eq!(case(None, &[Some(8), Some(8)], None), (0o600, Some(8)));
    assert_eq!(case(None, &[Some(8), None], Some(5)), (0o600, None));
}

#[test]
fn paths_that_may_be_in_a_volume() {
    let long = "x".repeat(256);
    let longer = "x/".repeat(2100);
    let cases = [
        ("a", Ok("a")),
        (
            "a/b/../c",
            Err("invalid path: must not contain '..': a/b/../c"),
        ),
        ("./a//b/", Ok("a/b")),
        ("a..b", Ok("a..b")),
        ("a/..b", Ok("a/..b")),
        ("", Err("invalid path: must not be empty: \"\"")),
        (".", Err("invalid path: must not be empty: \".\"")),
        ("/a", Err("invalid path: must be relative path: /a")),
        ("..", Err("invalid path: must not contain '..': ..")),
        ("..a", Err("invalid path: must not start with '..': ..a")),
        (
            "..data/x",
            Err("invalid path: must not start with '..': ..data/x"),
        ),
        (
            &long,
            Err("invalid path: filenames must be less than or equal to 255 characters"),
        ),
        (
            &longer,
            Err("invalid path: must be less than or equal to 4096 characters"),
        ),
    ];
    for (path, expected) in cases {
        let found = checked(Files::from([(path.to_owned(), file("", 0o644))]));
        let found = found.map(|files| files.into_keys().next().unwrap());
        let found = found.map_err(|e| e.to_string());
        let expected = expected.map(PathBuf::from).map_err(str::to_owned);
        assert_eq!(found, expected, "{path}");
    }
}
