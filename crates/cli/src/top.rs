//! `lockkeeper top`: holders and waiters, live.
//!
//! `live` is the state received by subscription. `model` is the visible part of it, and the effect
//! of keys. `draw` renders it. This module has the terminal and the daemon: keys, changes and
//! signals arrive in one queue.

mod draw;
mod live;
mod model;

use crate::{Done, Failure, exit, session, show};
use live::Live;
use lockkeeper_client::{Change, Error, Session, Snapshot};
use lockkeeper_core::Name;
use model::{Act, Model};
use ratatui::crossterm::event::{self, Event};
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::{Duration, Instant},
};

/// How soon a change is shown after the one before; later if showing takes its time.
const CHANGED: Duration = Duration::from_millis(100);

/// How often times are brought up to date if nothing changes.
const REFRESH: Duration = Duration::from_secs(1);

/// A reserved name: a question about it is answered with deadlocks alone.
const NOBODY: &str = "-";

enum News {
    Terminal(Event),
    Change(Result<Change, Error>),
    Deadlocks(Result<Snapshot, Error>),
    Released(Name, Result<u64, Error>),
    Quit,
}

pub(crate) fn top() -> Done {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let why = "top needs a terminal. Elsewhere, `lockkeeper inspect` shows the same, once";
        return Err((exit::USAGE, why.into()));
    }
    let session = session::open()?;
    let failed = |error: io::Error| (exit::SOFTWARE, error.to_string());
    let (sender, news) = mpsc::channel();
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(failed)?;
    let quit = sender.clone();
    thread::spawn(move || signals.forever().try_for_each(|_| quit.send(News::Quit)));
    let screen = ratatui::try_init().map_err(failed)?;
    let (live, shown, changed) = (Live::default(), None, false);
    let top = Top { session, screen, sender, live, shown, changed, asking: false, outdated: false };
    let done = top.run(&news);
    ratatui::restore();
    done
}

struct Top {
    session: Session,
    screen: ratatui::DefaultTerminal,
    sender: Sender<News>,
    live: Live,
    /// When what is shown was taken on, and how long that took.
    shown: Option<(Instant, Duration)>,
    /// Something has changed since.
    changed: bool,
    /// The daemon searches for deadlocks; what it finds may be outdated then.
    asking: bool,
    outdated: bool,
}

impl Top {
    fn run(mut self, news: &Receiver<News>) -> Done {
        let keys = self.sender.clone();
        thread::spawn(move || {
            while let Ok(event) = event::read()
                && keys.send(News::Terminal(event)).is_ok()
            {}
            // A terminal that cannot be read is none.
            let _ = keys.send(News::Quit);
        });
        let changes = self.sender.clone();
        self.session.subscribe(move |change| _ = changes.send(News::Change(change)));
        let mut model = Model::default();
        loop {
            if self.refresh_in() == Some(Duration::ZERO) {
                self.show(&mut model);
            }
            self.screen.draw(|frame| draw::draw(frame, &mut model)).map_err(lost)?;
            let mut next = news.recv_timeout(self.refresh_in().unwrap_or(Duration::MAX)).ok();
            // All that is there is taken on before anything is drawn.
            while let Some(event) = next {
                if let News::Change(Err(error @ Error::Refused { .. })) = event {
                    return Err(session::failed(error));
                }
                match self.on_news(event, &mut model) {
                    Act::Nothing => {}
                    Act::Quit => return Ok(ExitCode::SUCCESS),
                    Act::Stop => self.stop()?,
                    Act::Release(name) => {
                        let (sender, released) = (self.sender.clone(), name.clone());
                        let then = move |answer| _ = sender.send(News::Released(released, answer));
                        self.session.force_release_then(&name, then);
                    }
                }
                next = news.try_recv().ok();
            }
        }
    }

    fn on_news(&mut self, news: News, model: &mut Model) -> Act {
        match news {
            News::Terminal(Event::Key(key)) => return model.press(key),
            News::Terminal(_) => {}
            News::Quit => return Act::Quit,
            News::Change(Ok(change)) => {
                self.live.take(change, Instant::now());
                (self.changed, self.outdated) = (true, true);
            }
            News::Change(Err(error)) | News::Deadlocks(Err(error)) => {
                self.asking = false;
                model.note = Some(error.to_string());
            }
            News::Deadlocks(Ok(found)) => {
                self.asking = false;
                self.changed |= self.live.deadlocks != found.deadlocks;
                self.live.deadlocks = found.deadlocks;
            }
            News::Released(name, answer) => {
                model.note = Some(match answer {
                    Ok(_) => format!("Broke the locks of {}", show::name(&name)),
                    Err(error) => error.to_string(),
                });
            }
        }
        Act::Nothing
    }

    /// How long the screen stays current. Nothing is refreshed before the daemon's first message.
    fn refresh_in(&self) -> Option<Duration> {
        let Some((shown, took)) = self.shown else { return self.changed.then_some(Duration::ZERO) };
        let pause = if self.changed { CHANGED } else { REFRESH };
        Some((shown + pause.max(took * 5)).saturating_duration_since(Instant::now()))
    }

    fn show(&mut self, model: &mut Model) {
        let began = Instant::now();
        if !self.live.may_deadlock() {
            self.live.deadlocks.clear();
        } else if !self.asking && std::mem::take(&mut self.outdated) {
            self.asking = true;
            let sender = self.sender.clone();
            let then = move |answer| _ = sender.send(News::Deadlocks(answer));
            self.session.inspect_then(Some(&Name::from(NOBODY)), then);
        }
        model.stopped = self.session.server_pid().filter(|&pid| session::stopped(pid));
        model.take(self.live.snapshot(began), began);
        self.shown = Some((began, began.elapsed()));
        self.changed = false;
    }

    /// Gives the terminal back to the shell until `fg`.
    fn stop(&mut self) -> Result<(), Failure> {
        ratatui::restore();
        let _ = kill_process(getpid(), Signal::TSTP);
        self.screen = ratatui::try_init().map_err(lost)?;
        Ok(())
    }
}

fn lost(error: io::Error) -> Failure {
    (exit::SOFTWARE, format!("the terminal: {error}"))
}
