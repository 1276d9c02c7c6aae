//! Answers of `/logs/` over a directory and a journal of our own.

use http_body_util::BodyExt as _;

use super::*;
use crate::secure::query::tests::pairs;

struct Machine {
    dir: tempfile::TempDir,
    logs: NodeLogs,
}

impl Machine {
    /// Its journal knows `kubelet.service`, and tells how it was asked.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("log");
        std::fs::create_dir_all(top.join("app")).unwrap();
        std::fs::write(top.join("kern.log"), "0123456789").unwrap();
        std::fs::write(top.join("app/app.log"), "of the app").unwrap();
        std::fs::write(dir.path().join("secret"), "node").unwrap();
        std::os::unix::fs::symlink("../secret", top.join("out")).unwrap();
        let journal = dir.path().join("journalctl");
        let script = "if [ \"$1\" = --field ]; then echo kubelet.service; else echo \"$@\"; echo late >&2; fi\n";
        std::fs::write(&journal, script).unwrap();
        let journal = ["sh".to_owned(), journal.to_string_lossy().into_owned()];
        let mut logs = NodeLogs::new(top, journal.to_vec());
        logs.queried = true;
        Self { dir, logs }
    }

    async fn ask(&self, path: &str, query: &str, head: &[(&'static str, &str)]) -> (u16, String) {
        let mut asked = HeaderMap::new();
        for (name, value) in head {
            asked.insert(*name, value.parse().unwrap());
        }
        let answer = answer(&self.logs, path.to_owned(), &pairs(query), &asked).await;
        let code = answer.status().as_u16();
        let to = answer.headers().get("location").cloned();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        (code, to.map_or(text, |to| to.to_str().unwrap().to_owned()))
    }
}

#[tokio::test]
async fn files_and_lists() {
    let machine = Machine::new();
    let list = |names: &[&str]| {
        let links = names.iter().map(|n| format!("<a href=\"{n}\">{n}</a>\n"));
        let links: String = links.collect();
        format!(
            "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n{links}</pre>\n"
        )
    };
    for (path, code, text) in [
        ("", 200, list(&["app/", "kern.log", "out"])),
        ("app/", 200, list(&["app.log"])),
        ("app", 301, "app/".to_owned()),
        ("kern.log/", 301, "../kern.log".to_owned()),
        ("kern.log", 200, "0123456789".to_owned()),
        ("../kern.log", 200, "0123456789".to_owned()),
        ("out", 404, "404 page not found\n".to_owned()),
        ("../secret", 404, "404 page not found\n".to_owned()),
        (
            "../../../../etc/passwd",
            404,
            "404 page not found\n".to_owned(),
        ),
        ("kern.log/x", 404, "404 page not found\n".to_owned()),
        ("none", 404, "404 page not found\n".to_owned()),
    ] {
        assert_eq!(machine.ask(path, "", &[]).await, (code, text), "{path}");
    }
    let part = machine.ask("kern.log", "", &[("range", "bytes=-3")]).await;
    assert_eq!(part, (206, "789".to_owned()));
    let none = machine.ask("kern.log", "", &[("range", "bytes=99-")]).await;
    assert_eq!(none.0, 416);
    let later = [("if-modified-since", "Fri, 01 Jan 2100 00:00:00 GMT")];
    assert_eq!(machine.ask("kern.log", "", &later).await.0, 304);
}

#[tokio::test]
async fn queries() {
    let mut machine = Machine::new();
    let asked = "--utc --no-pager --output=short-precise --unit=kubelet\n";
    for (query, code, text) in [
        ("query=kern", 200, "0123456789"),
        ("query=kern.log", 200, "0123456789"),
        ("query=app", 200, "of the app"),
        ("query=out", 200, "\nlog not found for out\n"),
        ("query=none", 200, "\nlog not found for none\n"),
        ("query=..", 200, "\nlog not found for ..\n"),
        ("query=kern&query=app", 200, "0123456789of the app"),
        ("query=/kern.log", 200, "0123456789"),
        (
            "query=kern&tailLines=1",
            200,
            "\noptions present and query resolved to log files for [kern]\ntry without specifying options\n",
        ),
        (
            "tailLines=1",
            406,
            "query: Required value: cannot be empty with options\n",
        ),
        (
            "tailLines=x",
            400,
            "tailLines: Invalid value: \"x\": strconv.Atoi: parsing \"x\": invalid syntax\n",
        ),
    ] {
        let found = machine.ask("", query, &[]).await;
        assert_eq!(found, (code, text.to_owned()), "{query}");
    }
    let (code, text) = machine.ask("", "query=kubelet", &[]).await;
    assert!(
        code == 200 && text.contains(asked) && text.contains("late"),
        "{text}"
    );
    let (code, _) = machine.ask("", "query=/../secret", &[]).await;
    assert_eq!(code, 406);
    let with_path = machine.ask("kern.log", "query=kern", &[]).await;
    assert_eq!(with_path, (406, "path not allowed in query mode\n".into()));

    machine.logs.journal = vec!["/no/such/program".to_owned()];
    let (_, text) = machine.ask("", "query=kubelet", &[]).await;
    assert_eq!(text, "\nlog not found for kubelet\n");
    machine.logs.queried = false;
    let (_, text) = machine.ask("kern.log", "query=kern", &[]).await;
    assert_eq!(text, "0123456789");
    machine.logs.served = false;
    let shut = machine.ask("", "", &[]).await;
    assert_eq!(shut, (405, "logs endpoint is disabled.\n".to_owned()));
    drop(machine.dir);
}

#[tokio::test]
async fn few_queries_at_a_time() {
    let machine = Machine::new();
    let all = u32::try_from(MAX_QUERIES).unwrap();
    let held = machine.logs.slots.clone().try_acquire_many_owned(all);
    assert_eq!(machine.ask("", "query=kern", &[]).await.0, 429);
    drop(held);
    assert_eq!(machine.ask("", "query=kern", &[]).await.0, 200);
    assert_eq!(machine.logs.slots.available_permits(), MAX_QUERIES);
}
