//! Running the host's tools, with failures in the words people know.

use std::io;
use std::path::Path;
use std::time::Duration;

use krablet_linux::Tools;

use crate::error::SetUpError;

pub(crate) fn mount_arguments(
    fs_type: Option<&str>,
    options: &[String],
    source: &str,
    point: &Path,
) -> Vec<String> {
    let mut arguments = Vec::new();
    if let Some(fs_type) = fs_type {
        arguments.extend(["-t".to_owned(), fs_type.to_owned()]);
    }
    if !options.is_empty() {
        let mut seen: Vec<&str> = Vec::new();
        for option in options {
            if !seen.contains(&option.as_str()) {
                seen.push(option);
            }
        }
        arguments.extend(["-o".to_owned(), seen.join(",")]);
    }
    arguments.extend([source.to_owned(), point.display().to_string()]);
    arguments
}

/// A program that could not be run, or failed.
#[derive(Debug)]
pub(crate) struct Failed {
    /// None if it did not end by itself.
    pub code: Option<i32>,
    /// How it ended, in the words people know.
    pub status: String,
    pub output: String,
}

/// What a tool that succeeded wrote.
pub(crate) async fn try_run(
    tools: &dyn Tools,
    program: &str,
    arguments: &[String],
    deadline: Duration,
) -> Result<String, Failed> {
    let output = match tools.run(program, arguments, deadline).await {
        Ok(output) if output.is_success() => return Ok(output.text),
        Ok(output) => output,
        Err(e) => {
            let status = match e.kind() {
                io::ErrorKind::NotFound => {
                    format!("exec: {program:?}: executable file not found in $PATH")
                }
                _ => e.to_string(),
            };
            return Err(Failed {
                code: None,
                status,
                output: String::new(),
            });
        }
    };
    let status = match output.code {
        Some(code) => format!("exit status {code}"),
        None => "ended by a signal".to_owned(),
    };
    Err(Failed {
        code: output.code,
        status,
        output: output.text,
    })
}

/// The same, with a failure that tells all of it.
pub(crate) async fn run(
    tools: &dyn Tools,
    program: &str,
    arguments: &[String],
    deadline: Duration,
) -> Result<String, SetUpError> {
    let ran = try_run(tools, program, arguments, deadline).await;
    let Failed { status, output, .. } = match ran {
        Ok(text) => return Ok(text),
        Err(failed) => failed,
    };
    let arguments = arguments.join(" ");
    Err(SetUpError::Tool(match program {
        "mount" => format!(
            "mount failed: {status}\nMounting command: mount\nMounting arguments: {arguments}\nOutput: {output}"
        ),
        other => format!("{other} {arguments}: {status}: {}", output.trim_end()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_linux::ToolOutput;
    use krablet_linux::fake::FakeTools;

    #[tokio::test]
    async fn failures_say_what_was_run() {
        let options = ["vers=4.1".to_owned(), "ro".to_owned(), "ro".to_owned()];
        let arguments = mount_arguments(Some("nfs"), &options, "srv:/x", Path::new("/p"));
        assert_eq!(arguments.join(" "), "-t nfs -o vers=4.1,ro srv:/x /p");
        let tools = FakeTools::answering(|_| {
            Ok(ToolOutput {
                code: Some(32),
                text: "access denied".to_owned(),
            })
        });
        let failed = async |program| {
            let ran = run(&tools, program, &arguments, Duration::from_secs(1));
            ran.await.unwrap_err().to_string()
        };
        assert_eq!(
            failed("mount").await,
            "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs -o vers=4.1,ro srv:/x /p\nOutput: access denied"
        );
        assert_eq!(
            failed("iscsiadm").await,
            "iscsiadm -t nfs -o vers=4.1,ro srv:/x /p: exit status 32: access denied"
        );
    }

    #[tokio::test]
    async fn a_tool_that_is_not_there() {
        let none = |_: &str| Err(io::Error::from(io::ErrorKind::NotFound));
        let tools = FakeTools::answering(none);
        let ran = try_run(&tools, "iscsiadm", &[], Duration::from_secs(1)).await;
        assert_eq!(
            ran.unwrap_err().status,
            "exec: \"iscsiadm\": executable file not found in $PATH"
        );
    }
}
