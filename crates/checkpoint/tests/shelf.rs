//! What is found on a shelf in the next life.
#![allow(clippy::unwrap_used)] // all of it is test code

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use krablet_checkpoint::{Shelf, shelf};
use krablet_linux::Files;
use krablet_linux::fake::MemoryFiles;

const DIR: &str = "/state/kept";

/// A life in which these things happen, to its orderly end.
async fn life(files: &MemoryFiles, happens: impl FnOnce(&Shelf)) {
    let (shelf, task) = shelf(Arc::new(files.clone()), DIR);
    happens(&shelf);
    drop(shelf);
    task.run().await;
}

async fn found(files: &MemoryFiles, name: &str) -> Option<String> {
    let (shelf, _task) = shelf(Arc::new(files.clone()), DIR);
    shelf.load(name).await
}

async fn names(files: &MemoryFiles) -> Vec<String> {
    let entries = files.list(Path::new(DIR)).await.unwrap();
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    entries.iter().map(|e| name(&e.path)).collect()
}

#[tokio::test]
async fn what_was_put_comes_back_and_what_was_removed_does_not() {
    let files = MemoryFiles::default();
    let long = "x".repeat(1000);
    life(&files, |shelf| {
        shelf.put("secret a/../b", "one");
        shelf.put("secret a/../b", "two");
        shelf.put(&long, "three");
        shelf.put("gone", "four");
        shelf.remove("gone");
        shelf.remove("never there");
    })
    .await;
    assert_eq!(found(&files, "secret a/../b").await.as_deref(), Some("two"));
    assert_eq!(found(&files, &long).await.as_deref(), Some("three"));
    assert_eq!(found(&files, "gone").await, None);
    assert_eq!(names(&files).await.len(), 2);
    for name in names(&files).await {
        assert_eq!(files.mode(&Path::new(DIR).join(name)), Some(0o600));
    }
    assert_eq!(files.mode(Path::new(DIR)), Some(0o700));
}

#[tokio::test]
async fn what_is_not_written_yet_is_there_all_the_same() {
    let (shelf, _task) = shelf(Arc::new(MemoryFiles::default()), DIR);
    shelf.put("a", "one");
    assert_eq!(shelf.load::<String>("a").await.as_deref(), Some("one"));
    shelf.remove("a");
    assert_eq!(shelf.load::<String>("a").await, None);
}

#[tokio::test]
async fn what_nobody_needs_any_more_is_removed_at_the_beginning() {
    let files = MemoryFiles::default();
    life(&files, |shelf| {
        for name in ["a", "b", "c"] {
            shelf.put(name, name);
        }
    })
    .await;
    let (shelf, _task) = shelf(Arc::new(files.clone()), DIR);
    shelf.keep_only(&BTreeSet::from(["b".to_owned()])).await;
    assert_eq!(found(&files, "a").await, None);
    assert_eq!(found(&files, "b").await.as_deref(), Some("b"));
    assert_eq!(names(&files).await.len(), 1);
}

#[tokio::test]
async fn a_file_that_is_torn_or_of_another_name_counts_for_nothing() {
    let files = MemoryFiles::default();
    life(&files, |shelf| shelf.put("a", "one")).await;
    let path = Path::new(DIR).join(&names(&files).await[0]);
    let bytes = files.content(&path).unwrap();
    files.put_file(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(found(&files, "a").await, None);
    assert!(names(&files).await[0].contains(".bad-"), "it is set aside");

    life(&files, |shelf| shelf.put("b", "two")).await;
    let other = names(&files).await;
    let other = other.iter().find(|name| !name.contains(".bad-")).unwrap();
    let content = files.content(&Path::new(DIR).join(other)).unwrap();
    files.put_file(&path, &content).unwrap();
    assert_eq!(found(&files, "a").await, None);
    assert_eq!(found(&files, "b").await.as_deref(), Some("two"));
}
