//! A daemon in a process of its own, with a directory of its own. The process is this test program,
//! started again.
//!
//! In `protocol_fleet` it is one of three that share a log, and not the one that leads. All three
//! are started, stopped and killed together.

use crate::{
    client::{Client, SILENCE},
    temp::Temp,
};
use lockkeeper_core::Limits;
use lockkeeper_server::{Bytes, Config, GoingAway, HandshakeLimits, Listen, Store, serve};
use lockkeeper_testing::Cluster;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};
use serde::{Deserialize, Serialize};
use std::{
    env,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    process::{self, Child, Command, Stdio},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
    task::LocalSet,
};

/// The configuration of a daemon, as passed to its process.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) socket: PathBuf,
    pub(crate) state_dir: PathBuf,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    pub(crate) keys: Option<PathBuf>,
    pub(crate) audience: Option<String>,
    pub(crate) origins: Vec<String>,
    pub(crate) bucket_per_origin: bool,
    pub(crate) going_away: GoingAway,
    pub(crate) examples: bool,
    pub(crate) ttl: Duration,
    pub(crate) ttl_bounds: (Duration, Duration),
    pub(crate) sync: bool,
    #[serde(with = "LimitsOf")]
    pub(crate) limits: Limits,
    /// The most bytes of a client, of a bucket, and of all.
    pub(crate) bytes: (usize, usize, usize),
    /// What a connection may take before its Hello: bytes, time, and how many.
    pub(crate) handshake: (usize, Duration, usize),
    /// The most descriptors that it may have.
    pub(crate) files: Option<u64>,
    /// Where the log is that it shares, and the URL at which the others reach it.
    pub(crate) store: Option<(String, String)>,
}

impl Setup {
    pub(crate) fn config(self, listen: Option<Listen>) -> Config {
        let (session, bucket, all) = self.bytes;
        let (bytes, timeout, connections) = self.handshake;
        Config {
            socket: self.socket,
            given: None,
            listen,
            state_dir: self.state_dir,
            sync: self.sync,
            ttl: self.ttl,
            allow: Vec::new(),
            ttl_bounds: self.ttl_bounds,
            idle: None,
            limits: self.limits,
            metrics: None,
            store: self.store.map(|(etcd, advertise)| Store {
                etcd: etcd.parse().expect("it is a store"),
                advertise,
                takeover: Duration::from_millis(500),
                own: false,
                accept_restored: false,
            }),
            bytes: Bytes { session, bucket, all },
            handshake: HandshakeLimits { bytes, timeout, connections },
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Limits")]
struct LimitsOf {
    name_bytes: usize,
    names_per_scope: u16,
    requests_per_client: u32,
    requests: u32,
    clients: u32,
}

pub(crate) struct Daemon {
    dir: Temp,
    pub(crate) setup: Setup,
    /// Opened here once, so that it stays the same across restarts of the daemon, and no other
    /// process takes it in between.
    port: Option<TcpListener>,
    running: Option<Child>,
    /// Those with which it shares a log: the first one leads.
    others: Vec<Self>,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub(crate) fn start_with(change: impl FnOnce(&mut Setup)) -> Self {
        let mut daemon = Self::prepare(Temp::new());
        change(&mut daemon.setup);
        daemon.run();
        daemon
    }

    /// Starts it with a port on the loopback, too.
    pub(crate) fn on_network() -> Self {
        Self::on_network_with(|_| {})
    }

    pub(crate) fn on_network_with(change: impl FnOnce(&mut Setup)) -> Self {
        let mut daemon = Self::prepare(Temp::new());
        daemon.open_port();
        change(&mut daemon.setup);
        daemon.run();
        daemon
    }

    /// A daemon that is yet to be started.
    pub(crate) fn prepare(dir: Temp) -> Self {
        let setup = Setup {
            socket: dir.join("daemon.sock"),
            state_dir: dir.join("state"),
            address: None,
            tls: None,
            keys: None,
            audience: None,
            origins: Vec::new(),
            bucket_per_origin: false,
            going_away: GoingAway::default(),
            examples: false,
            // Longer than a test: no session expires, unless a test wants that.
            ttl: Duration::from_secs(600),
            ttl_bounds: (Duration::from_millis(1), Duration::from_secs(3600)),
            sync: false,
            limits: Limits::default(),
            bytes: (256 << 20, 1 << 30, 2 << 30),
            handshake: (8 << 10, SILENCE, 1_000),
            files: None,
            store: None,
        };
        let mut daemon = Self { dir, setup, port: None, running: None, others: Vec::new() };
        if in_a_fleet() {
            daemon.open_port();
            daemon.others = vec![Self::beside(&daemon), Self::beside(&daemon)];
            daemon.setup.store = Some((new_store(), String::new()));
        }
        daemon
    }

    /// Another one that is set up as this one is.
    fn beside(&self) -> Self {
        let dir = Temp::new();
        let mut other = Self {
            setup: Setup {
                socket: dir.join("daemon.sock"),
                state_dir: dir.join("state"),
                ..self.setup.clone()
            },
            dir,
            port: None,
            running: None,
            others: Vec::new(),
        };
        other.open_port();
        other
    }

    /// Has the others the same setup, but for what is their own.
    fn set_up_others(&mut self) {
        let scheme = if self.setup.tls.is_some() { "wss://localhost" } else { "ws://127.0.0.1" };
        let advertise = |setup: &mut Setup| {
            let port = setup.address.expect("it is on the network").port();
            if let Some((_, advertise)) = &mut setup.store {
                *advertise = format!("{scheme}:{port}");
            }
        };
        for other in &mut self.others {
            let Setup { socket, state_dir, address, .. } = other.setup.clone();
            other.setup = Setup { socket, state_dir, address, files: None, ..self.setup.clone() };
            advertise(&mut other.setup);
        }
        advertise(&mut self.setup);
    }

    /// The one that leads.
    pub(crate) fn leader(&self) -> &Self {
        self.others.first().unwrap_or(self)
    }

    pub(crate) fn open_port(&mut self) {
        if self.port.is_none() {
            self.open_port_at("127.0.0.1:0");
        }
    }

    pub(crate) fn open_port_at(&mut self, address: &str) {
        let port = TcpListener::bind(address).expect("a port is free");
        self.setup.address = Some(port.local_addr().expect("it has an address"));
        self.port = Some(port);
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.setup.address.expect("it is on the network")
    }

    /// A file in its directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Starts it, on what an earlier one has left, and waits until it can be connected to.
    pub(crate) fn run(&mut self) {
        if let Err(why) = self.try_run() {
            panic!("it does not start: {why}");
        }
    }

    /// If it does not start: why.
    pub(crate) fn try_run(&mut self) -> Result<(), String> {
        assert!(self.running.is_none(), "it runs already");
        if !self.others.is_empty() {
            self.set_up_others();
            // It leads before there are others.
            self.others[0].try_run()?;
            self.others[0].wait_until_it_serves();
            self.others[1].try_run()?;
        }
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["--exact", "daemon::process", "--include-ignored", "--nocapture", "--test-threads=1"]);
        command.env(SETUP, serde_json::to_string(&self.setup).expect("it can be written"));
        if let Some((certificate, _)) = &self.setup.tls {
            command.env("LOCKKEEPER_CA", certificate);
        }
        // Its descriptors are those of the port, if it has one, and a pipe.
        command.stdin(match &self.port {
            Some(port) => OwnedFd::from(port.try_clone().expect("it can be duplicated")).into(),
            None => Stdio::null(),
        });
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a process");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let answer = lines.by_ref().find_map(|line| {
            let line = line.expect("text");
            match line.strip_prefix("FAILED ") {
                Some(why) => Some(Err(why.to_owned())),
                None => (line == "READY").then_some(Ok(())),
            }
        });
        match answer {
            Some(Ok(())) => {
                self.running = Some(child);
                if !self.others.is_empty() {
                    self.wait_until_it_serves();
                }
                Ok(())
            }
            other => {
                let status = child.wait().expect("it has ended");
                assert!(!status.success(), "a daemon that does not start fails");
                Err(other.map_or_else(|| status.to_string(), |answer| answer.err().unwrap_or_default()))
            }
        }
    }

    /// Waits until clients are served, so that a daemon leads. A separate bucket leaves no trace in
    /// others.
    fn wait_until_it_serves(&self) {
        let mut client = Client::mute(self).in_bucket("waits until it serves").with_long_lease();
        client.open_session(None).expect("a welcome");
        client.bye();
    }

    /// Stops it gracefully, with SIGTERM.
    pub(crate) fn stop(&mut self) {
        self.others.iter_mut().rev().for_each(Self::stop);
        let mut child = self.running.take().expect("it runs");
        send_signal(child.id(), Signal::TERM);
        assert!(child.wait().expect("it ends").success(), "it stops gracefully");
    }

    /// Waits until it has ended by itself. Whether it did so gracefully.
    pub(crate) fn ended(&mut self) -> bool {
        self.running.take().expect("it runs").wait().expect("it ends").success()
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.others.iter_mut().for_each(Self::kill);
        let Some(mut child) = self.running.take() else { return };
        // It may have ended by itself, in a test that has failed already.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Kills it, and starts the next one.
    pub(crate) fn replace_killed(&mut self) {
        self.kill();
        self.run();
    }

    /// Stops it gracefully, and starts the next one.
    pub(crate) fn replace_stopped(&mut self) {
        self.stop();
        self.run();
    }

    /// Has it read certificates and keys again.
    pub(crate) fn reload(&self) {
        send_signal(self.pid(), Signal::HUP);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.as_ref().expect("it runs").id()
    }

    pub(crate) fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.setup.socket).expect("it listens")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn send_signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, signal).expect("it is a process of ours");
}

/// Whether this is the suite's second compilation.
pub(crate) fn in_a_fleet() -> bool {
    env!("CARGO_CRATE_NAME").ends_with("_fleet")
}

/// An unused log. The tests about locks and sessions have it in an etcd of three members, the
/// others in one of one member, since CI has little time. `LOCKKEEPER_TEST_MEMBERS` sets the number
/// for all.
fn new_store() -> String {
    static CLUSTERS: [OnceLock<Cluster>; 2] = [const { OnceLock::new() }; 2];
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let test = thread::current().name().unwrap_or_default().to_owned();
    let three = match env::var("LOCKKEEPER_TEST_MEMBERS").as_deref() {
        Ok("1") => false,
        Ok("3") => true,
        Ok(other) => panic!("LOCKKEEPER_TEST_MEMBERS is 1 or 3, not {other}"),
        Err(_) => {
            ["leases::", "locks::", "resume::", "subscribe::"].iter().any(|module| test.starts_with(module))
        }
    };
    let start = || Cluster::start(if three { 3 } else { 1 }).expect("etcd is installed");
    let cluster = CLUSTERS[usize::from(three)].get_or_init(start);
    cluster.url(&COUNT.fetch_add(1, Ordering::Relaxed).to_string())
}

const SETUP: &str = "LOCKKEEPER_TEST_DAEMON";

/// Not a test: the process of a daemon.
#[test]
#[ignore = "started by other tests"]
fn process() {
    let Ok(setup) = env::var(SETUP) else { return };
    die_with_parent();
    let setup: Setup = serde_json::from_str(&setup).expect("it was written by a test");
    if let Some(files) = setup.files {
        let limit = Rlimit { current: Some(files), maximum: Some(files) };
        setrlimit(Resource::Nofile, limit).expect("it can be lowered");
    }
    let listen = setup.address.map(|address| {
        let port = std::io::stdin().as_fd().try_clone_to_owned().expect("it was given a port");
        let Setup { tls, keys, audience, origins, bucket_per_origin, going_away, examples, .. } =
            setup.clone();
        Listen {
            given: Some(Arc::new(port.into())),
            tls,
            keys,
            audience,
            insecure: address.ip().is_unspecified(),
            // Tests have clients of both kinds, and compare what they see.
            share_buckets: true,
            origins,
            bucket_per_origin,
            going_away,
            examples,
            ..Listen::at(address)
        }
    });
    let reload = listen.as_ref().map(|listen| Arc::clone(&listen.reload)).unwrap_or_default();
    let config = setup.config(listen);
    let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let served = LocalSet::new().block_on(&runtime, async {
        let mut term = signal(SignalKind::terminate()).expect("a signal");
        let mut hup = signal(SignalKind::hangup()).expect("a signal");
        let stop = async {
            say("READY");
            loop {
                tokio::select! {
                    _ = term.recv() => break,
                    _ = hup.recv() => reload.notify_one(),
                }
            }
        };
        serve(config, stop).await
    });
    match served {
        Ok(()) => process::exit(0),
        Err(error) => {
            say(&format!("FAILED {error}"));
            process::exit(1)
        }
    }
}

/// A test that is killed leaves nothing behind.
pub(crate) fn die_with_parent() {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).expect("any process can");
}

/// A line for the test that has started this process. The test harness prints there, too.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The reader may have exited.
    let _ = writeln!(out, "\n{line}");
    let _ = out.flush();
}
