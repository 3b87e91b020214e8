//! The suite of `executors.rs`, against a fleet of daemons on etcd.
#![cfg(feature = "network")]

#[path = "executors.rs"]
mod executors;
