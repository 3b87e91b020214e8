//! The suite of `forms.rs`, against a fleet of daemons on etcd.
#![cfg(feature = "network")]

#[path = "forms.rs"]
mod forms;
