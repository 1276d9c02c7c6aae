//! Slices as systemd is told of them: it keeps every cgroup it knows of as it was told, and takes down
//! what it was not told of when it looks after a slice.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use krablet_pod::cgroups::{CgroupLimits, CpuQuota};

use super::CgroupVersion;
use super::dbus::{Answer, Connection, Target, Value};

/// Where systemd itself listens, for root alone; there is no need of a bus.
const SOCKET: &str = "/run/systemd/private";
const PATIENCE: Duration = Duration::from_secs(30);
const MANAGER: Target = Target {
    destination: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};
const EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";
/// What systemd counts quotas in, in microseconds of a second.
const QUOTA_STEP: u64 = 10_000;

pub(super) struct Systemd {
    version: CgroupVersion,
    socket: PathBuf,
    /// Made when it is needed, and again after it broke.
    connection: Mutex<Option<Connection>>,
}

impl std::fmt::Debug for Systemd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Systemd")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

impl Systemd {
    /// None if systemd does not run here.
    pub(super) fn find(version: CgroupVersion) -> Option<Self> {
        Path::new(SOCKET).exists().then(|| Self {
            version,
            socket: SOCKET.into(),
            connection: Mutex::default(),
        })
    }

    /// Starts the slice with that path, or gives it these limits if it is there.
    pub(super) fn start(&self, path: &str, limits: &CgroupLimits) -> io::Result<()> {
        let (unit, parent) = names(path);
        let mut properties = vec![
            (
                "Description",
                Value::Text(format!("Pods of this node in {unit}")),
            ),
            ("Wants", Value::Texts(vec![parent])),
            ("DefaultDependencies", Value::Flag(false)),
        ];
        let counted = [
            "CPUAccounting",
            "MemoryAccounting",
            "TasksAccounting",
            "IOAccounting",
        ];
        let counted = counted
            .into_iter()
            .filter(|name| *name != "IOAccounting" || self.version == CgroupVersion::V2);
        properties.extend(counted.map(|name| (name, Value::Flag(true))));
        properties.extend(limit_properties(self.version, limits));
        let arguments = [
            Value::Text(unit),
            Value::Text("replace".to_owned()),
            Value::Properties(properties),
            Value::NoUnits,
        ];
        match self.call("StartTransientUnit", &arguments, true)? {
            Answer::Failed(name, _) if name == EXISTS => self.set(path, limits),
            answer => done(answer),
        }
    }

    pub(super) fn set(&self, path: &str, limits: &CgroupLimits) -> io::Result<()> {
        let properties = limit_properties(self.version, limits);
        if properties.is_empty() {
            return Ok(());
        }
        let arguments = [
            Value::Text(names(path).0),
            Value::Flag(true),
            Value::Properties(properties),
        ];
        done(self.call("SetUnitProperties", &arguments, false)?)
    }

    /// Ends the slice and all in it. One that is not there is fine.
    pub(super) fn stop(&self, path: &str) -> io::Result<()> {
        let arguments = [
            Value::Text(names(path).0),
            Value::Text("replace".to_owned()),
        ];
        match self.call("StopUnit", &arguments, true)? {
            Answer::Failed(name, _) if name == NO_SUCH_UNIT => Ok(()),
            answer => done(answer),
        }
    }

    /// A connection that broke since it was last used is made anew once.
    fn call(&self, member: &str, arguments: &[Value], job: bool) -> io::Result<Answer> {
        let mut held = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let old = held.take();
        let fresh = old.is_none();
        let mut connection = match old {
            Some(connection) => connection,
            None => Connection::open(&self.socket, PATIENCE)?,
        };
        let mut answer = connection.call(&MANAGER, member, arguments);
        if answer.is_err() && !fresh {
            connection = Connection::open(&self.socket, PATIENCE)?;
            answer = connection.call(&MANAGER, member, arguments);
        }
        let answer = answer?;
        if let (true, Answer::Done(Some(path))) = (job, &answer) {
            let result = connection.job_result(path)?;
            if result != "done" {
                let text = format!("systemd's job for {member} ended as {result}");
                *held = Some(connection);
                return Err(io::Error::other(text));
            }
        }
        *held = Some(connection);
        Ok(answer)
    }
}

fn done(answer: Answer) -> io::Result<()> {
    match answer {
        Answer::Done(_) => Ok(()),
        Answer::Failed(name, text) => Err(io::Error::other(format!("systemd: {text} ({name})"))),
    }
}

/// The unit of a path, and the slice it stands in.
fn names(path: &str) -> (String, String) {
    let mut parts = path.rsplit('/').filter(|part| !part.is_empty());
    let unit = parts.next().unwrap_or("-.slice").to_owned();
    (unit, parts.next().unwrap_or("-.slice").to_owned())
}

/// Huge pages are not systemd's; those are in the files alone.
fn limit_properties(version: CgroupVersion, limits: &CgroupLimits) -> Vec<(&'static str, Value)> {
    let bytes = |n: i64| Value::Number(u64::try_from(n).unwrap_or(u64::MAX));
    let memory = limits.memory.filter(|n| *n > 0).map(bytes);
    let mut all = Vec::new();
    match version {
        CgroupVersion::V1 => {
            all.extend(limits.cpu_shares.map(|n| ("CPUShares", Value::Number(n))));
            all.extend(memory.map(|n| ("MemoryLimit", n)));
        }
        CgroupVersion::V2 => {
            all.extend(limits.cpu_weight().map(|n| ("CPUWeight", Value::Number(n))));
            all.extend(memory.map(|n| ("MemoryMax", n)));
            all.extend(limits.memory_min.map(|n| ("MemoryMin", bytes(n))));
            all.extend(limits.memory_low.map(|n| ("MemoryLow", bytes(n))));
        }
    }
    if let Some(quota) = limits.cpu_quota {
        all.push(("CPUQuotaPerSecUSec", Value::Number(per_second(quota))));
        all.push(("CPUQuotaPeriodUSec", Value::Number(quota.period_micros)));
    }
    all.extend(limits.pids.map(|n| ("TasksMax", bytes(n.max(1)))));
    all
}

/// Microseconds of CPU time in a second, as coarse as systemd counts, never less than asked for.
fn per_second(quota: CpuQuota) -> u64 {
    let Some(micros) = quota.micros.and_then(|n| u64::try_from(n).ok()) else {
        return u64::MAX;
    };
    let second = micros.saturating_mul(1_000_000) / quota.period_micros.max(1);
    second.next_multiple_of(QUOTA_STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_paths() {
        let cases = [
            ("/kubepods.slice", "kubepods.slice", "-.slice"),
            (
                "/kubepods.slice/kubepods-podx.slice",
                "kubepods-podx.slice",
                "kubepods.slice",
            ),
        ];
        for (path, unit, parent) in cases {
            assert_eq!(names(path), (unit.to_owned(), parent.to_owned()));
        }
    }

    #[test]
    fn limits_in_systemds_words() {
        let limits = CgroupLimits {
            cpu_shares: Some(1024),
            cpu_quota: Some(CpuQuota {
                micros: Some(12_345),
                period_micros: 100_000,
            }),
            memory: Some(1 << 20),
            memory_low: Some(4096),
            pids: Some(77),
            ..CgroupLimits::default()
        };
        let shown = |version, limits: &CgroupLimits| -> Vec<String> {
            limit_properties(version, limits)
                .into_iter()
                .map(|(name, value)| match value {
                    Value::Number(n) => format!("{name}={n}"),
                    other => format!("{name}={other:?}"),
                })
                .collect()
        };
        assert_eq!(
            shown(CgroupVersion::V2, &limits),
            [
                "CPUWeight=39",
                "MemoryMax=1048576",
                "MemoryLow=4096",
                "CPUQuotaPerSecUSec=130000",
                "CPUQuotaPeriodUSec=100000",
                "TasksMax=77"
            ]
        );
        assert_eq!(
            shown(CgroupVersion::V1, &limits)[..2],
            ["CPUShares=1024", "MemoryLimit=1048576"]
        );
        let free = CgroupLimits {
            cpu_quota: Some(CpuQuota {
                micros: None,
                period_micros: 5000,
            }),
            ..CgroupLimits::default()
        };
        assert_eq!(
            shown(CgroupVersion::V2, &free)[0],
            format!("CPUQuotaPerSecUSec={}", u64::MAX)
        );
        assert!(shown(CgroupVersion::V2, &CgroupLimits::default()).is_empty());
    }
}
