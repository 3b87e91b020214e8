//! When to poll for a reply rather than sleep.
//!
//! Waking a sleeping processor can take longer than all other work for a message. Only the thread
//! of a blocking call polls: never a future of the async crate, a JavaScript event loop, or the
//! daemon. It stops when other threads need the processor.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Spin budget of a client before it blocks on a reply.
pub const REPLY: Duration = Duration::from_micros(50);

/// A spinner that was descheduled for longer than this has lost the processor to others that need
/// it.
pub const PREEMPTED: Duration = Duration::from_micros(500);

/// Nobody spins for at most so many times as long as the last spin took.
const MAX: u32 = 64;

/// The same after a spin that was preempted. A scheduler favours those who sleep, so on a busy
/// machine a spin costs more than the time it took: it is tried once in seconds there.
const MAX_PREEMPTED: u32 = 1024;

static ENABLED: AtomicBool = AtomicBool::new(true);

/// Switches spinning on or off in this process, so that a benchmark can tell what it is worth.
pub fn enable(on: bool) {
    ENABLED.store(on, Relaxed);
}

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
        now >= self.not_before && ENABLED.load(Relaxed)
    }

    /// A spin was worth it.
    pub fn succeeded(&mut self) {
        self.factor = 1;
    }

    /// A spin was in vain. The pause is as long as it took, twice as many times each time; longest
    /// if it was preempted.
    ///
    /// ```
    /// # use lockkeeper_client::spin::{Backoff, PREEMPTED, REPLY};
    /// # use std::time::Instant;
    /// let now = Instant::now();
    /// let mut backoff = Backoff::new(now);
    /// backoff.failed(now, REPLY);
    /// assert!(!backoff.allows(now + REPLY) && backoff.allows(now + 2 * REPLY));
    /// backoff.failed(now, PREEMPTED);
    /// assert!(!backoff.allows(now + 1023 * PREEMPTED) && backoff.allows(now + 1024 * PREEMPTED));
    /// ```
    pub fn failed(&mut self, begun: Instant, took: Duration) {
        self.factor = (2 * self.factor).min(MAX);
        self.not_before = begun + took * if took < PREEMPTED { self.factor } else { MAX_PREEMPTED };
    }
}
