//! Connecting to a daemon.

use crate::{
    Deadlock, Error, Locks,
    agent::Agent,
    remote::{Remote, Requests, oneshot},
    state::DeadlockHook,
};
use lockkeeper_client::{self as client, Endpoint, Options, Session};
use std::{env, io, path::PathBuf, pin::Pin, sync::Arc};

/// The program that is started as the daemon.
const PROGRAM: &str = "lockkeeper";

impl Locks {
    /// The locks of this user on this machine, which all processes share that connect so: those
    /// that `lockkeeper run` takes, and `connect()` in JavaScript. Needs the feature `connect`.
    ///
    /// Where is said by the environment variable `LOCKKEEPER_URL`; by default it is a socket of
    /// this user's own, and a daemon is started if none listens there. For that the program
    /// `lockkeeper` must be on the `PATH` (`cargo install --path crates/cli`, in a clone of the
    /// repository).
    ///
    /// ```no_run
    /// # use lockkeeper::{Error, Locks};
    /// # async fn nightly() -> Result<(), Error> {
    /// let locks = Locks::connect_default().await?;
    /// locks.request("nightly report").run(async |_lock| {
    ///     // No other process of this user's is here.
    /// }).await?;
    /// # Ok(()) }
    /// ```
    pub fn connect_default() -> Connect {
        Connect { url: None, bucket: client::bucket_from_env(), token: None, on_deadlock: None }
    }

    /// The locks of the daemon at `url`: `unix:/path/to/daemon.sock`, or, with the feature
    /// `network`, `ws://…` and `wss://…` on any machine. None is started there. Needs the feature
    /// `connect`.
    ///
    /// Such locks have the same types and methods as any others. Differences:
    ///
    /// * [`client`](Self::client) opens a separate session with the daemon.
    /// * Methods that return no future block the thread until the daemon has answered:
    ///   [`try_acquire`](Self::try_acquire) and those with `blocking` in their name. In a task, use
    ///   [`Request::if_available`](crate::Request::if_available) and the async methods.
    /// * Dropping a lock and [`Lock::release`](crate::Lock::release) do not wait for the daemon,
    ///   and `release` returns `Stolen` only if that is known on this side.
    ///   [`Request::run`](crate::Request::run) waits: it returns when no process sees the lock any
    ///   more.
    /// * If the daemon dies, locks and places in queues survive it. On the network a lock is lost
    ///   if no daemon is reachable for too long ([`Lock::lost`](crate::Lock::lost)); the same
    ///   handle then opens a new session by itself for later requests.
    /// * While no daemon runs, requests and questions wait for the next one.
    ///
    /// Of several URLs of the network, separated by commas, the next one is tried when one fails.
    ///
    /// ```no_run
    /// # use lockkeeper::{Error, Locks};
    /// # async fn deploy() -> Result<(), Error> {
    /// let locks = Locks::connect("unix:/run/deploy/locks.sock").bucket("staging").await?;
    /// let lock = locks.acquire("database").await?;
    /// # Ok(()) }
    /// ```
    pub fn connect(url: impl Into<String>) -> Connect {
        Connect { url: Some(url.into()), bucket: Ok("default".into()), token: None, on_deadlock: None }
    }
}

/// A connection to be made, by [`Locks::connect`] or [`Locks::connect_default`]: options first,
/// then `.await` or [`blocking`](Self::blocking).
///
/// It runs on any executor. The session's thread connects, reads the daemon's messages, and wakes
/// tasks. A blocking call reads the answer itself, and spins for up to 50 µs; a task never spins.
///
/// # Errors
///
/// [`Error::Unreachable`] if no daemon listens there, or the daemon cannot be started.
/// [`Error::Refused`] if the daemon refuses: another version, an invalid name of a bucket, no
/// credentials.
///
/// ```
/// # use lockkeeper::{Error, Locks};
/// # fn main() { smol::block_on(async {
/// let nobody = Locks::connect("unix:/nowhere/daemon.sock").await;
/// assert!(matches!(nobody, Err(Error::Unreachable(_))));
/// # }) }
/// ```
#[derive(Clone)]
#[must_use = "does nothing until it is awaited, or `blocking()` is called"]
pub struct Connect {
    url: Option<String>,
    /// Or why that cannot be known.
    bucket: Result<String, String>,
    token: Option<String>,
    on_deadlock: Option<Arc<DeadlockHook>>,
}

impl Connect {
    /// The bucket whose locks are wanted. Unless it is said, `default`, or what `LOCKKEEPER_BUCKET`
    /// names for [`connect_default`](Locks::connect_default): buckets share nothing. Its name has 1
    /// to 256 bytes and no control characters.
    ///
    /// ```no_run
    /// # use lockkeeper::Locks;
    /// let ours = Locks::connect_default().bucket("ours").blocking()?;
    /// let theirs = Locks::connect_default().bucket("theirs").blocking()?;
    /// let _lock = ours.acquire_blocking("a")?;
    /// assert!(theirs.try_acquire("a")?.is_some());
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn bucket(mut self, name: impl Into<String>) -> Self {
        self.bucket = Ok(name.into());
        self
    }

    /// The credentials for a daemon on the network. Without, those in the file that
    /// `LOCKKEEPER_TOKEN_FILE` names, by [`Locks::connect_default`].
    ///
    /// ```no_run
    /// # use lockkeeper::{Error, Locks};
    /// # async fn publish(token: String) -> Result<(), Error> {
    /// let locks = Locks::connect("wss://locks.example.com").token(token).await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "network")]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Calls `report` when a nested request has waited for a second and turns out to wait in a
    /// cycle, as [`Config::on_deadlock`](crate::Config::on_deadlock) does; on a separate thread.
    ///
    /// ```no_run
    /// # use lockkeeper::Locks;
    /// let locks = Locks::connect_default().on_deadlock(|deadlock| eprintln!("{deadlock}")).blocking()?;
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn on_deadlock(mut self, report: impl Fn(&Deadlock) + Send + Sync + 'static) -> Self {
        self.on_deadlock = Some(Arc::new(report));
        self
    }

    /// Connects, for code that is not async: blocks the thread.
    ///
    /// # Errors
    ///
    /// As [`Connect`] says.
    ///
    /// ```no_run
    /// # use lockkeeper::Locks;
    /// let locks = Locks::connect_default().blocking()?;
    /// let lock = locks.acquire_blocking("printer")?;
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn blocking(self) -> Result<Locks, Error> {
        let remote = self.connector()?.open_blocking()?;
        Ok(Locks::of(Agent::Remote(remote)))
    }

    fn connector(self) -> Result<Connector, Error> {
        let endpoint = self.url.map_or_else(Endpoint::from_env, |url| url.parse());
        let mut endpoint: Endpoint = endpoint.map_err(Error::Unreachable)?;
        if let Some(token) = self.token {
            endpoint = endpoint.with_token(token);
        }
        let Self { bucket, on_deadlock, .. } = self;
        let bucket = bucket.map_err(Error::Unreachable)?;
        Ok(Connector { endpoint, program: on_path(), bucket, on_deadlock })
    }
}

impl IntoFuture for Connect {
    type Output = Result<Locks, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Locks, Error>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { Ok(Locks::of(Agent::Remote(self.connector()?.open(false).await?))) })
    }
}

/// Where sessions are opened.
#[derive(Clone)]
pub(crate) struct Connector {
    endpoint: Endpoint,
    /// The program to start if no daemon listens at this user's own endpoint.
    program: Option<PathBuf>,
    bucket: String,
    pub(crate) on_deadlock: Option<Arc<DeadlockHook>>,
}

impl Connector {
    /// Opens a session, which `ends` with the handle or with the last lock. The session's own
    /// thread connects.
    pub(crate) async fn open(self, ends: bool) -> Result<Remote, Error> {
        let (opened, opens) = oneshot();
        let session = Session::start(&self.endpoint, self.options(), Requests::default(), opened);
        let session = session.map_err(|error| self.failed(error))?;
        opens.await.map_err(|error| self.failed(error))?;
        Remote::new(session, self, ends)
    }

    fn open_blocking(self) -> Result<Remote, Error> {
        let session = Session::open(&self.endpoint, self.options(), Requests::default());
        Remote::new(session.map_err(|error| self.failed(error))?, self, false)
    }

    fn options(&self) -> Options {
        Options::new(&*self.bucket).program(self.program.clone())
    }

    fn failed(&self, error: client::Error) -> Error {
        match error {
            client::Error::Refused { code, message } => Error::Refused { code, message },
            error => Error::Unreachable(self.advise(&error)),
        }
    }

    fn advise(&self, error: &client::Error) -> String {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        let client::Error::Unreachable(_, why) = error else { return error.to_string() };
        let absent = matches!(why.kind(), ConnectionRefused | NotFound);
        match self.endpoint.socket().filter(|_| absent) {
            Some(_) if self.endpoint.is_own() && self.program.is_none() => format!(
                "{error}. To start one automatically, install the program `{PROGRAM}` (`cargo install --path crates/cli`, in a clone of \
                 the repository): it is not on the PATH"
            ),
            Some(_) if self.endpoint.is_machine() => format!(
                "{error}. The machine's daemon is for several users: `systemctl enable --now lockkeeper-machine.socket` \
                 starts it, as root"
            ),
            Some(other) if !self.endpoint.is_own() => {
                format!("{error}. Start one: `{PROGRAM} serve --socket {}`", other.display())
            }
            _ => error.to_string(),
        }
    }
}

/// The program, if it is on the `PATH`.
fn on_path() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|dir| dir.join(PROGRAM))
        .find(|program| program.is_absolute() && program.is_file())
}
