//! The krablet binary: the node agent, and a few commands that talk to a running one.

mod cgroups;
mod checkpointing;
mod cluster;
mod commands;
mod doors;
mod flagz;
mod keychain;
mod local_storage;
mod lock;
mod logging;
mod machine;
mod memory;
mod node;
mod parts;
mod pod_resources;
mod preflight;
mod pressure;
mod referents;
mod reservations;
mod resolver;
mod run_once;
mod secure;
mod settings;
mod static_pods;
mod stats;
mod systemd;
mod user_ids;
mod view;
mod vmodule;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use krablet_config::{KUBERNETES_VERSION, Loaded, Outcome, StdFiles, VersionForm};
use krablet_linux::SystemClock;
use tracing::{error, info, warn};

/// The agent's work is waiting; two threads keep up with hundreds of pods.
const WORKER_THREADS: usize = 2;

/// The socket of krablet's own commands.
pub fn control_socket(root_dir: &Path) -> PathBuf {
    root_dir.join("krablet.sock")
}

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    let args: Vec<OsString> = args.collect();
    if !runs_as_kubelet(&program)
        && let Some(name) = args.first().and_then(|a| a.to_str())
        && let Some(result) = commands::run(name, &args[1..])
    {
        return finish(result);
    }
    match krablet_config::load(&args, &StdFiles) {
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
        Ok(loaded) => match loaded.outcome {
            Outcome::PrintHelp => {
                print!("{}", krablet_config::render_help("krablet"));
                ExitCode::SUCCESS
            }
            Outcome::PrintVersion(form) => {
                print_version(form);
                ExitCode::SUCCESS
            }
            Outcome::Run => run(loaded),
        },
    }
}

/// Under the kubelet's name krablet behaves strictly as it does: there are no commands.
fn runs_as_kubelet(program: &OsString) -> bool {
    Path::new(program)
        .file_name()
        .is_some_and(|n| n == "kubelet")
}

fn print_version(form: VersionForm) {
    match form {
        VersionForm::Short => println!("Kubernetes {KUBERNETES_VERSION}"),
        VersionForm::Raw => println!(
            "version.Info{{GitVersion:\"{KUBERNETES_VERSION}\", Krablet:\"{}\"}}",
            env!("CARGO_PKG_VERSION")
        ),
    }
}

fn finish(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("Error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(loaded: Loaded) -> ExitCode {
    let logging = &loaded.config.process.logging;
    let format = match logging.format.as_str() {
        "json" => logging::Format::Json,
        _ => logging::Format::Text,
    };
    let modules = logging.vmodule.iter();
    let modules = modules.map(|m| (m.file_pattern.clone(), logging::level_of(m.verbosity)));
    let by_file = vmodule::ByFile::new(modules);
    let verbosity = logging::init(format, logging.verbosity, by_file, Arc::new(SystemClock));
    for warning in &loaded.warnings {
        warn!("{warning}");
    }
    info!(
        version = env!("CARGO_PKG_VERSION"),
        kubernetes = KUBERNETES_VERSION,
        "Starting krablet"
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .max_blocking_threads(16)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(e) => {
            error!(err = %e, "Cannot start the async runtime");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(node::run(loaded, verbosity));
    // Blocking calls on a file system that hangs must not keep the process alive.
    runtime.shutdown_background();
    match result {
        Ok(code) => code,
        Err(e) => {
            error!(err = format!("{e:#}"), "Failed to run krablet");
            ExitCode::FAILURE
        }
    }
}
