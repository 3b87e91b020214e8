//! The manager that a suite is run against. `spec.rs`, `forms.rs` and `executors.rs` use one of the
//! test's process; the same files are compiled three times more, as `spec_daemon`, `spec_network`
//! and `spec_fleet` and so on, and use one of a daemon's, on a Unix socket, on a WebSocket, and of
//! a fleet on an etcd of three members, through a daemon that does not lead; and together once more
//! as `fleet_on_one_member`.

#![allow(dead_code, reason = "not every suite needs all of it")]

#[cfg(feature = "connect")]
pub(crate) mod daemon;

use lockkeeper::Locks;
use smol::future;
use std::{ops::Deref, pin::Pin};

/// Whether this is not the suite's first compilation.
pub(crate) fn at_a_daemon() -> bool {
    env!("CARGO_CRATE_NAME").ends_with("_daemon") || on_the_network() || in_a_fleet()
}

pub(crate) fn in_a_fleet() -> bool {
    env!("CARGO_CRATE_NAME").contains("fleet")
}

/// How many members the etcd of the fleet has.
pub(crate) fn members() -> usize {
    if env!("CARGO_CRATE_NAME").ends_with("one_member") { 1 } else { 3 }
}

fn on_the_network() -> bool {
    env!("CARGO_CRATE_NAME").ends_with("_network")
}

/// A manager for one test, and its daemon.
pub(crate) struct Manager {
    locks: Locks,
    #[cfg(feature = "connect")]
    _daemon: Option<daemon::Daemon>,
}

impl Deref for Manager {
    type Target = Locks;

    fn deref(&self) -> &Locks {
        &self.locks
    }
}

pub(crate) fn manager() -> Manager {
    #[cfg(feature = "connect")]
    if at_a_daemon() {
        let daemon = match (on_the_network(), in_a_fleet()) {
            (true, _) => daemon::Daemon::on_network(),
            (_, true) => daemon::Daemon::in_fleet(),
            _ => daemon::Daemon::start(),
        };
        return Manager { locks: connect(&daemon), _daemon: Some(daemon) };
    }
    Manager {
        locks: Locks::new(),
        #[cfg(feature = "connect")]
        _daemon: None,
    }
}

/// A session with a daemon that has been started.
#[cfg(feature = "connect")]
pub(crate) fn connect(daemon: &daemon::Daemon) -> Locks {
    drop(daemon.connect());
    Locks::connect(url(daemon)).blocking().expect("it serves")
}

#[cfg(feature = "connect")]
pub(crate) fn url(daemon: &daemon::Daemon) -> String {
    match on_the_network() {
        true => format!("ws://{}", daemon.address()),
        false => format!("unix:{}", daemon.config.socket.display()),
    }
}

/// Lets a future of this manager's run as far as it goes now. A daemon answers in order: when it
/// has answered a question, it has answered all that was asked before.
pub(crate) async fn step<F: Future>(locks: &Locks, mut future: Pin<&mut F>) -> Option<F::Output> {
    match future::poll_once(future.as_mut()).await {
        None => {
            locks.query().await.expect("the daemon answers");
            future::poll_once(future).await
        }
        done => done,
    }
}
