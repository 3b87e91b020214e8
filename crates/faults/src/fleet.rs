//! Faults to a fleet: daemons that share the log of a real etcd, their clients, and etcd itself.
//! Several happen at once.
//!
//! What the workers saw is checked as after any other run.

use crate::{
    Nanos,
    check::{self, Facts, Fate, Rule, Violation},
    history::Lines,
    now,
    process::{Trade, Worker},
    report::Report,
    run_dir::RunDir,
    worker::Orders,
};
use fastrand::Rng;
use lockkeeper_client::{Callbacks, Endpoint, Options, Session};
use lockkeeper_testing::{Cluster, Daemons, Network, NetworkHost, Setup};
use rustix::process::Signal;
use std::{
    fmt, io,
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
    /// How many workers there are at a time.
    pub workers: usize,
    /// The lease of a client.
    pub ttl: Duration,
    /// Whether each daemon and each member of etcd is a host of its own, which can be cut off.
    pub hosts: bool,
    /// The daemon's program.
    pub daemon: PathBuf,
    /// The program that is a worker: this crate's own.
    pub worker: PathBuf,
    /// Where all files go. It must not exist.
    pub dir: PathBuf,
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
    CutMember,
    KillWorker,
    StopWorker,
}

const DEEDS: [(Deed, &str); 10] = [
    (Deed::KillLeader, "kill-leader"),
    (Deed::EndLeader, "end-leader"),
    (Deed::StopLeader, "stop-leader"),
    (Deed::KillFollower, "kill-follower"),
    (Deed::KillMember, "kill-etcd"),
    (Deed::StopMember, "stop-etcd"),
    (Deed::CutLeader, "cut-leader"),
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
    JoinMember(usize),
    ContinueWorker { process: usize, since: Nanos },
}

/// How soon a daemon takes over.
const TAKEOVER: Duration = Duration::from_millis(500);

/// How often something that takes a while is looked at.
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
    workers: Vec<Worker>,
    undo: Vec<(Instant, Undo)>,
    violations: Vec<Violation>,
    /// How many deeds of each kind there were.
    faults: [usize; DEEDS.len()],
}

/// Does all of it.
///
/// # Errors
///
/// If the machine does not do as it should: what the fleet does wrong is in the report.
pub fn run(config: &Config) -> io::Result<Report> {
    let began = Instant::now();
    let mut driver = Driver::start(config)?;
    for _ in 0..config.rounds {
        let pause = driver.random.u64(100..1500);
        thread::sleep(Duration::from_millis(pause));
        let from = now();
        for _ in 0..driver.random.usize(1..=2) {
            driver.inject()?;
        }
        driver.undo(|until| until <= Instant::now())?;
        driver.wait_until_served(from)?;
    }
    let from = now();
    driver.undo(|_| true)?;
    driver.wait_until_served(from)?;
    driver.settle()?;
    let Driver { run_dir, facts, mut violations, daemons, faults, .. } = driver;
    let faults = DEEDS.iter().map(|(_, name)| *name).zip(faults).collect();
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
        commands: 0,
        pythons: 0,
        scripts: 0,
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
        // The hosts are the run's own, and nobody else is on their network.
        let more =
            ["--takeover".into(), millis(TAKEOVER), "--ttl".into(), millis(config.ttl), "--insecure".into()];
        let setup = Setup { program: config.daemon.clone(), store: cluster.url("faults"), more: more.into() };
        let daemons = Daemons::start_in((config.members..hosts).map(place).collect(), setup)?;
        let facts = Facts { ttl: config.ttl, least_ttl: config.ttl, ..Facts::default() };
        let mut driver = Self {
            config,
            random: Rng::with_seed(config.seed),
            run_dir,
            deeds,
            facts,
            network,
            cluster,
            daemons,
            workers: Vec::new(),
            undo: Vec::new(),
            violations: Vec::new(),
            faults: [0; DEEDS.len()],
        };
        driver.wait_until_served(now())?;
        for place in 0..config.workers {
            let worker = driver.start_worker(place)?;
            driver.workers.push(worker);
        }
        Ok(driver)
    }

    fn start_worker(&mut self, place: usize) -> io::Result<Worker> {
        let process = self.facts.fates.len();
        self.facts.fates.push(Fate { network: true, ..Fate::default() });
        let url = self.daemons.urls(place % self.daemons.len());
        let orders =
            Orders { process, seed: self.config.seed ^ (process as u64) << 32, hands: 3, stubborn: false };
        Worker::start(&self.config.worker, &self.run_dir, &url, false, Trade::Library, orders)
    }

    fn inject(&mut self) -> io::Result<()> {
        let possible = |kind: &usize| {
            self.network.is_some() || !matches!(DEEDS[*kind].0, Deed::CutLeader | Deed::CutMember)
        };
        let possible: Vec<_> = (0..DEEDS.len()).filter(possible).collect();
        let kind = possible[self.random.usize(..possible.len())];
        let (deed, name) = DEEDS[kind];
        self.faults[kind] += 1;
        // Longer than a takeover, and sometimes than a lease.
        let longest = u64::try_from(self.config.ttl.as_millis()).unwrap_or(u64::MAX) * 3 / 2;
        let lasts = Duration::from_millis(self.random.u64(10..longest));
        let until = Instant::now() + lasts;
        let down = |undo: &Undo| match undo {
            Undo::StartDaemon(at) | Undo::ContinueDaemon(at) | Undo::JoinDaemon(at) => Some((true, *at)),
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
        self.note(&format_args!("{name} {daemon:?} {member:?} {lasts:?}"));
        match (deed, daemon, member) {
            (Deed::KillLeader | Deed::KillFollower, Some(at), _) => {
                self.daemons.kill(at);
                self.undo.push((until, Undo::StartDaemon(at)));
            }
            (Deed::EndLeader, Some(at), _) => {
                self.daemons.stop(at);
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
            (Deed::CutMember, _, Some(at)) => {
                self.cut(at, true)?;
                self.undo.push((until, Undo::JoinMember(at)));
            }
            (Deed::KillWorker, ..) => {
                let place = self.random.usize(..self.workers.len());
                // One that is stopped is killed as well: it goes on before.
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
                if !self.undo.iter().any(|(_, undo)| stopped(undo)) {
                    worker.signal(Signal::STOP)?;
                    self.undo.push((until, Undo::ContinueWorker { process, since: now() }));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Cuts a host off, or joins it again.
    fn cut(&self, host: usize, off: bool) -> io::Result<()> {
        self.network.as_ref().map_or(Ok(()), |network| network.cut(host, off))
    }

    /// Undoes what has lasted long enough.
    fn undo(&mut self, over: impl Fn(Instant) -> bool) -> io::Result<()> {
        let (ended, lasting) =
            std::mem::take(&mut self.undo).into_iter().partition(|(until, _)| over(*until));
        self.undo = lasting;
        for (_, undo) in ended {
            match undo {
                Undo::StartDaemon(at) => {
                    self.daemons.run(at)?;
                }
                Undo::ContinueDaemon(at) => self.daemons.signal(at, Signal::CONT),
                Undo::StartMember(at) => {
                    self.cluster.run(at)?;
                    self.cluster.wait(at)?;
                }
                Undo::ContinueMember(at) => self.cluster.signal(at, Signal::CONT),
                Undo::JoinDaemon(at) => self.cut(self.config.members + at, false)?,
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

    /// Waits until a daemon that is up answers. Until then, and since `from`, the fleet was not there. If it cannot be, since too
    /// much is down, that is undone.
    fn wait_until_served(&mut self, from: Nanos) -> io::Result<()> {
        let begun = Instant::now();
        let endpoint: Endpoint = self.daemons.urls(0).parse().map_err(io::Error::other)?;
        // On a thread of its own: a question waits for a server, and what is undone meanwhile may
        // bring it back.
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
        // Clients of a daemon that is stopped or cut off notice that later than those of one that is gone.
        let silent = |undo: &Undo| matches!(undo, Undo::ContinueDaemon(_) | Undo::JoinDaemon(_));
        let silent = self.undo.iter().any(|(_, undo)| silent(undo));
        let late = if silent { self.config.ttl } else { Duration::ZERO };
        let late = Nanos::try_from(late.as_nanos()).unwrap_or(Nanos::MAX);
        self.facts.outages.push((from, now() + late));
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

    fn note(&self, deed: &dyn fmt::Display) {
        self.deeds.append(format!("{} {deed}", now()));
    }
}
