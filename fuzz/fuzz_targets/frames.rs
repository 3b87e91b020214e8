//! Length-prefixed frames: a stream means the same however it is cut into reads.
//!
//! The first byte of an input is the size of a read, the second the longest message; the others are
//! the stream.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lockkeeper_wire::frame::{self, TooLong};

fuzz_target!(|bytes: &[u8]| {
    let Some((&[step, max], stream)) = bytes.split_first_chunk() else { return };
    let (step, max) = (usize::from(step).max(1), usize::from(max));
    let whole = read(stream, stream.len().max(1), max);
    assert_eq!(read(stream, step, max), whole);
    assert!(whole.0.iter().all(|message| message.len() <= max));

    let mut framed = Vec::new();
    frame::append(&mut framed, |out| out.extend(stream));
    assert_eq!(frame::first(&framed, stream.len()), Ok(Some((stream, framed.len()))));
    assert_eq!(frame::first(&framed[..framed.len() - 1], stream.len()), Ok(None));
    if let Some(less) = stream.len().checked_sub(1) {
        assert!(frame::first(&framed, less).is_err());
    }
});

/// The messages of a stream that is read `step` bytes at a time, up to the first that is too long.
fn read(stream: &[u8], step: usize, max: usize) -> (Vec<Vec<u8>>, Option<TooLong>) {
    let (mut messages, mut input) = (Vec::new(), Vec::new());
    for piece in stream.chunks(step) {
        input.extend(piece);
        loop {
            match frame::first(&input, max) {
                Ok(None) => break,
                Ok(Some((message, length))) => {
                    messages.push(message.to_vec());
                    input.drain(..length);
                }
                Err(error) => return (messages, Some(error)),
            }
        }
    }
    (messages, None)
}
