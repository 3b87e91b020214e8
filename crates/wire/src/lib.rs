//! The messages between Lockkeeper's daemon and its clients, and the bytes they are sent as.
//!
//! `docs/protocol.md` is the description for people; this crate is the same for Rust. It has no I/O: it turns a
//! message into bytes and bytes into a message, and refuses what is neither. Both directions are MessagePack arrays
//! whose first element says which message it is. On a stream, each is preceded by its length ([`frame`]).
#![forbid(unsafe_code)]

pub mod frame;
mod pack;
mod to_client;
mod to_server;

pub use pack::Malformed;
pub use to_client::{Entry, ToClient};
pub use to_server::{Claim, Flags, Scope, ToServer};

/// The version of the protocol that this crate speaks. Two sides that do not speak the same part with an error.
pub const VERSION: u32 = 1;

/// The secret that resumes a session, and the daemon's signature over a grant: bytes that mean nothing to others.
pub type Seal = [u8; 16];
