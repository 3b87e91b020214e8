//! Files that are not what was written, without a crash of the machine.

use crate::common::*;
use lockkeeper_log::{Config, Damage, Mark, OpenError, open};
use std::path::Path;

const MARK: Mark = Mark { max_ttl_ms: 30_000, token_ceiling: 77 };

/// A log with a snapshot and three segments after it, the last of which has three commits.
fn write(dir: &Path) -> Files {
    let (mut log, _) = open(Config { segment_bytes: 60, ..config(dir) }).unwrap();
    log.set_mark(MARK).unwrap();
    commit(&mut log, &[b"1"]);
    snapshot(&mut log, &[b"the state", b"", b"at 1"]);
    for record in [b"2", b"3", b"4", b"5"] {
        commit(&mut log, &[record]);
    }
    drop(log);
    let (mut log, _) = reopen(dir);
    for record in [b"6", b"7", b"8"] {
        commit(&mut log, &[record]);
    }
    drop(log);
    assert_eq!(names(dir), [segment(2), segment(4), segment(6), "mark".into(), snapshot_name(1)]);
    let mut files = files(dir);
    let last = &mut files.iter_mut().find(|(name, _)| *name == segment(6)).unwrap().1;
    last.truncate(HEADER + 4 * FRAME + 20);
    files
}

/// The length of a frame with one record of one byte.
const FRAME: usize = 21;

fn damage(dir: &Path) -> Damage {
    match open_at(dir) {
        Err(OpenError::Damaged(damage)) => damage,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("this was not refused"),
    }
}

#[test]
fn every_byte_that_changes_is_noticed() {
    let dir = Temp::new();
    let good = write(&dir);
    let expected = [b"2", b"3", b"4", b"5", b"6", b"7", b"8"];
    for (file, (name, bytes)) in good.iter().enumerate() {
        for (at, mask) in (0..bytes.len()).flat_map(|at| [1, 0x80, 0xff, bytes[at]].map(|mask| (at, mask))) {
            let between_copies = name == "mark" && (100..4096).contains(&at);
            if mask == 0 || between_copies {
                continue;
            }
            let mut bad = good.clone();
            bad[file].1[at] ^= mask;
            restore(&dir, &bad);
            let what = format!("{name}, byte {at}, {mask:#x}");
            let in_last_commit = *name == segment(6) && at >= HEADER + 2 * FRAME;
            let after_the_end = *name == segment(6) && at >= HEADER + 3 * FRAME;
            match open_at(&dir) {
                Ok((log, mut recovered)) if name == "mark" => {
                    // One of its two copies is enough.
                    assert_eq!(log.mark(), MARK, "{what}");
                    assert_eq!(records(&mut recovered), expected, "{what}");
                }
                Ok((_, mut recovered)) if in_last_commit => {
                    // As if its write had been interrupted.
                    let whole = if after_the_end { 7 } else { 6 };
                    assert_eq!(records(&mut recovered), expected[..whole], "{what}");
                    assert!(recovered.torn.is_some(), "{what}");
                }
                Ok(_) => panic!("{what}: not noticed"),
                Err(error) => {
                    assert!(!in_last_commit && name != "mark", "{what}: {error}");
                    assert!(error.to_string().contains(&name[..]), "{what}: {error}");
                    assert!(error.to_string().contains("lockkeeper state reset"), "{what}: {error}");
                    assert_eq!(files(&dir), bad, "{what}: refused, and changed");
                }
            }
        }
    }
}

#[test]
fn a_bad_record_in_the_middle_is_named_with_its_file_and_byte() {
    let dir = Temp::new();
    let good = write(&dir);
    for (name, commit) in
        [(segment(2), 0), (segment(2), 1), (segment(4), 1), (segment(6), 0), (segment(6), 1)]
    {
        let mut bad = good.clone();
        let bytes = &mut bad.iter_mut().find(|(other, _)| *other == name).unwrap().1;
        let start = HEADER + commit * FRAME;
        // All of it, as if a page had never been written.
        bytes[start..start + FRAME].fill(0);
        restore(&dir, &bad);
        let found = damage(&dir);
        assert_eq!((found.path, found.offset), (dir.join(&name), start as u64));
        assert_eq!(files(&dir), bad);
    }
}

#[test]
fn a_missing_segment_is_noticed() {
    let dir = Temp::new();
    let good = write(&dir);
    // The first by its name, another one by where it should go on.
    for (first, named, offset) in [(2, 2, 0), (4, 2, HEADER + 2 * FRAME)] {
        let less: Vec<_> = good.iter().filter(|(name, _)| *name != segment(first)).cloned().collect();
        restore(&dir, &less);
        let found = damage(&dir);
        assert_eq!((found.path, found.offset), (dir.join(segment(named)), offset as u64));
        assert_eq!(files(&dir), less);
    }
    let none: Vec<_> = good.iter().filter(|(name, _)| !name.starts_with("log-")).cloned().collect();
    restore(&dir, &none);
    assert_eq!(damage(&dir).path, dir.join(segment(2)));
}

#[test]
fn a_record_at_another_position_than_its_own_is_not_read() {
    let dir = Temp::new();
    let good = write(&dir);
    let copy = |from: usize, to: usize| {
        let mut bad = good.clone();
        let bytes = &mut bad.iter_mut().find(|(name, _)| *name == segment(6)).unwrap().1;
        bytes.copy_within(HEADER + from * FRAME..HEADER + (from + 1) * FRAME, HEADER + to * FRAME);
        restore(&dir, &bad);
    };
    copy(0, 1);
    assert_eq!(damage(&dir).offset, (HEADER + FRAME) as u64);
    copy(2, 1);
    assert_eq!(damage(&dir).offset, (HEADER + FRAME) as u64);
    // At the end it is no worse than anything else that was left there.
    copy(0, 3);
    let (_, mut recovered) = reopen(&dir);
    assert_eq!(records(&mut recovered).len(), 7);
    assert_eq!(recovered.torn.unwrap().offset, (HEADER + 3 * FRAME) as u64);
}

#[test]
fn a_missing_snapshot_is_noticed() {
    let dir = Temp::new();
    let good = write(&dir);
    let less: Vec<_> = good.iter().filter(|(name, _)| *name != snapshot_name(1)).cloned().collect();
    restore(&dir, &less);
    assert_eq!(damage(&dir).path, dir.join(segment(1)));
}

#[test]
fn a_snapshot_that_is_cut_off_or_longer_is_refused() {
    let dir = Temp::new();
    let good = write(&dir);
    let index = good.iter().position(|(name, _)| *name == snapshot_name(1)).unwrap();
    for cut in 0..good[index].1.len() {
        let mut bad = good.clone();
        bad[index].1.truncate(cut);
        restore(&dir, &bad);
        assert_eq!(damage(&dir).path, dir.join(snapshot_name(1)), "byte {cut}");
    }
    let mut bad = good.clone();
    bad[index].1.push(0);
    restore(&dir, &bad);
    assert_eq!(damage(&dir).path, dir.join(snapshot_name(1)));
    let second = good[index].1[HEADER..].to_vec();
    bad[index].1.pop();
    bad[index].1.extend(second);
    restore(&dir, &bad);
    assert_eq!(damage(&dir).path, dir.join(snapshot_name(1)));
}

#[test]
fn a_snapshot_without_one_of_its_chunks_is_refused() {
    let dir = Temp::new();
    let good = write(&dir);
    let index = good.iter().position(|(name, _)| *name == snapshot_name(1)).unwrap();
    let [first, second, third] = [9, 0, 4].map(|length| 16 + length);
    let starts = [0, first, first + second].map(|start| HEADER + start);
    for (start, length) in starts.into_iter().zip([first, second, third]) {
        let mut bad = good.clone();
        bad[index].1.drain(start..start + length);
        restore(&dir, &bad);
        let found = damage(&dir);
        assert_eq!((found.path, found.offset), (dir.join(snapshot_name(1)), start as u64));
    }
}

#[test]
fn segments_that_are_exchanged_are_refused() {
    let dir = Temp::new();
    let mut bad = write(&dir);
    let [a, b] = [2, 4].map(|first| bad.iter().position(|(name, _)| *name == segment(first)).unwrap());
    (bad[a].1, bad[b].1) = (bad[b].1.clone(), bad[a].1.clone());
    restore(&dir, &bad);
    assert_eq!(
        damage(&dir),
        Damage { path: dir.join(segment(2)), offset: 0, what: "the segment's header is missing or wrong" }
    );
}

#[test]
fn a_log_that_was_closed_has_no_torn_tail() {
    let dir = Temp::new();
    write(&dir);
    reopen(&dir).0.close().unwrap();
    let mut bad = files(&dir);
    let last = &mut bad.iter_mut().find(|(name, _)| *name == segment(6)).unwrap().1;
    last[HEADER + 2 * FRAME + 20] ^= 1;
    restore(&dir, &bad);
    assert_eq!(damage(&dir).offset, (HEADER + 2 * FRAME) as u64);
}

#[test]
fn an_unreadable_mark_is_refused() {
    let dir = Temp::new();
    let good = write(&dir);
    let index = good.iter().position(|(name, _)| name == "mark").unwrap();
    for cut in [0, 10, 75] {
        let mut bad = good.clone();
        bad[index].1.truncate(cut);
        restore(&dir, &bad);
        assert_eq!(damage(&dir).path, dir.join("mark"));
    }
    // Interrupted between the two copies, it is the first that counts.
    let mut older = good.clone();
    older[index].1[..100].fill(0);
    restore(&dir, &older);
    assert_eq!(reopen(&dir).0.mark(), MARK);
}
