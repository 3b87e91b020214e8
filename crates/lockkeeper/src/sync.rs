//! The mutex, which loom replaces when it checks the wake and cancel paths.

#[cfg(lockkeeper_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(lockkeeper_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};
use std::{
    hint::spin_loop,
    sync::{PoisonError, TryLockError},
    thread::yield_now,
};

/// How often to do what before each further try: some 100 µs in all, the first of them 250 ns.
const WAITS: [(u32, fn()); 5] =
    [(16, spin_loop), (64, spin_loop), (256, spin_loop), (64, yield_now), (256, yield_now)];

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
    for (times, wait) in WAITS {
        (0..times).for_each(|_| wait());
        if let Some(guard) = try_lock(mutex) {
            return guard;
        }
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
