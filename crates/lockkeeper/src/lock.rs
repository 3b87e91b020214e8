//! A lock that is held, as a guard.

use crate::{Error, IntoScope, Request, agent::Agent};
use event_listener::EventListener;
use lockkeeper_core::{Cause, ClientId, Mode, Name, RequestId, Token};
use std::{
    fmt,
    task::{Context, Poll},
};

/// A lock that is held. Dropping it releases it.
///
/// It borrows the handle that requested it; [`into_owned`](Self::into_owned) makes it independent.
///
/// ```
/// # use lockkeeper::Locks;
/// let locks = Locks::new();
/// {
///     let _lock = locks.acquire_blocking("lamp")?;
///     assert!(locks.try_acquire("lamp")?.is_none());
/// }
/// assert!(locks.try_acquire("lamp")?.is_some());
/// # Ok::<(), lockkeeper::Error>(())
/// ```
pub struct Lock<'a> {
    agent: Keeper<'a>,
    request: RequestId,
    token: Token,
}

/// The agent that a lock belongs to. Borrowed where it can be: counting references is two more
/// atomic operations.
///
/// Two pointers, of which one is set, or none once the lock is released or passed to another guard.
/// An enum would put its tag before the pointer, and the guard, which is moved as soon as it is
/// made, would be moved byte-shifted.
struct Keeper<'a> {
    borrowed: Option<&'a Agent>,
    owned: Option<Box<Agent>>,
}

impl Keeper<'_> {
    #[inline]
    fn take(&mut self) -> Self {
        Self { borrowed: self.borrowed.take(), owned: self.owned.take() }
    }

    #[inline]
    fn get(&self) -> Option<&Agent> {
        self.borrowed.or(self.owned.as_deref())
    }
}

impl<'a> Lock<'a> {
    #[inline]
    pub(crate) fn new(agent: &'a Agent, request: RequestId, token: Token) -> Self {
        Self { agent: Keeper { borrowed: Some(agent), owned: None }, request, token }
    }

    #[inline]
    fn agent(&self) -> &Agent {
        self.agent.get().expect("only what takes the lock by value takes its agent out")
    }

    /// The same lock, free to go where the handle does not: into a task, a struct, another thread.
    ///
    /// ```
    /// # use lockkeeper::{Error, Lock, Locks};
    /// fn take(locks: &Locks) -> Result<Lock<'static>, Error> {
    ///     Ok(locks.acquire_blocking("device")?.into_owned())
    /// }
    /// # take(&Locks::new()).unwrap();
    /// ```
    pub fn into_owned(mut self) -> Lock<'static> {
        let Keeper { borrowed, owned } = self.agent.take();
        let owned = owned.or_else(|| Some(Box::new(borrowed?.without_end())));
        Lock { agent: Keeper { borrowed: None, owned }, request: self.request, token: self.token }
    }

    /// The name of the lock; of a scope of several names, the first in their order.
    ///
    /// ```
    /// # use lockkeeper::Locks;
    /// let locks = Locks::new();
    /// assert_eq!(locks.acquire_blocking("lamp")?.name(), "lamp");
    /// assert_eq!(locks.acquire_blocking(["b", "a"])?.name(), "a");
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn name(&self) -> Name {
        let first = self.scope().into_iter().next();
        first.map_or_else(Name::default, |(name, _)| name)
    }

    /// The names of the lock, sorted and without duplicates, each with its mode.
    ///
    /// The manager keeps them, not the guard: this asks it.
    ///
    /// ```
    /// # use lockkeeper::{Locks, Mode};
    /// let locks = Locks::new();
    /// let names = [("b", Mode::Shared), ("a", Mode::Shared), ("b", Mode::Exclusive)];
    /// let lock = locks.acquire_blocking(names)?;
    /// let scope: Vec<_> = lock.scope().into_iter().map(|(name, mode)| (name.to_string(), mode)).collect();
    /// assert_eq!(scope, [("a".into(), Mode::Shared), ("b".into(), Mode::Exclusive)]);
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn scope(&self) -> Vec<(Name, Mode)> {
        self.agent().scope(self.request)
    }

    /// The mode of the lock: shared if it is shared on all its names.
    ///
    /// ```
    /// # use lockkeeper::{Locks, Mode};
    /// let locks = Locks::new();
    /// assert_eq!(locks.request(["a", "b"]).shared().acquire_blocking()?.mode(), Mode::Shared);
    /// let mixed = [("a", Mode::Shared), ("b", Mode::Exclusive)];
    /// assert_eq!(locks.acquire_blocking(mixed)?.mode(), Mode::Exclusive);
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn mode(&self) -> Mode {
        mode_of(&self.scope())
    }

    /// The fencing token: greater than that of every lock granted before by the same manager.
    ///
    /// ```
    /// # use lockkeeper::Locks;
    /// let locks = Locks::new();
    /// let first = locks.acquire_blocking("disk")?.token();
    /// let second = locks.acquire_blocking("disk")?.token();
    /// assert!(second > first);
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn token(&self) -> Token {
        self.token
    }

    /// The agent that holds the lock.
    ///
    /// ```
    /// # use lockkeeper::Locks;
    /// let locks = Locks::new();
    /// let worker = locks.client_blocking()?;
    /// let lock = worker.acquire_blocking("job")?;
    /// assert_eq!(lock.client_id(), worker.client_id());
    /// assert_ne!(lock.client_id(), locks.client_id());
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn client_id(&self) -> ClientId {
        self.agent().client_id()
    }

    /// A request made while this lock is held, and awaited before it is released: declared so, a
    /// deadlock of such requests is found.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let outer = locks.acquire("outer").await?;
    /// let again = outer.request("outer").refuse_deadlock().acquire().await;
    /// assert!(matches!(again, Err(Error::Deadlock { .. })));
    /// # Ok(()) }) }
    /// ```
    pub fn request<S: IntoScope>(&self, scope: S) -> Request<'_, S> {
        Request::new(self.agent(), scope).nested_in(self.request)
    }

    /// Releases the lock.
    ///
    /// # Errors
    ///
    /// [`Error::Stolen`] or [`Error::Lost`] if it was no longer held. For a daemon's lock, only if
    /// that is already known to this process.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// let locks = Locks::new();
    /// locks.acquire_blocking("safe")?.release()?;
    /// let lock = locks.acquire_blocking("safe")?;
    /// locks.force_release_blocking("safe")?;
    /// assert!(matches!(lock.release(), Err(Error::Stolen)));
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    #[inline]
    pub fn release(mut self) -> Result<(), Error> {
        let agent = self.agent.take();
        let Some(agent) = agent.get() else { return Ok(()) };
        agent.release(self.request).map_err(Error::from)
    }

    /// Whether the lock is held now: granted, and neither stolen nor lost. On the network it checks
    /// the clock, so it is right even before this process was notified that the lease has expired.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// let locks = Locks::new();
    /// let lock = locks.acquire_blocking("safe")?;
    /// assert!(lock.is_held());
    /// locks.force_release_blocking("safe")?;
    /// assert!(!lock.is_held());
    /// # Ok::<(), Error>(())
    /// ```
    pub fn is_held(&self) -> bool {
        self.broken().is_none()
    }

    /// Waits until the lock is stolen or lost, and says which. Never done while the lock is held.
    ///
    /// ```
    /// # use lockkeeper::{Cause, Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let lock = locks.acquire("leader").await?;
    /// let _thief = locks.request("leader").steal().acquire().await?;
    /// assert_eq!(lock.lost().await, Cause::Stolen);
    /// # Ok(()) }) }
    /// ```
    pub async fn lost(&self) -> Cause {
        loop {
            match self.listen_lost() {
                Ok(listener) => listener.await,
                Err(cause) => return cause,
            }
        }
    }

    /// A listener for the loss of the lock, or the cause if it is lost already.
    pub(crate) fn listen_lost(&self) -> Result<EventListener, Cause> {
        self.agent().listen_lost(self.request)
    }

    /// Why the lock is no longer held, if it is not.
    pub(crate) fn broken(&self) -> Option<Cause> {
        self.agent().broken(self.request)
    }

    /// As [`lost`](Self::lost), for the one task that runs under the lock.
    pub(crate) fn poll_lost(&self, cx: &Context<'_>) -> Poll<Cause> {
        self.agent().poll_lost(self.request, cx.waker())
    }

    /// Releases the lock, and waits until that is seen by all.
    pub(crate) async fn end(mut self) -> Result<(), Error> {
        let agent = self.agent.take();
        let Some(agent) = agent.get() else { return Ok(()) };
        agent.release_acked(self.request).await.map_err(Error::from)
    }
}

/// Shared if all names are.
pub(crate) fn mode_of(scope: &[(Name, Mode)]) -> Mode {
    match scope.iter().all(|(_, mode)| *mode == Mode::Shared) {
        true => Mode::Shared,
        false => Mode::Exclusive,
    }
}

impl Drop for Lock<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(agent) = self.agent.get() {
            // The holder of a broken lock was notified in other ways.
            let _ = agent.release(self.request);
        }
    }
}

impl fmt::Debug for Lock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("scope", &self.scope())
            .field("client", &self.agent().client_id())
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}
