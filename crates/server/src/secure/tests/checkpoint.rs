//! A runtime that writes containers to files.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::*;

/// What it was asked for.
#[derive(Default)]
struct Able(Mutex<Vec<(String, PathBuf, i64)>>);

#[async_trait::async_trait]
impl Checkpointer for Able {
    async fn checkpoint(&self, id: &str, location: &Path, seconds: i64) -> Result<(), String> {
        std::fs::write(location, "memory").map_err(|e| e.to_string())?;
        let asked = (id.to_owned(), location.to_owned(), seconds);
        self.0.lock().unwrap().push(asked);
        Ok(())
    }
}

#[tokio::test]
async fn a_container_is_written_where_only_the_owner_reads() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("not/there/checkpoints");
    let runtime = Arc::new(Able::default());
    let router = door_with(true, |parts| {
        parts.inside = Arc::new(node::OnePod);
        parts.checkpoints = Some(Checkpoints {
            directory: directory.clone(),
            runtime: runtime.clone(),
        });
    });
    let file = directory.join("checkpoint-p_ns-c-1970-01-01T00:00:00Z.tar");
    for (query, seconds) in [("", 0), ("?timeout=7", 7)] {
        let path = format!("/checkpoint/ns/p/c{query}");
        let (code, text) = ask(&router, &Method::POST, &path, Some("right")).await;
        let told: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((code, told), (200, json!({"items": [file]})));
        let asked = runtime.0.lock().unwrap().pop();
        assert_eq!(asked, Some(("id".to_owned(), file.clone(), seconds)));
    }
    let mode = std::fs::metadata(&directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
}
