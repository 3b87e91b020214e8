//! `lockkeeper run`: a command, while a lock is held.

pub(crate) mod child;
pub(crate) mod guard;
mod label;
pub(crate) mod watcher;

pub(crate) use label::label;

use crate::{
    Done, Failure,
    acquire::{self, Held, next},
    args::Run,
    exit, session,
};
use child::Ended;
use lockkeeper_client::{Error, Snapshot, Update};
use rustix::{
    io::Errno,
    process::{Signal, getpid, kill_process},
};
use signal_hook::{
    consts::{SIGCHLD, SIGCONT, SIGINT, SIGTSTP},
    low_level::{emulate_default_handler, siginfo::Origin},
};
use std::{
    env,
    ffi::{OsStr, OsString},
    fs, process,
    sync::mpsc::{self, Receiver},
    time::{Duration, Instant},
};

/// What `run` waits for.
pub(crate) enum News {
    Lock(Update),
    /// The requests ahead in the queue, for display.
    Queue(Result<Snapshot, Error>),
    Signal(Origin),
    /// A report of the command's guardian.
    Guardian(guard::Report),
}

/// How long to wait for the daemon's acknowledgement of a release. The release takes effect in any
/// case.
pub(crate) const RELEASE: Duration = Duration::from_secs(1);

pub(crate) fn run(args: Run) -> Done {
    let exec_needs_fifo = || {
        let why = "--exec is for locks of this machine: a lease needs somebody to renew it";
        (exit::USAGE, why.to_string())
    };
    // Before the lock is waited for, where that is known.
    if args.exec && session::endpoint()?.socket().is_none() {
        return Err(exec_needs_fifo());
    }
    let (sender, news) = mpsc::channel();
    let label = label(&command_line(&args));
    let held = acquire::acquire(&args.lock, (label, process::id()), &sender, &news)?;
    let fifo = held.session.fifo().map_err(|error| (exit::SOFTWARE, error.to_string()))?;
    let ended = match fifo {
        Some(fifo) if args.exec => return Err(child::exec(fifo, &args, &held)),
        None if args.exec => return Err(exec_needs_fifo()),
        // The command inherits it and a watcher has it, so that the lock lasts as long as the command,
        // also if this process is killed.
        Some(fifo) => {
            let inherited = (!args.close).then_some(fifo);
            let ended = child::run(inherited, &args, &held, &sender, &news)?;
            hold_on(&args, &held, &news);
            // The next one to ask after this process has ended finds the lock free.
            held.session.release(held.key);
            let deadline = Instant::now() + RELEASE;
            while !matches!(next(&news, Some(deadline)), None | Some(News::Lock(Update::Over(_)))) {}
            ended
        }
        // A lease has to be renewed: by a guardian, which outlives the command.
        None => guard::run(&args, &held, &sender, &news)?,
    };
    drop(held);
    if ended.interrupted {
        // So that a script that waits for this process ends, too. Shells show the same 130 for it.
        let _ = emulate_default_handler(SIGINT);
    }
    Ok(ended.code)
}

/// Keeps the lock after a short command, for as long as `--min-hold` says. A signal, or the loss of
/// the lock, ends that.
fn hold_on(args: &Run, held: &Held, news: &Receiver<News>) {
    let Some(until) = args.min_hold.and_then(|hold| held.since.checked_add(hold)) else { return };
    loop {
        match next(news, Some(until)) {
            Some(News::Signal(Origin { signal: SIGCHLD | SIGCONT, .. }) | News::Queue(_)) => {}
            // Ctrl-Z: the shell has its terminal back, and the lock stays held.
            Some(News::Signal(Origin { signal: SIGTSTP, .. })) => _ = kill_process(getpid(), Signal::STOP),
            Some(News::Lock(Update::Granted { .. } | Update::Queued { .. })) => {}
            None | Some(_) => return,
        }
    }
}

/// The command and its arguments; for `-c`, a shell and its line.
fn command_line(args: &Run) -> Vec<OsString> {
    match &args.shell_command {
        Some(line) => {
            let shell = env::var_os("SHELL").filter(|shell| !shell.is_empty());
            vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-c".into(), line.clone()]
        }
        None => args.command.clone(),
    }
}

/// The result of a command that could not be started.
fn cannot_start(program: &OsStr, error: &std::io::Error) -> Failure {
    // The system says that it is forbidden if a directory of the path is: `su` keeps that of root.
    let nowhere = error.kind() == std::io::ErrorKind::PermissionDenied && is_nowhere(program);
    let error = if nowhere { &Errno::NOENT.into() } else { error };
    let code = exit::CANNOT_RUN + u8::from(error.kind() == std::io::ErrorKind::NotFound);
    let program = program.to_string_lossy();
    let hint = if program.contains(' ') {
        ". The command and its arguments are words of their own: -c 'a | b' for a line of shell"
    } else {
        ""
    };
    (code, format!("{program}: {error}{hint}"))
}

/// Whether a program is in no directory of the path, as far as this process may look.
fn is_nowhere(program: &OsStr) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let named = !program.as_encoded_bytes().contains(&b'/');
    named && env::split_paths(&path).all(|dir| fs::symlink_metadata(dir.join(program)).is_err())
}

impl Ended {
    /// The status of a command that ran for longer than `--for`.
    const TIMED_OUT: u8 = 124;
}
