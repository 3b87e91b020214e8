//! WebSocket frames: a stream means the same however it is cut into reads, and what is framed is
//! read back. A frame is split into messages, or is none.
//!
//! The first byte of an input is the size of a read, the second the longest message, the third
//! whether frames are masked; the others are the stream.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lockkeeper_wire::websocket::{
    Broken, Frames, Incoming, append, append_close, append_message, append_pong, first_message,
};

fuzz_target!(|bytes: &[u8]| {
    let Some((&[step, max, masked], stream)) = bytes.split_first_chunk() else { return };
    let (step, max, masked) = (usize::from(step).max(1), usize::from(max), masked % 2 == 0);
    let whole = read(stream, stream.len().max(1), Frames::new(masked, max));
    assert_eq!(read(stream, step, Frames::new(masked, max)), whole);

    // A control frame has room for 125 bytes.
    let ping = &stream[..stream.len().min(125)];
    let mask = masked.then_some([step as u8, 1, 2, 3]);
    let mut framed = Vec::new();
    append(&mut framed, mask, |out| out.extend(stream));
    append_pong(&mut framed, mask, ping);
    append_close(&mut framed, mask);
    let expected = vec![Event::Message(stream.to_vec()), Event::Nothing, Event::Close];
    assert_eq!(read(&framed, step, Frames::new(masked, stream.len())), (expected, None));

    // The messages that a frame begins with, in one frame again.
    let (mut left, mut messages) = (stream, Vec::new());
    while let Ok((message, rest)) = first_message(left) {
        assert!(!message.is_empty());
        messages.push(message);
        left = rest;
    }
    let (mut framed, mut open) = (Vec::new(), None);
    for message in &messages {
        append_message(&mut framed, &mut open, |out| out.extend_from_slice(message));
    }
    let expected = if messages.is_empty() { Vec::new() } else { vec![Event::Message(messages.concat())] };
    assert_eq!(read(&framed, step, Frames::new(false, stream.len())), (expected, None));
});

/// [`Incoming`], without what it borrows.
#[derive(Debug, PartialEq)]
enum Event {
    Message(Vec<u8>),
    Ping(Vec<u8>),
    Nothing,
    Close,
}

/// What a stream says that is read `step` bytes at a time, up to the first frame that is none.
fn read(stream: &[u8], step: usize, mut frames: Frames) -> (Vec<Event>, Option<Broken>) {
    let (mut events, mut input) = (Vec::new(), Vec::new());
    for piece in stream.chunks(step) {
        input.extend(piece);
        loop {
            let length = match frames.first(&mut input) {
                Ok(None) => break,
                Ok(Some((said, length))) => {
                    events.push(match said {
                        Incoming::Messages(message) => Event::Message(message.to_vec()),
                        Incoming::Ping(payload) => Event::Ping(payload.to_vec()),
                        Incoming::Nothing => Event::Nothing,
                        Incoming::Close(_) => Event::Close,
                    });
                    length
                }
                Err(error) => return (events, Some(error)),
            };
            input.drain(..length);
        }
    }
    (events, None)
}
