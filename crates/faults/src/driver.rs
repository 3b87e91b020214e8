//! The driver: starts the daemon and the workers, applies the schedule's faults to them, and has
//! their histories checked.

use crate::{
    Nanos,
    check::{self, Facts, Fate, Rule, Violation},
    history::Lines,
    machine::{Disk, Freezer, PLENTY},
    network::Network,
    now,
    plan::{self, Fault, KINDS, ScheduledFault},
    process::{Beginning, Daemon, Settings, Trade, Worker, mutant_program},
    report::Report,
    run_dir::RunDir,
    worker::Orders,
};
use lockkeeper_client::{Callbacks, Endpoint, Entry, Options, Session};
use rustix::process::Signal;
use std::{
    fmt, fs, io,
    net::TcpListener,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// How long anything may take that does not wait for a client.
const PROMPT: Duration = Duration::from_secs(10);

/// A run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where all that is random comes from.
    pub seed: u64,
    /// The kinds of faults, as places in [`KINDS`].
    pub kinds: Vec<usize>,
    /// How many of each.
    pub each: usize,
    /// How many workers there are at a time.
    pub workers: usize,
    /// How many of them, the first, are on the network.
    pub network: usize,
    /// How many of them, the last, are in separate PID namespaces.
    pub namespaces: usize,
    /// How many more there are that use `lockkeeper run`: every other one, from the first, on the
    /// network, if there is one.
    pub runners: usize,
    /// How many more there are that use the Python client.
    pub pythons: usize,
    /// How many more whose process connects, forks and exits: its child continues.
    pub forks: usize,
    /// How many more whose main thread connects and exits: another continues.
    pub threads: usize,
    /// How many more there are that use the npm package: every other one on the network, as above.
    pub scripts: usize,
    /// The directory of that package.
    pub package: PathBuf,
    /// How many requests each makes at a time.
    pub hands: usize,
    /// For how long a daemon that was killed waits for its clients.
    pub ttl: Duration,
    /// The daemon's program.
    pub daemon: PathBuf,
    /// The program that is a worker: this crate's own.
    pub worker: PathBuf,
    /// Where all files go. It must not exist.
    pub dir: PathBuf,
    /// What is broken on purpose.
    pub mutation: Option<Mutation>,
}

/// A way to break the protocol, which the check is to notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mutation {
    /// A daemon that was killed loses its log: the next one knows no sessions.
    Forgetful,
    /// Workers continue with locks that they know to be lost; those in Python, with locks that they
    /// released; and the locks of `run` end with it, not with its commands.
    Stubborn,
    /// `run` has no guardian that outlives it: whenever it is killed under a lease, its command
    /// continues alone.
    Unguarded,
    /// A daemon that lacks a descriptor to ask whether a client is alive takes it for dead.
    BusyIsDead,
    /// A daemon judges a client by the process that connected: dead if that, or its main thread, has
    /// ended; and if the client does not come back soon, unless the process is visibly stopped.
    JudgeByProcess,
}

impl Mutation {
    /// The mistake that the daemon makes.
    fn mistake(self) -> Option<&'static str> {
        match self {
            Self::BusyIsDead => Some("busy-is-dead"),
            Self::JudgeByProcess => Some("judge-by-process"),
            _ => None,
        }
    }
}

impl Config {
    /// What will be done.
    pub fn schedule(&self) -> Vec<ScheduledFault> {
        plan::schedule(self.seed, &self.kinds, self.each, self.total(), self.ttl)
    }

    fn total(&self) -> usize {
        self.workers + self.runners + self.pythons + self.forks + self.threads + self.scripts
    }

    fn trade(&self, mut place: usize) -> Trade<'_> {
        for (count, trade) in [
            (self.workers, Trade::Library),
            (self.runners, Trade::Run(&self.daemon, self.mutation == Some(Mutation::Unguarded))),
            (self.pythons, Trade::Python(Beginning::Plain)),
            (self.forks, Trade::Python(Beginning::Forks)),
            (self.threads, Trade::Python(Beginning::Threads)),
        ] {
            if place < count {
                return trade;
            }
            place -= count;
        }
        Trade::Script(&self.package)
    }
}

/// Does all of it.
///
/// # Errors
///
/// If the machine does not do as it should: what the daemon and the clients do wrong is in the
/// report.
pub fn run(config: &Config) -> io::Result<Report> {
    let began = Instant::now();
    let mut driver = Driver::start(config)?;
    let mut faults = [0; KINDS.len()];
    for ScheduledFault { after, fault } in config.schedule() {
        thread::sleep(after);
        driver.end_lasting(|until, _| until <= Instant::now())?;
        driver.look_after_all()?;
        driver.note(&fault);
        faults[fault.kind()] += 1;
        driver.inject(fault)?;
    }
    driver.end_lasting(|_, _| true)?;
    let settled = driver.settle()?;
    driver.leave(settled)?;
    driver.look_for_panics()?;
    driver.end_outage();
    let Driver { run_dir, facts, mut violations, .. } = driver;
    let seen = check::read(&run_dir, facts)?;
    violations.extend(check::check(&seen));
    let (requests, holds, touches) = seen.counts();
    let processes = seen.fates.len();
    let granted_to = |trade: fn(&Fate) -> bool| seen.granted_to(trade);
    let (commands, pythons) = (granted_to(|fate| fate.commands), granted_to(|fate| fate.python));
    let (forks, threads) = (granted_to(|fate| fate.forks), granted_to(|fate| fate.threads));
    let scripts = granted_to(|fate| fate.script);
    Ok(Report {
        faults: KINDS.into_iter().zip(faults).collect(),
        requests,
        holds,
        commands,
        pythons,
        forks,
        threads,
        scripts,
        touches,
        processes,
        took: began.elapsed(),
        violations,
    })
}

struct Driver<'a> {
    config: &'a Config,
    /// The daemon's program, and the mistake that it makes.
    program: (PathBuf, Option<&'static str>),
    run_dir: RunDir,
    /// What was done, for people.
    deeds: Lines,
    /// What was done, for the check.
    facts: Facts,
    /// None while it is down.
    daemon: Option<Daemon>,
    /// When the one before ended.
    down: Option<Nanos>,
    workers: Vec<Worker>,
    /// The way of each place among the workers that is on the network.
    networks: Vec<Network>,
    violations: Vec<Violation>,
    /// How the next daemon is set up.
    settings: Settings,
    /// The disk of the daemon's state, if it is to be full.
    disk: Option<Disk>,
    /// What lasts while other faults happen: since when, and until when.
    lasting: Vec<(Nanos, Instant, Lasting)>,
    /// Cgroups whose processes may still run.
    thawed: Vec<Freezer>,
}

/// A fault that lasts while others happen.
enum Lasting {
    Full,
    Scarce,
    Frozen { process: usize, freezer: Freezer },
}

/// Descriptors with which a daemon can start, and not look at all its sessions.
const FEW: u64 = 32;

/// The daemon's disk. Its log reserves some space ahead.
const DISK: &str = "192m";

impl<'a> Driver<'a> {
    fn start(config: &'a Config) -> io::Result<Self> {
        let run_dir = RunDir::new(&config.dir)?;
        let deeds = Lines::open(&run_dir.deeds())?;
        let has = |name| config.kinds.iter().any(|kind| KINDS[*kind] == name);
        let disk = has("full-disk").then(|| Disk::mount(&run_dir.state(), DISK)).transpose()?;
        // Leases may be twice as long, or half.
        let ttl = if has("settings") { 2 * config.ttl } else { config.ttl };
        let least_ttl = if has("settings") { config.ttl / 2 } else { config.ttl };
        // A daemon that starts again waits as long once more.
        let facts = Facts { ttl, least_ttl, lease: 2 * ttl, ..Facts::default() };
        let (daemon, down, workers, violations) = (None, None, Vec::new(), Vec::new());
        // Free a moment ago, and of this run in all lives of the daemon. Not an address that
        // connections of this machine come from: one could have the port while the daemon is down.
        let free = || TcpListener::bind("127.0.0.2:0")?.local_addr();
        let port = (config.network > 0).then(free).transpose()?;
        let network = |_| Network::to(port.expect("somebody is on the network"));
        let networks = (0..config.network).map(network).collect::<io::Result<_>>()?;
        let settings = Settings { ttl: config.ttl, sync: false, listen: port, descriptors: PLENTY };
        let (lasting, thawed) = (Vec::new(), Vec::new());
        let program = match config.mutation.and_then(Mutation::mistake) {
            Some(mistake) => (mutant_program()?, Some(mistake)),
            None => (config.daemon.clone(), None),
        };
        let mut driver = Self {
            config,
            program,
            run_dir,
            deeds,
            facts,
            daemon,
            down,
            workers,
            networks,
            violations,
            settings,
            disk,
            lasting,
            thawed,
        };
        driver.start_daemon()?;
        driver.serving()?;
        for place in 0..config.total() {
            let worker = driver.start_worker(place)?;
            driver.workers.push(worker);
        }
        driver.await_requests();
        Ok(driver)
    }

    /// Waits until every worker has asked for a lock, or takes too long. An interpreter takes longer
    /// to start than many faults.
    fn await_requests(&self) {
        let deadline = Instant::now() + PROMPT;
        let has_asked = |worker: &Worker| {
            fs::metadata(self.run_dir.history(worker.process)).is_ok_and(|history| history.len() > 0)
        };
        while !self.workers.iter().all(has_asked) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn inject(&mut self, fault: Fault) -> io::Result<()> {
        match fault {
            Fault::KillDaemon { down } => {
                self.kill_daemon()?;
                thread::sleep(down);
                self.start_daemon()
            }
            Fault::EndDaemon { down } => {
                self.end_daemon()?;
                thread::sleep(down);
                self.start_daemon()
            }
            Fault::KillInStart { life } => {
                self.kill_daemon()?;
                self.start_daemon()?;
                thread::sleep(life);
                self.kill_daemon()?;
                self.start_daemon()
            }
            Fault::KillInEnd { life } => {
                self.serving()?;
                self.daemon().signal(Signal::TERM)?;
                thread::sleep(life);
                self.kill_daemon()?;
                self.start_daemon()
            }
            Fault::KillWorker { worker } => {
                self.kill_worker(worker)?;
                self.replace_worker(worker)
            }
            Fault::KillBoth { worker } => {
                self.kill_worker(worker)?;
                self.kill_daemon()?;
                self.start_daemon()?;
                self.replace_worker(worker)
            }
            Fault::StopWorker { worker, stopped } => self.stopped(worker, |_| {
                thread::sleep(stopped);
                Ok(())
            }),
            Fault::StopAcross { worker, before, kill, after } => self.stopped(worker, |driver| {
                thread::sleep(before);
                if kill {
                    driver.kill_daemon()?
                } else {
                    driver.end_daemon()?
                }
                driver.start_daemon()?;
                driver.serving()?;
                thread::sleep(after);
                Ok(())
            }),
            Fault::Cut { worker } => self.cut(worker),
            Fault::CutStopped { worker, stopped } => self.stopped(worker, |driver| {
                driver.cut(worker)?;
                thread::sleep(stopped);
                Ok(())
            }),
            Fault::Silence { worker, silent } => {
                let Some(place) = worker.checked_rem(self.networks.len()) else { return Ok(()) };
                let (process, from) = (self.workers[place].process, now());
                self.networks[place].set_silent(true);
                thread::sleep(silent);
                self.networks[place].set_silent(false);
                self.fate(process).silences.push((from, now()));
                Ok(())
            }
            Fault::Change { percent, sync } => {
                self.kill_daemon()?;
                (self.settings.ttl, self.settings.sync) = (self.config.ttl * percent / 100, sync);
                self.start_daemon()
            }
            Fault::FullDisk { full } => {
                if let Some(disk) = &self.disk
                    && !self.lasting.iter().any(|(_, _, what)| matches!(what, Lasting::Full))
                {
                    disk.fill()?;
                    self.lasts(full, Lasting::Full);
                }
                Ok(())
            }
            Fault::Descriptors { scarce, fresh } => {
                if fresh {
                    self.kill_daemon()?;
                    self.settings.descriptors = FEW;
                    self.start_daemon()?;
                } else if self.settings.descriptors == PLENTY {
                    // One that starts needs them.
                    self.serving()?;
                    self.daemon().limit_descriptors(true)?;
                }
                self.lasts(scarce, Lasting::Scarce);
                Ok(())
            }
            Fault::Freeze { worker, frozen } => {
                let process = self.workers[worker].process;
                let freezer = Freezer::new(&process.to_string());
                match freezer {
                    Ok(freezer) => {
                        freezer.freeze(&self.workers[worker].pids()?)?;
                        self.lasts(frozen, Lasting::Frozen { process, freezer });
                        Ok(())
                    }
                    // It is frozen already.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                    Err(error) => Err(error),
                }
            }
            Fault::StopDaemon { fresh, stopped } => {
                if fresh {
                    self.kill_daemon()?;
                    self.start_daemon()?;
                    self.serving()?;
                }
                let from = now();
                self.daemon().signal(Signal::STOP)?;
                thread::sleep(stopped);
                self.daemon().signal(Signal::CONT)?;
                // To its clients, it was not there.
                self.facts.disturbances.extend([from, now()]);
                self.facts.outages.push((from, now()));
                Ok(())
            }
        }
    }

    fn lasts(&mut self, pause: Duration, what: Lasting) {
        self.lasting.push((now(), Instant::now() + pause, what));
    }

    /// Ends what has lasted long enough, or all.
    fn end_lasting(&mut self, over: impl Fn(Instant, &Lasting) -> bool) -> io::Result<()> {
        let (ended, lasting) =
            std::mem::take(&mut self.lasting).into_iter().partition(|(_, until, what)| over(*until, what));
        self.lasting = lasting;
        for (from, _, what) in ended {
            match what {
                Lasting::Full => {
                    self.disk.as_ref().map_or(Ok(()), Disk::clear)?;
                    self.facts.full.push((from, now()));
                }
                Lasting::Scarce => {
                    if self.settings.descriptors < PLENTY {
                        // It cannot be given more than it was started with.
                        self.kill_daemon()?;
                        self.settings.descriptors = PLENTY;
                        self.start_daemon()?;
                    } else {
                        // It may be another daemon by now.
                        self.daemon().limit_descriptors(false)?;
                    }
                    self.facts.outages.push((from, now()));
                    self.facts.disturbances.extend([from, now()]);
                }
                Lasting::Frozen { process, freezer } => {
                    freezer.thaw()?;
                    self.fate(process).stops.push((from, now()));
                    self.thawed.push(freezer);
                }
            }
        }
        Ok(())
    }

    fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().expect("between faults there is a daemon")
    }

    fn start_daemon(&mut self) -> io::Result<()> {
        let (program, mistake) = &self.program;
        self.daemon = Some(Daemon::start(program, *mistake, &self.run_dir, self.settings)?);
        self.facts.disturbances.push(now());
        Ok(())
    }

    /// Waits until the daemon serves.
    fn serving(&mut self) -> io::Result<()> {
        match self.daemon().serves(PROMPT) {
            true => Ok(()),
            false => {
                Err(io::Error::other(format!("the daemon does not start: {}", self.run_dir.log().display())))
            }
        }
    }

    /// The daemon, which is about to end.
    fn take_daemon(&mut self) -> Daemon {
        self.facts.disturbances.push(now());
        self.end_outage();
        self.down.get_or_insert(now());
        self.daemon.take().expect("between faults there is a daemon")
    }

    /// Notes for how long there was no daemon, if this one serves.
    fn end_outage(&mut self) {
        if let Some(served) = self.daemon.as_ref().and_then(Daemon::served_at)
            && let Some(since) = self.down.take()
        {
            self.facts.outages.push((since, served));
        }
    }

    fn kill_daemon(&mut self) -> io::Result<()> {
        self.take_daemon().kill()?;
        if self.config.mutation == Some(Mutation::Forgetful) {
            for entry in fs::read_dir(self.run_dir.state())? {
                let path = entry?.path();
                if path.is_file() {
                    fs::remove_file(path)?;
                }
            }
        }
        Ok(())
    }

    /// Asks the daemon to leave, and waits until it has.
    fn end_daemon(&mut self) -> io::Result<()> {
        self.serving()?;
        let daemon = self.take_daemon();
        daemon.signal(Signal::TERM)?;
        match daemon.wait(PROMPT)? {
            Some(status) if status.success() => {}
            Some(status) => self.violate(Rule::Daemon, format!("asked to leave, it ended with {status}")),
            None => self.violate(Rule::Daemon, format!("asked to leave, it was there after {PROMPT:?}")),
        }
        Ok(())
    }

    fn start_worker(&mut self, place: usize) -> io::Result<Worker> {
        let process = self.facts.fates.len();
        let trade = self.config.trade(place);
        let network = self.networks.get(place).map(Network::url).filter(|_| place < self.config.workers);
        // Every other `run` has a lease, and every other client of the npm package.
        let others = place.saturating_sub(self.config.workers);
        let leased = matches!(trade, Trade::Run(..) | Trade::Script(_)) && others.is_multiple_of(2);
        let direct = self.settings.listen.filter(|_| leased).map(|address| format!("ws://{address}"));
        let network = network.or(direct);
        let begins = |how| matches!(trade, Trade::Python(beginning) if beginning == how);
        let fate = Fate {
            network: network.is_some(),
            commands: matches!(trade, Trade::Run(..)),
            python: matches!(trade, Trade::Python(_)),
            forks: begins(Beginning::Forks),
            threads: begins(Beginning::Threads),
            script: matches!(trade, Trade::Script(_)),
            ..Fate::default()
        };
        self.facts.fates.push(fate);
        let url = network.unwrap_or_else(|| self.local());
        let orders = Orders {
            process,
            seed: self.config.seed ^ (process as u64) << 32,
            hands: self.config.hands,
            stubborn: self.config.mutation == Some(Mutation::Stubborn),
        };
        let namespace = place < self.config.workers && place + self.config.namespaces >= self.config.workers;
        Worker::start(&self.config.worker, &self.run_dir, &url, namespace, trade, orders)
    }

    fn kill_worker(&mut self, worker: usize) -> io::Result<()> {
        if self.is_runner(worker) {
            // Its `run` is killed, or the guardian of that. The runner writes down what became of
            // it.
            let process = self.workers[worker].process;
            let guardian = self.fate(process).maimed.len().is_multiple_of(2);
            self.fate(process).maimed.push(now());
            let both = self.config.mutation == Some(Mutation::Unguarded);
            return self.workers[worker].maim(guardian, both);
        }
        // In some kernels a frozen process does not die.
        let killed = self.workers[worker].process;
        self.end_lasting(|_, what| matches!(what, Lasting::Frozen { process, .. } if *process == killed))?;
        let worker = self.workers.remove(worker);
        // Its locks may be another's from now on.
        self.fate(worker.process).killed = Some(now());
        worker.kill()
    }

    fn is_runner(&self, worker: usize) -> bool {
        matches!(self.config.trade(worker), Trade::Run(..))
    }

    fn replace_worker(&mut self, worker: usize) -> io::Result<()> {
        if self.is_runner(worker) {
            return Ok(());
        }
        let new = self.start_worker(worker)?;
        self.workers.insert(worker, new);
        Ok(())
    }

    /// Does something while a worker is stopped.
    fn stopped(&mut self, worker: usize, then: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        let process = self.workers[worker].process;
        let from = now();
        self.workers[worker].signal(Signal::STOP)?;
        let done = then(self);
        self.workers[worker].signal(Signal::CONT)?;
        self.fate(process).stops.push((from, now()));
        done
    }

    fn cut(&mut self, worker: usize) -> io::Result<()> {
        let process = self.workers[worker].process;
        let at = now();
        if self.workers[worker].cut()? {
            self.fate(process).cuts.push(at);
        }
        Ok(())
    }

    fn fate(&mut self, process: usize) -> &mut Fate {
        &mut self.facts.fates[process]
    }

    /// No process ends except by a fault.
    fn look_after_all(&mut self) -> io::Result<()> {
        if let Some(status) = self.daemon().ended()? {
            self.violate(Rule::Daemon, format!("it ended on its own, with {status}"));
            drop(self.take_daemon());
            self.start_daemon()?;
        }
        for worker in &mut self.workers {
            if let Some(status) = worker.ended()? {
                return Err(io::Error::other(format!("worker {} ended, with {status}", worker.process)));
            }
        }
        Ok(())
    }

    /// The faults have ended: whether every request is answered, and every name is available to
    /// every client.
    fn settle(&mut self) -> io::Result<bool> {
        self.note(&"settle");
        self.workers.iter_mut().try_for_each(Worker::settle)?;
        let deadline = Instant::now() + 2 * self.facts.ttl + PROMPT;
        let left = || deadline.saturating_duration_since(Instant::now());
        let late: Vec<_> = self
            .workers
            .iter()
            .filter(|worker| !worker.settled(left()))
            .map(|worker| worker.process)
            .collect();
        if late.is_empty() {
            return Ok(true);
        }
        let shown = match self.query(self.config.ttl) {
            Ok(entries) => entries.iter().map(show).collect::<Vec<_>>().join("; "),
            Err(error) => error,
        };
        self.violate(Rule::Answered, format!("workers {late:?} still wait; the daemon shows {shown}"));
        Ok(false)
    }

    /// All workers end, and the daemon; nothing is left that the next one would stumble over.
    fn leave(&mut self, settled: bool) -> io::Result<()> {
        for worker in std::mem::take(&mut self.workers) {
            match settled {
                true => {
                    let (process, status) = (worker.process, worker.end()?);
                    if !status.success() {
                        return Err(io::Error::other(format!("worker {process} ended with {status}")));
                    }
                }
                false => {
                    self.facts.fates[worker.process].killed = Some(now());
                    worker.kill()?;
                }
            }
        }
        // Sessions on the network, and those that were killed before they had their FIFO, have a
        // lease.
        thread::sleep(self.facts.ttl + Duration::from_millis(200));
        for life in ["last", "next"] {
            match self.query(2 * self.facts.ttl) {
                Ok(entries) if entries.is_empty() => {}
                Ok(entries) => {
                    let shown: Vec<_> = entries.iter().map(show).collect();
                    self.violate(Rule::Leftover, format!("the {life} daemon shows {}", shown.join("; ")));
                }
                Err(error) => self.violate(Rule::Leftover, format!("the {life} daemon: {error}")),
            }
            self.end_daemon()?;
            // A session that ends takes its FIFO along.
            for fifo in fs::read_dir(self.run_dir.state().join("fifo"))? {
                self.violate(Rule::Leftover, format!("a session is left: {}", fifo?.path().display()));
            }
            if life == "last" {
                self.start_daemon()?;
                self.serving()?;
            }
        }
        Ok(())
    }

    /// A daemon that has panicked ends, and the next one replays the log. The panic is still an
    /// error.
    fn look_for_panics(&mut self) -> io::Result<()> {
        let log = fs::read_to_string(self.run_dir.log())?;
        for line in log.lines().filter(|line| line.contains("panicked")) {
            self.violate(Rule::Daemon, line.into());
        }
        Ok(())
    }

    /// What the daemon shows. Asked again while that is something, or it waits for clients and
    /// shows nothing, until the patience is over.
    fn query(&self, patience: Duration) -> Result<Vec<Entry>, String> {
        let endpoint: Endpoint = self.local().parse()?;
        let deadline = Instant::now() + patience;
        loop {
            let session = Session::open(&endpoint, Options::new("faults"), Callbacks)
                .map_err(|error| error.to_string())?;
            match session.query(None).map(|snapshot| snapshot.entries) {
                Ok(entries) if entries.is_empty() => return Ok(entries),
                shown if Instant::now() > deadline => return shown.map_err(|error| error.to_string()),
                _ => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn local(&self) -> String {
        format!("unix:{}", self.run_dir.socket().display())
    }

    fn note(&self, deed: &dyn fmt::Display) {
        let at: Nanos = now();
        self.deeds.append(format!("{at} {deed}"));
    }

    fn violate(&mut self, rule: Rule, what: String) {
        self.violations.push(Violation { rule, what });
    }
}

/// For people.
fn show(entry: &Entry) -> String {
    let Entry { name, mode, client_id, token, since, .. } = entry;
    let stands = token.map_or("waits".into(), |token| format!("holds with token {token}"));
    format!("{client_id} {stands}, {} {mode}, for {since} ms", name.to_string_lossy())
}
