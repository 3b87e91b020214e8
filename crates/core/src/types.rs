//! The types that every layer shares: inputs of the manager, its outputs, and its refusals.

use crate::{deadlock::Deadlock, name::Name, slab::NIL};
use alloc::vec::Vec;
use core::{fmt, num::NonZeroU64};

/// The mode of a request for a name (§2.3).
///
/// ```
/// # use lockkeeper_core::Mode;
/// assert_eq!(Mode::default(), Mode::Exclusive);
/// assert_eq!(Mode::Exclusive.to_string(), "exclusive");
/// assert_eq!(Mode::Shared.to_string(), "shared");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// No other request holds the name at the same time. The default.
    #[default]
    Exclusive,
    /// Others may hold the name at the same time, shared too.
    Shared,
}

impl Mode {
    /// Whether two requests for one name cannot both be held.
    ///
    /// ```
    /// # use lockkeeper_core::Mode;
    /// assert!(!Mode::Shared.conflicts(Mode::Shared));
    /// assert!(Mode::Shared.conflicts(Mode::Exclusive));
    /// assert!(Mode::Exclusive.conflicts(Mode::Exclusive));
    /// ```
    #[inline]
    pub fn conflicts(self, other: Mode) -> bool {
        self == Mode::Exclusive || other == Mode::Exclusive
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
        })
    }
}

/// Names one request for ever: ids are never used again, so a late release touches nothing.
///
/// Ids of one manager order by arrival.
///
/// ```
/// # use lockkeeper_core::{Manager, Mode, Options};
/// # let (mut manager, mut effects, scope) = (Manager::default(), Vec::new(), [("a", Mode::Exclusive)]);
/// # let tab = manager.client()?;
/// manager.request(tab, &scope, Options::default(), (), &mut effects)?;
/// let first = manager.query().held[0].request;
/// manager.release(first, &mut effects);
/// manager.request(tab, &scope, Options::default(), (), &mut effects)?;
/// assert!(manager.query().held[0].request > first);
/// assert_eq!(manager.release(first, &mut effects), None, "the second request is untouched");
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    pub(crate) arrival: u64,
    pub(crate) slot: u32,
}

impl RequestId {
    /// The place of the request in the manager's one total order of arrivals: a growing number.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
    /// # let tab = manager.client()?;
    /// for name in ["a", "b"] {
    ///     manager.request(tab, &[(name, Mode::Exclusive)], Options::default(), (), &mut effects)?;
    /// }
    /// let held = manager.query().held;
    /// assert!(held[0].request.arrival() < held[1].request.arrival());
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn arrival(self) -> u64 {
        self.arrival
    }

    /// The id of a request that a manager elsewhere has, for a report of that one. No manager here
    /// knows it.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, RequestId};
    /// let elsewhere = RequestId::reported(7);
    /// assert_eq!(elsewhere.arrival(), 7);
    /// assert!(Manager::<()>::default().get(elsewhere).is_none());
    /// ```
    pub fn reported(arrival: u64) -> Self {
        Self { arrival, slot: NIL }
    }
}

/// Identifies one agent of a manager, and is never reused (§2.4's *agent*, and its `clientId`).
///
/// ```
/// # use lockkeeper_core::Manager;
/// let mut manager: Manager = Manager::default();
/// let (tab, worker) = (manager.client()?, manager.client()?);
/// assert_ne!(tab, worker);
/// assert_eq!(tab.to_string(), "client-0");
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    pub(crate) serial: u64,
    pub(crate) slot: u32,
}

impl ClientId {
    /// The id of a client of a manager elsewhere, for a report of that one: 64 bits, shown as 16
    /// hexadecimal digits. No manager here knows it.
    ///
    /// ```
    /// # use lockkeeper_core::ClientId;
    /// assert_eq!(ClientId::reported(0xc0ffee).to_string(), "0000000000c0ffee");
    /// ```
    pub fn reported(bits: u64) -> Self {
        Self { serial: bits, slot: NIL }
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slot {
            NIL => write!(f, "{:016x}", self.serial),
            _ => write!(f, "client-{}", self.serial),
        }
    }
}

/// A fencing token: greater than that of every earlier grant of the same manager, steals included.
///
/// Tokens of two managers are not comparable. Storage that refuses a token smaller than the largest
/// it has seen is safe from holders that do not know yet that their lock was stolen.
///
/// ```
/// # use lockkeeper_core::{Manager, Mode, Options, Outcome};
/// # let (mut manager, mut effects, scope) = (Manager::default(), Vec::new(), [("a", Mode::Exclusive)]);
/// # let tab = manager.client()?;
/// manager.request(tab, &scope, Options::default(), (), &mut effects)?;
/// let stolen = manager.requests().next().unwrap().token().unwrap();
/// let steal = Options { steal: true, ..Options::default() };
/// let outcome = manager.request(tab, &scope, steal, (), &mut effects)?;
/// assert!(matches!(outcome, Outcome::Granted { token, .. } if token > stolen));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub(crate) NonZeroU64);

impl Token {
    /// The token that a manager elsewhere gave out as this number. There is no token 0.
    ///
    /// ```
    /// # use lockkeeper_core::Token;
    /// assert_eq!(Token::new(42).map(Token::get), Some(42));
    /// assert!(Token::new(0).is_none());
    /// ```
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// The token as a number. Beyond 2⁵³: in JSON it travels as a string.
    ///
    /// ```
    /// # use lockkeeper_core::{Config, Manager, Mode, Options};
    /// let mut manager = Manager::new(Config { last_token: 1 << 53, ..Config::default() });
    /// # let tab = manager.client()?;
    /// manager.request(tab, &[("a", Mode::Exclusive)], Options::default(), (), &mut Vec::new())?;
    /// let token = manager.requests().next().unwrap().token().unwrap();
    /// assert_eq!(token.get(), (1 << 53) + 1);
    /// assert_eq!(token.to_string(), "9007199254740993");
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The options of a request besides its names and modes.
///
/// ```
/// # use lockkeeper_core::{Manager, Mode, Options, Outcome};
/// # let (mut manager, mut effects, scope) = (Manager::default(), Vec::new(), [("a", Mode::Exclusive)]);
/// # let tab = manager.client()?;
/// manager.request(tab, &scope, Options::default(), (), &mut effects)?;
/// let if_available = Options { if_available: true, ..Options::default() };
/// let outcome = manager.request(tab, &scope, if_available, (), &mut effects)?;
/// assert_eq!(outcome, Outcome::Unavailable);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Answer [`Outcome::Unavailable`] rather than wait.
    pub if_available: bool,
    /// Break the held requests that conflict, and go first.
    pub steal: bool,
    /// The live request within which this one is made, for deadlock reports. One that has ended
    /// means none.
    pub nested_in: Option<RequestId>,
    /// Answer [`RequestError::Deadlock`] rather than wait in a cycle.
    pub refuse_deadlock: bool,
}

/// The outcome of a new request.
///
/// ```
/// # use lockkeeper_core::{Manager, Mode, Options, Outcome};
/// # let (mut manager, mut effects, scope) = (Manager::default(), Vec::new(), [("a", Mode::Exclusive)]);
/// # let tab = manager.client()?;
/// let outcome = manager.request(tab, &scope, Options::default(), (), &mut effects)?;
/// assert!(matches!(outcome, Outcome::Granted { .. }));
/// let outcome = manager.request(tab, &scope, Options::default(), (), &mut effects)?;
/// assert!(matches!(outcome, Outcome::Queued { .. }));
/// let if_available = Options { if_available: true, ..Options::default() };
/// let outcome = manager.request(tab, &scope, if_available, (), &mut effects)?;
/// assert_eq!(outcome, Outcome::Unavailable);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request is held.
    Granted {
        /// The request.
        request: RequestId,
        /// Its fencing token.
        token: Token,
    },
    /// The request waits.
    Queued {
        /// The request.
        request: RequestId,
    },
    /// The request asked not to wait, and was refused; nothing has changed.
    Unavailable,
}

/// The effect of a command on an earlier request. `T` is the host's own data, returned with the end
/// of its request.
///
/// ```
/// # use lockkeeper_core::{Cause, Effect, Manager, Mode, Options};
/// # let (mut manager, mut effects, scope) = (Manager::default(), Vec::new(), [("a", Mode::Exclusive)]);
/// # let tab = manager.client()?;
/// manager.request(tab, &scope, Options::default(), "victim", &mut effects)?;
/// let steal = Options { steal: true, ..Options::default() };
/// manager.request(tab, &scope, steal, "thief", &mut effects)?;
/// assert!(matches!(effects[..], [Effect::Broken { cause: Cause::Stolen, data: "victim", .. }]));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<T = ()> {
    /// A waiting request is held now.
    Granted {
        /// The request.
        request: RequestId,
        /// Its fencing token.
        token: Token,
    },
    /// A waiting request was aborted.
    Aborted {
        /// The request, dead now.
        request: RequestId,
        /// The host's data.
        data: T,
    },
    /// A held request ended without its holder's doing.
    Broken {
        /// The request, dead now.
        request: RequestId,
        /// Why it was broken.
        cause: Cause,
        /// The names it held, each with its mode, because the request can no longer be queried.
        scope: Vec<(Name, Mode)>,
        /// The host's data.
        data: T,
    },
}

/// Why a held request was broken.
///
/// ```
/// # use lockkeeper_core::{Cause, Effect, Manager, Mode, Options};
/// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
/// # let tab = manager.client()?;
/// manager.request(tab, &[("a", Mode::Exclusive)], Options::default(), (), &mut effects)?;
/// manager.client_gone(tab, &mut effects);
/// assert!(matches!(effects[..], [Effect::Broken { cause: Cause::Lost, .. }]));
/// assert_eq!(Cause::Stolen.to_string(), "the lock was stolen");
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Another request stole a name of it, or a name of it was force-released.
    Stolen,
    /// Its client has ended.
    Lost,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Stolen => "the lock was stolen",
            Cause::Lost => "the lock was lost: its client is gone",
        })
    }
}

/// Why a request was refused. A refused request has changed nothing.
///
/// ```
/// # use lockkeeper_core::{Manager, Mode, Options, RequestError};
/// # let (mut manager, mut effects) = (Manager::default(), Vec::new());
/// # let tab = manager.client()?;
/// let refused = manager.request(tab, &[("-a", Mode::Exclusive)], Options::default(), (), &mut effects);
/// assert_eq!(refused, Err(RequestError::ReservedName));
/// manager.client_gone(tab, &mut effects);
/// let refused = manager.request(tab, &[("a", Mode::Exclusive)], Options::default(), (), &mut effects);
/// assert_eq!(refused, Err(RequestError::UnknownClient));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestError {
    /// A scope has one name or more.
    EmptyScope,
    /// A name starts with U+002D HYPHEN-MINUS (§3.2.1 step 5: "NotSupportedError").
    ReservedName,
    /// `steal` goes with neither `if_available` (step 6) nor a shared name (step 7:
    /// "NotSupportedError").
    Unsupported(&'static str),
    /// The client has ended, or is another manager's.
    UnknownClient,
    /// A limit of the manager's [`Limits`] stands against it.
    Limit(Limit),
    /// The request would have closed this cycle, and asked to be refused then.
    Deadlock(Deadlock),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyScope => f.write_str("a scope needs at least one name"),
            Self::ReservedName => f.write_str("names that start with '-' are reserved"),
            Self::Unsupported(why) => f.write_str(why),
            Self::UnknownClient => f.write_str("the client has ended"),
            Self::Limit(limit) => limit.fmt(f),
            Self::Deadlock(deadlock) => deadlock.fmt(f),
        }
    }
}

impl core::error::Error for RequestError {}

impl From<Limit> for RequestError {
    fn from(limit: Limit) -> Self {
        Self::Limit(limit)
    }
}

/// The limits of one manager. Each is the largest number allowed. Names count as they are given: a
/// name that is twice in a scope counts twice.
///
/// ```
/// # use lockkeeper_core::{Config, Limit, Limits, Manager, Mode, Options};
/// let limits = Limits { name_bytes: 8, ..Limits::default() };
/// let mut manager: Manager = Manager::new(Config { limits, ..Config::default() });
/// let tab = manager.client()?;
/// let scope = [("123456789", Mode::Exclusive)];
/// let refused = manager.request(tab, &scope, Options::default(), (), &mut Vec::new());
/// assert_eq!(refused, Err(Limit::NameBytes(8).into()));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a name.
    pub name_bytes: usize,
    /// Names of a scope.
    pub names_per_scope: u16,
    /// Live requests, held or waiting, of one client.
    pub requests_per_client: u32,
    /// All live requests, held or waiting; and all names in their scopes.
    pub requests: u32,
    /// Live clients.
    pub clients: u32,
}

impl Default for Limits {
    /// Generous: what one process may ask of itself. A server sets its own.
    fn default() -> Self {
        Self {
            name_bytes: 65_536,
            names_per_scope: 1_024,
            requests_per_client: 16_000_000,
            requests: 64_000_000,
            clients: 16_000_000,
        }
    }
}

/// The limit that refused a request or a client, with its value.
///
/// ```
/// # use lockkeeper_core::{Config, Limit, Limits, Manager};
/// let limits = Limits { clients: 2, ..Limits::default() };
/// let mut manager: Manager = Manager::new(Config { limits, ..Config::default() });
/// assert!(manager.client().is_ok() && manager.client().is_ok());
/// assert_eq!(manager.client(), Err(Limit::Clients(2)));
/// assert_eq!(Limit::Clients(2).to_string(), "limit reached: 2 live clients");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// [`Limits::name_bytes`].
    NameBytes(usize),
    /// [`Limits::names_per_scope`].
    NamesPerScope(u16),
    /// [`Limits::requests_per_client`].
    RequestsPerClient(u32),
    /// [`Limits::requests`].
    Requests(u32),
    /// [`Limits::clients`].
    Clients(u32),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameBytes(max) => write!(f, "limit reached: a name has at most {max} bytes"),
            Self::NamesPerScope(max) => write!(f, "limit reached: a scope has at most {max} names"),
            Self::RequestsPerClient(max) => write!(f, "limit reached: {max} live requests per client"),
            Self::Requests(max) => write!(f, "limit reached: {max} live requests in all"),
            Self::Clients(max) => write!(f, "limit reached: {max} live clients"),
        }
    }
}

impl core::error::Error for Limit {}
