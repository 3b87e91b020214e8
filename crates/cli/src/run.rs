//! `lockkeeper run`: a command, while a lock is held.

use crate::{Done, args, args::Run, exit};
use lockkeeper_client::{Event, Flags, Request, Session};
use lockkeeper_core::Mode;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    iterator::Signals,
};
use std::{
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    process::{Child, Command, ExitCode, ExitStatus},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::Instant,
};

/// What `run` waits for.
enum News {
    Lock(Event),
    Signal(i32),
    Exit(std::io::Result<ExitStatus>),
}

pub(crate) fn run(args: Run) -> Done {
    let session = args::session()?;
    let (sender, news) = mpsc::channel();
    let token = match acquire(&session, &args, &sender, &news)? {
        Ok(token) => token,
        Err(code) => return Ok(code.into()),
    };
    let child = spawn(&session, &args, token)?;
    watch(child, &args, &sender, &news)
}

/// Waits for the lock. The token, or the exit code of who does not get it.
fn acquire(
    session: &Session,
    args: &Run,
    sender: &Sender<News>,
    news: &Receiver<News>,
) -> Result<Result<u64, u8>, (u8, String)> {
    let mode = if args.shared { Mode::Shared } else { Mode::Exclusive };
    let events = sender.clone();
    session.request(Request {
        scope: args.names.iter().map(|name| (args::name(name), mode)).collect(),
        flags: Flags { if_available: args.if_available, steal: args.steal, refuse_deadlock: false },
        nested_in: None,
        info: args.info.clone(),
        listener: Arc::new(move |event| _ = events.send(News::Lock(event))),
    });
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    loop {
        match next(news, deadline) {
            Some(News::Lock(Event::Granted { token })) => return Ok(Ok(token)),
            Some(News::Lock(Event::Refused { message, .. })) => return Err((exit::USAGE, message)),
            Some(News::Lock(Event::Broken(_))) => {
                return Err((
                    exit::UNAVAILABLE,
                    "the daemon is gone, and the place in the queue with it".into(),
                ));
            }
            // The session ends with this process, and the request with the session.
            None | Some(News::Lock(Event::Unavailable)) => return Ok(Err(exit::NO_LOCK)),
            Some(_) => {}
        }
    }
}

/// The next news, or `None` at the deadline.
fn next(news: &Receiver<News>, deadline: Option<Instant>) -> Option<News> {
    let received = match deadline {
        Some(deadline) => news.recv_timeout(deadline.saturating_duration_since(Instant::now())),
        None => news.recv().map_err(|_| RecvTimeoutError::Disconnected),
    };
    received.ok()
}

/// Starts the command. It inherits the connection to a daemon of this machine, so that the lock lasts as long as the command
/// does, even if `run` is killed.
fn spawn(session: &Session, args: &Run, token: u64) -> Result<Child, (u8, String)> {
    let system = |error: std::io::Error| (exit::SOFTWARE, error.to_string());
    let connection = session.connection().map_err(system)?;
    let inherit = |connection: OwnedFd| {
        let inherited = rustix::io::fcntl_dupfd_cloexec(connection.as_fd(), 3)?;
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty())?;
        Ok(inherited)
    };
    let _inherited = connection.map(inherit).transpose().map_err(|e: rustix::io::Errno| system(e.into()))?;
    let (program, arguments) = args.command.split_first().expect("clap requires one");
    let started = Command::new(program).args(arguments).env("LOCKKEEPER_TOKEN", token.to_string()).spawn();
    started.map_err(|error| {
        let code = exit::CANNOT_RUN + u8::from(error.kind() == std::io::ErrorKind::NotFound);
        (code, format!("{}: {error}", program.to_string_lossy()))
    })
}

/// Waits for the command, hands signals on to it, and ends it if its lock is lost.
fn watch(mut child: Child, args: &Run, sender: &Sender<News>, news: &Receiver<News>) -> Done {
    let system = |error: std::io::Error| (exit::SOFTWARE, error.to_string());
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a child has a process id");
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]).map_err(system)?;
    let received = sender.clone();
    thread::spawn(move || signals.forever().try_for_each(|signal| received.send(News::Signal(signal))));
    let exited = sender.clone();
    thread::spawn(move || exited.send(News::Exit(child.wait())));

    let mut lost = None;
    let mut kill_at: Option<Instant> = None;
    loop {
        match next(news, kill_at) {
            Some(News::Exit(status)) => {
                let status = status.map_err(system)?;
                return Ok(match lost {
                    Some(cause) => {
                        eprintln!("lockkeeper: {cause}; the command was ended");
                        exit::LOST.into()
                    }
                    None => exit_code(status),
                });
            }
            // The terminal sends these to the command itself.
            Some(News::Signal(SIGINT | SIGQUIT)) => {}
            Some(News::Signal(signal)) => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    let _ = kill_process(pid, signal);
                }
            }
            Some(News::Lock(Event::Broken(cause))) => {
                lost = Some(cause);
                let _ = kill_process(pid, Signal::TERM);
                kill_at = Some(Instant::now() + args.grace);
            }
            Some(News::Lock(_)) => {}
            None => {
                let _ = kill_process(pid, Signal::KILL);
                kill_at = None;
            }
        }
    }
}

/// The command's own status; of one that a signal ended, as shells have it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1).into()
}
