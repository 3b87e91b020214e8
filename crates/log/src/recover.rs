//! Opening a log: reading its files, and deciding which of their contents are valid.

use crate::{
    Config, Log,
    dir::{Dir, Listing, list, mark_path, remove, segment_path, snapshot_path},
    error::{OpenError, Torn},
    format::{
        BadHeader, FRAME, HEADER, SEGMENT, VERSION, has_later_frame, read_frame, read_header, split_record,
        walk, written,
    },
    log::Chain,
    mark::{self, Mark, MarkFile, Stored},
    segment::{STEP, Segment},
    snapshot::{self, Snapshot},
};
use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    vec,
};

/// The contents of a log when it was opened. Read all of it before the first
/// [`begin_snapshot`](Log::begin_snapshot), which leads to the removal of these files.
#[derive(Debug)]
pub struct Recovered {
    /// The newest snapshot.
    pub snapshot: Option<Snapshot>,
    /// The records after it.
    pub records: Records,
    /// The machine has crashed since commits were last known to be on disk, and
    /// [`Log::settle_crash`] was not called since.
    pub crash: Option<Crash>,
    /// The part that was cut off the end of the log.
    pub torn: Option<Torn>,
}

/// The log may lack records at its end that were committed before the machine crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// The upper bounds of what clients were given before the crash.
    pub mark: Mark,
}

/// A segment as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSummary {
    /// The file.
    pub path: PathBuf,
    /// The position of its first record.
    pub first: u64,
    /// How many records it has.
    pub records: u64,
    /// The byte after the last of them.
    pub end: u64,
    pub(crate) salt: u32,
}

/// Opens the log in a directory, and creates it if there is none. A log that is dropped without
/// [`Log::close`] is as after a kill.
///
/// # Errors
///
/// [`OpenError`]. Nothing that was committed is lost by it.
pub fn open(config: Config) -> Result<(Log, Recovered), OpenError> {
    let dir = Dir::open(&config.dir)?;
    let mut survey = Survey::default();
    survey.run(dir.path(), config.boot_id)?;
    survey.apply(dir, config)
}

/// The contents of a directory's files. Reads only, and stops at the first error.
#[derive(Default)]
pub(crate) struct Survey {
    pub(crate) listing: Listing,
    /// None if the log is new.
    pub(crate) stored: Option<Stored>,
    /// Whether the log has to be taken as the crash of the machine has left it.
    pub(crate) crashed: bool,
    pub(crate) snapshot: Option<Snapshot>,
    /// The segments after the snapshot, up to the end of the log.
    pub(crate) segments: Vec<SegmentSummary>,
    pub(crate) torn: Option<Torn>,
}

impl Survey {
    pub(crate) fn run(&mut self, dir: &Path, boot_id: [u8; 16]) -> Result<(), OpenError> {
        self.listing = list(dir)?;
        if !self.listing.mark {
            return self.expect_new(dir);
        }
        let stored = mark::read(dir)?;
        self.stored = Some(stored);
        self.crashed = stored.boot_id != boot_id && !stored.closed && !stored.synced;
        if let Some(position) = self.listing.snapshots.last() {
            self.snapshot = Some(snapshot::open(dir, *position)?);
        }
        self.follow(dir, self.base() + 1)
    }

    /// The position that the segments go on from.
    fn base(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, Snapshot::position)
    }

    /// A start that was interrupted leaves the first segment without a mark, and without a record.
    fn expect_new(&mut self, dir: &Path) -> Result<(), OpenError> {
        let Listing { segments, snapshots, .. } = &self.listing;
        let mut used = !snapshots.is_empty() || segments.iter().any(|first| *first != 1);
        if !used && !segments.is_empty() {
            let path = segment_path(dir, 1);
            let bytes = fs::read(&path).map_err(OpenError::io(&path))?;
            used = written(&bytes) > HEADER;
        }
        match used {
            true => Err(OpenError::damaged(&mark_path(dir), 0, "the log has no mark file")),
            false => Ok(()),
        }
    }

    /// Follows the segments, each of which has to go on where the one before it ends.
    fn follow(&mut self, dir: &Path, mut next: u64) -> Result<(), OpenError> {
        let from = self.listing.segments.partition_point(|first| *first < next);
        let firsts = self.listing.segments[from..].to_vec();
        for (index, first) in firsts.iter().enumerate() {
            // After a crash, a torn segment is the last one, whatever comes after it.
            if *first != next || self.torn.is_some() {
                break;
            }
            let last = index + 1 == firsts.len();
            match self.read(dir, *first, last) {
                Ok(then) => next = then,
                // Without a header that made it to disk, the log ends before this segment.
                Err(OpenError::Damaged(_)) if self.crashed => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if self.crashed || (self.segments.len() == firsts.len() && !firsts.is_empty()) {
            return Ok(());
        }
        Err(match self.segments.last() {
            Some(last) => {
                OpenError::damaged(&last.path, last.end, "the next record is missing, and later ones follow")
            }
            None => OpenError::damaged(&segment_path(dir, next), 0, "this segment is missing"),
        })
    }

    /// Reads a segment. Returns the position that the next one has to begin with.
    fn read(&mut self, dir: &Path, first: u64, last: bool) -> Result<u64, OpenError> {
        let path = segment_path(dir, first);
        let bytes = fs::read(&path).map_err(OpenError::io(&path))?;
        let salt = match read_header(&bytes, SEGMENT) {
            Ok((number, salt)) if number == first => salt,
            Err(BadHeader::Version(found)) => return Err(OpenError::Format { path, found, known: VERSION }),
            _ => return Err(OpenError::damaged(&path, 0, "the segment's header is missing or wrong")),
        };
        let readable = walk(&bytes, first, salt);
        let end = readable.end as u64;
        let rest = written(&bytes[readable.end..]) as u64;
        if rest > 0 && !self.crashed {
            // A kill or a power cut tears a frame after which nothing was ever written.
            let closed = self.stored.is_some_and(|stored| stored.closed);
            if !last || closed || has_later_frame(&bytes, readable.end, readable.next, salt) {
                let what = "an invalid record before the end of the log";
                return Err(OpenError::damaged(&path, end, what));
            }
        }
        if rest > 0 {
            self.torn = Some(Torn { path: path.clone(), offset: end, bytes: rest });
        }
        self.segments.push(SegmentSummary { path, first, records: readable.next - first, end, salt });
        Ok(readable.next)
    }

    /// Makes the directory what was found, and opens the log for writing.
    fn apply(self, dir: Dir, config: Config) -> Result<(Log, Recovered), OpenError> {
        self.remove_rest(&dir)?;
        let path = dir.path().to_owned();
        let base = self.base();
        let torn = self.torn.as_ref().map_or(0, |torn| torn.bytes);
        let mut firsts: Vec<u64> = self.segments.iter().map(|segment| segment.first).collect();
        let segment = match self.segments.last() {
            Some(last) => Segment::reopen(&last.path, last.salt, last.end, torn),
            None => {
                firsts.push(base + 1);
                // The first segment ever, before the mark that says there is one.
                let sync = config.sync || self.stored.is_none();
                Segment::create(&dir, base + 1, config.reserve + STEP, sync)
            }
        };
        let segment = segment.map_err(OpenError::io(&path))?;
        if config.sync && !self.stored.is_some_and(|stored| stored.synced) {
            sync_segments(&dir, &firsts).map_err(OpenError::io(&path))?;
        }

        let before = self.stored.unwrap_or_default();
        let stored = Stored {
            mark: before.mark,
            boot_id: config.boot_id,
            closed: false,
            synced: config.sync,
            unsettled: before.unsettled || self.crashed,
        };
        let marks = match self.stored {
            Some(before) => MarkFile::open(&dir, before).and_then(|mut marks| {
                marks.store(stored)?;
                Ok(marks)
            }),
            None => MarkFile::create(&dir, stored),
        };
        let marks = marks.map_err(OpenError::io(&mark_path(&path)))?;
        let position = base + self.segments.iter().map(|segment| segment.records).sum::<u64>();
        let bytes = self.segments.iter().map(|segment| segment.end - HEADER as u64).sum();
        let snapshot = self.snapshot.as_ref().map(Snapshot::position);
        let log = Log::new(dir, config, marks, Chain { firsts, segment, position, bytes, snapshot });
        let crash = stored.unsettled.then_some(Crash { mark: stored.mark });
        let records = Records::new(self.segments);
        Ok((log, Recovered { snapshot: self.snapshot, records, crash, torn: self.torn }))
    }

    /// Removes what was never completed, what the snapshot covers, and what the log does not reach.
    fn remove_rest(&self, dir: &Dir) -> Result<(), OpenError> {
        let kept = |first: &u64| self.segments.iter().any(|segment| segment.first == *first);
        let Listing { segments, snapshots, unfinished, .. } = &self.listing;
        let unfinished = unfinished.iter().map(|name| dir.path().join(name));
        let segments = segments.iter().filter(|first| !kept(first));
        let segments = segments.map(|first| segment_path(dir.path(), *first));
        let snapshots = snapshots.iter().filter(|position| **position < self.base());
        let snapshots = snapshots.map(|position| snapshot_path(dir.path(), *position));
        for path in unfinished.chain(segments).chain(snapshots) {
            remove(&path).map_err(OpenError::io(&path))?;
        }
        if self.crashed {
            // Segments that the log does not reach must not be there again after another crash.
            dir.sync().map_err(OpenError::io(dir.path()))?;
        }
        Ok(())
    }
}

/// Makes everything in these segments durable.
pub(crate) fn sync_segments(dir: &Dir, firsts: &[u64]) -> io::Result<()> {
    for first in firsts {
        File::open(segment_path(dir.path(), *first))?.sync_all()?;
    }
    dir.sync()
}

/// The records after the snapshot, in order.
#[derive(Debug)]
pub struct Records {
    segments: vec::IntoIter<SegmentSummary>,
    /// A segment, from its header to its last record.
    bytes: Vec<u8>,
    /// The next byte to read.
    at: usize,
    /// The end of the frame that this is in.
    frame_end: usize,
    next: u64,
    salt: u32,
}

impl Records {
    fn new(segments: Vec<SegmentSummary>) -> Self {
        Self { segments: segments.into_iter(), bytes: Vec::new(), at: 0, frame_end: 0, next: 0, salt: 0 }
    }

    /// The next record and its position, or none after the last.
    ///
    /// # Errors
    ///
    /// The file cannot be read. [`open`] has read it once before.
    pub fn next_record(&mut self) -> io::Result<Option<(u64, &[u8])>> {
        while self.at == self.frame_end {
            if self.at == self.bytes.len() {
                let Some(segment) = self.segments.next() else { return Ok(None) };
                self.load(&segment)?;
            } else {
                let (_, content) = read_frame(&self.bytes[self.at..], self.salt).ok_or_else(changed)?;
                self.frame_end = self.at + FRAME + content.len();
                self.at += FRAME;
            }
        }
        let content = &self.bytes[self.at..self.frame_end];
        let (record, rest) = split_record(content).ok_or_else(changed)?;
        self.at = self.frame_end - rest.len();
        self.next += 1;
        Ok(Some((self.next - 1, record)))
    }

    fn load(&mut self, segment: &SegmentSummary) -> io::Result<()> {
        self.bytes.clear();
        File::open(&segment.path)?.take(segment.end).read_to_end(&mut self.bytes)?;
        if self.bytes.len() as u64 != segment.end {
            return Err(changed());
        }
        (self.at, self.frame_end) = (HEADER, HEADER);
        (self.next, self.salt) = (segment.first, segment.salt);
        Ok(())
    }
}

fn changed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a segment has changed since the log was opened")
}
