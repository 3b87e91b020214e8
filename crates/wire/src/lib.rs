//! The messages between Lockkeeper's daemon and its clients, and their encoding.
//!
//! `docs/protocol.md` describes the same for people. This crate has no I/O: it encodes and decodes
//! messages, and refuses malformed input. Both directions are MessagePack arrays whose first
//! element is the kind of the message. On a stream, each is preceded by its length ([`frame`]).
#![forbid(unsafe_code)]

pub mod frame;
mod pack;
pub mod v2;
pub mod websocket;

pub use pack::Malformed;
