//! A request before it is made: its scope and options, and the form in which the lock is returned.

use crate::{
    Acquire, AutoLock, Error, IntoScope, Lock, acquire, agent::Agent, blocking::block_on, signal::AbortReason,
};
use lockkeeper_core::{Mode, RequestId};
use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
    time::{Duration, Instant},
};

/// A request for a lock, made by [`Locks::request`](crate::Locks::request) or [`Lock::request`].
///
/// Options first, then one of the forms: [`run`](Self::run) holds the lock while a closure runs,
/// [`acquire`](Self::acquire) gives a guard, [`auto_release`](Self::auto_release) a lock that lives
/// as long as the futures tied to it. Nothing is requested before the form's future is first
/// polled.
///
/// ```
/// # use lockkeeper::{Error, Locks};
/// # fn main() -> Result<(), Error> { smol::block_on(async {
/// let locks = Locks::new();
/// let future = locks.request("page").shared().info("preview").acquire();
/// assert!(locks.query().await?.held.is_empty(), "nothing is asked for yet");
/// let _lock = future.await?;
/// assert_eq!(locks.query().await?.held.len(), 1);
/// # Ok(()) }) }
/// ```
#[must_use = "a request does nothing until it is given a form and awaited"]
pub struct Request<'a, S> {
    pub(crate) agent: &'a Agent,
    pub(crate) scope: S,
    pub(crate) mode: Mode,
    /// Kept apart: most requests have none of it, and a request is moved often.
    pub(crate) extras: Option<Box<Extras>>,
}

/// Rarely used options.
#[derive(Default)]
pub(crate) struct Extras {
    pub(crate) info: Option<Box<str>>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) signal: Option<Signal>,
    pub(crate) nested_in: Option<RequestId>,
    pub(crate) refuse_deadlock: bool,
    pub(crate) steal: bool,
}

pub(crate) type Signal = Pin<Box<dyn Future<Output = AbortReason> + Send>>;

impl<'a, S: IntoScope> Request<'a, S> {
    #[inline]
    pub(crate) fn new(agent: &'a Agent, scope: S) -> Self {
        Self { agent, scope, mode: Mode::Exclusive, extras: None }
    }

    pub(crate) fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// Asks for the names shared: others may hold them at the same time, shared too.
    ///
    /// ```
    /// # use lockkeeper::Locks;
    /// let locks = Locks::new();
    /// let _reader = locks.request("page").shared().acquire_blocking()?;
    /// assert!(locks.request("page").shared().try_acquire()?.is_some());
    /// assert!(locks.request("page").try_acquire()?.is_none());
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn shared(self) -> Self {
        self.mode(Mode::Shared)
    }

    /// Asks for the names in this mode. The default is [`Mode::Exclusive`]. A name that came with
    /// its own mode keeps it.
    ///
    /// ```
    /// # use lockkeeper::{Locks, Mode};
    /// let locks = Locks::new();
    /// let scope = [("orders", Mode::Exclusive), ("prices", Mode::Shared)];
    /// let lock = locks.request(scope).mode(Mode::Shared).acquire_blocking()?;
    /// assert!(lock.scope().into_iter().map(|(_, mode)| mode).eq([Mode::Exclusive, Mode::Shared]));
    /// let lock = locks.request(["a", "b"]).mode(Mode::Shared).acquire_blocking()?;
    /// assert_eq!(lock.mode(), Mode::Shared);
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Breaks conflicting locks, and goes before all waiting requests.
    ///
    /// Their holders are notified ([`Error::Stolen`], [`Lock::lost`]), but until then they continue
    /// as if they held the lock: a last resort, for when a holder is known to hang. Cannot be
    /// combined with [`shared`](Self::shared), a [`signal`](Self::signal) or
    /// [`if_available`](Self::if_available).
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// let locks = Locks::new();
    /// let hangs = locks.acquire_blocking("job")?;
    /// let thief = locks.request("job").steal().acquire_blocking()?;
    /// assert!(thief.token() > hangs.token());
    /// assert!(matches!(hangs.release(), Err(Error::Stolen)));
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn steal(mut self) -> Self {
        self.extras().steal = true;
        self
    }

    /// A label for people, shown by [`Locks::inspect`](crate::Locks::inspect).
    ///
    /// ```
    /// # use lockkeeper::Locks;
    /// let locks = Locks::new();
    /// let _lock = locks.request("disk").info("backup of host 7").acquire_blocking()?;
    /// assert_eq!(locks.inspect_blocking()?.held[0].info.as_deref(), Some("backup of host 7"));
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn info(mut self, info: impl Into<String>) -> Self {
        self.extras().info = Some(info.into().into_boxed_str());
        self
    }

    /// Gives up after this long, with [`Error::TimedOut`]. A lock that is available at once is
    /// granted even if the time is zero.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let _lock = locks.request("db").timeout(Duration::ZERO).acquire().await?;
    /// let late = locks.request("db").timeout(Duration::from_millis(1)).acquire().await;
    /// assert!(matches!(late, Err(Error::TimedOut)));
    /// assert!(locks.query().await?.pending.is_empty());
    /// # Ok(()) }) }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.extras().timeout = Some(timeout);
        self
    }

    /// Gives up when this signal, an [`AbortSignal`](crate::AbortSignal) or any other future, is
    /// done, with [`Error::Aborted`] and the reason that it gives. Once the lock is delivered, that
    /// is, once the future is done, the signal is ignored.
    ///
    /// ```
    /// # use lockkeeper::{AbortController, Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let (locks, controller) = (Locks::new(), AbortController::new());
    /// let lock = locks.request("form").signal(controller.signal()).acquire().await?;
    /// controller.abort("closed");
    /// let refused = locks.request("form").signal(controller.signal()).acquire().await;
    /// assert!(matches!(refused, Err(Error::Aborted(reason)) if reason.to_string() == "closed"));
    /// lock.release()?; // It was granted before the signal, and so is still held.
    /// # Ok(()) }) }
    /// ```
    pub fn signal<F>(mut self, signal: F) -> Self
    where
        F: IntoFuture<Output: Into<AbortReason>, IntoFuture: Send + 'static>,
    {
        let signal = signal.into_future();
        self.extras().signal = Some(Box::pin(async move { signal.await.into() }));
        self
    }

    /// If waiting would close a cycle of requests that wait for each other, fails with
    /// [`Error::Deadlock`] instead. Only nested requests, made with [`Lock::request`], can close
    /// one.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # use std::pin::pin;
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// # let locks = Locks::new();
    /// let (a, b) = (locks.acquire("a").await?, locks.acquire("b").await?);
    /// let mut waits = pin!(a.request("b").refuse_deadlock().acquire());
    /// assert!(smol::future::poll_once(&mut waits).await.is_none());
    /// let refused = b.request("a").refuse_deadlock().acquire().await;
    /// assert!(matches!(refused, Err(Error::Deadlock { .. })));
    /// # Ok(()) }) }
    /// ```
    pub fn refuse_deadlock(mut self) -> Self {
        self.extras().refuse_deadlock = true;
        self
    }

    pub(crate) fn nested_in(mut self, outer: RequestId) -> Self {
        self.extras().nested_in = Some(outer);
        self
    }

    /// Holds the lock while the closure runs, and gives the closure's value. The main form.
    ///
    /// The lock is released when the closure's future is done, whatever its value, when it panics,
    /// and when the future returned here is dropped. The value comes after the release.
    ///
    /// # Errors
    ///
    /// Why the lock was not granted. If it is stolen while the closure runs: [`Error::Stolen`], at
    /// once, and the closure's future is dropped where it stands.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let sum = locks.request("ledger").shared().run(async |lock| {
    ///     assert_eq!(lock.name(), "ledger");
    ///     2 + 2
    /// }).await?;
    /// assert_eq!(sum, 4);
    /// # Ok(()) }) }
    /// ```
    pub async fn run<F, T>(self, closure: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&Lock<'_>) -> T,
    {
        let lock = self.acquire().await?;
        let value = while_held(&lock, closure(&lock)).await?;
        lock.end().await.map(|()| value)
    }

    /// Does not wait: the closure is handed the lock if it is available at once, and `None`
    /// otherwise.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let free = locks.request("scanner").if_available().run(async |lock| lock.is_some()).await?;
    /// assert!(free);
    /// # Ok(()) }) }
    /// ```
    pub fn if_available(self) -> IfAvailable<'a, S> {
        IfAvailable { request: self }
    }

    /// A guard: the lock is released when it is dropped.
    ///
    /// # Errors
    ///
    /// The future gives the [`Error`] for which the lock was not granted. Dropping it gives the
    /// request up.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let lock = locks.request(["from", "to"]).info("transfer 42").acquire().await?;
    /// lock.release()?;
    /// # Ok(()) }) }
    /// ```
    #[inline]
    pub fn acquire(self) -> Acquire<'a, S> {
        Acquire::new(self)
    }

    /// A guard if the lock is available at once, `None` otherwise.
    ///
    /// With a daemon this blocks the thread for a round trip: in a task, use
    /// [`if_available`](Self::if_available).
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] with [`steal`](Self::steal) or a [`signal`](Self::signal); a reserved
    /// name, an empty scope, a limit; [`Error::Lost`] if the client has ended.
    ///
    /// ```
    /// # use lockkeeper::Locks;
    /// let locks = Locks::new();
    /// let lock = locks.request("cache").shared().try_acquire()?;
    /// assert!(lock.is_some());
    /// assert!(locks.request("cache").try_acquire()?.is_none());
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn try_acquire(self) -> Result<Option<Lock<'a>>, Error> {
        block_on(Some(self.agent), self.disturbed(), acquire::attempt(self))
    }

    /// A guard, for code that is not async: blocks the thread until the lock is granted.
    ///
    /// Never call it from a task: it would block the executor.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # use std::time::Duration;
    /// let locks = Locks::new();
    /// let lock = locks.request("report").acquire_blocking()?;
    /// let late = locks.request("report").timeout(Duration::from_millis(1)).acquire_blocking();
    /// assert!(matches!(late, Err(Error::TimedOut)));
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn acquire_blocking(self) -> Result<Lock<'a>, Error> {
        block_on(Some(self.agent), self.disturbed(), self.acquire())
    }

    /// From when on something else than the answer may end the waiting.
    fn disturbed(&self) -> Option<Instant> {
        let Extras { timeout, ref signal, nested_in, .. } = **self.extras.as_ref()?;
        let time = if signal.is_some() || nested_in.is_some() { Some(Duration::ZERO) } else { timeout };
        Instant::now().checked_add(time?)
    }

    /// A lock that releases itself when the futures that went through [`AutoLock::wait_until`] are
    /// done.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let lock = locks.request("upload").auto_release().await?;
    /// let upload = lock.wait_until(async { "sent" })?;
    /// drop(lock);
    /// assert!(locks.try_acquire("upload")?.is_none());
    /// assert_eq!(upload.await, "sent");
    /// assert!(locks.try_acquire("upload")?.is_some());
    /// # Ok(()) }) }
    /// ```
    pub async fn auto_release(self) -> Result<AutoLock, Error> {
        self.acquire().await.map(|lock| AutoLock::new(lock.into_owned()))
    }
}

/// A request that does not wait: see [`Request::if_available`].
///
/// ```
/// # use lockkeeper::{Error, Locks};
/// # fn main() -> Result<(), Error> { smol::block_on(async {
/// let locks = Locks::new();
/// let _held = locks.acquire("refresh").await?;
/// let skipped = locks.request("refresh").if_available().run(async |lock| lock.is_none()).await?;
/// assert!(skipped);
/// # Ok(()) }) }
/// ```
#[must_use = "a request does nothing until it is run"]
pub struct IfAvailable<'a, S> {
    request: Request<'a, S>,
}

impl<'a, S: IntoScope> IfAvailable<'a, S> {
    /// A guard if the lock is available at once, `None` otherwise: [`Request::try_acquire`] for a
    /// task.
    ///
    /// # Errors
    ///
    /// As [`Request::try_acquire`].
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let lock = locks.request("printer").if_available().acquire().await?;
    /// assert!(lock.is_some());
    /// assert!(locks.request("printer").if_available().acquire().await?.is_none());
    /// # Ok(()) }) }
    /// ```
    pub async fn acquire(self) -> Result<Option<Lock<'a>>, Error> {
        acquire::attempt(self.request).await
    }

    /// A lock that releases itself, as [`Request::auto_release`] gives it, or `None` if it is not
    /// available at once.
    ///
    /// # Errors
    ///
    /// As [`Request::try_acquire`].
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let lock = locks.request("printer").if_available().auto_release().await?;
    /// assert!(lock.is_some());
    /// assert!(locks.request("printer").if_available().auto_release().await?.is_none());
    /// # Ok(()) }) }
    /// ```
    pub async fn auto_release(self) -> Result<Option<AutoLock>, Error> {
        Ok(self.acquire().await?.map(|lock| AutoLock::new(lock.into_owned())))
    }

    /// Runs the closure with the lock, or with `None` if it is not available at once.
    ///
    /// # Errors
    ///
    /// As [`Request::run`]. That the lock is not available is no error.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let _held = locks.acquire("printer").await?;
    /// let printed = locks.request("printer").if_available().run(async |lock| lock.is_some()).await?;
    /// assert!(!printed);
    /// # Ok(()) }) }
    /// ```
    pub async fn run<F, T>(self, closure: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(Option<&Lock<'_>>) -> T,
    {
        let Some(lock) = self.acquire().await? else { return Ok(closure(None).await) };
        let value = while_held(&lock, closure(Some(&lock))).await?;
        lock.end().await.map(|()| value)
    }
}

/// Polls `body` as long as the lock is held.
async fn while_held<T>(lock: &Lock<'_>, body: impl Future<Output = T>) -> Result<T, Error> {
    let mut body = pin!(body);
    let mut first = true;
    poll_fn(|cx| {
        // A closure whose lock was broken must not continue. Before the first poll this cannot have
        // happened.
        if !std::mem::take(&mut first)
            && let Some(cause) = lock.broken()
        {
            return Poll::Ready(Err(cause.into()));
        }
        match body.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Ok(value)),
            Poll::Pending => lock.poll_lost(cx).map(|cause| Err(cause.into())),
        }
    })
    .await
}
