//! The segment that is written to, and the space that is allocated ahead in it.

use crate::{
    dir::{Dir, create, remove, segment_path, unfinished},
    format::{HEADER, SEGMENT, header, seal},
};
use rustix::{fs::fstatvfs, io::Errno};
use std::{
    fs::{self, File, OpenOptions},
    hash::{BuildHasher, RandomState},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

/// The allocation step. A small one is no noticeable pause on any file system.
pub(crate) const STEP: u64 = 512 << 10;

/// The minimum allocation of file systems.
const PAGE: u64 = 4096;

pub(crate) struct Segment {
    file: File,
    /// The salt of its checksums.
    salt: u32,
    /// Where the next frame goes.
    end: u64,
    /// The file's length, not less than `end`. What is between them is zeros, and has its space.
    allocated: u64,
}

impl Segment {
    /// Creates the segment whose first record has this position, with room for so many bytes.
    pub(crate) fn create(dir: &Dir, first: u64, room: u64, sync: bool) -> io::Result<Self> {
        let path = segment_path(dir.path(), first);
        let new = unfinished(&path);
        let written = || {
            let salt = new_salt();
            let mut segment = Self { file: create(&new)?, salt, end: HEADER as u64, allocated: 0 };
            segment.extend(HEADER as u64 + room)?;
            segment.file.write_all_at(&header(SEGMENT, first, salt), 0)?;
            if sync {
                segment.file.sync_all()?;
            }
            fs::rename(&new, &path)?;
            if sync {
                dir.sync()?;
            }
            Ok(segment)
        };
        // The allocated space is freed on a full disk, and the log continues without this segment.
        written().inspect_err(|_| drop((remove(&new), remove(&path))))
    }

    /// Opens a segment to go on at `end`, after which there are `torn` bytes to be cut off.
    pub(crate) fn reopen(path: &Path, salt: u32, end: u64, torn: u64) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if torn > 0 {
            // Overwritten, since giving the space back could mean losing it on a full disk. And
            // durably: it must not be there again after a crash, under the records of then.
            write_zeros(&file, end, end + torn)?;
            file.sync_data()?;
        }
        let length = file.metadata()?.len();
        let mut segment = Self { file, salt, end, allocated: end };
        if segment.extend(length).is_err() {
            // A copy with holes on a full disk. The log can be read, and refuses to grow.
            segment.allocated = end;
        }
        Ok(segment)
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// How many bytes are allocated after the end.
    pub(crate) fn room(&self) -> u64 {
        self.allocated - self.end
    }

    /// Allocates room for so many bytes, and up to a step more. An error changes nothing.
    ///
    /// Unless it is urgent, a full disk is not written to: a failing attempt takes many
    /// milliseconds on ext4, and every request would make one. It also leaves root's reserve
    /// untouched.
    pub(crate) fn make_room(&mut self, bytes: u64, urgent: bool) -> io::Result<()> {
        if self.room() >= bytes {
            return Ok(());
        }
        let to = (self.end + bytes).next_multiple_of(PAGE);
        let spare = available(&self.file)?.checked_sub(to - self.allocated);
        match spare {
            // Half of the remaining space at most, so that space is not requested record by record.
            Some(spare) => self.extend(to + STEP.min(spare / 2)).or_else(|_| self.extend(to)),
            None if urgent => self.extend(to),
            None => Err(Errno::NOSPC.into()),
        }
    }

    /// Completes a frame and writes it at the end, with one `write`.
    pub(crate) fn write(&mut self, frame: &mut [u8], number: u64) -> io::Result<()> {
        seal(frame, number, self.salt);
        self.file.write_all_at(frame, self.end)?;
        self.end += frame.len() as u64;
        // If no space was reserved for it, it has taken some now.
        self.allocated = self.allocated.max(self.end);
        Ok(())
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Gives back the space that was not needed. Failing is harmless: it stays zeros.
    pub(crate) fn trim(self) {
        let _ = self.file.set_len(self.end);
    }

    fn extend(&mut self, to: u64) -> io::Result<()> {
        if to <= self.allocated {
            return Ok(());
        }
        allocate(&self.file, self.allocated, to).inspect_err(|_| {
            // Frees the space that was allocated before the failure.
            let _ = self.file.set_len(self.allocated);
        })?;
        self.allocated = to;
        Ok(())
    }
}

/// A number that a client, which can only append records, cannot know.
fn new_salt() -> u32 {
    // The keys of a hash map are the randomness that the standard library has.
    (RandomState::new().hash_one(0) >> 32).try_into().expect("32 bits")
}

/// The free bytes of the file system, as far as it reports them.
fn available(file: &File) -> io::Result<u64> {
    let stat = fstatvfs(file)?;
    match stat.f_blocks {
        // Some in memory have no limit.
        0 => Ok(u64::MAX),
        _ => Ok(stat.f_bavail.saturating_mul(stat.f_frsize)),
    }
}

/// Has the file system keep space for these bytes, which are zeros or not there yet.
#[cfg(target_os = "linux")]
fn allocate(file: &File, from: u64, to: u64) -> io::Result<()> {
    use rustix::{
        fs::{FallocateFlags, fallocate},
        io::retry_on_intr,
    };
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), from, to - from)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(file, from, to),
        done => Ok(done?),
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(file: &File, from: u64, to: u64) -> io::Result<()> {
    write_zeros(file, from, to)
}

fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; 64 << 10];
    let mut at = from;
    while at < to {
        let length = zeros.len().min(usize::try_from(to - at).unwrap_or(usize::MAX));
        file.write_all_at(&zeros[..length], at)?;
        at += length as u64;
    }
    Ok(())
}
