//! The mark: the facts that must survive a crash of the machine, even if the log's end is lost.
//!
//! One small file with two equal copies. The first is written and synced, then the second. If that
//! is interrupted, one of them is whole; the first, if whole, is the newer one. No new space is
//! needed, so a mark can be set on a full disk.

use crate::{
    dir::{Dir, create, mark_path, unfinished},
    error::OpenError,
    format::{BadHeader, FRAME, HEADER, MARK, VERSION, header, read_frame, read_header, seal, u64_at},
};
use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

/// Upper bounds that were given to clients, and hold even if the log's end is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The longest ttl of any client that can still be alive, in milliseconds.
    pub max_ttl_ms: u64,
    /// An upper bound of all tokens granted.
    pub token_ceiling: u64,
}

/// The mark, and in which state the log was left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) mark: Mark,
    /// The boot in which the log was written.
    pub(crate) boot_id: [u8; 16],
    /// Whether the log was closed: everything is on disk, and nothing came after.
    pub(crate) closed: bool,
    /// Whether everything that was committed is on disk.
    pub(crate) synced: bool,
    /// Whether the machine has crashed and the caller has not dealt with it yet.
    pub(crate) unsettled: bool,
}

/// The distance of the copies. One page, so that no disk writes both in one sector.
const COPY: u64 = 4096;

/// The length of a copy.
const LENGTH: usize = HEADER + FRAME + 32;

pub(crate) struct MarkFile {
    file: File,
    stored: Stored,
}

impl MarkFile {
    /// Creates the file, or replaces an obsolete one.
    pub(crate) fn create(dir: &Dir, stored: Stored) -> io::Result<Self> {
        let path = mark_path(dir.path());
        let new = unfinished(&path);
        let file = create(&new)?;
        for copy in [0, COPY] {
            file.write_all_at(&encode(&stored), copy)?;
        }
        file.sync_all()?;
        fs::rename(&new, &path)?;
        dir.sync()?;
        Ok(Self { file, stored })
    }

    /// Opens the file, in which `stored` was read.
    pub(crate) fn open(dir: &Dir, stored: Stored) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).open(mark_path(dir.path()))?;
        Ok(Self { file, stored })
    }

    pub(crate) fn stored(&self) -> Stored {
        self.stored
    }

    /// Replaces what is stored, durably. After an error the file has the old or the new one.
    pub(crate) fn store(&mut self, stored: Stored) -> io::Result<()> {
        if stored != self.stored {
            let bytes = encode(&stored);
            for copy in [0, COPY] {
                self.file.write_all_at(&bytes, copy)?;
                self.file.sync_data()?;
            }
            self.stored = stored;
        }
        Ok(())
    }
}

/// Reads what is stored, without a change.
pub(crate) fn read(dir: &Path) -> Result<Stored, OpenError> {
    let path = mark_path(dir);
    let bytes = fs::read(&path).map_err(OpenError::io(&path))?;
    let second = usize::try_from(COPY).ok().and_then(|copy| bytes.get(copy..));
    let copies = [decode(&bytes), decode(second.unwrap_or_default())];
    match copies {
        [Ok(stored), _] | [_, Ok(stored)] => Ok(stored),
        [Err(BadHeader::Version(found)), Err(BadHeader::Version(_))] => {
            Err(OpenError::Format { path, found, known: VERSION })
        }
        _ => Err(OpenError::damaged(&path, 0, "neither copy of the mark can be read")),
    }
}

/// The number of the frame is a set of flags.
fn encode(stored: &Stored) -> [u8; LENGTH] {
    let Stored { mark, boot_id, closed, synced, unsettled } = *stored;
    let mut bytes = [0; LENGTH];
    let (head, frame) = bytes.split_at_mut(HEADER);
    head.copy_from_slice(&header(MARK, 0, 0));
    frame[FRAME..][..16].copy_from_slice(&boot_id);
    frame[FRAME + 16..][..8].copy_from_slice(&mark.max_ttl_ms.to_le_bytes());
    frame[FRAME + 24..][..8].copy_from_slice(&mark.token_ceiling.to_le_bytes());
    seal(frame, u64::from(closed) | u64::from(synced) << 1 | u64::from(unsettled) << 2, 0);
    bytes
}

fn decode(bytes: &[u8]) -> Result<Stored, BadHeader> {
    read_header(bytes, MARK)?;
    let (flags, content) = read_frame(&bytes[HEADER..], 0).ok_or(BadHeader::Damaged)?;
    let (boot_id, numbers) = content.split_first_chunk().ok_or(BadHeader::Damaged)?;
    if numbers.len() != 16 {
        return Err(BadHeader::Damaged);
    }
    Ok(Stored {
        mark: Mark { max_ttl_ms: u64_at(numbers, 0), token_ceiling: u64_at(numbers, 8) },
        boot_id: *boot_id,
        closed: flags & 1 != 0,
        synced: flags & 2 != 0,
        unsettled: flags & 4 != 0,
    })
}
