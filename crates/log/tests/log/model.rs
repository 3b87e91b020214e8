//! Random lives of a log beside a list that remembers everything. A seed that fails is named.

use crate::common::*;
use fastrand::Rng;
use lockkeeper_log::{Config, Crash, Log, Mark, Priority, Recovered, SnapshotWriter, open};
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
};

/// What has to be in the log.
#[derive(Default)]
struct Model {
    /// Every record that was appended. The state at a position is all of them up to it.
    records: Vec<Vec<u8>>,
    /// How many of them are committed.
    committed: usize,
    /// The snapshot that has begun, its position, and how much of it is written.
    begun: Option<(SnapshotWriter, usize, usize)>,
    /// The position of the last one that was finished.
    snapshot: Option<usize>,
    mark: Mark,
    unsettled: bool,
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Killed,
    KilledInCommit,
    Closed,
    Crashed,
}

#[test]
fn random_lives_of_a_log_are_remembered() {
    for seed in 0..400 {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| lives(seed))) {
            eprintln!("this was seed {seed}");
            resume_unwind(panic);
        }
    }
}

fn lives(seed: u64) {
    let mut random = Rng::with_seed(seed);
    let dir = Temp::new();
    let mut model = Model::default();
    let mut boot = 0;
    for _ in 0..random.u32(2..8) {
        let config = Config {
            sync: random.bool(),
            boot_id: [boot; 16],
            segment_bytes: *random.choice(&[40, 400, 1 << 20]).unwrap(),
            ..config(&dir)
        };
        let (mut log, mut recovered) = open(config.clone()).unwrap();
        model.verify(&log, &mut recovered);
        for _ in 0..random.u32(..40) {
            model.step(&mut log, &mut random);
        }
        let end = *random.choice(&[End::Killed, End::KilledInCommit, End::Closed, End::Crashed]).unwrap();
        boot += u8::from(end == End::Crashed || random.u32(..3) == 0 && end == End::Closed);
        model.end(end, log, &config, &mut random);
    }
}

impl Model {
    fn verify(&self, log: &Log, recovered: &mut Recovered) {
        assert_eq!(recovered.crash, self.unsettled.then_some(Crash { mark: self.mark }));
        let position = recovered.snapshot.as_ref().map(|snapshot| snapshot.position());
        assert_eq!(position, self.snapshot.map(|position| position as u64));
        let mut found = chunks(recovered).unwrap_or_default();
        found.extend(records(recovered));
        assert_eq!(found, self.records);
        assert_eq!((log.position(), log.committed()), (self.records.len() as u64, self.committed as u64));
        assert_eq!(log.mark(), self.mark);
    }

    fn append(&mut self, log: &mut Log, random: &mut Rng) {
        let mut record = vec![0; random.usize(..60)];
        random.fill(&mut record);
        log.reserve(record.len(), Priority::Normal).unwrap();
        log.append(&record);
        self.records.push(record);
    }

    fn step(&mut self, log: &mut Log, random: &mut Rng) {
        match random.u32(..12) {
            0..4 => self.append(log, random),
            4..7 => {
                assert_eq!(log.commit().unwrap(), self.records.len() as u64);
                self.committed = self.records.len();
            }
            7 => {
                self.begun = None;
                let writer = log.begin_snapshot().unwrap();
                self.committed = self.records.len();
                self.begun = Some((writer, self.committed, 0));
            }
            8..10 => {
                let Some((mut writer, position, done)) = self.begun.take() else { return };
                let next = (done + random.usize(..8)).min(position);
                self.records[done..next].iter().for_each(|chunk| writer.write(chunk).unwrap());
                if next == position {
                    finish(log, writer);
                    self.snapshot = Some(position);
                } else {
                    self.begun = Some((writer, position, next));
                }
            }
            10 => self.begun = None,
            11 if random.bool() => {
                let mark = Mark { max_ttl_ms: random.u64(..100), token_ceiling: random.u64(..100) };
                log.set_mark(mark).unwrap();
                let Mark { max_ttl_ms, token_ceiling } = self.mark;
                self.mark = match self.unsettled {
                    true => Mark {
                        max_ttl_ms: mark.max_ttl_ms.max(max_ttl_ms),
                        token_ceiling: mark.token_ceiling.max(token_ceiling),
                    },
                    false => mark,
                };
            }
            _ => {
                log.settle_crash().unwrap();
                (self.committed, self.unsettled) = (self.records.len(), false);
            }
        }
    }

    fn end(&mut self, end: End, mut log: Log, config: &Config, random: &mut Rng) {
        self.begun = None;
        match end {
            End::Killed => drop(log),
            End::Closed => {
                self.committed = self.records.len();
                log.close().unwrap();
            }
            End::KilledInCommit => {
                let segment = last_segment(&config.dir);
                let before = fs::read(&segment).unwrap();
                self.append(&mut log, random);
                log.commit().unwrap();
                drop(log);
                tear(&segment, &before, random);
            }
            End::Crashed => {
                drop(log);
                if !config.sync {
                    lose(&config.dir, random);
                    self.unsettled = true;
                    return self.expect_prefix(config);
                }
            }
        }
        self.records.truncate(self.committed);
    }

    /// After the machine has lost something, the log is a beginning of what it was.
    fn expect_prefix(&mut self, config: &Config) {
        let boot_id = [config.boot_id[0] + 1; 16];
        let (log, _) = open(Config { boot_id, ..config.clone() }).unwrap();
        let position = usize::try_from(log.position()).unwrap();
        assert!(position <= self.committed && self.snapshot.is_none_or(|snapshot| position >= snapshot));
        self.records.truncate(position);
        self.committed = position;
    }
}

fn last_segment(dir: &Path) -> PathBuf {
    dir.join(names(dir).into_iter().rfind(|name| name.starts_with("log-")).unwrap())
}

/// Undoes what was written since `before`, from a random byte on that changes something.
fn tear(segment: &Path, before: &[u8], random: &mut Rng) {
    let after = fs::read(segment).unwrap();
    // The segment after it, if this commit was its last, was not there yet.
    let dir = segment.parent().unwrap();
    let last = last_segment(dir);
    if last != segment {
        fs::remove_file(last).unwrap();
    }
    let mut torn = before.to_vec();
    torn.resize(torn.len().max(after.len()), 0);
    let written: Vec<usize> =
        (0..after.len()).filter(|at| before.get(*at).copied().unwrap_or(0) != after[*at]).collect();
    let cut = *random.choice(&written).unwrap();
    torn[..cut].copy_from_slice(&after[..cut]);
    fs::write(segment, torn).unwrap();
}

/// Damages a random segment, as the crash of a machine does with what was not synced.
fn lose(dir: &Path, random: &mut Rng) {
    let segments: Vec<_> = names(dir).into_iter().filter(|name| name.starts_with("log-")).collect();
    let path = dir.join(random.choice(segments).unwrap());
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let from = random.usize(..=end);
    match random.u32(..4) {
        0 => bytes.truncate(from),
        1 => bytes[from..].fill(0),
        2 => bytes[from..end].iter_mut().take(16).for_each(|byte| *byte = 0),
        _ => fs::remove_file(&path).unwrap(),
    }
    if path.exists() {
        fs::write(path, bytes).unwrap();
    }
}
