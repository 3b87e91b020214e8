//! The files of a log: whatever stands in them, it is read or said to be damaged, and looking
//! changes nothing.
//!
//! The first byte of an input says which file of a good log it stands in the place of, and whether
//! its checksums are set right: no search would hit on them. The seeds are the files of that log.
#![no_main]

use crc32c::{crc32c, crc32c_append};
use libfuzzer_sys::fuzz_target;
use std::{fs, path::PathBuf, sync::LazyLock};

/// By their kind: names, and the seeds that are good.
const FILES: [(&str, &[u8]); 3] = [
    ("log-00000000000000000002", include_bytes!("../seeds/log/segment")),
    ("snapshot-00000000000000000001", include_bytes!("../seeds/log/snapshot")),
    ("mark", include_bytes!("../seeds/log/mark")),
];

/// What the folders of these files begin with, before the process.
const NAME: &str = "lockkeeper-fuzz-log-";

static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
    // In memory if there is such a folder: a disk takes ten times as long as all the rest.
    let memory = PathBuf::from("/dev/shm");
    let dir = if memory.is_dir() { memory } else { std::env::temp_dir() };
    // What is left of those that have ended: libFuzzer ends a process without a word.
    for left in fs::read_dir(&dir).into_iter().flatten().flatten() {
        let name = left.file_name().to_string_lossy().into_owned();
        let ended = |pid: &str| !PathBuf::from("/proc").join(pid).exists();
        if name.strip_prefix(NAME).is_some_and(ended) {
            let _ = fs::remove_dir_all(left.path());
        }
    }
    let dir = dir.join(format!("{NAME}{}", std::process::id()));
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
    let mut content = content.to_vec();
    if kind / 3 % 2 == 1 {
        // A mark has two copies, a page apart.
        content.chunks_mut(if kind % 3 == 2 { 4096 } else { usize::MAX }).for_each(seal);
    }
    fs::write(&file, &content).expect("a file");
    lockkeeper_log::check(&DIR, [7; 16]);
    assert!(fs::read(&file).expect("it is still there") == content);
    fs::write(&file, &good[1..]).expect("a file");
});

/// Sets the checksums of a file right: that of its header, and of the frames that follow one
/// another as their lengths have it.
fn seal(bytes: &mut [u8]) {
    const HEADER: usize = 28;
    const FRAME: usize = 16;
    if bytes.len() < HEADER {
        return;
    }
    let sum = crc32c_append(crc32c(&bytes[..12]), &bytes[16..HEADER]);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    let (header, mut rest) = bytes.split_at_mut(HEADER);
    // Only a segment's checksums begin with its salt.
    let salt = if header.starts_with(b"LKPR-LOG") { u32_at(header, 24) } else { 0 };
    while rest.len() >= FRAME {
        let length = u32_at(rest, 4) as usize;
        if length < FRAME || length > rest.len() {
            return;
        }
        let (frame, after) = rest.split_at_mut(length);
        let sum = crc32c_append(salt, &frame[4..]);
        frame[..4].copy_from_slice(&sum.to_le_bytes());
        rest = after;
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
