//! A log that nothing bad happens to, and one that is refused.

use crate::common::*;
use lockkeeper_log::{Config, Mark, OpenError, Priority, open};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::Command,
};

#[test]
fn a_new_log_is_empty() {
    let dir = Temp::new();
    let (log, mut recovered) = reopen(&dir);
    assert!(recovered.snapshot.is_none() && recovered.crash.is_none() && recovered.torn.is_none());
    assert!(records(&mut recovered).is_empty());
    assert_eq!((log.position(), log.committed(), log.bytes_since_snapshot()), (0, 0, 0));
    assert_eq!(log.mark(), Mark::default());
}

#[test]
fn what_was_committed_is_recovered_and_what_was_not_is_gone() {
    let dir = Temp::new();
    let (mut log, _) = reopen(&dir);
    commit(&mut log, &[b"one"]);
    commit(&mut log, &[b"two", b"", &[0; 40], b"five"]);
    assert_eq!(log.append(b"never committed"), 6);
    assert_eq!((log.position(), log.committed()), (6, 5));
    drop(log);
    let (mut log, mut recovered) = reopen(&dir);
    assert_eq!(records(&mut recovered), [&b"one"[..], b"two", b"", &[0; 40], b"five"]);
    assert!(recovered.torn.is_none() && recovered.crash.is_none());
    assert_eq!(log.position(), 5);
    commit(&mut log, &[b"six"]);
    drop(log);
    assert_eq!(records(&mut reopen(&dir).1).last().unwrap(), b"six");
}

#[test]
fn a_commit_of_nothing_writes_nothing() {
    let dir = Temp::new();
    let (mut log, _) = reopen(&dir);
    commit(&mut log, &[b"one"]);
    let before = files(&dir);
    assert_eq!(log.commit().unwrap(), 1);
    assert_eq!(files(&dir), before);
}

#[test]
fn a_record_can_be_larger_than_a_segment() {
    let dir = Temp::new();
    let (mut log, _) = open(Config { segment_bytes: 1000, ..config(&dir) }).unwrap();
    let large = vec![3; 3 << 20];
    commit(&mut log, &[&large, b"small", &large]);
    commit(&mut log, &[b"after"]);
    drop(log);
    assert_eq!(records(&mut reopen(&dir).1), [&large[..], b"small", &large, b"after"]);
}

#[test]
fn a_segment_that_is_large_is_followed_by_another_and_gives_back_its_space() {
    let dir = Temp::new();
    let (mut log, _) = open(Config { segment_bytes: 1000, ..config(&dir) }).unwrap();
    (0..40).for_each(|number| commit(&mut log, &[&[number; 84]]));
    // 28 bytes of header and 10 frames of 16 + 4 + 84 bytes are the first to reach 1,000 bytes.
    assert_eq!(names(&dir), [segment(1), segment(11), segment(21), segment(31), segment(41), "mark".into()]);
    assert_eq!(fs::metadata(dir.join(segment(11))).unwrap().len(), 28 + 10 * 104);
    assert_eq!(log.bytes_since_snapshot(), 40 * 104);
    drop(log);
    let (log, mut recovered) = reopen(&dir);
    let expected: Vec<_> = (0..40).map(|number| vec![number; 84]).collect();
    assert_eq!(records(&mut recovered), expected);
    assert_eq!(log.bytes_since_snapshot(), 40 * 104);
}

#[test]
fn a_snapshot_is_of_one_position_however_many_appends_there_are_while_it_is_written() {
    let dir = Temp::new();
    let (mut log, _) = reopen(&dir);
    commit(&mut log, &[b"1", b"2"]);
    log.append(b"3");
    let mut writer = log.begin_snapshot().unwrap();
    assert_eq!(log.committed(), 3);
    for slice in [b"a", b"b", b"c"] {
        writer.write(slice).unwrap();
        commit(&mut log, &[slice]);
    }
    // Until it is finished, it is not there.
    let unfinished = files(&dir);
    log.append(b"with the finish");
    finish(&mut log, writer);
    assert_eq!(log.bytes_since_snapshot(), 3 * 21);
    assert_eq!(log.commit().unwrap(), 7);
    drop(log);
    assert_eq!(names(&dir), [segment(4), "mark".into(), snapshot_name(3)]);
    let (log, mut recovered) = reopen(&dir);
    assert_eq!(recovered.snapshot.as_ref().unwrap().position(), 3);
    assert_eq!(chunks(&mut recovered).unwrap(), [b"a", b"b", b"c"]);
    assert_eq!(records(&mut recovered), [&b"a"[..], b"b", b"c", b"with the finish"]);
    assert_eq!(log.position(), 7);
    drop(log);

    restore(&dir, &unfinished);
    let (log, mut recovered) = reopen(&dir);
    assert_eq!(chunks(&mut recovered), None);
    assert_eq!(records(&mut recovered), [b"1", b"2", b"3", b"a", b"b", b"c"]);
    drop(log);
    assert_eq!(names(&dir), [segment(1), segment(4), "mark".into()]);
}

#[test]
fn a_snapshot_takes_the_place_of_the_one_before() {
    let dir = Temp::new();
    let (mut log, _) = reopen(&dir);
    snapshot(&mut log, &[]);
    assert_eq!(names(&dir), [segment(1), "mark".into(), snapshot_name(0)]);
    commit(&mut log, &[b"1"]);
    snapshot(&mut log, &[b"", b"state"]);
    // Twice at one position.
    snapshot(&mut log, &[b"", b"the same state"]);
    assert_eq!(names(&dir), [segment(2), "mark".into(), snapshot_name(1)]);
    assert_eq!(log.bytes_since_snapshot(), 0);
    drop(log);
    let (mut log, mut recovered) = reopen(&dir);
    assert_eq!(chunks(&mut recovered).unwrap(), [&b""[..], b"the same state"]);
    assert_eq!(log.position(), 1);
    commit(&mut log, &[b"2"]);
    snapshot(&mut log, &[b"after a restart"]);
    assert_eq!(names(&dir), [segment(3), "mark".into(), snapshot_name(2)]);
}

#[test]
fn an_abandoned_snapshot_leaves_nothing() {
    let dir = Temp::new();
    let (mut log, _) = reopen(&dir);
    commit(&mut log, &[b"1"]);
    let mut writer = log.begin_snapshot().unwrap();
    writer.write(&vec![1; 3 << 20]).unwrap();
    drop(writer);
    assert_eq!(names(&dir), [segment(1), segment(2), "mark".into()]);
    commit(&mut log, &[b"2"]);
    snapshot(&mut log, &[b"at 2"]);
    drop(log);
    let (_log, mut recovered) = reopen(&dir);
    assert_eq!(recovered.snapshot.as_ref().unwrap().position(), 2);
    assert_eq!(chunks(&mut recovered).unwrap(), [b"at 2"]);
}

#[test]
fn a_kill_while_a_snapshot_replaces_others_leaves_one_of_them() {
    let dir = Temp::new();
    let (mut log, _) = open(Config { segment_bytes: 30, ..config(&dir) }).unwrap();
    commit(&mut log, &[b"1"]);
    snapshot(&mut log, &[b"at 1"]);
    commit(&mut log, &[b"2"]);
    commit(&mut log, &[b"3"]);
    let before = files(&dir);
    snapshot(&mut log, &[b"at 3"]);
    commit(&mut log, &[b"4"]);
    drop(log);
    let (after, after_names) = (files(&dir), names(&dir));
    // All that was there before and after, without any selection of what is removed.
    let mut all = after.clone();
    all.extend(before.into_iter().filter(|(name, _)| after.iter().all(|(other, _)| other != name)));
    let removable = [segment(2), segment(3), snapshot_name(1)];
    assert!(removable.iter().all(|name| all.iter().any(|(other, _)| other == name)));
    for selection in 0..8 {
        let removed = |name: &String| {
            removable.iter().position(|other| other == name).is_some_and(|bit| selection & (1 << bit) != 0)
        };
        let kept: Vec<_> = all.iter().filter(|(name, _)| !removed(name)).cloned().collect();
        restore(&dir, &kept);
        let (log, mut recovered) = reopen(&dir);
        assert_eq!(chunks(&mut recovered).unwrap(), [b"at 3"]);
        assert_eq!(records(&mut recovered), [b"4"]);
        drop(log);
        assert_eq!(names(&dir), after_names);
    }
}

#[test]
fn the_mark_is_kept() {
    let dir = Temp::new();
    let (mut log, _) = reopen(&dir);
    let mark = Mark { max_ttl_ms: 30_000, token_ceiling: 1 << 20 };
    log.set_mark(mark).unwrap();
    assert_eq!(log.mark(), mark);
    drop(log);
    let (mut log, _) = reopen(&dir);
    assert_eq!(log.mark(), mark);
    let lower = Mark { max_ttl_ms: 0, ..mark };
    log.set_mark(lower).unwrap();
    log.close().unwrap();
    assert_eq!(reopen(&dir).0.mark(), lower);
}

#[test]
fn one_process_at_a_time_has_the_log() {
    let dir = Temp::new();
    let log = reopen(&dir);
    assert!(matches!(open_at(&dir), Err(OpenError::InUse(path)) if path == *dir));
    drop(log);
    reopen(&dir);
}

#[test]
fn only_its_owner_can_read_it() {
    let dir = Temp::new();
    let inner = dir.join("a/b");
    let (mut log, _) = reopen(&inner);
    commit(&mut log, &[b"1"]);
    snapshot(&mut log, &[b"state"]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&inner), 0o700);
    for (name, _) in files(&inner) {
        assert_eq!(mode(&inner.join(&name)), 0o600, "{name}");
    }
}

#[test]
fn a_directory_of_another_user_is_refused_and_not_changed() {
    let dir = Temp::new();
    let root =
        String::from_utf8(Command::new("id").arg("-u").output().unwrap().stdout).unwrap().trim() == "0";
    let foreign = if root { dir.to_owned() } else { Path::new("/usr").to_owned() };
    if root {
        chown(&foreign, Some(12345), None).unwrap();
    }
    let owner = if root { 12345 } else { 0 };
    let error = open_at(&foreign).err().unwrap();
    assert!(matches!(&error, OpenError::Owner { owner: found, .. } if *found == owner), "{error}");
    assert!(!foreign.join("lock").exists());
}

#[test]
fn a_directory_of_an_earlier_daemon_is_refused_by_name_and_not_changed() {
    for name in ["key", "tokens", "sessions", "network", "state"] {
        let dir = Temp::new();
        fs::write(dir.join(name), "of before").unwrap();
        let error = open_at(&dir).err().unwrap();
        assert!(matches!(&error, OpenError::Earlier(path) if *path == dir.join(name)), "{error}");
        assert!(error.to_string().contains("lockkeeper state reset"), "{error}");
        assert_eq!(names(&dir), [name]);
        assert!(!dir.join("lock").exists());
    }
}

#[test]
fn files_of_others_are_left_alone() {
    let dir = Temp::new();
    for name in ["fifo-1", "log-1", "log-0000000000000000000x", "snapshot.new", "notes"] {
        fs::write(dir.join(name), "another's").unwrap();
    }
    let before = files(&dir);
    let (mut log, _) = reopen(&dir);
    commit(&mut log, &[b"1"]);
    snapshot(&mut log, &[]);
    drop(log);
    reopen(&dir);
    for (name, bytes) in before {
        assert_eq!(fs::read(dir.join(name)).unwrap(), bytes);
    }
}

#[test]
fn another_format_is_refused_by_name() {
    let dir = Temp::new();
    let (mut log, _) = reopen(&dir);
    commit(&mut log, &[b"1"]);
    snapshot(&mut log, &[b"state"]);
    drop(log);
    let good = files(&dir);
    for name in [segment(2), snapshot_name(1), "mark".into()] {
        let mut newer = good.clone();
        let bytes = &mut newer.iter_mut().find(|(other, _)| *other == name).unwrap().1;
        for copy in (0..bytes.len()).step_by(4096).take(if name == "mark" { 2 } else { 1 }) {
            bytes[copy + 8] = 9;
        }
        restore(&dir, &newer);
        let error = open_at(&dir).err().unwrap();
        let named =
            matches!(&error, OpenError::Format { path, found: 9, known: 1 } if *path == dir.join(&name));
        assert!(named, "{error}");
        assert_eq!(files(&dir), newer);
    }
}

#[test]
fn a_log_without_its_mark_is_refused_unless_its_start_was_interrupted() {
    let dir = Temp::new();
    let (mut log, _) = reopen(&dir);
    let new = files(&dir);
    commit(&mut log, &[b"1"]);
    drop(log);
    fs::remove_file(dir.join("mark")).unwrap();
    let before = files(&dir);
    let error = open_at(&dir).err().unwrap();
    assert!(matches!(&error, OpenError::Damaged(damage) if damage.path == dir.join("mark")), "{error}");
    assert_eq!(files(&dir), before);
    for kept in [&["lock"][..], &["lock", &segment(1)]] {
        let started: Vec<_> = new.iter().filter(|(name, _)| kept.contains(&&name[..])).cloned().collect();
        restore(&dir, &started);
        assert_eq!(reopen(&dir).0.position(), 0);
    }
}

#[test]
fn a_path_that_is_no_directory_is_named_in_the_error() {
    let dir = Temp::new();
    let file = dir.join("file");
    fs::write(&file, "").unwrap();
    let error = open_at(&file).err().unwrap();
    assert!(matches!(&error, OpenError::Io { path, .. } if *path == file), "{error}");
    let error = open_at(&file.join("below")).err().unwrap();
    assert!(error.to_string().contains("below"), "{error}");
}

#[test]
fn space_is_reserved_for_a_record_and_for_the_releases_after_it() {
    let dir = Temp::new();
    let (mut log, _) = open(Config { reserve: 1 << 20, ..config(&dir) }).unwrap();
    for _ in 0..100 {
        log.reserve(50_000, Priority::Normal).unwrap();
        log.append(&[1; 50_000]);
        log.commit().unwrap();
        let size = fs::metadata(dir.join(segment(1))).unwrap().len();
        assert!(size >= log.bytes_since_snapshot() + (1 << 20));
    }
}

#[test]
fn a_record_without_space_reserved_for_it_is_kept_if_there_is_space() {
    let dir = Temp::new();
    unreserved(&dir);
}
