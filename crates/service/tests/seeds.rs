//! The seeds of the fuzz targets `snapshots` and `batches`: a snapshot of a state that has something
//! of everything, and a history with every record. After a change of the format,
//! `LOCKKEEPER_WRITE_SEEDS=1` writes them anew.

use lockkeeper_core::Mode::{Exclusive, Shared};
use lockkeeper_service::{EndReason, Fifo, LEVEL, Origin, Record, State};
use std::{env, fs, path::Path};

/// What leads to such a state.
fn records() -> Vec<Record<'static>> {
    let open = |session, bucket, origin| Record::Open {
        session,
        secret: [7; 32],
        bucket,
        origin,
        hello: 1,
        ttl: 10_000,
        owner: "me@here",
    };
    let request = |session, rid, scope, steal, nested_in| Record::Request {
        session,
        rid,
        scope,
        steal,
        nested_in,
        info: Some("label"),
    };
    let both = vec![(&b"a"[..], Exclusive), (&b"a name that is longer than 24 bytes"[..], Shared)];
    vec![
        open(1, "default", Origin::Local),
        Record::Fifo { session: 1, fifo: Fifo { device: 1, inode: 2, boot: [7; 16] } },
        open(2, "default", Origin::Network),
        open(3, "other", Origin::Network),
        request(1, 1, both.clone(), false, None),
        request(1, 2, vec![(b"b", Exclusive)], false, Some((1, 1))),
        request(2, 1, both, false, None),
        request(2, 2, vec![(b"b", Exclusive)], true, None),
        request(3, 1, vec![(b"a", Shared)], false, None),
        Record::ForceRelease { session: 3, rid: 2, name: b"a" },
        Record::Resume { session: 2, hello: 2, ack: 1, ttl: 1_000, keeps_fifo: false },
        Record::Resume { session: 1, hello: 2, ack: 0, ttl: 1_000, keeps_fifo: false },
    ]
}

/// The other records, after these.
fn others() -> Vec<Record<'static>> {
    vec![
        Record::Ack { session: 1, ack: 3 },
        Record::Release { session: 1, rid: 1 },
        Record::EndSession { session: 2, rid: 3, target: 1 },
        Record::SkipTokens { last: 1 << 24 },
        Record::End { session: 2, reason: EndReason::Expired },
    ]
}

/// A seed as it is checked in, after it was written if that is wished for.
fn checked_in(target: &str, name: &str, seed: &[u8]) -> Vec<u8> {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let path = seeds.join(name);
    if env::var_os("LOCKKEEPER_WRITE_SEEDS").is_some() {
        fs::create_dir_all(&seeds).expect("a folder");
        fs::write(&path, seed).expect("a file");
    }
    fs::read(path).expect("there is one")
}

#[test]
fn the_seed_of_the_fuzzer_is_a_snapshot_of_this_format() {
    let mut state = State::new(1);
    for record in records() {
        state.apply(&record, &mut Vec::new()).expect("the records are of one history");
    }
    let snapshot = state.snapshot();
    let seed = checked_in("snapshots", "something-of-everything", &snapshot);
    assert!(seed == snapshot, "the format has changed");
    let mut restored = State::restore([&snapshot], 2).expect("it is whole");
    assert!(restored.snapshot() == snapshot);
}

/// Each batch has its length before it, and no hash: the fuzzer sets it right.
#[test]
fn the_seed_of_the_fuzzer_is_a_history_of_this_format() {
    let mut state = State::new(1);
    let mut history = Vec::new();
    for record in records().into_iter().chain(others()) {
        let mut batch = vec![u8::try_from(LEVEL).expect("a byte"), 1];
        record.encode(&mut batch);
        let mut effects = Vec::new();
        state.apply(&record, &mut effects).expect("the records are of one history");
        assert!(
            !effects.is_empty()
                || matches!(
                    record,
                    Record::Open { .. }
                        | Record::Fifo { .. }
                        | Record::Resume { .. }
                        | Record::Ack { .. }
                        | Record::SkipTokens { .. }
                ),
            "{record:?} does something"
        );
        history.extend(u16::try_from(batch.len()).expect("it is short").to_le_bytes());
        history.extend(batch);
    }
    assert!(checked_in("batches", "every-record", &history) == history, "the format has changed");
}
