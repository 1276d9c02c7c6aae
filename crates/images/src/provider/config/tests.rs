use krablet_linux::HostFiles;

use super::*;

const GOOD: &str = r#"
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: one
  matchImages: ["*.r.io", "r.io:5000/team"]
  defaultCacheDuration: 12h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  args: [get]
  env:
  - {name: A, value: b}
  tokenAttributes:
    serviceAccountTokenAudience: r.io
    cacheType: ServiceAccount
    requireServiceAccount: true
    requiredServiceAccountAnnotationKeys: [example.com/id]
    optionalServiceAccountAnnotationKeys: [more]
"#;

fn read(text: &str) -> Result<Vec<ProviderConfig>, String> {
    let written = decode(text.as_bytes())?;
    settle(written, true).map_err(|e| e.to_string())
}

#[test]
fn a_whole_config() {
    let found = read(GOOD).unwrap();
    let expected = ProviderConfig {
        name: "one".into(),
        match_images: vec!["*.r.io".into(), "r.io:5000/team".into()],
        default_cache_duration: Duration::from_secs(12 * 3600),
        api_version: PLUGIN_V1.into(),
        args: vec!["get".into()],
        env: vec![("A".into(), "b".into())],
        token: Some(TokenConfig {
            audience: "r.io".into(),
            required: true,
            cache: TokenCache::ServiceAccount,
            required_annotations: vec!["example.com/id".into()],
            optional_annotations: vec!["more".into()],
        }),
    };
    assert_eq!(found, [expected]);
}

#[test]
fn what_is_refused() {
    let cases = [
        ("name: one", "name: a/b", "provider name cannot contain '/'"),
        (
            "name: one",
            "name: 'a b'",
            "provider name cannot contain spaces",
        ),
        ("name: one", "name: ..", "provider name cannot be '..'"),
        ("name: one", "nam: one", "unknown field `nam`"),
        (
            "kind: CredentialProviderConfig",
            "kind: Other",
            "failed to decode \"Other\" (wrong Kind)",
        ),
        (
            "kubelet.config.k8s.io/v1",
            "kubelet.config.k8s.io/v7",
            "no kind",
        ),
        (
            "kubelet.config.k8s.io/v1",
            "other.io/v1",
            "unexpected Group: other.io/v1",
        ),
        (
            "*.r.io",
            "bad host",
            "match image is invalid: invalid character ' ' in host name",
        ),
        (
            "defaultCacheDuration: 12h",
            "defaultCacheDuration: -1s",
            "must be greater than or equal to 0",
        ),
        (
            "defaultCacheDuration: 12h",
            "args: []\n  defaultCacheDuration: x",
            "already set",
        ),
        (
            "  defaultCacheDuration: 12h\n",
            "",
            "providers.defaultCacheDuration: Required value",
        ),
        (
            "credentialprovider.kubelet.k8s.io/v1",
            "v2",
            "providers.apiVersion: Unsupported value: \"v2\"",
        ),
        (
            "credentialprovider.kubelet.k8s.io/v1",
            "credentialprovider.kubelet.k8s.io/v1beta1",
            "tokenAttributes is only supported for",
        ),
        (
            "serviceAccountTokenAudience: r.io",
            "serviceAccountTokenAudience: ''",
            "serviceAccountTokenAudience: Required value",
        ),
        (
            "cacheType: ServiceAccount",
            "cacheType: ''",
            "cacheType: Required value",
        ),
        (
            "cacheType: ServiceAccount",
            "cacheType: Pod",
            "cacheType: Unsupported value: \"Pod\"",
        ),
        (
            "requireServiceAccount: true",
            "requireServiceAccount: false",
            "requireServiceAccount cannot be false",
        ),
        (
            "[more]",
            "[example.com/id]",
            "cannot be both required and optional",
        ),
        ("[more]", "[more, more]", "Duplicate value: \"more\""),
        ("[more]", "['-x']", "not a qualified name"),
    ];
    for (old, new, expected) in cases {
        let text = GOOD.replacen(old, new, 1);
        let problem = read(&text).expect_err(expected);
        assert!(problem.contains(expected), "{expected}: {problem}");
    }
    let tokens_off = settle(decode(GOOD.as_bytes()).unwrap(), false).unwrap_err();
    assert!(tokens_off.to_string().contains("feature gate is disabled"));
    let empty = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig";
    assert!(read(empty).unwrap_err().contains("at least 1 item"));
}

#[tokio::test]
async fn files_and_directories() {
    let dir = tempfile::tempdir().unwrap();
    let (bin, conf) = (dir.path().join("bin"), dir.path().join("conf"));
    let all = async |path: &Path| {
        let found = read_providers(&HostFiles, path, &bin, true).await?;
        let names = found.providers.into_iter().map(|p| p.name);
        Ok::<_, ConfigError>(names.collect::<Vec<_>>())
    };
    let hash = async |path: &Path| {
        let found = read_providers(&HostFiles, path, &bin, true).await;
        found.unwrap().hash
    };
    std::fs::create_dir(&conf).unwrap();
    assert_eq!(all(&conf).await, Err(ConfigError::NoBinDir(bin.clone())));
    std::fs::create_dir(&bin).unwrap();
    assert_eq!(all(&conf).await, Err(ConfigError::NoFiles(conf.clone())));
    std::fs::write(conf.join("b.yaml"), GOOD).unwrap();
    std::fs::write(conf.join("notes.txt"), "not read").unwrap();
    assert_eq!(
        all(&conf).await,
        Err(ConfigError::NoProgram(bin.join("one")))
    );
    std::fs::write(bin.join("one"), "").unwrap();
    std::fs::write(bin.join("two"), "").unwrap();
    std::fs::write(conf.join("a.yml"), GOOD.replace("name: one", "name: two")).unwrap();
    assert_eq!(all(&conf).await, Ok(vec!["two".into(), "one".into()]));
    assert_eq!(all(&conf.join("b.yaml")).await, Ok(vec!["one".into()]));
    let (whole, one) = (hash(&conf).await, hash(&conf.join("b.yaml")).await);
    assert!(whole != one && one.starts_with("sha256:") && one.len() == 71);
    assert_eq!(hash(&conf).await, whole);
    std::fs::write(conf.join("c.json"), GOOD).unwrap();
    let decode = all(&conf).await.unwrap_err();
    assert!(
        matches!(decode, ConfigError::Decode { .. } | ConfigError::Twice(_)),
        "{decode}"
    );
    let missing = all(&dir.path().join("none")).await;
    assert!(matches!(missing, Err(ConfigError::Access { .. })));
}
