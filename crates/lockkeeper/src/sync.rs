//! The mutex, which loom replaces when it checks the wake and cancel paths.

#[cfg(lockkeeper_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;
#[cfg(not(lockkeeper_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Locks; a panic elsewhere is no reason to give up everybody's locks.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
