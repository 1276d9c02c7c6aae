//! Terminals: a command in one, and what a container itself says and hears while somebody is attached to it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use krablet_e2e::manifest::{self, shell, single, with};
use krablet_e2e::{LONG, Member, status};
use krablet_testbed::images;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use tokio::time::timeout;

use crate::server::{kubectl_command, spawn_kubectl};

/// kubectl in a terminal of its own, as in a window on a desk. What is typed is echoed there, so answers are told from
/// questions by what the other side works out: `$((6*7))` is not 42.
struct Terminal {
    /// The side a person sits at.
    desk: File,
    kubectl: Child,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn open(node: &Member, arguments: &[&str], size: (u16, u16)) -> Self {
        let desk = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        unlockpt(&desk).unwrap();
        resize(&desk, size);
        let line = ioctl_tiocgptpeer(&desk, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        let end = |line: &OwnedFd| Stdio::from(line.try_clone().unwrap());
        // The terminal is to be kubectl's own: only so it is told when the size changes.
        let kubectl = kubectl_command(node, &["setsid", "--ctty"], arguments)
            .stdin(end(&line))
            .stdout(end(&line))
            .stderr(end(&line))
            .spawn()
            .unwrap();
        let desk = File::from(desk);
        let shown: Arc<Mutex<Vec<u8>>> = Arc::default();
        let (mut screen, seen) = (desk.try_clone().unwrap(), shown.clone());
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            // It ends with an error when nobody is at the other side any more.
            while let Ok(count @ 1..) = screen.read(&mut chunk) {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.extend_from_slice(&chunk[..count]);
            }
        });
        Self {
            desk,
            kubectl,
            shown,
        }
    }

    fn enter(&mut self, line: &str) {
        self.desk.write_all(line.as_bytes()).unwrap();
        self.desk.write_all(b"\r").unwrap();
    }

    /// Waits until the text is on the screen.
    async fn shows(&self, node: &Member, pod: &str, text: &str) {
        node.wait(pod, &format!("the terminal shows {text:?}"), async || {
            let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
            match String::from_utf8_lossy(&shown) {
                all if all.contains(text) => Ok(()),
                all => Err(all.into_owned()),
            }
        })
        .await;
    }

    /// Makes the window that large, and waits until a shell in it has learned so.
    async fn is_sized(&mut self, node: &Member, pod: &str, (rows, columns): (u16, u16)) {
        resize(&self.desk, (rows, columns));
        self.enter(&format!(
            "until [ \"$(busybox stty size)\" = '{rows} {columns}' ]; do sleep 0.1; done; echo size $(({rows}*{columns}))"
        ));
        let product = u32::from(rows) * u32::from(columns);
        self.shows(node, pod, &format!("size {product}")).await;
    }

    async fn ended(&mut self) -> ExitStatus {
        let ended = timeout(LONG, self.kubectl.wait()).await;
        ended.expect("kubectl does not end").unwrap()
    }
}

fn resize(desk: impl std::os::fd::AsFd, (rows, columns): (u16, u16)) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(desk, size).unwrap();
}

/// `kubectl exec -it`: a shell that is in a terminal, as large as the window is, and its exit code.
pub async fn commands_in_one(node: &Member) {
    let pod = "terminal";
    node.run(&single(pod, shell("main", "exec tail -f /dev/null")))
        .await;
    let mut terminal = Terminal::open(node, &["exec", "-it", pod, "--", "sh"], (31, 97));
    terminal.shows(node, pod, "# ").await;
    terminal.enter("busybox tty; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo in a terminal $((6*7))");
    terminal.shows(node, pod, "/dev/pts/").await;
    terminal.shows(node, pod, "in a terminal 42").await;
    // As it was opened, and as it is made later, twice.
    for size in [(31, 97), (47, 133), (12, 41)] {
        terminal.is_sized(node, pod, size).await;
    }
    // What is typed goes through the container's terminal: the letter for it interrupts.
    terminal.enter("echo begun $((3*7)); sleep 100000");
    terminal.shows(node, pod, "begun 21").await;
    terminal.desk.write_all(b"\x03").unwrap();
    terminal.enter("echo interrupted $((5*7))");
    terminal.shows(node, pod, "interrupted 35").await;
    terminal.enter("exit 5");
    assert_eq!(terminal.ended().await.code(), Some(5));
    node.end(pod).await;
}

/// Says something now and then by itself, and answers.
const TALKS: &str =
    "(while :; do echo tick; sleep 0.2; done) & while read line; do echo heard $line; done";

async fn until_line(lines: &mut Lines<BufReader<ChildStdout>>, wanted: &str) {
    let mut others = Vec::new();
    let found = timeout(LONG, async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line == wanted {
                return true;
            }
            others.push(line);
        }
        false
    });
    let found = found.await.unwrap_or(false);
    assert!(found, "no {wanted:?} among {others:?}");
}

/// `kubectl attach`: what the container says from then on comes out of it, and what goes in the container hears, in a
/// terminal and without.
pub async fn attached(node: &Member) {
    let pod = "attached";
    let talks = with(shell("talks", TALKS), json!({"stdin": true}));
    let terminal = json!({"name": "terminal", "image": images::TOOL, "command": ["/bin/sh"], "stdin": true, "tty": true});
    let spec = json!({"containers": [talks, terminal]});
    let made = node.run(&manifest::pod(pod, spec)).await;

    let arguments = ["attach", "-i", pod, "-c", "talks"];
    let mut child = spawn_kubectl(node, &arguments, Stdio::piped());
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    until_line(&mut lines, "tick").await;
    for word in ["one", "two"] {
        stdin
            .write_all(format!("{word}\n").as_bytes())
            .await
            .unwrap();
        until_line(&mut lines, &format!("heard {word}")).await;
    }
    until_line(&mut lines, "tick").await;
    child.kill().await.unwrap();

    let arguments = ["attach", "-it", pod, "-c", "terminal"];
    let mut terminal = Terminal::open(node, &arguments, (29, 91));
    terminal.enter("echo I am $$ and $((6*7))");
    terminal.shows(node, pod, "I am 1 and 42").await;
    for size in [(29, 91), (37, 111)] {
        terminal.is_sized(node, pod, size).await;
    }
    terminal.kubectl.kill().await.unwrap();

    // Who goes away leaves the containers as they were; and there is room for the next.
    let mut terminal = Terminal::open(node, &arguments, (20, 60));
    terminal.enter("echo again $((5*7))");
    terminal.shows(node, pod, "again 35").await;
    terminal.kubectl.kill().await.unwrap();
    let seen = node.pod(pod).await.unwrap();
    for name in ["talks", "terminal"] {
        let id = |pod| status::id(status::container(pod, name).unwrap());
        assert_eq!(id(&seen), id(&made), "{}", status::shown(&seen));
        status::running(&seen, name).unwrap();
    }
    node.end(pod).await;
}
