//! A real process that writes, and is killed at any moment.

use crate::common::*;
use lockkeeper_log::{Config, Log, Priority, Recovered, SnapshotWriter, open};
use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
};

const DIR: &str = "LOCKKEEPER_LOG_TEST_DIR";
const SEED: &str = "LOCKKEEPER_LOG_TEST_SEED";

/// What the record of a position is: from one byte to many pages, so that a write can be cut off.
fn record(position: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(position);
    let length = if position.is_multiple_of(50) { 200_000 } else { random.usize(..200) };
    let mut record = vec![0; 8 + length];
    random.fill(&mut record);
    record[..8].copy_from_slice(&position.to_le_bytes());
    record
}

fn open_for_kill(dir: &Path, sync: bool) -> (Log, Recovered) {
    open(Config { sync, segment_bytes: 1 << 20, ..config(dir) }).unwrap()
}

/// Reads everything back. The state at a position is a chunk for each record up to it.
fn verify(log: &Log, recovered: &mut Recovered) {
    let base = recovered.snapshot.as_ref().map_or(0, |snapshot| snapshot.position());
    let chunks = chunks(recovered).unwrap_or_default();
    assert_eq!(chunks.len() as u64, base);
    let all: Vec<u64> =
        chunks.iter().map(|chunk| u64::from_le_bytes(chunk[..].try_into().unwrap())).collect();
    assert_eq!(all, (1..=base).collect::<Vec<_>>());
    let records = records(recovered);
    for (record_is, position) in records.iter().zip(base + 1..) {
        assert!(*record_is == record(position), "record {position}");
    }
    assert_eq!(log.position(), base + records.len() as u64);
}

/// Writes until it is killed, and says each position that is committed. Snapshots are taken
/// meanwhile.
#[test]
#[ignore = "runs as the child of another test"]
fn writer() {
    let (Ok(dir), Ok(seed)) = (env::var(DIR), env::var(SEED)) else { return };
    let seed: u64 = seed.parse().unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut log, mut recovered) = open_for_kill(Path::new(&dir), seed % 2 == 1);
    verify(&log, &mut recovered);
    // The position of the snapshot, and how much of it is written.
    let mut slice: Option<(SnapshotWriter, u64, u64)> = None;
    let mut out = std::io::stdout().lock();
    loop {
        for _ in 0..random.u32(1..9) {
            let record = record(log.position() + 1);
            log.reserve(record.len(), Priority::Normal).unwrap();
            log.append(&record);
        }
        let committed = log.commit().unwrap();
        writeln!(out, "committed {committed}").unwrap();
        slice = match slice {
            None if random.u32(..20) == 0 => {
                let writer = log.begin_snapshot().unwrap();
                Some((writer, log.position(), 0))
            }
            None => None,
            Some((mut writer, position, done)) => {
                let next = (done + random.u64(1..500)).min(position);
                (done + 1..=next).for_each(|one| writer.write(&one.to_le_bytes()).unwrap());
                if next == position {
                    finish(&mut log, writer);
                    None
                } else {
                    Some((writer, position, next))
                }
            }
        };
    }
}

/// A writer that does not outlive the test.
struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn nothing_that_was_committed_is_lost_by_a_kill() {
    let dir = Temp::new();
    let mut random = fastrand::Rng::with_seed(1);
    let mut committed = 0;
    for seed in 0..20 {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "kill::writer", "--nocapture", "--test-threads=1"]);
        command.env(DIR, &*dir).env(SEED, seed.to_string()).stdout(Stdio::piped());
        let mut writer = Writer(command.spawn().unwrap());
        let mut lines = BufReader::new(writer.0.stdout.take().unwrap()).lines();
        let mut wanted = random.u32(1..200);
        let mut killed = false;
        // What it still says after the kill, it has committed as well.
        while let Some(Ok(line)) = lines.next() {
            let Some((_, position)) = line.split_once("committed ") else { continue };
            // The last line can be cut off.
            if let Ok(position @ 1..) = position.parse::<u64>() {
                assert!(killed || position > committed, "{position} after {committed}");
                committed = committed.max(position);
            }
            wanted = wanted.saturating_sub(1);
            if wanted == 0 && !killed {
                writer.0.kill().unwrap();
                killed = true;
            }
        }
        assert!(killed, "the writer ended by itself: {:?}", writer.0.wait());
        drop(writer);
        let (log, mut recovered) = open_for_kill(&dir, false);
        assert!(log.position() >= committed, "{} of {committed}", log.position());
        verify(&log, &mut recovered);
        assert!(recovered.crash.is_none());
        committed = log.position();
    }
    assert!(names(&dir).iter().any(|name| name.starts_with("snapshot-")), "no snapshot was ever taken");
}
