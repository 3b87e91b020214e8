//! The lock manager of this process, for JavaScript: one [`Manager`](lockkeeper_core::Manager)
//! behind one mutex, shared by all threads that load the addon, and an `agent` for each of them;
//! and a manager for each `createLocks()`.
//!
//! A request takes this path: `packages/lockkeeper` converts the arguments and picks a *slot*, the
//! request's index in the thread's own table; `ffi` reads the name and runs the engine inside the
//! call; the answer is a number. Effects on other requests go to mailboxes (`state`). The answer
//! announces the caller's own mail; another thread is notified through its thread-safe function.
//!
//! `remote` connects to a daemon: it sends the same notifications, from a thread that reads its
//! socket. Windows has none.
//!
//! Nothing here decides: the rules are the engine's, the steps of the specification are
//! TypeScript's.
#![allow(
    unsafe_code,
    reason = "`request` and `release` are raw Node-API functions: three times faster than through the macros"
)]
#![allow(
    missing_docs,
    reason = "the interface is private to packages/lockkeeper, which documents it in native.ts"
)]
#![cfg_attr(not(unix), allow(dead_code, reason = "what only `remote` uses, which needs Unix sockets"))]

mod agent;
mod ffi;
mod names;
#[cfg(unix)]
mod remote;
mod report;
mod state;

/// The number of the interface between this addon and its TypeScript: two copies of the package
/// share one addon only if both were made for it.
#[napi_derive::napi]
pub const ABI: u32 = 5;
