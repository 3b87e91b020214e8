//! Daemons that share a cluster of etcd.

use crate::{Folder, NetworkHost, Process, free_ports};
use rustix::process::Signal;
use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// How long a daemon may take to serve.
const START: Duration = Duration::from_secs(60);

/// How daemons are set up.
pub struct Setup {
    /// The program.
    pub program: PathBuf,
    /// The store.
    pub store: String,
    /// More arguments for each.
    pub more: Vec<String>,
}

/// Daemons of a fleet.
pub struct Daemons {
    setup: Setup,
    daemons: Vec<Daemon>,
    folder: Folder,
}

struct Daemon {
    place: NetworkHost,
    port: u16,
    process: Option<Process>,
}

impl Daemons {
    /// Starts so many, and waits until each serves.
    ///
    /// # Errors
    ///
    /// If one does not start.
    pub fn start(count: usize, setup: Setup) -> io::Result<Self> {
        Self::start_in(vec![NetworkHost::loopback(); count], setup)
    }

    /// Starts one in each place, and waits until each serves.
    ///
    /// # Errors
    ///
    /// If one does not start.
    pub fn start_in(places: Vec<NetworkHost>, setup: Setup) -> io::Result<Self> {
        let count = places.len();
        let folder = Folder::new("fleet")?;
        let daemons = places.into_iter().zip(free_ports(count)?);
        let daemons = daemons.map(|(place, port)| Daemon { place, port, process: None }).collect();
        let mut fleet = Self { setup, daemons, folder };
        for at in 0..count {
            fleet.run(at)?;
        }
        for at in 0..count {
            fleet.wait(at)?;
        }
        Ok(fleet)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.daemons.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.daemons.is_empty()
    }

    /// The WebSocket of a daemon.
    pub fn url(&self, at: usize) -> String {
        format!("ws://{}", self.address(at))
    }

    fn address(&self, at: usize) -> String {
        format!("{}:{}", self.daemons[at].place.address, self.daemons[at].port)
    }

    /// The WebSockets of all, that one first.
    pub fn urls(&self, first: usize) -> String {
        let count = self.daemons.len();
        let urls: Vec<_> = (first..first + count).map(|at| self.url(at % count)).collect();
        urls.join(",")
    }

    /// The folder of a daemon.
    fn dir(&self, at: usize) -> PathBuf {
        self.folder.path().join(format!("d{at}"))
    }

    /// The socket of a daemon.
    pub fn socket(&self, at: usize) -> PathBuf {
        self.dir(at).join("daemon.sock")
    }

    /// What a daemon has printed.
    pub fn log(&self, at: usize) -> String {
        fs::read_to_string(self.log_path(at)).unwrap_or_default()
    }

    fn log_path(&self, at: usize) -> PathBuf {
        self.folder.path().join(format!("d{at}.log"))
    }

    /// Starts a daemon, or starts it again.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn run(&mut self, at: usize) -> io::Result<()> {
        let (dir, address) = (self.dir(at), self.address(at));
        let path = |name: &str| dir.join(name).into_os_string();
        let mut words: Vec<OsString> = self.daemons[at].place.enter.clone();
        words.extend([self.setup.program.clone().into(), "serve".into()]);
        words.extend(["--socket".into(), path("daemon.sock"), "--state-dir".into(), path("state")]);
        for (name, value) in [
            ("listen", address.clone()),
            ("advertise", format!("ws://{address}")),
            ("store", self.setup.store.clone()),
        ] {
            words.extend([format!("--{name}").into(), value.into()]);
        }
        words.extend(self.setup.more.iter().map(Into::into));
        // Only what is new tells whether it serves.
        let _ = fs::remove_file(self.log_path(at));
        self.daemons[at].process = Some(Process::start(words, &self.log_path(at))?);
        Ok(())
    }

    /// Has daemons that are started from now on have other arguments.
    pub fn set_more(&mut self, more: &[&str]) {
        self.setup.more = more.iter().map(ToString::to_string).collect();
    }

    /// Has a daemon that is started again remember nothing.
    ///
    /// # Errors
    ///
    /// If its state directory cannot be removed.
    pub fn forget(&self, at: usize) -> io::Result<()> {
        fs::remove_dir_all(self.dir(at).join("state"))
    }

    /// Waits until a daemon serves.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn wait(&mut self, at: usize) -> io::Result<()> {
        let begun = Instant::now();
        while !self.log(at).contains("listening") {
            let alive = self.daemons[at].process.as_mut().is_some_and(Process::is_alive);
            if !alive || begun.elapsed() > START {
                return Err(io::Error::other(format!("the daemon does not start: {}", self.log(at))));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The daemon that leads, of those that were not ended here: the one that began to last, as
    /// their logs say.
    pub fn leader(&self) -> Option<usize> {
        let began = |at: &usize| {
            let log = self.log(*at);
            let led = log.lines().rfind(|line| line.contains("leading position"))?;
            let ended = log.lines().rfind(|line| line.contains("another daemon leads"));
            // Each line begins with the time.
            let led = led.to_owned();
            (ended.is_none_or(|ended| ended < led.as_str())).then_some(led)
        };
        let running = (0..self.len()).filter(|&at| self.daemons[at].process.is_some());
        running.filter_map(|at| Some((began(&at)?, at))).max().map(|(_, at)| at)
    }

    /// The daemon that leads, once one does.
    ///
    /// # Panics
    ///
    /// If none does for a minute.
    pub fn wait_for_leader(&self) -> usize {
        let begun = Instant::now();
        loop {
            if let Some(leader) = self.leader() {
                return leader;
            }
            assert!(begun.elapsed() < START, "no daemon leads: {}", self.log(0));
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends a daemon where it stands.
    pub fn kill(&mut self, at: usize) {
        self.daemons[at].process = None;
    }

    /// Has a daemon stop gracefully.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub fn stop(&mut self, at: usize) {
        if let Err(why) = self.try_stop(at) {
            panic!("{why}");
        }
    }

    /// The same. If it does not do so, in time and with success, it is killed.
    ///
    /// # Errors
    ///
    /// What became of it.
    pub fn try_stop(&mut self, at: usize) -> Result<(), String> {
        let Some(mut process) = self.daemons[at].process.take() else { return Ok(()) };
        process.signal(Signal::TERM);
        match process.ended(START) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("daemon {at} ended with {status}: {}", self.log(at))),
            None => Err(format!("daemon {at} does not stop: {}", self.log(at))),
        }
    }

    /// How a daemon has ended by itself, if it has.
    pub fn ended(&mut self, at: usize) -> Option<String> {
        let status = self.daemons[at].process.as_mut()?.ended(Duration::ZERO)?;
        Some(format!("daemon {at} ended by itself with {status}: {}", self.log(at)))
    }

    /// Sends a signal to a daemon.
    pub fn signal(&self, at: usize, signal: Signal) {
        if let Some(process) = &self.daemons[at].process {
            process.signal(signal);
        }
    }

    /// A folder for files of the caller's.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
