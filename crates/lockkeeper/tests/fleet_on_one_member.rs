//! The suites of `spec_fleet.rs`, `forms_fleet.rs` and `executors_fleet.rs`, where etcd has one
//! member.
#![cfg(feature = "network")]
#![allow(clippy::duplicate_mod, reason = "each suite brings what it shares with the others")]

#[path = "executors.rs"]
mod executors;
#[path = "forms.rs"]
mod forms;
#[path = "spec.rs"]
mod spec;
