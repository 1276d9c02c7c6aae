//! Programs of the host, such as those that mount network file systems.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use tokio::process::Command;
use tokio::time::timeout;

/// Output kept of a program, in bytes: enough for any message.
const MAX_OUTPUT: usize = 64 << 10;

/// What came of a program that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolOutput {
    /// None if a signal ended it.
    pub code: Option<i32>,
    /// What it wrote, errors after the rest.
    pub text: String,
}

impl ToolOutput {
    pub fn is_success(&self) -> bool {
        self.code == Some(0)
    }
}

#[async_trait]
pub trait Tools: Send + Sync {
    /// Runs a program to its end. One that takes longer than `deadline` is killed: an error of kind `TimedOut`. One
    /// that is not installed is an error of kind `NotFound`.
    async fn run(
        &self,
        program: &str,
        arguments: &[String],
        deadline: Duration,
    ) -> io::Result<ToolOutput>;
}

/// The programs in this machine's `PATH`.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostTools;

#[async_trait]
impl Tools for HostTools {
    async fn run(
        &self,
        program: &str,
        arguments: &[String],
        deadline: Duration,
    ) -> io::Result<ToolOutput> {
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| io::Error::new(e.kind(), format!("{program}: {e}")))?;
        let output = timeout(deadline, child.wait_with_output())
            .await
            .map_err(|_| {
                let why = format!("{program} did not end within {deadline:?}");
                io::Error::new(io::ErrorKind::TimedOut, why)
            })??;
        let mut bytes = output.stdout;
        bytes.extend_from_slice(&output.stderr);
        bytes.truncate(MAX_OUTPUT);
        Ok(ToolOutput {
            code: output.status.code(),
            text: String::from_utf8_lossy(&bytes).into_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_programs_answer() {
        let run = async |script: &str, seconds| {
            let arguments = ["-c".to_owned(), script.to_owned()];
            let deadline = Duration::from_secs(seconds);
            HostTools.run("sh", &arguments, deadline).await
        };
        let said = run("echo out; echo err >&2; exit 3", 60).await.unwrap();
        assert_eq!((said.code, &*said.text), (Some(3), "out\nerr\n"));
        assert!(run("true", 60).await.unwrap().is_success());
        let late = run("sleep 600", 0).await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        let none = HostTools.run("no-such-tool", &[], Duration::from_secs(1));
        assert_eq!(none.await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
