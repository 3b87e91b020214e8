//! The suite of `spec.rs`, against a daemon.
#![cfg(feature = "connect")]

#[path = "spec.rs"]
mod spec;
