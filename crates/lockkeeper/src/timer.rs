//! Deadlines on any executor: one thread for the process, started by the first deadline that has to
//! wait.
//!
//! The thread sleeps until the earliest deadline, and only wakes tasks. Dropping a deadline removes
//! it.

use std::{
    collections::BTreeMap,
    sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError},
    task::Waker,
    thread,
    time::Instant,
};

/// A point in time at which a task is woken.
#[derive(Debug)]
pub(crate) struct Deadline {
    at: Instant,
    /// Its key in the timer, once a task waits for it.
    key: Option<Key>,
}

/// By time, then by number: two deadlines may fall on one instant.
type Key = (Instant, u64);

#[derive(Default)]
struct Timer {
    waiting: Mutex<Waiting>,
    earlier: Condvar,
}

#[derive(Default)]
struct Waiting {
    wakers: BTreeMap<Key, Waker>,
    next: u64,
}

static TIMER: LazyLock<Timer> = LazyLock::new(|| {
    let thread = thread::Builder::new().name("lockkeeper-timer".into());
    thread.spawn(|| TIMER.run()).expect("the one thread for timeouts can be started");
    Timer::default()
});

impl Deadline {
    pub(crate) fn at(at: Instant) -> Self {
        Self { at, key: None }
    }

    /// Whether the deadline has passed. If not, `waker` is woken when it has.
    pub(crate) fn poll(&mut self, waker: &Waker) -> bool {
        if Instant::now() >= self.at {
            return true;
        }
        let mut waiting = TIMER.lock();
        let number = waiting.next;
        let key = *self.key.get_or_insert((self.at, number));
        waiting.next += u64::from(key.1 == number);
        let replaced = waiting.wakers.insert(key, waker.clone());
        let first = waiting.wakers.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(waiting);
        drop(replaced);
        if first {
            TIMER.earlier.notify_one();
        }
        false
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let waker = TIMER.lock().wakers.remove(&key);
            drop(waker);
        }
    }
}

impl Timer {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) -> ! {
        let mut waiting = self.lock();
        loop {
            let now = Instant::now();
            waiting = match waiting.wakers.first_entry() {
                None => self.earlier.wait(waiting).unwrap_or_else(PoisonError::into_inner),
                Some(first) if first.key().0 <= now => {
                    let waker = first.remove();
                    drop(waiting);
                    waker.wake();
                    self.lock()
                }
                Some(first) => {
                    let left = first.key().0 - now;
                    self.earlier.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}
