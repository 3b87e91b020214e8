//! The files of a log: whatever stands in them, it is read or said to be damaged, and looking changes nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::{fs, path::PathBuf, sync::LazyLock};

static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
    let dir = std::env::temp_dir().join(format!("lockkeeper-fuzz-log-{}", std::process::id()));
    let _ = fs::create_dir(&dir);
    dir
});

fuzz_target!(|bytes: &[u8]| {
    let (kind, content) = bytes.split_first().unwrap_or((&0, &[]));
    let name = ["log-00000000000000000001", "snapshot-00000000000000000001", "mark"][usize::from(kind % 3)];
    let file = DIR.join(name);
    fs::write(&file, content).expect("a file");
    lockkeeper_log::check(&DIR, [7; 16]);
    assert!(fs::read(&file).expect("it is still there") == content);
    fs::remove_file(&file).expect("a file");
});
