//! Rotation of container logs: which file is renamed, which are compressed and which go, worked
//! out from the names and sizes in one container's log directory (`<pod log dir>/<container>`).

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::ToSpan as _;
use jiff::civil::DateTime;

const STAMP: &str = "%Y%m%d-%H%M%S";
const COMPRESSED: &str = ".gz";
const TEMPORARY: &str = ".tmp";

/// How often a log that grows fast is looked at, at the most.
const FASTEST_CHECK: Duration = Duration::from_millis(250);

/// `containerLogMaxSize`, `containerLogMaxFiles`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationPolicy {
    pub max_size: u64,
    /// At least 2.
    pub max_files: usize,
}

impl RotationPolicy {
    /// When to look at a log again that was `before` bytes at the last look, `elapsed` ago, and
    /// is `size` now: at half the time it would take to fill up, so that a container that writes
    /// fast does not overshoot by much, and after `period` at the latest.
    pub fn next_check(
        &self,
        before: u64,
        size: u64,
        elapsed: Duration,
        period: Duration,
    ) -> Duration {
        let grown = size.saturating_sub(before);
        let room = self.max_size.saturating_sub(size);
        if grown == 0 {
            return period;
        }
        let until_full = elapsed.as_secs_f64() * (room as f64 / grown as f64);
        Duration::try_from_secs_f64(until_full / 2.0)
            .unwrap_or(period)
            .clamp(FASTEST_CHECK.min(period), period)
    }
}

/// A file in a container's log directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    pub name: String,
    pub size: u64,
}

/// What is to be done, in this order. Names are relative to the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPlan {
    pub delete: Vec<String>,
    /// From, to.
    pub compress: Vec<(String, String)>,
    /// From, to; then the runtime is asked to reopen the log, and if it does not, the file is
    /// renamed back.
    pub rotate: Option<(String, String)>,
    /// The log is missing (a rotation was cut short): ask the runtime to reopen it.
    pub reopen: bool,
}

/// One log file by its name: `3.log`, `3.log.20260102-030405`, the same with `.gz`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Parsed<'a> {
    restart: u32,
    /// Live logs come after their rotated ones.
    live: bool,
    stamp: &'a str,
    compressed: bool,
    name: &'a str,
}

fn parse(name: &str) -> Option<Parsed<'_>> {
    let (number, rest) = name.split_once(".log")?;
    let restart = number.parse().ok()?;
    let (plain, compressed) = match rest.strip_suffix(COMPRESSED) {
        Some(plain) => (plain, true),
        None => (rest, false),
    };
    let stamp = match plain {
        "" if !compressed => "",
        _ => plain.strip_prefix('.').filter(|s| !s.is_empty())?,
    };
    Some(Parsed {
        restart,
        live: stamp.is_empty(),
        stamp,
        compressed,
        name,
    })
}

/// Plans for a running container whose log is `current` (`<restart>.log`). `kept` are the live
/// logs of other instances the runtime still knows (the previous one, for `kubectl logs -p`).
/// `now` is the local wall-clock time.
///
/// Logs of former instances count towards the limit: the newest `max_files` files of the container
/// stay, whichever instance wrote them.
pub fn plan(
    current: &str,
    kept: &BTreeSet<String>,
    files: &[LogFile],
    policy: RotationPolicy,
    now: DateTime,
) -> LogPlan {
    let mut plan = LogPlan::default();
    let size = files.iter().find(|f| f.name == current).map(|f| f.size);
    plan.reopen = size.is_none();
    let rotating = size.is_some_and(|size| size >= policy.max_size);

    let names: BTreeSet<&str> = files.iter().map(|f| f.name.as_str()).collect();
    let (mut logs, leftovers) = sort_out(&names);
    plan.delete
        .extend(leftovers.into_iter().map(str::to_string));

    // A rotation adds one file: the one the container then writes to.
    let budget = policy.max_files.saturating_sub(usize::from(rotating));
    let mut surplus = logs.len().saturating_sub(budget);
    logs.retain(|log| {
        let needed = log.name == current || (log.live && kept.contains(log.name));
        let goes = surplus > 0 && !needed;
        if goes {
            surplus -= 1;
            plan.delete.push(log.name.to_string());
        }
        !goes
    });
    if !rotating {
        return plan;
    }

    // What was rotated before is compressed now; the freshly rotated one stays plain, as a
    // collector may still be reading it.
    for log in logs.iter().filter(|l| !l.live && !l.compressed) {
        plan.compress
            .push((log.name.to_string(), format!("{}{COMPRESSED}", log.name)));
    }
    let newest = logs
        .iter()
        .filter(|l| !l.live && parse(current).is_some_and(|c| c.restart == l.restart))
        .map(|l| l.stamp)
        .next_back();
    let stamp = stamp_after(newest, now);
    plan.rotate = Some((current.to_string(), format!("{current}.{stamp}")));
    plan
}

/// The logs oldest first, and what an interrupted rotation left: temporary files, and plain files
/// whose compressed form is complete.
fn sort_out<'a>(names: &BTreeSet<&'a str>) -> (Vec<Parsed<'a>>, Vec<&'a str>) {
    let mut logs = Vec::new();
    let mut leftovers = Vec::new();
    for name in names {
        if name.ends_with(TEMPORARY) && name.contains(".log.") {
            leftovers.push(*name);
        } else if let Some(log) = parse(name) {
            let done = !log.live
                && !log.compressed
                && names.contains(format!("{name}{COMPRESSED}").as_str());
            match done {
                true => leftovers.push(*name),
                false => logs.push(log),
            }
        }
    }
    logs.sort();
    (logs, leftovers)
}

/// The stamp of a rotation: the time, but after the newest stamp there is, so that two rotations
/// in a second or a clock set back neither overwrite a log nor make it look older than it is.
fn stamp_after(newest: Option<&str>, now: DateTime) -> String {
    let floor = newest
        .and_then(|text| DateTime::strptime(STAMP, text).ok())
        .and_then(|newest| newest.checked_add(1.second()).ok());
    let stamp = floor.map_or(now, |floor| floor.max(now));
    stamp.strftime(STAMP).to_string()
}

#[cfg(test)]
mod tests;
