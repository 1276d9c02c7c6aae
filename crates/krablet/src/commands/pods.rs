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
/// Longest shown part of the last event where no terminal limits it.
const EVENT_WIDTH: usize = 70;
/// Goes to the top of the screen and clears what is below.
const FROM_TOP: &str = "\x1b[H\x1b[J";

pub fn run(options: &Options) -> Result<()> {
    client::block_on(async {
        let path = format!("/v1/rows?watch={}", options.watch);
        let mut lines = client::ask(&options.socket(), &path).await?;
        let mut drawn = 0;
        while let Some(line) = lines.next().await? {
            let mut text = if options.json {
                format!("{line}\n")
            } else {
                table(&line)?
            };
            if !options.json
                && let Some(screen) = Screen::of_stdout()
            {
                text = screen.fit(&text);
                let height = text.lines().count();
                if options.watch {
                    text.insert_str(0, &screen.back_over(drawn.max(height), drawn));
                }
                drawn = height;
            }
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    })
}

/// The terminal a table is shown on.
#[derive(Clone, Copy)]
struct Screen {
    rows: usize,
    columns: usize,
}

impl Screen {
    fn of_stdout() -> Option<Self> {
        let out = std::io::stdout();
        if !out.is_terminal() {
            return None;
        }
        let size = rustix::termios::tcgetwinsize(&out).ok()?;
        let known = size.ws_row > 0 && size.ws_col > 0;
        known.then_some(Self {
            rows: size.ws_row.into(),
            columns: size.ws_col.into(),
        })
    }

    /// A line that wraps would be counted as one and drawn as two.
    fn fit(self, text: &str) -> String {
        let lines = text.lines().map(|line| cut(line, self.columns) + "\n");
        lines.collect()
    }

    /// Back to where the last table began, so that what stands above it stays; to the top of the
    /// screen if the taller of the two does not fit.
    fn back_over(self, tallest: usize, drawn: usize) -> String {
        match drawn {
            0 => String::new(),
            _ if tallest >= self.rows => FROM_TOP.to_owned(),
            lines => format!("\x1b[{lines}A\x1b[J"),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_drawn_over_the_last_one_and_nothing_else() {
        let screen = Screen {
            rows: 10,
            columns: 8,
        };
        assert_eq!(screen.fit("short\nfar too long\n"), "short\nfar too…\n");
        assert_eq!(screen.back_over(3, 0), "");
        assert_eq!(screen.back_over(4, 3), "\x1b[3A\x1b[J");
        assert_eq!(screen.back_over(10, 3), FROM_TOP);
    }
}
