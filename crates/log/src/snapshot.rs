//! A snapshot: the state at one position, in chunks.

use crate::{
    dir::{Dir, create, remove, snapshot_path, unfinished},
    error::OpenError,
    format::{
        BadHeader, FRAME, HEADER, SNAPSHOT, VERSION, frame_length, header, read_frame, read_header, seal,
        u64_at,
    },
};
use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

/// The number of the closing frame, whose content is the number of chunks.
const CLOSING: u64 = u64::MAX;

/// How much is written before it is synced, so that no sync takes long.
const SLICE: u64 = 1 << 20;

/// A snapshot that is being written, by any thread: waiting for the disk need not hold up commits.
/// Until [`finish`](Self::finish) it is not there, and one that is dropped leaves nothing. There is
/// one at a time.
pub struct SnapshotWriter {
    position: u64,
    /// The log's bytes at its position, since the previous snapshot.
    replaces: u64,
    file: BufWriter<File>,
    dir: File,
    /// Its name, and its name until it is complete.
    path: PathBuf,
    new: PathBuf,
    chunks: u64,
    unsynced: u64,
    buffer: Vec<u8>,
}

/// A snapshot that is complete. [`Log::replace`](crate::Log::replace) has it take the place of what
/// was before it.
#[derive(Debug)]
pub struct FinishedSnapshot {
    pub(crate) position: u64,
    pub(crate) bytes: u64,
}

impl SnapshotWriter {
    pub(crate) fn create(dir: &Dir, position: u64, replaces: u64) -> io::Result<Self> {
        let path = snapshot_path(dir.path(), position);
        let (new, dir) = (unfinished(&path), dir.handle()?);
        let mut file = BufWriter::with_capacity(64 << 10, create(&new)?);
        file.write_all(&header(SNAPSHOT, position, 0))?;
        Ok(Self { position, replaces, file, dir, path, new, chunks: 0, unsynced: 0, buffer: Vec::new() })
    }

    /// Adds a chunk. Once for each MiB, it waits for the disk.
    ///
    /// # Errors
    ///
    /// The snapshot has to be dropped; the log continues without it.
    pub fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        self.chunks += 1;
        self.write_frame(self.chunks, chunk)?;
        if self.unsynced >= SLICE {
            self.sync()?;
        }
        Ok(())
    }

    /// Makes the snapshot durable, then visible.
    ///
    /// # Errors
    ///
    /// There is no snapshot, or it is not known to be durable. The log continues without it.
    pub fn finish(mut self) -> io::Result<FinishedSnapshot> {
        self.write_frame(CLOSING, &self.chunks.to_le_bytes())?;
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        fs::rename(&self.new, &self.path)?;
        self.dir.sync_all()?;
        Ok(FinishedSnapshot { position: self.position, bytes: self.replaces })
    }

    fn write_frame(&mut self, number: u64, content: &[u8]) -> io::Result<()> {
        self.buffer.clear();
        self.buffer.resize(FRAME, 0);
        self.buffer.extend_from_slice(content);
        seal(&mut self.buffer, number, 0);
        self.unsynced += self.buffer.len() as u64;
        self.file.write_all(&self.buffer)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.unsynced = 0;
        self.file.flush()?;
        self.file.get_ref().sync_data()
    }
}

impl Drop for SnapshotWriter {
    /// Leaves nothing behind that is not complete. What remains after a kill, the next start
    /// removes.
    fn drop(&mut self) {
        let _ = remove(&self.new);
    }
}

/// A snapshot as it was found: every checksum was good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotSummary {
    /// The file.
    pub path: PathBuf,
    /// The position of the last record that it covers.
    pub position: u64,
    /// How many chunks it has.
    pub chunks: u64,
    /// The size of the file.
    pub bytes: u64,
}

/// The chunks of a snapshot, in the order in which they were written.
#[derive(Debug)]
pub struct Snapshot {
    summary: SnapshotSummary,
    file: BufReader<File>,
    /// The number of the last chunk that was read.
    chunk: u64,
    /// The byte after it.
    offset: u64,
    buffer: Vec<u8>,
}

impl Snapshot {
    /// The position of the last record that the snapshot covers.
    pub fn position(&self) -> u64 {
        self.summary.position
    }

    /// How many chunks it has.
    pub fn chunks(&self) -> u64 {
        self.summary.chunks
    }

    /// The next chunk, or none after the last.
    ///
    /// # Errors
    ///
    /// The file cannot be read. [`open`](crate::open) has read it once before.
    pub fn next_chunk(&mut self) -> io::Result<Option<&[u8]>> {
        let number = self.read()?;
        if number == CLOSING {
            let complete = u64_at(&self.buffer, FRAME) == self.chunk && self.offset == self.summary.bytes;
            return if complete {
                Ok(None)
            } else {
                Err(bad("the snapshot's end is not where its closing frame says"))
            };
        }
        if number != self.chunk + 1 {
            return Err(bad("a chunk is missing"));
        }
        self.chunk = number;
        Ok(Some(&self.buffer[FRAME..]))
    }

    /// Reads a frame into the buffer.
    fn read(&mut self) -> io::Result<u64> {
        let left = self.summary.bytes - self.offset;
        self.buffer.resize(FRAME, 0);
        if left < FRAME as u64 {
            return Err(bad("the snapshot is truncated"));
        }
        self.file.read_exact(&mut self.buffer)?;
        let length = frame_length(self.buffer.first_chunk().expect("a frame's head"));
        if length < FRAME || length as u64 > left {
            return Err(bad("a chunk has an impossible length"));
        }
        self.buffer.resize(length, 0);
        self.file.read_exact(&mut self.buffer[FRAME..])?;
        let (number, content) =
            read_frame(&self.buffer, 0).ok_or_else(|| bad("a chunk has a wrong checksum"))?;
        if number == CLOSING && content.len() != 8 {
            return Err(bad("the closing frame has a wrong length"));
        }
        self.offset += length as u64;
        Ok(number)
    }
}

/// Opens the snapshot of this position, after reading all of it.
pub(crate) fn open(dir: &Path, position: u64) -> Result<Snapshot, OpenError> {
    let path = snapshot_path(dir, position);
    let mut snapshot = begin(&path, position)?;
    loop {
        let offset = snapshot.offset;
        match snapshot.next_chunk() {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                // Its text is one of `bad`.
                let what = error.get_ref().and_then(|error| error.downcast_ref::<Bad>());
                let what = what.map_or("the snapshot cannot be read", |bad| bad.0);
                return Err(OpenError::damaged(&path, offset, what));
            }
            Err(error) => return Err(OpenError::Io { path, error }),
        }
    }
    let chunks = snapshot.chunk;
    let mut again = begin(&path, position)?;
    again.summary.chunks = chunks;
    Ok(again)
}

impl From<&Snapshot> for SnapshotSummary {
    fn from(snapshot: &Snapshot) -> Self {
        snapshot.summary.clone()
    }
}

/// Reads the header only.
fn begin(path: &Path, position: u64) -> Result<Snapshot, OpenError> {
    let file = File::open(path).map_err(OpenError::io(path))?;
    let bytes = file.metadata().map_err(OpenError::io(path))?.len();
    let mut file = BufReader::with_capacity(64 << 10, file);
    let mut head = Vec::new();
    file.by_ref().take(HEADER as u64).read_to_end(&mut head).map_err(OpenError::io(path))?;
    match read_header(&head, SNAPSHOT) {
        Ok((number, _)) if number == position => {}
        Err(BadHeader::Version(found)) => {
            return Err(OpenError::Format { path: path.into(), found, known: VERSION });
        }
        _ => return Err(OpenError::damaged(path, 0, "the snapshot's header is missing or wrong")),
    }
    let summary = SnapshotSummary { path: path.into(), position, chunks: 0, bytes };
    Ok(Snapshot { summary, file, chunk: 0, offset: HEADER as u64, buffer: Vec::new() })
}

/// Why a snapshot is not what was written.
#[derive(Debug)]
struct Bad(&'static str);

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Bad {}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, Bad(what))
}
