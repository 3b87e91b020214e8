//! `lockkeeper top`: who holds and who waits, live.
//!
//! The `model` is what there is to see and what keys do to it; `draw` puts it on the screen. Here are the terminal and the
//! daemon: keys, answers and signals arrive in one queue, and nothing is asked more often than once a second.

mod draw;
mod model;

use crate::{Done, Failure, exit, session, show};
use lockkeeper_client::{Error, Session, Snapshot};
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

/// How often the daemon is asked; less often if it takes its time.
const REFRESH: Duration = Duration::from_secs(1);

enum News {
    Terminal(Event),
    Snapshot(Result<Snapshot, Error>),
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
    let done = Top { session, screen, sender, asked: None, took: Duration::ZERO }.run(&news);
    ratatui::restore();
    done
}

struct Top {
    session: Session,
    screen: ratatui::DefaultTerminal,
    sender: Sender<News>,
    /// When the answer that is waited for was asked for.
    asked: Option<Instant>,
    took: Duration,
}

impl Top {
    fn run(&mut self, news: &Receiver<News>) -> Done {
        let keys = self.sender.clone();
        thread::spawn(move || {
            while let Ok(event) = event::read()
                && keys.send(News::Terminal(event)).is_ok()
            {}
            // A terminal that cannot be read is none.
            let _ = keys.send(News::Quit);
        });
        let mut model = Model::default();
        let mut refresh_at = Instant::now();
        loop {
            if self.asked.is_none() && Instant::now() >= refresh_at {
                self.ask();
            }
            self.screen.draw(|frame| draw::draw(frame, &mut model)).map_err(lost)?;
            let wait = match self.asked {
                None => refresh_at.saturating_duration_since(Instant::now()),
                Some(_) => Duration::MAX,
            };
            let act = match news.recv_timeout(wait) {
                Ok(News::Terminal(Event::Key(key))) => model.press(key),
                Ok(News::Terminal(_)) | Err(_) => Act::Nothing,
                Ok(News::Quit) => Act::Quit,
                Ok(News::Snapshot(answer)) => {
                    self.took = self.asked.take().map_or(Duration::ZERO, |asked| asked.elapsed());
                    refresh_at = Instant::now() + REFRESH.max(self.took * 5);
                    self.show(answer, &mut model);
                    Act::Nothing
                }
                Ok(News::Released(name, answer)) => {
                    model.note = Some(match answer {
                        Ok(_) => format!("Broke the locks of {}", show::name(&name)),
                        Err(error) => error.to_string(),
                    });
                    refresh_at = Instant::now();
                    Act::Nothing
                }
            };
            match act {
                Act::Nothing => {}
                Act::Quit => return Ok(ExitCode::SUCCESS),
                Act::Stop => self.stop()?,
                Act::Release(name) => {
                    let (sender, released) = (self.sender.clone(), name.clone());
                    let then = move |answer| _ = sender.send(News::Released(released, answer));
                    self.session.force_release_then(&name, then);
                }
            }
        }
    }

    fn ask(&mut self) {
        self.asked = Some(Instant::now());
        let sender = self.sender.clone();
        self.session.inspect_then(None, move |answer| _ = sender.send(News::Snapshot(answer)));
    }

    fn show(&mut self, answer: Result<Snapshot, Error>, model: &mut Model) {
        match answer {
            Ok(snapshot) => {
                if show::hides(&snapshot.entries) {
                    model.note = Some(show::HIDDEN.into());
                }
                model.take(snapshot, Instant::now());
            }
            Err(error) => model.note = Some(error.to_string()),
        }
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
