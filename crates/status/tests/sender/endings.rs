//! Pods that go: the last word of them, and the end of their objects.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_object_that_is_gone_is_left_alone() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    bench.server.remove("a");
    bench.say(&pod, "Running", true);
    bench.all_told().await;
    bench.say(&pod, "Failed", false);
    bench.all_told().await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(bench.calls(), ["PATCH a"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_to_another_pod_of_that_name() {
    let bench = Bench::new();
    let old = bench.bind("a");
    bench
        .server
        .put(serde_json::to_value(pod("other", "a")).unwrap());
    bench.say(&old, "Running", true);
    bench.all_told().await;
    bench.store.terminate(&old, Timestamp::UNIX_EPOCH);
    bench.all_told().await;
    assert_eq!(bench.calls(), ["PATCH a", "GET a"]);
    assert_eq!(bench.server.object("a").unwrap().get("status"), None);
}

#[tokio::test(start_paused = true)]
async fn an_ended_pod_is_deleted_after_its_last_status() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    bench.could_run("a", true);
    bench.say(&pod, "Running", true);
    bench.all_told().await;
    bench.server.change("a", |object| {
        object["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
    });
    bench.watch("a");
    bench.handle.reconcile(&"a".into());
    // Over, but its containers could still run.
    bench.say(&pod, "Failed", false);
    bench.all_told().await;
    assert_eq!(bench.phase("a"), "Running");
    bench.could_run("a", false);
    bench.calls();
    bench.store.terminate(&pod, Timestamp::UNIX_EPOCH);
    bench.all_told().await;
    assert_eq!(bench.calls(), ["PATCH a", "DELETE a"]);
    assert_eq!(
        bench.server.phases("a").last().map(String::as_str),
        Some("Failed")
    );
    assert_eq!(bench.server.object("a"), None);
}

/// The watch tells of the last write after the object is gone, and of that later still.
#[tokio::test(start_paused = true)]
async fn the_echo_of_the_last_write_asks_for_nothing() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    bench.say(&pod, "Running", true);
    bench.all_told().await;
    bench.server.change("a", |object| {
        object["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
    });
    bench.watch("a");
    let mut object = bench.server.object("a").unwrap();
    let version: u64 =
        serde_json::from_value::<String>(object["metadata"]["resourceVersion"].clone())
            .unwrap()
            .parse()
            .unwrap();
    bench.store.terminate(&pod, Timestamp::UNIX_EPOCH);
    bench.all_told().await;
    assert_eq!(bench.calls(), ["PATCH a", "PATCH a", "DELETE a"]);
    // The second of these, what the server writes before it takes the object away, and a write of somebody else: the
    // object may be there after all.
    for (write, grace, calls) in [(1, 30, &[][..]), (2, 0, &[][..]), (3, 30, &["PATCH a"])] {
        object["metadata"]["resourceVersion"] = json!((version + write).to_string());
        object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        let shown: Pod = serde_json::from_value(object.clone()).unwrap();
        bench.know(|known| drop(known.pods.insert("a".into(), Arc::new(shown))));
        bench.handle.reconcile(&"a".into());
        bench.settle().await;
        assert_eq!(bench.calls(), calls, "{write}");
    }
}

/// Others want to be heard first, or the server was cut off between its last write and the removal. Which of the two is
/// not known, so it is asked once more.
#[tokio::test(start_paused = true)]
async fn an_object_that_stays_in_spite_of_all_is_asked_for_once_more() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    bench.say(&pod, "Running", true);
    bench.all_told().await;
    bench.server.change("a", |object| {
        object["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
        object["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        object["metadata"]["finalizers"] = json!(["example.com/keep"]);
    });
    bench.watch("a");
    bench.store.terminate(&pod, Timestamp::UNIX_EPOCH);
    bench.all_told().await;
    assert_eq!(bench.calls(), ["PATCH a", "PATCH a", "DELETE a"]);
    bench.watch("a");
    bench.handle.reconcile(&"a".into());
    bench.settle().await;
    assert_eq!(bench.calls(), [""; 0]);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(bench.calls(), ["DELETE a"]);
}

#[tokio::test(start_paused = true)]
async fn deletion_asked_for_after_the_end_is_done_at_once_and_tried_again() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    bench.say(&pod, "Succeeded", false);
    bench.store.terminate(&pod, Timestamp::UNIX_EPOCH);
    bench.all_told().await;
    bench.calls();
    bench.server.change("a", |object| {
        object["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
    });
    bench.watch("a");
    bench
        .server
        .fail_next(ApiError::from_answer(500, b"{}", None));
    bench.handle.reconcile(&"a".into());
    bench.all_told().await;
    assert_eq!(bench.calls(), ["DELETE a", "DELETE a"]);
    assert_eq!(bench.server.object("a"), None);
}

#[tokio::test(start_paused = true)]
async fn the_last_phase_is_told_when_nothing_can_run_any_more() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    bench.could_run("a", true);
    bench.say(&pod, "Succeeded", false);
    bench.all_told().await;
    assert_eq!(bench.phase("a"), Value::Null);
    bench.could_run("a", false);
    bench.handle.reconcile(&"a".into());
    bench.all_told().await;
    assert_eq!(bench.phase("a"), "Succeeded");
}
