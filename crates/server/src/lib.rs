//! Lockkeeper's daemon: one lock manager for each bucket, and sessions that own locks in them.
//!
//! A message takes this path: `listen` accepts a connection and knows whose it is; `connection` turns its bytes
//! into messages and back; `daemon` has the sessions and runs the engine, on the thread that read the bytes. There is
//! one such thread: nothing is locked, and nobody is woken on another core. What a message does to others is put into
//! their outboxes.
//!
//! What must outlive the daemon is in the `journal`; a daemon that finds sessions there has been killed, and
//! `grace` is how it begins.
#![forbid(unsafe_code)]

mod connection;
mod daemon;
mod grace;
mod journal;
mod listen;
mod process;
mod session;

pub use listen::remembered_state_dir;
pub use lockkeeper_wire::code;

use daemon::Daemon;
use lockkeeper_core::Limits;
use std::{cell::RefCell, future::Future, io, path::PathBuf, rc::Rc, time::Duration};

/// How a daemon is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients of this machine connect.
    pub socket: PathBuf,
    /// Where what must outlive the daemon is kept. One daemon at a time.
    pub state_dir: PathBuf,
    /// For how long a daemon that was killed and has started again waits for the sessions of its former life.
    pub ttl: Duration,
    /// After how long without a session it leaves; never if there is none.
    pub idle: Option<Duration>,
    /// What each bucket takes on.
    pub limits: Limits,
}

/// Why a daemon does not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Another daemon serves there.
    Running(PathBuf),
    /// The socket was served by a daemon with another state directory, the second one, and may have left clients behind.
    OtherState(PathBuf, PathBuf),
    /// A file or directory could not be used.
    File(PathBuf, io::Error),
    /// What the state directory holds is not ours, or is damaged.
    Damaged(PathBuf, String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Running(path) => write!(f, "another daemon is running: it has {}", path.display()),
            Self::OtherState(path, before) => write!(
                f,
                "{} says that the daemon before had its state in {}, and its clients may come back: use that directory, \
                 or, with no client left alive, remove the file",
                path.display(),
                before.display()
            ),
            Self::File(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Damaged(path, why) => {
                write!(f, "{} is damaged: {why}. With no client left alive, remove it", path.display())
            }
        }
    }
}

impl std::error::Error for Error {}

/// Serves until `stop` is done, or nobody has needed it for [`Config::idle`]; then leaves in good order. Must be polled
/// within a [`LocalSet`](tokio::task::LocalSet).
///
/// # Errors
///
/// If it cannot start: [`Error`].
pub async fn serve(config: Config, stop: impl Future<Output = ()>) -> Result<(), Error> {
    let listener = listen::bind(&config.socket, &config.state_dir)?;
    let daemon = Rc::new(RefCell::new(Daemon::start(&config)?));
    listener.remember(&config.state_dir).map_err(|error| Error::File(config.socket.clone(), error))?;
    tracing::info!(socket = %config.socket.display(), state = %config.state_dir.display(), "serving");
    let grace = tokio::task::spawn_local(grace::watch(Rc::clone(&daemon)));
    tokio::select! {
        biased;
        () = stop => tracing::info!("asked to stop"),
        () = idle(&daemon, config.idle) => tracing::info!("nobody needs it: leaving"),
        () = listener.accept(&daemon) => {}
    }
    grace.abort();
    daemon.borrow_mut().stop();
    // Connections say goodbye on their own; a client that does not read has had its chance.
    let gone = async {
        while daemon.borrow().connected() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), gone).await;
    if daemon.borrow().is_empty() {
        listener.forget();
    }
    tracing::info!("stopped");
    Ok(())
}

async fn idle(daemon: &Rc<RefCell<Daemon>>, patience: Option<Duration>) {
    let Some(patience) = patience else { return std::future::pending().await };
    loop {
        tokio::time::sleep(patience / 4).await;
        if daemon.borrow().idle_for() >= patience {
            return;
        }
    }
}
