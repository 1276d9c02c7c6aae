//! Which functions a running program uses, in the order in which it first does: each gets a breakpoint that is taken away
//! when it is met.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The instruction of one byte that stops an x86-64 program.
const BREAKPOINT: [u8; 1] = [0xcc];
/// Means nothing to a program without a terminal, and stops it for who traces it.
const NUDGE: Signal = Signal::SIGWINCH;

/// The functions of a program by their place in it.
pub struct Symbols(BTreeMap<u64, String>);

impl Symbols {
    pub fn of(program: &Path) -> Result<Self> {
        let mut nm = Command::new("nm");
        nm.args(["--defined-only", "--print-size"]).arg(program);
        let output = nm.output().context("nm, of the binutils")?;
        let text = String::from_utf8(output.stdout)?;
        let functions = text.lines().filter_map(function).collect();
        let symbols = Self(functions);
        ensure!(
            !symbols.0.is_empty(),
            "{} has no symbols: build it as `make order` does",
            program.display()
        );
        Ok(symbols)
    }
}

/// `<address> <size> <type> <name>`.
fn function(line: &str) -> Option<(u64, String)> {
    let mut words = line.split_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    words.next()?;
    let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
    let name = words.next()?;
    is_code.then(|| (address, name.to_owned()))
}

/// The functions that a process uses while something is done.
pub async fn during(
    pid: u32,
    symbols: &Arc<Symbols>,
    work: impl Future<Output = Result<()>>,
) -> Result<Vec<String>> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "breakpoints are those of an x86-64 processor"
    );
    let pid = Pid::from_raw(i32::try_from(pid)?);
    let (symbols, stop) = (Arc::clone(symbols), Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&stop);
    // Who traces a process is a thread, and only it may.
    let thread = std::thread::spawn(move || trace(pid, &symbols, &stopped));
    let worked = work.await;
    stop.store(true, Ordering::Relaxed);
    // One that ended is told of by who waits for it.
    let _ = kill(pid, NUDGE);
    let traced = tokio::task::spawn_blocking(move || thread.join()).await?;
    let Ok(names) = traced else {
        bail!("the thread that traces panicked");
    };
    worked.and(names)
}

fn trace(pid: Pid, symbols: &Symbols, stop: &AtomicBool) -> Result<Vec<String>> {
    let mut traced = Traced::begin(pid, symbols)?;
    while !stop.load(Ordering::Relaxed) {
        traced.step()?;
    }
    traced.end()
}

struct Traced<'a> {
    pid: Pid,
    memory: File,
    /// Where the program begins in memory.
    base: u64,
    symbols: &'a Symbols,
    /// What stood where a breakpoint is.
    instead_of: BTreeMap<u64, [u8; 1]>,
    names: Vec<String>,
}

impl<'a> Traced<'a> {
    fn begin(pid: Pid, symbols: &'a Symbols) -> Result<Self> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let base = maps.split('-').next().context("no memory")?;
        let memory = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))?;
        let mut traced = Self {
            pid,
            memory,
            base: u64::from_str_radix(base, 16)?,
            symbols,
            instead_of: BTreeMap::new(),
            names: Vec::new(),
        };
        let threads = threads(pid)?;
        for thread in &threads {
            ptrace::seize(*thread, Options::PTRACE_O_TRACECLONE)?;
            ptrace::interrupt(*thread)?;
            waitpid(*thread, Some(WaitPidFlag::__WALL))?;
        }
        for place in symbols.0.keys() {
            let mut byte = [0];
            traced
                .memory
                .read_exact_at(&mut byte, traced.base + place)?;
            traced
                .memory
                .write_all_at(&BREAKPOINT, traced.base + place)?;
            traced.instead_of.insert(*place, byte);
        }
        for thread in threads {
            ptrace::cont(thread, None)?;
        }
        Ok(traced)
    }

    /// Waits until a thread stops, and lets it go on.
    fn step(&mut self) -> Result<()> {
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        match waitpid(None, Some(flags))? {
            WaitStatus::Exited(thread, _) | WaitStatus::Signaled(thread, _, _) => {
                ensure!(thread != self.pid, "the program ended");
            }
            WaitStatus::Stopped(thread, Signal::SIGTRAP) => {
                self.met(thread)?;
                ptrace::cont(thread, None)?;
            }
            WaitStatus::Stopped(thread, signal) => ptrace::cont(thread, signal)?,
            other => {
                if let Some(thread) = other.pid() {
                    ptrace::cont(thread, None)?;
                }
            }
        }
        Ok(())
    }

    /// A thread has met a breakpoint, or one that another thread met at the same time.
    fn met(&mut self, thread: Pid) -> Result<()> {
        let place = instruction(thread)?.wrapping_sub(self.base + 1);
        let Some(name) = self.symbols.0.get(&place) else {
            return Ok(());
        };
        if let Some(byte) = self.instead_of.remove(&place) {
            self.memory.write_all_at(&byte, self.base + place)?;
            self.names.push(name.clone());
        }
        go_on_at(thread, self.base + place)
    }

    fn end(mut self) -> Result<Vec<String>> {
        for (place, byte) in std::mem::take(&mut self.instead_of) {
            self.memory.write_all_at(&byte, self.base + place)?;
        }
        for thread in threads(self.pid)? {
            // One that has just ended cannot be stopped.
            if ptrace::interrupt(thread).is_err() {
                continue;
            }
            if let WaitStatus::Stopped(thread, Signal::SIGTRAP) =
                waitpid(thread, Some(WaitPidFlag::__WALL))?
            {
                self.met(thread)?;
            }
            ptrace::detach(thread, None)?;
        }
        Ok(self.names)
    }
}

fn threads(pid: Pid) -> Result<Vec<Pid>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?;
    let number = |name: &str| anyhow::Ok(Pid::from_raw(name.parse()?));
    tasks
        .map(|task| number(&task?.file_name().to_string_lossy()))
        .collect()
}

#[cfg(target_arch = "x86_64")]
fn instruction(thread: Pid) -> Result<u64> {
    Ok(ptrace::getregs(thread)?.rip)
}

#[cfg(target_arch = "x86_64")]
fn go_on_at(thread: Pid, address: u64) -> Result<()> {
    let mut registers = ptrace::getregs(thread)?;
    registers.rip = address;
    Ok(ptrace::setregs(thread, registers)?)
}

#[cfg(not(target_arch = "x86_64"))]
fn instruction(_: Pid) -> Result<u64> {
    bail!("not an x86-64 processor")
}

#[cfg(not(target_arch = "x86_64"))]
fn go_on_at(_: Pid, _: u64) -> Result<()> {
    bail!("not an x86-64 processor")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_a_list() {
        let named = |address, name: &str| Some((address, name.to_owned()));
        for (line, expected) in [
            (
                "0000000000001000 0000000000000010 t _ZN1a17h0E",
                named(0x1000, "_ZN1a17h0E"),
            ),
            (
                "0000000000001010 0000000000000010 T main",
                named(0x1010, "main"),
            ),
            ("0000000000001010 0000000000000010 d table", None),
            ("0000000000001010 T without_size", None),
            ("                 U malloc", None),
            ("", None),
        ] {
            assert_eq!(function(line), expected, "{line}");
        }
    }
}
