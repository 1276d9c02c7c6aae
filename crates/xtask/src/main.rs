//! Developer chores that need more than a line of make.

mod purity;
mod rooms;
mod size;

use std::path::PathBuf;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let root = workspace_root();
    match std::env::args().nth(1).as_deref() {
        Some("rooms") => {
            rooms::check(&root)?;
            purity::check(&root)
        }
        Some("size") => size::check(&root),
        other => bail!(
            "unknown chore {:?}; there are:\n  rooms  which crate may know which, and what the pure ones must not touch\n  size   the release binary against its promise",
            other.unwrap_or_default()
        ),
    }
}

/// The workspace this was built from.
fn workspace_root() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path.pop();
    path
}
