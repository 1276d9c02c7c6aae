//! krablet's own commands. They talk to the running agent through its socket in the root directory.

mod client;
mod events;
mod pods;
mod table;
mod version;

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

const DEFAULT_ROOT_DIR: &str = "/var/lib/kubelet";

/// Bare words that krablet knows under its own name.
pub const COMMANDS: [(&str, &str); 4] = [
    ("pods", "show the pods of this node as a table"),
    ("events", "show the newest events of this node"),
    ("version", "say what this binary is"),
    ("help", "show this help"),
];

/// Options the commands share.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    watch: bool,
    json: bool,
    root_dir: Option<PathBuf>,
}

impl Options {
    fn socket(&self) -> PathBuf {
        let root = self.root_dir.clone();
        crate::control_socket(&root.unwrap_or_else(|| DEFAULT_ROOT_DIR.into()))
    }
}

/// Runs the command `name` if there is one.
pub fn run(name: &str, args: &[OsString]) -> Option<Result<()>> {
    Some(match name {
        "pods" => parse("pods", args).and_then(|o| pods::run(&o)),
        "events" => parse("events", args).and_then(|o| events::run(&o)),
        "version" => parse("version", args).map(|o| version::run(o.json)),
        "help" => {
            print!("{}", help());
            Ok(())
        }
        _ => return None,
    })
}

pub fn help() -> String {
    let mut text = String::from(
        "krablet runs the pods of a node through a CRI runtime. Without a command it is the node agent and\n\
         takes the kubelet's flags (krablet --help).\n\nCommands:\n",
    );
    for (name, what) in COMMANDS {
        text.push_str(&format!("  {name:<10}{what}\n"));
    }
    text.push_str(
        "\nOptions of pods, events and version:\n  \
         -w, --watch          go on and show changes (pods, events)\n  \
         -o, --output=json    print JSON\n      \
         --root-dir=DIR   root directory of the agent [/var/lib/kubelet]\n",
    );
    text
}

fn parse(command: &str, args: &[OsString]) -> Result<Options> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let Some(text) = arg.to_str() else {
            bail!("krablet {command}: {} is not valid UTF-8", arg.display());
        };
        let (flag, inline) = match text.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (text, None),
        };
        let mut value = || -> Result<String> {
            let next = || args.next().and_then(|v| v.to_str()).map(str::to_owned);
            inline
                .clone()
                .or_else(next)
                .with_context(|| format!("krablet {command}: {flag} needs a value"))
        };
        match flag {
            "-w" | "--watch" if inline.is_none() => options.watch = true,
            "-o" | "--output" => match value()?.as_str() {
                "json" => options.json = true,
                "table" => options.json = false,
                other => bail!("krablet {command}: unknown output {other:?}, use json or table"),
            },
            "--root-dir" | "--root_dir" => options.root_dir = Some(value()?.into()),
            _ => bail!(
                "krablet {command}: unknown option {text:?}; `krablet help` shows the options"
            ),
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Options, String> {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        parse("pods", &args).map_err(|e| e.to_string())
    }

    #[test]
    fn options() {
        let watch_json = Options {
            watch: true,
            json: true,
            root_dir: Some("/r".into()),
        };
        assert_eq!(
            parsed(&["-w", "-o", "json", "--root-dir=/r"]),
            Ok(watch_json)
        );
        assert_eq!(parsed(&[]), Ok(Options::default()));
        for (args, message) in [
            (
                &["x"][..],
                "krablet pods: unknown option \"x\"; `krablet help` shows the options",
            ),
            (&["-o"], "krablet pods: -o needs a value"),
            (
                &["-o", "xml"],
                "krablet pods: unknown output \"xml\", use json or table",
            ),
            (
                &["--watch=no"],
                "krablet pods: unknown option \"--watch=no\"; `krablet help` shows the options",
            ),
        ] {
            assert_eq!(parsed(args), Err(message.to_owned()));
        }
    }
}
