//! The machine crashes, or is only restarted.

use crate::common::*;
use lockkeeper_log::{Config, Crash, Log, Mark, OpenError, Recovered, open};
use std::{fs, path::Path};

const MARK: Mark = Mark { max_ttl_ms: 30_000, token_ceiling: 77 };

fn boot(dir: &Path, boot_id: [u8; 16], sync: bool) -> Result<(Log, Recovered), OpenError> {
    open(Config { boot_id, sync, segment_bytes: 60, ..config(dir) })
}

/// A log with six commits in three segments, and an empty one after them.
fn write(dir: &Path, sync: bool) -> Log {
    let (mut log, _) = boot(dir, BOOT, sync).unwrap();
    log.set_mark(MARK).unwrap();
    for record in [b"1", b"2", b"3", b"4", b"5", b"6"] {
        commit(&mut log, &[record]);
    }
    assert_eq!(names(dir), [segment(1), segment(3), segment(5), segment(7), "mark".into()]);
    log
}

/// As if the page with the fourth record had not been written.
fn lose_fourth(dir: &Path) {
    let path = dir.join(segment(3));
    let mut bytes = fs::read(&path).unwrap();
    bytes[HEADER + 21..].fill(0);
    fs::write(path, bytes).unwrap();
}

#[test]
fn after_a_crash_an_unsynced_log_ends_at_its_first_bad_record() {
    let dir = Temp::new();
    drop(write(&dir, false));
    lose_fourth(&dir);
    // In the same boot, this is damage.
    assert!(matches!(boot(&dir, BOOT, false), Err(OpenError::Damaged(_))));
    let (mut log, mut recovered) = boot(&dir, OTHER_BOOT, false).unwrap();
    assert_eq!(recovered.crash, Some(Crash { mark: MARK }));
    assert_eq!(records(&mut recovered), [b"1", b"2", b"3"]);
    assert_eq!(names(&dir), [segment(1), segment(3), "mark".into()]);
    commit(&mut log, &[b"another 4"]);
    drop(log);
    let (_, mut recovered) = boot(&dir, OTHER_BOOT, false).unwrap();
    assert_eq!(records(&mut recovered), [&b"1"[..], b"2", b"3", b"another 4"]);
}

#[test]
fn after_a_crash_what_comes_after_a_bad_record_is_never_read_again() {
    let dir = Temp::new();
    drop(boot(&dir, BOOT, false).unwrap());
    let (mut log, _) = reopen(&dir);
    (1..=4).for_each(|number| commit(&mut log, &[&[number]]));
    drop(log);
    let path = dir.join(segment(1));
    let mut bytes = fs::read(&path).unwrap();
    bytes[HEADER + 21 + 20] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (mut log, mut recovered) = boot(&dir, OTHER_BOOT, false).unwrap();
    assert_eq!(records(&mut recovered), [[1]]);
    let torn = recovered.torn.unwrap();
    assert_eq!((torn.offset, torn.bytes), (HEADER as u64 + 21, 3 * 21));
    // A record of the same length, before which and after which there were others.
    commit(&mut log, &[&[5]]);
    drop(log);
    assert_eq!(records(&mut boot(&dir, OTHER_BOOT, false).unwrap().1), [[1], [5]]);
}

#[test]
fn after_a_crash_a_segment_that_ends_in_garbage_is_the_last() {
    let dir = Temp::new();
    drop(write(&dir, false));
    let path = dir.join(segment(3));
    let bytes = [&fs::read(&path).unwrap()[..], b"garbage"].concat();
    fs::write(&path, bytes).unwrap();
    let (mut log, mut recovered) = boot(&dir, OTHER_BOOT, false).unwrap();
    assert_eq!(records(&mut recovered), [b"1", b"2", b"3", b"4"]);
    assert_eq!(recovered.torn.unwrap().path, path);
    commit(&mut log, &[b"another 5"]);
    drop(log);
    let (_, mut recovered) = boot(&dir, OTHER_BOOT, false).unwrap();
    assert_eq!(records(&mut recovered)[3..], [&b"4"[..], b"another 5"]);
}

#[test]
fn after_a_crash_a_segment_without_its_header_is_not_there() {
    for lost in [1, 3, 5, 7] {
        for length in [0, 5, 100] {
            let dir = Temp::new();
            drop(write(&dir, false));
            fs::write(dir.join(segment(lost)), vec![0; length]).unwrap();
            let (mut log, mut recovered) = boot(&dir, OTHER_BOOT, false).unwrap();
            assert!(recovered.crash.is_some());
            assert_eq!(records(&mut recovered).len() as u64, lost - 1);
            assert_eq!(log.position(), lost - 1);
            commit(&mut log, &[b"after"]);
            drop(log);
            let (_, mut recovered) = boot(&dir, OTHER_BOOT, false).unwrap();
            assert_eq!(records(&mut recovered).last().unwrap(), b"after");
        }
    }
}

#[test]
fn after_a_crash_a_snapshot_still_holds_if_nothing_after_it_does() {
    let dir = Temp::new();
    let mut log = write(&dir, false);
    snapshot(&mut log, &[b"state"]);
    commit(&mut log, &[b"7"]);
    drop(log);
    fs::remove_file(dir.join(segment(7))).unwrap();
    let (log, mut recovered) = boot(&dir, OTHER_BOOT, false).unwrap();
    assert_eq!(chunks(&mut recovered).unwrap(), [b"state"]);
    assert!(records(&mut recovered).is_empty());
    assert_eq!(log.position(), 6);
    // Its snapshot was synced before it counted: that it is bad has another reason.
    drop(log);
    fs::write(dir.join(snapshot_name(6)), "").unwrap();
    assert!(matches!(boot(&dir, BOOT, false), Err(OpenError::Damaged(_))));
}

#[test]
fn a_crash_is_reported_until_it_is_settled() {
    let dir = Temp::new();
    drop(write(&dir, false));
    let crash = Some(Crash { mark: MARK });
    assert_eq!(boot(&dir, OTHER_BOOT, false).unwrap().1.crash, crash);
    // Killed before anything was done about it.
    let (mut log, recovered) = boot(&dir, OTHER_BOOT, true).unwrap();
    assert_eq!(recovered.crash, crash);
    // Meanwhile the mark only rises.
    log.set_mark(Mark { max_ttl_ms: 5, token_ceiling: 100 }).unwrap();
    let crash = Some(Crash { mark: Mark { token_ceiling: 100, ..MARK } });
    log.close().unwrap();
    let (log, recovered) = boot(&dir, BOOT, false).unwrap();
    assert_eq!(recovered.crash, crash);
    drop(log);
    // A second crash on top of it.
    let (mut log, recovered) = boot(&dir, OTHER_BOOT, false).unwrap();
    assert_eq!(recovered.crash, crash);
    log.append(b"what follows from it");
    log.settle_crash().unwrap();
    let lower = Mark { max_ttl_ms: 0, token_ceiling: 200 };
    log.set_mark(lower).unwrap();
    drop(log);
    let (log, mut recovered) = boot(&dir, OTHER_BOOT, false).unwrap();
    assert_eq!((recovered.crash, log.mark()), (None, lower));
    assert_eq!(records(&mut recovered).last().unwrap(), b"what follows from it");
}

#[test]
fn damage_is_damage_again_once_the_log_was_opened_after_a_crash() {
    let dir = Temp::new();
    drop(write(&dir, false));
    drop(boot(&dir, OTHER_BOOT, false).unwrap());
    lose_fourth(&dir);
    // The crash is not settled, but nothing crashed since these records were read.
    assert!(matches!(boot(&dir, OTHER_BOOT, false), Err(OpenError::Damaged(_))));
}

#[test]
fn a_log_that_was_closed_is_trusted_after_a_restart_of_the_machine() {
    let dir = Temp::new();
    write(&dir, false).close().unwrap();
    let closed = files(&dir);
    let (log, mut recovered) = boot(&dir, OTHER_BOOT, false).unwrap();
    assert_eq!(recovered.crash, None);
    assert_eq!(records(&mut recovered).len(), 6);
    assert_eq!(log.mark(), MARK);
    drop(log);
    // And then crashes.
    assert!(boot(&dir, BOOT, false).unwrap().1.crash.is_some());
    restore(&dir, &closed);
    lose_fourth(&dir);
    assert!(matches!(boot(&dir, OTHER_BOOT, false), Err(OpenError::Damaged(_))));
}

#[test]
fn a_synced_log_is_trusted_after_a_power_cut() {
    let dir = Temp::new();
    drop(write(&dir, true));
    let left = files(&dir);
    // Whether it is synced from now on does not matter.
    for sync in [false, true] {
        restore(&dir, &left);
        let (_, mut recovered) = boot(&dir, OTHER_BOOT, sync).unwrap();
        assert_eq!(recovered.crash, None);
        assert_eq!(records(&mut recovered).len(), 6);
        restore(&dir, &left);
        lose_fourth(&dir);
        assert!(matches!(boot(&dir, OTHER_BOOT, sync), Err(OpenError::Damaged(_))));
    }
}

#[test]
fn a_log_is_trusted_from_when_it_is_synced_until_it_is_not() {
    let dir = Temp::new();
    drop(write(&dir, false));
    // Opening it synced makes durable what was not.
    drop(boot(&dir, BOOT, true).unwrap());
    let (log, recovered) = boot(&dir, OTHER_BOOT, true).unwrap();
    assert_eq!(recovered.crash, None);
    drop(log);
    drop(boot(&dir, OTHER_BOOT, false).unwrap());
    let (_, recovered) = boot(&dir, BOOT, true).unwrap();
    assert_eq!(recovered.crash, Some(Crash { mark: MARK }));
}
