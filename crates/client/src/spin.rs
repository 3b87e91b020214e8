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

/// The maximum pause after a failed spin, in multiples of its duration.
const MAX: u32 = 64;

/// The same after a spin that was preempted. A scheduler favours threads that sleep, so on a busy
/// machine a spin costs more than its duration. There it is tried once in seconds.
const MAX_PREEMPTED: u32 = 1024;

static ENABLED: AtomicBool = AtomicBool::new(true);

/// Switches spinning on or off in this process, so that a benchmark can measure its effect.
pub fn enable(on: bool) {
    ENABLED.store(on, Relaxed);
}

/// Suspends spinning for a while after it failed.
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

    /// A spin failed. The pause is a multiple of its duration, which doubles with each failure; it
    /// is longest after a preemption.
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
