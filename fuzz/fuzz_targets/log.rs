//! The files of a log: whatever stands in them, it is read or said to be damaged, and looking
//! changes nothing.
//!
//! The first byte of an input says which file of a good log it stands in the place of. The seeds
//! are the files of that log.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::{fs, path::PathBuf, sync::LazyLock};

/// By their kind: names, and the seeds that are good.
const FILES: [(&str, &[u8]); 3] = [
    ("log-00000000000000000002", include_bytes!("../seeds/log/segment")),
    ("snapshot-00000000000000000001", include_bytes!("../seeds/log/snapshot")),
    ("mark", include_bytes!("../seeds/log/mark")),
];

static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
    let dir = std::env::temp_dir().join(format!("lockkeeper-fuzz-log-{}", std::process::id()));
    let _ = fs::create_dir(&dir);
    for (name, seed) in FILES {
        fs::write(dir.join(name), &seed[1..]).expect("a file");
    }
    assert!(lockkeeper_log::check(&dir, [7; 16]).refused.is_none(), "the seeds are a good log");
    dir
});

fuzz_target!(|bytes: &[u8]| {
    let (kind, content) = bytes.split_first().unwrap_or((&0, &[]));
    let (name, good) = FILES[usize::from(kind % 3)];
    let file = DIR.join(name);
    fs::write(&file, content).expect("a file");
    lockkeeper_log::check(&DIR, [7; 16]);
    assert!(fs::read(&file).expect("it is still there") == content);
    fs::write(&file, &good[1..]).expect("a file");
});
