//! Threads for calls that may never come back, since they ask whatever file system is there. One that hangs keeps a
//! thread of its own and none of the pool's, which are few; and only so many can be kept.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

type Job = Box<dyn FnOnce() + Send>;

/// So many at a time and no more, those that hang among them. Clones share them.
#[derive(Clone, Debug)]
pub struct Threads {
    most: usize,
    free: Arc<Semaphore>,
    begin: fn(Job) -> io::Result<()>,
}

impl Threads {
    pub fn new(most: usize) -> Self {
        Self::by(most, |all| {
            let own = std::thread::Builder::new().name("krablet-alone".to_owned());
            own.spawn(all).map(drop)
        })
    }

    /// Those of the pool after all, for tests in paused time: the clock stands while they work.
    pub fn of_the_pool(most: usize) -> Self {
        Self::by(most, |all| {
            drop(tokio::task::spawn_blocking(all));
            Ok(())
        })
    }

    fn by(most: usize, begin: fn(Job) -> io::Result<()>) -> Self {
        let free = Arc::new(Semaphore::new(most));
        Self { most, free, begin }
    }

    /// Makes one call on a thread of its own.
    pub async fn alone<T, F>(&self, call: F) -> io::Result<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.in_turn().ask(call).await
    }

    /// For calls too many to have a thread each.
    pub fn in_turn(&self) -> InTurn {
        InTurn {
            threads: self.clone(),
            idle: None,
        }
    }

    fn another(&self) -> io::Result<Thread> {
        let place = self.free.clone().try_acquire_owned().map_err(|_| {
            let why = format!("{} calls to file systems have not come back", self.most);
            io::Error::new(io::ErrorKind::ResourceBusy, why)
        })?;
        let (jobs, coming) = channel::<Job>();
        let runtime = Handle::current();
        (self.begin)(Box::new(move || {
            // As on a thread of the pool.
            let _context = runtime.enter();
            coming.into_iter().for_each(|job| job());
        }))?;
        Ok(Thread { jobs, place })
    }
}

/// Ends when it is dropped and has done what it was given.
struct Thread {
    jobs: Sender<Job>,
    place: OwnedSemaphorePermit,
}

/// One thread for many calls, one after the other, for as long as they come back.
pub struct InTurn {
    threads: Threads,
    /// The one that made the last call.
    idle: Option<Thread>,
}

impl InTurn {
    /// Makes a call. Whoever stops waiting for it leaves it behind with its thread, and the next call has another one:
    /// an error of kind `ResourceBusy` if there may be no more.
    pub async fn ask<T, F>(&mut self, call: F) -> io::Result<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let Thread { jobs, place } = match self.idle.take() {
            Some(idle) => idle,
            None => self.threads.another()?,
        };
        let (tell, answer) = oneshot::channel();
        let job = move || {
            let answer = call();
            // With nobody there to take it, the place is free from here on.
            let _ = tell.send((answer, place));
        };
        let sent = jobs.send(Box::new(job));
        sent.map_err(|_| io::Error::other("its thread has ended"))?;
        let (answer, place) = answer.await.map_err(io::Error::other)?;
        self.idle = Some(Thread { jobs, place });
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use tokio::task::{spawn_blocking, yield_now};
    use tokio::time::timeout;

    use super::*;

    /// Has a pool of a single thread.
    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .enable_time()
            .build();
        runtime.unwrap().block_on(test);
    }

    #[test]
    fn calls_that_come_back_share_a_thread() {
        run(async {
            let threads = Threads::new(1);
            let mut turns = threads.in_turn();
            let first = turns.ask(|| thread::current().id()).await.unwrap();
            let second = turns.ask(|| thread::current().id()).await.unwrap();
            assert_eq!(first, second);
            // Kept for its next call.
            let busy = threads.alone(|| ()).await.unwrap_err();
            assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy);
            drop(turns);
            let other = threads.alone(|| thread::current().id()).await.unwrap();
            assert_ne!(first, other);
            threads.alone(Handle::current).await.unwrap();
        });
    }

    #[test]
    fn a_call_that_hangs_is_left_behind_and_only_so_many_are() {
        run(async {
            let threads = Threads::new(3);
            let mut turns = threads.in_turn();
            let mut gates = Vec::new();
            for n in 0..2 {
                let (gate, wait) = mpsc::channel::<()>();
                let hangs = turns.ask(move || wait.recv());
                assert!(timeout(Duration::ZERO, hangs).await.is_err());
                gates.push(gate);
                assert_eq!(turns.ask(move || n).await.unwrap(), n);
                spawn_blocking(|| ()).await.unwrap();
            }
            let (gate, wait) = mpsc::channel::<()>();
            assert!(
                timeout(Duration::ZERO, turns.ask(move || wait.recv()))
                    .await
                    .is_err()
            );
            let busy = turns.ask(|| ()).await.unwrap_err();
            assert_eq!(
                busy.to_string(),
                "3 calls to file systems have not come back"
            );
            drop(gate);
            // As soon as one has come back there is room.
            while turns.ask(|| ()).await.is_err() {
                yield_now().await;
            }
        });
    }

    #[test]
    fn a_call_that_panics_costs_its_thread_and_nobody_else() {
        run(async {
            let mut turns = Threads::new(1).in_turn();
            let broken = turns.ask(|| panic!("on purpose")).await;
            assert!(broken.is_err());
            while turns.ask(|| ()).await.is_err() {
                yield_now().await;
            }
        });
    }
}
