//! Logs read as they are written, rotated and ended.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use futures::FutureExt as _;
use krablet_logs::{LogOptions, LogReader, LogWatch};
use tokio::sync::oneshot;

struct Log {
    dir: tempfile::TempDir,
    watch: LogWatch,
}

impl Log {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            watch: LogWatch::default(),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("0.log")
    }

    fn open(&self) -> File {
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        options.open(self.path()).unwrap()
    }

    fn rotate(&self, stamp: &str) {
        let to = self.dir.path().join(format!("0.log.{stamp}"));
        fs::rename(self.path(), to).unwrap();
    }

    async fn follow(&self, options: LogOptions) -> (LogReader, oneshot::Sender<()>) {
        let (end, ended) = oneshot::channel::<()>();
        let follow = LogOptions {
            follow: true,
            ..options
        };
        let ended = ended.map(drop).boxed();
        let path = self.path();
        let reader = LogReader::open(&path, &follow, &self.watch, ended);
        (reader.await.unwrap(), end)
    }

    async fn read(&self, path: &Path, options: &LogOptions) -> String {
        let never = std::future::pending().boxed();
        let mut reader = LogReader::open(path, options, &self.watch, never)
            .await
            .unwrap();
        rest(&mut reader).await
    }
}

fn line(file: &mut File, text: &str) {
    writeln!(file, "2020-01-01T00:00:00.5Z stdout F {text}").unwrap();
}

/// All there is until the end.
async fn rest(reader: &mut LogReader) -> String {
    let mut all = Vec::new();
    while let Some(piece) = reader.next().await.unwrap() {
        all.extend_from_slice(&piece);
    }
    String::from_utf8(all).unwrap()
}

/// Pieces until so many bytes came.
async fn some(reader: &mut LogReader, bytes: usize) -> String {
    let mut all = Vec::new();
    while all.len() < bytes {
        all.extend_from_slice(&reader.next().await.unwrap().unwrap());
    }
    String::from_utf8(all).unwrap()
}

#[tokio::test]
async fn all_of_it_or_its_tail() {
    let log = Log::new();
    let mut file = log.open();
    for n in 0..10_000 {
        line(&mut file, &n.to_string());
    }
    write!(file, "2020-01-01T00:00:00.5Z stdout F no end").unwrap();
    let all = log.read(&log.path(), &LogOptions::default()).await;
    assert_eq!(all.lines().count(), 10_001);
    assert!(all.starts_with("0\n1\n") && all.ends_with("9999\nno end"));
    let tail = LogOptions {
        tail: Some(2),
        ..LogOptions::default()
    };
    assert_eq!(log.read(&log.path(), &tail).await, "9998\n9999\n");
    let link = log.dir.path().join("link.log");
    std::os::unix::fs::symlink("0.log", &link).unwrap();
    assert_eq!(log.read(&link, &tail).await, "9998\n9999\n");
    let none = LogOptions {
        tail: Some(0),
        ..tail
    };
    assert_eq!(log.read(&log.path(), &none).await, "");
}

#[tokio::test]
async fn a_missing_log_is_named() {
    let log = Log::new();
    let never = std::future::pending().boxed();
    let options = LogOptions::default();
    let opened = LogReader::open(&log.path(), &options, &log.watch, never).await;
    let why = opened.err().unwrap().to_string();
    assert!(
        why.contains("0.log") && why.contains("No such file"),
        "{why}"
    );
}

#[tokio::test]
async fn followed_while_it_is_written_until_the_container_ends() {
    let log = Log::new();
    let mut file = log.open();
    line(&mut file, "before");
    let (mut reader, end) = log.follow(LogOptions::default()).await;
    assert_eq!(some(&mut reader, 7).await, "before\n");
    assert!(reader.next().now_or_never().is_none());
    line(&mut file, "more");
    assert_eq!(some(&mut reader, 5).await, "more\n");
    // A line that is written in two goes is shown once it is whole.
    write!(file, "2020-01-01T00:00:00.5Z std").unwrap();
    assert!(reader.next().now_or_never().is_none());
    writeln!(file, "out F whole").unwrap();
    assert_eq!(some(&mut reader, 6).await, "whole\n");
    line(&mut file, "last words");
    end.send(()).unwrap();
    assert_eq!(rest(&mut reader).await, "last words\n");
    drop(reader);
    assert_eq!(log.watch.directories(), 0);
}

#[tokio::test]
async fn nothing_is_lost_or_doubled_over_rotations() {
    let log = Log::new();
    let mut file = log.open();
    let (mut reader, end) = log.follow(LogOptions::default()).await;
    let mut number = 0;
    let mut expected = String::new();
    let mut shown = String::new();
    for round in 0..20 {
        for _ in 0..500 {
            line(&mut file, &number.to_string());
            expected.push_str(&format!("{number}\n"));
            number += 1;
        }
        // Some rotations find the reader far behind.
        if round % 3 == 0 {
            shown.push_str(&some(&mut reader, expected.len() - shown.len()).await);
        }
        log.rotate(&format!("20260101-{round:06}"));
        // As a runtime that has not reopened its log yet.
        line(&mut file, "late");
        expected.push_str("late\n");
        file = log.open();
    }
    end.send(()).unwrap();
    shown.push_str(&rest(&mut reader).await);
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn what_cannot_be_read_is_passed_over() {
    let log = Log::new();
    let mut file = log.open();
    line(&mut file, "good");
    file.write_all(&[0xff, 0xfe, b'\n']).unwrap();
    file.write_all(&vec![b'x'; 3 * 1024 * 1024]).unwrap();
    file.write_all(b"\n").unwrap();
    line(&mut file, "better");
    let all = log.read(&log.path(), &LogOptions::default()).await;
    assert_eq!(all, "good\nbetter\n");
}
