//! Messages on their way to a client, held until the round that they belong to is committed.

use crate::sabotage::{Rule, holds};
use lockkeeper_wire::{frame, v2::ToClient, websocket};
use std::{cell::Cell, collections::VecDeque, rc::Rc};

/// How messages are delimited on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Each is preceded by its length.
    Lengths,
    /// WebSocket frames have one or more.
    WebSocket,
}

impl Framing {
    /// Appends a message, which `write` writes. `open` is where the last frame begins, if it may
    /// have more messages.
    pub fn append(self, bytes: &mut Vec<u8>, open: &mut Option<usize>, write: impl FnOnce(&mut Vec<u8>)) {
        match self {
            Self::Lengths => frame::append(bytes, write),
            Self::WebSocket => websocket::append_message(bytes, open, write),
        }
    }
}

pub(crate) struct Outbox {
    framing: Framing,
    bytes: Vec<u8>,
    /// How many of the bytes are sent. They go when they are half of all: to move the others with
    /// each write would take long where many wait.
    sent: usize,
    /// How many of the bytes may be sent, with those that are.
    released: usize,
    /// The rounds of the bytes that are not released: each with the end of its bytes.
    held: VecDeque<(u64, usize)>,
    /// Where the last frame begins, as long as more messages of its round may go into it.
    open: Option<usize>,
    /// Messages that need no commit, by their numbers, and the memory they take.
    aside: VecDeque<(u64, Vec<u8>)>,
    aside_bytes: usize,
    /// Bytes of all outboxes, and those of this one that are counted there.
    total: Rc<Cell<usize>>,
    counted: usize,
}

/// Capacity that an empty outbox keeps.
const KEPT: usize = 4 << 10;

/// Memory that a message takes that was put aside, beyond its bytes.
const ASIDE: usize = 64;

impl Outbox {
    pub(crate) fn new(framing: Framing, total: Rc<Cell<usize>>) -> Self {
        let (bytes, held, aside) = (Vec::new(), VecDeque::new(), VecDeque::new());
        let (sent, released, aside_bytes, counted) = (0, 0, 0, 0);
        Self { framing, bytes, sent, released, held, open: None, aside, aside_bytes, total, counted }
    }

    fn count(&mut self) {
        let waiting = self.bytes.len() - self.sent + self.aside_bytes;
        let before = std::mem::replace(&mut self.counted, waiting);
        self.total.set(self.total.get() - before + self.counted);
    }

    /// Appends a message of this round. Returns whether it is the round's first here.
    pub(crate) fn send(&mut self, round: u64, message: &ToClient<'_>) -> bool {
        self.append_message(round, |out| message.encode(out))
    }

    fn append_message(&mut self, round: u64, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        // A frame is sent as a whole: what is committed later is not part of it.
        let mut open = self.open.filter(|_| self.held.back().is_some_and(|(last, _)| *last == round));
        let first = self.append(round, |framing, bytes| framing.append(bytes, &mut open, write));
        self.open = open.filter(|_| holds(Rule::SpeakAfterCommit));
        first
    }

    /// Appends what the transport itself has to say.
    pub(crate) fn append(&mut self, round: u64, write: impl FnOnce(Framing, &mut Vec<u8>)) -> bool {
        self.open = None;
        write(self.framing, &mut self.bytes);
        self.count();
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

    /// Puts a message aside that needs no commit. Numbers grow.
    pub(crate) fn put_aside(&mut self, number: u64, message: Vec<u8>) {
        self.aside_bytes += message.len() + ASIDE;
        self.aside.push_back((number, message));
        self.count();
    }

    /// Whether there are such messages.
    pub(crate) fn has_aside(&self) -> bool {
        !self.aside.is_empty()
    }

    /// Puts the messages aside, up to that number, before those that wait for their round.
    pub(crate) fn overtake(&mut self, last: u64) {
        let held = self.bytes.split_off(self.released);
        while let Some((_, message)) = self.aside.pop_front_if(|(number, _)| *number <= last) {
            self.aside_bytes -= message.len() + ASIDE;
            self.framing.append(&mut self.bytes, &mut None, |out| out.extend_from_slice(&message));
        }
        let length = self.bytes.len() - self.released;
        self.released += length;
        self.held.iter_mut().for_each(|(_, end)| *end += length);
        self.open = self.open.map(|start| start + length);
        self.bytes.extend_from_slice(&held);
        self.count();
    }

    /// Sends the messages aside with this round. Returns whether they are the round's first here.
    pub(crate) fn send_aside(&mut self, round: u64) -> bool {
        self.aside_bytes = 0;
        let messages = std::mem::take(&mut self.aside);
        messages.iter().fold(false, |first, (_, message)| {
            self.append_message(round, |out| out.extend_from_slice(message)) || first
        })
    }

    /// Rounds up to this one are committed.
    pub(crate) fn release(&mut self, round: u64) {
        while let Some((_, end)) = self.held.pop_front_if(|(held, _)| *held <= round) {
            self.released = self.released.max(end);
        }
        self.open = self.open.filter(|&start| start >= self.released);
    }

    /// The bytes that may be sent.
    pub(crate) fn ready(&self) -> &[u8] {
        &self.bytes[self.sent..self.released]
    }

    /// So much was sent.
    pub(crate) fn consume(&mut self, count: usize) {
        self.sent += count;
        let gone = if self.sent > self.bytes.len() / 2 { std::mem::take(&mut self.sent) } else { 0 };
        if gone == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT);
        } else {
            self.bytes.drain(..gone);
        }
        self.count();
        self.released -= gone;
        self.held.iter_mut().for_each(|(_, end)| *end -= gone);
        self.open = self.open.map(|start| start - gone);
    }

    /// How much waits, held, aside or neither.
    pub(crate) fn len(&self) -> usize {
        self.counted
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.counted == 0
    }

    /// Drops all that was not sent.
    pub(crate) fn clear(&mut self) {
        (self.bytes, self.sent, self.released) = (Vec::new(), 0, 0);
        (self.aside, self.aside_bytes) = (VecDeque::new(), 0);
        self.count();
        self.held.clear();
        self.open = None;
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{Framing, Outbox};
    use lockkeeper_wire::{
        v2::ToClient,
        websocket::{BATCH, Frames, Incoming, first_message},
    };
    use std::rc::Rc;

    /// Sends all that may be sent, and returns the number of messages in each frame.
    fn sent(outbox: &mut Outbox) -> Vec<usize> {
        let mut bytes = outbox.ready().to_vec();
        outbox.consume(bytes.len());
        let (mut frames, mut start, mut counts) = (Frames::new(false, 2 * BATCH), 0, Vec::new());
        while let Some((said, length)) = frames.first(&mut bytes[start..]).expect("frames") {
            let Incoming::Messages(mut frame) = said else { panic!("{said:?}") };
            let mut count = 0;
            while !frame.is_empty() {
                (_, frame) = first_message(frame).expect("whole messages");
                count += 1;
            }
            counts.push(count);
            start += length;
        }
        assert_eq!(start, bytes.len(), "whole frames");
        counts
    }

    fn send(outbox: &mut Outbox, round: u64, messages: u64) {
        for rid in 0..messages {
            outbox.send(round, &ToClient::Granted { rid, token: rid });
        }
    }

    #[test]
    fn a_frame_has_the_messages_of_one_round() {
        let mut outbox = Outbox::new(Framing::WebSocket, Rc::default());
        send(&mut outbox, 1, 100);
        send(&mut outbox, 2, 3);
        assert_eq!(sent(&mut outbox), []);
        outbox.release(1);
        send(&mut outbox, 2, 4);
        assert_eq!(sent(&mut outbox), [100]);
        send(&mut outbox, 2, 5);
        outbox.release(2);
        send(&mut outbox, 3, 1);
        outbox.release(3);
        assert_eq!(sent(&mut outbox), [12, 1]);
    }

    /// Twenty megabytes were moved with each of a hundred writes.
    #[test]
    fn what_is_not_sent_yet_is_not_moved_with_each_write() {
        let mut boxes = [(); 2].map(|()| Outbox::new(Framing::WebSocket, Rc::default()));
        let (mut stream, mut moved) = (Vec::new(), 0);
        for round in 1..=100 {
            for outbox in &mut boxes {
                send(outbox, round, 50);
                outbox.release(round);
                if round == 50 {
                    outbox.put_aside(1, vec![0x92, 12, 1]);
                    outbox.overtake(1);
                }
            }
            // One is read a little at a time, the other in the end.
            let [outbox, whole] = &mut boxes;
            let end = outbox.ready().as_ptr_range().end;
            stream.extend_from_slice(&outbox.ready()[..97]);
            outbox.consume(97);
            assert_eq!(outbox.len(), whole.len() - stream.len());
            moved += usize::from(outbox.ready().as_ptr_range().end != end);
        }
        let [mut outbox, whole] = boxes;
        stream.extend_from_slice(outbox.ready());
        outbox.consume(outbox.ready().len());
        assert!(stream == whole.ready() && outbox.is_empty());
        assert!(moved < 10, "{moved}");
    }

    #[test]
    fn what_overtakes_is_a_frame_of_its_own() {
        let mut outbox = Outbox::new(Framing::WebSocket, Rc::default());
        let pong = vec![0x92, 12, 1];
        send(&mut outbox, 1, 2);
        (1..=3).for_each(|number| outbox.put_aside(number, pong.clone()));
        outbox.overtake(2);
        send(&mut outbox, 1, 3);
        assert_eq!(sent(&mut outbox), [1, 1]);
        outbox.overtake(3);
        assert_eq!(sent(&mut outbox), [1]);
        send(&mut outbox, 1, 4);
        outbox.release(1);
        assert_eq!(sent(&mut outbox), [9]);
    }

    #[test]
    fn what_the_transport_says_stands_between_messages() {
        let mut outbox = Outbox::new(Framing::WebSocket, Rc::default());
        send(&mut outbox, 1, 2);
        // A frame in another encoding.
        outbox.append(1, |_, bytes| bytes.extend(b"\x82\x01\xc0"));
        send(&mut outbox, 1, 3);
        outbox.release(1);
        assert_eq!(sent(&mut outbox), [2, 1, 3]);
    }

    #[test]
    fn a_frame_with_several_messages_has_a_length() {
        let mut outbox = Outbox::new(Framing::WebSocket, Rc::default());
        for length in [30_000, 30_000, 30_000, BATCH, 1, 1] {
            outbox.send(1, &ToClient::Goodbye { code: 1, message: &"m".repeat(length) });
        }
        outbox.release(1);
        assert_eq!(sent(&mut outbox), [2, 1, 1, 2]);
    }
}
