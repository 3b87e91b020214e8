//! Looking out for the next message, rather than sleeping, while messages come in quick succession.
//!
//! To wake a processor that has nothing to do can take longer than all else that the daemon does for a message. And whoever waits
//! for a lock waits for all wake-ups before its own, of which the daemon's are half. So while messages or hand-overs follow each
//! other quickly the daemon asks again and again whether there is a message, and lets others have its processor in between.
//! It stops once that was in vain; what comes now and then costs nothing more. And it sleeps where others need the processor, who
//! would keep it for milliseconds once they have it.

use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};
use tokio::{sync::Notify, task::yield_now};

/// How soon a message is to follow another: as one does whose sender did not sleep.
const MESSAGE: Duration = Duration::from_micros(20);

/// How soon a hand-over is to follow another: the new holder has to be woken.
const HAND_OVER: Duration = Duration::from_micros(100);

/// Who gets the processor back so late has lost it to others, who need it: on a busy machine it is better to sleep.
const ROBBED: Duration = Duration::from_micros(500);

/// For how many times as long it does so then.
const DISCOURAGED: u32 = 64;

pub(crate) struct Attention {
    heard: Cell<Instant>,
    /// When a lock was last granted to who had waited for it.
    handed_over: Cell<Instant>,
    /// Until when it looks out, and until when it does not.
    until: Cell<Instant>,
    rest: Cell<Instant>,
    looking: Cell<bool>,
    begin: Notify,
    /// Whether a lock has changed hands in the current message.
    just_now: Cell<bool>,
}

impl Attention {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            heard: Cell::new(now),
            handed_over: Cell::new(now),
            until: Cell::new(now),
            rest: Cell::new(now),
            looking: Cell::new(false),
            begin: Notify::new(),
            just_now: Cell::new(false),
        }
    }

    /// A client has said something.
    pub(crate) fn hear(&self) {
        self.again(&self.heard, MESSAGE);
    }

    /// A lock changes hands.
    pub(crate) fn hand_over(&self) {
        self.just_now.set(true);
        self.again(&self.handed_over, HAND_OVER);
    }

    fn again(&self, last: &Cell<Instant>, quick: Duration) {
        let now = Instant::now();
        if now.duration_since(last.replace(now)) < quick && now >= self.rest.get() {
            self.until.set(self.until.get().max(now + quick));
            if !self.looking.replace(true) {
                self.begin.notify_one();
            }
        }
    }

    /// Lets others have the processor. `false` if they keep it.
    fn give_way(&self, now: Instant) -> bool {
        thread::yield_now();
        let lost = now.elapsed();
        let robbed = lost > ROBBED;
        if robbed {
            self.rest.set(now + lost * DISCOURAGED);
        }
        !robbed
    }

    /// Whether a lock has changed hands since this was last asked.
    pub(crate) fn has_handed_over(&self) -> bool {
        self.just_now.take()
    }

    /// Looks out whenever that seems worth it.
    pub(crate) async fn look_out(&self) {
        loop {
            self.begin.notified().await;
            let mut now = Instant::now();
            while now < self.until.get() && self.give_way(now) {
                yield_now().await;
                now = Instant::now();
            }
            self.looking.set(false);
        }
    }
}
