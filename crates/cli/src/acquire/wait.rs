//! The display while `run` or `lock` waits: the holder, its hold time, and the number of waiters
//! ahead.
//!
//! On a terminal, it is one line that is redrawn each second and removed when the lock is granted.
//! Elsewhere it is one line, printed once if the wait takes longer than a second. The daemon is
//! queried only when there is something to display.

use crate::{Failure, exit, run::News, session, show};
use lockkeeper_client::{Entry, Error, Session, Snapshot};
use lockkeeper_core::{Mode, Name};
use rustix::{
    process::getpgrp,
    termios::{tcgetpgrp, tcgetwinsize},
};
use std::{
    io::{IsTerminal, Write, stderr},
    sync::mpsc::Sender,
    time::{Duration, Instant},
};

/// Shorter waits are not displayed: on a terminal, and elsewhere.
const UNSEEN: Duration = Duration::from_millis(200);
const UNSAID: Duration = Duration::from_secs(1);

/// So often it is looked whether a daemon that was asked has been stopped by a signal.
const CHECK: Duration = Duration::from_secs(1);

/// The line of a terminal is drawn so often; less often if a daemon with a long queue takes its
/// time to tell.
const REFRESH: Duration = Duration::from_secs(1);

pub(super) struct Wait<'a> {
    names: Vec<Name>,
    mode: Mode,
    quiet: bool,
    terminal: bool,
    session: &'a Session,
    sender: &'a Sender<News>,
    began: Instant,
    /// When to ask the daemon again, or to look why it does not answer.
    look_at: Option<Instant>,
    asked: Instant,
    answered: bool,
    /// The name that was asked about: the first that is known to be in the way.
    asking: usize,
    /// The place in the queue and the blocking request, as far as they are known.
    place: Option<String>,
    obstacle: Option<String>,
    /// Something is on the terminal's line.
    drawn: bool,
}

impl<'a> Wait<'a> {
    pub(super) fn new(
        names: Vec<Name>,
        mode: Mode,
        quiet: bool,
        session: &'a Session,
        sender: &'a Sender<News>,
    ) -> Self {
        // One that is not this session's own, as under `su -c`, does not tell who is in the foreground.
        let terminal = stderr().is_terminal() && tcgetpgrp(stderr()).is_ok();
        let now = Instant::now();
        Self {
            names,
            mode,
            quiet,
            terminal,
            session,
            sender,
            began: now,
            look_at: None,
            asked: now,
            answered: true,
            asking: 0,
            place: None,
            obstacle: None,
            drawn: false,
        }
    }

    pub(super) fn begin(&mut self) {
        let patience = if self.terminal { UNSEEN } else { UNSAID };
        self.look_at = (!self.quiet).then(|| self.began + patience);
    }

    pub(super) fn wakes_at(&self) -> Option<Instant> {
        self.look_at
    }

    /// Queries the blocking request. A scope is in one queue for each name: they are queried in
    /// turn until one blocks it.
    pub(super) fn look(&mut self) {
        let now = Instant::now();
        self.look_at = Some(now + CHECK);
        if self.answered {
            (self.answered, self.asked, self.asking) = (false, now, 0);
            return self.ask();
        }
        let stopped = self.session.server_pid().is_some_and(session::stopped);
        if stopped || self.asked.elapsed() >= session::ANSWER {
            self.obstacle = Some(session::silent_in(self.session));
            self.tell();
        }
    }

    fn ask(&self) {
        let sender = self.sender.clone();
        self.session
            .query_then(Some(&self.names[self.asking]), move |answer| _ = sender.send(News::Queue(answer)));
    }

    pub(super) fn show(&mut self, answer: Result<Snapshot, Error>) {
        self.answered = true;
        match answer {
            Ok(snapshot) => match self.in_the_way(&snapshot.entries) {
                Some((place, obstacle)) => (self.place, self.obstacle) = (Some(place), Some(obstacle)),
                None if self.asking + 1 < self.names.len() => {
                    self.asking += 1;
                    self.answered = false;
                    return self.ask();
                }
                // The blocking request has ended.
                None => {}
            },
            // It may be that only what others have is not for us to see.
            Err(error) => self.obstacle = Some(error.to_string()),
        }
        self.tell();
    }

    /// On a terminal, over and over; elsewhere, once.
    fn tell(&mut self) {
        if self.terminal {
            self.draw();
            // A daemon with a long queue takes its time, one that was stopped is not waited for.
            let pause = if self.answered { self.asked.elapsed() * 20 } else { CHECK };
            self.look_at = Some(Instant::now() + REFRESH.max(pause));
        } else {
            show::say(&self.line());
            self.look_at = None;
        }
    }

    /// Our place in the queue of the queried name, and the request that blocks us, if there is one.
    fn in_the_way(&self, queue: &[Entry]) -> Option<(String, String)> {
        let me = self.session.client_id();
        let mine = queue.iter().position(|entry| entry.token.is_none() && entry.client_id == me)?;
        let ahead = &queue[..mine];
        if ahead.iter().all(|entry| (entry.mode, self.mode) == (Mode::Shared, Mode::Shared)) {
            return None;
        }
        let holders = ahead.iter().filter(|entry| entry.token.is_some()).count();
        let place = ahead.len() - holders + 1;
        let waiting = queue.len() - queue.iter().filter(|entry| entry.token.is_some()).count();
        let mut obstacle = match holders {
            0 => "not held at the moment".to_string(),
            1 => show::held_by(&ahead[0]),
            _ => format!("{} and {} more", show::held_by(&ahead[0]), holders - 1),
        };
        if self.names.len() > 1 {
            obstacle = format!("{} is {obstacle}", show::name(&self.names[self.asking]));
        }
        Some((format!(", place {place} of {waiting}"), obstacle))
    }

    fn line(&self) -> String {
        let waited = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (names, waited) = (self.all_names(), show::age(waited));
        let place = self.place.as_deref().unwrap_or_default();
        let obstacle = self.obstacle.as_deref().unwrap_or("its turn is next");
        format!("waiting for {names} ({waited}{place}): {obstacle}")
    }

    pub(super) fn names(&self) -> &[Name] {
        &self.names
    }

    pub(super) fn session(&self) -> &Session {
        self.session
    }

    pub(super) fn all_names(&self) -> String {
        let names: Vec<String> = self.names.iter().map(show::name).collect();
        names.join(", ")
    }

    /// Draws the line, unless this is a background job, which does not own the terminal.
    fn draw(&mut self) {
        if !tcgetpgrp(stderr()).is_ok_and(|foreground| foreground == getpgrp()) {
            return;
        }
        let columns = tcgetwinsize(stderr()).map_or(80, |size| usize::from(size.ws_col));
        // A terminal that does not know its size says 0.
        let columns = if columns == 0 { 80 } else { columns };
        // The last column stays free: a full line would make some terminals go to the next.
        let _ = write!(stderr(), "\r{}\x1b[K", show::fit(&self.line(), columns - 1));
        let _ = stderr().flush();
        self.drawn = true;
    }

    /// The message when the lock was not acquired.
    pub(super) fn gave_up(&self, why: &str) -> Failure {
        let message = match &self.obstacle {
            Some(obstacle) => format!("{}: {why}: {obstacle}", self.all_names()),
            None => {
                let machine = if session::uses_machine() { " --machine" } else { "" };
                format!("{}: {why}. `lockkeeper{machine} query` shows who has it", self.all_names())
            }
        };
        (exit::NO_LOCK, message)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.drawn {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
