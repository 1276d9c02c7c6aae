//! The binary's size: most of it is resident sooner or later.

use anyhow::Result;

use crate::node::program;
use crate::report::Row;

pub fn measure() -> Result<Vec<Row>> {
    let size = std::fs::metadata(program()?)?.len() as f64 / 1e6;
    Ok(vec![
        Row::new("binary", "size of the binary", size, "MB").at_most(20.0),
    ])
}
