//! The suite of `forms.rs`, against a daemon on the network.
#![cfg(feature = "network")]

#[path = "forms.rs"]
mod forms;
