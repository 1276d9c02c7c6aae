//! Logs as people read them: those of an earlier life, parts of them, their end while they are written and rotated, and the
//! end of large ones.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use krablet_e2e::cluster_stage::Joining;
use krablet_e2e::manifest::{self, scratch_volume, scratched, shell};
use krablet_e2e::{LONG, Member, status};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use tokio::time::timeout;

use crate::server::spawn_kubectl;

/// What kubectl shows of the pod's log.
async fn log(node: &Member, pod: &str, options: &[&str]) -> Result<String, String> {
    let arguments = [&["logs", pod], options].concat();
    let said = node.plane.kubectl(&arguments).await;
    said.map_err(|e| format!("{e:#}"))
}

/// Waits until this is all of it.
async fn shows(node: &Member, pod: &str, options: &[&str], expected: &str) {
    node.wait(
        pod,
        &format!("its log by {options:?}"),
        async || match log(node, pod, options).await? {
            text if text == expected => Ok(()),
            text => Err(format!("{text:?} instead of {expected:?}")),
        },
    )
    .await;
}

/// A pod of one container that is run once, or for ever, with a directory of the machine.
fn noted(node: &Member, name: &str, script: &str) -> serde_json::Value {
    let spec = json!({
        "containers": [scratched(shell("main", script))],
        "volumes": [scratch_volume(&node.stage.scratch(name))],
        "restartPolicy": "Never",
    });
    manifest::pod(name, spec)
}

/// kubectl that follows a log.
fn follow(node: &Member, pod: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = spawn_kubectl(node, &["logs", "-f", pod], Stdio::null());
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

async fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> Option<String> {
    let line = timeout(LONG, lines.next_line()).await;
    line.expect("no line comes").unwrap()
}

pub async fn of_an_earlier_life(node: &Member) {
    let pod = "lives";
    let script = "echo x >> /scratch/lives; n=$(busybox wc -l < /scratch/lives); \
                  echo life $n; echo error $n >&2; echo end $n; \
                  [ $n -lt 3 ] && exit 3; exec tail -f /dev/null";
    let mut manifest = noted(node, pod, script);
    manifest["spec"]["restartPolicy"] = json!("Always");
    node.create(&manifest).await;
    node.until(
        pod,
        "lives for the third time",
        |pod| match status::container(pod, "main")?.restart_count {
            2 => status::all_running(pod),
            _ => Err(status::shown(pod)),
        },
    )
    .await;
    // Which of the two streams the runtime reads first is its own affair, the order within each is not.
    let sorted = |text: String| {
        let errors = text.lines().filter(|line| line.starts_with("error"));
        let others = text.lines().filter(|line| !line.starts_with("error"));
        let all: Vec<String> = others.chain(errors).map(str::to_owned).collect();
        all
    };
    for (options, life) in [(&["--previous"][..], 2), (&[][..], 3)] {
        let expected = [
            format!("life {life}"),
            format!("end {life}"),
            format!("error {life}"),
        ];
        node.wait(
            pod,
            &format!("the log of life {life}"),
            async || match sorted(log(node, pod, options).await?) {
                found if found == expected => Ok(()),
                found => Err(format!("{found:?}")),
            },
        )
        .await;
    }
    let whole = log(node, pod, &["--previous"]).await.unwrap();
    let last = whole.lines().last().unwrap();
    let options = ["--previous", "--tail=1"];
    assert_eq!(log(node, pod, &options).await, Ok(format!("{last}\n")));
    node.end(pod).await;
}

pub async fn parts_of_it(node: &Member) {
    let pod = "parts";
    // The API knows moments by the second.
    let script = "n=0; while [ $n -lt 500 ]; do echo old $n; n=$((n+1)); done; \
                  sleep 3; echo new 1; echo new 2; exec tail -f /dev/null";
    node.run(&manifest::single(pod, shell("main", script)))
        .await;
    let old: String = (0..500).map(|n| format!("old {n}\n")).collect();
    let all = format!("{old}new 1\nnew 2\n");
    shows(node, pod, &[], &all).await;
    let stamped = log(node, pod, &["--timestamps", "--tail=2"]).await.unwrap();
    let (stamp, rest) = stamped.split_once(' ').unwrap();
    assert!(rest.starts_with("new 1\n"), "{stamped}");
    let moment = format!(
        "--since-time={}Z",
        &stamp["".len().."2026-01-02T03:04:05".len()]
    );
    for (options, expected) in [
        (&["--tail=1"][..], "new 2\n"),
        (&["--tail=3"], "old 499\nnew 1\nnew 2\n"),
        (&["--tail=0"], ""),
        (&["--tail=-1"], &all),
        (&["--tail=100000"], &all),
        (&[&moment], "new 1\nnew 2\n"),
        (&[&moment, "--tail=1"], "new 2\n"),
        (&[&moment, "--tail=400"], "new 1\nnew 2\n"),
        (&[&moment, "--limit-bytes=7"], "new 1\nn"),
        (&["--since=1h"], &all),
    ] {
        let found = log(node, pod, options).await;
        assert_eq!(found.as_deref(), Ok(expected), "{options:?}");
    }
    // All of it grows older than that.
    shows(node, pod, &["--since=1s"], "").await;
    node.end(pod).await;
}

/// One line at a time, and each is seen before anything else happens.
pub async fn a_line_is_seen_when_it_is_written(node: &Member) {
    let pod = "seen";
    let fifo = node.stage.scratch(pod).join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    // Open for both, so that neither side waits for the other, and the container finds no end.
    let mut words = File::options().read(true).write(true).open(&fifo).unwrap();
    let script = "exec 3< /scratch/fifo; echo ready; while read word <&3; do echo $word; done";
    node.run(&noted(node, pod, script)).await;
    let (mut child, mut lines) = follow(node, pod);
    assert_eq!(next(&mut lines).await.as_deref(), Some("ready"));
    for n in 0..20 {
        let word = format!("word-{n}");
        writeln!(words, "{word}").unwrap();
        assert_eq!(next(&mut lines).await, Some(word));
    }
    child.kill().await.unwrap();
    node.end(pod).await;
}

const LARGE: u64 = 300 << 20;

/// On a node of its own, for what is rotated there, and for how much its agent reads.
pub async fn rotated_and_large(main: &Member) {
    let joining = Joining {
        config: json!({
            "containerLogMaxSize": "256Ki",
            "containerLogMaxFiles": 5,
            "containerLogMonitorInterval": "3s",
        }),
        ..Joining::default()
    };
    let mut node = main.prepared_beside("long-logs", joining).await;
    node.start().await;
    across_rotations(&node).await;
    end_of_a_large_one(&node).await;
    node.kubectl(&["delete", "node", &node.name]).await;
    node.down().await;
}

fn log_directory(node: &Member, pod: &str, uid: &str) -> PathBuf {
    let logs = node.stage.krablet.pod_logs();
    logs.join(format!("default_{pod}_{uid}")).join("main")
}

/// Notes which rotated files there are, by the moments in their names.
fn note_rotated(dir: &Path, moments: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(moment) = name.strip_prefix("0.log.") {
            let moment = moment.split('.').next().unwrap_or_default();
            moments.insert(moment.to_owned());
        }
    }
}

/// Lines of a batch. The container begins one when the reader is through with the last but one, so that a slow reader finds
/// every file it has yet to read.
const BATCH: u64 = 1000;

async fn across_rotations(node: &Member) {
    let pod = "rotated";
    let filler = "x".repeat(80);
    let script = format!(
        "echo begin; n=0; b=0; \
         until [ -e /scratch/stop ]; do \
           until [ -e /scratch/go-$b ]; do sleep 0.05; done; b=$((b+1)); e=$((n+{BATCH})); \
           while [ $n -lt $e ]; do \
             i=0; while [ $i -lt 100 ]; do echo line $n {filler}; n=$((n+1)); i=$((i+1)); done; sleep 0.05; \
           done; \
         done; echo end $n"
    );
    let made = node.run(&noted(node, pod, &script)).await;
    let scratch = node.stage.scratch(pod);
    let go = |batch: u64| fs::write(scratch.join(format!("go-{batch}")), "").unwrap();
    let dir = log_directory(node, pod, &status::uid(&made));
    let (mut child, mut lines) = follow(node, pod);
    assert_eq!(next(&mut lines).await.as_deref(), Some("begin"));
    let read = async {
        let mut count = 0_u64;
        loop {
            let line = next(&mut lines).await.expect("the log ends too soon");
            if let Some(end) = line.strip_prefix("end ") {
                assert_eq!(
                    end,
                    count.to_string(),
                    "lines were lost or doubled at the end"
                );
                assert_eq!(next(&mut lines).await, None);
                return count;
            }
            assert_eq!(line, format!("line {count} {filler}"));
            count += 1;
            if count.is_multiple_of(BATCH) {
                go(count / BATCH + 1);
            }
        }
    };
    let write = async {
        (0..2).for_each(go);
        let mut moments = BTreeSet::new();
        node.wait(pod, "its log is rotated four times", async || {
            note_rotated(&dir, &mut moments);
            match moments.len() {
                4.. => Ok(()),
                _ => Err(format!("{moments:?}")),
            }
        })
        .await;
        fs::write(scratch.join("stop"), "").unwrap();
    };
    let (count, ()) = tokio::join!(read, write);
    // More than the files that are kept: four that are full, each of some 1,800 lines.
    assert!(count > 5000, "{count}");
    assert!(child.wait().await.unwrap().success());
    node.end(pod).await;
}

/// What the agent has read so far, from files and elsewhere.
fn read_by_agent(node: &Member) -> u64 {
    let pid = node.stage.krablet.pid().unwrap();
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    let mut lines = io.lines();
    let read = lines.find_map(|line| line.strip_prefix("rchar: "));
    read.unwrap().trim().parse().unwrap()
}

fn enlarge(file: &Path) {
    let line = |n: u64| format!("2026-01-02T03:04:05.000000006Z stdout F line {n:0>100}\n");
    let log = File::options().append(true).open(file).unwrap();
    let mut log = std::io::BufWriter::with_capacity(1 << 20, log);
    let lines = LARGE / line(0).len() as u64;
    (0..lines).for_each(|n| log.write_all(line(n).as_bytes()).unwrap());
    log.write_all(b"2026-01-02T03:04:06.000000006Z stdout F last but one\n")
        .unwrap();
    log.write_all(b"2026-01-02T03:04:07.000000006Z stderr F last\n")
        .unwrap();
    log.flush().unwrap();
    assert!(fs::metadata(file).unwrap().len() >= LARGE - 1000);
}

/// The log of a container that has ended, which nobody rotates any more.
async fn end_of_a_large_one(node: &Member) {
    let pod = "large-log";
    let made = node.create(&noted(node, pod, "echo first")).await;
    node.phase(pod, "Succeeded").await;
    shows(node, pod, &[], "first\n").await;
    let file = log_directory(node, pod, &status::uid(&made)).join("0.log");
    // Scenarios share a thread.
    tokio::task::spawn_blocking(move || enlarge(&file))
        .await
        .unwrap();
    let before = read_by_agent(node);
    for (options, expected) in [
        (&["--tail=2"][..], "last but one\nlast\n"),
        (&["--tail=1", "--follow"], "last\n"),
        (&["--tail=0"], ""),
        (&["--limit-bytes=6"], "first\n"),
    ] {
        let found = log(node, pod, options).await;
        assert_eq!(found.as_deref(), Ok(expected), "{options:?}");
    }
    let many = log(node, pod, &["--tail=1000"]).await.unwrap();
    assert_eq!(many.lines().count(), 1000);
    let read = read_by_agent(node) - before;
    assert!(read < LARGE / 20, "the agent has read {read} bytes");
    node.end(pod).await;
}
