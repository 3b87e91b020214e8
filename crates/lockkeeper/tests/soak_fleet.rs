//! The suite of `soak.rs`, against a fleet of daemons on etcd.
#![cfg(feature = "network")]

#[path = "soak.rs"]
mod soak;
