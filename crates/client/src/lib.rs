//! A session with Lockkeeper's daemon: that of this machine, or, with the feature `network`, another's.
//!
//! [`Session::open`] connects, and starts this user's daemon if none answers. Requests are made without waiting; each has a
//! listener that is told what becomes of it. A thread of the session's reads what the daemon says; or one that waits for it, if it
//! calls [`Session::look_out`] or [`Session::wait`].
//!
//! The table of requests is the truth of this side. When the daemon dies, the session waits for the next one, starts it if
//! need be, and says again what is in the table: locks are reclaimed, places in queues kept. If that cannot be done in time,
//! or the daemon does not know the session any more, the listeners are told that their locks are lost. On the network, where
//! nobody notices that the other side is gone, heartbeats show it, and so they are told too.
#![forbid(unsafe_code)]

mod endpoint;
mod line;
mod pulse;
mod session;
mod table;
#[cfg(feature = "network")]
mod web;

pub use endpoint::Endpoint;
pub use lockkeeper_wire::{Flags, code};
pub use session::{Error, Session};
pub use table::{Answer, Deadlock, Entry, Event, Request, Snapshot, Step};
