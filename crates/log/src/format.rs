//! The bytes of a file: a header, then frames. No I/O here.
//!
//! All numbers are little-endian.
//! * header: magic (8), version (4), checksum (4), number (8), salt (4)
//! * frame: checksum (4), length of the whole frame (4), number (8), content
//! * content of a segment's frame: records, each with its length (4)
//!
//! A checksum covers everything in its header or frame but itself. Zeros are no frame, since a
//! frame's length includes its head. The checksums of a segment's frames begin with its salt, a
//! random number: a record can have any content that a client likes, and must not look like a
//! frame.

use crc32c::{crc32c, crc32c_append};

pub(crate) const VERSION: u32 = 1;
pub(crate) const HEADER: usize = 28;
pub(crate) const FRAME: usize = 16;

pub(crate) const SEGMENT: &[u8; 8] = b"LKPR-LOG";
pub(crate) const SNAPSHOT: &[u8; 8] = b"LKPRSNAP";
pub(crate) const MARK: &[u8; 8] = b"LKPRMARK";

/// Why a header cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    Damaged,
    Version(u32),
}

pub(crate) fn header(magic: &[u8; 8], number: u64, salt: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(magic);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..24].copy_from_slice(&number.to_le_bytes());
    header[24..].copy_from_slice(&salt.to_le_bytes());
    let sum = header_sum(&header);
    header[12..16].copy_from_slice(&sum.to_le_bytes());
    header
}

/// The number and the salt in a header.
pub(crate) fn read_header(bytes: &[u8], magic: &[u8; 8]) -> Result<(u64, u32), BadHeader> {
    let header = bytes.first_chunk::<HEADER>().ok_or(BadHeader::Damaged)?;
    if header[..8] != magic[..] {
        return Err(BadHeader::Damaged);
    }
    // Before the checksum, which another version may have elsewhere.
    match u32_at(header, 8) {
        VERSION if header_sum(header) == u32_at(header, 12) => Ok((u64_at(header, 16), u32_at(header, 24))),
        // There was never a version 0: that is a header which is only partly on disk.
        VERSION | 0 => Err(BadHeader::Damaged),
        other => Err(BadHeader::Version(other)),
    }
}

fn header_sum(header: &[u8; HEADER]) -> u32 {
    crc32c_append(crc32c(&header[..12]), &header[16..])
}

/// Completes a frame whose content was appended to [`FRAME`] bytes of any value.
///
/// # Panics
///
/// At 4 GiB.
pub(crate) fn seal(frame: &mut [u8], number: u64, salt: u32) {
    let length = u32::try_from(frame.len()).expect("a frame is smaller than 4 GiB");
    frame[4..8].copy_from_slice(&length.to_le_bytes());
    frame[8..FRAME].copy_from_slice(&number.to_le_bytes());
    let sum = crc32c_append(salt, &frame[4..]);
    frame[..4].copy_from_slice(&sum.to_le_bytes());
}

/// The length of a frame as its head has it, which can be wrong.
pub(crate) fn frame_length(head: &[u8; FRAME]) -> usize {
    u32_at(head, 4) as usize
}

/// Number and content of the frame that these bytes begin with.
pub(crate) fn read_frame(bytes: &[u8], salt: u32) -> Option<(u64, &[u8])> {
    let length = frame_length(bytes.first_chunk()?);
    let content = bytes.get(FRAME..length)?;
    let good = crc32c_append(salt, &bytes[4..length]) == u32_at(bytes, 0);
    good.then(|| (u64_at(bytes, 8), content))
}

/// The first record of a segment's frame, and what comes after it.
pub(crate) fn split_record(content: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = content.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// The readable part of a segment.
pub(crate) struct Readable {
    /// The byte after the last good frame.
    pub(crate) end: usize,
    /// The position of the record that would come next.
    pub(crate) next: u64,
}

/// Follows the frames of a segment from its header on.
pub(crate) fn walk(segment: &[u8], first: u64, salt: u32) -> Readable {
    let mut readable = Readable { end: HEADER, next: first };
    while let Some((number, mut content)) = read_frame(&segment[readable.end..], salt) {
        let size = FRAME + content.len();
        let mut next = number;
        while let Some((_, rest)) = split_record(content) {
            (content, next) = (rest, next + 1);
        }
        if number != readable.next || !content.is_empty() || next == number {
            break;
        }
        readable = Readable { end: readable.end + size, next };
    }
    readable
}

/// Whether there is a frame for this position or a later one, at any byte from `from` on.
pub(crate) fn has_later_frame(segment: &[u8], from: usize, position: u64, salt: u32) -> bool {
    let last = segment.len().saturating_sub(FRAME - 1);
    (from..last).any(|at| {
        // The number first: a checksum over a random length at every byte would take long.
        let ahead = u64_at(segment, at + 8).checked_sub(position);
        let plausible = ahead.is_some_and(|ahead| ahead <= segment.len() as u64);
        plausible && read_frame(&segment[at..], salt).is_some()
    })
}

/// The end of what is not zeros.
pub(crate) fn written(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back_and_no_other_one_is() {
        let good = header(SEGMENT, 7, 3);
        assert_eq!(read_header(&good, SEGMENT), Ok((7, 3)));
        assert_eq!(read_header(&good, SNAPSHOT), Err(BadHeader::Damaged));
        assert_eq!(read_header(&good[..HEADER - 1], SEGMENT), Err(BadHeader::Damaged));
        for byte in 0..HEADER {
            let mut bad = good;
            bad[byte] ^= 1;
            assert!(read_header(&bad, SEGMENT).is_err(), "byte {byte}");
        }
        let mut newer = good;
        newer[8] = 2;
        assert_eq!(read_header(&newer, SEGMENT), Err(BadHeader::Version(2)));
    }

    #[test]
    fn zeros_are_no_frame() {
        assert_eq!(read_frame(&[0; 64], 0), None);
        assert!(!has_later_frame(&[0; 64], 0, 0, 0));
    }

    #[test]
    fn a_later_frame_is_found_at_any_byte_and_an_earlier_one_is_not() {
        let mut frame = vec![0; FRAME];
        frame.extend_from_slice(b"content");
        seal(&mut frame, 9, 3);
        for lead in 0..20 {
            let bytes = [&vec![0xff; lead][..], &frame].concat();
            assert!(has_later_frame(&bytes, 0, 9, 3));
            assert!(has_later_frame(&bytes, lead, 5, 3));
            assert!(!has_later_frame(&bytes, 0, 10, 3));
            assert!(!has_later_frame(&bytes, lead + 1, 9, 3));
            assert!(!has_later_frame(&bytes, 0, 9, 4));
        }
    }
}
