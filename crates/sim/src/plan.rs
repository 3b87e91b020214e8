//! The plan of a run: its participants, its faults, and their rates.

use crate::{
    clock::{FASTEST, SLOWEST},
    random::Random,
    rules::DriverRule,
};
use lockkeeper_service::Micros;

/// The settings of a run. All times are in microseconds, all chances in a thousand, unless they say
/// otherwise.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many clients there are at a time.
    pub clients: usize,
    /// How many of them are processes of the server's machine.
    pub local: usize,
    /// How many clients there are in all: those that crash or close are replaced.
    pub clients_in_all: usize,
    /// That a client is `run`: it has a command while it holds a lock.
    pub runs: u64,
    /// How many names there are.
    pub names: u64,
    /// How many buckets there are.
    pub buckets: u64,
    /// How many daemons: one with a file as its log, or several that share a log.
    pub daemons: usize,
    /// For how long there are faults.
    pub chaos: Micros,
    /// The leases that servers may be set to, in milliseconds.
    pub ttls: Vec<u64>,
    /// Whether clients request specific leases.
    pub wishes: bool,
    /// The rates that clients' clocks may have.
    pub client_rates: Vec<u64>,
    /// The rates that servers' clocks may have.
    pub server_rates: Vec<u64>,
    /// How long messages take.
    pub delay: Delay,
    /// How often a client does something, on average.
    pub act_every: Micros,
    /// What clients do.
    pub acts: Acts,
    /// How often there is a fault, on average. 0 for never.
    pub fault_every: Micros,
    /// Which faults there are.
    pub faults: Faults,
    /// That a server is killed when it commits.
    pub kill_at_commit: u64,
    /// That a direction of a connection is cut between two messages that are sent together.
    pub cut_between: u64,
    /// How long a server that was killed is gone, if that does not depend on chance.
    pub restart_after: Option<Micros>,
    /// Whether a leader hands over only while another daemon runs.
    pub never_alone: bool,
    /// That what was on its way is lost when a connection is cut.
    pub lose_flight: u64,
    /// That the end of a connection is not noticed, for each side.
    pub unnoticed: u64,
    /// That a client still reads from a connection that it gave up.
    pub leaky: u64,
    /// Whether the file log is synced before answers are sent.
    pub trusted: bool,
    /// That a client does not get a descriptor that it was sent.
    pub lose_descriptor: u64,
    /// That another file, or none, stands where a FIFO was, after a restart.
    pub replace_fifo: u64,
    /// That a daemon cannot make a FIFO.
    pub no_fifo: u64,
    /// How often a snapshot is taken, in rounds.
    pub snapshot_every: u64,
    /// That a message to or from the shared log is lost.
    pub lose_log_message: u64,
    /// How long the shared log takes to execute and to reply.
    pub log_delay: Delay,
    /// After how long without a change of the leader's key another daemon takes over.
    pub takeover_after: Micros,
    /// Whether servers may have limits that are reached.
    pub limits: bool,
    /// How many entries the shared log keeps.
    pub ring: u64,
    /// That a call of the store is executed twice.
    pub double_log_message: u64,
    /// How long a watched change takes.
    pub watch_delay: Delay,
    /// That a watch ends with a change.
    pub end_watch: u64,
    /// That the store's history is compacted with a change.
    pub compact: u64,
    /// Whether relays continue when another daemon leads, and leaders accept relays that were meant
    /// for another leadership.
    pub careless_relays: bool,
    /// With how many bytes of entries in the shared log a snapshot is taken, if that matters.
    pub snapshot_bytes: Option<u64>,
    /// Rules that the drivers do not keep.
    pub away: Vec<DriverRule>,
}

/// How long something takes.
#[derive(Clone, Copy, Debug)]
pub struct Delay {
    /// That it takes no time.
    pub zero: u64,
    /// The longest, ordinarily.
    pub max: Micros,
    /// That it takes longer.
    pub long: u64,
    /// The longest, then.
    pub long_max: Micros,
}

impl Delay {
    /// No time at all.
    pub const NONE: Self = Self { zero: 1000, max: 1, long: 0, long_max: 1 };

    /// Of what goes to a shared log, or comes from it: none, a little, or up to that part of a
    /// lease and more at times.
    fn of_log(random: &mut Random, lease: Micros, part: u64) -> Self {
        match random.below(3) {
            0 => Self::NONE,
            1 => Self { zero: 100, max: lease / 50, long: 5, long_max: lease },
            _ => Self { zero: 100, max: lease / part, long: 50, long_max: lease * 2 },
        }
    }

    pub(crate) fn choose(self, random: &mut Random) -> Micros {
        if random.chance(self.zero) {
            return 0;
        }
        let max = if random.chance(self.long) { self.long_max } else { self.max };
        random.between(1, max.max(1))
    }
}

/// How likely each act of a client is.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Acts {
    pub request: u64,
    pub release: u64,
    pub detach: u64,
    pub query: u64,
    pub force_release: u64,
    pub end_session: u64,
    pub close: u64,
    pub crash: u64,
    /// Of requests: in a thousand.
    pub shared: u64,
    pub several: u64,
    pub if_available: u64,
    pub steal: u64,
    pub nested: u64,
}

/// How likely each fault is.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Faults {
    pub cut: u64,
    pub delay_old: u64,
    pub stall: u64,
    pub suspend: u64,
    pub kill: u64,
    pub stop: u64,
    pub crash: u64,
    pub full: u64,
    pub rate: u64,
    pub revoke: u64,
    pub hand_over: u64,
    pub partition: u64,
    /// Of `run`, its guardian or its command.
    pub process: u64,
    /// The store of several daemons is restored from a backup.
    pub restore: u64,
}

impl Plan {
    /// A plan without faults, whose messages take no time.
    pub fn calm() -> Self {
        Self {
            clients: 3,
            local: 0,
            clients_in_all: 3,
            runs: 0,
            names: 2,
            buckets: 1,
            daemons: 1,
            chaos: 5_000_000,
            ttls: vec![1000],
            wishes: false,
            client_rates: vec![FASTEST],
            server_rates: vec![FASTEST],
            delay: Delay::NONE,
            act_every: 100_000,
            acts: Acts { request: 10, release: 10, ..Acts::default() },
            fault_every: 0,
            faults: Faults::default(),
            kill_at_commit: 0,
            cut_between: 0,
            restart_after: None,
            never_alone: false,
            lose_flight: 500,
            unnoticed: 300,
            leaky: 300,
            trusted: false,
            lose_descriptor: 0,
            replace_fifo: 0,
            no_fifo: 0,
            snapshot_every: 0,
            lose_log_message: 0,
            log_delay: Delay::NONE,
            takeover_after: 250_000,
            limits: false,
            ring: 16,
            double_log_message: 0,
            watch_delay: Delay::NONE,
            end_watch: 0,
            compact: 0,
            careless_relays: false,
            snapshot_bytes: None,
            away: Vec::new(),
        }
    }

    /// The plan of a seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut plan = Self::random(&mut Random::new(seed ^ 0x706c_616e));
        if plan.daemons > 1 && Random::new(seed ^ 0x7265_7374).chance(200) {
            plan.faults.restore = 1;
        }
        plan
    }

    fn random(random: &mut Random) -> Self {
        let daemons = if random.chance(400) { random.between(2, 3) } else { 1 };
        let clients = random.between(2, 6);
        let ttl = random.pick(&[300, 400, 1000, 1001, 1999, 4000]);
        let ttls = match random.below(3) {
            0 => vec![ttl],
            1 => vec![ttl, ttl * 2],
            _ => vec![ttl, ttl / 2, ttl * 3],
        };
        let rates = |random: &mut Random| match random.below(4) {
            0 => vec![FASTEST],
            1 => vec![SLOWEST],
            2 => vec![SLOWEST, FASTEST],
            _ => (SLOWEST..=FASTEST).collect(),
        };
        let lease = ttl * 1000;
        let delay = |random: &mut Random| match random.below(5) {
            0 => Delay::NONE,
            1 => Delay { zero: 500, max: lease / 100, long: 10, long_max: lease },
            2 => Delay { zero: 100, max: lease / 20, long: 30, long_max: lease / 2 },
            3 => Delay { zero: 0, max: lease / 8, long: 100, long_max: lease * 2 },
            _ => Delay { zero: 50, max: 2_000, long: 1, long_max: lease * 4 },
        };
        // Some seeds are calm, some have a fault between any two acts.
        let intensity = random.pick(&[0, 1, 1, 2, 2, 3, 4]);
        let acts_per_lease = random.pick(&[1, 3, 10, 30]);
        let weight =
            |random: &mut Random, most: u64| if random.chance(600) { random.below(most + 1) } else { 0 };
        let local = if daemons == 1 && random.chance(500) { random.between(0, clients) } else { 0 };
        let seldom = |random: &mut Random, most| if random.chance(400) { random.below(most) } else { 0 };
        let count = |number: u64| usize::try_from(number).expect("a small number");
        Self {
            clients: count(clients),
            local: count(local),
            clients_in_all: count(clients + random.between(0, 6)),
            runs: if random.chance(400) { random.pick(&[200, 500, 1000]) } else { 0 },
            names: random.between(1, 3),
            buckets: if random.chance(150) { 2 } else { 1 },
            daemons: count(daemons),
            chaos: lease * random.between(4, 16),
            ttls,
            wishes: random.chance(250),
            client_rates: rates(random),
            server_rates: rates(random),
            delay: delay(random),
            act_every: (lease / acts_per_lease).max(1000),
            acts: Acts {
                request: 10,
                release: random.between(3, 12),
                detach: weight(random, 3),
                query: seldom(random, 3),
                force_release: seldom(random, 3),
                end_session: seldom(random, 2),
                close: seldom(random, 2),
                crash: seldom(random, 2),
                shared: weight(random, 600),
                several: weight(random, 400),
                if_available: weight(random, 300),
                steal: seldom(random, 200),
                nested: seldom(random, 300),
            },
            fault_every: [0, lease * 3, lease, lease / 4, lease / 20][count(intensity)],
            faults: Faults {
                cut: weight(random, 12),
                delay_old: weight(random, 8),
                stall: weight(random, 4),
                suspend: weight(random, 4),
                kill: weight(random, 3),
                stop: seldom(random, 2),
                crash: if random.chance(300) { 1 } else { 0 },
                full: seldom(random, 3),
                rate: seldom(random, 4),
                revoke: seldom(random, 2),
                hand_over: seldom(random, 3),
                partition: weight(random, 3),
                process: weight(random, 12),
                restore: 0,
            },
            kill_at_commit: if intensity > 0 && random.chance(300) { random.between(1, 20) } else { 0 },
            cut_between: if intensity > 0 { seldom(random, 100) } else { 0 },
            restart_after: (random.chance(200)).then_some(0),
            never_alone: false,
            lose_flight: random.pick(&[0, 300, 500, 1000]),
            unnoticed: random.pick(&[0, 300, 800]),
            leaky: random.pick(&[0, 300, 1000]),
            trusted: random.chance(200),
            lose_descriptor: seldom(random, 300),
            replace_fifo: if random.chance(200) { 300 } else { 0 },
            no_fifo: seldom(random, 300),
            snapshot_every: random.pick(&[0, 5, 20, 100]),
            lose_log_message: if intensity > 0 { seldom(random, 100) } else { 0 },
            log_delay: Delay::of_log(random, lease, 20),
            takeover_after: (lease / 4 - 1).min(250_000),
            limits: random.chance(300),
            ring: random.pick(&[4, 5, 8, 16]),
            double_log_message: if intensity > 0 { seldom(random, 100) } else { 0 },
            watch_delay: Delay::of_log(random, lease, 10),
            end_watch: seldom(random, 200),
            compact: seldom(random, 100),
            careless_relays: random.chance(200),
            snapshot_bytes: random.pick(&[None, None, Some(1), Some(100), Some(300)]),
            away: Vec::new(),
        }
    }

    /// Whether a request is refused only if it asks for that.
    pub(crate) fn never_refuses(&self) -> bool {
        !self.limits && self.faults.full == 0
    }

    pub(crate) fn keeps(&self, rule: DriverRule) -> bool {
        !self.away.contains(&rule)
    }

    /// The longest lease that any server gives out, in microseconds.
    pub(crate) fn longest_lease(&self) -> Micros {
        self.ttls.iter().max().copied().unwrap_or(1000) * 1000
    }
}
