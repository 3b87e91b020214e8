//! Auto-release, as the first two sketches had it: a lock that lives while something waits on it.

use crate::{Error, Lock};
use event_listener::Event;
use lockkeeper_core::{Cause, Mode, Name, Token};
use std::sync::{Arc, OnceLock};

/// A lock that releases itself when this handle and all futures that went through
/// [`wait_until`](Self::wait_until) are done or dropped.
///
/// The sketches release such a lock in the next microtask unless something waits; here the handle stands for
/// that microtask: drop it, or let it go out of scope, and what waits alone keeps the lock.
///
/// ```
/// # use lockkeeper::{Error, Locks};
/// # fn main() -> Result<(), Error> { smol::block_on(async {
/// let locks = Locks::new();
/// let lock = locks.request("store").auto_release().await?;
/// let write = lock.wait_until(async { /* write */ })?;
/// let released = lock.released();
/// drop(lock);
/// assert!(locks.try_acquire("store")?.is_none());
/// write.await;
/// released.await?;
/// assert!(locks.try_acquire("store")?.is_some());
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
pub struct AutoLock {
    share: Arc<Share>,
}

/// Released when the last share of it goes.
#[derive(Debug)]
struct Share {
    /// `None` only while it is dropped.
    lock: Option<Lock<'static>>,
    ending: Arc<Ending>,
}

/// How the lock ended, once it has.
#[derive(Debug, Default)]
struct Ending {
    result: OnceLock<Result<(), Error>>,
    set: Event,
}

impl AutoLock {
    pub(crate) fn new(lock: Lock<'static>) -> Self {
        Self { share: Arc::new(Share { lock: Some(lock), ending: Arc::default() }) }
    }

    /// Ties a future to the lock, which lives as long as the returned future does.
    ///
    /// # Errors
    ///
    /// [`Error::Stolen`] or [`Error::Lost`] if the lock is no longer held.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let lock = locks.request("store").auto_release().await?;
    /// assert_eq!(lock.wait_until(async { 42 })?.await, 42);
    /// locks.force_release("store").await?;
    /// assert!(matches!(lock.wait_until(async {}), Err(Error::Stolen)));
    /// # Ok(()) }) }
    /// ```
    pub fn wait_until<F: Future>(
        &self,
        future: F,
    ) -> Result<impl Future<Output = F::Output> + use<F>, Error> {
        if let Some(cause) = self.lock().broken() {
            return Err(cause.into());
        }
        let share = self.share.clone();
        Ok(async move {
            let output = future.await;
            drop(share);
            output
        })
    }

    /// Waits until the lock is released. The future holds no share of the lock.
    ///
    /// It gives [`Error::Stolen`] or [`Error::Lost`] if the lock had been broken by then.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let lock = locks.request("store").auto_release().await?;
    /// let released = lock.released();
    /// locks.force_release("store").await?;
    /// drop(lock);
    /// assert!(matches!(released.await, Err(Error::Stolen)));
    /// # Ok(()) }) }
    /// ```
    pub fn released(&self) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let ending = self.share.ending.clone();
        async move {
            loop {
                let listener = ending.set.listen();
                match ending.result.get() {
                    Some(result) => return result.clone(),
                    None => listener.await,
                }
            }
        }
    }

    /// The names of the lock, sorted and without duplicates, each with its mode.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let lock = locks.request(["b", "a", "b"]).auto_release().await?;
    /// let names: Vec<_> = lock.scope().into_iter().map(|(name, _)| name.to_string()).collect();
    /// assert_eq!(names, ["a", "b"]);
    /// # Ok(()) }) }
    /// ```
    pub fn scope(&self) -> Vec<(Name, Mode)> {
        self.lock().scope()
    }

    /// The mode of the lock: shared if it is shared on all its names.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks, Mode};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// assert_eq!(locks.request("a").shared().auto_release().await?.mode(), Mode::Shared);
    /// let mixed = [("a", Mode::Shared), ("b", Mode::Exclusive)];
    /// assert_eq!(locks.request(mixed).auto_release().await?.mode(), Mode::Exclusive);
    /// # Ok(()) }) }
    /// ```
    pub fn mode(&self) -> Mode {
        self.lock().mode()
    }

    /// The fencing token.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let first = locks.request("disk").auto_release().await?.token();
    /// let second = locks.request("disk").auto_release().await?.token();
    /// assert!(second > first);
    /// # Ok(()) }) }
    /// ```
    pub fn token(&self) -> Token {
        self.lock().token()
    }

    /// Waits until the lock is stolen or lost, and says which.
    ///
    /// ```
    /// # use lockkeeper::{Cause, Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let lock = locks.request("leader").auto_release().await?;
    /// let _thief = locks.request("leader").steal().acquire().await?;
    /// assert_eq!(lock.lost().await, Cause::Stolen);
    /// # Ok(()) }) }
    /// ```
    pub async fn lost(&self) -> Cause {
        self.lock().lost().await
    }

    fn lock(&self) -> &Lock<'static> {
        self.share.lock.as_ref().expect("only dropping the last share takes the lock out")
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let released = self.lock.take().map_or(Ok(()), Lock::release);
        if self.ending.result.set(released).is_ok() {
            self.ending.set.notify(usize::MAX);
        }
    }
}
