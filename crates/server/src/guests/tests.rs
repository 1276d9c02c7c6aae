use futures::FutureExt as _;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(90);

fn unwanted(guest: &Guest) -> bool {
    guest.is_unwanted().now_or_never().is_some()
}

#[tokio::test(start_paused = true)]
async fn who_has_been_idle_longest_gives_way() {
    let guests = Guests::new(3, PATIENCE);
    let [first, second, third] = [
        guests.enter().await,
        guests.enter().await,
        guests.enter().await,
    ];
    let busy = first.doings().begin();
    tokio::time::advance(SECOND).await;
    drop(second.doings().begin());
    let mut new = Box::pin(guests.enter());
    assert!((&mut new).now_or_never().is_none());
    let told = [&first, &second, &third].map(unwanted);
    assert_eq!(told, [false, false, true], "busy, idle, idle for longer");
    drop(third);
    let fourth = new.await;
    drop(second);
    assert!(!unwanted(&fourth) && !unwanted(&first));
    drop(busy);
}

#[tokio::test(start_paused = true)]
async fn nobody_with_something_under_way_does() {
    let guests = Guests::new(1, PATIENCE);
    let first = guests.enter().await;
    let busy = first.doings().begin();
    let mut new = Box::pin(guests.enter());
    assert!(timeout(3600 * SECOND, &mut new).await.is_err());
    assert!(!unwanted(&first));
    drop(busy);
    assert!((&mut new).now_or_never().is_none());
    assert!(unwanted(&first), "as soon as it is idle");
    // It began something all the same, and is not waited for beyond it.
    let busy = first.doings().begin();
    assert!(timeout(3600 * SECOND, &mut new).await.is_err());
    drop(busy);
    drop(first);
    new.await;
}

#[tokio::test(start_paused = true)]
async fn idleness_counts_from_the_end_of_the_last_answer() {
    let guests = Guests::new(1, PATIENCE);
    let guest = guests.enter().await;
    let begun = Instant::now();
    let [one, other] = [guest.doings().begin(), guest.doings().begin()];
    tokio::spawn(async move {
        tokio::time::sleep(100 * SECOND).await;
        drop(one);
        tokio::time::sleep(100 * SECOND).await;
        drop(other);
    });
    guest.has_to_go().await;
    assert_eq!(begun.elapsed(), 290 * SECOND);
}

/// `idle AGE`, `busy`, or `stuck AGE`, in seconds; `told` after it.
fn state(text: &str, now: Instant) -> State {
    let mut words = text.split(' ');
    let kind = words.next().unwrap();
    let mut state = State::new(now);
    for word in words {
        match word.parse::<u32>() {
            Ok(age) => {
                let since = now - age * SECOND;
                (state.idle_since, state.still_since) = (since, since);
            }
            Err(_) => state.unwanted = word == "told",
        }
    }
    (state.under_way, state.waiting) = match kind {
        "idle" => (0, 0),
        // One waits, and the other is made.
        "busy" => (2, 1),
        _ => (2, 2),
    };
    state
}

#[tokio::test(start_paused = true)]
async fn who_gives_way() {
    let now = Instant::now() + 1000 * SECOND;
    let after = |seconds: u32| Choice::NobodyBefore(now + seconds * SECOND);
    let cases: [(&[&str], Choice); 12] = [
        (&[], after(90)),
        (&["busy"], after(90)),
        (&["busy 500"], after(90)),
        (&["idle 1", "idle 3", "idle 2"], Choice::Goes(1)),
        (&["idle 1", "idle 1"], Choice::Goes(0)),
        (&["stuck 500", "idle 1"], Choice::Goes(1)),
        (&["stuck 89", "busy 500"], after(1)),
        (&["stuck 10", "stuck 30", "stuck 20"], after(60)),
        (&["stuck 90"], Choice::Goes(0)),
        (&["busy 500", "stuck 95", "stuck 100"], Choice::Goes(2)),
        (&["stuck 95", "stuck 100 told"], Choice::Goes(0)),
        (&["idle 5 told", "stuck 100 told", "busy"], after(90)),
    ];
    for (present, expected) in cases {
        let states = present.iter().map(|text| state(text, now));
        let choice = choose((0..).zip(states), now, PATIENCE);
        assert_eq!(choice, expected, "{present:?}");
    }
}

fn takes(answer: &mut UnderWay) {
    answer.waits(false);
    answer.waits(true);
}

#[tokio::test(start_paused = true)]
async fn who_takes_nothing_goes_when_the_place_is_needed() {
    let guests = Guests::new(1, PATIENCE);
    let first = guests.enter().await;
    let mut answer = first.doings().begin();
    answer.waits(true);
    let long = timeout(3600 * SECOND, first.has_to_go()).await;
    assert!(long.is_err(), "nobody needs the place");
    takes(&mut answer);
    let begun = Instant::now();
    let mut new = Box::pin(guests.enter());
    for _ in 0..10 {
        assert!(timeout(60 * SECOND, &mut new).await.is_err());
        takes(&mut answer);
    }
    assert!(!unwanted(&first), "it takes its answer, if slowly");
    let gone = async {
        first.is_unwanted().await;
        takes(&mut answer);
        first.is_given_up().await;
        drop((answer, first));
        begun.elapsed()
    };
    let (gone, new) = tokio::join!(gone, new);
    assert_eq!(gone, 690 * SECOND);
    assert!(!unwanted(&new));
}

#[tokio::test(start_paused = true)]
async fn who_was_told_and_takes_something_is_waited_for() {
    let guests = Guests::new(1, PATIENCE);
    let first = guests.enter().await;
    let mut new = Box::pin(guests.enter());
    assert!((&mut new).now_or_never().is_none());
    assert!(unwanted(&first), "it was idle");
    let begun = Instant::now();
    let [mut one, mut other] = [first.doings().begin(), first.doings().begin()];
    one.waits(true);
    let made = timeout(3600 * SECOND, first.is_given_up()).await;
    assert!(made.is_err(), "the other one is still made");
    let taking = async {
        other.waits(true);
        tokio::time::sleep(80 * SECOND).await;
        takes(&mut other);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = taking => {}
        () = first.is_given_up() => {}
    }
    assert_eq!(begun.elapsed(), (3600 + 80 + 90) * SECOND);
}
