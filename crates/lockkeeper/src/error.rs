//! Why a lock was not granted, or is no longer held.

use crate::signal::AbortReason;
use lockkeeper_core::{Cause, Limit, RequestError, Step};
use std::fmt;

/// Why a request failed, or why a lock is no longer held.
///
/// ```
/// # use lockkeeper::{Error, Locks};
/// let locks = Locks::new();
/// assert!(matches!(locks.try_acquire("-internal"), Err(Error::ReservedName)));
/// let nothing: [&str; 0] = [];
/// assert!(matches!(locks.try_acquire(nothing), Err(Error::EmptyScope)));
/// let refused = locks.request("a").shared().steal().acquire_blocking();
/// assert!(matches!(refused, Err(Error::Unsupported(_))));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The scope has no names.
    EmptyScope,
    /// A name starts with `-`: such names are reserved.
    ReservedName,
    /// Options that do not go together: `steal` with `shared`, `if_available` or a signal, for
    /// example.
    Unsupported(&'static str),
    /// The request was aborted by its signal before it was granted.
    Aborted(AbortReason),
    /// The request was not granted in time.
    TimedOut,
    /// The lock was stolen, or force-released.
    Stolen,
    /// The lock, or the request, ended with its client.
    Lost,
    /// The lock was released because a future that it waited for has failed: see
    /// [`AutoLock::wait_until`](crate::AutoLock::wait_until).
    WaitFailed,
    /// The request would have waited for itself, and asked to be refused then.
    Deadlock {
        /// Each waits for the next, the last for the first. Empty if a daemon refused: it has a
        /// message only.
        cycle: Vec<Step>,
        /// The same as text.
        message: String,
    },
    /// A limit of the manager stands against the request.
    Limit(Limit),
    /// No daemon is to be reached, or it went away before it answered. The message says where, and
    /// what to do.
    Unreachable(String),
    /// The daemon refuses, and nothing has changed.
    Refused {
        /// Why, for programs: one of the protocol's codes (`docs/protocol.md`).
        code: u32,
        /// Why, for people.
        message: String,
    },
}

impl Error {
    /// The name of this error in a browser: the `name` of the `DOMException`, or `TypeError`.
    ///
    /// ```
    /// # use lockkeeper::Error;
    /// assert_eq!(Error::Stolen.name(), "AbortError");
    /// assert_eq!(Error::TimedOut.name(), "TimeoutError");
    /// ```
    pub fn name(&self) -> &'static str {
        match self {
            Self::EmptyScope => "TypeError",
            Self::ReservedName | Self::Unsupported(_) => "NotSupportedError",
            Self::Aborted(_) | Self::Stolen | Self::Lost => "AbortError",
            Self::TimedOut => "TimeoutError",
            Self::Deadlock { .. } => "DeadlockError",
            // Code 2 is a limit of the daemon's.
            Self::Limit(_) | Self::Refused { code: 2, .. } => "QuotaExceededError",
            Self::Unreachable(_) => "NetworkError",
            Self::WaitFailed | Self::Refused { .. } => "OperationError",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyScope => RequestError::EmptyScope.fmt(f),
            Self::ReservedName => RequestError::ReservedName.fmt(f),
            Self::Unsupported(why) => f.write_str(why),
            Self::Aborted(reason) => write!(f, "the request was aborted: {reason}"),
            Self::TimedOut => f.write_str("the lock was not granted in time"),
            Self::Stolen => Cause::Stolen.fmt(f),
            Self::Lost => Cause::Lost.fmt(f),
            Self::WaitFailed => f.write_str("the lock was released: a future that it waited for has failed"),
            Self::Unreachable(message) | Self::Deadlock { message, .. } | Self::Refused { message, .. } => {
                f.write_str(message)
            }
            Self::Limit(limit) => limit.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Aborted(reason) => Some(reason.as_error()),
            _ => None,
        }
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::EmptyScope => Self::EmptyScope,
            RequestError::ReservedName => Self::ReservedName,
            RequestError::Unsupported(why) => Self::Unsupported(why),
            RequestError::Limit(limit) => Self::Limit(limit),
            RequestError::Deadlock(deadlock) => {
                Self::Deadlock { message: deadlock.to_string(), cycle: deadlock.cycle }
            }
            // UnknownClient: the handle's client has ended. Nothing else is left.
            _ => Self::Lost,
        }
    }
}

impl From<Cause> for Error {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Stolen => Self::Stolen,
            Cause::Lost => Self::Lost,
        }
    }
}
