//! The inputs and outputs of a session.

use crate::view::UNVERIFIABLE;
use lockkeeper_core::{Cause, Mode, Name};
use lockkeeper_wire::{
    frame,
    v2::{self, Flags},
};
use std::fmt;

/// A request or question of a session, by a number that is never reused.
pub type Key = u64;

/// The parameters of a new session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionConfig {
    /// The bucket.
    pub bucket: String,
    /// Who the client is, for people.
    pub owner: Option<String>,
    /// The lease that it would like, in milliseconds.
    pub ttl: Option<u64>,
    /// Whether the transport can receive a descriptor.
    pub fifo: bool,
    /// Whether the client ends for good when its WebSocket is closed with status 1001.
    pub going_away_ends: bool,
}

/// A request to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The names, each with its mode.
    pub scope: Vec<(Name, Mode)>,
    /// How.
    pub flags: Flags,
    /// The request within which it is made.
    pub nested_in: Option<Outer>,
    /// A label for people.
    pub info: Option<String>,
}

/// The request within which another is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outer {
    /// One of the same session.
    Own(Key),
    /// One of another session: its client id, and the request's number there.
    Other(String, u64),
}

impl Request {
    /// Whether no server takes a message as long as this.
    pub(super) fn is_too_long(&self) -> bool {
        let names: usize = self.scope.iter().map(|(name, _)| name.as_bytes().len() + 8).sum();
        names + self.info.as_ref().map_or(0, String::len) + 256 > frame::MAX
    }
}

/// An event for the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<T> {
    /// There is a session.
    Opened {
        /// Its public id.
        client_id: String,
        /// Whether it is the same as before.
        resumed: bool,
    },
    /// No server could be reached yet. Attempts go on.
    Unreachable(Failure),
    /// A server has refused the session finally. No event follows.
    Failed(Failure),
    /// The session was lost, and all it had. Another one is being opened.
    SessionLost,
    /// The session was closed by the host.
    Closed,
    /// A descriptor came, which the driver has. If it does, it calls
    /// [`confirm`](super::Session::confirm).
    Fifo,
    /// A request waits.
    Queued {
        /// The request.
        key: Key,
        /// Its arrival.
        arrival: u64,
    },
    /// A lock is held.
    Granted {
        /// The request.
        key: Key,
        /// Its fencing token.
        token: u64,
    },
    /// Something is to be known of a subscription.
    Changed {
        /// The subscription.
        key: Key,
        /// What.
        change: Change,
    },
    /// A request or question is over.
    Over {
        /// The request or question.
        key: Key,
        /// How it ended.
        outcome: Outcome,
        /// The host's data.
        data: T,
    },
}

/// A message of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The whole state of the bucket. It replaces all earlier changes.
    State(Snapshot),
    /// Requests that have changed since.
    Changes {
        /// All names of each changed request, in its current state.
        entries: Vec<Entry>,
        /// The arrivals of requests that have ended.
        gone: Vec<u64>,
        /// The greatest token that was given out.
        last_token: u64,
        /// Whether more has changed already.
        more: bool,
    },
}

/// How a request or question ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was not to wait.
    Unavailable,
    /// It was released or aborted, as the host wished.
    Released,
    /// The lock was broken; or the session was lost, and the request with it.
    Broken {
        /// Why.
        cause: Cause,
        /// A description of the client that did it.
        by: Option<String>,
        /// Whether it was released by force, or its session was ended by another client.
        forced: bool,
    },
    /// The server refuses it. Nothing has changed.
    Refused {
        /// One of the protocol's codes.
        code: u32,
        /// Why, for people.
        message: String,
    },
    /// It would have closed a cycle, and was not to.
    Deadlocked(Deadlock),
    /// A question is answered.
    Answer(Answer),
    /// There is no session, and will be none.
    Failed(Failure),
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The server's answer.
    Snapshot(Snapshot),
    /// A force release or the ending of a session is done.
    Done {
        /// How many locks or sessions ended.
        count: u64,
    },
}

/// Why there is no session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// No connection can be made.
    Unreachable(String),
    /// The server refuses.
    Refused {
        /// One of the protocol's codes.
        code: u32,
        /// Why, for people.
        message: String,
    },
    /// The transport cannot be used: a wrong address, a certificate that is not trusted.
    Unusable(String),
    /// The host closed it.
    Closed,
}

impl Failure {
    /// Whether another attempt makes no sense.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Unusable(_) | Self::Closed)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) | Self::Unusable(why) => f.write_str(why),
            Self::Refused { message, .. } => f.write_str(message),
            Self::Closed => f.write_str("the session is closed"),
        }
    }
}

impl std::error::Error for Failure {}

/// The state of a bucket, or of one name in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// A name of a request each: held first, each in the order of arrival.
    pub entries: Vec<Entry>,
    /// The cycles, if they were requested.
    pub deadlocks: Vec<Deadlock>,
    /// The greatest token that was given out; 0 if that is not to be known.
    pub last_token: u64,
}

/// One name of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Name,
    /// Its mode.
    pub mode: Mode,
    /// Whose request it is.
    pub client_id: String,
    /// The request's arrival.
    pub arrival: u64,
    /// Its fencing token, if it is held; 0 if that is not to be known.
    pub token: Option<u64>,
    /// Its label.
    pub info: Option<String>,
    /// For how many milliseconds it has waited, or has been held.
    pub since: u64,
    /// The arrival of the request within which it was made.
    pub nested_in: Option<u64>,
    /// Whether it was made with *steal*.
    pub stole: bool,
    /// Who the client is, for people.
    pub owner: Option<String>,
}

impl Entry {
    /// Whether it is unknown if its process is alive. Its session has to be ended by hand, unless
    /// the client resumes it.
    pub fn is_unverifiable(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.ends_with(UNVERIFIABLE))
    }
}

/// Requests each of which waits for the next, the last for the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The cycle, for people.
    pub words: String,
    /// Its requests; none if they are not to be known.
    pub cycle: Vec<Step>,
}

/// One request of a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The request's arrival.
    pub arrival: u64,
    /// Whose request it is.
    pub client_id: String,
    /// The name it waits for; none if it waits for the next request, which is nested in it.
    pub waits_for: Option<Name>,
}

impl From<v2::Entry<'_>> for Entry {
    fn from(entry: v2::Entry<'_>) -> Self {
        Self {
            name: Name::from(entry.name),
            mode: entry.mode,
            client_id: entry.client_id.into(),
            arrival: entry.arrival,
            token: entry.token,
            info: entry.info.map(Into::into),
            since: entry.since,
            nested_in: entry.nested_in,
            stole: entry.stole,
            owner: entry.owner.map(Into::into),
        }
    }
}

impl From<v2::Deadlock<'_>> for Deadlock {
    fn from(deadlock: v2::Deadlock<'_>) -> Self {
        let cycle = deadlock.cycle.into_iter().map(|step| Step {
            arrival: step.arrival,
            client_id: step.client_id.into(),
            waits_for: step.waits_for.map(Name::from),
        });
        Self { words: deadlock.words.into(), cycle: cycle.collect() }
    }
}
