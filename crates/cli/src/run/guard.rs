//! The guardian of a command whose lock has a lease.
//!
//! It is a process of its own, outside the command's job, and has the session. It renews the lease as long as the command
//! runs, whatever becomes of `run`; and where the lease cannot be renewed, it ends the command before another one can get
//! the lock: SIGTERM after half a ttl of silence, SIGKILL before three quarters. If the guardian itself is killed, `run`
//! ends the command. So whichever of the three is killed, no command works on without its lock.
//!
//! `run` acquires the lock and gives the session away to the guardian, which resumes it. They speak lines of text over a
//! socket, the guardian's standard input. Its standard output is the read end of a pipe that the command inherits: it
//! ends when the command, and all it has started, are gone.

use super::{
    News, RELEASE,
    child::{Child, Ended, start, system},
    hold_on,
};
use crate::{
    Done, Failure,
    acquire::{Held, next},
    args::Run,
    exit, session,
};
use lockkeeper_client::{Callbacks, Options, Outcome, Session, Transfer, Update};
use lockkeeper_core::Cause;
use rustix::process::Signal;
use std::{
    io::{self, BufRead, BufReader, Write, stdin},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Command, ExitCode, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

/// What the guardian says to `run`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// It has the session.
    Ready,
    /// The lock was stolen: by whom, if that is known.
    Stolen(String),
    /// The lease cannot be renewed. The guardian ends the command.
    Lost,
    /// The lock is released.
    Released,
    /// The guardian is gone.
    Gone,
}

impl Report {
    fn parse(line: &str) -> Self {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("ready", _) => Self::Ready,
            ("stolen", by) => Self::Stolen(by.into()),
            ("released", _) => Self::Released,
            _ => Self::Lost,
        }
    }
}

/// How long the guardian may take to resume the session.
const HAND_OVER: Duration = Duration::from_secs(10);

/// Runs the command under a guardian.
pub(super) fn run(
    args: &Run,
    held: &Held,
    sender: &Sender<News>,
    news: &Receiver<News>,
) -> Result<Ended, Failure> {
    let ttl = held.session.ttl().unwrap_or_default();
    let lost =
        || (exit::UNAVAILABLE, "the session was lost before the command was started: try again".into());
    let transfer = held.session.give_away().ok_or_else(lost)?;
    let (mut control, command_end) = hire(&transfer, args, sender).map_err(system)?;
    let deadline = Instant::now() + HAND_OVER;
    loop {
        match next(news, Some(deadline)) {
            Some(News::Guardian(Report::Ready)) => break,
            Some(News::Guardian(_)) | None => return Err(lost()),
            Some(_) => {}
        }
    }
    let child = start(Some(command_end), args, held, sender, Some(&control))?;
    // A guardian that has not ended the command was silent for less than half a ttl, and it is lost at three quarters.
    let ended = child.watch(args, news, Some(ttl / 5))?;
    hold_on(args, held, news);
    let _ = writeln!(control, "release");
    let deadline = Instant::now() + RELEASE;
    while !matches!(next(news, Some(deadline)), None | Some(News::Guardian(Report::Released | Report::Gone)))
    {
    }
    Ok(ended)
}

/// Starts a guardian. Returns what to say it on, and the descriptor that the command is to inherit.
fn hire(transfer: &Transfer, args: &Run, sender: &Sender<News>) -> io::Result<(UnixStream, OwnedFd)> {
    let (mut control, its_control) = UnixStream::pair()?;
    let (read, write) = io::pipe()?;
    let program = session::program().map_err(|(_, why)| io::Error::other(why))?;
    Command::new(program)
        .arg("guard")
        .stdin(Stdio::from(OwnedFd::from(its_control)))
        .stdout(Stdio::from(OwnedFd::from(read)))
        .stderr(Stdio::null())
        .spawn()?;
    writeln!(control, "{}", transfer.to_line())?;
    writeln!(control, "grace {}", args.grace.as_millis())?;
    let (reports, sender) = (BufReader::new(control.try_clone()?), sender.clone());
    let listen = move || {
        for line in reports.lines().map_while(Result::ok) {
            if sender.send(News::Guardian(Report::parse(&line))).is_err() {
                return;
            }
        }
        let _ = sender.send(News::Guardian(Report::Gone));
    };
    thread::Builder::new().name("lockkeeper-guardian".into()).spawn(listen)?;
    Ok((control, OwnedFd::from(write)))
}

/// What the guardian waits for.
enum Input {
    Line(String),
    /// `run` is gone.
    Alone,
    /// The command is gone, and all it has started.
    Over,
    Lock(Update),
}

/// `lockkeeper guard`, which only `run` starts.
pub(crate) fn guard() -> Done {
    // Out of the job of `run`: what ends that must not end this.
    let _ = rustix::process::setsid();
    let (sender, inputs) = mpsc::channel();
    let mut lines = BufReader::new(stdin()).lines();
    let wrong = || (exit::USAGE, "guard is for `lockkeeper run` to start".to_string());
    let transfer = lines.next().and_then(Result::ok).ok_or_else(wrong)?;
    let transfer = Transfer::from_line(&transfer).map_err(|_| wrong())?;
    let endpoint = session::endpoint()?;
    let updates = sender.clone();
    let listener = Box::new(move |update| _ = updates.send(Input::Lock(update)));
    let options = Options::new(session::bucket());
    let session =
        Session::adopt(&endpoint, options, Callbacks, &transfer, listener).map_err(session::failed)?;
    let said = sender.clone();
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let _ = said.send(Input::Line(line));
        }
        let _ = said.send(Input::Alone);
    });
    let mut life = std::fs::File::from(io::stdout().as_fd().try_clone_to_owned().map_err(system)?);
    thread::spawn(move || {
        let _ = io::copy(&mut life, &mut io::sink());
        let _ = sender.send(Input::Over);
    });
    let control = UnixStream::from(stdin().as_fd().try_clone_to_owned().map_err(system)?);
    let mut guardian = Guardian {
        session,
        control,
        child: None,
        grace: Duration::ZERO,
        alone: false,
        over: false,
        warned: false,
        kill_at: None,
    };
    guardian.report("ready");
    guardian.run(&inputs)
}

struct Guardian {
    session: Session,
    control: UnixStream,
    child: Option<Child>,
    grace: Duration,
    alone: bool,
    over: bool,
    /// SIGTERM was sent because the lease may expire.
    warned: bool,
    /// When a command whose lock was stolen is killed, if `run` cannot.
    kill_at: Option<Instant>,
}

/// The request of the lock, in a session that was given away.
const LOCK: u64 = 0;

impl Guardian {
    fn run(&mut self, inputs: &Receiver<Input>) -> Done {
        loop {
            match inputs.recv_timeout(self.check_lease()) {
                Ok(Input::Line(line)) => {
                    if line == "release" {
                        return self.release(inputs);
                    }
                    self.on_line(&line);
                }
                Ok(Input::Alone) => self.alone = true,
                Ok(Input::Over) => self.over = true,
                Ok(Input::Lock(Update::Over(Outcome::Broken { cause: Cause::Stolen, by }))) => {
                    let by = by.map(|by| format!(" by {}", crate::show::by(&by))).unwrap_or_default();
                    self.report(&format!("stolen {by}"));
                    if self.alone {
                        self.end(Signal::TERM);
                    }
                    self.kill_at = Instant::now().checked_add(self.grace);
                }
                Ok(Input::Lock(Update::Over(_))) => {
                    self.report("lost");
                    self.end(Signal::KILL);
                }
                Ok(Input::Lock(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(ExitCode::SUCCESS),
            }
            // `run` says when the command has ended; without it, the pipe does. `run` has an end of that until it is gone.
            if self.alone && self.over {
                return self.release(inputs);
            }
        }
    }

    fn on_line(&mut self, line: &str) {
        if let Some(millis) = line.strip_prefix("grace ") {
            self.grace = Duration::from_millis(millis.parse().unwrap_or(0));
        } else if let Some(child) = Child::parse(line) {
            self.child = Some(child);
            if self.warned {
                self.end(Signal::TERM);
            }
        }
    }

    /// Ends the command in time if the lease may expire. Returns how long it can wait for the next look.
    fn check_lease(&mut self) -> Duration {
        const LOOK: Duration = Duration::from_secs(1);
        if let Some(kill_at) = self.kill_at {
            let left = kill_at.saturating_duration_since(Instant::now());
            if left.is_zero() && self.alone {
                self.end(Signal::KILL);
                self.kill_at = None;
            }
            return left.clamp(Duration::from_millis(1), LOOK);
        }
        let (Some(ttl), Some(left)) = (self.session.ttl(), self.session.lease_left()) else { return LOOK };
        let (warn, kill) = (ttl / 4, ttl / 16);
        if left <= kill {
            self.end(Signal::KILL);
            return kill;
        }
        if left <= warn {
            if !std::mem::replace(&mut self.warned, true) {
                self.report("lost");
                self.end(Signal::TERM);
            }
            return (left - kill).min(LOOK);
        }
        (left - warn).min(LOOK)
    }

    fn release(&mut self, inputs: &Receiver<Input>) -> Done {
        self.session.release(LOCK);
        let deadline = Instant::now() + RELEASE;
        while let Ok(input) = inputs.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            if let Input::Lock(Update::Over(_)) = input {
                break;
            }
        }
        self.session.close();
        self.report("released");
        Ok(ExitCode::SUCCESS)
    }

    /// Sends a signal to the command and all it has started, if any of it is left.
    fn end(&self, signal: Signal) {
        if let Some(child) = self.child.as_ref().filter(|_| !self.over) {
            child.end(signal);
        }
    }

    fn report(&mut self, line: &str) {
        // Nobody may be there to read it.
        let _ = writeln!(self.control, "{line}");
    }
}
