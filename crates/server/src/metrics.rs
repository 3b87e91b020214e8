//! Counts for those who watch the daemon, in Prometheus's text format. They name no lock, no bucket and no client.

use std::fmt::Write;

/// What happens is counted where it happens; how it stands now is kept up with it.
#[derive(Default)]
pub(crate) struct Metrics {
    pub(crate) held: u64,
    pub(crate) pending: u64,
    pub(crate) grants: u64,
    /// Locks that somebody else broke.
    pub(crate) steals: u64,
    pub(crate) aborts: u64,
    /// Those of them whose time was up.
    pub(crate) timeouts: u64,
    pub(crate) resumes: u64,
    /// Locks that ended with their session.
    pub(crate) ended: u64,
    /// Those of them whose client did not come back.
    pub(crate) losses: u64,
    pub(crate) refused_frames: u64,
    pub(crate) wait: Histogram,
    pub(crate) hold: Histogram,
}

/// The upper bounds of a histogram's buckets, in milliseconds, and as Prometheus has them.
const BOUNDS: [(u64, &str); 8] = [
    (1, "0.001"),
    (10, "0.01"),
    (100, "0.1"),
    (1_000, "1"),
    (10_000, "10"),
    (60_000, "60"),
    (600_000, "600"),
    (3_600_000, "3600"),
];

#[derive(Default)]
pub(crate) struct Histogram {
    counts: [u64; BOUNDS.len() + 1],
    sum: u64,
}

impl Histogram {
    pub(crate) fn observe(&mut self, millis: u64) {
        let bucket = BOUNDS.iter().position(|(bound, _)| millis <= *bound).unwrap_or(BOUNDS.len());
        self.counts[bucket] += 1;
        self.sum = self.sum.saturating_add(millis);
    }
}

impl Metrics {
    /// A request that waited, or did not have to, is held.
    pub(crate) fn granted(&mut self, waited: u64) {
        self.held += 1;
        self.grants += 1;
        self.wait.observe(waited);
    }

    /// A lock has ended.
    pub(crate) fn ended(&mut self, held_for: u64) {
        self.held -= 1;
        self.hold.observe(held_for);
    }

    pub(crate) fn render(&self, sessions: usize, connections: usize) -> String {
        let mut out = String::new();
        let mut one = |name: &str, kind: &str, help: &str, value: u64| {
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        };
        one("lockkeeper_held", "gauge", "Requests that hold their locks.", self.held);
        one("lockkeeper_pending", "gauge", "Requests that wait.", self.pending);
        one("lockkeeper_sessions", "gauge", "Sessions, connected or waited for.", sessions as u64);
        one("lockkeeper_connections", "gauge", "Connections.", connections as u64);
        one("lockkeeper_grants_total", "counter", "Requests that were granted.", self.grants);
        one("lockkeeper_steals_total", "counter", "Locks broken by a steal or by force.", self.steals);
        one("lockkeeper_aborts_total", "counter", "Requests given up while they waited.", self.aborts);
        let help = "Those of them whose time was up.";
        one("lockkeeper_timeouts_total", "counter", help, self.timeouts);
        one(
            "lockkeeper_resumes_total",
            "counter",
            "Sessions that went on with a new connection.",
            self.resumes,
        );
        one(
            "lockkeeper_losses_total",
            "counter",
            "Locks lost with a session that did not come back.",
            self.losses,
        );
        let help = "Connections ended for what they said.";
        one("lockkeeper_refused_frames_total", "counter", help, self.refused_frames);
        let waits = "From the request to the grant.";
        histogram(&mut out, "lockkeeper_wait_seconds", waits, &self.wait);
        histogram(&mut out, "lockkeeper_hold_seconds", "From the grant to the end.", &self.hold);
        out
    }
}

fn histogram(out: &mut String, name: &str, help: &str, histogram: &Histogram) {
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} histogram\n");
    let bounds = BOUNDS.iter().map(|(_, bound)| *bound).chain(["+Inf"]);
    let mut count = 0;
    for (bound, more) in bounds.zip(histogram.counts) {
        count += more;
        let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {count}");
    }
    let (seconds, millis) = (histogram.sum / 1000, histogram.sum % 1000);
    let _ = write!(out, "{name}_sum {seconds}.{millis:03}\n{name}_count {count}\n");
}
