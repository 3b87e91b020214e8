//! `lockkeeper serve`.

use crate::{
    Done,
    args::Serve,
    daemon::log_file,
    exit,
    log_file::LogFile,
    memory, session,
    settings::{Address, LogFormat, Settings, Size, Span},
};
use listenfd::ListenFd;
use lockkeeper_client::Endpoint;
use lockkeeper_core::Limits;
use lockkeeper_server::{Allow, Bytes, Config, Error, HandshakeLimits, Listen};
use rustix::{
    fs::Mode,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use std::{
    env,
    fs::{self, File},
    io::{self, IsTerminal},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, PermissionsExt},
        net::{SocketAddr, UnixDatagram, UnixListener},
    },
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::{LocalSet, spawn_local},
};
use tracing_subscriber::EnvFilter;

/// The settings of the machine's daemon.
const MACHINE_CONFIG: &str = "/etc/lockkeeper/machine.toml";

/// After how long without a client a daemon that was started on demand leaves.
const IDLE: Duration = Duration::from_secs(300);

/// The longest ttl. The locks of a killed client stay held that long.
const TTL: Duration = Duration::from_secs(24 * 3600);

pub(crate) fn serve(args: Serve) -> Done {
    if args.background {
        close_inherited();
    }
    let wrong = |why: String| (exit::USAGE, why);
    let settings = args.settings.or_from(config_file(args.config).as_deref()).map_err(wrong)?;
    settings.allow.iter().try_for_each(Allow::check).map_err(wrong)?;
    let given = Given::take().map_err(|error| wrong(error.to_string()))?;
    let (settings, config) = configure(settings, given, args.background).map_err(wrong)?;
    if let Some(listen) = &config.listen {
        listen.check().map_err(|error| wrong(error.to_string()))?;
    }
    if args.check_config {
        print!("{}", toml::to_string(&settings).map_err(|error| wrong(error.to_string()))?);
        return Ok(ExitCode::SUCCESS);
    }
    if !config.allow.is_empty() {
        let failed = |error| (exit::UNAVAILABLE, format!("{}: {error}", config.socket.display()));
        open_folder(&config.socket).map_err(failed)?;
    }
    if args.background {
        become_daemon();
    }
    let filter = EnvFilter::try_from_env("LOCKKEEPER_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    let file = args.background.then(|| LogFile::open(log_file(&config.socket)));
    let stderr = file.as_ref().and_then(LogFile::file);
    match (settings.log_format, file) {
        (Some(LogFormat::Json), Some(file)) => log.with_writer(Mutex::new(file)).json().init(),
        (_, Some(file)) => log.with_writer(Mutex::new(file)).with_ansi(false).init(),
        (Some(LogFormat::Json), None) => log.with_writer(io::stderr).json().init(),
        _ => log.with_writer(io::stderr).with_ansi(io::stderr().is_terminal()).init(),
    }
    if config.allow.is_empty() && is_machines(&config.socket) {
        tracing::warn!(
            "only root and the daemon's own user are served: [[allow]] in {MACHINE_CONFIG} says who else is"
        );
    }
    // Each connection takes a file descriptor: as many as the system lets it have.
    raise(Resource::Nofile);

    let failed = |error: io::Error| (exit::SOFTWARE, error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let serve = async move {
        let hear = |kind| signal(kind).map_err(failed);
        let (mut term, mut int) = (hear(SignalKind::terminate())?, hear(SignalKind::interrupt())?);
        let mut hup = hear(SignalKind::hangup())?;
        let reload = config.listen.as_ref().map(|listen| Arc::clone(&listen.reload));
        let socket = config.socket.clone();
        let is_own = Endpoint::default().socket() == Some(&socket);
        let begins = args.background && lockkeeper_server::remembered_state_dir(&socket).is_none();
        let stop = async {
            // No client was admitted yet. The starter of this daemon chooses again.
            if begins && lockkeeper_paths::is_elsewhere(&socket) {
                return tracing::info!("another folder of this user came into use first");
            }
            notify("READY=1");
            if args.background {
                release_stderr(stderr);
            }
            loop {
                tokio::select! {
                    _ = term.recv() => break,
                    _ = int.recv() => break,
                    _ = hup.recv() => match &reload {
                        Some(reload) => reload.notify_one(),
                        // Without a port, there is nothing to read again: SIGHUP means that its
                        // terminal was closed.
                        None => break,
                    },
                }
            }
            notify("STOPPING=1");
        };
        lockkeeper_server::serve(config, stop).await.map_err(|error| match error {
            // A running daemon is as good as a started one.
            Error::Running(_) if args.background => (0, String::new()),
            error @ Error::Running(_) if is_own => {
                let how = "`lockkeeper stop` ends it, and locks stay held; or give this one a place of its own by --socket";
                (exit::UNAVAILABLE, format!("{error}. {how}"))
            }
            error => (exit::UNAVAILABLE, error.to_string()),
        })
    };
    end_on_panic();
    // As a task: the root future is polled again for each message to any client.
    let served = LocalSet::new()
        .block_on(&runtime, async { spawn_local(serve).await.expect("a daemon that panics ends") });
    served.map(|()| ExitCode::SUCCESS)
}

/// A half-done change must not be answered: a daemon ends on a panic of any task or thread, and the
/// next one replays the log.
fn end_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// Until a daemon that was started on demand serves, its standard error is a pipe to who started
/// it: what comes through is why it cannot start, and its end says that it serves. After that, what
/// is written there, as by a panic, goes to the log.
fn release_stderr(log: Option<File>) {
    let log = log.map_or_else(|| File::options().write(true).open("/dev/null"), Ok);
    let released = log.and_then(|log| Ok(rustix::stdio::dup2_stderr(log)?));
    if let Err(error) = released {
        tracing::warn!(%error, "standard error stays open");
    }
}

/// Has as much of a resource as the system allows.
fn raise(resource: Resource) {
    let limit = getrlimit(resource);
    let current = match resource {
        // macOS accepts no more than OPEN_MAX, though the hard limit is none.
        Resource::Nofile if cfg!(target_vendor = "apple") => {
            Some(limit.maximum.unwrap_or(u64::MAX).min(10_240))
        }
        _ => limit.maximum,
    };
    let _ = setrlimit(resource, Rlimit { current, ..limit });
}

/// Closes descriptors that this process inherited by accident. One of a script's `flock` would keep
/// that lock, and one of a pipe would keep its reader waiting, as long as the daemon lives.
#[allow(unsafe_code)]
pub(crate) fn close_inherited() {
    let Ok(open) = fs::read_dir("/dev/fd") else { return };
    let open: Vec<i32> = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // That of the directory is closed by now.
    let is_open = |descriptor: &i32| fs::symlink_metadata(format!("/dev/fd/{descriptor}")).is_ok();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2 && is_open(descriptor)) {
        // SAFETY: the process has opened nothing yet that is still open, so no code owns the open
        // descriptors.
        unsafe { rustix::io::close(descriptor) };
    }
}

/// Becomes a process that serves others beside the one that has started it, and outlives it.
fn become_daemon() {
    // Detaches from the terminal. It fails if this process already leads a session.
    let _ = rustix::process::setsid();
    rustix::process::umask(Mode::from_bits_truncate(0o077));
    // Undoes a changed priority, as far as an ordinary process may.
    let _ = rustix::process::setpriority_process(None, 0);
    [Resource::Fsize, Resource::Data, Resource::As, Resource::Cpu, Resource::Nproc]
        .into_iter()
        .for_each(raise);
}

/// Fills in the defaults of missing settings.
fn configure(mut settings: Settings, given: Given, background: bool) -> Result<(Settings, Config), String> {
    if settings.listen.is_none() {
        settings.listen = given.port.as_ref().and_then(|port| port.local_addr().ok()).map(Address);
    }
    let metrics = settings.metrics.map(|Address(address)| address);
    let metrics_elsewhere = metrics.is_some();
    let listen = settings.port()?.map(|listen| Listen {
        given: given.port.map(Arc::new),
        metrics_elsewhere,
        ..listen
    });
    let socket = match (settings.socket.take(), &given.socket) {
        (Some(path), _) => path,
        (None, Some(socket)) => {
            let address = socket.local_addr().map_err(|error| error.to_string())?;
            address.as_pathname().ok_or("the socket that was given has no path: --socket is needed")?.into()
        }
        (None, None) => match endpoint()?.socket().or(Endpoint::default().socket()) {
            Some(path) => path.into(),
            None => return Err("--socket is needed".into()),
        },
    };
    let state_dir = match settings.state_dir.take() {
        Some(dir) => dir,
        // It is started on demand in a user's own folder, whose name comes from the socket only.
        None if background => {
            let beside = || lockkeeper_paths::state_in(socket.parent().unwrap_or(Path::new("/")));
            lockkeeper_server::remembered_state_dir(&socket).unwrap_or_else(beside)
        }
        None => state_dir_of(&socket),
    };
    // Recorded for the next daemon, which may start in another working directory.
    let state_dir = std::path::absolute(state_dir).map_err(|error| error.to_string())?;
    let Span(ttl) = *settings.ttl.get_or_insert(Span(Duration::from_secs(10)));
    if ttl.is_zero() || ttl > TTL {
        return Err("--ttl is more than nothing and at most 24h".into());
    }
    let store = settings.shared()?;
    let least = store.as_ref().map_or(Duration::ZERO, |store| 4 * store.takeover);
    if ttl < least {
        return Err(format!("--ttl is at least four times --takeover in a fleet: {least:?}"));
    }
    settings.idle = settings.idle.or(background.then_some(Span(IDLE)));
    let limits = Limits {
        requests_per_client: *settings.max_requests_per_client.get_or_insert(1_000_000),
        requests: *settings.max_requests.get_or_insert(4_000_000),
        clients: *settings.max_clients.get_or_insert(1_000_000),
        ..Limits::default()
    };
    let mut default = Bytes::default();
    if settings.store.is_some() {
        // Two snapshots and the log between them have to fit into etcd's quota, which is 2 GiB by
        // default: docs/fleet.md.
        default = Bytes { session: 64 << 20, bucket: 256 << 20, all: 256 << 20 };
    }
    if let Some(memory) = memory::available(background) {
        // The other half is for messages on their way, for what is more than was estimated, and,
        // when it starts, for two segments of the log.
        let part = (memory / 2).min(memory.saturating_sub(160 << 20)) >> 20 << 20;
        default.all = default.all.min(usize::try_from(part).unwrap_or(usize::MAX)).max(1 << 20);
    }
    let bytes = Bytes {
        session: settings.max_bytes_per_client.get_or_insert(Size(default.session)).0,
        bucket: settings.max_bytes_per_bucket.get_or_insert(Size(default.bucket)).0,
        all: settings.max_bytes.get_or_insert(Size(default.all)).0,
    };
    let handshake = handshake_limits(&mut settings)?;
    settings.log_format.get_or_insert(LogFormat::Text);
    (settings.socket, settings.state_dir) = (Some(socket.clone()), Some(state_dir.clone()));
    let idle = settings.idle.map(|Span(idle)| idle);
    let given = given.socket.map(Arc::new);
    let allow = settings.allow.clone();
    let ttl_bounds = (ttl.min(Duration::from_secs(1)).max(least), ttl.max(Duration::from_secs(600)));
    let sync = *settings.sync.get_or_insert(false);
    let config = Config {
        socket,
        given,
        allow,
        listen,
        metrics,
        state_dir,
        sync,
        ttl,
        ttl_bounds,
        idle,
        limits,
        bytes,
        handshake,
        store,
    };
    Ok((settings, config))
}

fn handshake_limits(settings: &mut Settings) -> Result<HandshakeLimits, String> {
    let default = HandshakeLimits::default();
    let Size(bytes) = *settings.max_hello_bytes.get_or_insert(Size(default.bytes));
    // A shorter limit has no room for a token, and no Hello is longer than a message.
    if !(1 << 10..=1 << 20).contains(&bytes) {
        return Err("--max-hello-bytes is at least 1KiB and at most 1MiB".into());
    }
    let Span(timeout) = *settings.hello_timeout.get_or_insert(Span(default.timeout));
    if timeout.is_zero() {
        return Err("--hello-timeout is more than nothing".into());
    }
    let connections =
        *settings.max_handshakes.get_or_insert(u32::try_from(default.connections).unwrap_or(u32::MAX));
    if connections < 2 {
        return Err("--max-handshakes is at least 2".into());
    }
    Ok(HandshakeLimits { bytes, timeout, connections: connections as usize })
}

/// Where the daemon is that is meant.
fn endpoint() -> Result<Endpoint, String> {
    session::endpoint().map_err(|(_, why)| why)
}

/// The file with more settings. The machine's daemon has a default one.
fn config_file(given: Option<PathBuf>) -> Option<PathBuf> {
    let machines = || Some(PathBuf::from(MACHINE_CONFIG)).filter(|path| path.exists());
    given.or_else(|| endpoint().is_ok_and(|endpoint| endpoint.is_machine()).then(machines).flatten())
}

/// Others pass through the folder of a socket that serves them. Only root can make one in `/run`.
fn open_folder(socket: &Path) -> io::Result<()> {
    let Some(dir) = socket.parent() else { return Ok(()) };
    if !dir.exists() {
        return fs::DirBuilder::new().recursive(true).mode(0o755).create(dir);
    }
    // The machine's may have been made by a daemon that served nobody else.
    let is_ours = fs::metadata(dir)?.uid() == rustix::process::geteuid().as_raw();
    match is_ours && is_machines(socket) {
        true => fs::set_permissions(dir, fs::Permissions::from_mode(0o755)),
        false => Ok(()),
    }
}

/// Whether it is the socket of the machine's daemon.
fn is_machines(socket: &Path) -> bool {
    Endpoint::machine().socket() == Some(socket)
}

/// The sockets that systemd has opened.
struct Given {
    socket: Option<UnixListener>,
    port: Option<std::net::TcpListener>,
}

impl Given {
    fn take() -> io::Result<Self> {
        let mut all = ListenFd::from_env();
        let mut given = Self { socket: None, port: None };
        for index in 0..all.len() {
            // A socket of the other kind is left in its place.
            match all.take_unix_listener(index) {
                Ok(socket) => given.socket = socket,
                Err(_) => given.port = all.take_tcp_listener(index)?,
            }
        }
        Ok(given)
    }
}

/// Tells systemd, if that has started it.
fn notify(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let told = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = told {
        tracing::warn!(%error, "NOTIFY_SOCKET cannot be told {state}");
    }
}

/// The state directory of the daemon that `LOCKKEEPER_URL` names, or of this user's.
pub(crate) fn default_state_dir() -> Result<PathBuf, String> {
    match endpoint()?.socket().or(Endpoint::default().socket()) {
        Some(socket) => Ok(state_dir_of(socket)),
        None => Err("--state-dir is needed".into()),
    }
}

fn state_dir_of(socket: &Path) -> PathBuf {
    lockkeeper_server::remembered_state_dir(socket).unwrap_or_else(|| lockkeeper_paths::state(socket))
}

#[cfg(test)]
mod tests {
    use super::end_on_panic;
    use std::{
        env,
        os::unix::process::ExitStatusExt,
        process::{Command, Stdio},
    };
    use tokio::task::{LocalSet, spawn_local};

    const CHILD: &str = "LOCKKEEPER_TEST_PANICS";

    /// A panic of one task, which tokio catches, left the daemon answering with half of a change.
    #[test]
    fn a_daemon_that_panics_ends_and_says_why() {
        let name = "serve::tests::a_daemon_that_panics_ends_and_says_why";
        if env::var_os(CHILD).is_some() {
            end_on_panic();
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let caught = LocalSet::new()
                .block_on(&runtime, async { spawn_local(async { panic!("half a change") }).await });
            panic!("it goes on: {caught:?}");
        }
        let mut child = Command::new(env::current_exe().expect("this program"));
        child.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
        let output = child.stdin(Stdio::null()).output().expect("it starts");
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(rustix::process::Signal::ABORT.as_raw()), "{words}");
        assert!(words.contains("half a change") && !words.contains("it goes on"), "{words}");
    }
}
