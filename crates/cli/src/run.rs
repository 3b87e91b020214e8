//! `lockkeeper run`: a command, while a lock is held.

mod child;
mod wait;

use crate::{Done, Failure, args, args::Run, exit};
use lockkeeper_client::{Error, Flags, Key, Outcome, Request, Session, Snapshot, Update};
use lockkeeper_core::{Cause, Mode, Name};
use rustix::{process::geteuid, system::uname};
use signal_hook::{
    consts::SIGINT,
    low_level::{emulate_default_handler, siginfo::Origin},
};
use std::{
    env,
    path::Path,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    time::{Duration, Instant},
};
use wait::Wait;

/// What `run` waits for.
enum News {
    Lock(Update),
    /// Who is in the way, for who looks on.
    Queue(Result<Snapshot, Error>),
    Signal(Origin),
}

/// The longest label that is made up here.
const LABEL: usize = 200;

/// How long a daemon is waited for that is to say that it has released the lock. It will, however that may be.
const RELEASE: Duration = Duration::from_secs(1);

pub(crate) fn run(args: Run) -> Done {
    let session = args::session()?;
    let (sender, news) = mpsc::channel();
    let (key, token) = acquire(&session, &args, &sender, &news)?;
    let ended = child::run(&session, &args, token, &sender, &news)?;
    // Whoever comes after this process has ended finds the lock free.
    session.release(key);
    let deadline = Instant::now() + RELEASE;
    while !matches!(next(&news, Some(deadline)), None | Some(News::Lock(Update::Over(_)))) {}
    drop(session);
    if ended.interrupted {
        // So that a script that waits for this process ends, too. Shells show the same 130 for it.
        let _ = emulate_default_handler(SIGINT);
    }
    Ok(ended.code)
}

/// Waits for the lock. Returns the request and its token.
fn acquire(
    session: &Session,
    args: &Run,
    sender: &Sender<News>,
    news: &Receiver<News>,
) -> Result<(Key, u64), Failure> {
    let mode = if args.shared { Mode::Shared } else { Mode::Exclusive };
    let names: Vec<Name> = args.names.iter().map(|name| args::name(name)).collect();
    // Whoever has no time at all takes what is there.
    let if_available = args.if_available || args.timeout == Some(Duration::ZERO);
    let timeout = args.timeout.filter(|timeout| !timeout.is_zero());
    let events = sender.clone();
    let request = Request {
        scope: names.iter().map(|name| (name.clone(), mode)).collect(),
        flags: Flags { if_available, steal: args.steal, refuse_deadlock: false },
        nested_in: None,
        info: Some(args.info.clone().unwrap_or_else(|| label(args))),
    };
    let key = session.request(request, Box::new(move |update| _ = events.send(News::Lock(update))));
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut wait = Wait::new(names, mode, args.quiet, session, sender);
    loop {
        match next(news, [deadline, wait.wakes_at()].into_iter().flatten().min()) {
            Some(News::Lock(Update::Granted { token })) => return Ok((key, token)),
            Some(News::Lock(Update::Queued { .. })) => wait.begin(),
            Some(News::Lock(Update::Over(outcome))) => match outcome {
                Outcome::Unavailable => return Err(wait.gave_up("it is not free")),
                Outcome::Refused { code, message } => return Err(args::refused(code, message)),
                Outcome::Broken { cause: Cause::Stolen, .. } => {
                    return Err((exit::LOST, "the lock was stolen before the command was started".into()));
                }
                Outcome::Broken { cause: Cause::Lost, .. } => {
                    let why = "the session was lost, and the place in the queue with it: try again";
                    return Err((exit::UNAVAILABLE, why.into()));
                }
                Outcome::Failed(failure) => return Err((exit::UNAVAILABLE, failure.to_string())),
                // It asked for no refusal of deadlocks, and has not released anything.
                Outcome::Deadlocked(_) | Outcome::Released | Outcome::Answer(_) => {}
            },
            Some(News::Queue(answer)) => wait.show(answer),
            Some(News::Signal(_)) => {}
            None if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                // The session ends with this process, and the request with the session; this is for who counts.
                session.time_out(key);
                return Err(wait.gave_up("it was not free in time"));
            }
            None => wait.look(),
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

/// Who runs what and where. Of the arguments only the first that is a file, the script of an interpreter for example:
/// others may be secrets, and others see the label.
fn label(args: &Run) -> String {
    let user = env::var("USER").or_else(|_| env::var("LOGNAME"));
    let user = user.unwrap_or_else(|_| geteuid().as_raw().to_string());
    let (program, arguments) = args.command.split_first().expect("clap requires one");
    let script = arguments.iter().map(Path::new).find(|path| path.is_file());
    let mut label = format!("{user}@{}: ", uname().nodename().to_string_lossy());
    let words: Vec<_> = [Path::new(program)].into_iter().chain(script).map(Path::to_string_lossy).collect();
    label.push_str(&words.join(" "));
    label.chars().take(LABEL).collect()
}
