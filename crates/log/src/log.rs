//! The open log: appending, committing, and taking snapshots at the same time.

use crate::{
    Config,
    dir::{Dir, segment_path, snapshot_path},
    error::Full,
    format::FRAME,
    mark::{Mark, MarkFile, Stored},
    recover::sync_segments,
    segment::{STEP, Segment},
    snapshot::{FinishedSnapshot, SnapshotWriter},
};
use std::{io, mem, path::PathBuf};

/// Bytes that a record takes beside its own. [`Log::reserve`] adds them for one record.
pub const RECORD_OVERHEAD: usize = 4;

/// A buffer that has grown beyond this is given back after the commit.
const LARGE: usize = 1 << 20;

/// Which space a record may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Leaves [`Config::reserve`] bytes untouched.
    Normal,
    /// May take those as well: for what frees locks and sessions.
    Release,
}

/// A log that is open. Only one process at a time has it.
///
/// For each input: [`reserve`](Self::reserve), apply it to the state, [`append`](Self::append).
/// Once for all inputs of a turn: [`commit`](Self::commit), then send the answers.
pub struct Log {
    dir: Dir,
    config: Config,
    marks: MarkFile,
    chain: Chain,
    /// A segment that has grown to this size is followed by another.
    rotate_at: u64,
    /// The frame of the next commit, from its head on.
    frame: Vec<u8>,
    /// The position of the last record that was committed.
    committed: u64,
    /// Whether a write has failed, after which it is not known what is in the files.
    failed: bool,
}

/// The segments after the snapshot, and where they end.
pub(crate) struct Chain {
    /// The first positions of the segments, ascending. Never empty: the last is written to.
    pub(crate) firsts: Vec<u64>,
    /// The last one.
    pub(crate) segment: Segment,
    /// The position of the last record that was appended.
    pub(crate) position: u64,
    /// Bytes of frames after the snapshot.
    pub(crate) bytes: u64,
    /// The position of the newest snapshot that is complete.
    pub(crate) snapshot: Option<u64>,
}

impl Log {
    pub(crate) fn new(dir: Dir, config: Config, marks: MarkFile, chain: Chain) -> Self {
        Self {
            rotate_at: config.segment_bytes,
            committed: chain.position,
            frame: vec![0; FRAME],
            failed: false,
            dir,
            config,
            marks,
            chain,
        }
    }

    /// The position of the last record that was appended: how many there have ever been.
    pub fn position(&self) -> u64 {
        self.chain.position
    }

    /// The position of the last record that was committed.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// Makes sure that there is space on disk for one more record of up to so many bytes. For
    /// several, add [`RECORD_OVERHEAD`] for each beyond the first. It holds until the next commit,
    /// and the next call takes its place unless the record was appended.
    ///
    /// # Errors
    ///
    /// [`Full`]: nothing has changed.
    pub fn reserve(&mut self, bytes: usize, priority: Priority) -> Result<(), Full> {
        let needed = (self.frame.len() + RECORD_OVERHEAD + bytes) as u64;
        let segment = &mut self.chain.segment;
        match priority {
            Priority::Normal => segment.make_room(needed + self.config.reserve, false),
            Priority::Release => segment.make_room(needed, true),
        }
        .map_err(Full)
    }

    /// Appends a record to the next commit. Returns its position.
    ///
    /// # Panics
    ///
    /// If a commit reaches 4 GiB.
    pub fn append(&mut self, record: &[u8]) -> u64 {
        let length = u32::try_from(record.len()).expect("a record is smaller than 4 GiB");
        self.frame.extend_from_slice(&length.to_le_bytes());
        self.frame.extend_from_slice(record);
        self.chain.position += 1;
        self.chain.position
    }

    /// Writes what was appended, with one `write`, and returns the position up to which all of it
    /// survives: the process, and with [`Config::sync`] a crash of the machine.
    ///
    /// # Errors
    ///
    /// The file could not be written. The process has to end, as does every later commit.
    pub fn commit(&mut self) -> io::Result<u64> {
        if self.failed {
            return Err(io::Error::other("an earlier write to the log failed"));
        }
        if self.committed < self.chain.position {
            self.failed = true;
            self.chain.segment.write(&mut self.frame, self.committed + 1)?;
            if self.config.sync {
                self.chain.segment.sync()?;
            }
            self.failed = false;
            self.committed = self.chain.position;
            self.chain.bytes += self.frame.len() as u64;
            self.frame.truncate(FRAME);
            self.frame.shrink_to(LARGE);
            if self.chain.segment.end() >= self.rotate_at && self.rotate().is_err() {
                // No space for another one. This one can go on growing.
                self.rotate_at = self.chain.segment.end() + STEP;
            }
        }
        Ok(self.committed)
    }

    /// Goes on in a new segment, of which the first record is the next one.
    fn rotate(&mut self) -> io::Result<()> {
        let first = self.committed + 1;
        let room = self.config.reserve + STEP;
        let segment = Segment::create(&self.dir, first, room, self.config.sync).inspect_err(|_| {
            // If it stays, what is appended to the old one cannot be read any more.
            self.failed = segment_path(self.dir.path(), first).exists();
        })?;
        mem::replace(&mut self.chain.segment, segment).trim();
        self.chain.firsts.push(first);
        self.rotate_at = self.config.segment_bytes;
        Ok(())
    }

    /// Begins a snapshot of the state at the current position, after committing what was appended.
    /// Appends and commits can continue. An earlier unfinished one has to be dropped first.
    ///
    /// # Errors
    ///
    /// There is no snapshot; the log continues without it. If the commit failed, so does the next
    /// one.
    pub fn begin_snapshot(&mut self) -> io::Result<SnapshotWriter> {
        let position = self.commit()?;
        if self.chain.firsts.last() != Some(&(position + 1)) {
            self.rotate()?;
        }
        SnapshotWriter::create(&self.dir, position, self.chain.bytes)
    }

    /// Replaces earlier snapshots, and the segments with the records up to the position, by a
    /// snapshot. Returns the obsolete files, to be removed later: the next start removes remaining
    /// ones.
    pub fn replace(&mut self, finished: FinishedSnapshot) -> Vec<PathBuf> {
        let FinishedSnapshot { position, bytes } = finished;
        let dir = self.dir.path();
        let replaced = self.chain.firsts.iter().position(|first| *first > position).unwrap_or_default();
        let mut obsolete: Vec<PathBuf> =
            self.chain.firsts.drain(..replaced).map(|first| segment_path(dir, first)).collect();
        let earlier = self.chain.snapshot.replace(position).filter(|earlier| *earlier != position);
        obsolete.extend(earlier.map(|earlier| snapshot_path(dir, earlier)));
        self.chain.bytes -= bytes;
        obsolete
    }

    /// How many bytes a recovery would read after the newest complete snapshot.
    pub fn bytes_since_snapshot(&self) -> u64 {
        self.chain.bytes
    }

    /// Whether its directory still exists. If it was removed, another process can begin another log
    /// there.
    pub fn is_in_place(&self) -> bool {
        self.dir.is_in_place()
    }

    /// The mark as it was last set.
    pub fn mark(&self) -> Mark {
        self.marks.stored().mark
    }

    /// Sets the mark, durably. Call it before clients are given anything beyond the mark. Until a
    /// crash is settled the mark only rises, because it may apply once more.
    ///
    /// # Errors
    ///
    /// It is not known which mark is on disk. The process has to end, as after a commit that fails.
    pub fn set_mark(&mut self, mut mark: Mark) -> io::Result<()> {
        let stored = self.marks.stored();
        if stored.unsettled {
            mark.max_ttl_ms = mark.max_ttl_ms.max(stored.mark.max_ttl_ms);
            mark.token_ceiling = mark.token_ceiling.max(stored.mark.token_ceiling);
        }
        self.store(Stored { mark, ..stored })
    }

    /// Says that everything which follows from [`Recovered::crash`](crate::Recovered::crash) is
    /// done and committed. Until then it is reported again after every start, clean or not.
    ///
    /// # Errors
    ///
    /// As with [`commit`](Self::commit) and [`set_mark`](Self::set_mark).
    pub fn settle_crash(&mut self) -> io::Result<()> {
        self.commit()?;
        self.store(Stored { unsettled: false, ..self.marks.stored() })
    }

    fn store(&mut self, stored: Stored) -> io::Result<()> {
        self.marks.store(stored).inspect_err(|_| self.failed = true)
    }

    /// Commits and closes the log so that it is trusted whatever happens to the machine after that.
    ///
    /// # Errors
    ///
    /// The log is as after a kill.
    pub fn close(mut self) -> io::Result<()> {
        self.commit()?;
        sync_segments(&self.dir, &self.chain.firsts)?;
        self.marks.store(Stored { closed: true, ..self.marks.stored() })
    }
}
