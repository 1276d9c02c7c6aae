use jiff::Timestamp;
use krablet_linux::EntryKind;

use super::*;
use crate::testing::{Authority, at, kubeconfig, user_of_file, user_with};
use crate::{
    Begun, Decision, IdentityError, Own, Renewal, Spare, Start, StartFiles, Validity, begin,
    decide, should_adopt,
};

fn valid(from: i64, to: i64) -> Validity {
    Validity {
        not_before: at(from),
        not_after: at(to),
    }
}

#[test]
fn how_to_begin() {
    let own = |validity| Own::Certificate(validity);
    let (live, dead, early) = (valid(0, 100), valid(0, 10), valid(60, 100));
    let missing = || Own::Missing("kubelet.conf: no such file".into());
    let broken = || Own::Broken("kubelet.conf: torn".into());
    let unusable = || Own::Unusable("kubelet.conf: line 1: what is this".into());
    let gone = || Spare::Unusable("bootstrap.conf: no such file".into());
    let clock = "the client certificate is valid only from 2026-01-01T00:01:00Z, but it is \
        2026-01-01T00:00:50Z by this machine's clock, which may be wrong";
    let expired = "the client certificate expired at 2026-01-01T00:00:10Z";
    let (not_given, there) = (Spare::NotGiven, Spare::There);
    // (own, stored, spare, decision)
    let cases = [
        (own(live), None, not_given.clone(), "use"),
        (own(live), None, there.clone(), "use"),
        (own(live), Some(live), gone(), "use"),
        (own(early), None, there.clone(), &format!("use, {clock}")),
        (
            own(live),
            Some(early),
            there.clone(),
            &format!("use, {clock}"),
        ),
        (own(dead), None, there.clone(), &format!("join, {expired}")),
        (
            own(dead),
            Some(dead),
            there.clone(),
            &format!("join, {expired}"),
        ),
        (own(dead), Some(live), there.clone(), "use"),
        (own(dead), Some(live), gone(), "use"),
        (
            own(dead),
            None,
            gone(),
            &format!(
                "use, {expired}, and it is 2026-01-01T00:00:50Z by this machine's clock; \
                 cannot join anew: bootstrap.conf: no such file"
            ),
        ),
        (
            own(dead),
            None,
            not_given.clone(),
            &format!("use, {expired}, and it is 2026-01-01T00:00:50Z by this machine's clock"),
        ),
        (
            missing(),
            None,
            there.clone(),
            "join, kubelet.conf: no such file",
        ),
        // A certificate alone does not say which cluster it is for.
        (
            missing(),
            Some(live),
            there.clone(),
            "join, kubelet.conf: no such file",
        ),
        (
            missing(),
            Some(live),
            not_given.clone(),
            "fail, kubelet.conf: no such file; no bootstrap kubeconfig is given",
        ),
        (
            missing(),
            None,
            gone(),
            "fail, kubelet.conf: no such file; cannot join anew: bootstrap.conf: no such file",
        ),
        (
            unusable(),
            None,
            there.clone(),
            "join, kubelet.conf: line 1: what is this",
        ),
        (
            unusable(),
            Some(live),
            not_given.clone(),
            "fail, kubelet.conf: line 1: what is this; no bootstrap kubeconfig is given",
        ),
        (broken(), None, there.clone(), "join, kubelet.conf: torn"),
        (broken(), Some(live), gone(), "use"),
        (
            broken(),
            None,
            not_given.clone(),
            "fail, kubelet.conf: torn; no bootstrap kubeconfig is given",
        ),
        (
            Own::NoCertificate,
            None,
            there,
            "join, the kubeconfig holds no client certificate",
        ),
        (Own::NoCertificate, None, not_given, "use"),
        (Own::NoCertificate, Some(live), gone(), "use"),
    ];
    for (own, stored, spare, expected) in cases {
        let shown = match decide(&own, stored, &spare, at(50)) {
            Decision::UseExisting { warning: None } => "use".to_owned(),
            Decision::UseExisting { warning: Some(w) } => format!("use, {w}"),
            Decision::Bootstrap { why } => format!("join, {why}"),
            Decision::Fail(why) => format!("fail, {why}"),
        };
        assert_eq!(shown, expected, "{own:?} {stored:?} {spare:?}");
    }
}

#[test]
fn which_pair_is_adopted() {
    // (stored, offered, adopted)
    let cases = [
        (None, valid(0, 100), true),
        // Better than nothing: the clock may be wrong.
        (None, valid(0, 10), true),
        (Some(valid(0, 10)), valid(0, 100), true),
        (Some(valid(0, 10)), valid(5, 20), false),
        (Some(valid(0, 100)), valid(0, 100), false),
        (Some(valid(20, 100)), valid(0, 100), false),
        // What replaced the offered pair may be dated back to before it.
        (Some(valid(-300, 100)), valid(0, 100), false),
        (Some(valid(-86400, 100)), valid(0, 100), true),
        (Some(valid(-86400, 100)), valid(0, 10), false),
    ];
    for (stored, offered, adopted) in cases {
        let found = should_adopt(stored, offered, at(50));
        assert_eq!(found, adopted, "{stored:?} {offered:?}");
    }
}

async fn begun(
    files: &MemoryFiles,
    bootstrap: bool,
    rotate: bool,
    now: Timestamp,
) -> Result<Begun, IdentityError> {
    let paths = StartFiles {
        kubeconfig: KUBECONFIG.into(),
        bootstrap_kubeconfig: bootstrap.then(|| BOOTSTRAP.into()),
    };
    begin(&paths, store(files).await, rotate, now).await
}

fn put(files: &MemoryFiles, path: &str, user: &str) {
    let text = kubeconfig(user);
    files.put_file(Path::new(path), text.as_bytes()).unwrap();
}

#[tokio::test]
async fn a_node_that_joined_goes_on_without_its_bootstrap_file() {
    let files = MemoryFiles::default();
    let pair = Authority::new().pair(NODE, at(0), at(100));
    let store = store(&files).await;
    store.update(&pair, at(0)).await.unwrap();
    put(&files, KUBECONFIG, &user_of_file(&store.current_path()));
    let begun = begun(&files, true, true, at(50)).await.unwrap();
    assert_eq!(begun.renewal, Renewal::Rotate);
    match begun.start {
        Start::Existing {
            pair: Some(found),
            renew_now: false,
            ..
        } => assert!(found.same_certificate(&pair)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_expired_a_torn_and_a_missing_certificate_mean_joining() {
    let authority = Authority::new();
    for case in ["expired", "torn", "missing"] {
        let files = MemoryFiles::default();
        let store = store(&files).await;
        let pair = authority.pair(NODE, at(0), at(10));
        match case {
            "expired" => store.update(&pair, at(0)).await.unwrap(),
            "torn" => files
                .put_file(&store.current_path(), b"-----BEGIN")
                .unwrap(),
            _ => {}
        }
        put(&files, KUBECONFIG, &user_of_file(&store.current_path()));
        put(&files, BOOTSTRAP, r#"{"token": "abcdef.0123456789abcdef"}"#);
        let begun = begun(&files, true, true, at(50)).await.unwrap();
        match begun.start {
            Start::Bootstrap { kubeconfig } => {
                assert_eq!(kubeconfig.path, Path::new(BOOTSTRAP), "{case}");
            }
            other => panic!("{case}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn one_clear_line_where_nothing_can_be_done() {
    let files = MemoryFiles::default();
    files.put(Path::new("/etc"), EntryKind::Directory).unwrap();
    let error = begun(&files, true, true, at(0)).await.unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains(KUBECONFIG) && error.contains(BOOTSTRAP),
        "{error}"
    );
    assert!(!error.contains('\n'), "{error}");
    files
        .put_file(Path::new(KUBECONFIG), b"{\"clusters\": 7}")
        .unwrap();
    let error = begun(&files, false, true, at(0)).await.unwrap_err();
    assert!(error.to_string().contains("clusters"), "{error}");
}

#[tokio::test]
async fn a_pair_in_the_kubeconfig_is_adopted_once() {
    let files = MemoryFiles::default();
    let authority = Authority::new();
    let embedded = authority.pair_of("kubernetes-admin", at(0), at(1000));
    put(&files, KUBECONFIG, &user_with(&embedded));
    let first = begun(&files, true, true, at(50)).await.unwrap();
    assert_eq!(first.renewal, Renewal::Rotate);
    let Start::Existing {
        pair: Some(pair),
        renew_now: true,
        ..
    } = first.start
    else {
        panic!("{:?}", first.start);
    };
    assert!(pair.same_certificate(&embedded));
    let stored = first.store.load().await.pair().unwrap();
    assert!(stored.same_certificate(&embedded));
    assert_eq!(files.mode(&pki("kubelet-client-current.pem")), Some(0o600));
    // Rotated since: the kubeconfig, which nobody rewrote, does not take it back, not even when
    // what stands in it has expired.
    let rotated = authority.pair(NODE, at(-200), at(5000));
    first.store.update(&rotated, at(60)).await.unwrap();
    for now in [at(70), at(2000)] {
        match begun(&files, true, true, now).await.unwrap().start {
            Start::Existing {
                pair: Some(pair),
                renew_now: false,
                ..
            } => assert!(pair.same_certificate(&rotated)),
            other => panic!("{other:?}"),
        }
    }
    // A new pair put there by hand counts.
    let newer = authority.pair(NODE, at(2000), at(9000));
    put(&files, KUBECONFIG, &user_with(&newer));
    match begun(&files, true, true, at(2100)).await.unwrap().start {
        Start::Existing {
            pair: Some(pair),
            renew_now: true,
            ..
        } => assert!(pair.same_certificate(&newer)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn named_files_count_again_when_the_store_has_expired() {
    let files = MemoryFiles::default();
    let authority = Authority::new();
    let [old, new] = [at(100), at(1000)].map(|end| authority.pair(NODE, at(0), end));
    store(&files).await.update(&old, at(1)).await.unwrap();
    let node_pem = Path::new("/etc/node.pem");
    files.put_file(node_pem, new.to_pem().as_bytes()).unwrap();
    put(&files, KUBECONFIG, &user_of_file(node_pem));
    for (now, expected) in [(at(50), &old), (at(150), &new), (at(160), &new)] {
        let begun = begun(&files, false, true, now).await.unwrap();
        match begun.start {
            Start::Existing {
                pair: Some(pair),
                renew_now: false,
                ..
            } => assert!(pair.same_certificate(expected), "{now}"),
            other => panic!("{other:?}"),
        }
        let stored = begun.store.load().await.pair().unwrap();
        assert!(stored.same_certificate(expected), "{now}");
    }
    assert_eq!(dated(&files), 2);
}

#[tokio::test]
async fn without_rotation_the_kubeconfig_has_the_word() {
    let files = MemoryFiles::default();
    let authority = Authority::new();
    let stored = authority.pair(NODE, at(500), at(1000));
    let own = authority.pair(NODE, at(0), at(1000));
    store(&files).await.update(&stored, at(1)).await.unwrap();
    put(&files, KUBECONFIG, &user_with(&own));
    let node_pem = Path::new("/etc/node.pem");
    files.put_file(node_pem, own.to_pem().as_bytes()).unwrap();
    for (user, renewal) in [
        (user_with(&own), Renewal::Keep),
        (user_of_file(node_pem), Renewal::Reread),
    ] {
        put(&files, KUBECONFIG, &user);
        let begun = begun(&files, false, false, at(600)).await.unwrap();
        assert_eq!(begun.renewal, renewal);
        match begun.start {
            Start::Existing {
                pair: Some(pair),
                renew_now: false,
                ..
            } => assert!(pair.same_certificate(&own)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(dated(&files), 1);
}

#[tokio::test]
async fn a_token_stays_a_token() {
    let files = MemoryFiles::default();
    let leftover = Authority::new().pair(NODE, at(0), at(1000));
    store(&files).await.update(&leftover, at(1)).await.unwrap();
    put(&files, KUBECONFIG, r#"{"token": "t"}"#);
    let begun = begun(&files, false, true, at(10)).await.unwrap();
    assert!(matches!(begun.start, Start::Existing { pair: None, .. }));
}
