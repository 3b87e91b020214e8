//! The command that runs while the lock is held.
//!
//! *With a terminal* it is in the process group of `run`, as a command of the shell is. The
//! terminal's signals (Ctrl-C, Ctrl-Z, its size, its end) reach it directly, and `fg` and `bg`
//! affect both. `run` forwards signals that were sent to `run` alone, and stops when the command
//! does. *Without one* it has its own process group, and signals go to the whole group. When the
//! lock is lost, the command's descendants are signalled in both cases, because a shell's children
//! may outlive the shell.

use super::{
    News, cannot_start, command_line,
    guard::{ALLOWED, Hired, Report},
    watcher,
};
use crate::{
    Failure,
    acquire::{Held, next},
    args::Run,
    exit,
    process::Process,
    show,
};
use lockkeeper_client::{Outcome, Update};
use rustix::{
    io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd},
    process::{
        Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, getpid, kill_process, kill_process_group, waitid,
    },
};
use signal_hook::{
    consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2},
    iterator::{SignalsInfo, exfiltrator::WithOrigin},
    low_level::siginfo::{Cause as SignalCause, Origin},
};
use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{self, Command, ExitCode},
    ptr,
    sync::mpsc::{Receiver, Sender},
    thread,
    time::Instant,
};

/// Signals that are passed on.
const PASSED_ON: [i32; 8] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT];

/// How the command ended.
pub(super) struct Ended {
    pub(super) code: ExitCode,
    /// By SIGINT. The end of the command can be known before `run` has received its own SIGINT.
    pub(super) interrupted: bool,
}

/// Starts the command and stays with it to its end. It inherits the descriptor, if there is one to
/// inherit.
pub(super) fn run(
    inherited: Option<OwnedFd>,
    args: &Run,
    held: &Held,
    sender: &Sender<News>,
    news: &Receiver<News>,
) -> Result<Ended, Failure> {
    let watcher = match &inherited {
        Some(fifo) => watcher::hire(fifo).map_err(system)?,
        None => None,
    };
    let hired = watcher.as_ref().map(|watcher| &watcher.hired);
    start(inherited, args, held, sender, hired)?.watch(args, news)
}

/// Becomes the command, which has the descriptor open. Returns only if that fails.
pub(super) fn exec(fifo: OwnedFd, args: &Run, held: &Held) -> Failure {
    let inherited = match inherit(fifo) {
        Ok(inherited) => inherited,
        Err(error) => return system(error),
    };
    let words = command_line(args);
    let (program, arguments) = words.split_first().expect("clap requires one");
    let error = Command::new(program).args(arguments).envs(held.environment.variables()).exec();
    drop(inherited);
    cannot_start(program, &error)
}

/// A copy of a descriptor that the next program has, too.
pub(crate) fn inherit(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    let inherited = fcntl_dupfd_cloexec(descriptor.as_fd(), 3)?;
    fcntl_setfd(&inherited, FdFlags::empty())?;
    Ok(inherited)
}

/// Starts the command. It is executed once the process that was hired knows it and allows it.
pub(super) fn start(
    inherited: Option<OwnedFd>,
    args: &Run,
    held: &Held,
    sender: &Sender<News>,
    hired: Option<&Hired>,
) -> Result<Child, Failure> {
    // Before there is a command: none of its signals is missed, and none ends `run` alone.
    listen(sender).map_err(system)?;
    Child::spawn(inherited, args, held, hired)
}

pub(super) fn system(error: io::Error) -> Failure {
    (exit::SOFTWARE, error.to_string())
}

/// Turns signals into events. Ignored ones stay ignored, for the command too, as `nohup` and shells
/// require.
fn listen(sender: &Sender<News>) -> io::Result<()> {
    let signals = PASSED_ON.iter().filter(|&&signal| !is_ignored(signal));
    let mut signals = SignalsInfo::<WithOrigin>::new(signals.chain([&SIGCHLD]))?;
    let sender = sender.clone();
    thread::Builder::new()
        .name("lockkeeper-signals".into())
        .spawn(move || signals.forever().try_for_each(|signal| sender.send(News::Signal(signal))))?;
    Ok(())
}

/// Whether this process ignores a signal.
#[allow(unsafe_code)]
fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: it changes nothing, and writes the action if it succeeds.
    let known = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) } == 0;
    // SAFETY: it was written.
    known && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Makes the new process send its number to the guardian or the watcher, and wait for permission to
/// become the command. If `run` sent the number, `run` could be killed in between, and the lock of
/// a running command would be released. Without the wait, a `run` that was stopped for long would
/// start a command whose lock is lost.
#[allow(unsafe_code)]
fn ask(command: &mut Command, hired: &Hired, leads: bool) -> io::Result<()> {
    let mut control = hired.control.try_clone()?;
    let mut allowed = hired.allowed.try_clone()?;
    let ask = move || {
        let mut line = [0; 32];
        let mut rest = &mut line[..];
        writeln!(rest, "command {} {leads}", process::id())?;
        let free = rest.len();
        control.write_all(&line[..line.len() - free])?;
        let mut word = [0];
        match allowed.read(&mut word)? {
            1 if word == [ALLOWED] => Ok(()),
            _ => Err(Errno::CANCELED.into()),
        }
    };
    // SAFETY: after the fork it neither allocates nor locks. It writes to the stack, and calls
    // getpid, write and read.
    unsafe { command.pre_exec(ask) };
    Ok(())
}

/// Parses a line of [`ask`]. It does not allocate.
pub(super) fn told(line: &str) -> Option<(Pid, bool)> {
    let (pid, leads) = line.strip_prefix("command ")?.split_once(' ')?;
    Some((Pid::from_raw(pid.parse().ok()?)?, leads == "true"))
}

pub(super) struct Child {
    pub(super) pid: Pid,
    /// Whether it leads its own process group.
    pub(super) leads: bool,
    /// When it was started: its number may be another's one day.
    born: Option<u64>,
}

impl Child {
    /// Starts the command. It inherits a descriptor and nothing else: as long as that is open, the
    /// command is alive.
    fn spawn(
        inherited: Option<OwnedFd>,
        args: &Run,
        held: &Held,
        hired: Option<&Hired>,
    ) -> Result<Self, Failure> {
        let _inherited = inherited.map(inherit).transpose().map_err(system)?;
        let leads = File::open("/dev/tty").is_err();
        let words = command_line(args);
        let (program, arguments) = words.split_first().expect("clap requires one");
        let mut command = Command::new(program);
        command.args(arguments).envs(held.environment.variables());
        if leads {
            command.process_group(0);
        }
        if let Some(hired) = hired {
            ask(&mut command, hired, leads).map_err(system)?;
        }
        match command.spawn() {
            Ok(child) => Ok(Self::new(Pid::from_child(&child), leads)),
            Err(error) => Err(cannot_start(program, &error)),
        }
    }

    /// Parses the command's line for the guardian.
    pub(super) fn parse(line: &str) -> Option<Self> {
        told(line).map(|(pid, leads)| Self::new(pid, leads))
    }

    fn new(pid: Pid, leads: bool) -> Self {
        Self { pid, leads, born: process(pid).map(|process| process.born) }
    }

    /// Whether the process itself has not ended.
    pub(super) fn runs(&self) -> bool {
        process(self.pid).is_some_and(|process| !process.ended && Some(process.born) == self.born)
    }

    /// Waits for the command, hands signals on to it, and ends it if its lock is lost.
    pub(super) fn watch(&self, args: &Run, news: &Receiver<News>) -> Result<Ended, Failure> {
        let mut lost = None;
        let (mut kill_at, mut killed) = (None, false);
        let mut expires_at = args.limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut expired = false;
        loop {
            match next(news, [kill_at, expires_at].into_iter().flatten().min()) {
                Some(News::Signal(Origin { signal: SIGCHLD, .. })) => {
                    while let Some(status) = self.changed()? {
                        if status.stopped() {
                            self.stop();
                            continue;
                        }
                        if let Some(why) = lost {
                            let how = if killed { "killed" } else { "ended" };
                            return Err((exit::LOST, format!("{why}; the command was {how}")));
                        }
                        if expired {
                            let how = if killed { "killed" } else { "ended" };
                            let limit = args.limit.unwrap_or_default();
                            let why = format!("the command ran for longer than {limit:?}, and was {how}");
                            return Err((Ended::TIMED_OUT, why));
                        }
                        let interrupted = status.terminating_signal() == Some(SIGINT);
                        return Ok(Ended { code: exit_code(&status), interrupted });
                    }
                }
                Some(News::Signal(Origin { signal, cause, .. })) => {
                    if let Some(signal) = Signal::from_named_raw(signal).filter(|_| !self.has(signal, cause))
                    {
                        self.signal(signal);
                    }
                }
                Some(News::Lock(Update::Over(Outcome::Broken { cause, by, forced }))) => {
                    lost = Some(show::broken(cause, by.as_deref(), forced));
                    self.end(Signal::TERM);
                    kill_at = Instant::now().checked_add(args.grace);
                }
                Some(News::Guardian(Report::Stolen(why))) => {
                    lost = Some(why);
                    self.end(Signal::TERM);
                    kill_at = Instant::now().checked_add(args.grace);
                }
                // It has ended the command, or is about to. If the lock was stolen, it reports that
                // first.
                Some(News::Guardian(Report::Lost(why))) => {
                    lost.get_or_insert(why);
                }
                // The lease is not renewed any more. The command is ended before it expires.
                Some(News::Guardian(Report::Gone(left))) if kill_at.is_none() => {
                    lost.get_or_insert_with(|| "the guardian of the lock was killed or stopped".into());
                    self.end(Signal::TERM);
                    kill_at = Instant::now().checked_add(left);
                }
                Some(News::Lock(_) | News::Queue(_) | News::Guardian(_)) => {}
                None if kill_at.is_some_and(|at| Instant::now() >= at) => {
                    self.end(Signal::KILL);
                    (kill_at, killed) = (None, true);
                }
                None if expires_at.is_some_and(|at| Instant::now() >= at) => {
                    (expires_at, expired) = (None, true);
                    if kill_at.is_none() {
                        self.end(Signal::TERM);
                        kill_at = Instant::now().checked_add(args.grace);
                    }
                }
                None => {}
            }
        }
    }

    /// Its new status, if it has changed. Only this process waits for it: its number is not reused
    /// until this reports its end.
    fn changed(&self) -> Result<Option<WaitIdStatus>, Failure> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        waitid(WaitId::Pid(self.pid), options).map_err(|error| system(error.into()))
    }

    /// Whether the command has got a signal itself. A key of the terminal is a signal to the whole
    /// group, and its end one to who leads the session.
    fn has(&self, signal: i32, cause: SignalCause) -> bool {
        match cause {
            SignalCause::Kernel => signal != SIGHUP,
            // macOS does not say who sent it. Twice is worse than not at all: many programs take a
            // second Ctrl-C for force.
            SignalCause::Unknown => !self.leads && [SIGINT, SIGQUIT, SIGTSTP].contains(&signal),
            _ => false,
        }
    }

    fn signal(&self, signal: Signal) {
        // It may have ended.
        let _ = match self.leads {
            true => kill_process_group(self.pid, signal),
            false => kill_process(self.pid, signal),
        };
    }

    /// Ends it and its descendants: its own group at once, in ours one by one.
    pub(super) fn end(&self, signal: Signal) {
        let others = if self.leads { Vec::new() } else { descendants(self.pid) };
        self.signal(signal);
        for pid in others {
            let _ = kill_process(pid, signal);
        }
    }

    /// Stops as the command did, so that the shell has its terminal back. SIGCONT is one of the
    /// signals that are passed on.
    fn stop(&self) {
        if !self.leads {
            let _ = kill_process(getpid(), Signal::STOP);
        }
    }
}

fn process(pid: Pid) -> Option<Process> {
    Process::of(pid.as_raw_nonzero().get().unsigned_abs())
}

/// The processes that one has started, and those that they have, and so on.
fn descendants(ancestor: Pid) -> Vec<Pid> {
    let parent = |pid: Pid| -> Option<(Pid, Pid)> {
        let process = process(pid)?;
        Some((Pid::from_raw(process.parent.try_into().ok()?)?, pid))
    };
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for (parent, child) in crate::process::all().filter_map(parent) {
        children.entry(parent).or_default().push(child);
    }
    let (mut found, mut next) = (children.remove(&ancestor).unwrap_or_default(), 0);
    while let Some(pid) = found.get(next) {
        found.extend(children.remove(pid).unwrap_or_default());
        next += 1;
    }
    found
}

/// The command's own status; of one that a signal ended, as shells have it.
fn exit_code(status: &WaitIdStatus) -> ExitCode {
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    u8::try_from(code.unwrap_or(1)).unwrap_or(1).into()
}
