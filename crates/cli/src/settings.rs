//! The settings of a daemon: from flags, the environment, and a file. Each setting has one name in
//! all three.

use clap::{Args, ValueEnum};
use lockkeeper_server::{Allow, GoingAway, Listen, Store, etcd};
use serde::{Deserialize, Serialize};
use std::{
    fmt, fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

#[derive(Args, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Settings {
    /// The socket to listen on [default: in this user's own folder]
    #[arg(long, value_name = "PATH", env = "LOCKKEEPER_SOCKET", hide_env = true)]
    pub(crate) socket: Option<PathBuf>,
    /// The directory of the daemon's log [default: in this user's own folder]
    #[arg(long, value_name = "DIR", env = "LOCKKEEPER_STATE_DIR", hide_env = true)]
    pub(crate) state_dir: Option<PathBuf>,
    /// Listen for WebSockets too, with a dashboard, /healthz and /metrics (localhost:7420; :7420
    /// for all addresses of the machine)
    #[arg(long, value_name = "ADDRESS", env = "LOCKKEEPER_LISTEN", hide_env = true)]
    pub(crate) listen: Option<Address>,
    /// A separate port for /healthz and /metrics, which names buckets there (127.0.0.1:7421)
    #[arg(long, value_name = "ADDRESS", env = "LOCKKEEPER_METRICS", hide_env = true)]
    pub(crate) metrics: Option<Address>,
    /// Use TLS there, with this certificate (PEM); SIGHUP reloads it
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_TLS_CERT", hide_env = true)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key of the certificate (PEM)
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_TLS_KEY", hide_env = true)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Require tokens signed with one of these keys (a JSON Web Key Set); SIGHUP reloads them
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_KEYS", hide_env = true)]
    pub(crate) keys: Option<PathBuf>,
    /// Require tokens for this audience (their `aud`)
    #[arg(long, value_name = "NAME", env = "LOCKKEEPER_AUDIENCE", hide_env = true)]
    pub(crate) audience: Option<String>,
    /// Accept every client that reaches the port, from other machines too; with --keys: accept
    /// tokens without TLS
    #[arg(long, env = "LOCKKEEPER_INSECURE", hide_env = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) insecure: bool,
    /// Without --keys: clients of the port share the buckets of this machine's processes, instead
    /// of those named network:…
    #[arg(long, env = "LOCKKEEPER_SHARE_BUCKETS", hide_env = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) share_buckets: bool,
    /// Accept pages of this origin (https://example.com; * for all); other pages are refused
    #[arg(
        long,
        value_name = "ORIGIN",
        env = "LOCKKEEPER_ALLOW_ORIGIN",
        hide_env = true,
        value_delimiter = ','
    )]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_origin: Vec<String>,
    /// The bucket of a page is its origin; a bucket that the page names is a partition below it
    #[arg(long, env = "LOCKKEEPER_BUCKET_PER_ORIGIN", hide_env = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) bucket_per_origin: bool,
    /// Whether a browser's WebSocket status 1001 ends its session: `ends`, `ignored`, or `auto`:
    /// unless a proxy may have sent it (neither TLS nor loopback, or a Forwarded header) [default:
    /// auto]
    #[arg(long, value_name = "WHAT", env = "LOCKKEEPER_GOING_AWAY", hide_env = true, value_parser = going_away)]
    pub(crate) going_away: Option<GoingAway>,
    /// Serve examples of locks in a browser, at /examples/
    #[arg(long, env = "LOCKKEEPER_EXAMPLES", hide_env = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) examples: bool,
    /// Write every change to disk before answering, so that a power cut loses nothing
    #[arg(long, num_args = 0, default_missing_value = "true", env = "LOCKKEEPER_SYNC", hide_env = true)]
    pub(crate) sync: Option<bool>,
    /// Share the log of this etcd with other daemons: a fleet (etcd://a:2379,b:2379,c:2379/prefix;
    /// etcds:// for TLS)
    #[arg(long, value_name = "URL", env = "LOCKKEEPER_STORE", hide_env = true)]
    pub(crate) store: Option<String>,
    /// Where the fleet's other daemons reach this one (wss://host:7420)
    #[arg(long, value_name = "URL", env = "LOCKKEEPER_ADVERTISE", hide_env = true)]
    pub(crate) advertise: Option<String>,
    /// Trust etcd's certificate by these authorities (PEM) [default: the system's]
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_STORE_CA", hide_env = true)]
    pub(crate) store_ca: Option<PathBuf>,
    /// The certificate of this client of etcd (PEM)
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_STORE_CERT", hide_env = true)]
    pub(crate) store_cert: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_STORE_KEY", hide_env = true)]
    pub(crate) store_key: Option<PathBuf>,
    /// A user of etcd
    #[arg(long, value_name = "NAME", env = "LOCKKEEPER_STORE_USER", hide_env = true)]
    pub(crate) store_user: Option<String>,
    /// The file with that user's password
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_STORE_PASSWORD_FILE", hide_env = true)]
    pub(crate) store_password_file: Option<PathBuf>,
    /// Only this fleet uses that etcd: compact its history
    #[arg(long, env = "LOCKKEEPER_STORE_OWN", hide_env = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) store_own: bool,
    /// Use a store that was restored from a backup: earlier sessions end, after their leases have
    /// expired
    #[arg(long, env = "LOCKKEEPER_ACCEPT_RESTORED_STORE", hide_env = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) accept_restored_store: bool,
    /// How long the leader must be silent before another daemon takes over; a lease has at least
    /// four times that [default: 2s]
    #[arg(long, value_name = "DURATION", env = "LOCKKEEPER_TAKEOVER", hide_env = true)]
    pub(crate) takeover: Option<Span>,
    /// The lease of a client on the network: its locks are released after so long a silence
    /// [default: 10s]
    #[arg(long, value_name = "DURATION", env = "LOCKKEEPER_TTL", hide_env = true)]
    pub(crate) ttl: Option<Span>,
    /// Exit after so long without a client [default: never; 5m if it was started on demand]
    #[arg(long, value_name = "DURATION", env = "LOCKKEEPER_IDLE", hide_env = true)]
    pub(crate) idle: Option<Span>,
    /// Maximum number of requests of a client, held or waiting [default: 1000000]
    #[arg(long, value_name = "COUNT", env = "LOCKKEEPER_MAX_REQUESTS_PER_CLIENT", hide_env = true)]
    pub(crate) max_requests_per_client: Option<u32>,
    /// Maximum number of requests of a bucket, and of names in them [default: 4000000]
    #[arg(long, value_name = "COUNT", env = "LOCKKEEPER_MAX_REQUESTS", hide_env = true)]
    pub(crate) max_requests: Option<u32>,
    /// Maximum number of clients of all buckets together [default: 1000000]
    #[arg(long, value_name = "COUNT", env = "LOCKKEEPER_MAX_CLIENTS", hide_env = true)]
    pub(crate) max_clients: Option<u32>,
    /// Maximum memory for the requests of a client [default: 256MiB; 64MiB in a fleet]
    #[arg(long, value_name = "SIZE", env = "LOCKKEEPER_MAX_BYTES_PER_CLIENT", hide_env = true)]
    pub(crate) max_bytes_per_client: Option<Size>,
    /// Maximum memory for the requests of a bucket [default: 1GiB; 256MiB in a fleet]
    #[arg(long, value_name = "SIZE", env = "LOCKKEEPER_MAX_BYTES_PER_BUCKET", hide_env = true)]
    pub(crate) max_bytes_per_bucket: Option<Size>,
    /// Maximum memory for the requests of all clients [default: 2GiB, 256MiB in a fleet, or half of
    /// the daemon's limit]
    #[arg(long, value_name = "SIZE", env = "LOCKKEEPER_MAX_BYTES", hide_env = true)]
    pub(crate) max_bytes: Option<Size>,
    /// Maximum length of a message before a client's Hello, and of an HTTP head [default: 8KiB]
    #[arg(long, value_name = "SIZE", env = "LOCKKEEPER_MAX_HELLO_BYTES", hide_env = true)]
    pub(crate) max_hello_bytes: Option<Size>,
    /// How long a client may take to send its Hello [default: 10s]
    #[arg(long, value_name = "DURATION", env = "LOCKKEEPER_HELLO_TIMEOUT", hide_env = true)]
    pub(crate) hello_timeout: Option<Span>,
    /// Maximum number of clients before their Hello, at the socket and at the port; half of that for
    /// one user or address [default: 1000, or a quarter of the file descriptors if that is less]
    #[arg(long, value_name = "COUNT", env = "LOCKKEEPER_MAX_HANDSHAKES", hide_env = true)]
    pub(crate) max_handshakes: Option<u32>,
    /// How to write the log [default: text]
    #[arg(long, value_name = "FORMAT", env = "LOCKKEEPER_LOG_FORMAT", hide_env = true)]
    pub(crate) log_format: Option<LogFormat>,
    /// What other users may do. Only a file says so.
    #[arg(skip)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow: Vec<Allow>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

impl Settings {
    /// These, and from the file what they do not say.
    pub(crate) fn or_from(self, file: Option<&Path>) -> Result<Self, String> {
        let Some(path) = file else { return Ok(self) };
        let wrong = |error: &dyn fmt::Display| format!("{}: {error}", path.display());
        let text = fs::read_to_string(path).map_err(|error| wrong(&error))?;
        // First as it is, so that what is wrong is shown where it stands.
        toml::from_str::<Self>(&text).map_err(|error| wrong(&error))?;
        let mut all: toml::Table = toml::from_str(&text).map_err(|error| wrong(&error))?;
        all.extend(toml::Table::try_from(&self).map_err(|error| error.to_string())?);
        all.try_into().map_err(|error| wrong(&error))
    }

    /// How to reach etcd, if the settings name one.
    pub(crate) fn etcd(&self) -> Result<Option<etcd::Settings>, String> {
        let Some(url) = &self.store else {
            let given = self.advertise.is_some()
                || self.takeover.is_some()
                || self.store_own
                || self.accept_restored_store
                || self.store_ca.is_some()
                || self.store_cert.is_some()
                || self.store_key.is_some()
                || self.store_user.is_some()
                || self.store_password_file.is_some();
            return match given {
                true => {
                    Err("--advertise, --takeover, --store-… and --accept-restored-store are for --store"
                        .into())
                }
                false => Ok(None),
            };
        };
        let mut settings: etcd::Settings = url.parse()?;
        let identity = match (&self.store_cert, &self.store_key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            _ => return Err("--store-cert and --store-key go together".into()),
        };
        match &mut settings.tls {
            Some(tls) => (tls.ca, tls.identity) = (self.store_ca.clone(), identity),
            None if self.store_ca.is_some() || identity.is_some() => {
                return Err("--store-ca, --store-cert and --store-key are for etcds://".into());
            }
            None => {}
        }
        settings.user = match (&self.store_user, &self.store_password_file) {
            (Some(user), Some(file)) => Some((user.clone(), file.clone())),
            (None, None) => None,
            _ => return Err("--store-user and --store-password-file go together".into()),
        };
        Ok(Some(settings))
    }

    /// The log that is shared with other daemons, if there is to be one.
    pub(crate) fn shared(&self) -> Result<Option<Store>, String> {
        let Some(etcd) = self.etcd()? else { return Ok(None) };
        let example = "--listen :7420 --advertise wss://this-host:7420";
        let Some(advertise) = self.advertise.clone().filter(|_| self.listen.is_some()) else {
            return Err(format!("with --store, other daemons have to reach this one: {example}"));
        };
        let address = lockkeeper_client::Address::parse(&advertise);
        let address = address
            .ok_or_else(|| format!("--advertise {advertise}: it is ws://HOST:PORT or wss://HOST:PORT"))?;
        if !(address.tls || address.is_loopback() || self.insecure) {
            return Err(format!(
                "--advertise {advertise}: anybody on the network could read what is relayed there: use wss://, or --insecure if \
                 something else protects that network"
            ));
        }
        let takeover = self.takeover.map_or(Duration::from_secs(2), |Span(takeover)| takeover);
        if takeover < Duration::from_millis(200) {
            return Err("--takeover is at least 200ms".into());
        }
        let (own, accept_restored) = (self.store_own, self.accept_restored_store);
        Ok(Some(Store { etcd, advertise, takeover, own, accept_restored }))
    }

    /// The port, if there is to be one, with all that belongs to it.
    pub(crate) fn port(&self) -> Result<Option<Listen>, String> {
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            _ => return Err("--tls-cert and --tls-key go together".into()),
        };
        let Some(Address(address)) = self.listen else {
            return match tls.is_some()
                || self.keys.is_some()
                || self.insecure
                || self.share_buckets
                || !self.allow_origin.is_empty()
                || self.bucket_per_origin
                || self.examples
            {
                true => Err("--tls-cert, --keys, --insecure, --share-buckets, --allow-origin, --bucket-per-origin and \
                             --examples are for --listen"
                    .into()),
                false => Ok(None),
            };
        };
        if self.keys.is_none() && self.audience.is_some() {
            return Err("--audience is for tokens: --keys says whose are good".into());
        }
        let (keys, audience, insecure) = (self.keys.clone(), self.audience.clone(), self.insecure);
        Ok(Some(Listen {
            tls,
            keys,
            audience,
            insecure,
            share_buckets: self.share_buckets,
            origins: self.allow_origin.clone(),
            bucket_per_origin: self.bucket_per_origin,
            going_away: self.going_away.unwrap_or_default(),
            examples: self.examples,
            ..Listen::at(address)
        }))
    }
}

fn going_away(text: &str) -> Result<GoingAway, String> {
    match text {
        "auto" => Ok(GoingAway::Auto),
        "ends" => Ok(GoingAway::Ends),
        "ignored" => Ok(GoingAway::Ignored),
        _ => Err("it is auto, ends or ignored".into()),
    }
}

/// A number of bytes, as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Size(pub(crate) usize);

const UNITS: [(&str, usize); 4] = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("", 0)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a size is a whole number with KiB, MiB or GiB, or of bytes".to_string();
        let unit = UNITS.iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, bits)));
        let (number, bits) = unit.ok_or_else(wrong)?;
        let number: usize = number.trim_end().parse().map_err(|_| wrong())?;
        number.checked_mul(1 << bits).map(Self).ok_or_else(wrong)
    }
}

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Size> for String {
    fn from(Size(bytes): Size) -> Self {
        let fits = |(_, bits): &&(&str, usize)| bytes.is_multiple_of(1 << bits) && bytes > 0;
        let (unit, bits) = UNITS.iter().find(fits).unwrap_or(&("", 0));
        format!("{}{unit}", bytes >> bits)
    }
}

/// Where to listen: an address and a port, a name of this machine and a port, or a port of all its
/// addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Address(pub(crate) SocketAddr);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = "an address is HOST:PORT, or :PORT for all of the machine's";
        if let Some(port) = text.strip_prefix(':') {
            let port: u16 = port.parse().map_err(|_| wrong)?;
            // Of both families, where the machine has both.
            let both = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
            let all: IpAddr = if both { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
            return Ok(Self((all, port).into()));
        }
        let mut found = text.to_socket_addrs().map_err(|error| format!("{error}: {wrong}"))?;
        found.next().map(Self).ok_or_else(|| wrong.into())
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(Address(address): Address) -> Self {
        address.to_string()
    }
}

/// A length of time, as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Span(pub(crate) Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a duration is a number with ms, s, m, h or d, or several of them (1h30m)".to_string();
        let (mut rest, mut total, mut last) = (text, Duration::ZERO, f64::INFINITY);
        loop {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            let (number, after) = rest.split_at(digits);
            let unit = &after[..after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len())];
            let seconds = match unit {
                "ms" => 0.001,
                "s" => 1.0,
                // A number alone is in seconds; one after other units is a slip.
                "" if rest.len() == text.len() => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                "d" => 86_400.0,
                _ => return Err(wrong()),
            };
            let number: f64 = number.parse().map_err(|_| wrong())?;
            let part = Duration::try_from_secs_f64(number * seconds).map_err(|error| error.to_string())?;
            total = total.checked_add(part).filter(|_| seconds < last).ok_or_else(wrong)?;
            (rest, last) = (&after[unit.len()..], seconds);
            if rest.is_empty() {
                return Ok(Self(total));
            }
        }
    }
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Span> for String {
    fn from(Span(duration): Span) -> Self {
        match duration.subsec_millis() {
            0 => format!("{}s", duration.as_secs()),
            _ => format!("{}ms", duration.as_millis()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Address, Span};
    use std::time::Duration;

    #[test]
    fn addresses() {
        let address = |text: &str| text.parse::<Address>().map(|Address(address)| address);
        assert_eq!(address("127.0.0.1:7420"), Ok(([127, 0, 0, 1], 7420).into()));
        assert!(
            address("localhost:7420")
                .is_ok_and(|address| address.ip().is_loopback() && address.port() == 7420)
        );
        assert!(
            address(":7420").is_ok_and(|address| address.ip().is_unspecified() && address.port() == 7420)
        );
        for wrong in ["", "7420", ":", ":http", "localhost", "127.0.0.1:99999"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations() {
        let span = |text: &str| text.parse::<Span>().map(|Span(duration)| duration);
        assert_eq!(span("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(span("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(span("2"), Ok(Duration::from_secs(2)));
        assert_eq!(span("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(span("1d2h3m4s5ms"), Ok(Duration::from_millis(93_784_005)));
        for wrong in [
            "",
            "s",
            "1h30",
            "30m1h",
            "1h1h",
            "h1m",
            "1..5s",
            "ü",
            "5 s",
            "1w",
            "-1s",
            "1e99h",
            "99999999999999999999h",
        ] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
        for text in ["500ms", "90s", "1500ms"] {
            assert_eq!(String::from(text.parse::<Span>().expect("it is one")), text);
        }
    }
}
