//! Messages in WebSocket frames (RFC 6455), without the handshake and without I/O. A frame has one
//! or more messages, one after the other; messages are self-delimiting.

use crate::{
    frame::TooLong,
    pack::{Malformed, Reader},
};
use std::fmt;

/// The name of the protocol in a WebSocket handshake.
pub const SUBPROTOCOL: &str = "lockkeeper.v2";

/// The key of a handshake, for which a daemon must prove that it supports WebSocket (RFC 6455
/// §4.1).
#[cfg(feature = "handshake")]
pub fn key(random: [u8; 16]) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    STANDARD.encode(random)
}

/// The proof (§4.2.2).
///
/// ```
/// # use lockkeeper_wire::websocket::accept;
/// assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
/// ```
#[cfg(feature = "handshake")]
pub fn accept(key: &str) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()))
}

const FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// The status of a connection that ends because its page or process does (RFC 6455 §7.4.1).
pub const GOING_AWAY: u16 = 1001;

/// The maximum payload of a control frame.
const CONTROL_MAX: usize = 125;

/// The longest frame that has several messages: one reads it whole before the first of them.
pub const BATCH: usize = 64 << 10;

/// Appends one frame with the bytes that `write` appends. A client masks its frames, a daemon does
/// not.
///
/// ```
/// # use lockkeeper_wire::websocket;
/// let mut out = Vec::new();
/// websocket::append(&mut out, None, |out| out.extend(b"abc"));
/// assert_eq!(out, b"\x82\x03abc");
/// ```
pub fn append(out: &mut Vec<u8>, mask: Option<[u8; 4]>, write: impl FnOnce(&mut Vec<u8>)) {
    append_frame(out, BINARY, mask, write);
}

/// Appends a message to the frame that begins at `open`, or in a new frame if there is none or it
/// has no room. Stores where the last frame begins. Nothing may follow that frame, and none of it
/// may have been sent.
///
/// ```
/// # use lockkeeper_wire::websocket;
/// let (mut out, mut open) = (Vec::new(), None);
/// websocket::append_message(&mut out, &mut open, |out| out.extend(b"ab"));
/// websocket::append_message(&mut out, &mut open, |out| out.extend(b"c"));
/// assert_eq!((&*out, open), (&b"\x82\x03abc"[..], Some(0)));
/// ```
pub fn append_message(out: &mut Vec<u8>, open: &mut Option<usize>, write: impl FnOnce(&mut Vec<u8>)) {
    let Some(start) = *open else {
        *open = Some(out.len());
        return append(out, None, write);
    };
    let payload = start + 2 + length_bytes(out[start + 1]);
    let end = out.len();
    write(out);
    if out.len() - payload <= BATCH {
        set_length(out, start, out.len() - payload);
    } else {
        *open = Some(end);
        out.splice(end..end, [FINAL | BINARY, 0]);
        set_length(out, end, out.len() - end - 2);
    }
}

/// The first message of a frame, and the others.
///
/// # Errors
///
/// If there is none, or it does not end within the frame.
///
/// ```
/// # use lockkeeper_wire::websocket::first_message;
/// assert_eq!(first_message(b"\x92\x08\x01\x91"), Ok((&b"\x92\x08\x01"[..], &b"\x91"[..])));
/// assert!(first_message(b"\x91").is_err());
/// ```
pub fn first_message(frame: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let mut reader = Reader::new(frame);
    reader.skip(1)?;
    Ok(frame.split_at(frame.len() - reader.rest().len()))
}

/// Appends the answer to a ping.
pub fn append_pong(out: &mut Vec<u8>, mask: Option<[u8; 4]>, ping: &[u8]) {
    append_frame(out, PONG, mask, |out| out.extend(ping));
}

/// Appends the frame that ends a connection gracefully.
pub fn append_close(out: &mut Vec<u8>, mask: Option<[u8; 4]>) {
    append_frame(out, CLOSE, mask, |out| out.extend(1000_u16.to_be_bytes()));
}

fn append_frame(out: &mut Vec<u8>, opcode: u8, mask: Option<[u8; 4]>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([FINAL | opcode, if mask.is_some() { MASKED } else { 0 }]);
    out.extend(mask.iter().flatten());
    let payload = out.len();
    write(out);
    let length = out.len() - payload;
    if let Some(mask) = mask {
        apply(mask, &mut out[payload..]);
    }
    set_length(out, start, length);
}

/// Sets the length of the last frame. Nearly all are short: room is made for the length of the
/// others.
fn set_length(out: &mut Vec<u8>, start: usize, length: usize) {
    let (short, long) = match u16::try_from(length) {
        Ok(length) if usize::from(length) <= CONTROL_MAX => (length.to_be_bytes()[1], &[][..]),
        Ok(length) => (126, &length.to_be_bytes()[..]),
        Err(_) => (127, &(length as u64).to_be_bytes()[..]),
    };
    let before = length_bytes(out[start + 1]);
    out[start + 1] = short | out[start + 1] & MASKED;
    out.splice(start + 2..start + 2 + before, long.iter().copied());
}

/// How many bytes of a frame's length follow its second byte.
fn length_bytes(second: u8) -> usize {
    match second & !MASKED {
        126 => 2,
        127 => 8,
        _ => 0,
    }
}

fn apply(mask: [u8; 4], payload: &mut [u8]) {
    for chunk in payload.chunks_mut(4) {
        chunk.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    }
}

/// The contents of a frame from the other side.
#[derive(Debug, PartialEq, Eq)]
pub enum Incoming<'a> {
    /// Messages of the protocol, one or more: see [`first_message`].
    Messages(&'a [u8]),
    /// It wants this back in a pong.
    Ping(&'a [u8]),
    /// Nothing that matters: a part of a frame, a pong.
    Nothing,
    /// It wants to end the connection, with this status if it gives one.
    Close(Option<u16>),
}

/// Frames, whole. One can come in fragments, and pings in between.
#[derive(Debug)]
pub struct Frames {
    masked: bool,
    max: usize,
    /// The fragments so far, and whether there are any.
    parts: Vec<u8>,
    open: bool,
}

impl Frames {
    /// Takes frames of up to `max` bytes, from a client, whose frames are masked, or from a daemon.
    pub fn new(masked: bool, max: usize) -> Self {
        Self { masked, max, parts: Vec::new(), open: false }
    }

    /// Takes frames of up to `max` bytes from now on.
    pub fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    /// Bytes of a frame in fragments so far.
    pub fn kept(&self) -> usize {
        self.parts.len()
    }

    /// The contents of the first frame of `bytes`, and its length; `None` if it is incomplete. The
    /// frame is unmasked in place, so call this once for each frame.
    ///
    /// # Errors
    ///
    /// [`Broken`] as soon as it is known. The bytes after it are meaningless.
    ///
    /// ```
    /// # use lockkeeper_wire::websocket::{Frames, Incoming};
    /// let mut frames = Frames::new(false, 10);
    /// assert_eq!(frames.first(&mut b"\x82\x03ab".to_owned()), Ok(None));
    /// assert_eq!(frames.first(&mut b"\x02\x02ab".to_owned()), Ok(Some((Incoming::Nothing, 4))));
    /// assert_eq!(frames.first(&mut b"\x80\x01c".to_owned()), Ok(Some((Incoming::Messages(b"abc"), 3))));
    /// assert!(frames.first(&mut b"\x82\x0b".to_owned()).is_err());
    /// ```
    pub fn first<'a>(&'a mut self, bytes: &'a mut [u8]) -> Result<Option<(Incoming<'a>, usize)>, Broken> {
        if !self.open && self.parts.capacity() > 0 {
            // They were taken. An idle connection keeps no space for the next one.
            self.parts = Vec::new();
        }
        let Some(&[first, second]) = bytes.first_chunk() else { return Ok(None) };
        let (last, opcode) = (first & FINAL != 0, first & !FINAL & !RESERVED);
        if first & RESERVED != 0 {
            return Err(Broken::Rules("an extension that was not agreed on"));
        }
        if (second & MASKED != 0) != self.masked {
            return Err(Broken::Rules("a client masks its frames, and a daemon does not"));
        }
        let (length, start) = match second & !MASKED {
            126 => match bytes[2..].first_chunk() {
                Some(length) => (u64::from(u16::from_be_bytes(*length)), 4),
                None => return Ok(None),
            },
            127 => match bytes[2..].first_chunk() {
                Some(length) => (u64::from_be_bytes(*length), 10),
                None => return Ok(None),
            },
            length => (u64::from(length), 2),
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let before = if opcode == CONTINUATION { self.parts.len() } else { 0 };
        match opcode {
            CONTINUATION if !self.open => return Err(Broken::Rules("the rest of no message")),
            BINARY if self.open => return Err(Broken::Rules("a message within a message")),
            TEXT => return Err(Broken::Rules("messages are binary, not text")),
            CLOSE | PING | PONG if !last || length > CONTROL_MAX => {
                return Err(Broken::Rules("a control frame in parts, or too long"));
            }
            CONTINUATION | BINARY if length > self.max.saturating_sub(before) => {
                return Err(Broken::TooLong(TooLong {
                    length: before.saturating_add(length),
                    max: self.max,
                }));
            }
            CONTINUATION | BINARY | CLOSE | PING | PONG => {}
            _ => return Err(Broken::Rules("no such frame")),
        }
        let payload = if self.masked { start + 4 } else { start };
        let end = payload + length;
        if bytes.len() < end {
            return Ok(None);
        }
        if self.masked {
            let mask = bytes[start..payload].try_into().expect("four bytes are four");
            apply(mask, &mut bytes[payload..end]);
        }
        let payload = &bytes[payload..end];
        let said = match opcode {
            BINARY if last => Incoming::Messages(payload),
            BINARY | CONTINUATION => {
                if opcode == BINARY {
                    self.parts.clear();
                }
                self.parts.extend(payload);
                self.open = !last;
                if last { Incoming::Messages(&self.parts) } else { Incoming::Nothing }
            }
            PING => Incoming::Ping(payload),
            CLOSE => Incoming::Close(payload.first_chunk().map(|status| u16::from_be_bytes(*status))),
            _ => Incoming::Nothing,
        };
        Ok(Some((said, end)))
    }
}

/// Bytes that are no frames of the protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// They are not as WebSocket, or this protocol, has them.
    Rules(&'static str),
    /// The message is too long.
    TooLong(TooLong),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rules(why) => write!(f, "malformed frame: {why}"),
            Self::TooLong(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Broken {}
