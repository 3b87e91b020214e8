//! Where the server is, and how it is started if it is not there.

use crate::{
    connection::{Connection, Transport},
    poller::Poller,
};
use std::{
    env, fmt, fs, io,
    os::unix::{fs::DirBuilderExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How long a server may take to start.
const START: Duration = Duration::from_secs(10);

/// Where a server listens: on this machine, or, with the feature `network`, on others. Of several URLs, separated by
/// commas, the next one is tried when one fails.
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
    place: Place,
    token: Option<Token>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Local {
        socket: PathBuf,
        /// Whether it is this user's own, at which a server is started if none is there.
        own: bool,
    },
    /// One address at least.
    #[cfg(feature = "network")]
    Network(Vec<Address>),
}

/// Where a server is on the network.
#[cfg(feature = "network")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) path: String,
}

/// Credentials, or the file that has them: that is read each time, since they expire.
#[derive(Clone, PartialEq, Eq)]
enum Token {
    Text(String),
    File(PathBuf),
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("…"),
            Self::File(path) => path.fmt(f),
        }
    }
}

impl Default for Endpoint {
    /// This user's own socket.
    fn default() -> Self {
        let dir = match env::var_os("XDG_RUNTIME_DIR") {
            Some(dir) if !dir.is_empty() => PathBuf::from(dir).join("lockkeeper"),
            _ => env::temp_dir().join(format!("lockkeeper-{}", rustix::process::geteuid().as_raw())),
        };
        Self { place: Place::Local { socket: dir.join("daemon.sock"), own: true }, token: None }
    }
}

impl Endpoint {
    /// The endpoint that `LOCKKEEPER_URL` names, or this user's own; with the token that is in the file that
    /// `LOCKKEEPER_TOKEN_FILE` names.
    ///
    /// # Errors
    ///
    /// If the variable is set, but to no URL that is known.
    pub fn from_env() -> Result<Self, String> {
        let mut endpoint = match env::var("LOCKKEEPER_URL") {
            Ok(url) if !url.is_empty() => url.parse().map_err(|error| format!("LOCKKEEPER_URL: {error}"))?,
            _ => Self::default(),
        };
        let file = env::var_os("LOCKKEEPER_TOKEN_FILE").filter(|path| !path.is_empty());
        endpoint.token = file.map(|path| Token::File(path.into()));
        Ok(endpoint)
    }

    /// The same, with credentials for a server on the network.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Token::Text(token.into()));
        self
    }

    /// The same, with a file that has the credentials. It is read for each connection: they expire.
    #[must_use]
    pub fn with_token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.token = Some(Token::File(path.into()));
        self
    }

    /// The socket, if it is on this machine.
    pub fn socket(&self) -> Option<&Path> {
        match &self.place {
            Place::Local { socket, .. } => Some(socket),
            #[cfg(feature = "network")]
            Place::Network(_) => None,
        }
    }

    /// The credentials as they are now. Nobody asks for them on this machine.
    pub(crate) fn token(&self) -> io::Result<Option<String>> {
        match self.token.as_ref().filter(|_| self.socket().is_none()) {
            None => Ok(None),
            Some(Token::Text(token)) => Ok(Some(token.clone())),
            Some(Token::File(path)) => match fs::read_to_string(path) {
                Ok(token) => Ok(Some(token.trim().into())),
                Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
            },
        }
    }

    /// How many addresses it has.
    pub(crate) fn addresses(&self) -> usize {
        match &self.place {
            Place::Local { .. } => 1,
            #[cfg(feature = "network")]
            Place::Network(addresses) => addresses.len(),
        }
    }

    /// Connects, with the address of that number first and the others after it. Returns which one it was. Each step
    /// takes no longer than `step`; blocks the thread.
    ///
    /// At this user's own endpoint, starts `program` as the server if none is there. Whoever gave an address has somebody
    /// else to start what listens there.
    #[cfg_attr(not(feature = "network"), expect(unused_variables, reason = "a Unix socket has one address"))]
    pub(crate) fn connect(
        &self,
        first: usize,
        program: Option<&Path>,
        step: Duration,
        poller: &Arc<Poller>,
    ) -> io::Result<(usize, Connection)> {
        match &self.place {
            Place::Local { socket, own } => {
                let stream = connect(socket, program.filter(|_| *own))?;
                Ok((0, Connection::new(Transport::Local(stream), poller)?))
            }
            #[cfg(feature = "network")]
            Place::Network(addresses) => {
                let mut failed = None;
                for number in (0..addresses.len()).map(|offset| (first + offset) % addresses.len()) {
                    match crate::websocket::WebSocket::connect(&addresses[number], step) {
                        Ok(socket) => {
                            return Ok((number, Connection::new(Transport::Network(socket), poller)?));
                        }
                        Err(error) => failed = Some(error),
                    }
                }
                Err(failed.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
            }
        }
    }
}

/// Connects, to nobody but this user's server, or root's.
fn connect(socket: &Path, program: Option<&Path>) -> io::Result<UnixStream> {
    let stream = connect_or_launch(socket, program)?;
    let server = server_user(&stream, socket)?;
    if server != rustix::process::geteuid().as_raw() && server != 0 {
        let why = format!("it is served by another user ({server})");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(stream)
}

/// The user whose process listens.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn server_user(stream: &UnixStream, _socket: &Path) -> io::Result<u32> {
    Ok(crate::peer::Peer::of(stream)?.user)
}

/// The user who owns the socket, and the directory in which it is.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn server_user(_stream: &UnixStream, socket: &Path) -> io::Result<u32> {
    use std::os::unix::fs::MetadataExt;
    let owner = |path: &Path| fs::metadata(path).map(|file| file.uid());
    let directory = socket.parent().map_or(Ok(0), owner)?;
    let own = rustix::process::geteuid().as_raw();
    if directory != own && directory != 0 { Ok(directory) } else { owner(socket) }
}

fn connect_or_launch(socket: &Path, program: Option<&Path>) -> io::Result<UnixStream> {
    let first = match UnixStream::connect(socket) {
        Err(error) if absent(&error) => error,
        done => return done,
    };
    let Some(program) = program else { return Err(first) };
    launch(socket, program)?;
    let deadline = Instant::now() + START;
    let mut pause = Duration::from_millis(1);
    loop {
        thread::sleep(pause);
        match UnixStream::connect(socket) {
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
fn launch(socket: &Path, program: &Path) -> io::Result<()> {
    if let Some(dir) = socket.parent().filter(|dir| !dir.exists()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    let mut daemon = Command::new(program);
    daemon.arg("serve").arg("--background").arg("--socket").arg(socket);
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

/// Whether nobody listens there.
fn absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

impl std::str::FromStr for Endpoint {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let known = "a URL is unix:/path/to/daemon.sock, ws://host:port or wss://host:port";
        #[cfg(feature = "network")]
        let address = |url: &str| Address::parse(url).ok_or_else(|| format!("{url:?} has no host: {known}"));
        let place = match url.split_once(':') {
            Some(("unix", path)) if path.starts_with('/') => Place::Local { socket: path.into(), own: false },
            Some(("unix", _)) => return Err(format!("{url:?} has no absolute path: {known}")),
            #[cfg(feature = "network")]
            Some(("ws" | "wss", _)) => Place::Network(url.split(',').map(address).collect::<Result<_, _>>()?),
            _ => return Err(format!("{url:?} is not known: {known}")),
        };
        Ok(Self { place, token: None })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Local { socket, .. } => write!(f, "unix:{}", socket.display()),
            #[cfg(feature = "network")]
            Place::Network(addresses) => {
                for (number, address) in addresses.iter().enumerate() {
                    let comma = if number > 0 { "," } else { "" };
                    let scheme = if address.tls { "wss" } else { "ws" };
                    write!(f, "{comma}{scheme}://{}{}", address.authority(), address.path)?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(feature = "network")]
impl Address {
    fn parse(url: &str) -> Option<Self> {
        let (tls, rest) = match url.strip_prefix("wss://") {
            Some(rest) => (true, rest),
            None => (false, url.strip_prefix("ws://")?),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        // The colons of an IPv6 address are in brackets.
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
            _ => (authority, if tls { 443 } else { 80 }),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '#' | ',');
        if host.is_empty() || !host.chars().all(known) || !path.chars().all(plain) {
            return None;
        }
        let path = if path.is_empty() { "/" } else { path };
        Some(Self { tls, host: host.into(), port, path: path.into() })
    }

    /// The host and port, as URLs and HTTP have them.
    pub(crate) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

#[cfg(all(test, feature = "network"))]
mod tests {
    use super::Endpoint;

    #[test]
    fn daemons_on_the_network_have_urls() {
        for (url, shown) in [
            ("ws://localhost:7420", "ws://localhost:7420/"),
            ("wss://locks.example.com", "wss://locks.example.com:443/"),
            ("ws://127.0.0.1/a/b?c", "ws://127.0.0.1:80/a/b?c"),
            ("wss://[::1]:7420/", "wss://[::1]:7420/"),
            ("ws://a:1,wss://b", "ws://a:1/,wss://b:443/"),
        ] {
            let endpoint: Endpoint = url.parse().unwrap_or_else(|why| panic!("{why}"));
            assert_eq!((endpoint.to_string(), endpoint.socket()), (shown.to_string(), None));
        }
        for wrong in [
            "ws:",
            "ws://",
            "ws://:7420",
            "ws://a:port",
            "ws://a b",
            "ws://user@a",
            "ws://a:99999",
            "ws:a",
            "ws://a,",
            "ws://a,unix:/b",
        ] {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
    }
}
