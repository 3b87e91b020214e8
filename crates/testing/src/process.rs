//! A process that ends when its value is dropped, or with this process.

use rustix::process::{Pid, Signal, kill_process};
use std::{
    ffi::OsString,
    fs::File,
    io,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        OnceLock,
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// A process.
pub struct Process {
    child: Child,
}

type Job = (Vec<OsString>, File, Sender<io::Result<Child>>);

/// The kernel ends what is started here when the thread that started it ends: so one thread starts
/// all, and never ends.
fn starter() -> &'static Sender<Job> {
    static STARTER: OnceLock<Sender<Job>> = OnceLock::new();
    STARTER.get_or_init(|| {
        let (sender, jobs) = channel::<Job>();
        thread::spawn(move || {
            while let Ok((words, output, answer)) = jobs.recv() {
                let started = output.try_clone().and_then(|errors| {
                    // `setpriv` is in util-linux, which every Debian has.
                    let mut command = Command::new("setpriv");
                    command.args(["--pdeathsig", "KILL"]).args(&words);
                    command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn()
                });
                let _ = answer.send(started);
            }
        });
        sender
    })
}

impl Process {
    /// Starts a program. What it prints goes to a file.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(words: Vec<OsString>, output: &Path) -> io::Result<Self> {
        let (answer, answered) = channel();
        let output = File::options().create(true).append(true).open(output)?;
        starter().send((words, output, answer)).map_err(io::Error::other)?;
        let child = answered.recv().map_err(io::Error::other)??;
        Ok(Self { child })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it runs, or is stopped.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Ends it where it stands.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end, for so long.
    pub fn ended(&mut self, limit: Duration) -> Option<ExitStatus> {
        let begun = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if begun.elapsed() < limit => thread::sleep(Duration::from_millis(5)),
                _ => return None,
            }
        }
    }

    /// Waits for its end.
    pub fn wait(&mut self) {
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
