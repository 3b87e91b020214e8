//! The simulation: its participants, its next event, and the violations seen.

use crate::{
    Stats, Violation,
    calls::Calls,
    client::Client,
    clock::{Clock, Ticks, ticks},
    daemon::Daemon,
    disk::Disk,
    history::History,
    network::{Connection, Direction},
    plan::Plan,
    random::Random,
    run::Job,
    store::{Full, Store},
};
use lockkeeper_service::Micros;
use std::{cmp::Reverse, collections::BinaryHeap};

/// What happens at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    /// Messages of a connection arrive.
    Deliver(usize, Direction),
    /// One side of a connection notices that it is gone: the receiver of that direction.
    Notice(usize, Direction),
    /// A client's attempt to connect to a daemon is over.
    Connect { client: usize, attempt: u64, daemon: usize },
    /// A client looks at the clock.
    ClientTimer(usize),
    /// A client's host does something.
    Act(usize),
    /// A suspended client continues.
    ClientBack(usize),
    /// A client takes the place of one that is gone.
    Spawn,
    /// A command has done its work.
    CommandEnds(usize),
    /// The processes around a command look at the clock.
    Tend(usize),
    /// A daemon reads, works, and commits.
    Turn(usize),
    /// A stalled daemon continues.
    DaemonBack(usize),
    /// A daemon starts.
    Start(usize),
    /// The disk has space again.
    NotFull,
    /// A call arrives at the store.
    Call(u64),
    /// An answer of the store arrives: of which call, and of which execution of it.
    Answer(u64, usize),
    /// A daemon has waited too long for the store, or for long enough.
    CallTimeout { daemon: usize, life: u64, call: u64 },
    /// Changes of the log, up to that one, reach a daemon that watches it; or the end of its watch.
    Changes { daemon: usize, life: u64, watch: u64, upto: Option<usize> },
    /// A follower takes over, if it is time.
    TakeOver { daemon: usize, life: u64 },
    /// A leader shows that it is alive.
    Beat { daemon: usize, life: u64 },
    /// A daemon that stops does so now, whatever became of its hand-over.
    StopBy { daemon: usize, life: u64 },
    /// A daemon's attempt to reach the leader for a client is over.
    Relay(usize),
    /// A client has waited for a leader for as long as it may.
    Impatience(usize),
    /// The next fault.
    Fault,
    /// There are no more faults.
    Calm,
    /// Checks whether all clients are served and nothing is left: a run need not last longer.
    Look,
    /// All clients must have been served.
    Served,
    /// Nothing may be left.
    Finish,
}

pub(crate) struct Simulation {
    pub(crate) plan: Plan,
    pub(crate) random: Random,
    pub(crate) now: Ticks,
    queue: BinaryHeap<Reverse<(Ticks, u64, Happening)>>,
    sequence: u64,
    pub(crate) clients: Vec<Client>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) daemons: Vec<Daemon>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) disk: Disk,
    pub(crate) store: Store,
    /// The store as it was, and the state of its log.
    pub(crate) backup: Option<(Store, Vec<u8>)>,
    pub(crate) calls: Calls,
    pub(crate) history: History,
    /// Whether the faults are over.
    pub(crate) calm: bool,
    /// Whether clients are to close.
    pub(crate) closing: bool,
    /// Whether nothing is left to be seen.
    pub(crate) finished: bool,
    pub(crate) violation: Option<String>,
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) transcripts: bool,
    pub(crate) stats: Stats,
}

/// More than ever happens in a run. A machine that wants to be woken again and again at the same
/// time reaches it.
const MOST_HAPPENINGS: u64 = 1_000_000;

/// How often the end of the run is checked for.
pub(crate) const LOOK_EVERY: Micros = 1_000_000;

/// Adds a line to the trace, if there is one.
macro_rules! note {
    ($simulation:expr, $($words:tt)*) => {
        if $simulation.trace.is_some() {
            let line = format!($($words)*);
            $simulation.add_to_trace(line);
        }
    };
}
pub(crate) use note;

impl Simulation {
    pub(crate) fn new(seed: u64, plan: Plan, trace: bool) -> Self {
        let mut random = Random::new(seed);
        let daemons = (0..plan.daemons).map(|_| {
            let clock = Clock::new(0, random.below(1_000_000_000), random.pick(&plan.server_rates));
            Daemon::new(clock)
        });
        let daemons: Vec<_> = daemons.collect();
        Self {
            history: History::new(random.next()),
            disk: Disk::new(plan.trusted),
            store: Store::default(),
            backup: None,
            calls: Calls::default(),
            random,
            now: 0,
            queue: BinaryHeap::new(),
            sequence: 0,
            clients: Vec::new(),
            jobs: Vec::new(),
            daemons,
            connections: Vec::new(),
            calm: false,
            closing: false,
            finished: false,
            violation: None,
            trace: trace.then(Vec::new),
            transcripts: false,
            stats: Stats::default(),
            plan,
        }
    }

    pub(crate) fn run(&mut self) -> Result<(), Violation> {
        for daemon in 0..self.daemons.len() {
            self.at(self.now, Happening::Start(daemon));
        }
        for _ in 0..self.plan.clients {
            self.after(self.plan.act_every, Happening::Spawn);
        }
        let chaos = ticks(self.plan.chaos);
        self.at(chaos, Happening::Calm);
        // Long enough for a first Hello that was lost, the longest wait between attempts, and
        // several leases.
        let bound = ticks(20_000_000 + self.plan.longest_lease() * 6 + self.plan.act_every * 30);
        self.at(chaos + ticks(LOOK_EVERY), Happening::Look);
        self.at(chaos + bound, Happening::Served);
        self.at(chaos + bound + ticks(10_000_000 + self.plan.longest_lease() * 3), Happening::Finish);
        self.next_fault();
        while self.violation.is_none() && !self.finished {
            let Some(Reverse((at, _, happening))) = self.queue.pop() else { break };
            self.now = at;
            self.stats.happenings += 1;
            if self.stats.happenings > MOST_HAPPENINGS {
                self.fail("time does not go on: too much happens");
            }
            if happening == Happening::Finish {
                self.check_nothing_left();
                break;
            }
            self.happen(happening);
        }
        match self.violation.take() {
            None => Ok(()),
            Some(what) => {
                note!(self, "VIOLATION: {what}");
                Err(Violation { what, trace: self.trace.take().unwrap_or_default() })
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Deliver(connection, direction) => self.deliver(connection, direction),
            Happening::Notice(connection, direction) => self.notice_end(connection, direction),
            Happening::Connect { client, attempt, daemon } => self.connect(client, attempt, daemon),
            Happening::ClientTimer(client) => self.client_timer(client),
            Happening::Act(client) => self.act(client),
            Happening::ClientBack(client) => self.client_back(client),
            Happening::Spawn => self.spawn(),
            Happening::CommandEnds(job) => self.end_command(job, "has done its work"),
            Happening::Tend(job) => self.tend(job),
            Happening::Turn(daemon) => self.turn(daemon),
            Happening::DaemonBack(daemon) => self.daemon_back(daemon),
            Happening::Start(daemon) => self.start(daemon),
            Happening::NotFull => self.set_full(Full::Nobody),
            Happening::Call(call) => self.on_call(call),
            Happening::Answer(call, which) => self.on_answer(call, which),
            Happening::CallTimeout { daemon, life, call } => self.on_call_timeout(daemon, life, call),
            Happening::Changes { daemon, life, watch, upto } => self.on_changes(daemon, life, watch, upto),
            Happening::TakeOver { daemon, life } => self.take_over(daemon, life),
            Happening::Beat { daemon, life } => self.beat(daemon, life),
            Happening::StopBy { daemon, life } => self.stop_by(daemon, life),
            Happening::Relay(connection) => self.reach_leader(connection),
            Happening::Impatience(connection) => self.end_patience(connection),
            Happening::Fault => {
                self.fault();
                self.next_fault();
            }
            Happening::Calm => self.calm_down(),
            Happening::Look => self.look(),
            Happening::Served => self.check_served(),
            Happening::Finish => {}
        }
    }

    pub(crate) fn at(&mut self, when: Ticks, happening: Happening) {
        self.sequence += 1;
        self.queue.push(Reverse((when.max(self.now), self.sequence, happening)));
    }

    pub(crate) fn after(&mut self, micros: Micros, happening: Happening) {
        self.at(self.now + ticks(micros), happening);
    }

    /// Some time around that one, by chance exactly that.
    pub(crate) fn around(&mut self, micros: Micros) -> Micros {
        match self.random.below(8) {
            0 => micros,
            _ => self.random.between(0, micros * 2),
        }
    }

    /// The first violation counts.
    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(what.into());
    }

    #[cold]
    pub(crate) fn add_to_trace(&mut self, line: String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!(
                "{:>4}.{:06} {line}",
                now / ticks(1_000_000),
                now % ticks(1_000_000) / ticks(1)
            ));
        }
    }
}
