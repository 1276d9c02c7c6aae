//! The connections of the moment. Mostly one; more only while more runs at a time than a server lets one carry.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::connection::Connection;
use crate::credentials::Identity;

/// Requests at a time by one connection. An API server takes 100 unless told otherwise, and lets every further one
/// wait, a heartbeat behind watches that never end. A few are left for servers that count those just ended too.
const MAX_STREAMS: usize = 90;

/// How many requests run by a connection.
#[derive(Debug, Default)]
pub(super) struct Streams(AtomicUsize);

impl Streams {
    fn take(&self) -> bool {
        let more = |running: usize| (running < MAX_STREAMS).then_some(running + 1);
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok()
    }

    fn are_none(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// Room for one request by a connection, which must live until the answer has ended.
pub(super) struct Stream(Arc<Connection>);

impl Stream {
    pub(super) fn by(connection: &Arc<Connection>) -> Option<Self> {
        let taken = connection.streams.take();
        taken.then(|| Self(connection.clone()))
    }
}

impl Deref for Stream {
    type Target = Arc<Connection>;

    fn deref(&self) -> &Arc<Connection> {
        &self.0
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(super) struct Pool {
    connections: Vec<Arc<Connection>>,
    /// The server has shown that it cannot share one.
    pub(super) one_per_call: bool,
    /// How many attempts to open one were begun.
    pub(super) attempts: u64,
    /// Up to which of them it is decided what becomes of them.
    pub(super) settled: u64,
}

impl Pool {
    /// Room by a connection that shows this identity. Those of no use any more are let go of; what still runs by
    /// them keeps them.
    pub(super) fn stream(&mut self, identity: Option<&Identity>) -> Option<Stream> {
        let mut idle = 0;
        self.connections.retain(|connection| {
            if connection.streams.are_none() {
                idle += 1;
            }
            connection.serves(identity) && (idle < 2 || !connection.streams.are_none())
        });
        self.connections.iter().find_map(Stream::by)
    }

    pub(super) fn add(&mut self, connection: Arc<Connection>) {
        self.connections.push(connection);
    }

    pub(super) fn forget(&mut self, connection: &Arc<Connection>) {
        self.connections.retain(|c| !Arc::ptr_eq(c, connection));
    }

    pub(super) fn forget_all(&mut self) {
        self.connections.clear();
        self.one_per_call = false;
        self.settled = self.attempts;
    }
}
