//! The suite of `executors.rs`, against a daemon.
#![cfg(feature = "connect")]

#[path = "executors.rs"]
mod executors;
