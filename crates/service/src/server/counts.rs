//! What has happened, counted. Nothing in the service depends on it.

use crate::state::Effect;

/// What has happened since this server leads.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Counts {
    pub requests: u64,
    pub granted: u64,
    pub unavailable: u64,
    pub refused: u64,
    pub aborted: u64,
    pub timed_out: u64,
    pub broken: u64,
    pub opened: u64,
    pub resumed: u64,
    pub expired: u64,
    pub ended: u64,
    /// Locks that ended with their session.
    pub lost: u64,
    /// Clients that were disconnected because they did not read.
    pub slow: u64,
    /// Time from the request to the grant.
    pub wait: Histogram,
    /// Time from the grant to the release.
    pub hold: Histogram,
}

impl Counts {
    pub(super) fn add(&mut self, effect: &Effect) {
        match *effect {
            Effect::Granted { waited, .. } => {
                self.granted += 1;
                self.wait.observe(waited);
            }
            Effect::Released { held: Some(held), .. } => self.hold.observe(held),
            Effect::Released { held: None, .. } => self.aborted += 1,
            Effect::Broken { .. } => self.broken += 1,
            Effect::Ended { held, .. } => {
                self.lost += held;
                self.ended += 1;
            }
            Effect::Queued { .. } | Effect::Outcome { .. } => {}
        }
    }
}

/// The upper bounds of a histogram's buckets, in milliseconds.
const BOUNDS: [u64; 8] = [1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000];

/// How many took how long.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    counts: [u64; BOUNDS.len() + 1],
    sum: u64,
}

impl Histogram {
    fn observe(&mut self, millis: u64) {
        let bucket = BOUNDS.iter().position(|bound| millis <= *bound).unwrap_or(BOUNDS.len());
        self.counts[bucket] += 1;
        self.sum = self.sum.saturating_add(millis);
    }

    /// How many there are up to each bound, in milliseconds, and above all bounds, not counting
    /// those before.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        BOUNDS.into_iter().map(Some).chain([None]).zip(self.counts)
    }

    /// All of them together, in milliseconds.
    pub fn sum(&self) -> u64 {
        self.sum
    }
}
