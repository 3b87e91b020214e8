//! A worker: a process that requests locks, touches the protected resources while its locks are
//! valid by its own clock, and records every event.
//!
//! It has several *hands*, threads that share one session. The driver writes to its standard input:
//! `settle` ends the loop, and makes it request every name once more, without a limit, so that a
//! lock that was never released shows. End of file ends the worker.

use crate::{
    history::{Line, Lines, Touch, What},
    now,
    plan::{NAMES, Wish},
    run_dir::RunDir,
};
use fastrand::Rng;
use lockkeeper_client::{Callbacks, Endpoint, Flags, Key, Options, Outcome, Request, Session, Update};
use lockkeeper_core::{Cause, Mode, Name};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::{
    collections::HashMap,
    io::{self, BufRead as _},
    path::Path,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// The arguments of a worker.
#[derive(Clone, Copy, Debug)]
pub struct Orders {
    /// The number of its history.
    pub process: usize,
    /// Where its choices come from.
    pub seed: u64,
    /// How many requests it makes at a time.
    pub hands: usize,
    /// Whether it keeps using a lock after it was notified that the lock is lost, as no client
    /// should.
    pub stubborn: bool,
}

/// How often a holder touches what it holds.
const TOUCH: Duration = Duration::from_millis(2);

/// How much longer such a holder continues.
const STUBBORN: Duration = Duration::from_secs(3);

/// How long a stubborn holder holds, now and then.
const LONG: Duration = Duration::from_millis(1500);

/// How long to wait before a session is tried to be opened again.
const PAUSE: Duration = Duration::from_millis(3);

/// Works until it is stopped.
///
/// # Errors
///
/// If its files cannot be used.
pub fn work(dir: &Path, url: &str, orders: Orders) -> io::Result<()> {
    // It must not remain stopped after the driver has died.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let run_dir = RunDir::at(dir);
    let resource = |name: &'static str| Ok((name, Lines::open(&run_dir.resource(name))?));
    let worker = Arc::new(Worker {
        orders,
        endpoint: url.parse().map_err(io::Error::other)?,
        session: Mutex::default(),
        history: Lines::open(&run_dir.history(orders.process))?,
        resources: NAMES.into_iter().map(resource).collect::<io::Result<_>>()?,
        requests: AtomicU64::new(0),
        settling: AtomicBool::new(false),
    });
    let hand = |number: usize| {
        let worker = Arc::clone(&worker);
        let rng = Rng::with_seed(orders.seed.wrapping_mul(31).wrapping_add(number as u64));
        thread::spawn(move || worker.hand(rng))
    };
    let hands: Vec<_> = (0..orders.hands).map(hand).collect();
    let mut lines = io::stdin().lock().lines();
    if lines.next().transpose()?.as_deref() != Some("settle") {
        return Ok(());
    }
    worker.settling.store(true, Ordering::Relaxed);
    for hand in hands {
        hand.join().map_err(|_| io::Error::other("a hand panicked"))?;
    }
    for name in NAMES {
        worker.carry_out(Wish {
            scope: vec![(name.to_owned(), Mode::Exclusive)],
            flags: Flags::default(),
            patience: None,
            hold: Duration::ZERO,
            hears: false,
            lets_go: false,
        });
    }
    println!("settled");
    lines.next().transpose()?;
    Ok(())
}

struct Worker {
    orders: Orders,
    endpoint: Endpoint,
    /// The one that all hands use. After a loss it opens the next one by itself.
    session: Mutex<Option<Arc<Session>>>,
    history: Lines,
    resources: HashMap<&'static str, Lines>,
    /// How many requests were made.
    requests: AtomicU64,
    settling: AtomicBool,
}

impl Worker {
    fn hand(self: Arc<Self>, mut rng: Rng) {
        while !self.settling.load(Ordering::Relaxed) {
            let mut wish = Wish::draw(&mut rng);
            // A lock has to be lost while it is held, for anything to be seen.
            if self.orders.stubborn && rng.u8(..4) == 0 {
                wish.hold = LONG;
            }
            self.carry_out(wish);
        }
    }

    /// Makes one request and sees it through to its end.
    fn carry_out(self: &Arc<Self>, wish: Wish) {
        let session = self.session();
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let scope: Vec<_> = wish.scope.iter().map(|(name, mode)| (Name::from(&name[..]), *mode)).collect();
        let attempt = Arc::new(Attempt {
            worker: Arc::clone(self),
            number,
            scope: wish.scope.clone(),
            stands: Mutex::new(Stands::Asked),
            news: Condvar::new(),
        });
        attempt.write(What::Asked { flags: wish.flags, scope: wish.scope.clone() });
        let listening = Arc::clone(&attempt);
        let request = Request { scope, flags: wish.flags, nested_in: None, info: None };
        let key = session.request(request, Box::new(move |update| listening.on_update(&update)));
        attempt.see_through(&session, key, &wish);
    }

    /// The session, opened if there is none.
    fn session(&self) -> Arc<Session> {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(session) = &*session {
                return Arc::clone(session);
            }
            match Session::open(&self.endpoint, Options::new("faults"), Callbacks) {
                Ok(opened) => *session = Some(Arc::new(opened)),
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }
}

/// One request.
struct Attempt {
    worker: Arc<Worker>,
    number: u64,
    scope: Vec<(String, Mode)>,
    /// The locks that are valid on this side. It is locked while a touch is made and while an event
    /// is written, so that no touch comes after the line that records the loss.
    stands: Mutex<Stands>,
    news: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stands {
    Asked,
    Held {
        token: u64,
        /// It was notified that the lock is lost, and ignores it.
        stubborn: bool,
    },
    /// This side wants it no more.
    GivenUp,
    Over(Option<Cause>),
}

impl Attempt {
    /// Waits, holds, and gives up.
    fn see_through(&self, session: &Session, key: Key, wish: &Wish) {
        let Wish { patience, hold, hears, lets_go, .. } = *wish;
        let deadline = patience.map(|patience| Instant::now() + patience);
        if hears {
            let answered = || *self.lock() != Stands::Asked;
            session.spin_for_reply(answered);
            session.wait(answered, deadline);
        }
        let mut stands = self.lock();
        while *stands == Stands::Asked {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            stands = self.wait(stands, left);
        }
        let mut until = Instant::now() + hold;
        while let Stands::Held { token, stubborn } = *stands {
            self.touch(token);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            stands = self.wait(stands, Some(left.min(TOUCH)));
            // It has just been notified.
            if !stubborn && matches!(*stands, Stands::Held { stubborn: true, .. }) {
                until += STUBBORN;
            }
        }
        let over = match *stands {
            Stands::Asked => {
                self.write(What::GivingUp);
                Stands::GivenUp
            }
            Stands::Held { stubborn, .. } => {
                self.write(What::Releasing);
                if stubborn { Stands::Over(Some(Cause::Lost)) } else { Stands::GivenUp }
            }
            over => over,
        };
        *stands = over;
        if over == Stands::GivenUp {
            drop(stands);
            if lets_go && session.detach(key) {
                return self.write(What::Ended);
            }
            session.release(key);
            stands = self.lock();
        }
        while !matches!(*stands, Stands::Over(_)) {
            stands = self.wait(stands, None);
        }
    }

    /// The daemon, or the session on its own, says what becomes of it.
    fn on_update(&self, update: &Update) {
        let mut stands = self.lock();
        let before = *stands;
        let (what, after) = match update {
            Update::Queued { .. } => (What::Queued, before),
            &Update::Granted { token } if before == Stands::Asked => {
                (What::Granted { token }, Stands::Held { token, stubborn: false })
            }
            &Update::Granted { token } => (What::Granted { token }, before),
            Update::Over(Outcome::Unavailable) => (What::Unavailable, Stands::Over(None)),
            &Update::Over(Outcome::Refused { code, .. }) => (What::Refused { code }, Stands::Over(None)),
            &Update::Over(Outcome::Broken { cause, .. }) => (What::Broken(cause), Stands::Over(Some(cause))),
            Update::Over(Outcome::Released) => (What::Ended, Stands::Over(None)),
            Update::Over(outcome) => unreachable!("no worker asks for that: {outcome:?}"),
        };
        let lost = matches!(update, Update::Over(Outcome::Broken { cause: Cause::Lost, .. }));
        match before {
            Stands::Held { token, .. } if lost && self.worker.orders.stubborn => {
                *stands = Stands::Held { token, stubborn: true };
            }
            _ => {
                self.write(what);
                *stands = after;
            }
        }
        self.news.notify_all();
    }

    /// Is at work with what it holds.
    fn touch(&self, token: u64) {
        for (name, mode) in &self.scope {
            let (process, request) = (self.worker.orders.process, self.number);
            let touch = Touch { at: now(), token, mode: *mode, process, request };
            self.worker.resources[&name[..]].append(touch.format());
        }
    }

    fn write(&self, what: What) {
        self.worker.history.append(Line { at: now(), request: self.number, what }.format());
    }

    fn lock(&self) -> MutexGuard<'_, Stands> {
        self.stands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, stands: MutexGuard<'a, Stands>, most: Option<Duration>) -> MutexGuard<'a, Stands> {
        match most {
            Some(most) => self
                .news
                .wait_timeout(stands, most)
                .map_or_else(|error| error.into_inner().0, |woken| woken.0),
            None => self.news.wait(stands).unwrap_or_else(PoisonError::into_inner),
        }
    }
}
