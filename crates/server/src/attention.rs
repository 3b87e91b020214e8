//! Looking out for the next message, rather than sleeping, while a lock changes hands quickly.
//!
//! Whoever waits for a lock waits for all wake-ups before its own, and the daemon's are half of them: to wake a processor
//! that has nothing to do can take longer than all else. So while hand-overs follow each other quickly the daemon asks again and
//! again whether there is a message, and lets others have its processor in between. It stops once that was in vain; what comes
//! now and then costs nothing more.

use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};
use tokio::{sync::Notify, task::yield_now};

/// How soon a hand-over is to follow another.
const PATIENCE: Duration = Duration::from_micros(100);

pub(crate) struct Attention {
    /// When a lock was last granted to who had waited for it.
    handed_over: Cell<Instant>,
    looking: Cell<bool>,
    begin: Notify,
    /// Whether that was in the current message.
    just_now: Cell<bool>,
}

impl Attention {
    pub(crate) fn new() -> Self {
        let (looking, just_now) = (Cell::new(false), Cell::new(false));
        Self { handed_over: Cell::new(Instant::now()), looking, begin: Notify::new(), just_now }
    }

    /// A lock changes hands.
    pub(crate) fn hand_over(&self) {
        self.just_now.set(true);
        let now = Instant::now();
        let before = self.handed_over.replace(now);
        if now.duration_since(before) < PATIENCE && !self.looking.replace(true) {
            self.begin.notify_one();
        }
    }

    /// Whether a lock has changed hands since this was last asked.
    pub(crate) fn has_handed_over(&self) -> bool {
        self.just_now.take()
    }

    /// Looks out whenever that seems worth it.
    pub(crate) async fn look_out(&self) {
        loop {
            self.begin.notified().await;
            while self.handed_over.get().elapsed() < PATIENCE {
                thread::yield_now();
                yield_now().await;
            }
            self.looking.set(false);
        }
    }
}
