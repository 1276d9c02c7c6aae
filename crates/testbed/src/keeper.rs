//! The test's end of the line to a bed's keeper, the process that outlives the test to clean up.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cache;

/// The keeper program, compiled with plain `rustc` so that it is there whichever crate's tests run.
pub fn program() -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin/krablet-keeper");
    let files = cache::tree(&source)?;
    let key = cache::digest(
        files
            .iter()
            .flat_map(|(name, text)| [name.as_bytes(), text]),
    );
    let dir = cache::entry("keeper", &key, |dir| {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut command = Command::new(rustc);
        command
            .args([
                "--edition",
                "2024",
                "-C",
                "opt-level=1",
                "-C",
                "strip=symbols",
                "-o",
            ])
            .arg(dir.join("krablet-keeper"))
            .arg(source.join("main.rs"));
        cache::run(&mut command).map(drop)
    })?;
    Ok(dir.join("krablet-keeper"))
}

/// A running keeper. Dropping it takes the bed down, and waits for that.
#[derive(Debug)]
pub struct Keeper {
    child: Child,
    commands: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

impl Keeper {
    /// Starts the keeper of the bed in `dir`, whose `bed.spec` is in place.
    pub fn start(dir: &Path) -> Result<Self> {
        let mut child = Command::new(program()?)
            .arg("tend")
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the keeper")?;
        let commands = child.stdin.take();
        let replies = child.stdout.take().context("the keeper has no output")?;
        let mut keeper = Self {
            child,
            commands,
            replies: BufReader::new(replies),
        };
        keeper.reply()?;
        Ok(keeper)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives a command and waits until it is carried out; returns what follows the `ok`.
    pub fn ask(&mut self, command: &str) -> Result<String> {
        let line = self.commands.as_mut().context("the bed is down")?;
        writeln!(line, "{command}")
            .and_then(|()| line.flush())
            .context("the keeper is gone")?;
        self.reply().with_context(|| format!("keeper: {command}"))
    }

    fn reply(&mut self) -> Result<String> {
        let mut line = String::new();
        self.replies
            .read_line(&mut line)
            .context("reading from the keeper")?;
        match line.trim_end().split_at_checked(2) {
            Some(("ok", rest)) => Ok(rest.trim().to_owned()),
            _ if line.is_empty() => bail!("the keeper is gone"),
            _ => bail!("{}", line.trim_end()),
        }
    }

    /// Takes the bed down and waits until nothing is left; a second call does nothing.
    pub fn down(&mut self) -> Result<()> {
        if self.commands.take().is_none() {
            return Ok(());
        }
        let outcome = self.reply();
        self.child.wait().context("waiting for the keeper")?;
        outcome.map(drop)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Err(why) = self.down() {
            cache::progress(&format!("taking down a bed: {why:#}"));
        }
    }
}

/// Takes down what beds left whose keeper was killed; returns their directories.
pub fn sweep() -> Result<Vec<String>> {
    let beds = crate::bed::beds_root();
    if !fs::exists(&beds)? {
        return Ok(Vec::new());
    }
    let text = cache::run(Command::new(program()?).arg("sweep").arg(&beds))?;
    Ok(text
        .lines()
        .filter_map(|line| line.strip_prefix("ok "))
        .map(str::to_owned)
        .collect())
}
