//! The seed of the fuzz target `snapshots` is a snapshot of a state that has something of
//! everything. After a change of the format, `LOCKKEEPER_WRITE_SEEDS=1` writes it anew.

use lockkeeper_core::Mode::{Exclusive, Shared};
use lockkeeper_service::{Fifo, Origin, Record, State};
use std::{env, fs, path::Path};

fn state() -> State {
    let mut state = State::new(1);
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
    let records = [
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
    ];
    for record in records {
        state.apply(&record, &mut Vec::new()).expect("the records are of one history");
    }
    state
}

#[test]
fn the_seed_of_the_fuzzer_is_a_snapshot_of_this_format() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/snapshots");
    let (seed, snapshot) = (seeds.join("something-of-everything"), state().snapshot());
    if env::var_os("LOCKKEEPER_WRITE_SEEDS").is_some() {
        fs::create_dir_all(&seeds).expect("a folder");
        fs::write(&seed, &snapshot).expect("a file");
    }
    assert!(fs::read(seed).expect("there is one") == snapshot, "the format has changed");
    let mut restored = State::restore([&snapshot], 2).expect("it is whole");
    assert!(restored.snapshot() == snapshot);
}
