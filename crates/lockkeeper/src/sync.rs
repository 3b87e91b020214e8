//! The mutex, which loom replaces when it checks the wake and cancel paths.

#[cfg(lockkeeper_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;
#[cfg(not(lockkeeper_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Locks. A panic of another thread does not poison the manager.
///
/// It does not spin: futures are polled here, and threads that do nothing but lock were no faster
/// with spinning.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
