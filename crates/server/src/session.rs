//! A session: what one client has with the daemon.

use crate::{auth::Rights, process::Process};
use lockkeeper_core::{ClientId, RequestId};
use lockkeeper_wire::{Seal, ToClient, frame, websocket};
use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    rc::Rc,
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
    /// Where its client is.
    pub(crate) peer: Peer,
    /// What its client may do.
    pub(crate) rights: Rights,
    /// Its live requests by the client's own numbers. While the daemon is in grace, the engine has none of them.
    pub(crate) requests: HashMap<u64, RequestId>,
    /// Those that the client, which has come back, has not spoken of yet.
    pub(crate) unclaimed: BTreeSet<u64>,
    /// The greatest of these numbers so far.
    pub(crate) last_rid: u64,
    /// Where its messages go while it is connected.
    pub(crate) outbox: Option<Rc<RefCell<Outbox>>>,
    /// Whether the client has not yet said all it had, after it came back.
    pub(crate) reclaiming: bool,
    /// When its client was last heard, as far as is known while it is connected: the outbox knows better.
    pub(crate) heard: Instant,
    /// When to look whether it is still heard of, if it is on the network.
    pub(crate) look_at: Option<Instant>,
    /// A child of its client's with which it goes on when its connection ends.
    pub(crate) heir: Option<Process>,
}

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A process of this machine, if it can be seen from here. Its session ends with its connection.
    Local(Option<Process>),
    /// On the network. Its session ends when nothing is heard of it.
    Network,
}

impl Peer {
    pub(crate) fn process(self) -> Option<Process> {
        match self {
            Self::Local(process) => process,
            Self::Network => None,
        }
    }
}

/// Messages on their way to a client. The connection and its session share it; a session that goes on with another
/// connection has another.
pub(crate) struct Outbox {
    pub(crate) bytes: Vec<u8>,
    pub(crate) framing: Framing,
    /// The connection, if it sleeps.
    pub(crate) waker: Option<Waker>,
    /// The connection is to end once the bytes are written. Nothing that it still says is heard.
    pub(crate) closing: bool,
    /// The connection is to end now.
    pub(crate) cut: bool,
    /// When something was last heard.
    pub(crate) heard: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Lengths,
    WebSocket,
}

/// A client that lets so many bytes wait is cut off. More than the longest answer that it can have asked for.
const LIMIT: usize = 2 * frame::MAX_TO_CLIENT;

impl Outbox {
    pub(crate) fn new(framing: Framing) -> Self {
        let (bytes, heard) = (Vec::new(), Instant::now());
        Self { bytes, framing, waker: None, closing: false, cut: false, heard }
    }

    /// Sends a message. `false` if the client lets too much wait.
    fn send(&mut self, message: impl FnOnce(&mut Vec<u8>)) -> bool {
        if self.closing {
            return true;
        }
        match self.framing {
            Framing::Lengths => frame::append(&mut self.bytes, message),
            Framing::WebSocket => websocket::append(&mut self.bytes, None, message),
        }
        if self.bytes.len() > LIMIT {
            self.cut();
            return false;
        }
        self.wake();
        true
    }

    /// Sends a last message and has the connection end.
    pub(crate) fn dismiss(&mut self, code: u32, message: &str) {
        self.send(|out| ToClient::Goodbye { code, message }.encode(out));
        self.close();
    }

    /// Has the connection end once all is written.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        if self.framing == Framing::WebSocket {
            websocket::append_close(&mut self.bytes, None);
        }
        self.wake();
    }

    /// Has the connection end.
    pub(crate) fn cut(&mut self) {
        (self.bytes, self.closing, self.cut) = (Vec::new(), true, true);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Session {
    /// Whether its messages go there.
    pub(crate) fn has(&self, outbox: &Rc<RefCell<Outbox>>) -> bool {
        self.outbox.as_ref().is_some_and(|own| Rc::ptr_eq(own, outbox))
    }

    /// Sends a message. Who is not connected misses it, and asks when it is back.
    pub(crate) fn send(&mut self, message: &ToClient<'_>) {
        self.send_bytes(|out| message.encode(out));
    }

    pub(crate) fn send_bytes(&mut self, message: impl FnOnce(&mut Vec<u8>)) {
        let Some(outbox) = &self.outbox else { return };
        if !outbox.borrow_mut().send(message) {
            tracing::warn!(session = self.id, "cut off: it does not read");
        }
    }

    pub(crate) fn dismiss(&mut self, code: u32, message: &str) {
        if let Some(outbox) = &self.outbox {
            outbox.borrow_mut().dismiss(code, message);
        }
    }
}
