//! The file and URL sources, from a change on disk or at a server to the set they deliver.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use jiff::Timestamp;
use krablet_linux::{DirectoryWatch, HostFiles, InotifyWatch, WatchStream};
use krablet_net::{GrpcHealth, HttpGet, HttpResponse, Net, NetError};
use krablet_pod::PodUid;
use krablet_pod::api::Pod;
use krablet_sources::{
    Decode, FileSource, FileSourceConfig, SourceSet, TakeOver, UrlSource, UrlSourceConfig,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// A manifest is `name` or `name uid`; `bad` is refused.
fn decode() -> Decode {
    Arc::new(|bytes, _| {
        let text = String::from_utf8_lossy(bytes).trim().to_owned();
        if text.is_empty() || text.contains("bad") {
            return Err(format!("cannot read {text:?}"));
        }
        let (name, uid) = text.split_once(' ').unwrap_or((&text, &text));
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.uid = Some(uid.to_owned());
        Ok(vec![pod])
    })
}

struct Watched {
    dir: tempfile::TempDir,
    sets: mpsc::Receiver<SourceSet>,
    _task: JoinSet<()>,
}

impl Watched {
    /// Watches `path` below a new directory.
    fn new(path: &str, take_over: Option<Arc<dyn TakeOver>>) -> Self {
        // Whatever is seen in time was heard of: nobody waits for the next check.
        Self::by(
            path,
            take_over,
            Arc::new(InotifyWatch),
            Duration::from_secs(3600),
        )
    }

    fn by(
        path: &str,
        take_over: Option<Arc<dyn TakeOver>>,
        watch: Arc<dyn DirectoryWatch>,
        check_frequency: Duration,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = FileSourceConfig {
            path: dir.path().join(path),
            check_frequency,
        };
        let (sender, sets) = mpsc::channel(8);
        let files = Arc::new(HostFiles);
        let source = FileSource::new(config, files, watch, decode(), take_over);
        let mut task = JoinSet::new();
        task.spawn(source.run(sender));
        Self {
            dir,
            sets,
            _task: task,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        // As a careful editor does it: whole or not at all, and no other directory notices.
        let temporary = self.path(name).with_file_name(".tmp");
        std::fs::write(&temporary, text).unwrap();
        std::fs::rename(temporary, self.path(name)).unwrap();
    }

    /// Waits for a set of exactly these pods.
    async fn expect(&mut self, wanted: &[&str]) {
        let mut last = String::from("no set at all");
        let wait = async {
            while let Some(set) = self.sets.recv().await {
                let mut uids: Vec<String> = set
                    .pods
                    .iter()
                    .filter_map(|p| p.metadata.uid.clone())
                    .collect();
                uids.sort();
                if uids == wanted {
                    return true;
                }
                last = format!("{uids:?}");
            }
            false
        };
        let came = tokio::time::timeout(Duration::from_secs(30), wait).await;
        assert_eq!(came, Ok(true), "wanted {wanted:?}, last was {last}");
    }
}

#[tokio::test]
async fn a_directory_is_followed() {
    let mut w = Watched::new("", None);
    w.expect(&[]).await;
    w.put("a.yaml", "a");
    w.expect(&["a"]).await;
    w.put("b.yaml", "b");
    w.put(".hidden", "h");
    std::fs::create_dir(w.path("sub")).unwrap();
    std::fs::write(w.path("sub/c.yaml"), "c").unwrap();
    w.expect(&["a", "b"]).await;
    w.put("a.yaml", "a a2");
    w.expect(&["a2", "b"]).await;
    std::fs::remove_file(w.path("b.yaml")).unwrap();
    w.expect(&["a2"]).await;
}

#[tokio::test]
async fn a_broken_edit_keeps_the_last_good_pod_and_costs_others_nothing() {
    let mut w = Watched::new("", None);
    w.put("a.yaml", "a");
    w.expect(&["a"]).await;
    w.put("a.yaml", "bad");
    w.put("never-good.yaml", "bad");
    w.put("b.yaml", "b");
    w.expect(&["a", "b"]).await;
    w.put("a.yaml", "a a2");
    w.expect(&["a2", "b"]).await;
    std::fs::remove_file(w.path("a.yaml")).unwrap();
    w.expect(&["b"]).await;
}

#[tokio::test]
async fn one_file_is_followed_even_if_it_comes_later() {
    let mut w = Watched::new("one.yaml", None);
    w.expect(&[]).await;
    w.put("one.yaml", "a");
    w.put("other.yaml", "b");
    w.expect(&["a"]).await;
    std::fs::remove_file(w.path("one.yaml")).unwrap();
    w.expect(&[]).await;
}

#[tokio::test]
async fn a_directory_that_comes_goes_and_comes_again_is_followed() {
    let mut w = Watched::new("manifests", None);
    w.expect(&[]).await;
    for _ in 0..3 {
        std::fs::create_dir(w.path("manifests")).unwrap();
        w.put("manifests/a.yaml", "a");
        w.expect(&["a"]).await;
        w.put("manifests/b.yaml", "b");
        w.expect(&["a", "b"]).await;
        std::fs::remove_file(w.path("manifests/a.yaml")).unwrap();
        w.expect(&["b"]).await;
        std::fs::remove_dir_all(w.path("manifests")).unwrap();
        w.expect(&[]).await;
    }
}

#[tokio::test]
async fn a_directory_is_waited_for_even_if_those_above_it_lack() {
    let mut w = Watched::new("far/down/manifests", None);
    w.expect(&[]).await;
    std::fs::create_dir_all(w.path("far/down/manifests")).unwrap();
    w.put("far/down/manifests/a.yaml", "a");
    w.expect(&["a"]).await;
    w.put("far/down/manifests/b.yaml", "b");
    w.expect(&["a", "b"]).await;
}

#[tokio::test]
async fn a_directory_in_the_place_of_another_is_followed() {
    let mut w = Watched::new("manifests", None);
    for (name, pod) in [("manifests", "a"), ("next", "b")] {
        std::fs::create_dir(w.path(name)).unwrap();
        w.put(&format!("{name}/one.yaml"), pod);
    }
    w.expect(&["a"]).await;
    std::fs::rename(w.path("manifests"), w.path("old")).unwrap();
    std::fs::rename(w.path("next"), w.path("manifests")).unwrap();
    w.expect(&["b"]).await;
    w.put("manifests/two.yaml", "c");
    w.expect(&["b", "c"]).await;
}

#[tokio::test]
async fn a_link_to_a_directory_is_followed_wherever_it_leads() {
    let mut w = Watched::new("manifests", None);
    let point = |w: &Watched, target: &str| {
        std::os::unix::fs::symlink(target, w.path("link")).unwrap();
        std::fs::rename(w.path("link"), w.path("manifests")).unwrap();
    };
    for (name, pod) in [("first", "a"), ("second", "b")] {
        std::fs::create_dir(w.path(name)).unwrap();
        w.put(&format!("{name}/one.yaml"), pod);
    }
    point(&w, "first");
    w.expect(&["a"]).await;
    w.put("first/two.yaml", "c");
    w.expect(&["a", "c"]).await;
    point(&w, "second");
    w.expect(&["b"]).await;
    w.put("second/two.yaml", "d");
    w.expect(&["b", "d"]).await;
    // Made anew behind the link.
    std::fs::remove_dir_all(w.path("second")).unwrap();
    w.expect(&[]).await;
    std::fs::create_dir(w.path("second")).unwrap();
    w.put("second/one.yaml", "e");
    w.expect(&["e"]).await;
    w.put("second/two.yaml", "f");
    w.expect(&["e", "f"]).await;
}

/// A kernel that has no watches left.
struct Deaf;

impl DirectoryWatch for Deaf {
    fn watch(&self, _: &Path) -> std::io::Result<WatchStream> {
        Err(std::io::ErrorKind::QuotaExceeded.into())
    }
}

#[tokio::test]
async fn without_a_watch_the_directory_is_looked_at_periodically() {
    let mut w = Watched::by("", None, Arc::new(Deaf), Duration::from_millis(20));
    w.expect(&[]).await;
    w.put("a.yaml", "a");
    w.expect(&["a"]).await;
    std::fs::remove_file(w.path("a.yaml")).unwrap();
    w.expect(&[]).await;
}

#[tokio::test]
async fn symlinked_manifests_are_read_through_the_link() {
    let mut w = Watched::new("", None);
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("real"), "a").unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("real"), w.path("link.yaml")).unwrap();
    std::os::unix::fs::symlink(Path::new("/nowhere"), w.path("dangling.yaml")).unwrap();
    w.expect(&["a"]).await;
}

#[tokio::test]
async fn a_link_that_cannot_be_followed_keeps_the_last_good_pod() {
    let mut w = Watched::new("", None);
    let elsewhere = tempfile::tempdir().unwrap();
    let real = elsewhere.path().join("real");
    let point = |w: &Watched, target: &Path| {
        std::os::unix::fs::symlink(target, w.path(".link")).unwrap();
        std::fs::rename(w.path(".link"), w.path("link.yaml")).unwrap();
    };
    std::fs::write(&real, "a").unwrap();
    point(&w, &real);
    w.expect(&["a"]).await;
    // To itself.
    point(&w, Path::new("link.yaml"));
    w.put("b.yaml", "b");
    w.expect(&["a", "b"]).await;
    std::fs::write(&real, "a a2").unwrap();
    point(&w, &real);
    w.expect(&["a2", "b"]).await;
    point(&w, Path::new("/nowhere"));
    w.expect(&["b"]).await;
    point(&w, &real);
    w.expect(&["a2", "b"]).await;
    point(&w, elsewhere.path());
    w.expect(&["b"]).await;
}

struct Adopts;

#[async_trait]
impl TakeOver for Adopts {
    async fn running_as(&self, pod: &Pod, _: Timestamp) -> Option<PodUid> {
        (pod.metadata.name.as_deref() == Some("a")).then(|| "theirs".into())
    }
}

#[tokio::test]
async fn running_pods_are_adopted_under_their_uid() {
    let mut w = Watched::new("", Some(Arc::new(Adopts)));
    w.put("a.yaml", "a");
    w.put("b.yaml", "b");
    w.expect(&["b", "theirs"]).await;
}

/// Answers from a list, the last one for ever.
struct Scripted {
    answers: Mutex<Vec<Result<HttpResponse, NetError>>>,
    asked: Mutex<Vec<HttpGet>>,
}

#[async_trait]
impl Net for Scripted {
    async fn http_get(&self, request: HttpGet) -> Result<HttpResponse, NetError> {
        self.asked.lock().unwrap().push(request);
        let mut answers = self.answers.lock().unwrap();
        if answers.len() > 1 {
            return answers.remove(0);
        }
        answers[0].clone()
    }

    async fn tcp_connect(&self, _: &str, _: u16, _: Duration) -> Result<(), NetError> {
        Err(NetError::Timeout)
    }

    async fn grpc_health(
        &self,
        _: &str,
        _: u16,
        _: &str,
        _: Duration,
    ) -> Result<GrpcHealth, NetError> {
        Err(NetError::Timeout)
    }
}

fn answer(status: u16, body: &str) -> Result<HttpResponse, NetError> {
    Ok(HttpResponse {
        status,
        body: body.into(),
        ..HttpResponse::default()
    })
}

/// Knows how old the manifest of a running pod may be.
struct AdoptsOlderThan(Timestamp);

#[async_trait]
impl TakeOver for AdoptsOlderThan {
    async fn running_as(&self, _: &Pod, changed: Timestamp) -> Option<PodUid> {
        (changed <= self.0).then(|| "theirs".into())
    }
}

/// As by `cp -p`, `mv` or a tree with fixed times: what counts is when it came.
#[tokio::test]
async fn a_manifest_that_was_put_in_place_since_is_new_however_old_its_content() {
    let at = |second| Timestamp::from_second(second).unwrap();
    for (older_than, uid) in [(at(1_000_000_000), "a"), (at(9_000_000_000), "theirs")] {
        let mut w = Watched::new("", Some(Arc::new(AdoptsOlderThan(older_than))));
        w.expect(&[]).await;
        std::fs::write(w.path(".tmp"), "a").unwrap();
        let file = std::fs::File::options().write(true).open(w.path(".tmp"));
        file.unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        std::fs::rename(w.path(".tmp"), w.path("a.yaml")).unwrap();
        w.expect(&[uid]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_a_url_is_adopted_only_if_the_server_says_that_it_is_the_same() {
    let at = |second| Timestamp::from_second(second).unwrap();
    for (last_modified, uid) in [(None, "a"), (Some(at(101)), "a"), (Some(at(100)), "theirs")] {
        let response = answer(200, "a").map(|response| HttpResponse {
            last_modified,
            ..response
        });
        let net = Arc::new(Scripted {
            answers: Mutex::new(vec![response]),
            asked: Mutex::default(),
        });
        let config = UrlSourceConfig {
            url: "http://node/pods".into(),
            headers: vec![],
            check_frequency: Duration::from_secs(20),
        };
        let take_over = Some(Arc::new(AdoptsOlderThan(at(100))) as Arc<dyn TakeOver>);
        let (sender, mut sets) = mpsc::channel(8);
        let mut task = JoinSet::new();
        task.spawn(UrlSource::new(config, net, decode(), take_over).run(sender));
        let set = sets.recv().await.unwrap();
        let got = set.pods[0].metadata.uid.as_deref();
        assert_eq!(got, Some(uid), "{last_modified:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_url_is_polled_and_bad_answers_change_nothing() {
    let net = Arc::new(Scripted {
        answers: Mutex::new(vec![
            answer(200, "a"),
            answer(200, "a"),
            answer(500, "b"),
            answer(200, ""),
            answer(200, "bad"),
            Err(NetError::Timeout),
            answer(200, "c"),
        ]),
        asked: Mutex::default(),
    });
    let config = UrlSourceConfig {
        url: "http://node/pods".into(),
        headers: vec![("X-Node".into(), "n".into())],
        check_frequency: Duration::from_secs(20),
    };
    let (sender, mut sets) = mpsc::channel(8);
    let mut task = JoinSet::new();
    task.spawn(UrlSource::new(config, net.clone(), decode(), Some(Arc::new(Adopts))).run(sender));
    let uid = |set: SourceSet| set.pods[0].metadata.uid.clone().unwrap();
    assert_eq!(uid(sets.recv().await.unwrap()), "theirs");
    assert_eq!(uid(sets.recv().await.unwrap()), "c");
    let asked = net.asked.lock().unwrap();
    assert_eq!(asked.len(), 7);
    assert_eq!(asked[0].headers, [("X-Node".to_owned(), "n".to_owned())]);
    assert_eq!(asked[0].timeout, Duration::from_secs(10));
}
