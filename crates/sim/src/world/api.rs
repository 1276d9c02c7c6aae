//! The weather between the agent and the API server.

use std::time::Duration;

use krablet_kube::ApiError;
use rand::RngExt;

use super::{Inner, World};
use crate::laws::{Held, Law, broken};

/// How a call to the API server goes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ApiFate {
    /// So long until the effect, and so long until the answer.
    Serve(Duration, Duration),
    /// Nothing is done.
    Refuse(Duration, ApiError),
    /// It is done, and the answer says that it failed.
    ServeAndFail(Duration, ApiError),
    /// No answer before the caller's deadline; the effect comes after so long, or never.
    Hang(Option<Duration>),
    /// The caller will not live to see the answer. True: the effect comes.
    NoAnswer(bool),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiPlan {
    pub(crate) fate: ApiFate,
    /// A change whose caller is gone goes on.
    pub(crate) goes_on: bool,
}

/// How news come through a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchWeather {
    After(Duration),
    /// Never again anything.
    Silence,
    /// The server does not remember that far back.
    Gone,
}

impl World {
    pub(crate) fn api_call(
        &self,
        caller: u64,
        text: &str,
        deadline: Duration,
        up: bool,
    ) -> ApiPlan {
        let (plan, held) = {
            let mut inner = self.lock();
            inner.trace.note(format_args!("#{caller} {text}"));
            let held = inner.api_call_begins(caller, text);
            (inner.api_plan(text, deadline, up), held)
        };
        self.check(held);
        if matches!(plan.fate, ApiFate::NoAnswer(_)) {
            self.kill.notify_one();
        }
        plan
    }

    pub(crate) fn watch_weather(&self) -> WatchWeather {
        let mut inner = self.lock();
        let bad = inner.severity.api;
        let dice = &mut inner.dice;
        let short = Duration::from_millis(dice.random_range(0..20));
        let is_bad = dice.random_bool(bad);
        if inner.calm || !is_bad {
            return WatchWeather::After(short);
        }
        let weather = match inner.dice.random_range(0..8) {
            0 => WatchWeather::Silence,
            1 => WatchWeather::Gone,
            _ => WatchWeather::After(Duration::from_millis(inner.dice.random_range(20..8000))),
        };
        inner.trace.note(format_args!("fault watch: {weather:?}"));
        weather
    }

    /// How many of so many changes a watch tells before it takes a breath.
    pub(crate) fn watched_of(&self, changes: usize) -> usize {
        self.lock().dice.random_range(1..=changes.max(1))
    }

    /// How old the answer to a list of any age is.
    pub(crate) fn stale_by(&self) -> Duration {
        let mut inner = self.lock();
        let bad = inner.severity.api;
        let is_bad = inner.dice.random_bool(bad);
        let by = Duration::from_millis(inner.dice.random_range(0..5000));
        match is_bad && !inner.calm {
            true => by,
            false => Duration::ZERO,
        }
    }
}

impl Inner {
    fn api_call_begins(&mut self, caller: u64, text: &str) -> Held {
        if !self.laws.lives(caller) {
            let how = format!("{text} by agent {caller}, which is dead");
            return broken(Law::DeadIsDead, how);
        }
        self.look_at_statuses()?;
        match &self.quiet {
            // Watches end and go on; nothing else is to be said or asked.
            Some(_) if !text.starts_with("watch") => {
                broken(Law::Quiet, format!("API server: {text}"))
            }
            _ => Ok(()),
        }
    }

    fn api_plan(&mut self, text: &str, deadline: Duration, up: bool) -> ApiPlan {
        let goes_on = self.dice.random_bool(0.5);
        if self.dies_here() {
            let fate = ApiFate::NoAnswer(self.dice.random_bool(0.5));
            return ApiPlan { fate, goes_on };
        }
        let millis = |dice: &mut rand::rngs::StdRng, most: u64| {
            Duration::from_millis(dice.random_range(0..most))
        };
        let (before, after) = (millis(&mut self.dice, 10), millis(&mut self.dice, 10));
        let fate = match up {
            false => {
                let error = ApiError::Connection("connection refused".to_owned());
                ApiFate::Refuse(Duration::from_millis(1), error)
            }
            true if self.calm => ApiFate::Serve(before, after),
            true if !self.dice.random_bool(self.severity.api) => ApiFate::Serve(before, after),
            true => self.api_fault(text, deadline),
        };
        ApiPlan { fate, goes_on }
    }

    fn api_fault(&mut self, text: &str, deadline: Duration) -> ApiFate {
        let pause = Duration::from_millis(self.dice.random_range(1..3000));
        let more = Duration::from_millis(self.dice.random_range(1..3000));
        let error = self.api_error();
        // One that wants a wait, or saw a conflict, has done nothing.
        let refusal = match self.dice.random_range(0..5) {
            0 => self.busy(),
            1 if text.starts_with("patch") => failure(409, "Conflict", None),
            _ => error.clone(),
        };
        let deadline = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        let fate = match self.dice.random_range(0..9) {
            0..=2 => ApiFate::Refuse(pause, refusal),
            3 | 4 => ApiFate::ServeAndFail(pause, error),
            5 | 6 => ApiFate::Serve(pause, more),
            7 => {
                let in_time = Duration::from_millis(self.dice.random_range(0..deadline));
                ApiFate::Hang(Some(in_time).filter(|_| self.dice.random_bool(0.5)))
            }
            _ => {
                let late = deadline + self.dice.random_range(1..10_000);
                ApiFate::Hang(Some(Duration::from_millis(late)))
            }
        };
        let end = text.floor_char_boundary(40);
        self.trace
            .note(format_args!("fault {}: {fate:?}", &text[..end]));
        fate
    }

    fn busy(&mut self) -> ApiError {
        let wait = Duration::from_secs(self.dice.random_range(1..6));
        failure(429, "TooManyRequests", Some(wait))
    }

    fn api_error(&mut self) -> ApiError {
        let wait = Duration::from_secs(self.dice.random_range(1..6));
        match self.dice.random_range(0..5) {
            0 => failure(500, "InternalError", None),
            1 => failure(503, "ServiceUnavailable", Some(wait)),
            2 => failure(504, "Timeout", None),
            _ => ApiError::Connection("connection reset by peer".to_owned()),
        }
    }
}

fn failure(code: u16, reason: &str, retry_after: Option<Duration>) -> ApiError {
    ApiError::Status {
        code,
        reason: reason.to_owned(),
        message: format!("the weather is bad: {code}"),
        retry_after,
    }
}
