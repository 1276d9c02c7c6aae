//! Ways to break the world on purpose, so that tests can show that the laws notice. Each acts at
//! a boundary: the simulated world lies to the agent, or acts in its name.

use std::fmt;
use std::str::FromStr;

macro_rules! mutations {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutation { $($(#[$doc])* $variant,)* }

        impl Mutation {
            pub const ALL: &'static [Mutation] = &[$(Mutation::$variant,)*];

            pub fn name(self) -> &'static str {
                match self { $(Mutation::$variant => $name,)* }
            }
        }
    };
}

mutations! {
    /// Lists now and then leave out a running container.
    DoubleStart => "double-start",
    /// The exit codes the runtime tells are not those of the containers.
    ForgetExit => "forget-exit",
    /// Running init containers are shown as done.
    IgnoreInitOrder => "ignore-init-order",
    /// Stopping pretends to succeed.
    SkipKill => "skip-kill",
    /// A container is started in the agent's name for a pod that is being stopped.
    LateStart => "late-start",
    /// The restart count is not remembered with the container.
    CountReset => "count-reset",
    /// Statuses are read as they once were.
    StaleStatus => "stale-status",
    /// Hints come for no reason while the node is quiet.
    NoisyEvents => "noisy-events",
    /// Removing a cgroup pretends to succeed.
    LeakCgroup => "leak-cgroup",
    /// Giving a container other resources pretends to succeed.
    SkipResize => "skip-resize",
    /// After a container was given other resources it has the old ones again.
    UndoResize => "undo-resize",
    /// Lists leave out ephemeral containers that have ended.
    ForgetEphemeral => "forget-ephemeral",
    /// Lists leave out containers that have ended for good.
    ForgetEnded => "forget-ended",
    /// Volumes are taken away in the agent's name as soon as a container of their pod runs.
    EarlyUnmount => "early-unmount",
    /// Removing some containers that did not call for a restart of all pretends to succeed.
    SkipRemoval => "skip-removal",
    /// The agent's clock goes ahead of everybody else's.
    FastClock => "fast-clock",
    /// A killed agent lives on.
    Zombie => "zombie",
    /// The API server does not heed which UID is meant.
    IgnoreUid => "ignore-uid",
    /// A pod that is to be deleted is deleted with the next word about it.
    HastyDelete => "hasty-delete",
    /// After each status the API server gets the one before once more.
    OldStatus => "old-status",
    /// Statuses are taken and not kept.
    LoseStatus => "lose-status",
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mutation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().copied().find(|m| m.name() == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|m| m.name()).collect();
            format!("no mutation {text:?}; there are {}", names.join(", "))
        })
    }
}
