//! A process that does nothing but save is killed at any moment; what it had reported as saved is
//! there, whole.
#![allow(clippy::unwrap_used)] // all of it is test code

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use krablet_checkpoint::{Checkpoint, Loaded, State};
use krablet_linux::HostFiles;
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Count {
    n: u64,
    /// Makes a write take a while.
    ballast: String,
}

impl State for Count {
    const KIND: &'static str = "Count";
}

const PATH: &str = "KRABLET_CHECKPOINT_TEST_PATH";

fn open(path: PathBuf) -> Checkpoint<Count> {
    Checkpoint::new(Arc::new(HostFiles), path)
}

/// Not a test of its own: the process that is killed, when the other test starts it.
#[tokio::test]
async fn child() {
    let Some(path) = std::env::var_os(PATH) else {
        return;
    };
    let mut checkpoint = open(path.into());
    for n in 0.. {
        let ballast = "x".repeat(usize::try_from(n % 7).unwrap() * 20_000);
        checkpoint.save(&Count { n, ballast }).await.unwrap();
        let mut out = std::io::stdout();
        writeln!(out, "saved {n}")
            .and_then(|()| out.flush())
            .unwrap();
    }
}

#[tokio::test]
async fn whatever_was_saved_survives_the_kill() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("count");
    for rounds in [1, 2, 3, 5, 8, 13] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture"])
            .env(PATH, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut saved = None;
        for line in lines.by_ref() {
            if let Some((_, n)) = line.unwrap().split_once("saved ") {
                saved = Some(n.parse::<u64>().unwrap());
            }
            if saved == Some(rounds) {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(saved, Some(rounds), "the child did not get that far");
        match open(path.clone()).load().await {
            Loaded::Valid(count) => assert!(count.n >= rounds, "{} < {rounds}", count.n),
            other => panic!("{other:?}"),
        }
    }
    let names = std::fs::read_dir(dir.path()).unwrap();
    let names: Vec<_> = names.map(|e| e.unwrap().file_name()).collect();
    assert!(names.len() <= 2, "more than one leftover: {names:?}");
}
