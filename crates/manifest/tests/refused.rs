//! Manifests that must be refused, each with every problem it must be told.
//!
//! The cases are in `refused/*.yaml`: overlays (`metadata`, `spec`, `container`, `init`, `volume`) on a small good pod.
//! A wanted message that ends in `...` is the beginning of the one expected. Where the API server answers otherwise
//! a case says so: `stricter` (it lets the pod pass), `path_differs` (it names a less exact field), `decoded_later`
//! (it refuses while decoding), `want_only_some` (it repeats itself).

mod common;

use common::{CASES, file_origin, overlay};
use krablet_manifest::{Refusal, decode};

#[test]
fn every_case_is_refused_for_its_reasons() {
    let mut count = 0;
    let mut wrong = Vec::new();
    for (file, text) in CASES {
        let cases = krablet_yaml::parse(text.as_bytes()).expect(file).value;
        for case in cases.as_array().expect(file) {
            count += 1;
            let name = case["name"].as_str().expect("a case has a name");
            let want: Vec<&str> = case["want"]
                .as_array()
                .expect(name)
                .iter()
                .map(|message| message.as_str().expect(name))
                .collect();
            let manifest = overlay(case).to_string();
            let got: Vec<String> = match decode(manifest.as_bytes(), &file_origin()) {
                Err(Refusal::Invalid { problems, .. }) => {
                    problems.iter().map(ToString::to_string).collect()
                }
                other => vec![format!("{other:?}")],
            };
            let matches = |(got, want): (&String, &&str)| match want.strip_suffix("...") {
                Some(beginning) => got.starts_with(beginning),
                None => got == want,
            };
            if got.len() != want.len() || !got.iter().zip(&want).all(matches) {
                wrong.push(format!("{file}: {name}\n  want {want:#?}\n  got  {got:#?}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {count}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(count >= 120, "{count}");
}
