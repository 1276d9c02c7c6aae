//! A plugin's program: one run per question.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

/// For one run.
const DEADLINE: Duration = Duration::from_secs(60);
/// Tokens of registries are a few kilobytes.
const MAX_OUTPUT: u64 = 1 << 20;
/// As much of a plugin's complaints as is worth repeating.
const MAX_COMPLAINT: u64 = 1024;

/// Answers questions. The real one runs a program.
#[async_trait]
pub trait Plugin: Send + Sync {
    /// What it says to the request; the error is what went wrong in words.
    async fn ask(&self, request: Vec<u8>) -> Result<Vec<u8>, String>;
}

pub struct Program {
    pub path: PathBuf,
    pub args: Vec<String>,
    /// Added to the agent's own.
    pub env: Vec<(String, String)>,
}

#[async_trait]
impl Plugin for Program {
    async fn ask(&self, request: Vec<u8>) -> Result<Vec<u8>, String> {
        match tokio::time::timeout(DEADLINE, self.run(request)).await {
            Ok(answer) => answer,
            Err(_) => Err("context deadline exceeded".to_owned()),
        }
    }
}

impl Program {
    async fn run(&self, request: Vec<u8>) -> Result<Vec<u8>, String> {
        let spawned = Command::new(&self.path)
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut child = spawned.map_err(|e| e.to_string())?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let tell = async {
            if let Some(mut stdin) = stdin {
                // One that does not care for the question may still answer.
                let _ = stdin.write_all(&request).await;
            }
        };
        let ((), output, complaint, ended) = tokio::join!(
            tell,
            read_some(stdout, MAX_OUTPUT),
            read_some(stderr, MAX_COMPLAINT),
            child.wait(),
        );
        let ended = ended.map_err(|e| e.to_string())?;
        if !ended.success() {
            let complaint = String::from_utf8_lossy(&complaint);
            return Err(format!("{}: {}", exit_text(ended), complaint.trim_end()));
        }
        match output.len() as u64 > MAX_OUTPUT {
            true => Err(format!("the answer is longer than {MAX_OUTPUT} bytes")),
            false => Ok(output),
        }
    }
}

fn exit_text(status: std::process::ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit status {code}"),
        None => status.to_string(),
    }
}

/// One byte more than the limit tells that there was more. The rest is read and dropped, so that the
/// program can end.
async fn read_some(stream: Option<impl AsyncRead + Unpin>, limit: u64) -> Vec<u8> {
    let mut kept = Vec::new();
    if let Some(mut stream) = stream {
        let _ = (&mut stream).take(limit + 1).read_to_end(&mut kept).await;
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        Program {
            path: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("WORD".into(), "hello".into())],
        }
    }

    #[tokio::test]
    async fn programs_are_asked_and_answer() {
        let echo = shell("echo $WORD; cat").ask(b"you".to_vec()).await;
        assert_eq!(echo.as_deref(), Ok(b"hello\nyou".as_slice()));
        let deaf = shell("echo ok").ask(vec![b'x'; 1 << 20]).await;
        assert_eq!(deaf.as_deref(), Ok(b"ok\n".as_slice()));
    }

    #[tokio::test]
    async fn programs_fail() {
        let cases = [
            ("echo answer; echo why >&2; exit 3", "exit status 3: why"),
            ("kill -9 $$", "signal: 9 (SIGKILL): "),
            (
                "head -c 2000000 /dev/zero",
                "the answer is longer than 1048576 bytes",
            ),
        ];
        for (script, expected) in cases {
            let failed = shell(script).ask(Vec::new()).await;
            assert_eq!(failed, Err(expected.to_owned()), "{script}");
        }
        let missing = Program {
            path: "/no/such/program".into(),
            args: Vec::new(),
            env: Vec::new(),
        };
        let failed = missing.ask(Vec::new()).await.unwrap_err();
        assert!(failed.contains("No such file"), "{failed}");
    }
}
