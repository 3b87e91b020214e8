//! Lockkeeper's daemon: the service's state machine, with sockets, a log and a clock around it.
//!
//! A message takes this path. `listen` accepts a local connection, `network` one on the port, which
//! `http` makes a WebSocket. `connection` turns its bytes into messages. `daemon` reserves room in
//! the log, passes them to the state machine (`lockkeeper-service`), commits its records, and has
//! the connections send the answers. One thread does it all, so no lock is needed, and no message
//! crosses between cores.
//!
//! `fifo` asks the kernel whether a local client is alive. Killing the daemon loses nothing: the
//! next one replays the log.
#![forbid(unsafe_code)]

mod audit;
mod auth;
mod clock;
mod connection;
mod daemon;
mod dashboard;
mod examples;
mod fifo;
mod fleet;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod guests;
mod handshakes;
mod http;
mod listen;
mod metrics;
mod network;
mod node;
mod relay;
#[cfg(feature = "sabotage")]
pub mod sabotage;
mod snapshot;
mod socket;
mod unfinished;
mod users;

pub use auth::{Permit, new_keys, sign};
pub use clock::boot_id;
pub use fleet::{DaemonReport, LeaderReport, MemberReport, Report, report};
pub use listen::remembered_state_dir;
pub use lockkeeper_etcd as etcd;
pub use lockkeeper_log as log;
pub use lockkeeper_service::Bytes;
pub use lockkeeper_wire::v2::code;
pub use users::Allow;

use auth::Keys;
use daemon::Daemon;
use fleet::Fleet;
use gate::Gate;
use lockkeeper_core::Limits;
use network::{Metrics, Network};
use node::{Following, Node, Role};
use relay::Relays;
use serde::{Deserialize, Serialize};
use std::{
    cell::RefCell,
    fs,
    future::{Future, pending},
    io,
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixListener,
    panic::resume_unwind,
    path::PathBuf,
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tokio::{sync::Notify, task::JoinError};
use tokio_rustls::TlsAcceptor;

/// How a daemon is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients of this machine connect.
    pub socket: PathBuf,
    /// The socket itself, if it was opened by systemd.
    pub given: Option<Arc<UnixListener>>,
    /// The rights of other users there. If there are none, only the daemon's user and root can
    /// connect.
    pub allow: Vec<Allow>,
    /// Where clients of other machines, and browsers, connect.
    pub listen: Option<Listen>,
    /// A port for `/healthz` and `/metrics` alone.
    pub metrics: Option<SocketAddr>,
    /// Where what must outlive the daemon is kept. One daemon at a time.
    pub state_dir: PathBuf,
    /// Whether a commit is on the disk before it is answered: then a power cut loses nothing.
    pub sync: bool,
    /// The lease of a session on the network: it ends when no message was received for so long.
    pub ttl: Duration,
    /// The shortest and the longest lease that a client may wish for.
    pub ttl_bounds: (Duration, Duration),
    /// After how long without a session it exits; never if there is none.
    pub idle: Option<Duration>,
    /// The limits of each bucket.
    pub limits: Limits,
    /// How much memory clients may take.
    pub bytes: Bytes,
    /// The limits of a connection before its Hello.
    pub handshake: HandshakeLimits,
    /// The store whose log is shared with other daemons. Without one, this daemon has a log of its
    /// own.
    pub store: Option<Store>,
}

/// The limits of connections before their Hello.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeLimits {
    /// The bytes of the longest message, and of the head of an HTTP request.
    pub bytes: usize,
    /// How long it may take from the connection to the Hello.
    pub timeout: Duration,
    /// How many there may be at a time, at the socket and at the port: so many, or a quarter of the
    /// descriptors that this process may have. One user, or address, has half of them at most.
    pub connections: usize,
}

impl Default for HandshakeLimits {
    fn default() -> Self {
        Self { bytes: 8 << 10, timeout: Duration::from_secs(10), connections: 1_000 }
    }
}

/// A log that several daemons share.
#[derive(Clone, Debug)]
pub struct Store {
    /// Where it is kept.
    pub etcd: lockkeeper_etcd::Settings,
    /// The URL at which the other daemons reach this one.
    pub advertise: String,
    /// After how long without a sign of the leader another daemon takes over.
    pub takeover: Duration,
    /// Whether nothing else is in that etcd: then its history is compacted.
    pub own: bool,
    /// Whether to go on with a store that has less than it had: it was restored from a backup.
    pub accept_restored: bool,
}

/// A TCP port, and the rights of its clients.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Where it is.
    pub address: SocketAddr,
    /// The port itself, if it was opened by systemd.
    pub given: Option<Arc<TcpListener>>,
    /// The PEM files of the certificate, with what it takes to trust it, and of its key; without
    /// TLS if there are none.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// A JSON Web Key Set: a token signed by one of these keys grants its rights. Without keys,
    /// every client has all rights.
    pub keys: Option<PathBuf>,
    /// The audience that tokens must have.
    pub audience: Option<String>,
    /// Whether clients of other machines are admitted without keys, and tokens without TLS.
    pub insecure: bool,
    /// Whether clients without keys have the buckets of the Unix socket, and not buckets of their
    /// own.
    pub share_buckets: bool,
    /// Pages of which origins may connect; `*` is for all.
    pub origins: Vec<String>,
    /// Whether the bucket of a page is its origin, and not what it asks for: that is a partition
    /// below it then.
    pub bucket_per_origin: bool,
    /// The meaning of the WebSocket status 1001.
    pub going_away: GoingAway,
    /// Whether there are examples at `/examples/`, which may connect.
    pub examples: bool,
    /// Whether `/healthz` and `/metrics` have another port.
    pub metrics_elsewhere: bool,
    /// Notified when certificates and keys have to be read again.
    pub reload: Arc<Notify>,
}

/// Whether a session ends at once when its client closes the WebSocket with status 1001, as
/// browsers do for a closed page or worker. Only for clients whose Hello says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GoingAway {
    /// If only the client can have sent it: over the daemon's own TLS, or from this machine without
    /// a proxy's headers.
    #[default]
    Auto,
    /// Always.
    Ends,
    /// Never: the session waits for its client as after any other loss of the connection.
    Ignored,
}

impl Listen {
    /// A port for every client that reaches it; for this machine only, unless configured otherwise.
    pub fn at(address: SocketAddr) -> Self {
        let (given, tls, keys, audience, insecure) = (None, None, None, None, false);
        Self {
            address,
            given,
            tls,
            keys,
            audience,
            insecure,
            share_buckets: false,
            origins: Vec::new(),
            bucket_per_origin: false,
            going_away: GoingAway::default(),
            examples: false,
            metrics_elsewhere: false,
            reload: Arc::default(),
        }
    }

    /// Whether its files can be used, and all that can reach it may.
    ///
    /// # Errors
    ///
    /// [`Error`], as [`serve`] has it.
    pub fn check(&self) -> Result<(), Error> {
        self.read()?;
        self.check_address(self.address)
    }

    /// Whether all that can reach it at this address may.
    fn check_address(&self, address: SocketAddr) -> Result<(), Error> {
        match (&self.keys, &self.tls) {
            _ if address.ip().is_loopback() || self.insecure => Ok(()),
            (None, _) => Err(Error::Insecure(address)),
            (Some(_), None) => Err(Error::Clear(address)),
            (Some(_), Some(_)) => Ok(()),
        }
    }

    /// Its certificate and its keys, as they are now.
    fn read(&self) -> Result<(Option<TlsAcceptor>, Option<Keys>), Error> {
        let tls = network::acceptor(self)?;
        let Some(path) = &self.keys else { return Ok((tls, None)) };
        let text = fs::read_to_string(path).map_err(|error| Error::File(path.clone(), error))?;
        let mut keys = Keys::parse(&text).map_err(|why| Error::File(path.clone(), io::Error::other(why)))?;
        keys.audience.clone_from(&self.audience);
        Ok((tls, Some(keys)))
    }
}

/// Why a daemon does not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Another daemon serves there.
    Running(PathBuf),
    /// The socket was served by a daemon with another state directory, the second one, and may have
    /// left clients behind.
    OtherState(PathBuf, PathBuf),
    /// A file or directory could not be used.
    File(PathBuf, io::Error),
    /// A port could not be opened.
    Address(SocketAddr, io::Error),
    /// A port that others can reach would be open to all of them.
    Insecure(SocketAddr),
    /// Tokens would travel to a port that others can reach without TLS.
    Clear(SocketAddr),
    /// The log cannot be used.
    Log(lockkeeper_log::OpenError),
    /// The contents of the state directory are damaged.
    Damaged(PathBuf, String),
    /// The contents of the state directory were written by a later version.
    Later(PathBuf),
    /// The store that daemons share cannot be used.
    Fleet(String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Running(path) => write!(f, "another daemon is running: it holds {}", path.display()),
            Self::OtherState(path, before) => write!(
                f,
                "{} says that the previous daemon had its state in {}, and its clients may reconnect: use \
                 that directory, or remove the file if no client of it is alive",
                path.display(),
                before.display()
            ),
            Self::File(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Address(address, error) => write!(f, "{address}: {error}"),
            Self::Insecure(address) => write!(
                f,
                "{address} can be reached from other machines, and without keys every client has all rights: give \
                 --keys, or --insecure to allow that"
            ),
            Self::Clear(address) => write!(
                f,
                "{address} can be reached from other machines, and without TLS tokens are sent unencrypted: \
                 give --tls-cert and --tls-key, or --insecure if a proxy in front of it handles TLS"
            ),
            Self::Log(error) => error.fmt(f),
            Self::Fleet(why) => f.write_str(why),
            Self::Later(path) => write!(
                f,
                "the state in {} was written by a later version of Lockkeeper: upgrade",
                path.display()
            ),
            Self::Damaged(path, why) => write!(
                f,
                "the state in {} is damaged: {why}. See `lockkeeper state check`; `lockkeeper state reset` starts anew",
                path.display()
            ),
        }
    }
}

impl std::error::Error for Error {}

/// How long a daemon of a fleet that is asked to stop may take to hand over.
const STOP: Duration = Duration::from_secs(10);

/// Serves until `stop` is done, or it was idle for [`Config::idle`]; then stops gracefully. `stop`
/// is first polled when the daemon can be connected to. Must be polled within a
/// [`LocalSet`](tokio::task::LocalSet).
///
/// # Errors
///
/// [`Error`] if it cannot start or continue.
pub async fn serve(config: Config, stop: impl Future<Output = ()>) -> Result<(), Error> {
    // Both locks, before anything of an earlier daemon is removed.
    let place = listen::lock(&config)?;
    // The clients of a fleet meet, whichever way they come.
    let share_buckets =
        config.store.is_some() || config.listen.as_ref().is_some_and(|listen| listen.share_buckets);
    let gate = Rc::new(Gate::new(config.allow.clone(), share_buckets));
    let (node, fleet) = match &config.store {
        None => {
            let daemon = Daemon::start(&config, Rc::clone(&gate)).map_err(|error| match error {
                Error::Log(lockkeeper_log::OpenError::InUse(dir)) => Error::Running(dir),
                error => error,
            })?;
            (Node::new(Role::Leading(Rc::new(RefCell::new(daemon))), gate, None), None)
        }
        Some(store) => {
            let (fleet, key) = Fleet::start(&config, store).await?;
            let relays = Relays::new(&key, config.bytes.all);
            let node = Node::new(Role::Following(Following::default()), gate, Some(relays));
            (node.of_fleet(&fleet, store), Some(fleet))
        }
    };
    let (network, keys) = match &config.listen {
        Some(listen) => {
            let (network, keys) = Network::bind(listen, config.handshake).await?;
            (Some(Rc::new(network)), keys)
        }
        None => (None, None),
    };
    let metrics = match config.metrics {
        Some(address) => Some(Metrics::bind(address, config.handshake).await?),
        None => None,
    };
    node.gate.set_keys(keys);
    let node = Rc::new(node);
    let listener = place.bind(&config)?;
    tracing::info!(socket = %config.socket.display(), state = %config.state_dir.display(), "serving");
    if let Some(network) = &network {
        tracing::info!(address = %network.address(), "listening");
    }
    if let Some(metrics) = &metrics {
        tracing::info!(address = %metrics.address, "metrics");
    }
    let fleet = fleet.map(Rc::new);
    let work = Rc::clone(&node);
    let shared = fleet.clone();
    let mut working = tokio::task::spawn_local(async move {
        match (shared, work.daemon()) {
            (Some(fleet), _) => fleet.run(&work).await,
            (None, Some(daemon)) => {
                daemon::run(&daemon).await;
                Ok(())
            }
            (None, None) => Ok(()),
        }
    });
    let web = async {
        let network = async {
            let Some(network) = &network else { return };
            tokio::join!(network.accept(&node), network.handshakes().time_out(), network.reload(&node));
        };
        let metrics = async {
            if let Some(metrics) = &metrics {
                metrics.accept(&node).await;
            }
        };
        tokio::join!(network, metrics);
        pending().await
    };
    tokio::pin!(web);
    let mut failure = Ok(());
    tokio::select! {
        biased;
        () = stop => tracing::info!("asked to stop"),
        () = idle(&node, config.idle) => tracing::info!("no session: exiting"),
        () = listener.accept(&node, network.as_deref()) => {}
        () = listener.keep(&node) => {}
        () = listener.time_out_handshakes() => {}
        () = &mut web => {}
        done = &mut working => failure = result_of(done),
    }
    if let Some(fleet) = fleet {
        if failure.is_ok() {
            fleet.stop();
            failure = tokio::select! {
                done = &mut working => result_of(done),
                // `/healthz` says that it stops.
                () = web => Ok(()),
                // A store that does not answer does not keep it.
                () = tokio::time::sleep(STOP) => Ok(()),
            };
        }
        tracing::info!("stopped");
        return failure;
    }
    let Some(daemon) = node.daemon() else { return failure };
    daemon.borrow_mut().stop();
    // Connections close on their own; a client that does not read has had its chance.
    let gone = async {
        while daemon.borrow().connected() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = gone => {}
        () = tokio::time::sleep(Duration::from_secs(1)) => {}
        () = web => {}
    }
    working.abort();
    let closed = daemon.borrow_mut().close();
    if closed.is_ok() && daemon.borrow().is_empty() {
        listener.forget();
    }
    tracing::info!("stopped");
    closed
}

/// The result of a task. A panic propagates: it is not a graceful stop.
fn result_of(done: Result<Result<(), Error>, JoinError>) -> Result<(), Error> {
    done.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => Ok(()),
    })
}

async fn idle(node: &Node, patience: Option<Duration>) {
    let Some(patience) = patience else { return pending().await };
    loop {
        tokio::time::sleep(patience / 4).await;
        if node.daemon().is_some_and(|daemon| daemon.borrow().idle_for() >= patience) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::result_of;
    use tokio::{runtime::Builder, task::LocalSet};

    #[test]
    #[should_panic(expected = "the work ends")]
    fn a_panic_of_the_work_is_not_a_graceful_stop() {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let done = LocalSet::new()
            .block_on(&runtime, async { tokio::task::spawn_local(async { panic!("the work ends") }).await });
        let _ = result_of(done);
    }
}
