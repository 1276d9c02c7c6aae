//! Logs on a node that can watch over none.

use super::rights::{Authority, full_door_of};
use super::*;

#[tokio::test]
async fn who_cannot_be_told_of_changes_is_told_why() {
    let (authority, logs) = (Authority::new(), tempfile::tempdir().unwrap());
    let mut door = full_door_of(&authority, &logs, false);
    // EMFILE: as many are in use as a user may have.
    door.log_watch = LogWatch::by(|| Err(std::io::Error::from_raw_os_error(24)));
    let router = router(&Arc::new(door));
    let get = async |path: &str| ask(&router, &Method::GET, path, Some("right")).await;
    let log = "/containerLogs/ns/p/c";
    assert_eq!(get(log).await, (200, "line\n".to_owned()));
    for _ in 0..2 {
        let (code, why) = get(&format!("{log}?follow=true")).await;
        assert_eq!(code, 500, "{why}");
        assert!(why.contains("fs.inotify.max_user_instances"), "{why}");
    }
    assert_eq!(get("/pods").await.0, 200);
}
