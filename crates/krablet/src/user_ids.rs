//! Which ids of this machine are for pods with users of their own.

use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use krablet_config::Loaded;
use krablet_core::user_namespaces::{IdSpace, UNIT};

/// Whose subordinate ids are those of the pods.
const USER: &str = "kubelet";
const TOOL: &str = "getsubids";

/// What is kept for the user `kubelet`, or all ids that are not the node's own.
pub fn space(loaded: &Loaded) -> Result<IdSpace> {
    let runtime = &loaded.config.runtime;
    let per_pod = runtime.user_namespaces.as_ref().and_then(|u| u.ids_per_pod);
    let per_pod = per_pod.and_then(|n| u32::try_from(n).ok()).unwrap_or(UNIT);
    let max_pods = u32::try_from(runtime.max_pods).unwrap_or_default();
    let space = IdSpace::new(per_pod, subordinate()?, max_pods);
    space.map_err(|why| anyhow!("user namespaces: {why}"))
}

/// None if there is no such user, or no tool to ask.
fn subordinate() -> Result<Option<(u32, u32)>> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    if !passwd
        .lines()
        .any(|line| line.split(':').next() == Some(USER))
    {
        return Ok(None);
    }
    let Some(users) = ask(&[USER])? else {
        return Ok(None);
    };
    let groups = ask(&["-g", USER])?.unwrap_or_default();
    if users != groups {
        bail!("user namespaces: mismatched subuids and subgids for user {USER:?}");
    }
    parse(&users).map(Some)
}

fn ask(arguments: &[&str]) -> Result<Option<String>> {
    let output = match Command::new(TOOL).args(arguments).output() {
        Ok(output) => output,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).with_context(|| format!("user namespaces: cannot run {TOOL}")),
    };
    if !output.status.success() {
        bail!(
            "user namespaces: {TOOL} failed for user {USER:?}: {}",
            output.status
        );
    }
    Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// `0: kubelet 65536 2147483648`, and no other line.
fn parse(text: &str) -> Result<(u32, u32)> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let (Some(line), None) = (lines.next(), lines.next()) else {
        bail!("user namespaces: {TOOL} must tell one range for user {USER:?}: {text:?}");
    };
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, user, first, length] = words[..] else {
        bail!("user namespaces: error parsing line {line:?}");
    };
    let number = |text: &str| {
        let parsed = text.parse::<u32>();
        parsed.with_context(|| format!("user namespaces: error parsing line {line:?}"))
    };
    if user != USER {
        bail!("user namespaces: error parsing line {line:?}");
    }
    Ok((number(first)?, number(length)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_for_the_user() {
        assert_eq!(
            parse("0: kubelet 65536 2147483648\n").unwrap(),
            (65_536, 2_147_483_648)
        );
        for text in [
            "",
            "0: kubelet 65536",
            "0: other 65536 65536",
            "0: kubelet -1 65536",
            "0: kubelet 65536 65536\n1: kubelet 655360 65536\n",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
