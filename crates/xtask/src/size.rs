//! The release binary against the size that SPECIFICATION.md promises.

use std::path::Path;

use anyhow::{Context, Result, bail};

const LIMIT: u64 = 20 * 1000 * 1000;

pub fn check(root: &Path) -> Result<()> {
    let binary = root.join("target/release/krablet");
    let size = std::fs::metadata(&binary)
        .with_context(|| format!("{}: build it first with make build", binary.display()))?
        .len();
    if size > LIMIT {
        bail!("the release binary has {size} bytes, more than the promised {LIMIT}");
    }
    println!("size: {size} bytes of at most {LIMIT}");
    Ok(())
}
