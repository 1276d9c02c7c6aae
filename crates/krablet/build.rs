//! Where the linker can do it, functions that came out the same are kept once: what is not in the binary is not in
//! memory.

use std::env::var;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

const FOLD: &str = "-Wl,--icf=all";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if var("PROFILE").as_deref() == Ok("release") && linker_folds().is_some_and(|folds| folds) {
        println!("cargo::rustc-link-arg-bins={FOLD}");
    }
}

/// Whoever links here, by default or by somebody's choice, is asked: an empty program is linked that way.
fn linker_folds() -> Option<bool> {
    let mut rustc = Command::new(var("RUSTC").ok()?);
    rustc.args(["--crate-type=bin", "--edition=2024", "-", "-C"]);
    rustc.arg(format!("link-arg={FOLD}"));
    rustc.arg("--target").arg(var("TARGET").ok()?);
    rustc
        .arg("-o")
        .arg(Path::new(&var("OUT_DIR").ok()?).join("probe"));
    if let Ok(linker) = var("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    let flags = var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()));
    rustc.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut probe = rustc.stderr(Stdio::null()).spawn().ok()?;
    probe.stdin.take()?.write_all(b"fn main() {}").ok()?;
    Some(probe.wait().ok()?.success())
}
