//! A session with a daemon. Nothing here waits on the thread of the caller: what the daemon says comes as letters.

use crate::{
    agent::{at_thread_exit, bell},
    fast::{Numbers, flag},
    names,
    report::{self, Place},
    state::{Address, Bell, Letter, State},
};
use lockkeeper_client::{Answer, Deadlock, Endpoint, Entry, Event, Flags, Request, Session, Snapshot, Step};
use lockkeeper_core::Cause;
use napi::{
    Env, Error, JsString, Result,
    bindgen_prelude::{BigInt, Float64ArraySlice, Function},
};
use napi_derive::napi;
use std::{
    cell::RefCell,
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

/// A session of the thread that makes it.
#[napi]
pub struct Remote {
    shared: Arc<Shared>,
    numbers: Numbers,
    /// The requests by slot.
    slots: RefCell<Vec<u64>>,
}

struct Shared {
    mailbox: Address,
    state: Mutex<Opening>,
    /// What is said in words, by slot, until it is fetched.
    words: Mutex<HashMap<u32, Words>>,
}

enum Opening {
    Pending,
    Open(Arc<Session>),
    Failed(String),
    Closed,
}

enum Words {
    Refused { code: u32, message: String },
    Deadlocked(Deadlock),
    Snapshot(Snapshot),
}

/// Why a request or question was refused.
#[napi(object, object_from_js = false)]
pub struct Refusal {
    pub code: u32,
    pub message: String,
    /// Of the deadlock that it would have been.
    pub cycle: Option<Vec<report::Step>>,
}

/// What a daemon shows.
#[napi(object, object_from_js = false)]
pub struct RemoteSnapshot {
    pub entries: Vec<RemoteEntry>,
    pub deadlocks: Vec<report::Deadlock>,
}

/// One name of one request.
#[napi(object, object_from_js = false)]
pub struct RemoteEntry {
    pub place: Place,
    pub client_id: String,
    pub ticket: BigInt,
    pub token: Option<BigInt>,
    pub info: Option<String>,
    pub since: f64,
    pub nested_in: Option<BigInt>,
    pub stole: bool,
}

#[napi]
impl Remote {
    /// Opens a session with the daemon at `url`, or this user's own, and starts `program` as the daemon if none answers.
    /// A letter tells when it is open.
    #[napi(constructor)]
    pub fn new(
        env: Env,
        mut numbers: Float64ArraySlice<'_>,
        on_mail: Function<'_, (), ()>,
        url: Option<String>,
        program: Option<String>,
        bucket: String,
    ) -> Result<Self> {
        let endpoint = url.map_or_else(Endpoint::from_env, |url| url.parse()).map_err(Error::from_reason)?;
        let bell = bell(&env, &on_mail)?;
        // SAFETY: nothing else reads or writes the array during this call.
        let numbers = Numbers::new(unsafe { numbers.as_mut() });
        let mailbox = State::lock().open(bell);
        let shared = Arc::new(Shared {
            mailbox,
            state: Mutex::new(Opening::Pending),
            words: Mutex::new(HashMap::new()),
        });
        env.add_env_cleanup_hook(Arc::clone(&shared), |shared| shared.end())?;
        let ending = Arc::clone(&shared);
        at_thread_exit(move || _ = ending.end_quietly());
        let opening = Arc::clone(&shared);
        let open = move || opening.opened(Session::open(&endpoint, program.map(Into::into), &bucket));
        let thread = thread::Builder::new().name("lockkeeper-connect".into()).spawn(open);
        thread.map_err(|error| Error::from_reason(error.to_string()))?;
        Ok(Self { shared, numbers, slots: RefCell::default() })
    }

    /// The client's id, once the session is open. Throws if it is not to be had.
    #[napi]
    pub fn client_id(&self) -> Result<String> {
        match &*self.shared.state() {
            Opening::Open(session) => Ok(session.client_id()),
            Opening::Failed(why) => Err(Error::from_reason(why.clone())),
            Opening::Pending | Opening::Closed => Err(Error::from_reason("the session is not open")),
        }
    }

    #[napi]
    pub fn collect(&self) {
        self.numbers.collect(self.shared.mailbox, false);
    }

    /// Looks out for the daemon's answer, for some microseconds. The caller collects letters next: the bell need not ring.
    #[napi]
    pub fn look_out(&self) {
        let place = self.shared.mailbox.place;
        if let Ok(session) = self.shared.session() {
            State::lock().look(place, true);
            session.look_out(|| !State::lock().letters(place).is_empty());
        }
    }

    /// Makes a request, of the slot and with the flags in the numbers.
    #[napi]
    pub fn request(
        &self,
        env: Env,
        names: Vec<JsString<'_>>,
        shared: Vec<bool>,
        nested_in: Option<u32>,
        info: Option<String>,
    ) -> Result<()> {
        let session = self.shared.session()?;
        let (slot, flags) = self.numbers.given();
        let scope = names::scope(&env, &names, &shared)?;
        let mut slots = self.slots.borrow_mut();
        let listening = Arc::clone(&self.shared);
        let rid = session.request(Request {
            scope,
            flags: Flags {
                if_available: flags & flag::IF_AVAILABLE != 0,
                steal: flags & flag::STEAL != 0,
                refuse_deadlock: flags & flag::REFUSE_DEADLOCK != 0,
            },
            nested_in: nested_in.and_then(|slot| slots.get(slot as usize).copied()),
            info,
            listener: Arc::new(move |event| listening.hear(slot, event)),
        });
        match slots.get_mut(slot as usize) {
            Some(place) => *place = rid,
            None => slots.push(rid),
        }
        Ok(())
    }

    /// Releases a lock or gives a request up, perhaps because its time was up. A letter tells when it is done.
    #[napi]
    pub fn release(&self, slot: u32, timed_out: bool) {
        let rid = self.slots.borrow().get(slot as usize).copied();
        if let (Some(rid), Ok(session)) = (rid, self.shared.session()) {
            _ = if timed_out { session.time_out(rid) } else { session.release(rid) };
        }
    }

    /// Asks for the state of the bucket, and for its deadlocks. A letter to the slot tells when the answer is there.
    #[napi]
    pub fn query(&self, slot: u32, deadlocks: bool) -> Result<()> {
        let (session, shared) = (self.shared.session()?, Arc::clone(&self.shared));
        let answered = move |answer| shared.answered(slot, answer);
        match deadlocks {
            true => session.inspect_then(None, answered),
            false => session.query_then(None, answered),
        }
        Ok(())
    }

    /// Breaks every lock of a name.
    #[napi]
    pub fn force_release(&self, env: Env, slot: u32, name: JsString<'_>) -> Result<()> {
        let (name, shared) = (names::name(&env, &name)?, Arc::clone(&self.shared));
        self.shared.session()?.force_release_then(&name, move |answer| shared.answered(slot, answer));
        Ok(())
    }

    /// Why what had this slot was refused.
    #[napi]
    pub fn refusal(&self, slot: u32) -> Option<Refusal> {
        match self.shared.words().remove(&slot)? {
            Words::Refused { code, message } => Some(Refusal { code, message, cycle: None }),
            Words::Deadlocked(Deadlock { words, cycle }) => {
                Some(Refusal { code: 0, message: words, cycle: Some(steps(cycle)) })
            }
            Words::Snapshot(_) => None,
        }
    }

    /// The answer to a query.
    #[napi]
    pub fn snapshot(&self, slot: u32) -> Option<RemoteSnapshot> {
        let Some(Words::Snapshot(snapshot)) = self.shared.words().remove(&slot) else { return None };
        let entry = |entry: Entry| RemoteEntry {
            place: report::place(&entry.name, entry.mode),
            client_id: entry.client_id,
            ticket: BigInt::from(entry.ticket),
            token: entry.token.map(BigInt::from),
            info: entry.info,
            #[expect(clippy::cast_precision_loss, reason = "milliseconds")]
            since: entry.since as f64,
            nested_in: entry.nested_in.map(BigInt::from),
            stole: entry.stole,
        };
        let deadlock = |Deadlock { words, cycle }| report::Deadlock { message: words, cycle: steps(cycle) };
        Some(RemoteSnapshot {
            entries: snapshot.entries.into_iter().map(entry).collect(),
            deadlocks: snapshot.deadlocks.into_iter().map(deadlock).collect(),
        })
    }

    /// Ends the session, and all it has with it.
    #[napi]
    pub fn close(&self) {
        self.shared.close();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, Opening> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn words(&self) -> MutexGuard<'_, HashMap<u32, Words>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self) -> Result<Arc<Session>> {
        match &*self.state() {
            Opening::Open(session) => Ok(Arc::clone(session)),
            _ => Err(Error::from_reason("the session is closed")),
        }
    }

    fn opened(&self, opened: std::result::Result<Session, lockkeeper_client::Error>) {
        let mut state = self.state();
        // A session that nobody wants any more ends here.
        if let Opening::Pending = *state {
            *state = match opened {
                Ok(session) => Opening::Open(Arc::new(session)),
                Err(error) => Opening::Failed(error.to_string()),
            };
        }
        drop(state);
        State::lock().post(self.mailbox, Letter::Opened);
    }

    fn hear(&self, slot: u32, event: Event) {
        let letter = match event {
            Event::Queued { .. } => return,
            Event::Granted { token } => Letter::Granted { slot, token },
            Event::Unavailable => Letter::Unavailable { slot },
            Event::Broken(cause @ (Cause::Stolen | Cause::Lost)) => Letter::Broken { slot, cause },
            Event::Ended => Letter::Ended { slot },
            Event::Refused { code, message } => {
                return self.say(slot, Words::Refused { code, message }, Letter::Refused { slot });
            }
            Event::Deadlocked(deadlock) => {
                return self.say(slot, Words::Deadlocked(deadlock), Letter::Refused { slot });
            }
        };
        State::lock().post(self.mailbox, letter);
    }

    fn answered(&self, slot: u32, answer: Answer) {
        match answer {
            Ok(snapshot) => self.say(slot, Words::Snapshot(snapshot), Letter::Ended { slot }),
            Err((code, message)) => {
                self.say(slot, Words::Refused { code, message }, Letter::Refused { slot })
            }
        }
    }

    fn say(&self, slot: u32, words: Words, letter: Letter) {
        self.words().insert(slot, words);
        State::lock().post(self.mailbox, letter);
    }

    fn close(&self) {
        // Dropped outside: its end may be told while the mutex is held.
        let was = std::mem::replace(&mut *self.state(), Opening::Closed);
        drop(was);
    }

    /// At the environment's end: no code of this thread runs any more.
    fn end(&self) {
        self.end_quietly().into_iter().for_each(Bell::release);
    }

    fn end_quietly(&self) -> Option<Bell> {
        self.close();
        State::lock().shut(self.mailbox)
    }
}

fn steps(cycle: Vec<Step>) -> Vec<report::Step> {
    let step = |Step { ticket, client_id, waits_for }| report::Step {
        request: BigInt::from(ticket),
        client_id,
        waits_for: waits_for.as_ref().map(names::to_js),
    };
    cycle.into_iter().map(step).collect()
}
