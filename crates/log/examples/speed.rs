//! What a 60-byte record costs, in batches of different sizes, and how fast a log is read back.
//!
//! `cargo run --release --package lockkeeper-log --example speed -- DIR [RECORDS]`; DIR is created, and
//! has to be empty or not there.

use lockkeeper_log::{Config, Priority, open};
use std::{env, error::Error, fs, path::Path, time::Instant};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result {
    let mut args = env::args_os().skip(1);
    let dir = args.next().ok_or("usage: speed DIR [RECORDS]")?;
    let records: u64 = args.next().map_or(Ok(1 << 20), |count| count.to_string_lossy().parse())?;
    let dir = Path::new(&dir);
    for batch in [1, 8, 64] {
        let dir = dir.join(format!("batch-{batch}"));
        println!("batches of {batch:2}: {:6.0} ns/record", write(&dir, records, batch, false)?);
        let (replay, bytes) = read(&dir, records)?;
        println!("  read back: {replay:5.1} million records/s, {bytes:.1} bytes each");
        fs::remove_dir_all(&dir)?;
    }
    for batch in [1, 8, 64] {
        let dir = dir.join(format!("sync-{batch}"));
        println!("batches of {batch:2}: {:6.0} ns/record, synced", write(&dir, batch * 2000, batch, true)?);
        fs::remove_dir_all(&dir)?;
    }
    Ok(())
}

fn config(dir: &Path, sync: bool) -> Config {
    Config { dir: dir.into(), segment_bytes: 16 << 20, sync, boot_id: [1; 16], reserve: 64 << 10 }
}

/// Nanoseconds for each record.
fn write(dir: &Path, records: u64, batch: u64, sync: bool) -> Result<f64> {
    let (mut log, _) = open(config(dir, sync))?;
    let record = [0x5a; 60];
    let start = Instant::now();
    while log.position() < records {
        for _ in 0..batch {
            log.reserve(record.len(), Priority::Normal)?;
            log.append(&record);
        }
        log.commit()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / records as f64)
}

/// Million records each second, from before `open` to the last one, and the bytes of each.
fn read(dir: &Path, records: u64) -> Result<(f64, f64)> {
    let start = Instant::now();
    let (log, mut recovered) = open(config(dir, false))?;
    let mut count = 0;
    while recovered.records.next_record()?.is_some() {
        count += 1;
    }
    let speed = count as f64 / start.elapsed().as_secs_f64() / 1e6;
    (count >= records).then_some(()).ok_or("records are missing")?;
    Ok((speed, log.bytes_since_snapshot() as f64 / count as f64))
}
