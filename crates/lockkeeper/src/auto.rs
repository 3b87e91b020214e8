//! Auto-release, as in the first two sketches: a lock that is held while a handle or future exists.

use crate::{
    Error, Lock, lock,
    sync::{self, Mutex, MutexGuard},
};
use event_listener::Event;
use lockkeeper_core::{Cause, Mode, Name, Token};
use std::{
    convert::Infallible,
    future, mem,
    rc::Rc,
    sync::{Arc, OnceLock},
};

/// A lock that releases itself when this handle and all futures that went through
/// [`wait_until`](Self::wait_until) are done or dropped, or when one of these futures has failed.
///
/// The sketches release such a lock in the next microtask unless something waits. Here the handle
/// takes the place of that microtask: once it is dropped, only the waiting futures keep the lock.
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

/// Released when the last share of it goes, or when one of them has failed.
#[derive(Debug)]
struct Share {
    state: Mutex<AutoLockState>,
    token: Token,
    ending: Arc<Ending>,
}

#[derive(Debug)]
enum AutoLockState {
    Held(Lock<'static>),
    /// The scope that was held.
    Released(Vec<(Name, Mode)>),
}

/// How the lock ended, once it has.
#[derive(Debug, Default)]
struct Ending {
    result: OnceLock<Result<(), Error>>,
    set: Event,
}

impl AutoLock {
    pub(crate) fn new(lock: Lock<'static>) -> Self {
        let (token, state) = (lock.token(), Mutex::new(AutoLockState::Held(lock)));
        Self { share: Arc::new(Share { state, token, ending: Arc::default() }) }
    }

    /// Ties a future to the lock, which lives as long as the returned future does.
    ///
    /// A future that gives an `Err` is what the sketches call a promise that rejects: the lock is
    /// released at once, whatever else waits on it, and [`released`](Self::released) gives
    /// [`Error::WaitFailed`].
    ///
    /// # Errors
    ///
    /// [`Error::Stolen`] or [`Error::Lost`] if the lock is no longer held; [`Error::WaitFailed`] if
    /// it was released because another future has failed.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let lock = locks.request("store").auto_release().await?;
    /// assert_eq!(lock.wait_until(async { 42 })?.await, 42);
    /// locks.force_release("store").await?;
    /// assert!(matches!(lock.wait_until(async {}), Err(Error::Stolen)));
    ///
    /// let lock = locks.request("store").auto_release().await?;
    /// let forever = lock.wait_until(std::future::pending::<()>())?;
    /// assert_eq!(lock.wait_until(async { Err::<(), _>("no disk") })?.await, Err("no disk"));
    /// assert!(locks.try_acquire("store")?.is_some());
    /// # Ok(()) }) }
    /// ```
    pub fn wait_until<F>(&self, future: F) -> Result<impl Future<Output = F::Output> + use<F>, Error>
    where
        F: Future<Output: Settled>,
    {
        match &*self.share.state() {
            AutoLockState::Held(lock) => lock.broken().map_or(Ok(()), |cause| Err(cause.into())),
            AutoLockState::Released(_) => Err(self.share.ending.error()),
        }?;
        let share = self.share.clone();
        Ok(async move {
            let output = future.await;
            if output.failed() {
                share.fail();
            }
            drop(share);
            output
        })
    }

    /// Waits until the lock is released. The future holds no share of the lock.
    ///
    /// It gives [`Error::Stolen`] or [`Error::Lost`] if the lock had been broken by then, and
    /// [`Error::WaitFailed`] if it was released because a future that it waited for has failed.
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
        match &*self.share.state() {
            AutoLockState::Held(lock) => lock.scope(),
            AutoLockState::Released(scope) => scope.clone(),
        }
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
        lock::mode_of(&self.scope())
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
        self.share.token
    }

    /// Waits until the lock is stolen or lost, and says which. Never done of a lock that is held,
    /// or was released.
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
        loop {
            let listener = match &*self.share.state() {
                AutoLockState::Held(lock) => Some(lock.listen_lost()),
                AutoLockState::Released(_) => None,
            };
            match listener {
                Some(Ok(listener)) => listener.await,
                Some(Err(cause)) => return cause,
                None => match self.released().await {
                    Err(Error::Stolen) => return Cause::Stolen,
                    Err(Error::Lost) => return Cause::Lost,
                    _ => future::pending().await,
                },
            }
        }
    }
}

impl Share {
    fn state(&self) -> MutexGuard<'_, AutoLockState> {
        sync::lock(&self.state)
    }

    /// "If any promise in lock's waiting promise set rejects: 1. set lock's state to released. 2.
    /// reject lock's released promise."
    fn fail(&self) {
        let mut state = self.state();
        let AutoLockState::Held(lock) = &*state else { return };
        let scope = lock.scope();
        let before = mem::replace(&mut *state, AutoLockState::Released(scope));
        // To release wakes others: outside the mutex.
        drop(state);
        if let AutoLockState::Held(lock) = before {
            self.ending.end(lock.release().and(Err(Error::WaitFailed)));
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let state = mem::replace(&mut *self.state(), AutoLockState::Released(Vec::new()));
        if let AutoLockState::Held(lock) = state {
            self.ending.end(lock.release());
        }
    }
}

impl Ending {
    fn end(&self, result: Result<(), Error>) {
        if self.result.set(result).is_ok() {
            self.set.notify(usize::MAX);
        }
    }

    /// Why a lock that has a handle is released.
    fn error(&self) -> Error {
        self.result.get().and_then(|result| result.clone().err()).unwrap_or(Error::WaitFailed)
    }
}

/// The output of the future of [`AutoLock::wait_until`]: a value or a failure, as a promise is
/// fulfilled or rejected.
///
/// The `Err` of a `Result` is a failure. Nothing else is, unless your own type implements it so.
///
/// ```
/// # use lockkeeper::{Error, Locks, Settled};
/// enum Upload { Sent, Refused }
///
/// impl Settled for Upload {
///     fn failed(&self) -> bool {
///         matches!(self, Self::Refused)
///     }
/// }
/// # fn main() -> Result<(), Error> { smol::block_on(async {
/// # let _ = Upload::Sent;
/// let locks = Locks::new();
/// let lock = locks.request("upload").auto_release().await?;
/// lock.wait_until(async { Upload::Refused })?.await;
/// assert!(matches!(lock.released().await, Err(Error::WaitFailed)));
/// # Ok(()) }) }
/// ```
pub trait Settled {
    /// Whether this is a failure.
    fn failed(&self) -> bool {
        false
    }
}

impl<T, E> Settled for Result<T, E> {
    fn failed(&self) -> bool {
        self.is_err()
    }
}

macro_rules! values {
    ($($value:ty $(, $($parameter:ident)+)?;)*) => {
        $(impl$(<$($parameter),+>)? Settled for $value {})*
    };
}
values! {
    (); bool; char; String; Infallible;
    i8; i16; i32; i64; i128; isize; u8; u16; u32; u64; u128; usize; f32; f64;
    Option<T>, T; Vec<T>, T; (T,), T; (T, U), T U; (T, U, V), T U V; (T, U, V, W), T U V W;
}
impl<T, const N: usize> Settled for [T; N] {}
impl<T: ?Sized> Settled for &T {}
impl<T: ?Sized> Settled for Box<T> {}
impl<T: ?Sized> Settled for Rc<T> {}
impl<T: ?Sized> Settled for Arc<T> {}
