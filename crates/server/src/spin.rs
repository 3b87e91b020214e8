//! Spinning for the next message while messages come in quick succession.
//!
//! Waking an idle processor can take longer than everything else that the daemon does for a message. While messages
//! follow each other quickly the daemon polls its sockets without sleeping, and yields the processor in between. It stops
//! as soon as a spin was in vain, and for a while where other processes need the processor.

use lockkeeper_wire::spin::{Backoff, MESSAGE, PREEMPTED};
use std::{cell::Cell, thread, time::Instant};
use tokio::{sync::Notify, task::yield_now};

pub(crate) struct Spin {
    heard: Cell<Instant>,
    /// Until when it spins.
    until: Cell<Instant>,
    backoff: Cell<Backoff>,
    spinning: Cell<bool>,
    begin: Notify,
}

impl Spin {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            heard: Cell::new(now),
            until: Cell::new(now),
            backoff: Cell::new(Backoff::new(now)),
            spinning: Cell::new(false),
            begin: Notify::new(),
        }
    }

    /// A message came.
    pub(crate) fn on_message(&self) {
        let now = Instant::now();
        if now.duration_since(self.heard.replace(now)) < MESSAGE && self.backoff.get().allows(now) {
            self.until.set(now + MESSAGE);
            if !self.spinning.replace(true) {
                self.begin.notify_one();
            }
        }
    }

    /// Yields the processor. False if others keep it.
    fn yield_processor(&self, now: Instant) -> bool {
        thread::yield_now();
        let lost = now.elapsed();
        let preempted = lost > PREEMPTED;
        if preempted {
            let mut backoff = self.backoff.get();
            backoff.failed(now, lost);
            self.backoff.set(backoff);
        }
        !preempted
    }

    /// Spins whenever that seems worth it.
    pub(crate) async fn run(&self) {
        loop {
            self.begin.notified().await;
            let mut now = Instant::now();
            while now < self.until.get() && self.yield_processor(now) {
                yield_now().await;
                now = Instant::now();
            }
            self.spinning.set(false);
        }
    }
}
