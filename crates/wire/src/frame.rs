//! Messages on a stream of bytes: each is preceded by its length, four bytes, most significant
//! first.

use std::fmt;

/// The longest message that a daemon takes.
pub const MAX: usize = 1 << 20;

/// The longest message that a client takes: snapshots are long.
pub const MAX_TO_CLIENT: usize = 64 << 20;

const HEADER: usize = 4;

/// Appends a frame: whatever `write` appends, preceded by its length.
///
/// ```
/// # use lockkeeper_wire::frame;
/// let mut out = Vec::new();
/// frame::append(&mut out, |out| out.extend(b"abc"));
/// assert_eq!(out, b"\0\0\0\x03abc");
/// ```
pub fn append(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([0; HEADER]);
    write(out);
    let length = u32::try_from(out.len() - start - HEADER).expect("no message is that long");
    out[start..start + HEADER].copy_from_slice(&length.to_be_bytes());
}

/// The first message of `bytes` and the length of its frame; `None` if it is incomplete.
///
/// # Errors
///
/// [`TooLong`] as soon as the length is known.
///
/// ```
/// # use lockkeeper_wire::frame;
/// assert_eq!(frame::first(b"\0\0\0\x03ab", 10), Ok(None));
/// assert_eq!(frame::first(b"\0\0\0\x03abc and more", 10), Ok(Some((&b"abc"[..], 7))));
/// assert!(frame::first(b"\0\0\0\x0b", 10).is_err());
/// ```
pub fn first(bytes: &[u8], max: usize) -> Result<Option<(&[u8], usize)>, TooLong> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
    let length = u32::from_be_bytes(*header) as usize;
    if length > max {
        return Err(TooLong { length, max });
    }
    Ok(rest.get(..length).map(|message| (message, HEADER + length)))
}

/// A message is longer than its reader takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// Its length.
    pub length: usize,
    /// The reader's maximum.
    pub max: usize,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a message of {} bytes is too long: {} at most", self.length, self.max)
    }
}

impl std::error::Error for TooLong {}
