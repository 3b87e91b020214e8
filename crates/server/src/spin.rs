//! Spinning for the next message while messages come in quick succession.
//!
//! Waking an idle processor can take longer than everything else that the daemon does for a message. While messages or
//! hand-overs follow each other quickly the daemon polls its sockets without sleeping, and yields the processor in
//! between. It stops as soon as a spin was in vain, and for a while where other processes need the processor.

use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};
use tokio::{sync::Notify, task::yield_now};

/// Two messages within this time start a spin: their sender did not sleep.
const MESSAGE: Duration = Duration::from_micros(20);

/// Two hand-overs within this time start a spin: the new holder has to be woken.
const HAND_OVER: Duration = Duration::from_micros(100);

/// A spinner that was descheduled for longer than this stops spinning: others need the processor.
const PREEMPTED: Duration = Duration::from_micros(500);

/// For how many times as long it does not spin then.
const MAX_BACKOFF: u32 = 64;

pub(crate) struct Spin {
    heard: Cell<Instant>,
    /// When a waiting request was last granted.
    handed_over: Cell<Instant>,
    /// Until when it spins, and until when it does not.
    until: Cell<Instant>,
    rest: Cell<Instant>,
    spinning: Cell<bool>,
    begin: Notify,
}

impl Spin {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            heard: Cell::new(now),
            handed_over: Cell::new(now),
            until: Cell::new(now),
            rest: Cell::new(now),
            spinning: Cell::new(false),
            begin: Notify::new(),
        }
    }

    /// A message came.
    pub(crate) fn on_message(&self) {
        self.again(&self.heard, MESSAGE);
    }

    /// A lock changes hands.
    pub(crate) fn hand_over(&self) {
        self.again(&self.handed_over, HAND_OVER);
    }

    fn again(&self, last: &Cell<Instant>, quick: Duration) {
        let now = Instant::now();
        if now.duration_since(last.replace(now)) < quick && now >= self.rest.get() {
            self.until.set(self.until.get().max(now + quick));
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
            self.rest.set(now + lost * MAX_BACKOFF);
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
