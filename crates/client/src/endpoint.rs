//! Where the daemon is, and how it is started if it is not there.

use std::{
    env, fmt, fs, io,
    os::unix::{fs::DirBuilderExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long a daemon may take to start.
const START: Duration = Duration::from_secs(10);

/// Where a daemon listens.
///
/// ```
/// # use lockkeeper_client::Endpoint;
/// let endpoint: Endpoint = "unix:/run/lockkeeper/daemon.sock".parse()?;
/// assert_eq!(endpoint.to_string(), "unix:/run/lockkeeper/daemon.sock");
/// assert!("http://example.com".parse::<Endpoint>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    socket: PathBuf,
    /// Whether it is this user's own, at which a daemon is started if none is there.
    own: bool,
}

impl Default for Endpoint {
    /// This user's own socket.
    fn default() -> Self {
        let dir = match env::var_os("XDG_RUNTIME_DIR") {
            Some(dir) if !dir.is_empty() => PathBuf::from(dir).join("lockkeeper"),
            _ => env::temp_dir().join(format!("lockkeeper-{}", rustix::process::geteuid().as_raw())),
        };
        Self { socket: dir.join("daemon.sock"), own: true }
    }
}

impl Endpoint {
    /// The endpoint that `LOCKKEEPER_URL` names, or this user's own.
    ///
    /// # Errors
    ///
    /// If the variable is set, but to no URL that is known.
    pub fn from_env() -> Result<Self, String> {
        match env::var("LOCKKEEPER_URL") {
            Ok(url) if !url.is_empty() => url.parse().map_err(|error| format!("LOCKKEEPER_URL: {error}")),
            _ => Ok(Self::default()),
        }
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Connects, to nobody but this user's daemon, or root's. At this user's own endpoint, starts `program` as the daemon
    /// if none is there: who gave an address has somebody else to start what listens there, and knows with which state.
    pub(crate) fn connect(&self, program: Option<&Path>) -> io::Result<UnixStream> {
        let stream = self.connect_or_launch(program.filter(|_| self.own))?;
        let daemon = rustix::net::sockopt::socket_peercred(&stream)?.uid;
        if daemon != rustix::process::geteuid() && !daemon.is_root() {
            let why = format!("it is served by another user ({})", daemon.as_raw());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(stream)
    }

    fn connect_or_launch(&self, program: Option<&Path>) -> io::Result<UnixStream> {
        let first = match UnixStream::connect(&self.socket) {
            Err(error) if absent(&error) => error,
            done => return done,
        };
        let Some(program) = program else { return Err(first) };
        self.launch(program)?;
        let deadline = Instant::now() + START;
        let mut pause = Duration::from_millis(1);
        loop {
            thread::sleep(pause);
            match UnixStream::connect(&self.socket) {
                Err(error) if absent(&error) && Instant::now() < deadline => {
                    pause = (pause * 2).min(Duration::from_millis(50));
                }
                Err(error) if absent(&error) => {
                    let why = format!(
                        "the daemon did not start within {} s: run `{} serve` to see why ({error})",
                        START.as_secs(),
                        program.display()
                    );
                    return Err(io::Error::new(error.kind(), why));
                }
                done => return done,
            }
        }
    }

    /// Starts a daemon that outlives this program. If several are started at once, one stays.
    fn launch(&self, program: &Path) -> io::Result<()> {
        if let Some(dir) = self.socket.parent().filter(|dir| !dir.exists()) {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let mut daemon = Command::new(program);
        daemon.arg("serve").arg("--background").arg("--socket").arg(&self.socket);
        daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        let started = daemon.spawn().map_err(|error| {
            let why = format!("the daemon cannot be started: {}: {error}", program.display());
            io::Error::new(error.kind(), why)
        });
        // It leaves at once if another was quicker, and is to leave no zombie then.
        let mut child = started?;
        thread::Builder::new().name("lockkeeper-launch".into()).spawn(move || child.wait())?;
        Ok(())
    }
}

/// Whether nobody listens there.
fn absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

impl std::str::FromStr for Endpoint {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        match url.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self { socket: path.into(), own: false }),
            Some(_) => Err(format!("{url:?} has no absolute path: unix:/path/to/daemon.sock")),
            None => Err(format!("{url:?} is not known: a URL is unix:/path/to/daemon.sock")),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix:{}", self.socket.display())
    }
}
