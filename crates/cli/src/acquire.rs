//! Getting the lock, for `run` and `lock`: with a timeout that counts from the start of the
//! command, whatever the daemon does, and nested in the lock of the command around it.

mod environment;
mod wait;

pub(crate) use environment::{Environment, encode};

use crate::{Failure, args, args::Wanted, exit, run::News, session, session::WaitLimits, show};
use lockkeeper_client::{Deadlock, Entry, Flags, Key, Outcome, Outer, Request, Session, Update};
use lockkeeper_core::{Cause, Mode, Name};
use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, Sender},
    time::{Duration, Instant},
};
use wait::Wait;

/// A lock that is held.
pub(crate) struct Held {
    pub(crate) session: Session,
    pub(crate) key: Key,
    /// What a command finds in its environment.
    pub(crate) environment: Environment,
    pub(crate) since: Instant,
}

/// Opens a session and waits for the lock. Others see the label and the process.
pub(crate) fn acquire(
    wanted: &Wanted,
    (label, pid): (String, u32),
    sender: &Sender<News>,
    news: &Receiver<News>,
) -> Result<Held, Failure> {
    let limit = Limit::new(wanted);
    let acquired = session::open_with(wanted.ttl, pid, limit.wait_limits(wanted))
        .map_err(|failure| limit.reached(failure))
        .and_then(|session| {
            let (key, token) = request(&session, wanted, label, &limit, sender, news)?;
            let outer = session.with(|view| view.outer(key));
            let environment = Environment::new(&wanted.names, token, outer);
            Ok(Held { session, key, environment, since: Instant::now() })
        });
    acquired.map_err(|(code, message)| match code {
        exit::NO_LOCK => {
            let message = if wanted.quiet { String::new() } else { message };
            (wanted.conflict_exit_code.unwrap_or(exit::NO_LOCK), message)
        }
        _ => (code, message),
    })
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
    fn new(wanted: &Wanted) -> Self {
        let now = Instant::now();
        match wanted.timeout {
            _ if wanted.if_available => Self::Answer(now + session::ANSWER),
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

    /// Until when a question is worth waiting for.
    fn answer_by(&self) -> Instant {
        let answer = Instant::now() + session::ANSWER;
        self.until().map_or(answer, |until| until.min(answer))
    }

    fn wait_limits(&self, wanted: &Wanted) -> WaitLimits {
        match self {
            Self::Answer(_) => WaitLimits::Answer,
            _ => WaitLimits::Until { until: self.until(), quiet: wanted.quiet },
        }
    }

    /// The result if the daemon does not answer: after the timeout, an unavailable lock.
    fn reached(&self, (code, message): Failure) -> Failure {
        match self {
            Self::Until(until) if code == exit::UNAVAILABLE && Instant::now() >= *until => {
                (exit::NO_LOCK, message)
            }
            _ => (code, message),
        }
    }
}

/// Waits for the lock. Returns the request and its fencing number.
fn request(
    session: &Session,
    wanted: &Wanted,
    label: String,
    limit: &Limit,
    sender: &Sender<News>,
    news: &Receiver<News>,
) -> Result<(Key, u64), Failure> {
    let mode = if wanted.shared { Mode::Shared } else { Mode::Exclusive };
    let names: Vec<Name> = wanted.names.iter().map(|name| args::name(name)).collect();
    let events = sender.clone();
    let nested_in = innermost(session, limit);
    let request = Request {
        scope: names.iter().map(|name| (name.clone(), mode)).collect(),
        flags: Flags {
            if_available: matches!(limit, Limit::Answer(_)),
            steal: wanted.steal,
            refuse_deadlock: nested_in.is_some() && !wanted.steal,
        },
        nested_in,
        info: Some(wanted.info.clone().unwrap_or(label)),
    };
    let key = session.request(request, Box::new(move |update| _ = events.send(News::Lock(update))));
    let deadline = limit.until();
    let mut answered = false;
    let mut wait = Wait::new(names, mode, wanted.quiet, session, sender);
    loop {
        match next(news, [deadline, wait.wakes_at()].into_iter().flatten().min()) {
            Some(News::Lock(Update::Granted { token })) => return Ok((key, token)),
            Some(News::Lock(Update::Queued { .. })) => {
                answered = true;
                wait.begin();
            }
            Some(News::Lock(Update::Over(outcome))) => return Err(failed(outcome, wanted, &wait, limit)),
            Some(News::Queue(answer)) => wait.show(answer),
            Some(News::Signal(_) | News::Guardian(_)) => {}
            None if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                // The session ends with this process, and the request with the session; this is for
                // the counts.
                session.time_out(key);
                let silent = (exit::UNAVAILABLE, session::silent_in(session));
                return Err(match limit {
                    _ if answered => wait.gave_up("it was not free in time"),
                    _ => limit.reached(silent),
                });
            }
            None => wait.look(),
        }
    }
}

/// The message for a request that ended before it was granted.
fn failed(outcome: Outcome, wanted: &Wanted, wait: &Wait<'_>, limit: &Limit) -> Failure {
    match outcome {
        Outcome::Unavailable if is_in_own_way(wanted, wait, limit) => {
            wait.gave_up("the command around this one holds it already")
        }
        Outcome::Unavailable => wait.gave_up("it is not free"),
        Outcome::Refused { code, message } => session::refused(code, message),
        // A lock that the command around this one holds is never free while this one waits: that is
        // a mistake.
        Outcome::Deadlocked(_) if is_in_own_way(wanted, wait, limit) => {
            let why = "the command around this one holds it already, and would wait for itself";
            (exit::USAGE, format!("{}: {why}", wait.all_names()))
        }
        Outcome::Deadlocked(deadlock) => deadlocked(&deadlock, wait),
        Outcome::Broken { cause: cause @ Cause::Stolen, by, forced } => {
            let why = show::broken(cause, by.as_deref(), forced);
            (exit::LOST, format!("{why} before the command was started"))
        }
        Outcome::Failed(failure) => (exit::UNAVAILABLE, failure.to_string()),
        _ => {
            (exit::UNAVAILABLE, "the session was lost, and the place in the queue with it: try again".into())
        }
    }
}

/// A request that was refused for a deadlock may succeed later.
fn deadlocked(deadlock: &Deadlock, wait: &Wait<'_>) -> Failure {
    let (names, why) = (wait.all_names(), show::label(&deadlock.words));
    (exit::NO_LOCK, format!("{names}: a deadlock: {why}. Take all names at once: lockkeeper run A B -- …"))
}

/// The outer request for nesting: the innermost held lock around this command.
fn innermost(session: &Session, limit: &Limit) -> Option<Outer> {
    let mut around = environment::around();
    while let Some(lock) = around.pop() {
        let held = || match holders(session, &lock.name, limit.answer_by()) {
            Ok(holders) => holders.iter().any(|holder| holder.client_id == lock.client_id),
            Err(_) => true,
        };
        // The server ignores one that no longer lives. So one by itself is not asked about.
        if around.is_empty() || held() {
            return Some(Outer::Other(lock.client_id, lock.request));
        }
    }
    None
}

/// Whether a command around this one holds what is wanted, in a way that this one cannot share.
fn is_in_own_way(wanted: &Wanted, wait: &Wait<'_>, limit: &Limit) -> bool {
    let conflicts = |holder: &Entry| !wanted.shared || holder.mode == Mode::Exclusive;
    wait.names().iter().any(|name| {
        let holders = held_around(wait.session(), name, limit.answer_by());
        holders.is_ok_and(|holders| holders.iter().any(conflicts))
    })
}

/// Whether there is a lock around this command, or was one.
pub(crate) fn is_nested() -> bool {
    !environment::around().is_empty()
}

/// How a lock is held by the commands around this one. The environment has the locks that they
/// took; the daemon knows which are still held.
pub(crate) fn held_around(session: &Session, name: &Name, until: Instant) -> Result<Vec<Entry>, Failure> {
    let around = environment::around();
    if around.is_empty() {
        return Ok(Vec::new());
    }
    let mut held = holders(session, name, until)?;
    held.retain(|holder| around.iter().any(|lock| lock.client_id == holder.client_id));
    Ok(held)
}

fn holders(session: &Session, name: &Name, until: Instant) -> Result<Vec<Entry>, Failure> {
    let mut entries =
        session::ask_until(session, until, |session, then| session.query_then(Some(name), then))?.entries;
    entries.retain(|entry| entry.token.is_some());
    Ok(entries)
}

/// The next event, or `None` at the deadline.
pub(crate) fn next(news: &Receiver<News>, deadline: Option<Instant>) -> Option<News> {
    let received = match deadline {
        Some(deadline) => news.recv_timeout(deadline.saturating_duration_since(Instant::now())),
        None => news.recv().map_err(|_| RecvTimeoutError::Disconnected),
    };
    received.ok()
}
