//! Faults of a fleet: daemons that share the log of a real etcd, their clients, and etcd itself.
//! Several happen at once.
//!
//! The workers' histories are checked as after any other run. A client that loses a lock or a place
//! in a queue needs a reason within its lease: it was stopped or killed, or no daemon answered that
//! it could have found in time (`silence.rs`). Python clients are left out: they have no lease, and
//! a fleet has no sessions without one.

use crate::{
    Nanos,
    check::{self, Facts, Fate, Rule, Violation},
    history::Lines,
    now,
    process::{Trade, Worker},
    report::Report,
    run_dir::RunDir,
    silence::{self, Silences},
    worker::Orders,
};
use fastrand::Rng;
use lockkeeper_client::{Callbacks, Endpoint, Options, Session};
use lockkeeper_testing::{Cluster, Daemons, Network, NetworkHost, Setup};
use rustix::process::Signal;
use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::PathBuf,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// A run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where all that is random comes from.
    pub seed: u64,
    /// How often something happens.
    pub rounds: usize,
    /// How many daemons there are.
    pub daemons: usize,
    /// How many members etcd has.
    pub members: usize,
    /// How many workers there are at a time. Every other one, of any kind, is on the Unix socket of
    /// a daemon, and goes to the others by WebSocket.
    pub workers: usize,
    /// How many more there are that use `run`.
    pub runners: usize,
    /// How many more that use the npm package.
    pub scripts: usize,
    /// The directory of that package.
    pub package: PathBuf,
    /// The lease of a client.
    pub ttl: Duration,
    /// Whether each daemon and each member of etcd is a separate host, which can be cut off.
    pub hosts: bool,
    /// The daemon's program.
    pub daemon: PathBuf,
    /// The program that is a worker: this crate's own.
    pub worker: PathBuf,
    /// Where all files go. It must not exist.
    pub dir: PathBuf,
    /// How the protocol is broken on purpose.
    pub mutation: Option<Mutation>,
}

/// A way to break the protocol, to see that the check notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mutation {
    /// Clients continue with locks that they know to be lost.
    Stubborn,
    /// Clients know one daemon each, and lose their locks while others answer.
    Loyal,
    /// etcd goes back to a backup, unnoticed: the daemons have lost their state directories.
    Restored,
}

/// Something that happens.
#[derive(Clone, Copy)]
enum Deed {
    KillLeader,
    EndLeader,
    StopLeader,
    KillFollower,
    KillMember,
    StopMember,
    CutLeader,
    CutFromStore,
    CutMember,
    KillWorker,
    StopWorker,
}

const DEEDS: [(Deed, &str); 11] = [
    (Deed::KillLeader, "kill-leader"),
    (Deed::EndLeader, "end-leader"),
    (Deed::StopLeader, "stop-leader"),
    (Deed::KillFollower, "kill-follower"),
    (Deed::KillMember, "kill-etcd"),
    (Deed::StopMember, "stop-etcd"),
    (Deed::CutLeader, "cut-leader"),
    (Deed::CutFromStore, "cut-leader-from-etcd"),
    (Deed::CutMember, "cut-etcd"),
    (Deed::KillWorker, "kill-worker"),
    (Deed::StopWorker, "stop-worker"),
];

/// What has to be undone, and when.
enum Undo {
    StartDaemon(usize),
    ContinueDaemon(usize),
    StartMember(usize),
    ContinueMember(usize),
    JoinDaemon(usize),
    JoinStore(usize),
    JoinMember(usize),
    ContinueWorker { process: usize, since: Nanos },
}

/// How soon a daemon takes over.
const TAKEOVER: Duration = Duration::from_millis(500);

/// How often a slow condition is checked.
const POLL: Duration = Duration::from_millis(20);

/// How long anything may take.
const PROMPT: Duration = Duration::from_secs(60);

struct Driver<'a> {
    config: &'a Config,
    random: Rng,
    run_dir: RunDir,
    deeds: Lines,
    facts: Facts,
    /// The members first, then the daemons, if they are hosts.
    network: Option<Network>,
    cluster: Cluster,
    daemons: Daemons,
    /// What a client of each daemon hears of it.
    silences: Vec<Silences>,
    workers: Vec<Worker>,
    undo: Vec<(Instant, Undo)>,
    violations: Vec<Violation>,
    /// How many deeds of each kind were done.
    faults: BTreeMap<&'static str, usize>,
}

/// Does all of it.
///
/// # Errors
///
/// If the machine does not do as it should: what the fleet does wrong is in the report.
pub fn run(config: &Config) -> io::Result<Report> {
    let began = Instant::now();
    let mut driver = Driver::start(config)?;
    for round in 0..config.rounds {
        match config.mutation {
            Some(Mutation::Restored) => driver.go_back(round)?,
            Some(Mutation::Loyal) => driver.be_without_a_follower()?,
            _ => {}
        }
        let pause = driver.random.u64(100..1500);
        thread::sleep(Duration::from_millis(pause));
        let from = now();
        for _ in 0..driver.random.usize(1..=2) {
            driver.inject()?;
        }
        driver.undo(|until| until <= Instant::now())?;
        driver.wait_until_served(from)?;
        driver.look_for_ends()?;
    }
    let from = now();
    driver.undo(|_| true)?;
    driver.wait_until_served(from)?;
    driver.settle()?;
    driver.look_for_ends()?;
    driver.look_for_leftovers()?;
    (0..config.daemons).try_for_each(|at| driver.keep_log(at))?;
    driver.facts.outages = silence::outages(&driver.silences, config.ttl);
    let Driver { run_dir, facts, mut violations, daemons, faults, .. } = driver;
    let faults = faults.into_iter().collect();
    for at in 0..daemons.len() {
        let panics = daemons.log(at);
        let panics = panics.lines().filter(|line| line.contains("panicked"));
        violations.extend(panics.map(|line| Violation { rule: Rule::Daemon, what: line.into() }));
    }
    let seen = check::read(&run_dir, facts)?;
    violations.extend(check::check(&seen));
    let (requests, holds, touches) = seen.counts();
    Ok(Report {
        faults,
        requests,
        holds,
        commands: seen.granted_to(|fate| fate.commands),
        pythons: 0,
        forks: 0,
        threads: 0,
        scripts: seen.granted_to(|fate| fate.script),
        touches,
        processes: seen.fates.len(),
        took: began.elapsed(),
        violations,
    })
}

impl<'a> Driver<'a> {
    fn start(config: &'a Config) -> io::Result<Self> {
        let run_dir = RunDir::new(&config.dir)?;
        let deeds = Lines::open(&run_dir.deeds())?;
        let hosts = config.members + config.daemons;
        let network = config.hosts.then(|| Network::new(hosts, &config.dir)).transpose()?;
        let place = |at| network.as_ref().map_or_else(NetworkHost::loopback, |network| network.place(at));
        let cluster = Cluster::start_in((0..config.members).map(place).collect())?;
        let millis = |span: Duration| format!("{}ms", span.as_millis());
        // The hosts belong to the run, and their network has no other users.
        let more =
            ["--takeover".into(), millis(TAKEOVER), "--ttl".into(), millis(config.ttl), "--insecure".into()];
        let setup = Setup { program: config.daemon.clone(), store: cluster.url("faults"), more: more.into() };
        let daemons = Daemons::start_in((config.members..hosts).map(place).collect(), setup)?;
        let lease = config.ttl * 3 / 4;
        let facts = Facts { ttl: config.ttl, least_ttl: config.ttl, lease, ..Facts::default() };
        let mut driver = Self {
            config,
            random: Rng::with_seed(config.seed),
            run_dir,
            deeds,
            facts,
            network,
            cluster,
            daemons,
            silences: Vec::new(),
            workers: Vec::new(),
            undo: Vec::new(),
            violations: Vec::new(),
            faults: BTreeMap::new(),
        };
        driver.wait_until_served(now())?;
        for at in 0..config.daemons {
            let endpoint = driver.daemons.url(at).parse().map_err(io::Error::other)?;
            driver.silences.push(Silences::listen(endpoint));
        }
        for place in 0..config.workers + config.runners + config.scripts {
            let worker = driver.start_worker(place)?;
            driver.workers.push(worker);
        }
        Ok(driver)
    }

    fn start_worker(&mut self, place: usize) -> io::Result<Worker> {
        let Config { workers, runners, .. } = *self.config;
        let trade = match place {
            place if place < workers => Trade::Library,
            place if place < workers + runners => Trade::Run(&self.config.daemon, false),
            _ => Trade::Script(&self.config.package),
        };
        let (commands, script) = (matches!(trade, Trade::Run(..)), matches!(trade, Trade::Script(_)));
        let process = self.facts.fates.len();
        self.facts.fates.push(Fate { network: true, commands, script, ..Fate::default() });
        let at = place % self.daemons.len();
        let url = match trade {
            _ if self.config.mutation == Some(Mutation::Loyal) => self.daemons.url(at),
            // Each daemon once: who finds one silent would try it again.
            _ if place.is_multiple_of(2) => {
                let count = self.daemons.len();
                let others = (at + 1..at + count).map(|other| self.daemons.url(other % count));
                let socket = format!("unix:{}", self.daemons.socket(at).display());
                [socket].into_iter().chain(others).collect::<Vec<_>>().join(",")
            }
            _ => self.daemons.urls(at),
        };
        let stubborn = self.config.mutation == Some(Mutation::Stubborn);
        let orders = Orders { process, seed: self.config.seed ^ (process as u64) << 32, hands: 3, stubborn };
        Worker::start(&self.config.worker, &self.run_dir, &url, false, trade, orders)
    }

    fn inject(&mut self) -> io::Result<()> {
        let possible = |kind: &usize| {
            let cuts = matches!(DEEDS[*kind].0, Deed::CutLeader | Deed::CutFromStore | Deed::CutMember);
            self.network.is_some() || !cuts
        };
        let possible: Vec<_> = (0..DEEDS.len()).filter(possible).collect();
        let kind = possible[self.random.usize(..possible.len())];
        let (deed, name) = DEEDS[kind];
        // Longer than a takeover, and sometimes than a lease.
        let longest = u64::try_from(self.config.ttl.as_millis()).unwrap_or(u64::MAX) * 3 / 2;
        let lasts = Duration::from_millis(self.random.u64(10..longest));
        let until = Instant::now() + lasts;
        let down = |undo: &Undo| match undo {
            Undo::StartDaemon(at) | Undo::ContinueDaemon(at) | Undo::JoinDaemon(at) | Undo::JoinStore(at) => {
                Some((true, *at))
            }
            Undo::StartMember(at) | Undo::ContinueMember(at) | Undo::JoinMember(at) => Some((false, *at)),
            Undo::ContinueWorker { .. } => None,
        };
        let down: Vec<_> = self.undo.iter().filter_map(|(_, undo)| down(undo)).collect();
        let up = |daemon: bool, count: usize| -> Vec<usize> {
            (0..count).filter(|at| !down.contains(&(daemon, *at))).collect()
        };
        let leader = self.daemons.leader();
        let daemons = up(true, self.daemons.len());
        let members = up(false, self.cluster.len());
        let daemon = match deed {
            Deed::KillFollower => daemons.iter().copied().find(|at| Some(*at) != leader),
            _ => leader.filter(|at| daemons.contains(at)),
        };
        let member = self.random.choice(&members).copied();
        // Half of the time, the member that leads.
        let member = match deed {
            Deed::KillMember | Deed::StopMember | Deed::CutMember if self.random.bool() => {
                self.cluster.leader().filter(|at| members.contains(at)).or(member)
            }
            _ => member,
        };
        let name = match deed {
            Deed::KillMember if member == self.cluster.leader() => "kill-etcds-leader",
            Deed::StopMember if member == self.cluster.leader() => "stop-etcds-leader",
            Deed::CutMember if member == self.cluster.leader() => "cut-etcds-leader",
            _ => name,
        };
        self.note(&format_args!("{name} {daemon:?} {member:?} {lasts:?}"));
        match (deed, daemon, member) {
            (Deed::KillLeader | Deed::KillFollower, Some(at), _) => {
                self.daemons.kill(at);
                self.undo.push((until, Undo::StartDaemon(at)));
            }
            (Deed::EndLeader, Some(at), _) => {
                if let Err(what) = self.daemons.try_stop(at) {
                    self.violations.push(Violation { rule: Rule::Daemon, what });
                }
                self.undo.push((until, Undo::StartDaemon(at)));
            }
            (Deed::StopLeader, Some(at), _) => {
                self.daemons.signal(at, Signal::STOP);
                self.undo.push((until, Undo::ContinueDaemon(at)));
            }
            (Deed::KillMember, _, Some(at)) => {
                self.cluster.kill(at);
                self.undo.push((until, Undo::StartMember(at)));
            }
            (Deed::StopMember, _, Some(at)) => {
                self.cluster.signal(at, Signal::STOP);
                self.undo.push((until, Undo::ContinueMember(at)));
            }
            (Deed::CutLeader, Some(at), _) => {
                self.cut(self.config.members + at, true)?;
                self.undo.push((until, Undo::JoinDaemon(at)));
            }
            (Deed::CutFromStore, Some(at), _) => {
                self.cut_from_store(at, true)?;
                self.undo.push((until, Undo::JoinStore(at)));
            }
            (Deed::CutMember, _, Some(at)) => {
                self.cut(at, true)?;
                self.undo.push((until, Undo::JoinMember(at)));
            }
            (Deed::KillWorker, ..) => {
                let place = self.random.usize(..self.workers.len());
                let fate = &mut self.facts.fates[self.workers[place].process];
                if fate.commands {
                    // Its `run`, or the guardian of that. The runner writes down what became of it.
                    let guardian = fate.maimed.len().is_multiple_of(2);
                    fate.maimed.push(now());
                    self.workers[place].maim(guardian, false)?;
                    *self.faults.entry("kill-run").or_default() += 1;
                    return Ok(());
                }
                // A stopped one is killed as well: it continues before.
                let worker = self.workers.remove(place);
                self.undo.retain(|(_, undo)| {
                    !matches!(undo, Undo::ContinueWorker { process, .. } if *process == worker.process)
                });
                self.facts.fates[worker.process].killed = Some(now());
                worker.kill()?;
                let new = self.start_worker(place)?;
                self.workers.insert(place, new);
            }
            (Deed::StopWorker, ..) => {
                let worker = &self.workers[self.random.usize(..self.workers.len())];
                let process = worker.process;
                let stopped = |undo: &Undo| matches!(undo, Undo::ContinueWorker { process: other, .. } if *other == process);
                if self.undo.iter().any(|(_, undo)| stopped(undo)) {
                    return Ok(());
                }
                worker.signal(Signal::STOP)?;
                self.undo.push((until, Undo::ContinueWorker { process, since: now() }));
            }
            // There is none to do it to.
            _ => return Ok(()),
        }
        *self.faults.entry(name).or_default() += 1;
        Ok(())
    }

    /// Starts a daemon that has ended. What it has printed is kept.
    fn start_daemon(&mut self, at: usize) -> io::Result<()> {
        self.keep_log(at)?;
        self.daemons.run(at)
    }

    fn keep_log(&self, at: usize) -> io::Result<()> {
        Lines::open(&self.run_dir.log_of(at))?.append(self.daemons.log(at));
        Ok(())
    }

    /// Cuts a host off, or joins it again.
    fn cut(&self, host: usize, off: bool) -> io::Result<()> {
        self.network.as_ref().map_or(Ok(()), |network| network.cut(host, off))
    }

    /// Cuts a daemon off from etcd, but not from its clients, or joins it again.
    fn cut_from_store(&self, daemon: usize, off: bool) -> io::Result<()> {
        let members = self.config.members;
        let cut = |network: &Network| network.cut_from(members + daemon, 0..members, off);
        self.network.as_ref().map_or(Ok(()), cut)
    }

    /// Sabotage: etcd goes back to what it had after the first round, again and again.
    fn go_back(&mut self, round: usize) -> io::Result<()> {
        self.undo(|_| true)?;
        if round == 0 {
            return self.cluster.back_up();
        }
        for at in 0..self.daemons.len() {
            self.daemons.kill(at);
            self.daemons.forget(at)?;
        }
        self.cluster.restore()?;
        (0..self.daemons.len()).try_for_each(|at| self.daemons.run(at))
    }

    /// Sabotage: clients of a daemon that is away for longer than a lease wait for it.
    fn be_without_a_follower(&mut self) -> io::Result<()> {
        for worker in &self.workers {
            let history = self.run_dir.history(worker.process);
            while !fs::read_to_string(&history).is_ok_and(|lines| lines.contains("granted")) {
                thread::sleep(POLL);
            }
        }
        let leader = self.daemons.wait_for_leader();
        let follower = (leader + 1) % self.daemons.len();
        self.daemons.kill(follower);
        thread::sleep(self.config.ttl);
        self.daemons.run(follower)
    }

    /// Undoes what has lasted long enough.
    fn undo(&mut self, over: impl Fn(Instant) -> bool) -> io::Result<()> {
        let (ended, lasting) =
            std::mem::take(&mut self.undo).into_iter().partition(|(until, _)| over(*until));
        self.undo = lasting;
        for (_, undo) in ended {
            match undo {
                Undo::StartDaemon(at) => self.start_daemon(at)?,
                Undo::ContinueDaemon(at) => self.daemons.signal(at, Signal::CONT),
                Undo::StartMember(at) => {
                    self.cluster.run(at)?;
                    self.cluster.wait(at)?;
                }
                Undo::ContinueMember(at) => self.cluster.signal(at, Signal::CONT),
                Undo::JoinDaemon(at) => self.cut(self.config.members + at, false)?,
                Undo::JoinStore(at) => self.cut_from_store(at, false)?,
                Undo::JoinMember(at) => self.cut(at, false)?,
                Undo::ContinueWorker { process, since } => {
                    if let Some(worker) = self.workers.iter().find(|worker| worker.process == process) {
                        worker.signal(Signal::CONT)?;
                    }
                    self.facts.fates[process].stops.push((since, now()));
                }
            }
        }
        Ok(())
    }

    /// Waits until a daemon that is up answers. If none can, since too much is down, that is undone.
    fn wait_until_served(&mut self, from: Nanos) -> io::Result<()> {
        let begun = Instant::now();
        let endpoint: Endpoint = self.daemons.urls(0).parse().map_err(io::Error::other)?;
        // On a separate thread: a question waits for a server, which an undone fault may bring
        // back.
        let (served, serves) = mpsc::channel();
        thread::spawn(move || {
            let ask = || Session::open(&endpoint, Options::new("faults"), Callbacks)?.query(None);
            while ask().is_err() {
                thread::sleep(POLL);
            }
            let _ = served.send(());
        });
        while serves.recv_timeout(POLL).is_err() {
            self.undo(|until| until <= Instant::now())?;
            if begun.elapsed() > PROMPT {
                let log = |at| format!("\n{}:\n{}", self.daemons.url(at), self.daemons.log(at));
                let logs: String = (0..self.daemons.len()).map(log).collect();
                return Err(io::Error::other(format!("the fleet does not serve; its daemons' logs:{logs}")));
            }
        }
        self.facts.disturbances.extend([from, now()]);
        Ok(())
    }

    /// The faults are over: every request is answered, and all workers end.
    fn settle(&mut self) -> io::Result<()> {
        self.note(&"settle");
        self.workers.iter_mut().try_for_each(Worker::settle)?;
        let deadline = Instant::now() + 2 * self.config.ttl + PROMPT;
        let late: Vec<_> = self
            .workers
            .iter()
            .filter(|worker| !worker.settled(deadline.saturating_duration_since(Instant::now())))
            .map(|worker| worker.process)
            .collect();
        if !late.is_empty() {
            let what = format!("workers {late:?} still wait");
            self.violations.push(Violation { rule: Rule::Answered, what });
        }
        for worker in std::mem::take(&mut self.workers) {
            if late.is_empty() {
                let (process, status) = (worker.process, worker.end()?);
                if !status.success() {
                    return Err(io::Error::other(format!("worker {process} ended with {status}")));
                }
            } else {
                self.facts.fates[worker.process].killed = Some(now());
                worker.kill()?;
            }
        }
        Ok(())
    }

    /// A daemon that was not killed runs. One that does not find etcd when it starts ends, and is
    /// started again, as a service manager does.
    fn look_for_ends(&mut self) -> io::Result<()> {
        // Those of a store that went back end.
        if self.config.mutation == Some(Mutation::Restored) {
            return Ok(());
        }
        for at in 0..self.daemons.len() {
            let Some(what) = self.daemons.ended(at) else { continue };
            let log = self.daemons.log(at);
            if log.contains("listening") || !log.contains("etcd cannot be reached") {
                self.violations.push(Violation { rule: Rule::Daemon, what });
            }
            self.start_daemon(at)?;
        }
        Ok(())
    }

    /// All workers have ended. Those that were killed have leases.
    fn look_for_leftovers(&mut self) -> io::Result<()> {
        let endpoint: Endpoint = self.daemons.urls(0).parse().map_err(io::Error::other)?;
        let deadline = Instant::now() + 2 * self.config.ttl + PROMPT;
        loop {
            let asked = Session::open(&endpoint, Options::new("faults"), Callbacks);
            let left = asked.and_then(|session| session.query(None));
            let what = match left {
                Ok(snapshot) if snapshot.entries.is_empty() => return Ok(()),
                Ok(snapshot) => format!("{} requests", snapshot.entries.len()),
                Err(error) => error.to_string(),
            };
            if Instant::now() > deadline {
                self.violations.push(Violation { rule: Rule::Leftover, what });
                return Ok(());
            }
            thread::sleep(POLL);
        }
    }

    fn note(&self, deed: &dyn fmt::Display) {
        self.deeds.append(format!("{} {deed}", now()));
    }
}
