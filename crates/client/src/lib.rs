//! A session with Lockkeeper's server: over a Unix socket on this machine, or, with the feature
//! `network`, over WebSocket.
//!
//! [`lockkeeper_service::Session`] decides everything: what to send, when to reconnect, when a
//! lease has expired. This crate owns the sockets, the clock and one thread. It has no request
//! table: requests carry the host's data ([`Host::Data`]).
//!
//! [`Session::open`] connects, and starts this user's server if none answers. Methods return
//! without waiting for the server, unless documented otherwise. The session thread reads,
//! reconnects and sends pings; a thread that waits for a reply can read it itself
//! ([`Session::spin_for_reply`], [`Session::wait`]).
//!
//! Locks survive a server that is killed: a local session lives as long as the descriptor that the
//! server passed to it is open ([`Session::fifo`]). After a session was lost, the same value opens
//! the next one.
#![cfg(unix)]
// Denied rather than forbidden: `poller` registers a socket, which the crate it uses calls unsafe;
// `peer` makes a system call.
#![deny(unsafe_code)]

mod clock;
mod connection;
mod driver;
mod endpoint;
mod error;
mod host;
mod launch;
mod owner;
mod peer;
mod poller;
mod reader;
mod session;
pub mod spin;
mod state;
#[cfg(feature = "network")]
mod websocket;

#[cfg(feature = "network")]
pub use endpoint::Address;
pub use endpoint::{Endpoint, bucket_from_env};
pub use error::Error;
pub use host::{Callbacks, Host, Lifecycle, Listener, Update};
pub use lockkeeper_service::{
    Answer, Change, Deadlock, Entry, Failure, Key, Outcome, Outer, Request, Snapshot, Step, Transfer,
};
pub use lockkeeper_wire::v2::{Flags, code};
pub use session::{Options, Session};
pub use state::View;
#[cfg(feature = "network")]
pub use websocket::trusted;

/// The time of the clock that leases are counted by. It is the same for all processes of a machine,
/// and runs while the machine is suspended.
pub fn now() -> std::time::Duration {
    std::time::Duration::from_micros(clock::now())
}
