//! What the service manager is told: that the agent is up, and, if it keeps a watchdog over it, that
//! the agent is still well.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use krablet_config::{FeatureGates, Gate};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tracing::{debug, error, info, warn};

/// A watchdog with no more patience than this is refused, as the kubelet does: it would end a healthy agent.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);
/// After a message that could not be sent; then once more, and then with the next turn.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The checks that fail now, with the reason: those of `/healthz`.
type Checks = Box<dyn Fn() -> Vec<(&'static str, String)> + Send + Sync>;

/// The service manager that started this process, if one did.
pub struct ServiceManager {
    socket: Option<SocketAddr>,
    /// How long the manager waits for a sign of life before it ends the agent.
    patience: Option<Duration>,
    /// Set once there is something to check. Until then the agent is on its way, which is well.
    checks: Arc<OnceLock<Checks>>,
}

impl ServiceManager {
    /// As the environment tells. A watchdog that is asked for and cannot be kept is an error, for the
    /// manager would end the agent again and again.
    pub fn of_process(gates: &FeatureGates) -> Result<Self> {
        let word = |name: &str| std::env::var(name).unwrap_or_default();
        let patience = match gates.enabled(Gate::SystemdWatchdog) {
            true => patience(
                &word("WATCHDOG_USEC"),
                &word("WATCHDOG_PID"),
                std::process::id(),
            )?,
            false => None,
        };
        let socket = std::env::var_os("NOTIFY_SOCKET").unwrap_or_default();
        let socket = address(&socket).unwrap_or_else(|e| {
            warn!(err = %e, ?socket, "NOTIFY_SOCKET is no address of a socket");
            None
        });
        let manager = Self {
            socket,
            patience,
            checks: Arc::default(),
        };
        if manager.socket.is_none() && manager.patience.is_some() {
            warn!("WATCHDOG_USEC is set and NOTIFY_SOCKET is not: the watchdog cannot be notified");
        }
        Ok(manager)
    }

    /// Begins with the signs of life, if somebody waits for them.
    pub fn start(&self, tasks: &mut JoinSet<()>) {
        if let (Some(socket), Some(patience)) = (&self.socket, self.patience) {
            let interval = patience / 2;
            info!(?interval, "Starting systemd watchdog with interval");
            tasks.spawn(keep_alive(socket.clone(), interval, self.checks.clone()));
        }
    }

    /// The agent is up, and these tell whether it is well from here on.
    pub fn ready(&self, checks: impl Fn() -> Vec<(&'static str, String)> + Send + Sync + 'static) {
        // There is one start.
        let _ = self.checks.set(Box::new(checks));
        if let Some(socket) = &self.socket
            && let Err(e) = send(socket, "READY=1")
        {
            warn!(err = %e, "Could not notify the service manager");
        }
    }
}

/// How long the watchdog waits, if there is one for this process.
fn patience(usec: &str, pid: &str, own_pid: u32) -> Result<Option<Duration>> {
    if usec.is_empty() {
        return Ok(None);
    }
    let micros = usec
        .parse::<i64>()
        .with_context(|| format!("configure watchdog: error converting WATCHDOG_USEC {usec:?}"))?;
    let Some(micros) = u64::try_from(micros).ok().filter(|micros| *micros > 0) else {
        bail!("configure watchdog: error WATCHDOG_USEC must be a positive number, not {usec}");
    };
    if !pid.is_empty() {
        let pid = pid.parse::<i64>().with_context(|| {
            format!("configure watchdog: error converting WATCHDOG_PID {pid:?}")
        })?;
        if pid != i64::from(own_pid) {
            return Ok(None);
        }
    }
    match Duration::from_micros(micros) {
        patience if patience <= LEAST_PATIENCE => {
            bail!("configure watchdog timeout too small: {patience:?}")
        }
        patience => Ok(Some(patience)),
    }
}

/// A path, or a name in the abstract namespace if it begins with `@`.
fn address(socket: &OsStr) -> io::Result<Option<SocketAddr>> {
    match socket.as_bytes() {
        [] => Ok(None),
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).map(Some),
        _ => SocketAddr::from_pathname(socket).map(Some),
    }
}

/// A manager that does not read must not hold up the agent.
fn send(socket: &SocketAddr, words: &str) -> io::Result<()> {
    let datagram = UnixDatagram::unbound()?;
    datagram.set_nonblocking(true)?;
    datagram.send_to_addr(words.as_bytes(), socket).map(drop)
}

/// Gives a sign of life in every interval in which the agent is well, and none in the others.
async fn keep_alive(socket: SocketAddr, interval: Duration, checks: Arc<OnceLock<Checks>>) {
    let mut turns = tokio::time::interval(interval);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let failing = checks.get().map(|checks| checks()).unwrap_or_default();
        if let Some((check, why)) = failing.first() {
            error!(
                check,
                err = why,
                "Do not notify watchdog this iteration as the kubelet is reportedly not healthy"
            );
            continue;
        }
        if let Err(e) = send(&socket, "WATCHDOG=1") {
            debug!(err = %e, "Failed to notify systemd watchdog, retrying");
            tokio::time::sleep(RETRY_AFTER).await;
            if let Err(e) = send(&socket, "WATCHDOG=1") {
                error!(err = %e, "Failed to notify watchdog");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn patience_of_the_watchdog() {
        let told = |usec: &str, pid: &str| {
            patience(usec, pid, 42)
                .map(|patience| patience.map(|patience| patience.as_millis()))
                .map_err(|e| e.to_string())
        };
        assert_eq!(told("", ""), Ok(None));
        assert_eq!(told("", "42"), Ok(None));
        assert_eq!(told("30000000", ""), Ok(Some(30_000)));
        assert_eq!(told("30000000", "42"), Ok(Some(30_000)));
        assert_eq!(told("30000000", "43"), Ok(None), "another process");
        assert_eq!(told("1001000", "42"), Ok(Some(1001)));
        assert_eq!(told("1000", "43"), Ok(None), "not our watchdog");
        for (usec, pid, words) in [
            ("1000000", "", "timeout too small: 1s"),
            ("1000", "42", "timeout too small: 1ms"),
            ("0", "", "must be a positive number"),
            ("-5", "42", "must be a positive number"),
            ("30s", "", "error converting WATCHDOG_USEC"),
            ("99999999999999999999", "", "error converting WATCHDOG_USEC"),
            ("30000000", "me", "error converting WATCHDOG_PID"),
        ] {
            let why = told(usec, pid).unwrap_err();
            assert!(why.contains(words), "{usec} {pid}: {why}");
        }
    }

    /// What a service manager has been told since it was last asked.
    struct Ear(UnixDatagram);

    impl Ear {
        fn at(address: &SocketAddr) -> Self {
            let socket = UnixDatagram::bind_addr(address).unwrap();
            socket.set_nonblocking(true).unwrap();
            Self(socket)
        }

        fn heard(&self) -> Vec<String> {
            let mut all = Vec::new();
            let mut buffer = [0; 64];
            while let Ok(length) = self.0.recv(&mut buffer) {
                all.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
            }
            all
        }
    }

    fn socket_in(dir: &Path) -> SocketAddr {
        let path = dir.join("notify");
        address(path.as_os_str()).unwrap().unwrap()
    }

    fn manager(socket: &SocketAddr, patience: Option<Duration>) -> ServiceManager {
        ServiceManager {
            socket: Some(socket.clone()),
            patience,
            checks: Arc::default(),
        }
    }

    async fn after(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn signs_of_life_come_while_the_agent_is_well() {
        let dir = tempfile::tempdir().unwrap();
        let socket = socket_in(dir.path());
        let ear = Ear::at(&socket);
        let manager = manager(&socket, Some(Duration::from_secs(10)));
        let mut tasks = JoinSet::new();
        manager.start(&mut tasks);
        let alive = |count: usize| vec!["WATCHDOG=1".to_owned(); count];
        after(12).await;
        assert_eq!(ear.heard(), alive(3), "on its way: at 0, 5 and 10 s");

        let stuck = Arc::new(AtomicBool::new(false));
        let check = stuck.clone();
        manager.ready(move || match check.load(Ordering::Relaxed) {
            true => vec![("syncloop", "no turn".to_owned())],
            false => Vec::new(),
        });
        assert_eq!(ear.heard(), ["READY=1"]);
        after(10).await;
        assert_eq!(ear.heard(), alive(2), "at 15 and 20 s");
        stuck.store(true, Ordering::Relaxed);
        after(60).await;
        assert_eq!(ear.heard(), alive(0));
        stuck.store(false, Ordering::Relaxed);
        after(5).await;
        assert_eq!(ear.heard(), alive(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_that_is_away_is_told_again() {
        let dir = tempfile::tempdir().unwrap();
        let socket = socket_in(dir.path());
        let manager = manager(&socket, Some(Duration::from_secs(10)));
        let mut tasks = JoinSet::new();
        manager.start(&mut tasks);
        // Both tries have failed by then, the next turn has not come.
        after(3).await;
        let ear = Ear::at(&socket);
        assert!(ear.heard().is_empty());
        after(5).await;
        assert_eq!(ear.heard(), ["WATCHDOG=1"]);
        assert!(tasks.try_join_next().is_none(), "it goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_watchdog_only_the_start_is_told() {
        let name = format!("@krablet-test-{}", std::process::id());
        let socket = address(OsStr::new(&name)).unwrap().unwrap();
        let ear = Ear::at(&socket);
        let manager = manager(&socket, None);
        let mut tasks = JoinSet::new();
        manager.start(&mut tasks);
        assert!(tasks.is_empty());
        manager.ready(Vec::new);
        after(60).await;
        assert_eq!(ear.heard(), ["READY=1"]);
        assert!(address(OsStr::new("")).unwrap().is_none());
    }
}
