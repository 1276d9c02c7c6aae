//! Container events: streams that can be lost, and events that can be late, doubled or missing.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use krablet_cri::{EventStream, Result, v1};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::machine::Occurrence;
use super::{Shared, lock};

/// Events a reader may be behind. One that falls further behind loses its stream.
const QUEUE: usize = 4096;

type Event = v1::ContainerEventResponse;

#[derive(Default)]
pub(crate) struct Subscribers(Vec<mpsc::Sender<Result<Event>>>);

impl Subscribers {
    pub(crate) fn cut(&mut self) {
        self.0.clear();
    }

    pub(crate) fn subscribe(&mut self) -> EventStream {
        let (sender, receiver) = mpsc::channel(QUEUE);
        self.0.push(sender);
        let stream = futures::stream::unfold(receiver, |mut receiver| async {
            let event = receiver.recv().await?;
            Some((event, receiver))
        });
        stream.boxed()
    }

    fn send(&mut self, event: &Event) {
        self.0.retain(|s| s.try_send(Ok(event.clone())).is_ok());
    }
}

impl Shared {
    pub(super) fn announce(self: &Arc<Self>, what: &Occurrence, wall: i64) {
        if lock(&self.subscribers).0.is_empty() {
            return;
        }
        let Some(event) = self.event(what, wall) else {
            return;
        };
        for after in self.options.weather.deliveries() {
            if after == Duration::ZERO {
                lock(&self.subscribers).send(&event);
                continue;
            }
            let shared: Weak<Self> = Arc::downgrade(self);
            let event = event.clone();
            self.spawn(async move {
                sleep(after).await;
                if let Some(shared) = shared.upgrade() {
                    lock(&shared.subscribers).send(&event);
                }
            });
        }
    }

    fn event(&self, what: &Occurrence, wall: i64) -> Option<Event> {
        use v1::ContainerEventType as Type;
        let (id, kind, sandbox) = match what {
            Occurrence::SandboxMade(s) => (&s.id, Type::ContainerStartedEvent, Some(s.clone())),
            Occurrence::SandboxStopped(s) => (&s.id, Type::ContainerStoppedEvent, Some(s.clone())),
            Occurrence::SandboxRemoved(s) => (&s.id, Type::ContainerDeletedEvent, Some(s.clone())),
            Occurrence::Created(c) => (&c.id, Type::ContainerCreatedEvent, None),
            Occurrence::Started(c) => (&c.id, Type::ContainerStartedEvent, None),
            Occurrence::Exited(c, _) => (&c.id, Type::ContainerStoppedEvent, None),
            Occurrence::Removed(c) => (&c.id, Type::ContainerDeletedEvent, None),
            Occurrence::Lost(_) | Occurrence::Updated(..) => return None,
        };
        let sandbox = sandbox.or_else(|| {
            let (Occurrence::Created(c)
            | Occurrence::Started(c)
            | Occurrence::Exited(c, _)
            | Occurrence::Removed(c)) = what
            else {
                return None;
            };
            lock(&self.machine).sandboxes.get(&c.sandbox_id).cloned()
        });
        Some(Event {
            container_id: id.clone(),
            container_event_type: kind.into(),
            created_at: wall,
            pod_sandbox_status: sandbox.map(|s| s.status()),
            ..Default::default()
        })
    }
}
