//! Taking the devices of a disk off the node, once nobody uses it: what the fabric shows again is found by the next who
//! looks. What is gone already stays gone, so it may be done again.

use std::io;
use std::time::Duration;

use krablet_linux::{Files, Mounts, Tools};
use krablet_pod::paths::RootDir;

use crate::device::BLOCK;
use crate::parts::Parts;
use crate::tool::{Failed, try_run};
use crate::users::Users;

const DEADLINE: Duration = Duration::from_secs(60);
/// How long what joins the ways of a disk may be busy after the disk was unmounted.
const BUSY_WITHIN: Duration = Duration::from_secs(30);
const TRY_EVERY: Duration = Duration::from_secs(2);

/// The machine that a disk is taken off.
pub(crate) struct Detach<'a> {
    pub files: &'a dyn Files,
    pub tools: &'a dyn Tools,
    pub mounts: &'a dyn Mounts,
    pub root: &'a RootDir,
}

/// What became of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Outcome {
    /// Nobody uses it, and its devices were taken off the node.
    Gone,
    /// Somebody uses it. What it needs has to stay too.
    Stays,
}

impl Detach<'_> {
    /// Takes a disk off the node. `flush`: what was written to a device is sent on first.
    pub async fn run(&self, disk: &Parts, flush: bool) -> io::Result<Outcome> {
        if self.is_any_used(std::slice::from_ref(disk)).await? {
            return Ok(Outcome::Stays);
        }
        if let Some(joined) = &disk.joined
            && let Err(why) = self.part(joined).await
        {
            // The ways must not go behind its back.
            tracing::warn!(err = why, "A disk stays on the node");
            return Ok(Outcome::Stays);
        }
        for way in &disk.ways {
            if flush {
                let arguments = ["--flushbufs".to_owned(), format!("/dev/{way}")];
                self.try_to("blockdev", &arguments, way).await;
            }
            self.try_to("sh", &removal(way), way).await;
        }
        Ok(Outcome::Gone)
    }

    /// Whether somebody still uses one of these disks, under whatever name.
    pub async fn is_any_used(&self, disks: &[Parts]) -> io::Result<bool> {
        if disks.iter().all(|disk| disk.names().next().is_none()) {
            return Ok(false);
        }
        let users = Users::look(self.files, self.mounts, self.root).await?;
        for disk in disks {
            if let Some(who) = users.of(&disk.devices(self.files).await?) {
                tracing::info!(?disk, who, "A disk is used by others and stays on the node");
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Flushes and removes what joins the ways. It may be busy for a while after the unmount.
    async fn part(&self, joined: &str) -> Result<(), String> {
        let device = format!("/dev/{joined}");
        let arguments = ["-f".to_owned(), device.clone()];
        let deadline = tokio::time::Instant::now() + BUSY_WITHIN;
        loop {
            let done = try_run(self.tools, "multipath", &arguments, DEADLINE).await;
            let Err(Failed {
                code,
                status,
                output,
            }) = done
            else {
                return Ok(());
            };
            if code.is_none() || tokio::time::Instant::now() >= deadline {
                let output = output.trim_end();
                return Err(format!(
                    "failed to flush multipath device {device}: {status}\n{output}"
                ));
            }
            tokio::time::sleep(TRY_EVERY).await;
        }
    }

    async fn try_to(&self, program: &str, arguments: &[String], way: &str) {
        let done = try_run(self.tools, program, arguments, DEADLINE).await;
        if let Err(Failed { status, output, .. }) = done {
            let output = output.trim_end();
            tracing::warn!(device = way, program, err = %status, output, "Could not take a device off the node");
        }
    }
}

/// Has the kernel forget a device. Its files take no rename, as ours are written.
fn removal(way: &str) -> Vec<String> {
    let file = format!("{BLOCK}/{way}/device/delete");
    vec![
        "-c".to_owned(),
        format!("[ ! -w {file} ] || echo 1 > {file}"),
    ]
}

#[cfg(test)]
#[path = "detach_tests.rs"]
mod tests;
