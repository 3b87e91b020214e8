//! The session thread's sleep: until its socket is ready, it is notified, or a deadline has passed.

use polling::{Event, Events, PollMode};
use std::{io, os::fd::AsFd, os::fd::AsRawFd, time::Duration};

/// There is one socket at a time.
const SOCKET: usize = 0;

/// What woke the session thread. If neither is set, it was notified, or the deadline has passed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ready {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

pub(crate) struct Poller(polling::Poller);

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        polling::Poller::new().map(Self)
    }

    /// Watches a socket until [`remove`](Self::remove).
    #[expect(
        unsafe_code,
        reason = "the caller removes the socket before it closes it: `Connection` does, when dropped"
    )]
    pub(crate) fn add(&self, socket: &(impl AsFd + AsRawFd)) -> io::Result<()> {
        // SAFETY: a `Connection` owns both the socket and a share of the poller, and removes the
        // socket when it is dropped.
        unsafe { self.0.add_with_mode(socket, Event::readable(SOCKET), PollMode::Level) }
    }

    /// Sets which events of the socket wake the session thread. Its end always does.
    pub(crate) fn set_interest(&self, socket: impl AsFd, readable: bool, writable: bool) {
        let interest = Event::new(SOCKET, readable, writable);
        // It fails only for a socket that was removed in the meantime.
        let _ = self.0.modify_with_mode(socket.as_fd(), interest, PollMode::Level);
    }

    pub(crate) fn remove(&self, socket: impl AsFd) {
        let _ = self.0.delete(socket.as_fd());
    }

    /// Wakes the session thread, now or when it sleeps next.
    pub(crate) fn notify(&self) {
        let _ = self.0.notify();
    }

    pub(crate) fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<Ready> {
        events.clear();
        self.0.wait(events, timeout)?;
        let mut ready = Ready::default();
        for event in events.iter() {
            ready.readable |= event.readable;
            ready.writable |= event.writable;
        }
        Ok(ready)
    }
}
