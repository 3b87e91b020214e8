//! The guardian of a command whose lock has a lease.
//!
//! It is a separate process outside the command's job, and has the session. It renews the lease as
//! long as the command runs, even if `run` exits. If the lease cannot be renewed, it ends the
//! command before the lock can be granted to another: SIGTERM after half a ttl of silence, SIGKILL
//! before three quarters. It tells `run` until when the lease is valid. If the guardian is killed
//! or stopped, `run` ends the command by then. So if any one of the three is killed or stopped, no
//! command works on without its lock.
//!
//! `run` acquires the lock and transfers the session to the guardian, which resumes it. They
//! exchange lines of text over a socket, the guardian's standard input. Its standard output is the
//! read end of a pipe that the command inherits: it reaches end of file when the command and its
//! descendants have exited. Its standard error is a pipe to the process that will become the
//! command. That process executes the command after the guardian has confirmed there that it knows
//! the process.

use super::{
    News, RELEASE,
    child::{Child, Ended, start, system},
    hold_on,
};
use crate::{
    Done, Failure,
    acquire::{Held, next},
    args::Run,
    exit, session, show,
};
use lockkeeper_client::{Callbacks, Options, Outcome, Session, Transfer, Update};
use lockkeeper_core::Cause;
use rustix::process::Signal;
use std::{
    io::{self, BufRead, BufReader, ErrorKind, PipeReader, Write, stderr, stdin},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Command, ExitCode, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

/// A report of the guardian to `run`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// It has the session.
    Ready,
    /// The lock was stolen, with a message for people.
    Stolen(String),
    /// The lease cannot be renewed, or the session was ended, with a message for people. The
    /// guardian ends the command.
    Lost(String),
    /// The guardian has exited, or is silent. How long the command has to end.
    Gone(Duration),
    /// Until when the lease is valid, and its length.
    Lease(Lease),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lease {
    /// By the clock of [`lockkeeper_client::now`].
    deadline: Duration,
    ttl: Duration,
}

impl Lease {
    pub(crate) fn of(session: &Session) -> Option<Self> {
        Some(Self { deadline: session.lease_deadline()?, ttl: session.ttl()? })
    }

    fn parse(words: &str) -> Option<Self> {
        let (deadline, ttl) = words.split_once(' ')?;
        let micros = |word: &str| word.parse().map(Duration::from_micros).ok();
        Some(Self { deadline: micros(deadline)?, ttl: micros(ttl)? })
    }

    /// How long it is before SIGTERM is to be sent.
    pub(crate) fn before_term(self) -> Duration {
        self.deadline.saturating_sub(self.ttl / 4).saturating_sub(lockkeeper_client::now())
    }

    /// How long it is before `run` takes the guardian for stopped.
    fn before_gone(self) -> Duration {
        self.deadline.saturating_sub(self.ttl / 8).saturating_sub(lockkeeper_client::now())
    }

    /// How long it is before SIGKILL is to be sent.
    fn before_kill(self) -> Duration {
        self.deadline.saturating_sub(self.ttl / 16).saturating_sub(lockkeeper_client::now())
    }
}

impl Report {
    fn parse(line: &str) -> Self {
        let lost = || Self::Lost(show::OUT_OF_REACH.into());
        match line.split_once(' ').unwrap_or((line, "")) {
            ("ready", _) => Self::Ready,
            ("stolen", why) => Self::Stolen(why.into()),
            ("lost", why) => Self::Lost(why.into()),
            ("lease", words) => Lease::parse(words).map_or_else(lost, Self::Lease),
            _ => lost(),
        }
    }
}

/// The subcommand with which `run` starts it; the client id follows.
pub(crate) const COMMAND: &str = "guard";

/// The byte that allows the command to be executed. It never occurs in text, because a panic of the
/// guardian is also written to its standard error.
pub(super) const ALLOWED: u8 = 6;

/// How long the guardian may take to resume the session.
const HAND_OVER: Duration = Duration::from_secs(10);

/// Runs the command under a guardian.
pub(super) fn run(
    args: &Run,
    held: &Held,
    sender: &Sender<News>,
    news: &Receiver<News>,
) -> Result<Ended, Failure> {
    let transfer = held.session.give_away().ok_or_else(|| not_started(news.try_iter()))?;
    let (mut guardian, command_end) = hire(&transfer, args, sender).map_err(system)?;
    let deadline = Instant::now() + HAND_OVER;
    loop {
        match next(news, Some(deadline)) {
            Some(News::Guardian(Report::Ready)) => break,
            None => return Err(not_started([])),
            Some(news) if matches!(news, News::Guardian(_)) || stolen(&news).is_some() => {
                return Err(not_started([news]));
            }
            Some(_) => {}
        }
    }
    // With `--close`, the pipe ends with this process instead, and the lock with it.
    let (inherited, _kept) = if args.close { (None, Some(command_end)) } else { (Some(command_end), None) };
    let ended = match start(inherited, args, held, sender, Some(&guardian)) {
        Ok(child) => {
            let ended = child.watch(args, news)?;
            hold_on(args, held, news);
            Ok(ended)
        }
        Err(failure) => Err(failure),
    };
    let _ = writeln!(guardian.control, "release");
    let deadline = Instant::now() + RELEASE;
    settle(ended, || next(news, Some(deadline)))
}

/// How a command that has ended came to its end, or why it was not started, once the guardian has
/// released the lock and ended. It reports a loss before it ends the command, but the report can be
/// read after the end.
fn settle(ended: Result<Ended, Failure>, mut next: impl FnMut() -> Option<News>) -> Result<Ended, Failure> {
    loop {
        match next() {
            Some(News::Guardian(Report::Lost(why))) => {
                return Err((exit::LOST, format!("{why}; the command was ended")));
            }
            None | Some(News::Guardian(Report::Gone(_))) => return ended,
            Some(_) => {}
        }
    }
}

/// Why no command was started: the events show whether the lock was stolen.
fn not_started(news: impl IntoIterator<Item = News>) -> Failure {
    match news.into_iter().find_map(|news| stolen(&news)) {
        Some(why) => (exit::LOST, format!("{why} before the command was started")),
        None => (exit::UNAVAILABLE, "the session was lost before the command was started: try again".into()),
    }
}

/// The message of a steal, if the event is one.
fn stolen(news: &News) -> Option<String> {
    match news {
        News::Lock(Update::Over(Outcome::Broken { cause: cause @ Cause::Stolen, by, forced })) => {
            Some(show::broken(*cause, by.as_deref(), *forced))
        }
        News::Guardian(Report::Stolen(why)) => Some(why.clone()),
        _ => None,
    }
}

/// The guardian or the watcher of a command, as `run` has it.
pub(super) struct Hired {
    /// The socket for messages to it.
    pub(super) control: UnixStream,
    /// Where it allows the command to be executed.
    pub(super) allowed: PipeReader,
}

/// Starts a guardian. Returns it, and the descriptor that the command is to inherit.
fn hire(transfer: &Transfer, args: &Run, sender: &Sender<News>) -> io::Result<(Hired, OwnedFd)> {
    let (mut control, its_control) = UnixStream::pair()?;
    let (read, write) = io::pipe()?;
    let (allowed, allows) = io::pipe()?;
    let program = session::program().map_err(|(_, why)| io::Error::other(why))?;
    let mut guardian = Command::new(program)
        .args([COMMAND, transfer.client_id()])
        .args(session::uses_machine().then_some("--machine"))
        .stdin(Stdio::from(OwnedFd::from(its_control)))
        .stdout(Stdio::from(OwnedFd::from(read)))
        .stderr(Stdio::from(OwnedFd::from(allows)))
        .spawn()?;
    writeln!(control, "{}", transfer.to_line())?;
    writeln!(control, "grace {}", args.grace.as_millis())?;
    if args.close {
        writeln!(control, "close")?;
    }
    let (reports, sender) = (control.try_clone()?, sender.clone());
    let listen = move || {
        let tell = |report| sender.send(News::Guardian(report)).is_ok();
        // The first process of a container often waits for none but its own.
        listen(reports, tell, || _ = guardian.wait());
    };
    thread::Builder::new().name("lockkeeper-guardian".into()).spawn(listen)?;
    Ok((Hired { control, allowed }, OwnedFd::from(write)))
}

/// Passes on the guardian's reports, and its end, after `wait`. A stopped guardian sends nothing: it
/// counts as exited soon after it should have ended the command.
fn listen(reports: UnixStream, mut tell: impl FnMut(Report) -> bool, wait: impl FnOnce()) {
    let mut lease: Option<Lease> = None;
    let mut reader = BufReader::new(&reports);
    let mut line = Vec::new();
    loop {
        // The clock of the timeout stands still while the machine is suspended.
        let patience = lease.map(|lease| lease.before_gone().clamp(Duration::from_millis(1), LOOK));
        let _ = reports.set_read_timeout(patience);
        match reader.read_until(b'\n', &mut line) {
            Ok(read) if read > 0 && line.ends_with(b"\n") => {
                match Report::parse(String::from_utf8_lossy(&line).trim_end()) {
                    Report::Lease(newer) => lease = Some(newer),
                    report => {
                        if !tell(report) {
                            return;
                        }
                    }
                }
                line.clear();
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let Some(lapsed) = lease.filter(|lease| lease.before_gone().is_zero()) else { continue };
                lease = None;
                if !tell(Report::Gone(lapsed.before_kill())) {
                    return;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => {
                wait();
                tell(Report::Gone(lease.map_or(Duration::ZERO, Lease::before_kill)));
                return;
            }
        }
    }
}

/// The longest pause between two looks at the clock.
const LOOK: Duration = Duration::from_secs(1);

/// An event for the guardian.
enum Input {
    Line(String),
    /// `run` has exited.
    Alone,
    /// The command and its descendants have exited.
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
    let options = Options::new(session::bucket()?);
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
        told: Lease::default(),
        kill_at: None,
        lost: None,
        refused: false,
        closes: false,
    };
    guardian.check_lease();
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
    /// What `run` knows of the lease.
    told: Lease,
    /// When a command whose lock was stolen is killed, if `run` cannot.
    kill_at: Option<Instant>,
    /// Why the lock is lost, once that is known.
    lost: Option<String>,
    /// The command was not allowed to be executed: the lock is lost, and the reason is still to be
    /// read.
    refused: bool,
    /// The lock ends with `run`, and not with the command.
    closes: bool,
}

/// The request of the lock, in a session that was given away.
pub(crate) const LOCK: u64 = 0;

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
                Ok(Input::Lock(Update::Over(outcome))) => self.on_end(outcome),
                Ok(Input::Lock(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(ExitCode::SUCCESS),
            }
            // `run` reports the end of the command; without `run`, the pipe shows it. `run` has an
            // end of the pipe open until it exits.
            if self.alone && self.is_over() {
                return self.release(inputs);
            }
        }
    }

    fn on_line(&mut self, line: &str) {
        if let Some(millis) = line.strip_prefix("grace ") {
            self.grace = Duration::from_millis(millis.parse().unwrap_or(0));
        } else if line == "close" {
            self.closes = true;
        } else if let Some(child) = Child::parse(line) {
            self.child = Some(child);
            let valid =
                !self.warned && Lease::of(&self.session).is_none_or(|lease| !lease.before_term().is_zero());
            if valid && self.session.is_held(LOCK) {
                let _ = stderr().write_all(&[ALLOWED]);
            } else if valid && self.lost.is_none() {
                self.refused = true;
            } else {
                let why = self.lost.clone().unwrap_or_else(|| show::OUT_OF_REACH.into());
                self.on_lost(&why, Signal::KILL);
            }
        }
    }

    /// The lock is lost: makes the message.
    fn on_end(&mut self, outcome: Outcome) {
        let (cause, why) = match outcome {
            Outcome::Broken { cause, by, forced } => (cause, show::broken(cause, by.as_deref(), forced)),
            _ => (Cause::Lost, show::OUT_OF_REACH.into()),
        };
        if cause == Cause::Stolen {
            self.on_stolen(&why);
        }
        if cause == Cause::Lost || self.refused {
            self.on_lost(&why, Signal::KILL);
        }
        self.lost = Some(why);
    }

    /// Ends the command in time if the lease may expire. Returns how long it can wait for the next
    /// look.
    fn check_lease(&mut self) -> Duration {
        if let Some(kill_at) = self.kill_at {
            let left = kill_at.saturating_duration_since(Instant::now());
            if left.is_zero() && self.alone {
                self.end(Signal::KILL);
                self.kill_at = None;
            }
            return left.clamp(Duration::from_millis(1), LOOK);
        }
        let Some(lease) = Lease::of(&self.session) else { return LOOK };
        let pause = (lease.ttl / 8).min(LOOK);
        if lease.before_kill().is_zero() {
            self.end(Signal::KILL);
            return pause;
        }
        if lease.before_term().is_zero() {
            if !std::mem::replace(&mut self.warned, true) {
                self.on_lost(show::OUT_OF_REACH, Signal::TERM);
            }
            return pause.min(lease.before_kill());
        }
        if std::mem::replace(&mut self.told, lease) != lease {
            self.report(&format!("lease {} {}", lease.deadline.as_micros(), lease.ttl.as_micros()));
        }
        pause.min(lease.before_term())
    }

    fn release(&mut self, inputs: &Receiver<Input>) -> Done {
        // Not if it is lost by now, which may be news after the machine was suspended.
        let held = self.session.release(LOCK);
        let deadline = Instant::now() + RELEASE;
        while (held || self.lost.is_none())
            && let Ok(input) = inputs.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            if let Input::Lock(Update::Over(outcome)) = input {
                if !held {
                    self.on_end(outcome);
                }
                break;
            }
        }
        self.session.close();
        Ok(ExitCode::SUCCESS)
    }

    /// The command has its grace. `run` ends it, if it is there.
    fn on_stolen(&mut self, why: &str) {
        self.report(&format!("stolen {why}"));
        if self.alone {
            self.end(Signal::TERM);
        }
        self.kill_at = Instant::now().checked_add(self.grace);
    }

    /// Ends the command, whose lock is lost.
    fn on_lost(&mut self, why: &str, signal: Signal) {
        self.report(&format!("lost {why}"));
        self.end(signal);
    }

    /// Whether the command has exited, and all processes that inherited its pipe. A command that
    /// has closed inherited descriptors, as `ssh` does, is searched for.
    fn is_over(&self) -> bool {
        self.over && (self.closes || !self.child.as_ref().is_some_and(Child::runs))
    }

    /// Sends a signal to the command and all it has started, if any of it is left.
    fn end(&self, signal: Signal) {
        if let Some(child) = self.child.as_ref().filter(|_| !self.is_over()) {
            child.end(signal);
        }
    }

    fn report(&mut self, line: &str) {
        // The reader may have exited.
        let _ = writeln!(self.control, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::{Ended, News, Report, not_started, settle};
    use crate::{exit, show};
    use lockkeeper_client::{Outcome, Update};
    use lockkeeper_core::Cause;
    use std::time::Duration;

    /// It was said that the session was lost, with the status of a daemon that cannot be reached.
    #[test]
    fn a_lock_that_is_stolen_before_the_command_is_started_was_stolen() {
        let broken = |cause| News::Lock(Update::Over(Outcome::Broken { cause, by: None, forced: false }));
        let queued = || News::Lock(Update::Granted { token: 1 });
        let (code, why) = not_started([queued(), broken(Cause::Stolen)]);
        assert!(code == exit::LOST && why.contains("stolen before"), "{why}");
        let (code, why) = not_started([News::Guardian(Report::Stolen("the lock was stolen by ann".into()))]);
        assert!(code == exit::LOST && why.contains("stolen by ann before"), "{why}");
        assert_eq!(not_started([queued(), broken(Cause::Lost)]).0, exit::UNAVAILABLE);
        assert_eq!(not_started([]).0, exit::UNAVAILABLE);
    }

    /// `run` ended with the status of a command that its guardian had ended.
    #[test]
    fn a_loss_that_is_read_after_the_command_has_ended_is_reported() {
        let settle = |reports: Vec<Report>| {
            let mut reports = reports.into_iter().map(News::Guardian);
            settle(Ok(Ended { code: 143.into(), interrupted: false }), || reports.next())
        };
        let gone = || Report::Gone(Duration::ZERO);
        let (code, why) =
            settle(vec![Report::Lost(show::OUT_OF_REACH.into()), gone()]).err().expect("it was lost");
        assert!(code == exit::LOST && why.contains("out of reach"), "{why}");
        // It was stolen before the command was executed.
        let why = "the lock was stolen by ann";
        let stolen = || Report::Stolen(why.into());
        let (code, shown) = settle(vec![stolen(), Report::Lost(why.into())]).err().expect("it was lost");
        assert!(code == exit::LOST && shown.contains(why), "{shown}");
        assert!(settle(vec![stolen(), gone()]).is_ok());
        assert!(settle(vec![gone()]).is_ok());
        assert!(settle(vec![]).is_ok());
    }
}
