//! Connects to a Unix socket, and starts this user's server there if none listens.
//!
//! The server's standard error is a pipe, which it closes when it serves. If it cannot start, it
//! writes the reason there, and its starter reports it at once.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{
    env,
    io::{self, PipeReader, Read},
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long a server may take to start.
const START: Duration = Duration::from_secs(10);

/// How long another server, which was quicker, may take before one is started again: it may have
/// failed.
const QUICKER: Duration = Duration::from_millis(500);

/// The longest pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);

/// As much as is passed on of what a server says.
const WORDS: usize = 4096;

/// Connects to the server of the user's own folder, and starts `program` as that if none listens.
pub(crate) fn connect_or_launch(socket: &Path, program: Option<&Path>) -> io::Result<UnixStream> {
    let dir = socket.parent().unwrap_or(Path::new("/"));
    lockkeeper_paths::check(dir)?;
    let absent = match connect(socket)? {
        Ok(stream) => return Ok(stream),
        Err(absent) => absent,
    };
    let Some(program) = program else { return Err(absent) };
    let deadline = Instant::now() + START;
    let mut socket = socket.to_path_buf();
    while Instant::now() < deadline {
        lockkeeper_paths::create(socket.parent().unwrap_or(Path::new("/")))
            .map_err(|error| io::Error::new(error.kind(), format!("the daemon cannot start: {error}")))?;
        if let Some(stream) = launch(&socket, program)?.wait(&socket, deadline)? {
            return Ok(stream);
        }
        // It left because another was quicker, maybe in the other folder of the two that a user's
        // daemon can have.
        socket = lockkeeper_paths::socket(&lockkeeper_paths::own());
    }
    let why = format!(
        "the daemon did not start within {} s: run `{} serve` to see why",
        START.as_secs(),
        program.display()
    );
    Err(io::Error::new(io::ErrorKind::TimedOut, why))
}

/// Connects. The inner error means that no server listens.
fn connect(socket: &Path) -> io::Result<Result<UnixStream, io::Error>> {
    match UnixStream::connect(socket) {
        Ok(stream) => Ok(Ok(stream)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            Ok(Err(error))
        }
        Err(error) => Err(error),
    }
}

/// A server that is starting.
struct Starting {
    /// Its standard error.
    words: PipeReader,
    said: Vec<u8>,
}

/// Starts a daemon that outlives this program. If several are started at once, one stays.
fn launch(socket: &Path, program: &Path) -> io::Result<Starting> {
    let (words, stderr) = io::pipe()?;
    let mut daemon = Command::new(program);
    daemon.arg("serve").arg("--background").arg("--socket").arg(socket);
    daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).current_dir("/");
    // It serves other processes, too, so this one's environment does not apply. A variable could
    // make it open a port, or report to the service manager as this process's service.
    daemon.env_clear().envs(env::vars_os().filter(|(name, _)| name == "LOCKKEEPER_LOG"));
    let started = daemon.spawn().map_err(|error| {
        let why = format!("the daemon cannot be started: {}: {error}", program.display());
        io::Error::new(error.kind(), why)
    });
    // This process's copy of the pipe must be closed, or it never ends.
    drop(daemon);
    // It leaves at once if another was quicker, and is to leave no zombie then.
    let mut child = started?;
    thread::Builder::new().name("lockkeeper-launch".into()).spawn(move || child.wait())?;
    Ok(Starting { words, said: Vec::new() })
}

impl Starting {
    /// Connects as soon as a server listens. None if this one left because another was quicker, and
    /// that does not listen either.
    fn wait(mut self, socket: &Path, deadline: Instant) -> io::Result<Option<UnixStream>> {
        let mut pause = Duration::from_millis(1);
        let (mut ended, mut until) = (false, deadline);
        loop {
            match ended {
                true => thread::sleep(pause),
                false if self.ends_within(pause)? => {
                    ended = true;
                    // It serves, has failed, or has left because another was quicker.
                    until = deadline.min(Instant::now() + QUICKER);
                }
                false => {}
            }
            if let Ok(stream) = connect(socket)? {
                return Ok(Some(stream));
            }
            if ended && !self.said.is_empty() {
                return Err(self.failure());
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            pause = (pause * 2).min(PAUSE);
        }
    }

    /// Whether the server closes its end of the pipe within that time. Keeps its output.
    fn ends_within(&mut self, time: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&self.words, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => return Ok(false),
            result => _ = result?,
        }
        let mut some = [0; 512];
        let count = self.words.read(&mut some)?;
        let room = WORDS.saturating_sub(self.said.len());
        self.said.extend_from_slice(&some[..count.min(room)]);
        Ok(count == 0)
    }

    fn failure(&self) -> io::Error {
        let said = String::from_utf8_lossy(&self.said);
        let said = said.trim();
        let why = said.strip_prefix("lockkeeper: ").unwrap_or(said);
        io::Error::other(format!("the daemon cannot start: {why}"))
    }
}
