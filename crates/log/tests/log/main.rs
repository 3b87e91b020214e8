//! The log from outside: what is appended, what happens to the files, and what is recovered.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it, in their helpers too")]

mod check;
mod common;
mod crash;
mod damage;
#[cfg(target_os = "linux")]
mod disk;
mod kill;
mod model;
mod plain;
mod seeds;
mod torn;
