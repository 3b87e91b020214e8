//! The seeds of the fuzz target `log` are the files of one good log, each with its kind before it.
//! After a change of the format, `LOCKKEEPER_WRITE_SEEDS=1` writes them anew.

use crate::common::{BOOT, Temp, commit, files, reopen, snapshot};
use lockkeeper_log::{Mark, check};
use std::{env, fs, path::Path};

const FILES: [&str; 3] = ["log-00000000000000000002", "snapshot-00000000000000000001", "mark"];
const SEEDS: [&str; 3] = ["segment", "snapshot", "mark"];

#[test]
fn the_seeds_of_the_fuzzer_are_a_log_of_this_format() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/log");
    if env::var_os("LOCKKEEPER_WRITE_SEEDS").is_some() {
        write(&seeds);
    }
    let dir = Temp::new();
    for (kind, (file, seed)) in FILES.iter().zip(SEEDS).enumerate() {
        let bytes = fs::read(seeds.join(seed)).unwrap();
        assert_eq!(usize::from(bytes[0]), kind);
        fs::write(dir.join(file), &bytes[1..]).unwrap();
    }
    let report = check(&dir, BOOT);
    assert!(report.refused.is_none() && report.torn.is_none() && !report.crashed, "{report:?}");
    assert_eq!(report.mark.unwrap().max_ttl_ms, 10_000);
    assert_eq!(report.snapshot.unwrap().chunks, 2);
    assert_eq!(report.segments.iter().map(|segment| segment.records).collect::<Vec<_>>(), [3]);
}

fn write(seeds: &Path) {
    let dir = Temp::new();
    let (mut log, _) = reopen(&dir);
    log.set_mark(Mark { max_ttl_ms: 10_000, token_ceiling: 1 << 24 }).unwrap();
    commit(&mut log, &[b"one"]);
    snapshot(&mut log, &[b"a snapshot", b"in chunks"]);
    commit(&mut log, &[b"two", b"three"]);
    commit(&mut log, &[b"four"]);
    drop(log);
    fs::create_dir_all(seeds).unwrap();
    for (name, mut bytes) in files(&dir) {
        let Some(kind) = FILES.iter().position(|file| *file == name) else { continue };
        if kind == 0 {
            // Space that was reserved and not written to.
            bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        }
        bytes.insert(0, u8::try_from(kind).unwrap());
        fs::write(seeds.join(SEEDS[kind]), bytes).unwrap();
    }
}
