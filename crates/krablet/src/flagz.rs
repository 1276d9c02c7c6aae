//! The command line as `/flagz` tells it: every flag, with what was given for it or else its default.

use std::collections::BTreeMap;

use krablet_config::flags::{Flag, all, find};

pub fn of_command_line() -> BTreeMap<String, String> {
    let words = std::env::args_os().skip(1);
    let words: Vec<String> = words.map(|w| w.to_string_lossy().into_owned()).collect();
    flags(&words)
}

fn flags(words: &[String]) -> BTreeMap<String, String> {
    let default = |flag: &'static Flag| (flag.name.to_owned(), flag.default_text());
    let mut flags: BTreeMap<String, String> = all().map(default).collect();
    let mut given: BTreeMap<&str, String> = BTreeMap::new();
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let Some((flag, value)) = split(word) else {
            continue;
        };
        let value = match value {
            Some(value) => value,
            None if flag.kind() == "bool" => "true",
            None => words.next().unwrap_or_default(),
        };
        // What is given several times is a list.
        given
            .entry(flag.name)
            .and_modify(|all| *all = format!("{all},{value}"))
            .or_insert_with(|| value.to_owned());
    }
    flags.extend(given.into_iter().map(|(name, v)| (name.to_owned(), v)));
    flags
}

/// `--name`, `--name=value` or `-v=value`.
fn split(word: &str) -> Option<(&'static Flag, Option<&str>)> {
    let word = word.strip_prefix('-')?;
    let word = word.strip_prefix('-').unwrap_or(word);
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    Some((find(name)?, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_and_not_given() {
        let words = "--config=/etc/k.yaml --hostname-override n1 -v=4 --fail-swap-on --unknown x";
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let told = flags(&words);
        assert_eq!(told["config"], "/etc/k.yaml");
        assert_eq!(told["hostname-override"], "n1");
        assert_eq!(told["v"], "4");
        assert_eq!(told["fail-swap-on"], "true");
        assert_eq!(told["root-dir"], flags(&[])["root-dir"]);
        assert!(!told.contains_key("unknown"));
        assert_eq!(told.len(), all().count());
    }
}
