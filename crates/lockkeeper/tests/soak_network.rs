//! The suite of `soak.rs`, against a daemon on the network.
#![cfg(feature = "network")]

#[path = "soak.rs"]
mod soak;
