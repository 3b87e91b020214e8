//! The possible failures of a call.

use std::fmt;
use tonic::{Code, Status};

/// Why a call did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A member did not answer, or could not reach the others. The call may have been executed, or
    /// may be later.
    NoAnswer {
        /// The member.
        member: String,
        /// The known details.
        why: String,
    },
    /// etcd takes no more writes: its database has reached its quota. Reads still work.
    Full {
        /// The member.
        member: String,
    },
    /// etcd takes no more writes: its members have different data.
    Corrupt {
        /// The member.
        member: String,
    },
    /// The requested history is no longer kept.
    Compacted,
    /// etcd refused the call. It was not executed.
    Refused {
        /// The member.
        member: String,
        /// Its message.
        why: String,
    },
    /// The call cannot be made with these settings.
    Settings(String),
}

/// etcd's message for a token from before a change of users or roles.
const OLD_TOKEN: &str = "revision of auth store is old";

/// Whether another token is needed.
pub(crate) fn is_token_over(status: &Status) -> bool {
    status.code() == Code::Unauthenticated || status.message().contains(OLD_TOKEN)
}

impl Error {
    pub(crate) fn of(member: &str, status: &Status) -> Self {
        let (member, message) = (member.to_owned(), status.message());
        match status.code() {
            Code::ResourceExhausted if message.contains("database space exceeded") => Self::Full { member },
            Code::OutOfRange if message.contains("compacted") => Self::Compacted,
            Code::DataLoss if message.contains("corrupt") => Self::Corrupt { member },
            // Users or roles have changed since the token was given out: another one is good.
            Code::InvalidArgument if message.contains(OLD_TOKEN) => {
                Self::NoAnswer { member, why: message.into() }
            }
            Code::PermissionDenied
            | Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::Unimplemented => Self::Refused { member, why: message.into() },
            // Among them what etcd itself does not know: "request timed out", "leader changed".
            _ => {
                let why = with_causes(message.into(), std::error::Error::source(status));
                Self::NoAnswer { member, why }
            }
        }
    }
}

/// An error with its causes, each named once.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    with_causes(error.to_string(), error.source())
}

fn with_causes(mut words: String, mut cause: Option<&(dyn std::error::Error + 'static)>) -> String {
    while let Some(next) = cause {
        let text = next.to_string();
        match words.is_empty() {
            true => words = text,
            false if words.contains(&text) => {}
            false => words = format!("{words}: {text}"),
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
            Self::Corrupt { member } => write!(
                f,
                "{member}: etcd's data is corrupt (its alarm CORRUPT is raised): replace the member that differs, then disarm the \
                 alarm"
            ),
            Self::Compacted => f.write_str("etcd has compacted the history that was asked for"),
            Self::Refused { member, why } => write!(f, "{member}: {why}"),
            Self::Settings(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: Code, message: &str) -> Error {
        Error::of("a:1", &Status::new(code, message))
    }

    #[test]
    fn alarms_are_named() {
        let full = of(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert!(full.to_string().contains("a:1: etcd is full"));
        let corrupt = of(Code::DataLoss, "etcdserver: corrupt cluster");
        assert!(corrupt.to_string().contains("alarm CORRUPT"));
    }

    /// Every role that is changed makes all tokens old.
    #[test]
    fn a_call_with_an_old_token_is_made_again() {
        let message = "etcdserver: revision of auth store is old";
        assert!(matches!(of(Code::InvalidArgument, message), Error::NoAnswer { .. }));
        assert!(is_token_over(&Status::new(Code::InvalidArgument, message)));
        let denied = Status::new(Code::PermissionDenied, "etcdserver: permission denied");
        assert!(matches!(Error::of("a:1", &denied), Error::Refused { .. }) && !is_token_over(&denied));
    }
}
