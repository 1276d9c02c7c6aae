//! `krablet pods`: the pods of this node, once or as they change.

use std::io::{IsTerminal, Write};

use anyhow::{Context, Result};
use krablet_server::PodRow;

use super::table::{age, cut, render};
use super::{Options, client};

const HEADER: [&str; 8] = [
    "NAMESPACE",
    "NAME",
    "READY",
    "STATUS",
    "RESTARTS",
    "AGE",
    "IP",
    "LAST EVENT",
];
/// Longest shown part of the last event.
const EVENT_WIDTH: usize = 70;
/// Clears the screen and goes to its top.
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

pub fn run(options: &Options) -> Result<()> {
    client::block_on(async {
        let path = format!("/v1/rows?watch={}", options.watch);
        let mut lines = client::ask(&options.socket(), &path).await?;
        let redraw = options.watch && !options.json && std::io::stdout().is_terminal();
        while let Some(line) = lines.next().await? {
            let mut text = if options.json {
                format!("{line}\n")
            } else {
                table(&line)?
            };
            if redraw {
                text.insert_str(0, CLEAR);
            }
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    })
}

fn table(line: &str) -> Result<String> {
    let rows: Vec<PodRow> =
        serde_json::from_str(line).context("the agent's answer is not understood")?;
    if rows.is_empty() {
        return Ok("No pods.\n".to_owned());
    }
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|r| {
            vec![
                r.namespace.clone(),
                r.name.clone(),
                format!("{}/{}", r.ready, r.containers),
                r.status.clone(),
                r.restarts.to_string(),
                age(r.age_seconds),
                r.ip.clone(),
                cut(&r.last_event, EVENT_WIDTH),
            ]
        })
        .collect();
    Ok(render(&HEADER, &cells))
}
