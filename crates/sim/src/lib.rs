//! Lockkeeper's server and clients in one process, in virtual time, under faults that overlap.
//!
//! The state machines are the real ones: [`lockkeeper_service::Server`],
//! [`lockkeeper_service::Session`], [`lockkeeper_service::State`] and
//! [`lockkeeper_service::replica::Replica`]. Networks, clocks, disks, processes and the store of
//! the shared log are simulated. A run is determined by its seed: it has no other randomness, no
//! clock, and no hash order.
//!
//! The oracle is strict. At no instant do two clients hold conflicting locks, each by its own
//! clock, in exact arithmetic. The only exceptions are victims of a steal, a force release or an
//! ended session, until they are notified. Every client whose lock was stolen is notified; requests
//! are granted in the order of the log; tokens grow; committed entries stay. When the faults have
//! ended, every waiter is served within a bound, and nothing is left when all have closed.
//!
//! It never starts a thread, opens a file or a socket, or reads a real clock.
#![forbid(unsafe_code)]

mod calls;
mod client;
mod clock;
mod commit;
mod daemon;
mod disk;
mod faults;
mod fifos;
mod follow;
mod history;
mod host;
mod lead;
mod network;
mod oracle;
mod plan;
mod random;
mod relay;
mod rules;
mod run;
mod simulation;
mod store;
mod transcript;

pub use plan::{Acts, Delay, Faults, Plan};
pub use rules::DriverRule;

use simulation::Simulation;

/// What must not happen has happened.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What.
    pub what: String,
    /// What came before it, if a trace was asked for.
    pub trace: Vec<String>,
}

/// What happened in runs, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Stats {
    pub happenings: u64,
    pub clients: u64,
    pub faults: u64,
    pub batches: u64,
    pub snapshots: u64,
    pub grants: u64,
    pub broken: u64,
    pub losses: u64,
    pub expired: u64,
    pub takeovers: u64,
    pub commands: u64,
    /// Clients' connections that were relayed.
    pub relays: u64,
    /// Clients that were refused because no daemon could serve them.
    pub turned_away: u64,
    /// Snapshots that a follower read because entries were gone.
    pub reads: u64,
    /// Writes of a leader that the store had no room for.
    pub full: u64,
    /// How often the store was restored from a backup.
    pub restored: u64,
    /// Takeovers after which earlier leases were waited for.
    pub blind: u64,
}

impl Stats {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.happenings += other.happenings;
        self.clients += other.clients;
        self.faults += other.faults;
        self.batches += other.batches;
        self.snapshots += other.snapshots;
        self.grants += other.grants;
        self.broken += other.broken;
        self.losses += other.losses;
        self.expired += other.expired;
        self.takeovers += other.takeovers;
        self.commands += other.commands;
        self.relays += other.relays;
        self.turned_away += other.turned_away;
        self.reads += other.reads;
        self.full += other.full;
        self.restored += other.restored;
        self.blind += other.blind;
    }
}

/// Runs a seed with the plan that follows from it.
///
/// # Errors
///
/// The first violation.
pub fn run(seed: u64, trace: bool) -> Result<Stats, Violation> {
    run_plan(seed, Plan::of_seed(seed), trace)
}

/// Runs a seed with a plan.
///
/// # Errors
///
/// The first violation.
pub fn run_plan(seed: u64, plan: Plan, trace: bool) -> Result<Stats, Violation> {
    let mut simulation = Simulation::new(seed, plan, trace);
    simulation.run()?;
    Ok(simulation.stats)
}

/// Runs a seed, and returns what the sessions of its clients were given and answered: a line of
/// JSON for each.
///
/// # Errors
///
/// The first violation.
pub fn transcripts(seed: u64) -> Result<Vec<String>, Violation> {
    // A session that is transferred to another process has no separate transcript.
    let plan = Plan { runs: 0, ..Plan::of_seed(seed) };
    let mut simulation = Simulation::new(seed, plan, false);
    simulation.transcripts = true;
    simulation.run()?;
    let lines = simulation.clients.iter().enumerate().map(|(index, client)| {
        let config = &client.config;
        format!(
            r#"{{"seed":{seed},"client":{index},"config":{{"bucket":{},"owner":{},"ttl":{},"fifo":{},"goingAwayEnds":{}}},"start":{},"steps":[{}]}}"#,
            transcript::text(&config.bucket),
            config.owner.as_deref().map_or("null".into(), transcript::text),
            config.ttl.map_or("null".into(), |ttl| ttl.to_string()),
            config.fifo,
            config.going_away_ends,
            client.start,
            client.steps.join(","),
        )
    });
    Ok(lines.collect())
}
