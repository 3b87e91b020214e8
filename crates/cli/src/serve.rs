//! `lockkeeper serve`.

use crate::{Done, args::Serve, exit};
use lockkeeper_client::Endpoint;
use lockkeeper_core::Limits;
use lockkeeper_server::{Config, Error, Listen};
use std::{
    env, io,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Notify,
    task::LocalSet,
};
use tracing_subscriber::EnvFilter;

/// After how long without a client a daemon that was started on demand leaves.
const IDLE: Duration = Duration::from_secs(300);

pub(crate) fn serve(args: Serve) -> Done {
    if args.background {
        // Out of the terminal's reach: it outlives the command that started it. It fails for a leader of its own.
        let _ = rustix::process::setsid();
    }
    let filter = EnvFilter::try_from_env("LOCKKEEPER_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();

    let socket = match args.socket {
        Some(path) => path,
        None => Endpoint::from_env().map_err(|why| (exit::USAGE, why))?.socket().into(),
    };
    let remembered = || lockkeeper_server::remembered_state_dir(&socket);
    let state_dir = args.state_dir.or_else(remembered).or_else(|| state_dir(&socket));
    let state_dir = state_dir.ok_or((exit::USAGE, "no HOME: --state-dir is needed".into()))?;
    let reload: Arc<Notify> = Arc::default();
    let listen = args.listen.map(|address| Listen {
        tls: args.tls_cert.zip(args.tls_key),
        keys: args.keys,
        insecure: args.insecure,
        origins: args.allow_origin,
        reload: Arc::clone(&reload),
        ..Listen::at(address)
    });
    let config = Config {
        socket,
        listen,
        // Remembered for whoever serves next, from wherever that is started.
        state_dir: std::path::absolute(state_dir).map_err(|error| (exit::USAGE, error.to_string()))?,
        ttl: args.ttl,
        idle: args.idle.or(args.background.then_some(IDLE)),
        limits: Limits { requests_per_client: 1_000_000, requests: 4_000_000, ..Limits::default() },
    };
    let failed = |error: io::Error| (exit::SOFTWARE, error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let served = LocalSet::new().block_on(&runtime, async {
        let (mut term, mut int) = (
            signal(SignalKind::terminate()).map_err(failed)?,
            signal(SignalKind::interrupt()).map_err(failed)?,
        );
        // Without a port, there is nothing to read anew: it ends with its terminal.
        let mut hup = match config.listen {
            Some(_) => Some(signal(SignalKind::hangup()).map_err(failed)?),
            None => None,
        };
        let stop = async {
            loop {
                let hup = async {
                    match &mut hup {
                        Some(hup) => _ = hup.recv().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    _ = term.recv() => return,
                    _ = int.recv() => return,
                    () = hup => reload.notify_one(),
                }
            }
        };
        lockkeeper_server::serve(config, stop).await.map_err(|error| match error {
            Error::Running(_) if args.background => (0, String::new()),
            error => (exit::UNAVAILABLE, error.to_string()),
        })
    });
    match served {
        Err((0, _)) => Ok(ExitCode::SUCCESS),
        done => done.map(|()| ExitCode::SUCCESS),
    }
}

/// A directory for each socket: two daemons share nothing.
fn state_dir(socket: &Path) -> Option<PathBuf> {
    let dir = |name| env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let state = dir("XDG_STATE_HOME").or_else(|| Some(dir("HOME")?.join(".local/state")));
    let own = match socket == Endpoint::default().socket() {
        true => "default".into(),
        false => socket.to_string_lossy().replace('%', "%%").replace('/', "%"),
    };
    state.map(|state| state.join("lockkeeper").join(own))
}
