//! The lock manager of this process, for JavaScript: one [`Manager`](lockkeeper_core::Manager)
//! behind one mutex, shared by all threads that load the addon, and an `agent` for each of them;
//! and one for each `createLocks()`.
//!
//! A request takes this path: `packages/lockkeeper` converts the arguments and picks a *slot*, a
//! small number by which the thread's own table of requests goes; `ffi` reads the name and runs the
//! engine inside the call; the answer is a number. What a call does to others goes to their
//! mailboxes (`state`): the caller's own is announced in the answer, that of another thread through
//! its thread-safe function.
//!
//! `remote` is the way to a daemon: the same notifications, from a thread that reads its socket.
//! Windows has none.
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
