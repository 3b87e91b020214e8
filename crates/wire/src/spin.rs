//! When to poll for a message rather than sleep: the rule of both ends of a connection.
//!
//! Waking a sleeping processor can take longer than everything else that is done for a message. Only a thread that would
//! block polls so: never a task of an executor, nor an event loop. It stops where others need the processor.

use std::time::{Duration, Instant};

/// Spin budget of a client before it blocks on a reply.
pub const REPLY: Duration = Duration::from_micros(50);

/// Two messages within this time start a spin of the server: their sender did not sleep.
pub const MESSAGE: Duration = Duration::from_micros(20);

/// Two hand-overs within this time start a spin of the server: the new holder has to be woken.
pub const HAND_OVER: Duration = Duration::from_micros(100);

/// A spinner that was descheduled for longer than this has lost the processor to others that need it.
pub const PREEMPTED: Duration = Duration::from_micros(500);

/// Nobody spins for at most so many times as long as the last spin took.
const MAX: u32 = 64;

/// Leaves spinning out for a while after it was in vain.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    not_before: Instant,
    factor: u32,
}

impl Backoff {
    /// Spinning is worth a try from now on.
    pub fn new(now: Instant) -> Self {
        Self { not_before: now, factor: 1 }
    }

    /// Whether spinning is worth a try.
    pub fn allows(&self, now: Instant) -> bool {
        now >= self.not_before
    }

    /// A spin was worth it.
    pub fn succeeded(&mut self) {
        self.factor = 1;
    }

    /// A spin was in vain. The pause is as long as it took, twice as many times each time; at once the most if it was
    /// preempted.
    ///
    /// ```
    /// # use lockkeeper_wire::spin::{Backoff, PREEMPTED, REPLY};
    /// # use std::time::Instant;
    /// let now = Instant::now();
    /// let mut backoff = Backoff::new(now);
    /// backoff.failed(now, REPLY);
    /// assert!(!backoff.allows(now + REPLY) && backoff.allows(now + 2 * REPLY));
    /// backoff.failed(now, PREEMPTED);
    /// assert!(!backoff.allows(now + 63 * PREEMPTED) && backoff.allows(now + 64 * PREEMPTED));
    /// ```
    pub fn failed(&mut self, begun: Instant, took: Duration) {
        self.factor = if took < PREEMPTED { (2 * self.factor).min(MAX) } else { MAX };
        self.not_before = begun + took * self.factor;
    }
}
