//! A write that is interrupted at any byte.

use crate::common::*;
use lockkeeper_log::{Config, open};
use std::{fs, ops::Range, path::Path};

/// Commits of one or more records, of which some look like what is not there.
fn commits() -> Vec<Vec<Vec<u8>>> {
    vec![
        vec![b"first".to_vec()],
        vec![b"second".to_vec(), vec![], vec![0; 30], b"fifth".to_vec()],
        vec![vec![0xff; 20]],
        vec![vec![]],
        vec![vec![0; 3], vec![1]],
    ]
}

/// A log with these commits: its files, and where in its segment each of their frames is.
fn write(dir: &Path, sync: bool) -> (Files, Vec<Range<usize>>) {
    let (mut log, _) = open(Config { sync, ..config(dir) }).unwrap();
    let mut frames = Vec::new();
    for records in commits() {
        let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        let start = HEADER + usize::try_from(log.bytes_since_snapshot()).unwrap();
        commit(&mut log, &records);
        frames.push(start..HEADER + usize::try_from(log.bytes_since_snapshot()).unwrap());
    }
    drop(log);
    let mut files = files(dir);
    // The zeros after it, of which a few are as good as many.
    segment_of(&mut files).truncate(frames[frames.len() - 1].end + 100);
    (files, frames)
}

fn segment_of(files: &mut [(String, Vec<u8>)]) -> &mut Vec<u8> {
    &mut files.iter_mut().find(|(name, _)| *name == segment(1)).unwrap().1
}

/// Opens the log with this segment, where the commits before `whole` have to be, then goes on with
/// it.
fn expect(dir: &Path, config: &Config, files: &[(String, Vec<u8>)], whole: usize, what: &str) {
    restore(dir, files);
    let (mut log, mut recovered) = open(config.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut expected = commits()[..whole].concat();
    assert_eq!(records(&mut recovered), expected, "{what}");
    assert!(recovered.crash.is_none());
    commit(&mut log, &[b"after", b"the cut"]);
    drop(log);
    let (_, mut recovered) = open(config.clone()).unwrap_or_else(|error| panic!("{what}, again: {error}"));
    expected.extend([b"after".to_vec(), b"the cut".to_vec()]);
    assert_eq!(records(&mut recovered), expected, "{what}, again");
    assert!(recovered.torn.is_none(), "{what}, again");
}

#[test]
fn a_commit_that_is_cut_at_any_byte_is_gone_and_every_commit_before_it_is_there() {
    let dir = Temp::new();
    let (good, frames) = write(&dir, false);
    for (index, frame) in frames.iter().enumerate() {
        for cut in frame.clone() {
            let mut files = good.clone();
            segment_of(&mut files).truncate(cut);
            expect(&dir, &config(&dir), &files, index, &format!("cut at byte {cut}"));
            // Within a preallocated file, zeros are what was not written.
            let zeros = frames[frames.len() - 1].end - cut;
            segment_of(&mut files).resize(cut + zeros, 0);
            let unchanged = segment_of(&mut good.clone())[cut..frame.end].iter().all(|byte| *byte == 0);
            let whole = if unchanged { index + 1 } else { index };
            expect(&dir, &config(&dir), &files, whole, &format!("zeros from byte {cut} on"));
        }
    }
}

#[test]
fn a_synced_commit_that_a_power_cut_left_in_pieces_is_gone() {
    let dir = Temp::new();
    let (good, frames) = write(&dir, true);
    let config = Config { sync: true, boot_id: OTHER_BOOT, ..config(&dir) };
    let bytes = segment_of(&mut good.clone()).clone();
    for (index, frame) in frames.iter().enumerate() {
        for cut in frame.clone().skip(1) {
            // Its end is on disk and its beginning is not.
            let mut files = good.clone();
            segment_of(&mut files).truncate(frame.end);
            segment_of(&mut files)[frame.start..cut].fill(0);
            let whole = if bytes[frame.start..cut].iter().all(|byte| *byte == 0) { index + 1 } else { index };
            expect(&dir, &config, &files, whole, &format!("zeros up to byte {cut}"));
            // Some of it is what was on the disk before.
            segment_of(&mut files)[..cut].copy_from_slice(&bytes[..cut]);
            segment_of(&mut files)[cut - 1] ^= 0x5a;
            expect(&dir, &config, &files, index, &format!("garbage at byte {}", cut - 1));
        }
    }
}

#[test]
fn what_was_cut_off_is_said_and_overwritten() {
    let dir = Temp::new();
    let (mut good, frames) = write(&dir, false);
    let last = frames[frames.len() - 1].clone();
    segment_of(&mut good)[last.end - 1] ^= 1;
    restore(&dir, &good);
    let (log, recovered) = reopen(&dir);
    let torn = recovered.torn.unwrap();
    assert_eq!((&torn.path, torn.offset), (&dir.join(segment(1)), last.start as u64));
    // Up to its last byte that is not zero: the one that was changed is now.
    let written = segment_of(&mut good)[last.clone()].iter().rposition(|byte| *byte != 0).unwrap() + 1;
    assert_eq!(torn.bytes, written as u64);
    drop(log);
    let after = fs::read(dir.join(segment(1))).unwrap();
    assert!(after[last.start..].iter().all(|byte| *byte == 0));
    assert_eq!(after[..last.start], segment_of(&mut good)[..last.start]);
}

#[test]
fn a_record_that_looks_like_a_log_is_not_taken_for_one() {
    let dir = Temp::new();
    let (mut log, _) = reopen(&dir);
    commit(&mut log, &[b"one"]);
    commit(&mut log, &[b"two"]);
    let frame = fs::read(dir.join(segment(1))).unwrap()[HEADER + 23..][..23].to_vec();
    drop(log);
    // A client that knows the format puts the frame of a later commit into a record, for each
    // position that may come, and then the write of that record is torn.
    let forged: Vec<u8> = (2..40u64)
        .flat_map(|position| {
            let mut forged = frame.clone();
            forged[8..16].copy_from_slice(&position.to_le_bytes());
            let sum = crc32c::crc32c(&forged[4..]);
            forged[..4].copy_from_slice(&sum.to_le_bytes());
            forged
        })
        .collect();
    let (mut log, _) = reopen(&dir);
    commit(&mut log, &[&forged, b"torn"]);
    drop(log);
    let mut bytes = fs::read(dir.join(segment(1))).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end] = 0;
    fs::write(dir.join(segment(1)), &bytes).unwrap();
    assert_eq!(records(&mut reopen(&dir).1), [b"one", b"two"]);
}

#[test]
fn a_snapshot_that_is_cut_at_any_byte_while_it_is_written_is_not_there() {
    let dir = Temp::new();
    let (mut log, _) = reopen(&dir);
    commit(&mut log, &[b"1"]);
    snapshot(&mut log, &[b"at 1"]);
    commit(&mut log, &[b"2"]);
    let mut writer = log.begin_snapshot().unwrap();
    let before = files(&dir);
    writer.write(b"at").unwrap();
    writer.write(b"2").unwrap();
    finish(&mut log, writer);
    drop(log);
    let complete = fs::read(dir.join(snapshot_name(2))).unwrap();
    let unfinished = format!("{}.new", snapshot_name(2));
    for cut in 0..=complete.len() {
        restore(&dir, &before);
        fs::write(dir.join(&unfinished), &complete[..cut]).unwrap();
        let (log, mut recovered) = reopen(&dir);
        assert_eq!(chunks(&mut recovered).unwrap(), [b"at 1"]);
        assert_eq!(records(&mut recovered), [b"2"]);
        drop(log);
        assert!(!dir.join(&unfinished).exists());
    }
}

#[test]
fn a_segment_that_was_never_completed_is_not_there() {
    let dir = Temp::new();
    let (mut log, _) = reopen(&dir);
    commit(&mut log, &[b"1"]);
    drop(log);
    let header = fs::read(dir.join(segment(1))).unwrap()[..HEADER].to_vec();
    for cut in 0..=header.len() {
        fs::write(dir.join(format!("{}.new", segment(2))), &header[..cut]).unwrap();
        assert_eq!(records(&mut reopen(&dir).1), [b"1"]);
        assert_eq!(names(&dir), [segment(1), "mark".into()]);
    }
}
