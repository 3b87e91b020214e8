//! The address of etcd, and the credentials for it.

use crate::Error;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// The address and credentials of etcd.
///
/// ```
/// # use lockkeeper_etcd::Settings;
/// let settings: Settings = "etcd://a:2379,b/locks".parse().unwrap();
/// assert_eq!(settings.members, ["a:2379", "b:2379"]);
/// assert_eq!(settings.prefix, "locks/");
/// assert!("http://a".parse::<Settings>().is_err());
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// The members: host and port.
    pub members: Vec<String>,
    /// The prefix of all keys.
    pub prefix: String,
    /// How TLS is spoken; without if there is none.
    pub tls: Option<Tls>,
    /// A user of etcd's own, and the file with the password.
    pub user: Option<(String, PathBuf)>,
    /// How long one call may take.
    pub deadline: Duration,
}

/// How TLS is spoken.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// A PEM file of authorities that are trusted; those of the system if there is none.
    pub ca: Option<PathBuf>,
    /// PEM files of a certificate for this client, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The default prefix of keys.
const PREFIX: &str = "lockkeeper/";

const DEADLINE: Duration = Duration::from_secs(1);

impl std::str::FromStr for Settings {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let wrong = || format!("{url:?} is not etcd://host:port,host:port/prefix, or etcds:// for TLS");
        let (tls, rest) = match url.strip_prefix("etcds://") {
            Some(rest) => (Some(Tls::default()), rest),
            None => (None, url.strip_prefix("etcd://").ok_or_else(wrong)?),
        };
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let member = |member: &str| match member {
            "" => Err(wrong()),
            // The colons of an IPv6 address are in brackets.
            _ if member.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) => {
                Ok(member.to_owned())
            }
            _ => Ok(format!("{member}:2379")),
        };
        let members = members.split(',').map(member).collect::<Result<_, _>>()?;
        let prefix = match prefix.trim_matches('/') {
            "" => PREFIX.to_owned(),
            prefix => format!("{prefix}/"),
        };
        Ok(Self { members, prefix, tls, user: None, deadline: DEADLINE })
    }
}

impl Settings {
    pub(crate) fn endpoint(&self, member: &str) -> Result<Endpoint, Error> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let wrong = |error: tonic::transport::Error| {
            Error::Settings(format!("{member}: {}", crate::error::chain(&error)))
        };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{member}")).map_err(wrong)?;
        let Some(tls) = &self.tls else { return Ok(endpoint) };
        let mut config = match &tls.ca {
            Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(path)?)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        if let Some((certificate, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        endpoint.tls_config(config).map_err(wrong)
    }

    pub(crate) fn credentials(&self) -> Result<Option<(String, String)>, Error> {
        let Some((name, path)) = &self.user else { return Ok(None) };
        Ok(Some((name.clone(), read(path)?.trim_end().to_owned())))
    }
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|error| Error::Settings(format!("{}: {error}", path.display())))
}
