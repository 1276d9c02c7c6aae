//! What the world does to a runtime: which calls go wrong and how, which events arrive, how long
//! containers live. Without weather all goes well.

use std::time::Duration;

use krablet_cri::{Code, Error, v1};
use krablet_pod::PodUid;

use super::machine::{Instance, Life, Machine, Occurrence};

/// One call, as it arrives at the runtime.
#[derive(Clone, Debug)]
pub struct CallInfo {
    /// Which agent made it; agents are counted.
    pub caller: u64,
    pub call: &'static str,
    /// The sandbox, container or image it is about.
    pub object: String,
    pub pod: Option<PodUid>,
    /// The container's name, where one is concerned.
    pub container: Option<String>,
    /// It is meant to change something in the runtime.
    pub changes: bool,
}

/// How a call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Takes so long and does what it should.
    Serve(Duration),
    FailBefore(Duration, Code),
    /// Does what it should and says that it failed.
    FailAfter(Duration, Code),
    /// No answer before the caller's deadline; the effect comes after so long, or never.
    Hang(Option<Duration>),
    /// The caller will not live to see the answer. True: the effect comes.
    NoAnswer(bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub fate: Fate,
    /// A changing call whose caller is gone goes on; a reading one reads first and waits then.
    pub goes_on: bool,
}

impl Plan {
    pub fn at_once() -> Self {
        Self {
            fate: Fate::Serve(Duration::ZERO),
            goes_on: true,
        }
    }
}

/// All methods are asked in the order in which things happen. Some are asked while the runtime's
/// state is locked: none may come back to it.
pub trait Weather: Send + Sync {
    fn call(&self, _call: &CallInfo) -> Plan {
        Plan::at_once()
    }

    fn answered(&self, _call: &CallInfo, _result: Result<(), &Error>) {}

    /// False while the runtime cannot be reached.
    fn is_up(&self) -> bool {
        true
    }

    fn happened(&self, _machine: &Machine, _what: &Occurrence) {}

    /// After how long the event of an occurrence arrives: never, once or several times.
    fn deliveries(&self) -> Vec<Duration> {
        vec![Duration::ZERO]
    }

    fn life(&self, _of: &Instance) -> Life {
        Life {
            ends: None,
            on_term: Some((Duration::ZERO, 143)),
        }
    }

    /// Exit code of a command in a container.
    fn exec(&self, _container: &Instance, _command: &[String]) -> i32 {
        0
    }

    /// Whether an image of this name can be pulled.
    fn has_image(&self, _name: &str) -> bool {
        true
    }

    /// Whether the call only pretends to do something.
    fn pretends(&self, _call: &str) -> bool {
        false
    }

    /// Whether removing this container only pretends to.
    fn keeps(&self, _container: &Instance) -> bool {
        false
    }

    /// The last word on what a list shows.
    fn show_list(&self, _machine: &Machine, _listed: &mut Vec<v1::Container>) {}

    /// The last word on what a status shows.
    fn show_status(&self, _status: &mut v1::ContainerStatus) {}
}

/// No weather.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calm;

impl Weather for Calm {}
