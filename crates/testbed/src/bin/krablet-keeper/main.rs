//! The keeper of one bed: it starts and stops that bed's programs (a containerd, or the components of
//! a control plane), and takes the whole bed down when told to or when the process that asked for the
//! bed is gone, however it went.
//!
//! It needs nothing but the standard library, so that the test bed can compile it in seconds with
//! plain `rustc` and any test of any crate can rely on it. It speaks lines: a
//! command on standard input (`start NAME`, `stop NAME`, `kill NAME`, `cut`, `down`), one `ok …` or `err …`
//! line back. End of input means `down`. What NAME is, is written in `DIR/NAME.command`. It is the subreaper of everything the bed starts, so a shim or a container
//! process that loses its parent becomes a child of the keeper and cannot escape it.
//!
//! `krablet-keeper tend DIR` keeps the bed described by `DIR/bed.spec`;
//! `krablet-keeper sweep ROOT` takes down every bed below ROOT whose keeper is dead.

#![allow(
    clippy::disallowed_methods,
    reason = "a real process tree is awaited here, there is no clock to steer"
)]

mod cgroups;
mod family;
mod mounts;
mod network;
mod processes;
mod sys;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use crate::family::Family;

/// How long a take-down goes on trying before it reports what is left.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["tend", dir] => tend(Path::new(dir)),
        ["sweep", root] => sweep(Path::new(root)),
        _ => Err("usage: krablet-keeper tend DIR | sweep ROOT".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // The terminal may be gone by now, which must not end the keeper early.
            let _ = writeln!(io::stderr(), "krablet-keeper: {why}");
            ExitCode::FAILURE
        }
    }
}

fn reply(line: &str) {
    // The other end may be gone; the work goes on regardless.
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn tend(dir: &Path) -> Result<(), String> {
    let spec = Spec::read(dir)?;
    sys::new_session();
    for signal in [sys::SIGHUP, sys::SIGINT, sys::SIGTERM] {
        sys::ignore(signal);
    }
    sys::become_subreaper();
    let _alive = lock_now(dir)?.ok_or("another keeper tends this bed")?;
    let family = Family::new();
    let mut running = BTreeMap::new();
    reply("ok");
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let (verb, name) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        let outcome = match verb {
            "start" => start(&spec, &family, name).map(|pid| {
                running.insert(name.to_owned(), pid);
                format!("ok {pid}")
            }),
            "stop" => end(&family, name, running.remove(name), sys::SIGTERM),
            "kill" => end(&family, name, running.remove(name), sys::SIGKILL),
            "cut" => {
                running.clear();
                cut(&spec, &family)
            }
            "down" => break,
            other => Err(format!("unknown command {other:?}")),
        };
        reply(&outcome.unwrap_or_else(|why| format!("err {}", why.replace('\n', " "))));
    }
    match take_down(&spec, &family) {
        Ok(()) => {
            reply("ok");
            Ok(())
        }
        Err(why) => {
            reply(&format!("err {}", why.replace('\n', " ")));
            Err(why)
        }
    }
}

fn start(spec: &Spec, family: &Family, name: &str) -> Result<i32, String> {
    let log = spec.dir.join(format!("{name}.log"));
    let log = File::options()
        .create(true)
        .append(true)
        .open(&log)
        .map_err(|e| format!("{}: {e}", log.display()))?;
    let err = log.try_clone().map_err(|e| e.to_string())?;
    let mut command = read_command(&spec.dir.join(format!("{name}.command")))?;
    command
        .env("PATH", &spec.path)
        .env("KRABLET_BED", &spec.dir)
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(err);
    family.spawn(&mut command)
}

/// A command line as a file of lines: `program=PATH` first, then `env=NAME=VALUE` and `arg=TEXT`.
fn read_command(file: &Path) -> Result<Command, String> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let bad = |line: &str| format!("{}: {line:?} is not understood", file.display());
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let program = first.strip_prefix("program=").ok_or_else(|| bad(first))?;
    let mut command = Command::new(program);
    for line in lines {
        match line.split_once('=') {
            Some(("arg", argument)) => command.arg(argument),
            Some(("env", variable)) => {
                let (name, value) = variable.split_once('=').ok_or_else(|| bad(line))?;
                command.env(name, value)
            }
            _ => return Err(bad(line)),
        };
    }
    Ok(command)
}

fn end(family: &Family, name: &str, pid: Option<i32>, signal: i32) -> Result<String, String> {
    let pid = pid.ok_or_else(|| format!("{name} is not running"))?;
    sys::kill(pid, signal);
    if family.wait(pid, PATIENCE).is_none() {
        return Err(format!("{name} {pid} does not end"));
    }
    Ok("ok".to_owned())
}

/// What a power cut leaves: no process, no mount, no interface, and nothing of what is kept in `/run`.
fn cut(spec: &Spec, family: &Family) -> Result<String, String> {
    processes::end_processes(spec, family)?;
    mounts::unmount_all(spec)?;
    if let Some(pods) = &spec.pods {
        network::remove_interfaces(spec, pods, family);
    }
    for dir in ["state", "s"] {
        let dir = spec.dir.join(dir);
        fs::remove_dir_all(&dir)
            .and_then(|()| fs::create_dir(&dir))
            .map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    Ok("ok".to_owned())
}

fn sweep(root: &Path) -> Result<(), String> {
    let family = Family::new();
    let mut failed = Vec::new();
    for dir in list(root) {
        // The lock is held until the bed is gone, so that two sweeps do not work on the same one.
        let Some((spec, _alive)) = orphaned(&dir) else {
            continue;
        };
        match take_down(&spec, &family) {
            Ok(()) => reply(&format!("ok {}", dir.display())),
            Err(why) => failed.push(why),
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(failed.join("; "))
    }
}

/// The bed in that directory and the lock of its keeper, if nobody holds it.
fn orphaned(dir: &Path) -> Option<(Spec, File)> {
    let registry = Spec::read(dir).ok()?.registry;
    // While a bed is being made its keeper may not hold the lock yet, but its maker holds this one.
    let registry = File::options().write(true).open(registry).ok()?;
    registry.lock().ok()?;
    let alive = lock_now(dir).ok()??;
    // It may have gone down in between.
    Some((Spec::read(dir).ok()?, alive))
}

/// What the keeper has to know about a bed, written by whoever made it.
struct Spec {
    dir: PathBuf,
    /// Held while beds come and go.
    registry: PathBuf,
    /// Its pods' network and cgroups; a bed without pods has none.
    pods: Option<Pods>,
    path: String,
}

/// What the pods of a bed are attached to and sit in.
struct Pods {
    bridge: String,
    network: String,
    cgroup: String,
}

impl Spec {
    fn read(dir: &Path) -> Result<Self, String> {
        let file = dir.join("bed.spec");
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let values: BTreeMap<&str, &str> = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .collect();
        let get = |key: &str| {
            values
                .get(key)
                .filter(|value| !value.is_empty())
                .map(|value| (*value).to_owned())
                .ok_or_else(|| format!("{}: no {key}", file.display()))
        };
        Ok(Self {
            dir: dir.to_owned(),
            registry: get("registry")?.into(),
            pods: match values.get("bridge") {
                None => None,
                Some(_) => Some(Pods {
                    bridge: get("bridge")?,
                    network: get("network")?,
                    cgroup: get("cgroup")?,
                }),
            },
            path: get("path")?,
        })
    }
}

/// The lock that the living keeper of a bed holds; `None` when it is held.
fn lock_now(dir: &Path) -> Result<Option<File>, String> {
    let path = dir.join("keeper.lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let file = file.map_err(|e| format!("{}: {e}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(e)) => Err(format!("{}: {e}", path.display())),
    }
}

/// Everything the bed made goes: processes, mounts, interfaces, rules, cgroups, files.
fn take_down(spec: &Spec, family: &Family) -> Result<(), String> {
    let containers = containers(spec);
    let sockets = shim_sockets(spec, &containers);
    let mut left = Vec::new();
    if let Err(why) = processes::end_processes(spec, family) {
        left.push(why);
    }
    if let Err(why) = mounts::unmount_all(spec) {
        left.push(why);
    }
    if let Some(pods) = &spec.pods {
        network::remove_interfaces(spec, pods, family);
        if let Err(why) = cgroups::remove_cgroups(pods, family, &containers) {
            left.push(why);
        }
    }
    if left.is_empty() {
        // The bulk goes before the lock is taken that other beds wait for.
        for path in list(&spec.dir)
            .iter()
            .filter(|path| path.is_dir() && !path.is_symlink())
        {
            if let Err(e) = fs::remove_dir_all(path) {
                left.push(format!("{}: {e}", path.display()));
            }
        }
    }
    for socket in sockets {
        let _ = fs::remove_file(socket);
    }
    leave_shared_places(spec, family, &containers, &mut left);
    if left.is_empty() {
        Ok(())
    } else {
        Err(left.join("; "))
    }
}

/// What beds have in common is cleaned while none of them comes or goes.
fn leave_shared_places(
    spec: &Spec,
    family: &Family,
    containers: &[(String, String)],
    left: &mut Vec<String>,
) {
    let registry = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&spec.registry);
    if let Ok(registry) = &registry {
        // Without the lock there is still more gained by cleaning than by leaving it all.
        let _ = registry.lock();
    }
    let root = spec.dir.parent().unwrap_or(Path::new("/"));
    let last = list(root).iter().all(|other| *other == spec.dir);
    network::remove_rules(spec, family, last);
    network::remove_cni_cache(spec, containers, last);
    remove_log_links(spec, last);
    if left.is_empty()
        && let Err(e) = fs::remove_dir_all(&spec.dir)
    {
        left.push(format!("{}: {e}", spec.dir.display()));
    }
    if last {
        for dir in ["/run/containerd/s", "/run/containerd"] {
            // Refused when a containerd of the machine's own uses it.
            let _ = fs::remove_dir(dir);
        }
    }
    // Goes with the last bed; refused while another one lives in it.
    let _ = fs::remove_dir(root);
}

/// Where the shims listen. Old versions of containerd have a fixed place for all of them, and a shim
/// that is killed leaves its socket there.
fn shim_sockets(spec: &Spec, containers: &[(String, String)]) -> Vec<PathBuf> {
    let tasks = spec.dir.join("state/io.containerd.runtime.v2.task");
    containers
        .iter()
        .filter_map(|(namespace, id)| {
            fs::read_to_string(tasks.join(namespace).join(id).join("address")).ok()
        })
        .filter_map(|address| Some(PathBuf::from(address.trim().strip_prefix("unix://")?)))
        .filter(|socket| socket.starts_with("/run/containerd/s"))
        .collect()
}

/// The kubelet links every container's log into one directory of the machine, which no setting moves, and an agent
/// that takes turns with it into the same. That of others is the bed's own.
fn remove_log_links(spec: &Spec, last: bool) {
    let links = Path::new("/var/log/containers");
    for link in list(links) {
        if fs::read_link(&link).is_ok_and(|target| target.starts_with(&spec.dir)) {
            let _ = fs::remove_file(link);
        }
    }
    if last {
        // Refused when somebody else's links are in it.
        let _ = fs::remove_dir(links);
    }
}

fn list(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}

/// The containers of the bed as `(containerd namespace, id)`, from the runtime's own state.
fn containers(spec: &Spec) -> Vec<(String, String)> {
    let name = |path: &Path| {
        path.file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    list(&spec.dir.join("state/io.containerd.runtime.v2.task"))
        .iter()
        .flat_map(|namespace| {
            let ids = list(namespace);
            ids.into_iter().map(|id| (name(namespace), name(&id)))
        })
        .collect()
}
