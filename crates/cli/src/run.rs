//! `lockkeeper run`: a command, while a lock is held.

mod child;
pub(crate) mod guard;
mod wait;

use crate::{Done, Failure, args, args::Run, exit, session, session::Patience, show};
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
    /// Who is ahead in the queue, for display.
    Queue(Result<Snapshot, Error>),
    Signal(Origin),
    /// What the guardian of the command says.
    Guardian(guard::Report),
}

/// The longest label that is made up here.
const LABEL: usize = 200;

/// How long a daemon is waited for that is to say that it has released the lock. It will, however that may be.
const RELEASE: Duration = Duration::from_secs(1);

pub(crate) fn run(args: Run) -> Done {
    let limit = Limit::new(&args);
    let opened = session::open_with(args.ttl, limit.patience(&args));
    let session = opened.map_err(|failure| limit.reached(&args, failure))?;
    let (sender, news) = mpsc::channel();
    let (key, token) = acquire(&session, &args, &limit, &sender, &news)?;
    let fifo = session.fifo().map_err(|error| (exit::SOFTWARE, error.to_string()))?;
    let ended = match fifo {
        // The command inherits it, so that the lock lasts as long as the command, also if this process is killed.
        Some(fifo) => {
            let ended = child::run(fifo, &args, token, &sender, &news)?;
            // The next one to ask after this process has ended finds the lock free.
            session.release(key);
            let deadline = Instant::now() + RELEASE;
            while !matches!(next(&news, Some(deadline)), None | Some(News::Lock(Update::Over(_)))) {}
            ended
        }
        // A lease ends when nobody renews it: a guardian does, which outlives the command.
        None => guard::run(&session, &args, token, &sender, &news)?,
    };
    drop(session);
    if ended.interrupted {
        // So that a script that waits for this process ends, too. Shells show the same 130 for it.
        let _ = emulate_default_handler(SIGINT);
    }
    Ok(ended.code)
}

/// Until when the lock is waited for, from the start of the command, whatever the daemon does.
enum Limit {
    None,
    /// `--timeout`.
    Until(Instant),
    /// `--if-available` does not wait for the lock, but a daemon takes a moment to answer.
    Answer(Instant),
}

impl Limit {
    fn new(args: &Run) -> Self {
        let now = Instant::now();
        match args.timeout {
            _ if args.if_available => Self::Answer(now + session::ANSWER),
            // Without any time to wait, only what is free is taken.
            Some(Duration::ZERO) => Self::Answer(now + session::ANSWER),
            Some(timeout) => now.checked_add(timeout).map_or(Self::None, Self::Until),
            None => Self::None,
        }
    }

    fn until(&self) -> Option<Instant> {
        match self {
            Self::None => None,
            Self::Until(until) | Self::Answer(until) => Some(*until),
        }
    }

    fn patience(&self, args: &Run) -> Patience {
        match self {
            Self::Answer(_) => Patience::Answer,
            _ => Patience::Until { until: self.until(), quiet: args.quiet },
        }
    }

    /// What a failure to open a session comes to: after its time, a lock that is not to be had.
    fn reached(&self, args: &Run, (code, message): Failure) -> Failure {
        match self {
            Self::Until(until) if code == exit::UNAVAILABLE && Instant::now() >= *until => {
                (exit::NO_LOCK, if args.quiet { String::new() } else { message })
            }
            _ => (code, message),
        }
    }
}

/// Waits for the lock. Returns the request and its token.
fn acquire(
    session: &Session,
    args: &Run,
    limit: &Limit,
    sender: &Sender<News>,
    news: &Receiver<News>,
) -> Result<(Key, u64), Failure> {
    let mode = if args.shared { Mode::Shared } else { Mode::Exclusive };
    let names: Vec<Name> = args.names.iter().map(|name| args::name(name)).collect();
    let if_available = matches!(limit, Limit::Answer(_));
    let events = sender.clone();
    let request = Request {
        scope: names.iter().map(|name| (name.clone(), mode)).collect(),
        flags: Flags { if_available, steal: args.steal, refuse_deadlock: false },
        nested_in: None,
        info: Some(args.info.clone().unwrap_or_else(|| label(args))),
    };
    let key = session.request(request, Box::new(move |update| _ = events.send(News::Lock(update))));
    let deadline = limit.until();
    let mut answered = false;
    let mut wait = Wait::new(names, mode, args.quiet, session, sender);
    loop {
        match next(news, [deadline, wait.wakes_at()].into_iter().flatten().min()) {
            Some(News::Lock(Update::Granted { token })) => return Ok((key, token)),
            Some(News::Lock(Update::Queued { .. })) => {
                answered = true;
                wait.begin();
            }
            Some(News::Lock(Update::Over(outcome))) => return Err(failed(outcome, &wait)),
            Some(News::Queue(answer)) => wait.show(answer),
            Some(News::Signal(_) | News::Guardian(_)) => {}
            None if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                // The session ends with this process, and the request with the session; this is for the counts.
                session.time_out(key);
                return Err(match limit {
                    Limit::Answer(_) => (exit::UNAVAILABLE, session::silent(session.endpoint())),
                    _ if answered => wait.gave_up("it was not free in time"),
                    _ => limit.reached(args, (exit::UNAVAILABLE, session::silent(session.endpoint()))),
                });
            }
            None => wait.look(),
        }
    }
}

/// What to say of a request that ended before it was granted.
fn failed(outcome: Outcome, wait: &Wait<'_>) -> Failure {
    match outcome {
        Outcome::Unavailable => wait.gave_up("it is not free"),
        Outcome::Refused { code, message } => session::refused(code, message),
        Outcome::Broken { cause: Cause::Stolen, by } => {
            let by = by.map(|by| format!(" by {}", show::label(&by))).unwrap_or_default();
            (exit::LOST, format!("the lock was stolen{by} before the command was started"))
        }
        Outcome::Failed(failure) => (exit::UNAVAILABLE, failure.to_string()),
        _ => {
            (exit::UNAVAILABLE, "the session was lost, and the place in the queue with it: try again".into())
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
