//! The lock manager of the [Web Locks API][draft], generalised to scopes of several names.
//!
//! `lockkeeper-core` is deterministic: it has no I/O, no clock, no async runtime and no `unsafe`,
//! and needs only `alloc`. The same calls give the same effects in the same order. A host (an async
//! crate, a JavaScript engine, a daemon) feeds it commands and delivers the effects it is handed.
//!
//! # The rule
//!
//! *A request is held if and only if, for every name it asks for, no earlier live request
//! conflicts.* Two requests conflict on a name unless both ask for it [shared](Mode::Shared). A
//! `steal` breaks the held requests it conflicts with and goes first. That is all; grants, shared
//! batches, scopes that cannot deadlock against each other and the order in every queue follow from
//! it.
//!
//! # How to drive it
//!
//! The methods of [`Manager`] fall in two groups:
//!
//! * *commands* change state and append to a list of [`Effect`]s on others that the caller must
//!   deliver, in order: [`request`](Manager::request), [`release`](Manager::release),
//!   [`abort`](Manager::abort), [`client_gone`](Manager::client_gone) and
//!   [`force_release`](Manager::force_release). [`client`](Manager::client) makes an agent and has
//!   no effects;
//! * *queries* change nothing: [`query`](Manager::query), [`queue`](Manager::queue),
//!   [`get`](Manager::get), [`requests`](Manager::requests), [`deadlocks`](Manager::deadlocks).
//!
//! One manager is one storage bucket: nothing ever crosses two. Deadlines, leases, origins and
//! permissions belong to the host.
//!
//! ```
//! use lockkeeper_core::{Effect, Manager, Mode, Options, Outcome};
//!
//! let mut manager: Manager = Manager::default();
//! let mut effects = Vec::new();
//! let tab = manager.client()?;
//! let worker = manager.client()?;
//!
//! let scope = [("document", Mode::Exclusive)];
//! let Outcome::Granted { request: first, .. } =
//!     manager.request(tab, &scope, Options::default(), (), &mut effects)? else { panic!() };
//! let Outcome::Queued { request: second } =
//!     manager.request(worker, &scope, Options::default(), (), &mut effects)? else { panic!() };
//!
//! manager.release(first, &mut effects);
//! assert!(matches!(effects[..], [Effect::Granted { request, .. }] if request == second));
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! [draft]: https://www.w3.org/TR/2023/WD-web-locks-20230105/
#![no_std]
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr)]

extern crate alloc;

#[cfg(feature = "audit")]
mod audit;
mod deadlock;
mod manager;
mod name;
mod nesting;
mod query;
mod queues;
mod restore;
mod slab;
mod table;
mod types;

pub use deadlock::{Deadlock, Step, WaitsFor};
pub use manager::{Config, Manager, validate};
pub use name::Name;
pub use query::{Live, LockInfo, Snapshot};
pub use restore::{RestoreError, RestoredRequest};
pub use types::{
    Cause, ClientId, Effect, Limit, Limits, Mode, Options, Outcome, RequestError, RequestId, Token,
};
