//! The schedule of faults, and the workers' requests. All randomness comes from a seed.

use fastrand::Rng;
use lockkeeper_client::Flags;
use lockkeeper_core::Mode;
use std::{fmt, time::Duration};

/// A fault, and how long after the one before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledFault {
    /// How long after the fault before.
    pub after: Duration,
    /// Which.
    pub fault: Fault,
}

/// Something that happens to the daemon or a worker. `worker` is the place of one among those that
/// run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The daemon is killed, and after a while there is another.
    KillDaemon {
        /// How long there is none.
        down: Duration,
    },
    /// The daemon is asked to leave, and after a while there is another.
    EndDaemon {
        /// How long there is none.
        down: Duration,
    },
    /// The daemon is killed, and so is the next one, while it starts.
    KillInStart {
        /// How long the next one lives.
        life: Duration,
    },
    /// The daemon is asked to leave, and killed while it does.
    KillInEnd {
        /// How long it has.
        life: Duration,
    },
    /// A worker is killed, and replaced.
    KillWorker {
        /// Which.
        worker: usize,
    },
    /// A worker and the daemon are killed, in this order, without a pause; both are replaced.
    KillBoth {
        /// Which.
        worker: usize,
    },
    /// A worker is stopped for a while.
    StopWorker {
        /// Which.
        worker: usize,
        /// For how long.
        stopped: Duration,
    },
    /// A worker is stopped; meanwhile the daemon ends and another starts.
    StopAcross {
        /// Which.
        worker: usize,
        /// How long after the stop the daemon ends.
        before: Duration,
        /// Whether the daemon is killed, rather than asked to leave.
        kill: bool,
        /// How long the next daemon serves before the worker continues.
        after: Duration,
    },
    /// A worker's connection is cut.
    Cut {
        /// Whose.
        worker: usize,
    },
    /// A worker is stopped, cut off, and continues.
    CutStopped {
        /// Which.
        worker: usize,
        /// How long it is stopped after the cut.
        stopped: Duration,
    },
    /// The daemon is stopped for a while.
    StopDaemon {
        /// Whether it is killed before, and the next one stopped when it has just begun to wait for
        /// its clients.
        fresh: bool,
        /// For how long.
        stopped: Duration,
    },
    /// Nothing that a worker on the network and the daemon say reaches the other for a while.
    Silence {
        /// Whose.
        worker: usize,
        /// For how long.
        silent: Duration,
    },
    /// The daemon is killed, and the next one has other settings.
    Change {
        /// Its lease, in percent of the ordinary one.
        percent: u32,
        /// Whether it syncs its log.
        sync: bool,
    },
    /// The daemon's disk is full for a while, in which other faults happen.
    FullDisk {
        /// For how long.
        full: Duration,
    },
    /// The daemon has no descriptor left for a while, in which other faults happen.
    Descriptors {
        /// For how long.
        scarce: Duration,
        /// Whether it is killed before, and the next one has too few from its start.
        fresh: bool,
    },
    /// A worker is in a frozen cgroup for a while, in which other faults happen.
    Freeze {
        /// Which.
        worker: usize,
        /// For how long.
        frozen: Duration,
    },
}

/// Every kind of fault, by the name it goes by.
pub const KINDS: [&str; 16] = [
    "kill-daemon",
    "end-daemon",
    "kill-in-start",
    "kill-in-end",
    "kill-worker",
    "kill-both",
    "stop-worker",
    "stop-across",
    "cut",
    "cut-stopped",
    "stop-daemon",
    "silence",
    "settings",
    "full-disk",
    "descriptors",
    "freeze",
];

impl Fault {
    /// A place in [`KINDS`].
    pub fn kind(&self) -> usize {
        match self {
            Self::KillDaemon { .. } => 0,
            Self::EndDaemon { .. } => 1,
            Self::KillInStart { .. } => 2,
            Self::KillInEnd { .. } => 3,
            Self::KillWorker { .. } => 4,
            Self::KillBoth { .. } => 5,
            Self::StopWorker { .. } => 6,
            Self::StopAcross { .. } => 7,
            Self::Cut { .. } => 8,
            Self::CutStopped { .. } => 9,
            Self::StopDaemon { .. } => 10,
            Self::Silence { .. } => 11,
            Self::Change { .. } => 12,
            Self::FullDisk { .. } => 13,
            Self::Descriptors { .. } => 14,
            Self::Freeze { .. } => 15,
        }
    }

    fn draw(kind: usize, rng: &mut Rng, workers: usize, ttl: Duration) -> Self {
        let worker = rng.usize(..workers);
        // Most often the next daemon is there at once, as a supervisor would have it. Sometimes it
        // is not there in time.
        let down = match rng.u8(..40) {
            0 => ttl + between(rng, 0, 200),
            1..10 => between(rng, 10, 200),
            _ => Duration::ZERO,
        };
        match kind {
            0 => Self::KillDaemon { down },
            1 => Self::EndDaemon { down },
            2 => Self::KillInStart { life: between(rng, 0, 4) },
            3 => Self::KillInEnd { life: between(rng, 0, 3) },
            4 => Self::KillWorker { worker },
            5 => Self::KillBoth { worker },
            6 => Self::StopWorker { worker, stopped: between(rng, 0, 120) },
            7 => Self::StopAcross {
                worker,
                before: between(rng, 0, 30),
                kill: rng.bool(),
                after: match rng.u8(..40) {
                    0 => ttl + between(rng, 0, 200),
                    _ => between(rng, 0, 150),
                },
            },
            8 => Self::Cut { worker },
            9 => Self::CutStopped { worker, stopped: between(rng, 0, 120) },
            11 => Self::Silence {
                worker,
                silent: match rng.u8(..4) {
                    0 => ttl + between(rng, 0, 500),
                    _ => ttl * rng.u32(..100) / 100,
                },
            },
            12 => Self::Change { percent: [50, 75, 100, 150, 200][rng.usize(..5)], sync: rng.bool() },
            13 => Self::FullDisk { full: between(rng, 0, 400) },
            14 => Self::Descriptors { scarce: between(rng, 0, 400), fresh: rng.bool() },
            15 => Self::Freeze { worker, frozen: between(rng, 0, 300) },
            _ => match rng.u8(..40) {
                0 => Self::StopDaemon { fresh: true, stopped: ttl + between(rng, 0, 200) },
                _ => Self::StopDaemon { fresh: rng.bool(), stopped: between(rng, 0, 60) },
            },
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Draws so many faults of each of these kinds, in random order.
pub fn schedule(
    seed: u64,
    kinds: &[usize],
    each: usize,
    workers: usize,
    ttl: Duration,
) -> Vec<ScheduledFault> {
    let mut rng = Rng::with_seed(seed);
    let mut order: Vec<usize> = kinds.iter().flat_map(|&kind| vec![kind; each]).collect();
    rng.shuffle(&mut order);
    let step = |kind| {
        // Some come at once, while what the one before did is still under way.
        let after = if rng.u8(..4) == 0 { between(&mut rng, 0, 8) } else { between(&mut rng, 8, 90) };
        ScheduledFault { after, fault: Fault::draw(kind, &mut rng, workers, ttl) }
    };
    order.into_iter().map(step).collect()
}

/// What a worker asks for, and what it does then.
pub(crate) struct Wish {
    pub(crate) scope: Vec<(String, Mode)>,
    pub(crate) flags: Flags,
    /// How long it waits, if not for ever.
    pub(crate) patience: Option<Duration>,
    /// How long it holds.
    pub(crate) hold: Duration,
    /// Whether the hand hears the daemon itself while it waits.
    pub(crate) hears: bool,
    /// Whether it releases without waiting for the acknowledgement.
    pub(crate) lets_go: bool,
}

/// The names in use: few, so that requests conflict.
pub const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

impl Wish {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let mut names = NAMES;
        rng.shuffle(&mut names);
        let count = [1, 1, 1, 1, 2, 2, 3][rng.usize(..7)];
        let steal = rng.u8(..25) == 0;
        let shared = rng.u8(..3) == 0;
        let scope = names[..count].iter().map(|name| {
            // A scope may have both modes.
            let shared = !steal && (shared != (rng.u8(..8) == 0));
            ((*name).to_owned(), if shared { Mode::Shared } else { Mode::Exclusive })
        });
        let scope = scope.collect();
        let if_available = !steal && rng.u8(..8) == 0;
        Self {
            scope,
            flags: Flags { steal, if_available, refuse_deadlock: false },
            patience: (rng.u8(..4) == 0).then(|| between(rng, 0, 80)),
            hold: match rng.u8(..64) {
                // Longer than any holder may take to learn of a lost lock: see `check::LATE`.
                0 => between(rng, 1000, 1500),
                1..20 => between(rng, 4, 30),
                _ => between(rng, 0, 4),
            },
            hears: rng.bool(),
            lets_go: rng.bool(),
        }
    }
}

fn between(rng: &mut Rng, least: u64, most: u64) -> Duration {
    Duration::from_micros(rng.u64(least * 1000..=most * 1000))
}

#[cfg(test)]
mod tests {
    use super::{KINDS, schedule};
    use std::time::Duration;

    #[test]
    fn a_seed_gives_one_schedule() {
        let all: Vec<usize> = (0..KINDS.len()).collect();
        let draw = |seed| schedule(seed, &all, 20, 5, Duration::from_secs(2));
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        for &kind in &all {
            assert_eq!(
                draw(7).iter().filter(|step| step.fault.kind() == kind).count(),
                20,
                "{}",
                KINDS[kind]
            );
        }
    }
}
