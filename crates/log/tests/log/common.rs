//! What the tests of this crate share.

use lockkeeper_log::{Config, Log, OpenError, Priority, Recovered, SnapshotWriter, open};
use std::{
    env, fs,
    ops::Deref,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

pub(crate) const BOOT: [u8; 16] = [7; 16];
pub(crate) const OTHER_BOOT: [u8; 16] = [8; 16];

/// A directory that is removed when the test is over. In memory, if the machine has such a place.
pub(crate) struct Temp(PathBuf);

impl Temp {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { env::temp_dir() };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("lockkeeper-log-{}-{number}", process::id()));
        fs::create_dir(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }
}

impl Deref for Temp {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn config(dir: &Path) -> Config {
    Config { dir: dir.into(), segment_bytes: 64 << 20, sync: false, boot_id: BOOT, reserve: 4096 }
}

pub(crate) fn open_at(dir: &Path) -> Result<(Log, Recovered), OpenError> {
    open(config(dir))
}

/// Opens a log of which nothing is expected but that it opens.
pub(crate) fn reopen(dir: &Path) -> (Log, Recovered) {
    open_at(dir).unwrap()
}

/// One commit of these records.
pub(crate) fn commit(log: &mut Log, records: &[&[u8]]) {
    for record in records {
        log.reserve(record.len(), Priority::Normal).unwrap();
        log.append(record);
    }
    assert_eq!(log.commit().unwrap(), log.position());
}

/// A complete snapshot with these chunks.
pub(crate) fn snapshot(log: &mut Log, chunks: &[&[u8]]) {
    let mut writer = log.begin_snapshot().unwrap();
    chunks.iter().for_each(|chunk| writer.write(chunk).unwrap());
    finish(log, writer);
}

/// Completes a snapshot and removes what it replaces.
pub(crate) fn finish(log: &mut Log, writer: SnapshotWriter) {
    log.replace(writer.finish().unwrap()).iter().for_each(|file| fs::remove_file(file).unwrap());
}

/// The records, whose positions are checked to follow the snapshot's without a gap.
pub(crate) fn records(recovered: &mut Recovered) -> Vec<Vec<u8>> {
    let mut next = recovered.snapshot.as_ref().map_or(0, |snapshot| snapshot.position()) + 1;
    let mut records = Vec::new();
    while let Some((position, record)) = recovered.records.next_record().unwrap() {
        assert_eq!(position, next);
        next += 1;
        records.push(record.to_vec());
    }
    records
}

/// The chunks of the snapshot, if there is one.
pub(crate) fn chunks(recovered: &mut Recovered) -> Option<Vec<Vec<u8>>> {
    let snapshot = recovered.snapshot.as_mut()?;
    let mut chunks = Vec::new();
    while let Some(chunk) = snapshot.next_chunk().unwrap() {
        chunks.push(chunk.to_vec());
    }
    assert_eq!(snapshot.chunks(), chunks.len() as u64);
    Some(chunks)
}

/// Files by their names, with their bytes.
pub(crate) type Files = Vec<(String, Vec<u8>)>;

/// The files of a directory with their bytes, in the order of their names.
pub(crate) fn files(dir: &Path) -> Files {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(Result::unwrap)
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

/// Makes the directory have these files and no others.
pub(crate) fn restore(dir: &Path, files: &[(String, Vec<u8>)]) {
    for entry in fs::read_dir(dir).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    for (name, bytes) in files {
        fs::write(dir.join(name), bytes).unwrap();
    }
}

/// The names of the files, without the one that is only locked.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    files(dir).into_iter().map(|(name, _)| name).filter(|name| name != "lock").collect()
}

pub(crate) fn segment(first: u64) -> String {
    format!("log-{first:020}")
}

pub(crate) fn snapshot_name(position: u64) -> String {
    format!("snapshot-{position:020}")
}

/// The length of a segment's header.
pub(crate) const HEADER: usize = 28;

/// Appends more than is allocated, without asking, and then asks for more.
pub(crate) fn unreserved(dir: &Path) {
    let (mut log, _) = reopen(dir);
    let large = vec![7; 3 << 20];
    log.append(&large);
    log.commit().unwrap();
    log.reserve(100, Priority::Normal).unwrap();
    commit(&mut log, &[b"after"]);
    drop(log);
    assert_eq!(records(&mut reopen(dir).1), [&large[..], b"after"]);
}
