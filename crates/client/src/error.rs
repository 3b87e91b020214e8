//! Why there is no session, or no answer.

use crate::Endpoint;
use lockkeeper_service::Failure;
use std::{fmt, io};

/// Why there is no session, or no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No server can be reached, or it went away.
    Unreachable(Endpoint, io::Error),
    /// The server refuses.
    Refused {
        /// One of the protocol's [codes](crate::code).
        code: u32,
        /// Why, for people.
        message: String,
    },
}

/// The message for a server that accepts connections and does not answer.
const NO_ANSWER: &str = "it does not answer";

/// A server has accepted a connection, and is silent.
pub(crate) fn no_answer() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, NO_ANSWER)
}

impl Error {
    /// Whether the server has accepted a connection, and is silent: it may be stopped.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Unreachable(_, error) if error.to_string() == NO_ANSWER)
    }

    pub(crate) fn new(endpoint: &Endpoint, failure: Failure) -> Self {
        match failure {
            Failure::Refused { code, message } => Self::Refused { code, message },
            other => Self::Unreachable(endpoint.clone(), io::Error::other(other.to_string())),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The server may exist: the given address is invalid.
            Self::Unreachable(endpoint, error) if error.kind() == io::ErrorKind::InvalidInput => {
                write!(f, "the daemon at {endpoint}: {error}")
            }
            Self::Unreachable(endpoint, error) => write!(f, "no daemon at {endpoint}: {error}"),
            Self::Refused { message, .. } => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}
