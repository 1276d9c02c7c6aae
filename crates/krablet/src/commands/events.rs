//! `krablet events`: the newest events of this node, once or as they come.

use std::io::Write;

use anyhow::{Context, Result};
use krablet_server::EventLine;

use super::table::{cut, render};
use super::{Options, client};

const HEADER: [&str; 6] = ["LAST SEEN", "TYPE", "REASON", "OBJECT", "COUNT", "MESSAGE"];

pub fn run(options: &Options) -> Result<()> {
    client::block_on(async {
        let path = format!("/v1/events?watch={}", options.watch);
        let mut lines = client::ask(&options.socket(), &path).await?;
        let mut gathered = Vec::new();
        while let Some(line) = lines.next().await? {
            if options.json {
                writeln!(std::io::stdout(), "{line}")?;
                continue;
            }
            let event: EventLine =
                serde_json::from_str(&line).context("the agent's answer is not understood")?;
            let cells = cells(&event);
            if options.watch {
                writeln!(std::io::stdout(), "{}", cells.join("  "))?;
            } else {
                gathered.push(cells);
            }
        }
        if !options.json && !options.watch {
            write!(std::io::stdout(), "{}", render(&HEADER, &gathered))?;
        }
        Ok(())
    })
}

fn cells(event: &EventLine) -> Vec<String> {
    // Seconds are enough for people: 2026-11-15T22:46:42Z.
    let seen = event.last_seen.split('.').next().unwrap_or_default();
    let object = match event.field_path.as_str() {
        "" => event.object.clone(),
        path => format!("{} {path}", event.object),
    };
    vec![
        format!("{}Z", seen.trim_end_matches('Z')),
        event.kind.clone(),
        event.reason.clone(),
        object,
        event.count.to_string(),
        cut(&event.message, 400),
    ]
}
