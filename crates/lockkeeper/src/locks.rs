//! The handle for requesting locks: one agent of one lock manager.

use crate::{
    Acquire, AutoLock, Error, Inspection, IntoScope, Lock, Request,
    agent::Agent,
    blocking::block_on,
    local::Local,
    state::{DeadlockHook, ManagerHandle},
    sync::{self, Mutex},
};
use lockkeeper_core::{self as engine, ClientId, Deadlock, Limits, Manager, Mode, Name, Snapshot};
use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Weak},
    time::Duration,
};

/// A lock manager for the tasks and threads of this process, or, connected to a daemon, for all
/// processes of the machine.
///
/// A handle is cheap to clone, and all its clones are one agent: they share the manager and a
/// [`client_id`](Self::client_id). [`client`](Self::client) makes another agent of the same
/// manager.
///
/// ```
/// # use lockkeeper::{Error, Locks};
/// # fn main() -> Result<(), Error> { smol::block_on(async {
/// let locks = Locks::new();
/// locks.request("profile").run(async |_lock| {
///     // Nobody else is here for "profile".
/// }).await?;
/// # Ok(()) }) }
/// ```
#[derive(Clone)]
pub struct Locks {
    agent: Arc<Agent>,
}

/// How a manager is set up; see [`Locks::with_config`].
///
/// ```
/// # use lockkeeper::{Config, Locks};
/// // A manager that starts again gives out greater tokens than it did before.
/// let mut config = Config::new();
/// config.last_token = 41;
/// let locks = Locks::with_config(config);
/// assert_eq!(locks.acquire_blocking("disk")?.token().get(), 42);
/// # Ok::<(), lockkeeper::Error>(())
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Config {
    /// The limits of the manager.
    pub limits: Limits,
    /// The largest fencing token that an earlier life of this manager gave out.
    pub last_token: u64,
    on_deadlock: Option<Arc<DeadlockHook>>,
}

impl Config {
    /// The defaults.
    ///
    /// ```
    /// # use lockkeeper::{Config, Limits};
    /// let config = Config::new();
    /// assert_eq!(config.limits, Limits::default());
    /// assert_eq!(config.last_token, 0);
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what the manager takes on.
    ///
    /// ```
    /// # use lockkeeper::{Config, Error, Limits, Locks};
    /// let mut limits = Limits::default();
    /// limits.requests_per_client = 1;
    /// let locks = Locks::with_config(Config::new().limits(limits));
    /// let _lock = locks.acquire_blocking("a")?;
    /// assert!(matches!(locks.try_acquire("b"), Err(Error::Limit(_))));
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Calls `report` when a nested request has waited for a second and turns out to wait in a
    /// cycle.
    ///
    /// It is called once for each such request, on the task that waits.
    ///
    /// ```
    /// # use lockkeeper::{Config, Locks};
    /// let locks = Locks::with_config(Config::new().on_deadlock(|deadlock| eprintln!("{deadlock}")));
    /// ```
    pub fn on_deadlock(mut self, report: impl Fn(&Deadlock) + Send + Sync + 'static) -> Self {
        self.on_deadlock = Some(Arc::new(report));
        self
    }

    fn manager(self) -> Arc<ManagerHandle> {
        let hash_seed = RandomState::new().hash_one(0);
        let Self { mut limits, last_token, on_deadlock } = self;
        // The handle itself is a client.
        limits.clients = limits.clients.max(1);
        let mut manager = Manager::new(engine::Config { limits, last_token, hash_seed });
        let client = manager.client().expect("a manager takes on at least one client");
        Arc::new(ManagerHandle::new(manager, client, on_deadlock))
    }
}

impl Default for Locks {
    fn default() -> Self {
        Self::new()
    }
}

impl Locks {
    /// A separate lock manager: it shares nothing with any other.
    ///
    /// ```
    /// # use lockkeeper::Locks;
    /// let (ours, theirs) = (Locks::new(), Locks::new());
    /// let _lock = ours.acquire_blocking("a")?;
    /// assert!(ours.try_acquire("a")?.is_none());
    /// assert!(theirs.try_acquire("a")?.is_some());
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn new() -> Self {
        Self::with_config(Config::default())
    }

    /// A separate lock manager, configured by `config`.
    ///
    /// ```
    /// # use lockkeeper::{Config, Error, Limits, Locks};
    /// let mut limits = Limits::default();
    /// limits.name_bytes = 8;
    /// let locks = Locks::with_config(Config::new().limits(limits));
    /// assert!(matches!(locks.try_acquire("123456789"), Err(Error::Limit(_))));
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn with_config(config: Config) -> Self {
        Self::of(Agent::Local(Local::root(config.manager())))
    }

    pub(crate) fn of(agent: Agent) -> Self {
        Self { agent: Arc::new(agent) }
    }

    /// Another agent of the same manager, with its own [`client_id`](Self::client_id).
    ///
    /// When the last clone of the returned handle goes, the agent ends: its requests are aborted
    /// and its locks released, even if guards of them still exist.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`] if there are too many clients. At a daemon it is a session, which may not
    /// be had: [`Error::Unreachable`], [`Error::Refused`].
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let worker = locks.client().await?;
    /// let lock = worker.acquire("job").await?.into_owned();
    /// drop(worker);
    /// assert!(locks.try_acquire("job")?.is_some());
    /// # Ok(()) }) }
    /// ```
    pub async fn client(&self) -> Result<Self, Error> {
        self.agent.client().await.map(Self::of)
    }

    /// As [`client`](Self::client), for code that is not async.
    ///
    /// # Errors
    ///
    /// As [`client`](Self::client).
    ///
    /// ```
    /// # use lockkeeper::Locks;
    /// let locks = Locks::new();
    /// let worker = locks.client_blocking()?;
    /// let _lock = worker.acquire_blocking("job")?;
    /// assert_eq!(locks.query_blocking()?.held[0].client, worker.client_id());
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn client_blocking(&self) -> Result<Self, Error> {
        block_on(None, None, self.client())
    }

    /// The agent of this handle, which [`query`](Self::query) shows as its client.
    ///
    /// ```
    /// # use lockkeeper::Locks;
    /// let locks = Locks::new();
    /// assert_eq!(locks.clone().client_id(), locks.client_id());
    /// assert_ne!(locks.client_blocking()?.client_id(), locks.client_id());
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn client_id(&self) -> ClientId {
        self.agent.client_id()
    }

    /// Begins a request for a name or for several names at once: see [`Request`] for its options
    /// and forms.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let held = locks.request(["from", "to"]).run(async |_both| locks.query().await).await??.held;
    /// assert_eq!(held.len(), 2);
    /// assert!(locks.query().await?.held.is_empty());
    /// # Ok(()) }) }
    /// ```
    #[inline]
    pub fn request<S: IntoScope>(&self, scope: S) -> Request<'_, S> {
        Request::new(&self.agent, scope)
    }

    /// A guard of an exclusive lock: `request(scope).acquire()`.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let lock = locks.acquire("inbox").await?;
    /// assert!(locks.try_acquire("inbox")?.is_none());
    /// drop(lock);
    /// assert!(locks.try_acquire("inbox")?.is_some());
    /// # Ok(()) }) }
    /// ```
    #[inline]
    pub fn acquire<S: IntoScope>(&self, scope: S) -> Acquire<'_, S> {
        self.request(scope).acquire()
    }

    /// A guard of an exclusive lock if it is available at once: `request(scope).try_acquire()`.
    ///
    /// # Errors
    ///
    /// As [`Request::try_acquire`].
    ///
    /// ```
    /// # use lockkeeper::Locks;
    /// let locks = Locks::new();
    /// let lock = locks.try_acquire("cron")?;
    /// assert!(lock.is_some());
    /// assert!(locks.try_acquire("cron")?.is_none());
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn try_acquire(&self, scope: impl IntoScope) -> Result<Option<Lock<'_>>, Error> {
        self.request(scope).try_acquire()
    }

    /// A guard of an exclusive lock, for code that is not async:
    /// `request(scope).acquire_blocking()`.
    ///
    /// # Errors
    ///
    /// As [`Request::acquire_blocking`].
    ///
    /// ```
    /// # use lockkeeper::Locks;
    /// let locks = Locks::new();
    /// let lock = locks.acquire_blocking("log")?;
    /// std::thread::scope(|scope| {
    ///     let waiter = scope.spawn(|| locks.acquire_blocking("log").map(|lock| lock.token()));
    ///     let token = lock.token();
    ///     drop(lock);
    ///     assert!(waiter.join().unwrap().unwrap() > token);
    /// });
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn acquire_blocking(&self, scope: impl IntoScope) -> Result<Lock<'_>, Error> {
        self.request(scope).acquire_blocking()
    }

    /// The first sketch's `requestFlag`: an auto-releasing lock, waited for no longer than
    /// `timeout`, if any.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], the sketch's `TimeoutError`; otherwise as [`Request::acquire`].
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks, Mode};
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let flag = locks.request_flag(["a", "b"], Mode::Exclusive, None).await?;
    /// let late = locks.request_flag("b", Mode::Shared, Duration::from_millis(1)).await;
    /// assert!(matches!(late, Err(Error::TimedOut)));
    /// # Ok(()) }) }
    /// ```
    pub async fn request_flag(
        &self,
        scope: impl IntoScope,
        mode: Mode,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<AutoLock, Error> {
        let mut request = self.request(scope).mode(mode);
        if let Some(timeout) = timeout.into() {
            request = request.timeout(timeout);
        }
        request.auto_release().await
    }

    /// Breaks every lock that is held on `name`, as a steal does, and grants waiting requests.
    ///
    /// # Errors
    ///
    /// None in this process. A daemon can refuse, or be unreachable.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let lock = locks.acquire("stuck").await?;
    /// locks.force_release("stuck").await?;
    /// assert!(matches!(lock.release(), Err(Error::Stolen)));
    /// # Ok(()) }) }
    /// ```
    pub async fn force_release(&self, name: impl Into<Name>) -> Result<(), Error> {
        self.agent.force_release(name.into()).await
    }

    /// As [`force_release`](Self::force_release), for code that is not async.
    ///
    /// # Errors
    ///
    /// As [`force_release`](Self::force_release).
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// let locks = Locks::new();
    /// let lock = locks.acquire_blocking("stuck")?;
    /// locks.force_release_blocking("stuck")?;
    /// assert!(matches!(lock.release(), Err(Error::Stolen)));
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn force_release_blocking(&self, name: impl Into<Name>) -> Result<(), Error> {
        block_on(Some(&self.agent), None, self.force_release(name))
    }

    /// The held locks and the requests that wait (§4.5), of all agents of the manager.
    ///
    /// # Errors
    ///
    /// None in this process. A daemon can refuse, or be unreachable.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let _lock = locks.acquire("a").await?;
    /// let snapshot = locks.query().await?;
    /// assert_eq!(snapshot.held[0].name, "a");
    /// assert_eq!(snapshot.held[0].client, locks.client_id());
    /// assert!(snapshot.pending.is_empty());
    /// # Ok(()) }) }
    /// ```
    pub async fn query(&self) -> Result<Snapshot, Error> {
        self.agent.query().await
    }

    /// As [`query`](Self::query), for code that is not async.
    ///
    /// # Errors
    ///
    /// As [`query`](Self::query).
    ///
    /// ```
    /// # use lockkeeper::Locks;
    /// let locks = Locks::new();
    /// let _lock = locks.acquire_blocking("a")?;
    /// assert_eq!(locks.query_blocking()?.held[0].name, "a");
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn query_blocking(&self) -> Result<Snapshot, Error> {
        block_on(Some(&self.agent), None, self.query())
    }

    /// What [`query`](Self::query) shows and more: scopes, labels, tokens, waiting times,
    /// deadlocks.
    ///
    /// # Errors
    ///
    /// None in this process. A daemon can refuse, or be unreachable.
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # fn main() -> Result<(), Error> { smol::block_on(async {
    /// let locks = Locks::new();
    /// let lock = locks.request(["a", "b"]).info("nightly report").acquire().await?;
    /// let held = &locks.inspect().await?.held[0];
    /// assert_eq!(held.info.as_deref(), Some("nightly report"));
    /// assert_eq!((held.scope.len(), held.token), (2, Some(lock.token())));
    /// # Ok(()) }) }
    /// ```
    pub async fn inspect(&self) -> Result<Inspection, Error> {
        self.agent.inspect().await
    }

    /// As [`inspect`](Self::inspect), for code that is not async.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// ```
    /// # use lockkeeper::Locks;
    /// let locks = Locks::new();
    /// let lock = locks.acquire_blocking("a")?;
    /// assert_eq!(locks.inspect_blocking()?.held[0].token, Some(lock.token()));
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn inspect_blocking(&self) -> Result<Inspection, Error> {
        block_on(Some(&self.agent), None, self.inspect())
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("client_id", &self.client_id()).finish_non_exhaustive()
    }
}

/// Lock managers by name, as a browser keeps one for each storage bucket. They share nothing: a
/// lock of one is unknown to all others.
///
/// ```
/// # use lockkeeper::Buckets;
/// let buckets = Buckets::new();
/// let ours = buckets.open("ours");
/// let _lock = ours.acquire_blocking("a")?;
/// assert!(buckets.open("ours").try_acquire("a")?.is_none());
/// assert!(buckets.open("theirs").try_acquire("a")?.is_some());
/// # Ok::<(), lockkeeper::Error>(())
/// ```
pub struct Buckets {
    managers: Mutex<HashMap<Box<str>, Weak<ManagerHandle>>>,
    config: Config,
}

impl Buckets {
    /// No buckets yet.
    ///
    /// ```
    /// # use lockkeeper::Buckets;
    /// let buckets = Buckets::new();
    /// let locks = buckets.open("any");
    /// assert!(locks.try_acquire("a")?.is_some());
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn new() -> Self {
        Self::with_config(Config::default())
    }

    /// No buckets yet; each will be set up as `config` says.
    ///
    /// ```
    /// # use lockkeeper::{Buckets, Config, Error, Limits};
    /// let mut limits = Limits::default();
    /// limits.clients = 1;
    /// let buckets = Buckets::with_config(Config::new().limits(limits));
    /// // The limit is each bucket's own, and a bucket's first handle is its one client.
    /// assert!(matches!(buckets.open("ours").client_blocking(), Err(Error::Limit(_))));
    /// assert!(buckets.open("theirs").try_acquire("a")?.is_some());
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn with_config(config: Config) -> Self {
        Self { managers: Mutex::new(HashMap::new()), config }
    }

    /// The manager called `name`, which lives while a handle or a lock of it does.
    ///
    /// ```
    /// # use lockkeeper::Buckets;
    /// let buckets = Buckets::new();
    /// let lock = buckets.open("ours").acquire_blocking("a")?.into_owned();
    /// assert_eq!(buckets.open("ours").query_blocking()?.held.len(), 1);
    /// drop(lock);
    /// assert!(buckets.open("ours").query_blocking()?.held.is_empty());
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn open(&self, name: &str) -> Locks {
        let mut managers = sync::lock(&self.managers);
        if let Some(shared) = managers.get(name).and_then(Weak::upgrade) {
            return Locks::of(Agent::Local(Local::root(shared)));
        }
        // Dropped managers are removed before the map would grow.
        if managers.len() == managers.capacity() {
            managers.retain(|_, manager| manager.strong_count() > 0);
        }
        let shared = self.config.clone().manager();
        managers.insert(name.into(), Arc::downgrade(&shared));
        Locks::of(Agent::Local(Local::root(shared)))
    }
}

impl Default for Buckets {
    fn default() -> Self {
        Self::new()
    }
}
