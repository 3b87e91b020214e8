//! Messages on their way to a client, held until the round that they belong to is committed.

use crate::sabotage::{Rule, holds};
use lockkeeper_wire::{frame, v2::ToClient, websocket};
use std::collections::VecDeque;

/// How messages are told apart on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Each is preceded by its length.
    Lengths,
    /// Each is a WebSocket frame.
    WebSocket,
}

impl Framing {
    /// Appends a message, which `write` writes.
    pub fn append(self, bytes: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        match self {
            Self::Lengths => frame::append(bytes, write),
            Self::WebSocket => websocket::append(bytes, None, write),
        }
    }
}

pub(crate) struct Outbox {
    framing: Framing,
    bytes: Vec<u8>,
    /// How many of the bytes may be sent.
    released: usize,
    /// Up to where the bytes belong to which round, beyond those released.
    held: VecDeque<(u64, usize)>,
}

/// Capacity that an empty outbox keeps.
const KEPT: usize = 4 << 10;

impl Outbox {
    pub(crate) fn new(framing: Framing) -> Self {
        Self { framing, bytes: Vec::new(), released: 0, held: VecDeque::new() }
    }

    /// Appends a message of this round. Returns whether it is the round's first here.
    pub(crate) fn send(&mut self, round: u64, message: &ToClient<'_>) -> bool {
        self.append(round, |framing, bytes| framing.append(bytes, |out| message.encode(out)))
    }

    /// The same, of a message that is encoded already.
    pub(crate) fn send_encoded(&mut self, round: u64, message: &[u8]) -> bool {
        self.append(round, |framing, bytes| framing.append(bytes, |out| out.extend_from_slice(message)))
    }

    /// Appends what the transport itself has to say.
    pub(crate) fn append(&mut self, round: u64, write: impl FnOnce(Framing, &mut Vec<u8>)) -> bool {
        write(self.framing, &mut self.bytes);
        if !holds(Rule::SpeakAfterCommit) {
            self.released = self.bytes.len();
        }
        match self.held.back_mut() {
            Some((last, end)) if *last == round => {
                *end = self.bytes.len();
                false
            }
            _ => {
                self.held.push_back((round, self.bytes.len()));
                true
            }
        }
    }

    /// Puts a message before those that wait for their round.
    pub(crate) fn overtake(&mut self, message: &[u8]) {
        let held = self.bytes.split_off(self.released);
        self.framing.append(&mut self.bytes, |out| out.extend_from_slice(message));
        let length = self.bytes.len() - self.released;
        self.released += length;
        self.held.iter_mut().for_each(|(_, end)| *end += length);
        self.bytes.extend_from_slice(&held);
    }

    /// Rounds up to this one are committed.
    pub(crate) fn release(&mut self, round: u64) {
        while let Some((_, end)) = self.held.pop_front_if(|(held, _)| *held <= round) {
            self.released = self.released.max(end);
        }
    }

    /// What may be sent.
    pub(crate) fn ready(&self) -> &[u8] {
        &self.bytes[..self.released]
    }

    /// So much was sent.
    pub(crate) fn consume(&mut self, count: usize) {
        if count == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT);
        } else {
            self.bytes.drain(..count);
        }
        self.released -= count;
        self.held.iter_mut().for_each(|(_, end)| *end -= count);
    }

    /// How much waits, held or not.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Drops all that was not sent.
    pub(crate) fn clear(&mut self) {
        (self.bytes, self.released) = (Vec::new(), 0);
        self.held.clear();
    }
}
