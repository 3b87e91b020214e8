//! The suite of `soak.rs`, against a daemon.
#![cfg(feature = "connect")]

#[path = "soak.rs"]
mod soak;
