//! The suite of `spec.rs`, against a fleet of daemons on etcd.
#![cfg(feature = "network")]

#[path = "spec.rs"]
mod spec;
