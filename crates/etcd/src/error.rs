//! What can become of a call.

use std::fmt;
use tonic::{Code, Status};

/// Why a call did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A member did not answer, or could not reach the others. The call may have been executed, or may be later.
    NoAnswer {
        /// The member.
        member: String,
        /// What is known.
        why: String,
    },
    /// etcd takes no more writes: its database is as large as it may be. Reads go on.
    Full {
        /// The member.
        member: String,
    },
    /// The history that was asked for is not kept any more.
    Compacted,
    /// etcd refused the call. It was not executed.
    Refused {
        /// The member.
        member: String,
        /// In its words.
        why: String,
    },
    /// The call cannot be made with these settings.
    Settings(String),
}

impl Error {
    pub(crate) fn of(member: &str, status: &Status) -> Self {
        let (member, message) = (member.to_owned(), status.message());
        match status.code() {
            Code::ResourceExhausted if message.contains("database space exceeded") => Self::Full { member },
            Code::OutOfRange if message.contains("compacted") => Self::Compacted,
            Code::PermissionDenied
            | Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::Unimplemented => Self::Refused { member, why: message.into() },
            // Among them what etcd itself does not know: "request timed out", "leader changed".
            _ => {
                let cause = std::error::Error::source(status).map(chain).unwrap_or_default();
                let why = if cause.contains(message) || message.is_empty() {
                    cause
                } else if cause.is_empty() {
                    message.into()
                } else {
                    format!("{message}: {cause}")
                };
                Self::NoAnswer { member, why }
            }
        }
    }

    /// Whether it is certain that the call was not executed, and never will be.
    pub fn is_definite(&self) -> bool {
        !matches!(self, Self::NoAnswer { .. })
    }
}

/// An error with its causes, each named once.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let text = next.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        cause = next.source();
    }
    words
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer { member, why } => write!(f, "{member}: {why}"),
            Self::Full { member } => write!(
                f,
                "{member}: etcd is full (its quota alarm is raised): compact and defragment it, then disarm the alarm"
            ),
            Self::Compacted => f.write_str("etcd has compacted the history that was asked for"),
            Self::Refused { member, why } => write!(f, "{member}: {why}"),
            Self::Settings(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}
