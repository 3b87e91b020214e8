//! The processes of a run: the daemon and the workers. Dropping a value ends its process.

use crate::{Nanos, machine, run_dir::RunDir, worker::Orders};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, kill_process_group, pidfd_getfd, pidfd_open,
};
use std::{
    env,
    fs::{self, OpenOptions},
    io::{self, BufRead as _, BufReader, Write as _},
    net::{Shutdown, SocketAddr},
    os::unix::{net::UnixStream, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

/// A process of this one's, killed at the latest when it is dropped.
struct Own(Child);

impl Own {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        // It has not been waited for, so the number is still its own.
        kill_process(self.pid(), signal).map_err(Into::into)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a daemon is set up.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The lease.
    pub ttl: Duration,
    /// Whether it syncs its log.
    pub sync: bool,
    /// The address for clients on the network.
    pub listen: Option<SocketAddr>,
    /// How many descriptors it may have.
    pub descriptors: u64,
}

/// A daemon.
pub struct Daemon {
    own: Own,
    /// A message when it serves; the end when it has ended.
    serving: Receiver<()>,
    served: bool,
    /// When it began to serve; 0 before that.
    served_at: Arc<AtomicU64>,
}

impl Daemon {
    /// Starts it, with a mistake if it is a mutant. It may not serve yet.
    ///
    /// # Errors
    ///
    /// If the program cannot be started.
    pub fn start(
        program: &Path,
        mistake: Option<&str>,
        run_dir: &RunDir,
        settings: Settings,
    ) -> io::Result<Self> {
        let Settings { ttl, sync, listen, descriptors } = settings;
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={descriptors}:{descriptors}")).arg(program);
        command
            .args(mistake)
            .arg("serve")
            .arg("--socket")
            .arg(run_dir.socket())
            .arg("--state-dir")
            .arg(run_dir.state());
        command.args(["--ttl", &format!("{}ms", ttl.as_millis())]);
        command.args(listen.iter().flat_map(|address| ["--listen".into(), address.to_string()]));
        if listen.is_some() {
            command.arg("--share-buckets");
        }
        if sync {
            command.arg("--sync");
        }
        // Should this process be killed, it leaves when the workers have.
        command.args(["--idle", "30s"]);
        command.env("NO_COLOR", "1").env("LOCKKEEPER_LOG", "info").env("RUST_BACKTRACE", "0");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut own = Own(command.spawn()?);
        let printed = BufReader::new(own.0.stderr.take().expect("it is piped"));
        let mut log = OpenOptions::new().create(true).append(true).open(run_dir.log())?;
        let (sender, serving) = mpsc::channel();
        let (pid, served_at) = (own.0.id(), Arc::<AtomicU64>::default());
        let at = Arc::clone(&served_at);
        thread::spawn(move || {
            for line in printed.lines().map_while(Result::ok) {
                let _ = writeln!(log, "{pid} {} {line}", crate::now());
                if line.contains("serving") {
                    at.store(crate::now(), Ordering::Relaxed);
                    let _ = sender.send(());
                }
            }
        });
        Ok(Self { own, serving, served: false, served_at })
    }

    /// When it began to serve, if it has.
    pub(crate) fn served_at(&self) -> Option<Nanos> {
        Some(self.served_at.load(Ordering::Relaxed)).filter(|at| *at > 0)
    }

    /// Waits until it serves. `false` if it has ended instead, or takes too long.
    pub fn serves(&mut self, patience: Duration) -> bool {
        if !self.served {
            self.served = self.serving.recv_timeout(patience).is_ok();
        }
        self.served
    }

    /// Leaves it no descriptor beyond those it has; or as many as it wants.
    pub(crate) fn limit_descriptors(&self, limited: bool) -> io::Result<()> {
        machine::limit_descriptors(self.own.pid(), limited)
    }

    /// Whether it has ended of its own accord, and how.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.own.0.try_wait()
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// If the system does not allow it.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        self.own.signal(signal)
    }

    /// Kills it.
    ///
    /// # Errors
    ///
    /// If the system does not allow it.
    pub fn kill(mut self) -> io::Result<()> {
        self.own.0.kill()?;
        self.own.0.wait().map(drop)
    }

    /// Waits for it to end. `None` if it takes too long.
    ///
    /// # Errors
    ///
    /// If the system does not allow it.
    pub fn wait(mut self, patience: Duration) -> io::Result<Option<ExitStatus>> {
        // What it prints ends with it.
        loop {
            match self.serving.recv_timeout(patience) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return self.own.0.wait().map(Some),
                Err(RecvTimeoutError::Timeout) => return Ok(None),
            }
        }
    }
}

/// How a worker uses the daemon.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trade<'a> {
    /// With this workspace's client.
    Library,
    /// With `run` of this program; and whether each holds its lock for long.
    Run(&'a Path, bool),
    /// With the Python client.
    Python(Beginning),
    /// With the npm package in this directory.
    Script(&'a Path),
}

/// How a worker in Python begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beginning {
    Plain,
    /// The process that connects forks and exits: its child continues.
    Forks,
    /// The main thread connects and exits: another continues.
    Threads,
}

const PYTHON_WORKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/worker.py");
const SCRIPT_WORKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/worker.mjs");
const PYTHON_CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/python");

/// A worker.
pub struct Worker {
    own: Own,
    /// The process that works: another one than `own` if it is in a separate PID namespace.
    pid: Pid,
    /// Whether it is a child of that, and the two are a process group.
    forks: bool,
    /// The number of its history.
    pub(crate) process: usize,
    orders: Option<ChildStdin>,
    /// What it says: a message, and the end.
    said: Receiver<()>,
}

impl Worker {
    /// Starts it.
    pub(crate) fn start(
        program: &Path,
        run_dir: &RunDir,
        url: &str,
        namespace: bool,
        trade: Trade<'_>,
        orders: Orders,
    ) -> io::Result<Self> {
        let Orders { process, seed, hands, stubborn } = orders;
        let mut command = match (trade, namespace) {
            (Trade::Python(_), _) => Command::new("python3"),
            (Trade::Script(package), _) => {
                // Whatever the machine has may be without WebSocket.
                let own = package.join("../../node_modules/node24/bin/node");
                Command::new(if own.exists() { own } else { "node".into() })
            }
            (_, true) => machine::in_namespace(program),
            (_, false) => Command::new(program),
        };
        let common = [format!("--process={process}"), format!("--seed={seed}"), format!("--url={url}")];
        match trade {
            Trade::Library => {
                command.arg("worker").arg("--dir").arg(run_dir.dir()).args(common);
                command.arg(format!("--hands={hands}"));
                if stubborn {
                    command.arg("--stubborn");
                }
            }
            Trade::Run(daemon, long) => {
                command
                    .arg("runner")
                    .arg("--dir")
                    .arg(run_dir.dir())
                    .args(common)
                    .arg("--program")
                    .arg(daemon);
                command.args(long.then_some("--long"));
                if stubborn {
                    command.arg("--stubborn");
                }
            }
            Trade::Python(beginning) => {
                // No compiled copy beside the source.
                command.args(["-B", PYTHON_WORKER, PYTHON_CLIENT]).arg(run_dir.dir()).arg(run_dir.socket());
                command.args([process.to_string(), seed.to_string()]);
                command.args(stubborn.then_some("stubborn"));
                match beginning {
                    Beginning::Plain => {}
                    // Its processes are signalled together.
                    Beginning::Forks => drop(command.arg("forks").process_group(0)),
                    Beginning::Threads => drop(command.arg("threads")),
                }
            }
            Trade::Script(package) => {
                command.arg(SCRIPT_WORKER).arg(package).arg(run_dir.dir()).arg(url);
                command.args([process.to_string(), seed.to_string()]);
                command.args(stubborn.then_some("stubborn"));
            }
        }
        let namespace = namespace && matches!(trade, Trade::Library | Trade::Run(..));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut own = Own(command.spawn()?);
        let orders = own.0.stdin.take();
        let printed = BufReader::new(own.0.stdout.take().expect("it is piped"));
        let (sender, said) = mpsc::channel();
        thread::spawn(move || printed.lines().map_while(Result::ok).try_for_each(|_| sender.send(())));
        let pid = if namespace { only_child(own.pid())? } else { own.pid() };
        let forks = matches!(trade, Trade::Python(Beginning::Forks));
        Ok(Self { own, pid, forks, process, orders, said })
    }

    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let signalled =
            if self.forks { kill_process_group(self.pid, signal) } else { kill_process(self.pid, signal) };
        signalled.map_err(Into::into)
    }

    /// Its processes, just now.
    pub(crate) fn pids(&self) -> io::Result<Vec<Pid>> {
        let children = if self.forks { children(self.pid)? } else { Vec::new() };
        Ok(children.into_iter().chain([self.pid]).collect())
    }

    /// Kills it.
    pub(crate) fn kill(mut self) -> io::Result<()> {
        self.signal(Signal::KILL)?;
        self.own.0.wait().map(drop)
    }

    /// Whether it has ended of its own accord, and how.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.own.0.try_wait()
    }

    /// Kills the `run` that a runner has just now, or its guardian, or both.
    pub(crate) fn maim(&self, guardian: bool, both: bool) -> io::Result<()> {
        let run = children(self.pid)?.into_iter().next();
        let Some(run) = run else { return Ok(()) };
        let is_guardian = |pid: &Pid| {
            let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
            line.ends_with(b"\0guard\0")
        };
        let found = children(run).unwrap_or_default().into_iter().find(is_guardian);
        let victim = found.filter(|_| guardian && !both).unwrap_or(run);
        for victim in [Some(victim), found.filter(|_| both)].into_iter().flatten() {
            // It may have ended meanwhile.
            let _ = kill_process(victim, Signal::KILL);
        }
        Ok(())
    }

    /// Cuts its connections, as if neither side had wanted that. The worker need not run for it.
    /// `false` if there was none, or none to be found: the system does not show the descriptors of a
    /// process whose main thread has exited.
    pub(crate) fn cut(&self) -> io::Result<bool> {
        let mut cut = false;
        for pid in self.pids()? {
            let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            let Ok(descriptors) = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())) else {
                continue;
            };
            for entry in descriptors {
                // It may have been closed in between.
                let Ok(path) = entry.map(|entry| entry.path()) else { continue };
                let Ok(target) = fs::read_link(&path) else { continue };
                let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
                if let Some(number) = number.filter(|_| target.to_string_lossy().starts_with("socket:"))
                    && let Ok(socket) = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty())
                {
                    cut |= UnixStream::from(socket).shutdown(Shutdown::Both).is_ok();
                }
            }
        }
        Ok(cut)
    }

    /// Tells it to end its loop and ask for every name once more.
    pub(crate) fn settle(&mut self) -> io::Result<()> {
        self.orders.as_mut().expect("it is told once").write_all(b"settle\n")
    }

    /// Waits until it has. `false` if it takes too long.
    pub(crate) fn settled(&self, patience: Duration) -> bool {
        self.said.recv_timeout(patience).is_ok()
    }

    /// Tells it to end, and waits until it has.
    pub(crate) fn end(mut self) -> io::Result<ExitStatus> {
        self.orders = None;
        self.own.0.wait()
    }
}

/// The one process that a process has started, as soon as it has.
fn only_child(parent: Pid) -> io::Result<Pid> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match children(parent)?.into_iter().next() {
            Some(child) => return Ok(child),
            None if Instant::now() > until => return Err(io::ErrorKind::TimedOut.into()),
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The processes that the main thread of a process has started.
fn children(parent: Pid) -> io::Result<Vec<Pid>> {
    let parent = parent.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    Ok(children.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
}

/// The daemon's program: what `LOCKKEEPER_BIN` names, or else built from this workspace.
///
/// # Errors
///
/// If it cannot be built.
pub fn daemon_program() -> io::Result<PathBuf> {
    match env::var_os("LOCKKEEPER_BIN") {
        Some(path) => Ok(path.into()),
        None => build(&["--package", "lockkeeper-cli", "--bin", "lockkeeper"], "lockkeeper"),
    }
}

/// A daemon that can be configured to make a mistake.
pub(crate) fn mutant_program() -> io::Result<PathBuf> {
    build(&["--package", "lockkeeper-faults", "--example", "mutant"], "examples/mutant")
}

fn build(target: &[&str], path: &str) -> io::Result<PathBuf> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet"]).args(target);
    cargo.arg("--manifest-path").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    // `ring` is compiled anew whenever one of these differs, and so is all that needs it.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text == "CARGO_MANIFEST_DIR" || text.starts_with("CARGO_PKG_") {
            cargo.env_remove(&name);
        }
    }
    if !cargo.status()?.success() {
        return Err(io::Error::other("the daemon cannot be built"));
    }
    // A test is in `deps`, beside which the programs are.
    let here = env::current_exe()?;
    let beside = here.ancestors().skip(1).map(|dir| dir.join(path)).find(|path| path.is_file());
    beside.ok_or_else(|| io::Error::other("the daemon was built, but is not beside this program"))
}
