//! The requests of a session, and how the daemon's words change them.

use lockkeeper_core::{Cause, Mode, Name};
use lockkeeper_wire::{Claim, Flags, Seal, ToClient, ToServer, code, frame};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// What is in a claim, or before a message, and not in a request: at most so many bytes.
const RECLAIMED: usize = 64;

const TOO_LONG: &str = "limit reached: a request has names and a label of 1 MiB at most";

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It waits.
    Queued {
        /// Its place in the order of arrivals.
        ticket: u64,
    },
    /// The lock is held.
    Granted {
        /// The fencing token.
        token: u64,
    },
    /// It was not to wait, and is over.
    Unavailable,
    /// The daemon refuses it, and it is over. The code is one of the protocol's.
    Refused {
        /// Why, for programs.
        code: u32,
        /// Why, for people.
        message: String,
    },
    /// It would have waited in a cycle, was not to, and is over.
    Deadlocked(Deadlock),
    /// The lock was broken, and is over. A request that waited can be lost too.
    Broken(Cause),
    /// It was released or aborted, as this side wished.
    Ended,
}

/// A request to be made.
pub struct Request {
    /// The names, each with its mode.
    pub scope: Vec<(Name, Mode)>,
    /// How.
    pub flags: Flags,
    /// The request of this session within which it is made.
    pub nested_in: Option<u64>,
    /// A label for people.
    pub info: Option<String>,
    /// Told what becomes of it. Runs on the session's thread: it must not wait for anything.
    pub listener: Arc<dyn Fn(Event) + Send + Sync>,
}

/// One name of one request, as the daemon shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Name,
    /// How it is asked for.
    pub mode: Mode,
    /// Whose request it is.
    pub client_id: String,
    /// The place of the request in the order of arrivals.
    pub ticket: u64,
    /// The fencing token, if it is held.
    pub token: Option<u64>,
    /// The label.
    pub info: Option<String>,
    /// For how many milliseconds it has waited, or has been held.
    pub since: u64,
    /// The ticket of the request within which it was made.
    pub nested_in: Option<u64>,
    /// Whether it was made with *steal*.
    pub stole: bool,
    /// Its process, if that is one of the daemon's machine.
    pub pid: Option<u32>,
}

/// Requests each of which waits for the next, the last for the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The cycle, for people.
    pub words: String,
    /// Its requests; none if they are not to be known.
    pub cycle: Vec<Step>,
}

/// One request of a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The place of the request in the order of arrivals.
    pub ticket: u64,
    /// Whose request it is.
    pub client_id: String,
    /// The name it waits for; none if it waits for the next request, which is nested in it.
    pub waits_for: Option<Name>,
}

/// What the daemon shows of a bucket, or of one name of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// A name of a request each: held first, each in the order of arrival.
    pub entries: Vec<Entry>,
    /// The cycles, if they were asked for.
    pub deadlocks: Vec<Deadlock>,
    /// The greatest token that was given out; 0 if that is not to be known.
    pub last_token: u64,
}

/// The answer to a question: what was asked for; or a refusal, with one of the protocol's codes; or, with 0, that the daemon
/// went away.
pub type Answer = Result<Snapshot, (u32, String)>;

/// Who waits for an answer.
pub(crate) type Asker = Box<dyn FnOnce(Answer) + Send>;

#[derive(Default)]
pub(crate) struct Table {
    /// Live requests, by number: in the order in which they were made.
    requests: BTreeMap<u64, Live>,
    /// Questions that are not answered yet. Nobody asks them again: who asked is told that the daemon is gone.
    questions: HashMap<u64, Asker>,
    last: u64,
}

struct Live {
    request: Request,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    Asked,
    Waiting { ticket: u64 },
    Held { token: u64, receipt: Seal },
    Releasing,
    Aborting { timed_out: bool },
}

/// Whom to tell what, once the table is let go.
pub(crate) enum Told {
    Nobody,
    Listener(Arc<dyn Fn(Event) + Send + Sync>, Event),
    Asker(Asker, Answer),
}

impl Told {
    pub(crate) fn tell(self) {
        match self {
            Self::Nobody => {}
            Self::Listener(listener, event) => listener(event),
            Self::Asker(asker, answer) => asker(answer),
        }
    }
}

impl Table {
    /// Enters a request and appends it to what is sent. Returns its number; and, if it is too long, that it is refused.
    pub(crate) fn ask(&mut self, request: Request, out: &mut Vec<u8>) -> (u64, Told) {
        self.last += 1;
        let live = Live { request, stage: Stage::Asked };
        if !fits(out, |out| live.say(self.last, out)) {
            let refused = Event::Refused { code: code::LIMIT, message: TOO_LONG.into() };
            return (self.last, live.told(refused));
        }
        self.requests.insert(self.last, live);
        (self.last, Told::Nobody)
    }

    /// Wants a lock no more, whether it is held or still waited for. `false` if it was over already.
    pub(crate) fn give_up(&mut self, rid: u64, timed_out: bool, out: &mut Vec<u8>) -> bool {
        let Some(live) = self.requests.get_mut(&rid) else { return false };
        live.stage = match live.stage {
            Stage::Held { .. } => Stage::Releasing,
            Stage::Asked | Stage::Waiting { .. } => Stage::Aborting { timed_out },
            Stage::Releasing | Stage::Aborting { .. } => return false,
        };
        live.say(rid, out);
        true
    }

    /// The same, without an answer: its listener hears no more.
    pub(crate) fn let_go(&mut self, rid: u64, out: &mut Vec<u8>) -> bool {
        let lives = |live: &Live| !matches!(live.stage, Stage::Releasing | Stage::Aborting { .. });
        let lives = self.requests.get(&rid).is_some_and(lives);
        if lives {
            self.requests.remove(&rid);
            send(out, &ToServer::Drop { rid });
        }
        lives
    }

    pub(crate) fn question<'a>(
        &mut self,
        asker: Asker,
        message: impl FnOnce(u64) -> ToServer<'a>,
        out: &mut Vec<u8>,
    ) -> Told {
        self.last += 1;
        if !fits(out, |out| send(out, &message(self.last))) {
            return Told::Asker(asker, Err((code::LIMIT, TOO_LONG.into())));
        }
        self.questions.insert(self.last, asker);
        Told::Nobody
    }

    /// What the daemon says of one request or question.
    pub(crate) fn hear(&mut self, message: ToClient<'_>) -> Told {
        self.understand(message).unwrap_or(Told::Nobody)
    }

    fn understand(&mut self, message: ToClient<'_>) -> Option<Told> {
        let (rid, event) = match message {
            ToClient::Granted { rid, token, receipt } => {
                let live = self.requests.get_mut(&rid)?;
                match live.stage {
                    Stage::Asked | Stage::Waiting { .. } => {
                        live.stage = Stage::Held { token, receipt };
                        return Some(live.told(Event::Granted { token }));
                    }
                    // It was reclaimed; or is given up, which the daemon will hear.
                    _ => return None,
                }
            }
            ToClient::Queued { rid, ticket } => {
                let live = self.requests.get_mut(&rid)?;
                let news = matches!(live.stage, Stage::Asked);
                if matches!(live.stage, Stage::Asked | Stage::Waiting { .. }) {
                    live.stage = Stage::Waiting { ticket };
                }
                return news.then(|| live.told(Event::Queued { ticket }));
            }
            ToClient::Unavailable { rid } => (rid, Event::Unavailable),
            ToClient::Released { rid } | ToClient::Aborted { rid } => {
                if let Some(asker) = self.questions.remove(&rid) {
                    return Some(Told::Asker(asker, Ok(Snapshot::default())));
                }
                (rid, Event::Ended)
            }
            ToClient::Broken { rid, cause } => (rid, Event::Broken(cause)),
            ToClient::Refused { rid, code, message } => {
                if let Some(asker) = self.questions.remove(&rid) {
                    return Some(Told::Asker(asker, Err((code, message.into()))));
                }
                (rid, Event::Refused { code, message: message.into() })
            }
            ToClient::Deadlocked { rid, deadlock } => (rid, Event::Deadlocked(deadlock.into())),
            ToClient::Snapshot { rid, entries, deadlocks, last_token } => {
                let asker = self.questions.remove(&rid)?;
                let entries = entries.into_iter().map(Entry::from).collect();
                let deadlocks = deadlocks.into_iter().map(Deadlock::from).collect();
                return Some(Told::Asker(asker, Ok(Snapshot { entries, deadlocks, last_token })));
            }
            ToClient::Welcome { .. } | ToClient::Pong | ToClient::Goodbye { .. } => return None,
        };
        Some(self.requests.remove(&rid)?.told(event))
    }

    /// The daemon is gone: what was to be given up is, and questions have no answer.
    pub(crate) fn disconnected(&mut self) -> Vec<Told> {
        let mut told = self.unanswered();
        let over = |live: &Live| matches!(live.stage, Stage::Releasing | Stage::Aborting { .. });
        let ended: Vec<u64> =
            self.requests.iter().filter(|(_, live)| over(live)).map(|(rid, _)| *rid).collect();
        let ended = ended.iter().filter_map(|rid| self.requests.remove(rid));
        told.extend(ended.map(|live| live.told(Event::Ended)));
        told
    }

    fn unanswered(&mut self) -> Vec<Told> {
        let gone = || Err((0, "the daemon went away".into()));
        self.questions.drain().map(|(_, asker)| Told::Asker(asker, gone())).collect()
    }

    /// Says to a daemon that has the session what is in the table.
    pub(crate) fn reclaim(&self, out: &mut Vec<u8>) {
        for (rid, live) in &self.requests {
            live.say_again(*rid, out);
        }
        send(out, &ToServer::Ready);
    }

    /// The session is over: all is lost.
    pub(crate) fn lose(&mut self) -> Vec<Told> {
        let mut told = self.unanswered();
        let all = std::mem::take(&mut self.requests);
        told.extend(all.into_values().map(|live| live.told(Event::Broken(Cause::Lost))));
        told
    }
}

impl Live {
    fn told(&self, event: Event) -> Told {
        Told::Listener(Arc::clone(&self.request.listener), event)
    }

    fn say(&self, rid: u64, out: &mut Vec<u8>) {
        match self.stage {
            Stage::Releasing => send(out, &ToServer::Release { rid }),
            Stage::Aborting { timed_out } => send(out, &ToServer::Abort { rid, timed_out }),
            _ => {
                let Request { flags, nested_in, ref info, .. } = self.request;
                let (scope, info) = (self.scope(), info.as_deref());
                send(out, &ToServer::Request { rid, scope, flags, nested_in, info });
            }
        }
    }

    fn say_again(&self, rid: u64, out: &mut Vec<u8>) {
        let claim = match self.stage {
            Stage::Held { token, receipt } => Claim::Held { token, receipt },
            Stage::Waiting { ticket } => Claim::Waiting { ticket: Some(ticket) },
            _ => return self.say(rid, out),
        };
        let (scope, info) = (self.scope(), self.request.info.as_deref());
        send(out, &ToServer::Reclaim { rid, scope, info, claim });
    }

    fn scope(&self) -> Vec<(&[u8], Mode)> {
        self.request.scope.iter().map(|(name, mode)| (name.as_bytes(), *mode)).collect()
    }
}

impl From<lockkeeper_wire::Entry<'_>> for Entry {
    fn from(entry: lockkeeper_wire::Entry<'_>) -> Self {
        Self {
            name: Name::from(entry.name),
            mode: entry.mode,
            client_id: entry.client_id.into(),
            ticket: entry.ticket,
            token: entry.token,
            info: entry.info.map(Into::into),
            since: entry.since,
            nested_in: entry.nested_in,
            stole: entry.stole,
            pid: entry.pid,
        }
    }
}

impl From<lockkeeper_wire::Deadlock<'_>> for Deadlock {
    fn from(deadlock: lockkeeper_wire::Deadlock<'_>) -> Self {
        let cycle = deadlock.cycle.into_iter().map(|step| Step {
            ticket: step.ticket,
            client_id: step.client_id.into(),
            waits_for: step.waits_for.map(Name::from),
        });
        Self { words: deadlock.words.into(), cycle: cycle.collect() }
    }
}

/// Appends a message, unless a daemon would take it for a mistake of the whole session's: then, or when it is reclaimed.
fn fits(out: &mut Vec<u8>, say: impl FnOnce(&mut Vec<u8>)) -> bool {
    let start = out.len();
    say(out);
    let fits = out.len() - start <= frame::MAX - RECLAIMED;
    if !fits {
        out.truncate(start);
    }
    fits
}

pub(crate) fn send(out: &mut Vec<u8>, message: &ToServer<'_>) {
    frame::append(out, |out| message.encode(out));
}
