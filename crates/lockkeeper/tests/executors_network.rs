//! The suite of `executors.rs`, against a daemon on the network.
#![cfg(feature = "network")]

#[path = "executors.rs"]
mod executors;
