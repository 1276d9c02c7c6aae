//! Where the linker can do it, functions that came out the same are kept once, and those that a quiet node uses lie side by
//! side: what is not in the binary is not in memory, nor is what lies beside nothing that is used.

use std::env::var;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Beside this file; `make order` writes it.
const ORDER: &str = "order.txt";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={ORDER}");
    if var("PROFILE").as_deref() != Ok("release") {
        return;
    }
    let order = Path::new(&var("CARGO_MANIFEST_DIR").unwrap_or_default()).join(ORDER);
    let wishes = [
        "-Wl,--icf=all".to_owned(),
        format!("-Wl,--symbol-ordering-file={}", order.display()),
        "-Wl,--no-warn-symbol-ordering".to_owned(),
    ];
    if linker_can(&wishes).is_some_and(|can| can) {
        for wish in wishes {
            println!("cargo::rustc-link-arg-bins={wish}");
        }
    }
}

/// Whoever links here, by default or by somebody's choice, is asked: an empty program is linked that way.
fn linker_can(wishes: &[String]) -> Option<bool> {
    let mut rustc = Command::new(var("RUSTC").ok()?);
    rustc.args(["--crate-type=bin", "--edition=2024", "-"]);
    for wish in wishes {
        rustc.arg("-C").arg(format!("link-arg={wish}"));
    }
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
