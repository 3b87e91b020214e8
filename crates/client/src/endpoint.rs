//! The address of the server, and how to start it if it does not run.

use crate::{
    connection::{Connection, Transport},
    launch::connect_or_launch,
    peer::Peer,
    poller::Poller,
};
use std::{
    env, fmt, fs, io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Where a server listens: on this machine, or, with the feature `network`, on others. `user` is
/// this user's own server, which is started when it is needed; `machine` is the machine's. Of
/// several URLs of one fleet, separated by commas, the next one is tried when one fails.
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
    /// One at least.
    places: Vec<Target>,
    token: Option<Token>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Local {
        socket: PathBuf,
        whose: Whose,
    },
    #[cfg(feature = "network")]
    Network(Address),
}

/// The owner of a server on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// This user's. It is started if none is there.
    Own,
    /// The machine's, for several users.
    Machine,
    /// An explicit path, whose server is started elsewhere.
    Given,
}

/// Where a server is on the network: a URL with `ws:` or `wss:`.
///
/// ```
/// # use lockkeeper_client::Address;
/// let address = Address::parse("wss://[::1]:7420").expect("it is one");
/// assert!(address.tls && address.is_loopback());
/// assert!(!Address::parse("ws://localhost.example.com").expect("it is one").is_loopback());
/// assert_eq!(Address::parse("http://localhost"), None);
/// ```
#[cfg(feature = "network")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Whether it uses TLS.
    pub tls: bool,
    /// A name or an address, the latter without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path, from its slash on.
    pub path: String,
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
        Self::local(lockkeeper_paths::socket(&lockkeeper_paths::own()), Whose::Own)
    }
}

impl Endpoint {
    /// The endpoint that `LOCKKEEPER_URL` names, or this user's own; with the token that is in the
    /// file that `LOCKKEEPER_TOKEN_FILE` names.
    ///
    /// # Errors
    ///
    /// If `LOCKKEEPER_URL` is set, but to no URL that is known.
    pub fn from_env() -> Result<Self, String> {
        let mut endpoint = match text_from_env("LOCKKEEPER_URL")? {
            Some(url) => url.parse().map_err(|error| format!("LOCKKEEPER_URL: {error}"))?,
            None => Self::default(),
        };
        let file = env::var_os("LOCKKEEPER_TOKEN_FILE").filter(|path| !path.is_empty());
        endpoint.token = file.map(|path| Token::File(path.into()));
        Ok(endpoint)
    }

    /// The same, with credentials for a server on the network.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Token::Text(without_blanks(&token.into())));
        self
    }

    /// The same, with a file that has the credentials. It is read for each connection: they expire.
    #[must_use]
    pub fn with_token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.token = Some(Token::File(path.into()));
        self
    }

    /// The socket of the machine's server, which serves several users.
    pub fn machine() -> Self {
        Self::local(lockkeeper_paths::MACHINE_SOCKET.into(), Whose::Machine)
    }

    fn local(socket: PathBuf, whose: Whose) -> Self {
        Self { places: vec![Target::Local { socket, whose }], token: None }
    }

    /// Whether it is this user's own server, which is started when it is needed.
    pub fn is_own(&self) -> bool {
        matches!(self.places[..], [Target::Local { whose: Whose::Own, .. }])
    }

    /// Whether it is the machine's server.
    pub fn is_machine(&self) -> bool {
        matches!(self.places[..], [Target::Local { whose: Whose::Machine, .. }])
    }

    /// The socket, if it is on this machine and nowhere else.
    pub fn socket(&self) -> Option<&Path> {
        match &self.places[..] {
            [Target::Local { socket, .. }] => Some(socket),
            _ => None,
        }
    }

    /// The process that listens at the socket, if there is one and that is known. Does not wait for
    /// it: it may be stopped.
    pub fn server_pid(&self) -> Option<u32> {
        self.server().ok()?.pid
    }

    /// Whether a process listens at the socket, known or not: in another PID namespace, it has no
    /// number here.
    ///
    /// # Errors
    ///
    /// If this process may not look.
    pub fn is_served(&self) -> io::Result<bool> {
        match self.server() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
            Err(_) => Ok(false),
        }
    }

    fn server(&self) -> io::Result<Peer> {
        let socket = self.socket().ok_or(io::ErrorKind::NotFound)?;
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let stream = {
            use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            connect(&stream, &SocketAddrUnix::new(socket)?)?;
            stream
        };
        // Elsewhere a queue that is full refuses at once.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let stream = UnixStream::connect(socket)?;
        Peer::of(&stream)
    }

    /// The current credentials for the address of that number. They are not used on this machine.
    pub(crate) fn token(&self, number: usize) -> io::Result<Option<String>> {
        let token = self.token.as_ref().filter(|_| !matches!(self.places[number], Target::Local { .. }));
        #[cfg(feature = "network")]
        if token.is_some()
            && let Some(address) = self.places.iter().find_map(Target::in_clear)
            && env::var_os("LOCKKEEPER_INSECURE").is_none_or(|value| value != "1" && value != "true")
        {
            let why = format!(
                "the token would be sent unencrypted to {}: use wss://, or set LOCKKEEPER_INSECURE=1 to allow that",
                address.host
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        match token {
            None => Ok(None),
            Some(Token::Text(token)) => Ok(Some(token.clone())),
            Some(Token::File(path)) => match fs::read_to_string(path) {
                Ok(token) => Ok(Some(without_blanks(&token))),
                Err(error) => {
                    let why = format!("LOCKKEEPER_TOKEN_FILE: {}: {error}", path.display());
                    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
                }
            },
        }
    }

    /// How many addresses it has.
    pub(crate) fn addresses(&self) -> usize {
        self.places.len()
    }

    /// Connects, with the address of that number first and the others after it, but the one that
    /// is `silent` last. Returns which one it was. Each step takes no longer than `step`; blocks
    /// the thread.
    ///
    /// At this user's own endpoint, starts `program` as the server if none is there. The server of
    /// an explicit address is started elsewhere.
    pub(crate) fn connect(
        &self,
        first: usize,
        silent: Option<usize>,
        program: Option<&Path>,
        step: Duration,
        poller: &Arc<Poller>,
    ) -> io::Result<(usize, Connection)> {
        let mut failed = None;
        for number in order(self.places.len(), first, silent) {
            match self.places[number].connect(program, step) {
                Ok(transport) => return Ok((number, Connection::new(transport, poller)?)),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }
}

/// The numbers below `count`, from `first` on, but `last` at the end.
fn order(count: usize, first: usize, last: Option<usize>) -> impl Iterator<Item = usize> {
    let all = move || (0..count).map(move |offset| (first + offset) % count);
    all().filter(move |&number| Some(number) != last).chain(all().filter(move |&number| Some(number) == last))
}

impl Target {
    #[cfg_attr(not(feature = "network"), expect(unused_variables, reason = "a Unix socket answers at once"))]
    fn connect(&self, program: Option<&Path>, step: Duration) -> io::Result<Transport> {
        match self {
            Self::Local { socket, whose } => connect(socket, *whose, program).map(Transport::Local),
            #[cfg(feature = "network")]
            Self::Network(address) => {
                crate::websocket::WebSocket::connect(address, step).map(Transport::Network)
            }
        }
    }

    /// The address, if what is sent there can be read on its way.
    #[cfg(feature = "network")]
    fn in_clear(&self) -> Option<&Address> {
        match self {
            Self::Network(address) if !address.tls && !address.is_loopback() => Some(address),
            _ => None,
        }
    }
}

/// A token has no blanks: those that it came with are of the file, as is the line's end.
fn without_blanks(token: &str) -> String {
    token.split_ascii_whitespace().collect()
}

/// The bucket that `LOCKKEEPER_BUCKET` names, or `default`.
///
/// # Errors
///
/// If what the variable has is not UTF-8.
pub fn bucket_from_env() -> Result<String, String> {
    Ok(text_from_env("LOCKKEEPER_BUCKET")?.unwrap_or_else(|| "default".into()))
}

/// The value of a variable, unless it is empty. An invalid value is an error, and never counts as
/// unset.
fn text_from_env(variable: &str) -> Result<Option<String>, String> {
    let value = env::var_os(variable).filter(|value| !value.is_empty());
    value.map(|value| value.into_string().map_err(|_| format!("{variable} is not UTF-8"))).transpose()
}

/// Connects, only to this user's server or root's. The machine's server may be another user's: only
/// root can put a socket where it listens.
fn connect(socket: &Path, whose: Whose, program: Option<&Path>) -> io::Result<UnixStream> {
    let stream = match whose {
        Whose::Own => connect_or_launch(socket, program)?,
        Whose::Machine => return UnixStream::connect(socket),
        Whose::Given if socket.as_os_str().len() > lockkeeper_paths::SOCKET_LIMIT => {
            let why = format!("the path of a socket has at most {} bytes", lockkeeper_paths::SOCKET_LIMIT);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Whose::Given => UnixStream::connect(socket)?,
    };
    let server = Peer::of(&stream)?.user;
    if server != rustix::process::geteuid().as_raw() && server != 0 {
        let why = format!("it is served by another user ({server})");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(stream)
}

impl std::str::FromStr for Endpoint {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let known = "a URL is user, machine, unix:/path/to/daemon.sock, ws://host:port or wss://host:port";
        let place = |url: &str| match url.split_once(':') {
            Some(("unix", path)) if path.starts_with('/') => {
                Ok(Target::Local { socket: path.into(), whose: Whose::Given })
            }
            Some(("unix", _)) => Err(format!("{url:?} has no absolute path: {known}")),
            #[cfg(feature = "network")]
            Some(("ws" | "wss", _)) => {
                let address = Address::parse(url)
                    .ok_or_else(|| format!("{url:?} has no host and port that could be: {known}"));
                address.map(Target::Network)
            }
            None if url == "user" || url == "machine" => {
                Err(format!("{url:?} names one daemon, and cannot be in a list with other URLs"))
            }
            _ => Err(format!("{url:?} is not known: {known}")),
        };
        match url {
            "user" => Ok(Self::default()),
            "machine" => Ok(Self::machine()),
            _ => Ok(Self { places: url.split(',').map(place).collect::<Result<_, _>>()?, token: None }),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, place) in self.places.iter().enumerate() {
            f.write_str(if number > 0 { "," } else { "" })?;
            match place {
                Target::Local { socket, .. } => write!(f, "unix:{}", socket.display())?,
                #[cfg(feature = "network")]
                Target::Network(address) => {
                    let scheme = if address.tls { "wss" } else { "ws" };
                    write!(f, "{scheme}://{}{}", address.authority(), address.path)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(feature = "network")]
impl Address {
    /// The address that a URL names, if it is one.
    pub fn parse(url: &str) -> Option<Self> {
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

    /// Whether it is this machine itself.
    pub fn is_loopback(&self) -> bool {
        let address = self.host.parse().map(|address: std::net::IpAddr| address.is_loopback());
        address.unwrap_or(self.host == "localhost")
    }

    /// The host and port, as URLs and HTTP have them.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

#[cfg(all(test, feature = "network"))]
mod tests {
    use super::Endpoint;

    /// Not a test: a process whose environment has LOCKKEEPER_INSECURE or not.
    #[cfg(feature = "network")]
    #[test]
    #[ignore = "started by another test"]
    fn has_a_token_in_clear() {
        let endpoint: Endpoint = "ws://locks.example.com".parse().expect("a URL");
        endpoint.with_token("t").token(0).expect("LOCKKEEPER_INSECURE is set");
    }

    #[cfg(feature = "network")]
    #[test]
    fn a_token_is_sent_in_clear_only_if_that_is_meant() {
        let (name, value) = ("endpoint::tests::has_a_token_in_clear", "LOCKKEEPER_INSECURE");
        let sent = |insecure: Option<&str>| {
            let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
            command
                .args(["--exact", name, "--include-ignored"])
                .env_remove(value)
                .envs(insecure.map(|set| (value, set)));
            let output = command.output().expect("a process");
            assert!(String::from_utf8_lossy(&output.stdout).contains("running 1 test"));
            output.status.success()
        };
        let sent = [None, Some(""), Some("0"), Some("1"), Some("true")].map(sent);
        assert_eq!(sent, [false, false, false, true, true]);
    }

    #[test]
    fn daemons_on_the_network_have_urls() {
        for (url, shown) in [
            ("ws://localhost:7420", "ws://localhost:7420/"),
            ("wss://locks.example.com", "wss://locks.example.com:443/"),
            ("ws://127.0.0.1/a/b?c", "ws://127.0.0.1:80/a/b?c"),
            ("wss://[::1]:7420/", "wss://[::1]:7420/"),
            ("ws://a:1,wss://b", "ws://a:1/,wss://b:443/"),
            ("unix:/a,ws://b:1", "unix:/a,ws://b:1/"),
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
            "ws://a,unix:b",
            "ws://a,user",
        ] {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_token_goes_without_tls_to_this_machine_only() {
        for (url, sent) in [
            ("ws://127.0.0.1:7420", true),
            ("ws://[::1]:7420", true),
            ("ws://localhost:7420", true),
            ("wss://example.com", true),
            ("ws://example.com", false),
            ("wss://example.com,ws://10.0.0.1:7420", false),
        ] {
            let endpoint = url.parse::<Endpoint>().unwrap().with_token("secret");
            assert_eq!(endpoint.token(0).is_ok(), sent, "{url}");
        }
    }

    #[test]
    fn a_silent_address_is_tried_last() {
        let of = |first, last| super::order(3, first, last).collect::<Vec<_>>();
        assert_eq!(of(4, None), [1, 2, 0]);
        assert_eq!(of(2, Some(2)), [0, 1, 2]);
        assert_eq!(of(1, Some(2)), [1, 0, 2]);
        assert_eq!(super::order(1, 5, Some(0)).collect::<Vec<_>>(), [0]);
    }
}
