//! Lockkeeper's service as state machines, without I/O, clock, threads or randomness.
//!
//! * [`State`] is what is true: sessions, their requests, the lock managers by bucket, and what
//!   clients have yet to acknowledge. It changes by [`Record`]s alone. The same records in the same
//!   order give the same state on every machine, whatever its configuration.
//! * [`Server`] decides: it checks what clients send against limits, rights and the state, records
//!   what changes it, and holds every answer back until the log has committed.
//! * [`Session`] is the client's side: it sends requests, resumes by comparison after a lost
//!   connection, and knows from the clock whether its lease is still valid.
//!
//! Drivers around them own sockets, files and clocks. They pass the time of a monotonic clock that
//! runs while the machine is suspended, as [`Micros`], read after the input and before anything is
//! written.
//!
//! # The round
//!
//! A server works in rounds. Inputs change the state and append to a batch of records; answers are
//! written to outboxes and held. [`Server::take_round`] closes the batch, the driver commits it to
//! the log, and [`Server::round_done`] releases the answers of that round and of those before it. A
//! round without records still needs the log's word, where several servers share the log, that this
//! server leads: its answers may be older than another leader's.
#![forbid(unsafe_code)]

mod codec;
mod outbox;
mod record;
pub mod replica;
mod sabotage;
mod server;
mod session;
mod snapshot;
mod state;
mod tail;
mod view;
mod walk;

pub use codec::Damaged;
pub use outbox::Framing;
pub use record::{EndReason, Fifo, Origin, Record, SecretHash};
pub use sabotage::{Rule, sabotage};
pub use server::{
    Access, Action, Audit, Audited, BATCH, Bytes, ConnectionId, Counts, Fresh, Hello, Histogram, Refusal,
    Rights, Round, Server, ServerConfig, Ttl,
};
pub use session::{
    Answer, Change, Deadlock, Entry, Event, Failure, Key, Outcome, Outer, Request, Session, SessionConfig,
    Snapshot, Step, Transfer, client_lease,
};
pub use state::{BucketView, Effect, LEVEL, Notice, SessionId, SessionView, State};

/// Microseconds of a monotonic clock that runs while the machine is suspended. Its zero is the
/// driver's.
pub type Micros = u64;

/// Milliseconds as [`Micros`].
pub(crate) fn micros(milliseconds: u64) -> Micros {
    milliseconds.saturating_mul(1000)
}
