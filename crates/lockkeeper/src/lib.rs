//! Named locks for async Rust: the [Web Locks
//! API](https://www.w3.org/TR/2023/WD-web-locks-20230105/).
//!
//! ```
//! use lockkeeper::{Error, Locks};
//!
//! # fn main() -> Result<(), Error> { smol::block_on(async {
//! let locks = Locks::new();
//! let total = locks.request("cart").run(async |lock| {
//!     // Nobody else is here for "cart" until this block is done.
//!     println!("{} with token {}", lock.name(), lock.token());
//!     42
//! }).await?;
//! assert_eq!(total, 42);
//! # Ok(()) }) }
//! ```
//!
//! * Whoever asks first is served first, shared and exclusive requests alike; nobody is starved.
//! * A request may name several locks: it gets all of them at once, and such requests cannot
//!   deadlock against each other.
//! * A request can be made not to wait, to wait for some time, until a signal, or to steal.
//! * A holder learns when its lock is stolen; every lock has a fencing token for the storage behind
//!   it.
//! * It runs on any executor, across threads, and without one through the blocking variants.
//!
//! Locks are kept by one [`Locks`] in this process; or, with the feature `connect`, by a daemon for
//! all processes of the machine: `Locks::connect_default()` is such a `Locks`. A lock is given to a
//! [`Request`] in one of four forms: around a closure ([`run`](Request::run)), as a guard
//! ([`acquire`](Request::acquire)), as a guard or nothing ([`try_acquire`](Request::try_acquire)),
//! or tied to futures ([`auto_release`](Request::auto_release)).
//!
//! # When not to use it
//!
//! For one value in memory, a `Mutex` or `RwLock` around that value is faster and keeps the two
//! together. A named lock is for what has a name and no owner: a file, an account, a row, a job.
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr)]

#[cfg(all(feature = "connect", not(unix)))]
compile_error!(
    "the features `connect` and `network` of lockkeeper need Unix sockets, which this platform does not have: leave them out here"
);

mod acquire;
mod agent;
mod auto;
mod blocking;
#[cfg(feature = "connect")]
mod connect;
mod error;
mod inspect;
mod local;
mod lock;
mod locks;
#[cfg(feature = "connect")]
mod remote;
mod request;
mod scope;
mod signal;
mod state;
mod sync;
mod timer;

pub use acquire::Acquire;
pub use auto::{AutoLock, Settled};
#[cfg(feature = "connect")]
pub use connect::Connect;
pub use error::Error;
pub use inspect::{Inspection, RequestInfo};
pub use lock::Lock;
pub use lockkeeper_core::{
    Cause, ClientId, Deadlock, Limit, Limits, LockInfo, Mode, Name, RequestId, Snapshot, Step, Token,
    WaitsFor,
};
pub use locks::{Buckets, Config, Locks};
pub use request::{IfAvailable, Request};
pub use scope::IntoScope;
pub use signal::{AbortController, AbortReason, AbortSignal};

/// The README's examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
