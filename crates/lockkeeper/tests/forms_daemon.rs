//! The suite of `forms.rs`, against a daemon.
#![cfg(feature = "connect")]

#[path = "forms.rs"]
mod forms;
