//! The messages between Lockkeeper's daemon and its clients, and the bytes they are sent as.
//!
//! `docs/protocol.md` is the description for people; this crate is the same for Rust. It has no
//! I/O: it turns a message into bytes and bytes into a message, and refuses what is neither. Both
//! directions are MessagePack arrays whose first element says which message it is. On a stream,
//! each is preceded by its length ([`frame`]).
#![forbid(unsafe_code)]

pub mod frame;
mod pack;
pub mod v2;
pub mod websocket;

pub use pack::Malformed;
