//! The mutex, which loom replaces when it checks the wake and cancel paths.

#[cfg(lockkeeper_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(lockkeeper_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};
use std::{
    hint::spin_loop,
    sync::{PoisonError, TryLockError},
    thread::yield_now,
    time::{Duration, Instant},
};

/// How often to spin before each further try: some 5 µs in all, the first of them 250 ns.
const SPINS: [u32; 3] = [16, 64, 256];

/// For how long to let others have the processor before each further try.
const YIELDS: [Duration; 2] = [Duration::from_micros(25), Duration::from_micros(100)];

/// Locks; a panic elsewhere is no reason to give up everybody's locks.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    if cfg!(lockkeeper_loom) {
        return mutex.lock().unwrap_or_else(PoisonError::into_inner);
    }
    try_lock(mutex).unwrap_or_else(|| lock_contended(mutex))
}

#[inline]
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Stays away from the mutex for four times as long after each try, and only then sleeps until it is free.
///
/// It is never held for long, but its state is slow to go from core to core: where threads do nothing but lock, they
/// are together about as fast as one if each goes on for a while and the others keep away. Where they also do other
/// things, the first try mostly succeeds.
#[cold]
fn lock_contended<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    for times in SPINS {
        (0..times).for_each(|_| spin_loop());
        if let Some(guard) = try_lock(mutex) {
            return guard;
        }
    }
    let begun = Instant::now();
    for time in YIELDS {
        // On a busy machine it may be gone for long: not twice then.
        while begun.elapsed() < time {
            yield_now();
        }
        if let Some(guard) = try_lock(mutex) {
            return guard;
        }
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
