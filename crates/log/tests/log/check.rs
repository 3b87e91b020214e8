//! A state directory seen from outside.

use crate::common::*;
use lockkeeper_log::{Crash, Mark, OpenError, check, reset};
use std::fs;

const MARK: Mark = Mark { max_ttl_ms: 30_000, token_ceiling: 77 };

#[test]
fn a_check_says_what_open_would_find_and_changes_nothing() {
    let dir = Temp::new();
    let (mut log, _) = reopen(&dir);
    log.set_mark(MARK).unwrap();
    commit(&mut log, &[b"1"]);
    snapshot(&mut log, &[b"state", b"at 1"]);
    commit(&mut log, &[b"2", b"3"]);
    let report = check(&dir, BOOT);
    assert!(report.in_use);
    drop(log);
    let before = files(&dir);
    let report = check(&dir, BOOT);
    assert!(!report.in_use && !report.closed && !report.crashed);
    assert_eq!(report.mark, Some(MARK));
    let found = report.snapshot.unwrap();
    assert_eq!((found.position, found.chunks, found.path), (1, 2, dir.join(snapshot_name(1))));
    let [found] = &report.segments[..] else { panic!("{:?}", report.segments) };
    assert_eq!((found.first, found.records, found.end), (2, 2, HEADER as u64 + 26));
    assert!(report.torn.is_none() && report.refused.is_none());
    assert!(check(&dir, OTHER_BOOT).crashed);
    assert_eq!(files(&dir), before);

    reopen(&dir).0.close().unwrap();
    assert!(check(&dir, BOOT).closed);
    assert!(!check(&dir, OTHER_BOOT).crashed);
}

#[test]
fn a_check_names_damage_and_what_is_torn() {
    let dir = Temp::new();
    let (mut log, _) = reopen(&dir);
    commit(&mut log, &[b"1"]);
    commit(&mut log, &[b"2"]);
    drop(log);
    let good = files(&dir);
    let path = dir.join(segment(1));
    for (commit, damaged) in [(0, true), (1, false)] {
        let mut bytes = good.iter().find(|(name, _)| *name == segment(1)).unwrap().1.clone();
        bytes[HEADER + commit * 21 + 20] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let before = files(&dir);
        let report = check(&dir, BOOT);
        let offset = (HEADER + commit * 21) as u64;
        match report.refused {
            Some(OpenError::Damaged(found)) if damaged => {
                assert_eq!((&found.path, found.offset), (&path, offset));
                assert!(report.segments.is_empty());
            }
            None if !damaged => assert_eq!(report.torn.unwrap().offset, offset),
            other => panic!("{other:?}"),
        }
        assert_eq!(files(&dir), before);
    }
}

#[test]
fn a_check_of_what_is_no_log_says_why() {
    let dir = Temp::new();
    let missing = check(&dir.join("missing"), BOOT);
    assert!(matches!(missing.refused, Some(OpenError::Io { .. })));
    assert!(!dir.join("missing").exists());
    let empty = check(&dir, BOOT);
    assert!(empty.refused.is_none() && empty.mark.is_none());
    assert!(files(&dir).is_empty());
    fs::write(dir.join("sessions"), "").unwrap();
    assert!(matches!(check(&dir, BOOT).refused, Some(OpenError::Earlier(_))));
}

#[test]
fn a_reset_moves_everything_aside_and_the_mark_holds_on() {
    let dir = Temp::new();
    let (mut log, _) = reopen(&dir);
    log.set_mark(MARK).unwrap();
    commit(&mut log, &[b"1"]);
    snapshot(&mut log, &[b"state"]);
    commit(&mut log, &[b"2"]);
    assert!(matches!(reset(&dir), Err(OpenError::InUse(_))));
    drop(log);
    fs::write(dir.join("fifo"), "another's").unwrap();
    // Damaged beyond repair.
    fs::write(dir.join(segment(2)), "nonsense").unwrap();
    let before: Vec<_> =
        files(&dir).into_iter().filter(|(name, _)| name != "lock" && name != "fifo").collect();
    let done = reset(&dir).unwrap().unwrap();
    assert_eq!((done.moved_to.clone(), done.mark), (dir.join("old-1"), Some(MARK)));
    assert_eq!(done.files, [segment(2), snapshot_name(1)]);
    assert_eq!(files(&done.moved_to), before);
    assert!(dir.join("fifo").exists());

    // The bounds that clients were given then still hold.
    let (mut log, mut recovered) = reopen(&dir);
    assert_eq!(recovered.crash, Some(Crash { mark: MARK }));
    assert!(recovered.snapshot.is_none() && records(&mut recovered).is_empty());
    log.settle_crash().unwrap();
    commit(&mut log, &[b"a new life"]);
    drop(log);
    assert_eq!(reopen(&dir).1.crash, None);
    assert_eq!(reset(&dir).unwrap().unwrap().moved_to, dir.join("old-2"));
}

#[test]
fn a_reset_that_was_interrupted_can_be_repeated_and_loses_no_mark() {
    let dir = Temp::new();
    let (mut log, _) = reopen(&dir);
    log.set_mark(MARK).unwrap();
    commit(&mut log, &[b"1"]);
    drop(log);
    reset(&dir).unwrap().unwrap();
    // Before its last step, which is the new log.
    fs::remove_file(dir.join(segment(1))).unwrap();
    assert!(matches!(open_at(&dir), Err(OpenError::Damaged(_))));
    assert_eq!(reset(&dir).unwrap().unwrap().mark, Some(MARK));
    assert_eq!(reopen(&dir).1.crash, Some(Crash { mark: MARK }));
}

#[test]
fn a_reset_of_an_earlier_daemons_files_leaves_an_empty_directory() {
    let dir = Temp::new();
    assert_eq!(reset(&dir).unwrap(), None);
    for name in ["key", "sessions", "tokens"] {
        fs::write(dir.join(name), name).unwrap();
    }
    let done = reset(&dir).unwrap().unwrap();
    assert_eq!((&done.files[..], done.mark), (&["key", "sessions", "tokens"].map(String::from)[..], None));
    assert_eq!(fs::read(done.moved_to.join("tokens")).unwrap(), b"tokens");
    let (_, recovered) = reopen(&dir);
    assert_eq!(recovered.crash, None);
}

#[test]
fn a_reset_moves_a_mark_that_cannot_be_read() {
    let dir = Temp::new();
    drop(reopen(&dir));
    fs::write(dir.join("mark"), "nonsense").unwrap();
    let done = reset(&dir).unwrap().unwrap();
    assert_eq!((done.mark, &done.files[..]), (None, &[segment(1), "mark".into()][..]));
    reopen(&dir);
}
