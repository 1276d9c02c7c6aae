//! The last words of a container: what it wrote to its termination message file, or the end of
//! its log if its policy says so and it failed silently.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use krablet_cri::v1;
use krablet_linux::Files;
use krablet_pod::{labels, paths};
use tokio::time::timeout;

/// What is read of the message file, from its end.
const MAX_MESSAGE: usize = 4096;
/// What is kept of a log.
const MAX_LOG: usize = 2048;
const MAX_LOG_LINES: usize = 80;
/// Enough of the log's end to hold 80 lines with their prefixes, and the longest line (16 KiB)
/// cut in two at the front.
const LOG_TAIL: usize = 32 << 10;
/// A file system that hangs costs the message, not the observation.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// Where to look for an exited container's message.
#[derive(Debug, PartialEq, Eq)]
struct Sources<'a> {
    file: Option<&'a str>,
    log: Option<&'a str>,
}

fn sources(status: &v1::ContainerStatus) -> Sources<'_> {
    let annotation = |key| status.annotations.get(key).map(String::as_str);
    let wanted = annotation(labels::TERMINATION_MESSAGE_PATH).filter(|path| !path.is_empty());
    let file = wanted.and_then(|wanted| {
        let wanted = wanted.trim_start_matches('/');
        let mount = status.mounts.iter().find(|mount| {
            let path = mount.container_path.strip_prefix('/');
            path == Some(wanted)
        })?;
        Some(mount.host_path.as_str())
    });
    // One that never ran has no log.
    let falls_back = annotation(labels::TERMINATION_MESSAGE_POLICY)
        == Some("FallbackToLogsOnError")
        && status.exit_code != 0
        && status.reason != "ContainerCannotRun";
    Sources {
        file,
        log: falls_back.then_some(status.log_path.as_str()),
    }
}

/// What is left of an exited container on the disk.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LastWords {
    pub(crate) message: String,
    /// It was stopped to make way for another instance.
    pub(crate) stopped_to_restart: bool,
}

/// Fails if it cannot be told whether the end is final: nothing may be told of it then.
pub(crate) async fn read(
    files: &dyn Files,
    status: &v1::ContainerStatus,
) -> Result<LastWords, String> {
    Ok(LastWords {
        message: message(files, status).await,
        stopped_to_restart: is_marked(files, &status.log_path).await?,
    })
}

async fn is_marked(files: &dyn Files, log: &str) -> Result<bool, String> {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    let Some(mark) = paths::restart_mark(Path::new(log)) else {
        return Ok(false);
    };
    let failed = |why: &dyn fmt::Display| Err(format!("{}: {why}", mark.display()));
    match timeout(READ_LIMIT, files.lstat(&mark)).await {
        Ok(Ok(_)) => Ok(true),
        Ok(Err(e)) if matches!(e.kind(), NotFound | NotADirectory | InvalidFilename) => Ok(false),
        Ok(Err(e)) => failed(&e),
        Err(_) => failed(&"looking for it takes too long"),
    }
}

/// Reads an exited container's message. What cannot be read is said in the message itself.
async fn message(files: &dyn Files, status: &v1::ContainerStatus) -> String {
    let sources = sources(status);
    if let Some(path) = sources.file {
        match tail(files, path, MAX_MESSAGE).await {
            Ok(bytes) if bytes.is_empty() => {}
            Ok(bytes) => return String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return format!("Error on reading termination log {path}: {error}"),
        }
    }
    let Some(path) = sources.log else {
        return String::new();
    };
    match tail(files, path, LOG_TAIL).await {
        Ok(bytes) => log_tail(&bytes, bytes.len() == LOG_TAIL),
        Err(error) => format!("Error on reading termination message from logs: {error}"),
    }
}

async fn tail(files: &dyn Files, path: &str, limit: usize) -> io::Result<Vec<u8>> {
    match timeout(READ_LIMIT, files.read_tail(Path::new(path), limit)).await {
        Ok(result) => result,
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "reading takes too long",
        )),
    }
}

/// What a container said last, from the end of its log in the format of CRI: time, stream, tags,
/// then the text. A line tagged `P` goes on in the next one. `cut`: the first line may be a rest.
fn log_tail(log: &[u8], cut: bool) -> String {
    let mut lines: Vec<&[u8]> = log.split_inclusive(|byte| *byte == b'\n').collect();
    if cut && !lines.is_empty() {
        lines.remove(0);
    }
    let first = lines.len().saturating_sub(MAX_LOG_LINES);
    let mut text = Vec::new();
    for line in &lines[first..] {
        if let Some((content, partial)) = content(line) {
            text.extend_from_slice(content);
            if !partial {
                text.push(b'\n');
            }
        }
    }
    let start = text.len().saturating_sub(MAX_LOG);
    String::from_utf8_lossy(&text[start..]).into_owned()
}

/// The text of one log line and whether it is a part of a longer one. Lines of no such shape are
/// skipped.
fn content(line: &[u8]) -> Option<(&[u8], bool)> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut fields = line.splitn(4, |byte| *byte == b' ');
    let (_time, stream, tags) = (fields.next()?, fields.next()?, fields.next()?);
    if stream != b"stdout" && stream != b"stderr" {
        return None;
    }
    let first_tag = tags.split(|byte| *byte == b':').next()?;
    Some((fields.next().unwrap_or_default(), first_tag == b"P"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::MemoryFiles;

    fn status(policy: &str, exit_code: i32) -> v1::ContainerStatus {
        let annotations = [
            (labels::TERMINATION_MESSAGE_PATH, "/dev/termination-log"),
            (labels::TERMINATION_MESSAGE_POLICY, policy),
        ];
        v1::ContainerStatus {
            exit_code,
            log_path: "/log".to_owned(),
            annotations: annotations
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
            mounts: vec![
                v1::Mount {
                    container_path: "/data".to_owned(),
                    host_path: "/other".to_owned(),
                    ..Default::default()
                },
                v1::Mount {
                    container_path: "/dev/termination-log".to_owned(),
                    host_path: "/host/message".to_owned(),
                    ..Default::default()
                },
            ],
            ..Default::default()
        }
    }

    const LOG: &str = "2024-01-01T00:00:00.000000001Z stdout F one\n\
                       2024-01-01T00:00:00.000000002Z stderr P two, \n\
                       what is this\n\
                       2024-01-01T00:00:00.000000003Z stderr F three\n\
                       2024-01-01T00:00:00.000000004Z stdout F \n";

    #[tokio::test]
    async fn which_message_is_taken() {
        // Policy, exit code, what the file and the log hold, and the message.
        type Case<'a> = (&'a str, i32, Option<&'a str>, Option<&'a str>, &'a str);
        let cases: &[Case<'_>] = &[
            ("File", 0, Some("bye"), Some(LOG), "bye"),
            ("File", 1, Some(""), Some(LOG), ""),
            ("File", 1, None, Some(LOG), ""),
            ("FallbackToLogsOnError", 1, Some("bye"), Some(LOG), "bye"),
            (
                "FallbackToLogsOnError",
                1,
                Some(""),
                Some(LOG),
                "one\ntwo, three\n\n",
            ),
            (
                "FallbackToLogsOnError",
                1,
                None,
                Some(LOG),
                "one\ntwo, three\n\n",
            ),
            ("FallbackToLogsOnError", 0, None, Some(LOG), ""),
            (
                "FallbackToLogsOnError",
                1,
                None,
                None,
                "Error on reading termination message from logs: entity not found",
            ),
        ];
        for (policy, code, file, log, expected) in cases {
            let files = MemoryFiles::default();
            for (path, text) in [("/host/message", file), ("/log", log)] {
                if let Some(text) = text {
                    files.write(path, text.as_bytes());
                }
            }
            let read = read(&files, &status(policy, *code)).await.unwrap().message;
            assert_eq!(read, *expected, "{policy} {code} {file:?} {log:?}");
        }
    }

    #[tokio::test]
    async fn the_end_of_a_long_message_is_kept() {
        let files = MemoryFiles::default();
        let mut text = vec![b'x'; 5000];
        text.extend_from_slice(b"the end");
        files.write("/host/message", &text);
        let message = read(&files, &status("File", 0)).await.unwrap().message;
        assert_eq!(message.len(), MAX_MESSAGE);
        assert!(message.ends_with("the end"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_system_that_hangs_costs_the_message_only() {
        let files = MemoryFiles::default();
        files.hang("/host/message");
        let message = read(&files, &status("File", 0)).await.unwrap().message;
        assert_eq!(
            message,
            "Error on reading termination log /host/message: reading takes too long"
        );
    }

    #[tokio::test]
    async fn the_mark_of_one_that_made_way_is_seen() {
        let files = MemoryFiles::default();
        let status = status("File", 0);
        assert!(!read(&files, &status).await.unwrap().stopped_to_restart);
        files.write("/log.restart", b"");
        assert!(read(&files, &status).await.unwrap().stopped_to_restart);
    }

    #[tokio::test(start_paused = true)]
    async fn a_mark_that_cannot_be_looked_for_is_no_answer() {
        let files = MemoryFiles::default();
        files.hang("/log.restart");
        let read = read(&files, &status("File", 0)).await;
        let expected = "/log.restart: looking for it takes too long";
        assert_eq!(read, Err(expected.to_owned()));
    }

    #[test]
    fn log_tails_are_bounded() {
        let line = |n: usize, text: &str| format!("t{n} stdout F {text}\n");
        let many: String = (0..200).map(|n| line(n, &n.to_string())).collect();
        let tail = log_tail(many.as_bytes(), false);
        assert_eq!(tail.lines().count(), MAX_LOG_LINES);
        assert!(tail.starts_with("120\n") && tail.ends_with("199\n"));

        let long: String = (0..10).map(|n| line(n, &"y".repeat(1000))).collect();
        assert_eq!(log_tail(long.as_bytes(), false).len(), MAX_LOG);

        // The rest of a line that was cut is not taken for a line.
        assert_eq!(log_tail(b"rest stdout F x\nt stdout F y\n", true), "y\n");
        assert_eq!(
            log_tail(b"\xff\xfe no\nt stdout F \xff\n", false),
            "\u{fffd}\n"
        );
        assert_eq!(log_tail(b"", true), "");
    }

    #[test]
    fn a_relative_message_path_is_absolute_in_the_container() {
        let mut status = status("File", 0);
        let key = labels::TERMINATION_MESSAGE_PATH.to_owned();
        status
            .annotations
            .insert(key, "dev/termination-log".to_owned());
        assert_eq!(sources(&status).file, Some("/host/message"));
    }
}
