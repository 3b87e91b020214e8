//! Frames, against the examples of RFC 6455 and against themselves in pieces.

use lockkeeper_wire::websocket::{Broken, Frames, Incoming, append, append_close, append_pong};

const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// What is heard of bytes that come all at once.
fn heard(frames: &mut Frames, mut bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, Broken> {
    let (mut messages, mut start) = (Vec::new(), 0);
    while let Some((said, length)) = frames.first(&mut bytes[start..])? {
        if let Incoming::Messages(message) = said {
            messages.push(message.to_vec());
        }
        start += length;
    }
    assert_eq!(start, bytes.len(), "all was whole");
    Ok(messages)
}

#[test]
fn the_examples_of_the_standard() {
    // §5.7, with the opcode of binary messages.
    let mut masked = vec![0x82, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    let mut written = Vec::new();
    append(&mut written, Some(MASK), |out| out.extend(b"Hello"));
    assert_eq!(written, masked);
    assert_eq!(Frames::new(true, 10).first(&mut masked), Ok(Some((Incoming::Messages(b"Hello"), 11))));
    let parts = b"\x02\x03Hel\x89\x05Hello\x80\x02lo".to_vec();
    assert_eq!(heard(&mut Frames::new(false, 10), parts), Ok(vec![b"Hello".to_vec()]));
    for (length, header) in [
        (125, &[0x82, 125][..]),
        (126, &[0x82, 126, 0, 126]),
        (256, &[0x82, 126, 1, 0]),
        (65_535, &[0x82, 126, 0xff, 0xff]),
        (65_536, &[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
    ] {
        let mut written = Vec::new();
        append(&mut written, None, |out| out.resize(out.len() + length, 7));
        assert_eq!(&written[..header.len()], header);
        assert_eq!(heard(&mut Frames::new(false, length), written), Ok(vec![vec![7; length]]));
    }
    let mut control = Vec::new();
    append_pong(&mut control, None, b"Hello");
    append_close(&mut control, None);
    assert_eq!(control, b"\x8a\x05Hello\x88\x02\x03\xe8");
}

#[test]
fn what_is_said_is_heard_wherever_it_is_cut() {
    let mut bytes = Vec::new();
    let messages: Vec<Vec<u8>> = [0, 1, 125, 126, 127, 1_000, 70_000].map(|length| vec![9; length]).to_vec();
    for message in &messages {
        append(&mut bytes, Some(MASK), |out| out.extend(message));
        append_pong(&mut bytes, Some(MASK), b"between");
    }
    for step in [1, 2, 3, 7, 64, 4_096] {
        let (mut frames, mut input, mut seen) = (Frames::new(true, 70_000), Vec::new(), Vec::new());
        for piece in bytes.chunks(step) {
            input.extend(piece);
            while let Some((said, length)) = frames.first(&mut input).expect("it is as it should be") {
                if let Incoming::Messages(message) = said {
                    seen.push(message.to_vec());
                }
                input.drain(..length);
            }
        }
        assert_eq!(seen, messages);
    }
}

#[test]
fn what_is_too_long_is_refused_by_its_beginning() {
    let refused = |frames: &mut Frames, bytes: &[u8]| {
        matches!(frames.first(&mut bytes.to_vec()), Err(Broken::TooLong(_)))
    };
    assert!(refused(&mut Frames::new(false, 10), b"\x82\x0b"));
    assert!(refused(&mut Frames::new(false, 10), b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff"));
    let mut frames = Frames::new(false, 10);
    assert_eq!(heard(&mut frames, b"\x02\x06abcdef".to_vec()), Ok(vec![]));
    assert!(refused(&mut frames, b"\x00\x05"));
}
