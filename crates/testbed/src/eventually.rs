//! Waiting for a state of the real world: with a deadline, and with a useful last word.

use std::panic::Location;
use std::time::Duration;

use tokio::time::Instant;

/// Waits until `check` gives a value. Its errors say what is still missing; past the deadline the
/// test fails with `what` and the last of them.
///
/// Checks are repeated with pauses that grow from 5 to 250 milliseconds.
///
/// # Panics
/// When the deadline passes first.
#[track_caller]
pub fn eventually<T>(
    deadline: Duration,
    what: &str,
    check: impl AsyncFnMut() -> Result<T, String>,
) -> impl Future<Output = T> {
    eventually_or(deadline, what, String::new, check)
}

/// As [`eventually`]; on failure also shows what `evidence` gathers, such as the tails of logs.
///
/// # Panics
/// When the deadline passes first.
#[track_caller]
pub fn eventually_or<T>(
    deadline: Duration,
    what: &str,
    evidence: impl FnOnce() -> String,
    mut check: impl AsyncFnMut() -> Result<T, String>,
) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let start = Instant::now();
        let end = start + deadline;
        let mut pause = Duration::from_millis(5);
        let mut last = "the first check did not answer".to_owned();
        loop {
            match tokio::time::timeout_at(end, check()).await {
                Ok(Ok(value)) => return value,
                Ok(Err(state)) => last = state,
                Err(_) => last.push_str(" (and the check after that did not answer)"),
            }
            if Instant::now() + pause > end {
                let evidence = evidence();
                panic!("{caller}: not within {deadline:?}: {what}\nlast state: {last}\n{evidence}");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 3 / 2).min(Duration::from_millis(250));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn gives_the_value_as_soon_as_there_is_one() {
        let mut asked = 0;
        let value = eventually(Duration::from_secs(9), "three", async || {
            asked += 1;
            if asked < 3 {
                Err(format!("asked {asked}"))
            } else {
                Ok(asked)
            }
        })
        .await;
        assert_eq!(value, 3);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "last state: two of three\ntail of the log")]
    async fn fails_with_the_last_state_and_the_evidence() {
        let evidence = || "tail of the log".to_owned();
        let never = async || Err::<(), _>("two of three".to_owned());
        eventually_or(Duration::from_secs(1), "all three", evidence, never).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "did not answer")]
    async fn a_check_that_hangs_does_not_outlive_the_deadline() {
        let hang = async || std::future::pending::<Result<(), String>>().await;
        eventually(Duration::from_secs(1), "anything", hang).await;
    }
}
