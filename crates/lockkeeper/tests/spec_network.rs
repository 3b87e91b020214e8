//! The suite of `spec.rs`, against a daemon on the network.
#![cfg(feature = "network")]

#[path = "spec.rs"]
mod spec;
