//! Whatever the bytes are, the answer is a value or an error.

use proptest::prelude::*;

const SEED: &str = "apiVersion: v1\nkind: Pod\nmetadata: &m\n  name: \"a\\u0041\"\n  labels: {app: x, <<: *m}\nspec:\n  containers:\n  - name: 'c'\n    args: [\"-x\", |\n     0644, ~]\n    command:\n    - |\n      text\n    - >-\n      folded\n  <<: [*m]\n? k\n: !!int 3\n---\n{\"a\": [1e3, {\"b\": null}]}\n...\n%YAML 1.1\n--- # c\n- &a x\n- *a\n";

fn check(bytes: &[u8]) {
    if let Ok(documents) = krablet_yaml::parse_documents(bytes) {
        for document in documents {
            assert!(document.nearest_line("a.b[0][x.y]") >= 1);
            for duplicate in &document.duplicates {
                assert!(
                    document.line_of(&duplicate.path).is_some()
                        || duplicate.path.contains(']')
                        || duplicate.path.contains("<<")
                );
            }
        }
    }
    let _ = krablet_yaml::parse(bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn on_random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        check(&bytes);
    }

    #[test]
    fn on_yaml_like_text(text in "[-a:b{}\\[\\],&*!|>'\"%#@\n \t?<~0-9.\\\\é\r]{0,80}") {
        check(text.as_bytes());
    }

    #[test]
    fn on_mutated_documents(edits in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..4, any::<u8>()), 1..12)) {
        let mut bytes = SEED.as_bytes().to_vec();
        for (index, kind, byte) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = index.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                2 => bytes.insert(at, byte),
                _ => {
                    let piece: Vec<u8> = bytes[at..(at + 20).min(bytes.len())].to_vec();
                    let to = (at * 7) % bytes.len();
                    bytes.splice(to..to, piece);
                }
            }
        }
        check(&bytes);
    }
}
