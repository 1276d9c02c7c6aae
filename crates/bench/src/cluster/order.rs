//! In which order the functions of the program are to lie in its file: those of a quiet node side by side, and then those
//! of one whose statistics are read. The machine maps a file sixteen pages at a time, so that functions which lie wherever
//! the compiler has put them keep nearly all of it in memory.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use krablet_testbed::free_port;
use serde_json::json;

use super::agent::{Agent, Kind};
use super::course::{appear, disappear};
use super::ground::{self, Ground};
use super::link::{self, Link};
use super::server::{ENDPOINTS, api, get};
use super::sight::PodSight;
use crate::node::{program, rest};
use crate::touched::{Symbols, during};

const PODS: usize = 20;
/// Until what a start or new pods needed is done.
const SETTLE: Duration = Duration::from_secs(12);
/// More than there is between two of anything that a quiet node does.
const QUIET: Duration = Duration::from_secs(75);
/// As long as it takes until a node whose statistics were read is calm.
const CALM: Duration = Duration::from_secs(8);
const HEAD: &str = "\
# The functions that a quiet node uses, and then those that answer who reads its statistics, in the order of their first use.
# The linker puts them side by side (build.rs). A name that is there no more does no harm. Written by `make order`.
";

pub async fn write(file: &Path) -> Result<()> {
    let symbols = Arc::new(Symbols::of(&program()?)?);
    let ground = Ground::up().await?;
    let link = Link::up()?;
    let port = free_port()?;
    let place = json!({"address": link::NODE, "port": port});
    let mut agent = Agent::prepare_with(&ground, Kind::Krablet, PODS, place, &[])?;
    agent.start(&ground).await?;
    let used = used(&ground, &agent, port, &symbols).await;
    let used = used.with_context(|| agent.log_tail())?;
    agent.stop(&ground).await?;
    drop(link);
    ground.down().await?;
    std::fs::write(file, text(&used)).with_context(|| file.display().to_string())
}

async fn used(
    ground: &Ground,
    agent: &Agent,
    port: u16,
    symbols: &Arc<Symbols>,
) -> Result<Vec<String>> {
    let node = agent.kind.name();
    let api = api(&ground.bed.dir().join(node), port)?;
    let mut sight = PodSight::begin(&ground.kube, &ground.bed, node).await?;
    let pid = agent.pid()?;
    let wait = |time| async move {
        rest(time).await;
        Ok(())
    };
    rest(SETTLE).await;
    let mut used = during(pid, symbols, wait(QUIET / 3)).await?;
    eprintln!("without pods: {} functions", used.len());
    appear(ground, node, &mut sight, PODS, ground::probed).await?;
    rest(SETTLE).await;
    used.extend(during(pid, symbols, wait(QUIET)).await?);
    let read = during(pid, symbols, async {
        for path in ENDPOINTS.into_iter().chain(ENDPOINTS) {
            get(&*api, path).await?;
        }
        wait(CALM).await
    });
    used.extend(read.await?);
    disappear(ground, &mut sight, PODS).await?;
    Ok(used)
}

fn text(names: &[String]) -> String {
    let mut known = BTreeSet::new();
    let mut text = HEAD.to_owned();
    for name in names.iter().filter(|name| known.insert(*name)) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}");
    }
    eprintln!("{} functions in all", known.len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_stands_where_it_came_first() {
        let text = text(&["b", "a", "b", "c", "a"].map(str::to_owned));
        assert_eq!(text.strip_prefix(HEAD), Some("b\na\nc\n"));
    }
}
