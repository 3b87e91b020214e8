//! A session: what one client has with the daemon.

use crate::process::Process;
use lockkeeper_core::{ClientId, RequestId};
use lockkeeper_wire::{Seal, ToClient, frame};
use std::{
    collections::{BTreeSet, HashMap},
    task::Waker,
    time::Instant,
};

pub(crate) struct Session {
    /// Its public name.
    pub(crate) id: String,
    /// What resumes it.
    pub(crate) secret: Seal,
    /// Whose locks it has.
    pub(crate) bucket: u32,
    /// Its agent in that bucket.
    pub(crate) client: ClientId,
    /// Its process, if that is one of this machine that can be seen from here.
    pub(crate) process: Option<Process>,
    /// Its live requests by the client's own numbers. While the daemon is in grace, the engine has none of them.
    pub(crate) requests: HashMap<u64, RequestId>,
    /// Those that the client, which has come back, has not spoken of yet.
    pub(crate) unclaimed: BTreeSet<u64>,
    /// The greatest of these numbers so far.
    pub(crate) last_rid: u64,
    /// Where its messages go while it is connected.
    pub(crate) outbox: Option<Outbox>,
    /// Whether the client has not yet said all it had, after it came back.
    pub(crate) reclaiming: bool,
    /// Until when it is waited for, if it is of the daemon's former life and has not come back with all it had.
    pub(crate) awaited_until: Option<Instant>,
}

/// Messages on their way to a client.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) bytes: Vec<u8>,
    /// The connection, if it sleeps.
    pub(crate) waker: Option<Waker>,
    /// The connection is to end once the bytes are written.
    pub(crate) closing: bool,
    /// The connection is to end now.
    pub(crate) cut: bool,
}

/// A client that lets so many bytes wait is cut off. More than the longest answer that it can have asked for.
const LIMIT: usize = 2 * frame::MAX_TO_CLIENT;

impl Session {
    /// Sends a message. Who is not connected misses it: on a Unix socket its session is about to end.
    pub(crate) fn send(&mut self, message: &ToClient<'_>) {
        let Some(outbox) = &mut self.outbox else { return };
        frame::append(&mut outbox.bytes, |out| message.encode(out));
        if outbox.bytes.len() > LIMIT {
            tracing::warn!(session = self.id, "cut off: it does not read");
            (outbox.bytes, outbox.cut) = (Vec::new(), true);
        }
        if let Some(waker) = outbox.waker.take() {
            waker.wake();
        }
    }

    /// Sends a last message and has the connection end.
    pub(crate) fn dismiss(&mut self, code: u32, message: &str) {
        self.send(&ToClient::Goodbye { code, message });
        if let Some(outbox) = &mut self.outbox {
            outbox.closing = true;
        }
    }
}
