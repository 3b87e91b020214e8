//! Faults for Lockkeeper's daemon and its clients, and a check of what the clients saw.
//!
//! [`plan`] draws a schedule of faults from a seed. [`driver`] starts a daemon and [`worker`]s as
//! separate processes ([`process`], in a [`run_dir`]) and applies the schedule: they are killed,
//! stopped and cut off, and the [`machine`] provides full disks and frozen cgroups. A worker
//! requests locks with this workspace's client, with `run` ([`runner`]) or in Python. It holds them
//! and *touches* the protected resources, and writes all events to a [`history`] that outlives it.
//! At the end, [`check`] reads the histories and lists broken guarantees for the [`report`].
//!
//! [`fleet`] does the same to daemons that share a log in etcd.
//!
//! Nothing here looks into the daemon: the check uses only what its clients can observe.
#![forbid(unsafe_code)]

pub mod check;
pub mod driver;
pub mod fleet;
pub mod history;
pub mod machine;
mod network;
pub mod plan;
pub mod process;
pub mod report;
pub mod run_dir;
pub mod runner;
mod silence;
pub mod worker;

/// Nanoseconds of the machine's monotonic clock, which is the same for all its processes.
pub type Nanos = u64;

/// What time it is.
pub fn now() -> Nanos {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).expect("the clock began at zero");
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// So many milliseconds.
pub const fn ms(count: u64) -> Nanos {
    count * 1_000_000
}
