//! Disks that are full, read-only, or of another kind.
//!
//! Each test starts itself again in a mount namespace of its own, with `unshare` of util-linux,
//! where it can mount what it needs without being root. Set `LOCKKEEPER_SKIP_MOUNT=1` where that is
//! not permitted.

use crate::common::*;
use lockkeeper_log::{Config, Log, Mark, OpenError, Priority, open};
use std::{
    env, fs,
    io::{ErrorKind, Write},
    path::Path,
    process::Command,
};

const INSIDE: &str = "LOCKKEEPER_LOG_TEST_MOUNT";

/// Runs `test` in a directory in which a file system of this kind is mounted.
fn on(kind: &str, options: &str, name: &str, test: impl FnOnce(&Path)) {
    if let Some(dir) = env::var_os(INSIDE) {
        let dir = Path::new(&dir);
        mount(&["-t", kind, "-o", options, kind], dir);
        return test(dir);
    }
    if env::var_os("LOCKKEEPER_SKIP_MOUNT").is_some_and(|value| value == "1") {
        eprintln!("SKIPPED {name}: LOCKKEEPER_SKIP_MOUNT is set");
        return;
    }
    let dir = Temp::new();
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "--"]).arg(env::current_exe().unwrap());
    command.args(["--exact", &format!("disk::{name}"), "--nocapture", "--test-threads=1"]);
    let output = command.env(INSIDE, &*dir).output().expect("`unshare` of util-linux is needed");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let ran = text.contains("1 passed");
    assert!(
        output.status.success() && ran,
        "{text}\nThis test mounts a file system in a namespace of its own. Where that is not permitted, \
         set LOCKKEEPER_SKIP_MOUNT=1."
    );
}

fn mount(args: &[&str], dir: &Path) {
    let status = Command::new("mount").args(args).arg(dir).status().expect("`mount` is needed");
    assert!(status.success(), "mount {args:?}: {status}");
}

/// Takes all space that is left. Removing the file gives it back.
fn fill(dir: &Path) {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(dir.join("filler")).unwrap();
    for size in [64 << 10, 4096, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
}

/// Appends and commits records until the disk is full.
fn write_until_full(log: &mut Log, priority: Priority) -> u64 {
    for count in 0.. {
        let position = log.position();
        match log.reserve(60, priority) {
            Ok(()) => {
                log.append(&[9; 60]);
                log.commit().unwrap();
            }
            Err(full) => {
                assert_eq!(full.0.kind(), ErrorKind::StorageFull, "{full}");
                assert_eq!(log.position(), position);
                return count;
            }
        }
    }
    unreachable!()
}

#[test]
fn a_full_disk_refuses_requests_and_never_a_release() {
    on("tmpfs", "size=4m", "a_full_disk_refuses_requests_and_never_a_release", |dir| {
        const RESERVE: u64 = 64 << 10;
        // A record of 60 bytes in a commit of its own.
        const SIZE: u64 = 80;
        let config = Config { reserve: RESERVE, ..config(dir) };
        let (mut log, _) = open(config.clone()).unwrap();
        fill(dir);
        let written = write_until_full(&mut log, Priority::Normal);
        assert!(written > 1000);
        let allocated = fs::metadata(dir.join(segment(1))).unwrap().len();
        // Refused again and again, nothing changes.
        for _ in 0..10 {
            log.reserve(60, Priority::Normal).unwrap_err();
        }
        assert_eq!(fs::metadata(dir.join(segment(1))).unwrap().len(), allocated);

        // A mark can be set, and a snapshot cannot be taken.
        let mark = Mark { max_ttl_ms: 1, token_ceiling: 2 };
        log.set_mark(mark).unwrap();
        assert_eq!(log.begin_snapshot().err().unwrap().kind(), ErrorKind::StorageFull);
        assert_eq!(names(dir), ["filler".into(), segment(1), "mark".into()]);

        // Half of the reserve, then a kill, then the other half.
        let half = RESERVE / SIZE / 2;
        for _ in 0..half {
            log.reserve(60, Priority::Release).unwrap();
            log.append(&[9; 60]);
            log.commit().unwrap();
        }
        drop(log);
        let (mut log, mut recovered) = open(config.clone()).unwrap();
        assert_eq!(records(&mut recovered).len() as u64, written + half);
        assert_eq!(log.mark(), mark);
        log.reserve(60, Priority::Normal).unwrap_err();
        let rest = write_until_full(&mut log, Priority::Release);
        assert!(rest >= half - 1, "{rest} of {half}");

        // With a little space, a little more is taken on; with enough, everything goes on by
        // itself.
        let filler = fs::OpenOptions::new().write(true).open(dir.join("filler")).unwrap();
        filler.set_len(filler.metadata().unwrap().len() - 2 * RESERVE).unwrap();
        drop(filler);
        let more = write_until_full(&mut log, Priority::Normal);
        assert!((RESERVE / SIZE - 100..RESERVE / SIZE + 100).contains(&more), "{more}");
        fs::remove_file(dir.join("filler")).unwrap();
        log.reserve(60, Priority::Normal).unwrap();
        snapshot(&mut log, &[b"state"]);
        commit(&mut log, &[b"after"]);
        let position = log.position();
        drop(log);
        let (log, mut recovered) = open(config).unwrap();
        assert_eq!(log.position(), position);
        assert_eq!(chunks(&mut recovered).unwrap(), [b"state"]);
        assert_eq!(records(&mut recovered), [b"after"]);
    });
}

#[test]
fn a_torn_tail_is_cut_on_a_full_disk_and_the_reserve_is_kept() {
    on("tmpfs", "size=4m", "a_torn_tail_is_cut_on_a_full_disk_and_the_reserve_is_kept", |dir| {
        let (mut log, _) = reopen(dir);
        fill(dir);
        let written = write_until_full(&mut log, Priority::Normal);
        drop(log);
        let path = dir.join(segment(1));
        let mut bytes = fs::read(&path).unwrap();
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        bytes[end] ^= 1;
        // In place: this file must keep its space.
        fs::OpenOptions::new().write(true).open(&path).unwrap().write_all(&bytes).unwrap();
        let (mut log, recovered) = reopen(dir);
        assert!(recovered.torn.is_some());
        assert_eq!(log.position(), written - 1);
        // The space of the record that was cut, and the 4,096 bytes of the reserve.
        assert!(write_until_full(&mut log, Priority::Release) > 4096 / 80);
    });
}

#[test]
fn a_copy_with_holes_has_no_space_that_it_seems_to_have() {
    on("tmpfs", "size=4m", "a_copy_with_holes_has_no_space_that_it_seems_to_have", |dir| {
        let (mut log, _) = reopen(dir);
        commit(&mut log, &[b"1"]);
        drop(log);
        let file = fs::OpenOptions::new().write(true).open(dir.join(segment(1))).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(4096).unwrap();
        file.set_len(length).unwrap();
        fill(dir);
        let (mut log, mut recovered) = reopen(dir);
        assert_eq!(records(&mut recovered), [b"1"]);
        log.reserve(60, Priority::Normal).unwrap_err();
        // What is left of the page in which the record is.
        assert!(write_until_full(&mut log, Priority::Release) < 4096 / 80);
        fs::remove_file(dir.join("filler")).unwrap();
        log.reserve(60, Priority::Normal).unwrap();
    });
}

#[test]
fn a_record_without_space_reserved_for_it_is_not_lost_to_an_attempt_to_reserve_more() {
    let name = "a_record_without_space_reserved_for_it_is_not_lost_to_an_attempt_to_reserve_more";
    on("tmpfs", "size=4m", name, |dir| {
        let (mut log, _) = reopen(dir);
        let large = vec![7; 2 << 20];
        log.append(&large);
        log.commit().unwrap();
        fill(dir);
        log.reserve(1 << 20, Priority::Release).unwrap_err();
        drop(log);
        assert_eq!(records(&mut reopen(dir).1), [large]);
    });
}

#[test]
fn a_segment_that_cannot_be_followed_on_a_full_disk_goes_on() {
    on("tmpfs", "size=4m", "a_segment_that_cannot_be_followed_on_a_full_disk_goes_on", |dir| {
        let (mut log, _) = open(Config { segment_bytes: 100, ..config(dir) }).unwrap();
        fill(dir);
        let written = write_until_full(&mut log, Priority::Normal);
        assert!(written > 100);
        let position = log.position();
        drop(log);
        let (log, mut recovered) = reopen(dir);
        assert_eq!((log.position(), records(&mut recovered).len() as u64), (position, written));
    });
}

#[test]
fn a_snapshot_for_which_there_is_no_space_leaves_none_of_it_taken() {
    on("tmpfs", "size=4m", "a_snapshot_for_which_there_is_no_space_leaves_none_of_it_taken", |dir| {
        let (mut log, _) = reopen(dir);
        commit(&mut log, &[b"1"]);
        let mut writer = log.begin_snapshot().unwrap();
        let error = (0..100).find_map(|_| writer.write(&vec![1; 100_000]).err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        drop(writer);
        assert_eq!(names(dir), [segment(1), segment(2), "mark".into()]);
        commit(&mut log, &[b"2"]);
        drop(log);
        assert_eq!(records(&mut reopen(dir).1), [b"1", b"2"]);
    });
}

#[test]
fn a_log_that_begins_on_a_full_disk_is_refused_and_leaves_nothing_half_done() {
    on(
        "tmpfs",
        "size=1m",
        "a_log_that_begins_on_a_full_disk_is_refused_and_leaves_nothing_half_done",
        |dir| {
            fill(dir);
            let error = open_at(dir).err().unwrap();
            assert!(
                matches!(&error, OpenError::Io { error, .. } if error.kind() == ErrorKind::StorageFull),
                "{error}"
            );
            assert_eq!(names(dir), ["filler"]);
            fs::remove_file(dir.join("filler")).unwrap();
            reopen(dir);
        },
    );
}

#[test]
fn a_read_only_file_system_is_named() {
    on("tmpfs", "size=4m", "a_read_only_file_system_is_named", |dir| {
        let (mut log, _) = reopen(dir);
        commit(&mut log, &[b"1"]);
        drop(log);
        mount(&["-o", "remount,ro"], dir);
        for (path, named) in [(dir, dir.join("lock")), (&dir.join("sub"), dir.join("sub"))] {
            let error = open_at(path).err().unwrap();
            let read_only = |error: &std::io::Error| error.kind() == ErrorKind::ReadOnlyFilesystem;
            assert!(
                matches!(&error, OpenError::Io { path, error } if *path == named && read_only(error)),
                "{error}"
            );
            assert!(error.to_string().contains("Read-only file system"), "{error}");
        }
        mount(&["-o", "remount,rw"], dir);
        assert_eq!(records(&mut reopen(dir).1), [b"1"]);
    });
}

#[test]
fn a_file_system_without_preallocation_gets_zeros() {
    // ramfs has no `fallocate`.
    on("ramfs", "mode=700", "a_file_system_without_preallocation_gets_zeros", |dir| {
        let (mut log, _) = open(Config { reserve: 100_000, ..config(dir) }).unwrap();
        for number in 0..100 {
            commit(&mut log, &[&[number; 10_000]]);
            let size = fs::metadata(dir.join(segment(1))).unwrap().len();
            assert!(size >= log.bytes_since_snapshot() + 100_000);
        }
        snapshot(&mut log, &[b"state"]);
        commit(&mut log, &[b"after"]);
        drop(log);
        let (_, mut recovered) = reopen(dir);
        assert_eq!(chunks(&mut recovered).unwrap(), [b"state"]);
        assert_eq!(records(&mut recovered), [b"after"]);
    });
}

#[test]
fn a_record_without_space_reserved_for_it_is_not_overwritten_with_zeros() {
    on(
        "ramfs",
        "mode=700",
        "a_record_without_space_reserved_for_it_is_not_overwritten_with_zeros",
        unreserved,
    );
}
