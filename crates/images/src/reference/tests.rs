use proptest::prelude::*;

use super::*;

const SHA: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

#[test]
fn names_get_a_tag() {
    let digest = format!("a/b@{SHA}");
    let tagged_digest = format!("a/b:1@{SHA}");
    let cases = [
        ("busybox", "busybox:latest"),
        ("busybox:1", "busybox:1"),
        ("busybox:latest", "busybox:latest"),
        ("host:5000/a", "host:5000/a:latest"),
        ("host:5000", "host:5000"),
        ("localhost/a__b/c-d.e", "localhost/a__b/c-d.e:latest"),
        ("[fd00::1]:5000/a:x", "[fd00::1]:5000/a:x"),
        ("[fd00::1]/a", "[fd00::1]/a:latest"),
        ("Host/a", "Host/a:latest"),
        ("a_b.c/d", "a_b.c/d:latest"),
        ("a:Tag_1.x-y", "a:Tag_1.x-y"),
        (&digest, &digest),
        (&tagged_digest, &tagged_digest),
    ];
    for (image, expected) in cases {
        assert_eq!(with_default_tag(image).as_deref(), Ok(expected));
    }
}

#[test]
fn repositories_are_written_out() {
    let cases = [
        ("busybox", "docker.io/library/busybox"),
        ("user/app:1", "docker.io/user/app"),
        ("docker.io/busybox", "docker.io/library/busybox"),
        ("index.docker.io/busybox", "docker.io/library/busybox"),
        ("index.docker.io/a/b", "docker.io/a/b"),
        ("localhost/a", "localhost/a"),
        ("reg.example.com:5000/a/b:1", "reg.example.com:5000/a/b"),
        ("Host/a", "Host/a"),
    ];
    for (image, expected) in cases {
        assert_eq!(repository(image).as_deref(), Ok(expected), "{image}");
    }
}

#[test]
fn what_is_no_name() {
    use ReferenceError as E;
    let long = format!("a/{}", "b".repeat(300));
    let hex = "a".repeat(64);
    let upper = format!("a@{}", SHA.replace('a', "A").replace("shA", "sha"));
    let short = format!("a@sha256:{}", "0".repeat(40));
    let unknown = format!("a@md5:{}", "0".repeat(32));
    let shouted = format!("a:1@Sha256:{}", "0".repeat(64));
    let long_tag = format!("a:{}", "x".repeat(129));
    let cases = [
        ("", E::Format),
        (":", E::Format),
        ("a:", E::Format),
        ("a:b c", E::Format),
        ("a//b", E::Format),
        ("/a", E::Format),
        ("a/", E::Format),
        ("-a", E::Format),
        ("a_-b", E::Format),
        ("a___b", E::Format),
        ("a..b", E::Format),
        ("a@sha256:12", E::Format),
        (
            "a@sha256:12@sha256:00000000000000000000000000000000",
            E::Format,
        ),
        ("a b", E::Format),
        ("é", E::Format),
        ("a:b:c", E::Format),
        ("http://a", E::Format),
        ("[fd00::1]", E::Format),
        ("[]/a", E::Format),
        ("host:/a", E::Format),
        ("-host.x/a", E::Format),
        (&long_tag, E::Format),
        (&long, E::TooLong),
        (&hex, E::Identifier(hex.clone())),
        ("Foo", E::UppercasePath("library/Foo".into())),
        ("a/B", E::UppercasePath("a/B".into())),
        ("r.io/É", E::UppercasePath("É".into())),
        (&upper, E::DigestFormat),
        (&short, E::DigestLength),
        (&unknown, E::DigestAlgorithm),
        (&shouted, E::DigestFormat),
    ];
    for (image, expected) in cases {
        let expected = Err(format!("couldn't parse image name {image:?}: {expected}"));
        assert_eq!(with_default_tag(image), expected);
    }
    assert_eq!(Reference::parse(""), Err(E::Empty));
    assert_eq!(Reference::parse("A/B"), Err(E::Uppercase));
}

#[test]
fn names_without_tag_and_digest() {
    let digest = format!("a/b:1@{SHA}");
    for (image, expected) in [
        ("busybox", "busybox"),
        ("busybox:1", "busybox"),
        ("host:5000/a:1", "host:5000/a"),
        (&digest, "a/b"),
    ] {
        assert_eq!(bare(image), Ok(expected));
    }
    assert!(bare("No Image").is_err());
}

/// Texts that look like references, or nearly.
fn nearly() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[a-z0-9]{1,5}(([._]|__|-{1,3})[a-z0-9]{1,4}){0,2}",
        "[A-Za-z0-9.:_\\[\\]-]{0,6}",
    ];
    let name = proptest::collection::vec(part, 1..4).prop_map(|p| p.join("/"));
    let tag = prop_oneof![Just(String::new()), ":[A-Za-z0-9_.-]{0,5}"];
    let digest = prop_oneof![
        Just(String::new()),
        "@sha256:[a-f0-9]{64}",
        "@[a-z0-9+.]{0,6}:[a-fA-F0-9]{30,34}",
    ];
    (name, tag, digest).prop_map(|(n, t, d)| format!("{n}{t}{d}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(2000)))]

    /// The parts of a reference, put together, are the reference; a default tag changes nothing twice.
    #[test]
    fn parts_make_the_whole(text in prop_oneof![nearly(), "\\PC{0,40}"]) {
        if let Ok(parsed) = Reference::parse(&text) {
            let mut whole = parsed.name.to_owned();
            parsed.tag.iter().for_each(|t| { whole.push(':'); whole.push_str(t); });
            parsed.digest.iter().for_each(|d| { whole.push('@'); whole.push_str(d); });
            prop_assert_eq!(whole, text.clone());
        }
        if let Ok(tagged) = with_default_tag(&text) {
            prop_assert!(tagged.starts_with(&text));
            prop_assert_eq!(with_default_tag(&tagged), Ok(tagged.clone()));
            prop_assert_eq!(repository(&tagged), repository(&text));
            let normal = repository(&text).unwrap();
            prop_assert_eq!(repository(&normal), Ok(normal.clone()));
        }
    }
}
