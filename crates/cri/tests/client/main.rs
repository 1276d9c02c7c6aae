//! The client against a runtime that hangs, dies, restarts and talks nonsense.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use krablet_cri::calls::Call;
use krablet_cri::{
    CallLog, Code, Deadlines, Endpoint, ImageClient, ImageService, RuntimeClient, RuntimeService,
    v1,
};
use prost::Message;
use server::{Handler, Reply, Server};
use tempfile::TempDir;

struct Bed {
    dir: TempDir,
    log: CallLog,
}

impl Bed {
    fn new() -> Self {
        Self {
            dir: TempDir::new().unwrap(),
            log: CallLog::default(),
        }
    }

    fn serve(&self, handler: impl Fn(&str, &[u8]) -> Reply + Send + Sync + 'static) -> Server {
        let handler: Handler = Arc::new(handler);
        Server::start(&self.dir.path().join("cri.sock"), handler)
    }

    fn endpoint(&self) -> Endpoint {
        let socket = self.dir.path().join("cri.sock");
        Endpoint::parse(&format!("unix://{}", socket.display())).unwrap()
    }

    fn runtime(&self) -> RuntimeClient {
        self.runtime_within(Duration::from_secs(60))
    }

    fn runtime_within(&self, request: Duration) -> RuntimeClient {
        let deadlines = Deadlines {
            request,
            exec_slack: Duration::from_millis(50),
        };
        RuntimeClient::new(&self.endpoint(), deadlines, self.log.clone())
    }

    fn images(&self) -> ImageClient {
        ImageClient::new(&self.endpoint(), Deadlines::default(), self.log.clone())
    }
}

fn version() -> Reply {
    let answer = v1::VersionResponse {
        runtime_name: "test".to_owned(),
        ..Default::default()
    };
    Reply::Messages(vec![answer.encode_to_vec()])
}

/// Asks until the runtime answers; the back-off between attempts is the client's own.
async fn eventually_answers(runtime: &RuntimeClient) {
    let asking = async {
        while let Err(error) = runtime.version().await {
            assert!(error.is_unavailable(), "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asking)
        .await
        .expect("the client never came back");
}

#[tokio::test]
async fn a_call_and_its_answer() {
    let bed = Bed::new();
    let _server = bed.serve(|call, request| {
        assert_eq!(call, "ListContainers");
        let request = v1::ListContainersRequest::decode(request).unwrap();
        let wanted = &request.filter.unwrap().label_selector["app"];
        let containers = vec![v1::Container {
            id: format!("of-{wanted}"),
            ..Default::default()
        }];
        Reply::Messages(vec![
            v1::ListContainersResponse { containers }.encode_to_vec(),
        ])
    });
    let filter = v1::ContainerFilter {
        label_selector: [("app".to_owned(), "web".to_owned())].into(),
        ..Default::default()
    };
    let listed = bed.runtime().list_containers(Some(filter)).await.unwrap();
    assert_eq!(listed[0].id, "of-web");
    let counters = &bed.log.snapshot().calls[&Call::ListContainers];
    assert_eq!((counters.ended, counters.failed), (1, 0));
}

#[tokio::test]
async fn silence_ends_at_the_deadline_and_names_the_call() {
    let bed = Bed::new();
    let _server = bed.serve(|call, _| match call {
        // The head and a part, then nothing: the deadline holds for the whole answer.
        "Status" => Reply::MessagesThenSilence(vec![]),
        "Version" => version(),
        _ => Reply::Silence,
    });
    let runtime = bed.runtime_within(Duration::from_millis(50));
    let errors = [
        runtime.container_status("c").await.unwrap_err(),
        runtime.status().await.unwrap_err(),
        runtime.stop_container("c", 0).await.unwrap_err(),
        runtime
            .exec_sync("c", vec!["true".to_owned()], Duration::from_millis(1))
            .await
            .unwrap_err(),
    ];
    let calls = errors.each_ref().map(|error| {
        assert!(error.is_deadline(), "{error}");
        error.call
    });
    assert_eq!(
        calls,
        ["ContainerStatus", "Status", "StopContainer", "ExecSync"]
    );
    assert_eq!(
        errors[0].to_string(),
        "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    );
    // The connection is as good as before.
    runtime.version().await.unwrap();
    assert!(bed.log.snapshot().in_flight.is_empty());
}

#[tokio::test]
async fn calls_in_flight_are_listed_with_their_object() {
    let bed = Bed::new();
    let _server = bed.serve(|_, _| Reply::Silence);
    let runtime = bed.runtime();
    {
        let mut call = runtime.stop_container("abc", 30);
        assert!(futures::poll!(&mut call).is_pending());
        let listed = bed.log.snapshot().in_flight;
        assert_eq!(listed.len(), 1);
        assert_eq!(
            (listed[0].call, &*listed[0].object),
            (Call::StopContainer, "abc")
        );
    }
    // Given up by the caller: gone from the table.
    assert!(bed.log.snapshot().in_flight.is_empty());
}

#[tokio::test]
async fn a_restarted_runtime_is_found_again() {
    let bed = Bed::new();
    let runtime = bed.runtime();
    let error = runtime.version().await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert!(error.message.contains("cri.sock"), "{error}");
    for _ in 0..3 {
        let server = bed.serve(|_, _| version());
        eventually_answers(&runtime).await;
        drop(server);
        while runtime.version().await.is_ok() {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn an_answer_too_large_is_refused() {
    let bed = Bed::new();
    let _server = bed.serve(|call, _| match call {
        "Version" => version(),
        _ => {
            let status = v1::ContainerStatus {
                message: "x".repeat(krablet_cri::MAX_MESSAGE),
                ..Default::default()
            };
            let answer = v1::ContainerStatusResponse {
                status: Some(status),
                ..Default::default()
            };
            Reply::Messages(vec![answer.encode_to_vec()])
        }
    });
    let runtime = bed.runtime();
    let error = runtime.container_status("c").await.unwrap_err();
    assert_eq!(error.code, Code::OutOfRange, "{error}");
    runtime.version().await.unwrap();
}

#[tokio::test]
async fn output_of_a_command_is_cut() {
    let bed = Bed::new();
    let _server = bed.serve(|_, _| {
        let answer = v1::ExecSyncResponse {
            stdout: vec![b'o'; krablet_cri::MAX_EXEC_OUTPUT + 10],
            stderr: b"e".to_vec(),
            exit_code: 3,
        };
        Reply::Messages(vec![answer.encode_to_vec()])
    });
    let answer = bed
        .runtime()
        .exec_sync("c", vec!["yes".to_owned()], Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(answer.stdout.len(), krablet_cri::MAX_EXEC_OUTPUT);
    assert_eq!((&*answer.stderr, answer.exit_code), (&b"e"[..], 3));
}

#[tokio::test]
async fn nonsense_is_an_error_and_no_more() {
    let bed = Bed::new();
    let _server = bed.serve(|call, _| match call {
        "Version" => version(),
        // A status without the status.
        "ContainerStatus" => Reply::Messages(vec![vec![]]),
        _ => Reply::Garbage,
    });
    let runtime = bed.runtime();
    let error = runtime.list_pod_sandbox(None).await.unwrap_err();
    assert_eq!(error.call, "ListPodSandbox");
    let error = runtime.container_status("c").await.unwrap_err();
    assert_eq!(error.code, Code::Internal, "{error}");
    runtime.version().await.unwrap();
}

#[tokio::test]
async fn what_is_gone_needs_no_stopping() {
    let bed = Bed::new();
    let _server = bed.serve(|_, _| Reply::Status(5, "no such thing"));
    let runtime = bed.runtime();
    runtime.stop_container("c", 1).await.unwrap();
    runtime.remove_container("c").await.unwrap();
    runtime.stop_pod_sandbox("s").await.unwrap();
    runtime.remove_pod_sandbox("s").await.unwrap();
    bed.images()
        .remove_image(v1::ImageSpec::default())
        .await
        .unwrap();
    let error = runtime.start_container("c").await.unwrap_err();
    assert!(error.is_not_found());
    assert_eq!(
        error.to_string(),
        "rpc error: code = NotFound desc = no such thing"
    );
}

#[tokio::test]
async fn times_without_end_are_cut() {
    const YEAR: i64 = 365 * 24 * 3600;
    let bed = Bed::new();
    let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
    let _server = bed.serve(move |call, request| {
        let timeout = match call {
            "StopContainer" => v1::StopContainerRequest::decode(request).unwrap().timeout,
            "ExecSync" => v1::ExecSyncRequest::decode(request).unwrap().timeout,
            "CheckpointContainer" => {
                let request = v1::CheckpointContainerRequest::decode(request);
                request.unwrap().timeout
            }
            other => panic!("{other}"),
        };
        sender.send((call.to_owned(), timeout)).unwrap();
        Reply::Messages(vec![vec![]])
    });
    let runtime = bed.runtime();
    for (grace, given) in [
        (i64::MIN, 0),
        (0, 0),
        (30, 30),
        (YEAR, YEAR),
        (YEAR + 1, YEAR),
        (i64::MAX, YEAR),
    ] {
        runtime.stop_container("c", grace).await.unwrap();
        assert_eq!(told.recv().await, Some(("StopContainer".into(), given)));
    }
    let command = vec!["true".to_owned()];
    let answer = runtime.exec_sync("c", command, Duration::MAX).await;
    answer.unwrap();
    let location = std::path::Path::new("/tmp/c.tar");
    let done = runtime.checkpoint_container("c", location, i64::MAX).await;
    done.unwrap();
    // A deadline of the node's own configuration is no other.
    let runtime = bed.runtime_within(Duration::MAX);
    runtime.stop_container("c", i64::MAX).await.unwrap();
}

#[tokio::test]
async fn an_image_that_is_not_there() {
    let bed = Bed::new();
    let _server = bed.serve(|_, _| Reply::Messages(vec![vec![]]));
    let found = bed.images().image_status(v1::ImageSpec::default()).await;
    assert_eq!(found.unwrap(), None);
}

#[tokio::test]
async fn a_runtime_without_events_says_so() {
    let bed = Bed::new();
    let _server = bed.serve(|_, _| Reply::Status(12, "unknown method GetContainerEvents"));
    let Err(error) = bed.runtime().container_events().await else {
        panic!("a stream from a runtime that has none");
    };
    assert!(error.is_unimplemented(), "{error}");
}

#[tokio::test]
async fn events_come_in_order_and_the_end_is_seen() {
    let bed = Bed::new();
    let event = |id: &str| {
        v1::ContainerEventResponse {
            container_id: id.to_owned(),
            ..Default::default()
        }
        .encode_to_vec()
    };
    let (a, b) = (event("a"), event("b"));
    let subscriptions = AtomicUsize::new(0);
    let server = bed.serve(move |_, _| {
        let events = vec![a.clone(), b.clone()];
        match subscriptions.fetch_add(1, Ordering::SeqCst) {
            0 => Reply::Messages(events),
            _ => Reply::MessagesThenSilence(events),
        }
    });
    let runtime = bed.runtime();
    let ended = runtime.container_events().await.unwrap();
    let ids: Vec<_> = ended.map(|e| e.unwrap().container_id).collect().await;
    assert_eq!(ids, ["a", "b"]);

    let mut cut = runtime.container_events().await.unwrap();
    assert_eq!(cut.next().await.unwrap().unwrap().container_id, "a");
    assert_eq!(cut.next().await.unwrap().unwrap().container_id, "b");
    drop(server);
    // The runtime died: the reader hears of it, as an error or an end, and never as silence.
    assert!(!matches!(cut.next().await, Some(Ok(_))));
}

#[tokio::test]
async fn a_stream_without_a_first_event_is_a_stream() {
    let bed = Bed::new();
    let server = bed.serve(|_, _| Reply::Silence);
    let mut quiet = bed.runtime().container_events().await.unwrap();
    assert!(futures::poll!(quiet.next()).is_pending());
    drop(server);
    assert!(!matches!(quiet.next().await, Some(Ok(_))));
}
