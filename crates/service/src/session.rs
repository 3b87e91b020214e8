//! The client's side of a session, whatever carries it.
//!
//! A driver owns the connection and the clock. Methods, in the order in which it calls them:
//!
//! * [`connect_at`](Session::connect_at) says when to try to connect. Then
//!   [`connected`](Session::connected) or [`connect_failed`](Session::connect_failed),
//!   [`message`](Session::message) for what comes, [`disconnected`](Session::disconnected);
//! * commands of the host: [`request`](Session::request), [`release`](Session::release),
//!   [`query`](Session::query), [`subscribe`](Session::subscribe),
//!   [`force_release`](Session::force_release), [`end_session`](Session::end_session),
//!   [`close`](Session::close);
//! * time: [`next_wake`](Session::next_wake) says when to call [`wake`](Session::wake);
//! * output: [`take_output`](Session::take_output) for the connection,
//!   [`next_event`](Session::next_event) for the host, [`wants_drop`](Session::wants_drop) for a
//!   connection that is of no use any more.
//!
//! Requests carry the host's data (`T`), handed back with their end.
//!
//! # The lease
//!
//! On a network the client considers its locks lost three quarters of the ttl after it *sent* the
//! last message that was answered, and the server ends the session a whole ttl after it *heard* it.
//! So the client is always first, as long as the clocks of the two do not differ in rate by more
//! than a third. [`is_held`](Session::is_held) looks at the clock when it is asked.
//!
//! # Resume
//!
//! After a connection was lost the client compares what it wants with what the server has. Nothing
//! is said again that the server knows, and nothing is believed that it does not.

mod resume;
mod transfer;
mod types;

pub use transfer::Transfer;

pub use types::{
    Answer, Change, Deadlock, Entry, Event, Failure, Key, Outcome, Outer, Request, SessionConfig, Snapshot,
    Step,
};

use crate::{
    Micros, micros,
    sabotage::{Rule, holds},
};
use lockkeeper_core::Cause;
use lockkeeper_wire::{
    frame,
    v2::{EndFlags, Secret, ToClient, ToServer, VERSION, code, feature},
};
use resume::Sync;
use std::collections::{BTreeMap, VecDeque};

/// For how long a lease of that many milliseconds is valid for the client: less than three quarters
/// of it.
pub fn client_lease(ttl: u64) -> Micros {
    let ttl = micros(ttl);
    if holds(Rule::LeaseIsShorter) { ttl / 4 * 3 + ttl % 4 * 3 / 4 } else { ttl / 4 * 5 }
}

/// How many pings a client sends within a ttl. Two without an answer are enough to try another
/// connection, or another daemon, well before a command under the lock would have to be ended, at
/// half of the ttl.
const BEATS: u64 = 7;

/// How long the server may take to answer the first Hello.
const HELLO_TIMEOUT: Micros = 10_000_000;

/// Between attempts to connect: at first, and at most.
const PAUSE: Micros = 20_000;
const LONGEST_PAUSE: Micros = 2_000_000;

/// How many attempts there are at least while a lease is valid.
const ATTEMPTS: u64 = 8;

/// A session with a server, or with one after the other.
pub struct Session<T> {
    config: SessionConfig,
    identity: Option<Identity>,
    /// The number of the last Hello.
    hello: u64,
    link: Link,
    /// Counts connections. The newest is the only one that is listened to.
    connection: u64,
    /// When to try to connect, if there is no connection.
    connect_at: Option<Micros>,
    failures: u32,
    lease: Lease,
    /// The session lives as long as its descriptor is open: it has no lease.
    lives_by_fifo: bool,
    pings: VecDeque<(u64, Micros)>,
    next_ping: Micros,
    seq: u64,
    ack: u64,
    last_rid: u64,
    next_key: Key,
    entries: BTreeMap<Key, Record<T>>,
    /// The entries that have a number, by number.
    by_rid: BTreeMap<u64, Key>,
    output: Vec<u8>,
    events: VecDeque<Event<T>>,
    drop_connection: bool,
    ever_opened: bool,
    closed: bool,
}

struct Identity {
    client_id: String,
    secret: Secret,
}

enum Link {
    None,
    /// Hello was sent at that time.
    Hello {
        sent: Micros,
    },
    /// Welcome came, the end marker not yet.
    Syncing {
        sent: Micros,
        sync: Sync,
    },
    Ready,
}

/// Until when the session's lease is valid.
#[derive(Clone, Copy)]
struct Lease {
    /// In milliseconds; none if there is no session, or it lives by a FIFO.
    ttl: Option<u64>,
    /// When the last message was sent that was answered.
    answered: Micros,
}

/// A request or a question.
struct Record<T> {
    /// The number that it has on the wire, once it was sent.
    rid: Option<u64>,
    stage: Stage,
    body: Body,
    data: T,
}

enum Body {
    Request(Request),
    Query {
        name: Option<lockkeeper_core::Name>,
        deadlocks: bool,
        parts: Snapshot,
    },
    ForceRelease {
        name: lockkeeper_core::Name,
    },
    EndSession {
        client_id: String,
    },
    /// `whole` if no state is on its way, of which there are these parts.
    Subscribe {
        parts: Snapshot,
        whole: bool,
    },
}

impl Body {
    /// Whether no server takes a message as long as this: it would end the session.
    fn is_too_long(&self) -> bool {
        let length = match self {
            Self::Request(request) => return request.is_too_long(),
            Self::Query { name, .. } => name.as_ref().map_or(0, |name| name.as_bytes().len()),
            Self::ForceRelease { name } => name.as_bytes().len(),
            Self::EndSession { client_id } => client_id.len(),
            Self::Subscribe { .. } => 0,
        };
        length + 256 > frame::MAX
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Not sent, or sent and not answered.
    Asked,
    Waiting,
    Held {
        token: u64,
    },
    /// The host no longer wants it, and wants to know when it has ended.
    Ending {
        timed_out: bool,
    },
}

impl<T> Session<T> {
    /// A session that is yet to be opened. It wants a connection at once.
    pub fn new(config: SessionConfig, now: Micros) -> Self {
        Self {
            config,
            identity: None,
            hello: 0,
            link: Link::None,
            connection: 0,
            connect_at: Some(now),
            failures: 0,
            lease: Lease { ttl: None, answered: now },
            lives_by_fifo: false,
            pings: VecDeque::new(),
            next_ping: 0,
            seq: 0,
            ack: 0,
            last_rid: 0,
            next_key: 0,
            entries: BTreeMap::new(),
            by_rid: BTreeMap::new(),
            output: Vec::new(),
            events: VecDeque::new(),
            drop_connection: false,
            ever_opened: false,
            closed: false,
        }
    }

    /// The session's public id, if there is a session.
    pub fn client_id(&self) -> Option<&str> {
        self.identity.as_ref().map(|identity| &identity.client_id[..])
    }

    /// Whether requests can be sent now.
    pub fn is_ready(&self) -> bool {
        matches!(self.link, Link::Ready)
    }

    /// When to connect; none while there is a connection, or the session is closed.
    pub fn connect_at(&self) -> Option<Micros> {
        self.connect_at
    }

    /// A connection stands. Returns its number, for [`message`](Self::message).
    pub fn connected(&mut self, now: Micros, token: Option<&str>) -> u64 {
        self.check_lease(now);
        self.connection += 1;
        self.connect_at = None;
        self.drop_connection = false;
        self.output.clear();
        self.pings.clear();
        self.hello += 1;
        let SessionConfig { bucket, owner, ttl, fifo, going_away_ends } = &self.config;
        let bit = |set: &bool, bit| if *set { bit } else { 0 };
        let features = bit(fifo, feature::FIFO) | bit(going_away_ends, feature::GOING_AWAY_ENDS);
        let resume = self.identity.as_ref().map(|identity| (&identity.client_id[..], identity.secret));
        let hello = ToServer::Hello {
            version: VERSION,
            features,
            hello: self.hello,
            bucket,
            resume,
            ack: self.ack,
            token,
            ttl: *ttl,
            owner: owner.as_deref(),
        };
        send(&mut self.output, &hello);
        self.link = Link::Hello { sent: now };
        if !holds(Rule::SilentUntilMarker) {
            self.resend_unanswered();
        }
        self.connection
    }

    /// No connection could be made: the next attempt comes later.
    pub fn connect_failed(&mut self, now: Micros, failure: &Failure) {
        self.check_lease(now);
        if self.closed {
            return;
        }
        if failure.is_final() {
            return self.fail(failure);
        }
        if !self.ever_opened {
            self.events.push_back(Event::Unreachable(failure.clone()));
        }
        self.connect_later(now);
    }

    /// A message came on the connection of that number. One from an older connection is ignored, as
    /// are all once the session is closed.
    pub fn message(&mut self, now: Micros, connection: u64, message: ToClient<'_>) {
        if self.closed || connection != self.connection && holds(Rule::NewestConnectionOnly) {
            return;
        }
        // It may have lain unread for long: in a page that was frozen, on a machine that was
        // suspended.
        if holds(Rule::ClockBeforeMessage) && self.check_lease(now) {
            return;
        }
        match message {
            ToClient::Welcome { number, client_id, secret, ttl, resumed, last_rid, .. } => {
                self.on_welcome(number, client_id, secret, ttl, resumed, last_rid);
            }
            ToClient::Listed { requests } => {
                if let Link::Syncing { sync, .. } = &mut self.link {
                    sync.list(&requests);
                }
            }
            ToClient::Synced => self.on_synced(now),
            ToClient::Granted { rid, token } => self.on_granted(rid, token),
            ToClient::Queued { rid, arrival } => {
                if let Some((key, record)) = self.record_of(rid)
                    && record.stage == Stage::Asked
                {
                    record.stage = Stage::Waiting;
                    self.events.push_back(Event::Queued { key, arrival });
                }
            }
            ToClient::Unavailable { rid } => self.finish_rid(rid, Outcome::Unavailable),
            ToClient::Released { rid } => {
                if self.record_of(rid).is_some_and(|(_, record)| matches!(record.stage, Stage::Ending { .. }))
                {
                    self.finish_rid(rid, Outcome::Released);
                }
            }
            ToClient::Broken { number, rid, cause, by, forced } => {
                self.ack = self.ack.max(number);
                self.finish_rid(rid, Outcome::Broken { cause, by: by.map(Into::into), forced });
            }
            ToClient::Outcome { number, rid, count } => {
                self.ack = self.ack.max(number);
                self.finish_rid(rid, Outcome::Answer(Answer::Done { count }));
            }
            ToClient::Refused { rid, code, message } => {
                self.finish_rid(rid, Outcome::Refused { code, message: message.into() });
            }
            ToClient::Deadlocked { rid, deadlock } => {
                self.finish_rid(rid, Outcome::Deadlocked(deadlock.into()));
            }
            ToClient::Snapshot { rid, entries, deadlocks, last_token, more } => {
                let Some((key, record)) = self.record_of(rid) else { return };
                let (parts, subscribed) = match &mut record.body {
                    Body::Query { parts, .. } => (parts, false),
                    Body::Subscribe { parts, whole } => {
                        *whole = !more;
                        (parts, true)
                    }
                    _ => return,
                };
                parts.entries.extend(entries.into_iter().map(Entry::from));
                parts.deadlocks.extend(deadlocks.into_iter().map(Deadlock::from));
                parts.last_token = last_token;
                if !more {
                    let mut snapshot = std::mem::take(parts);
                    // The parts of a long answer come in any order.
                    snapshot.entries.sort_by_key(|entry| (entry.token.is_none(), entry.arrival));
                    if subscribed {
                        self.events.push_back(Event::Changed { key, change: Change::State(snapshot) });
                    } else {
                        self.finish_rid(rid, Outcome::Answer(Answer::Snapshot(snapshot)));
                    }
                }
            }
            ToClient::Changes { rid, entries, gone, last_token, more } => {
                let Some((key, record)) = self.record_of(rid) else { return };
                let Body::Subscribe { parts, whole } = &mut record.body else { return };
                if !*whole {
                    // The server dropped the state that it was sending, and begins again.
                    *parts = Snapshot::default();
                    return;
                }
                let entries = entries.into_iter().map(Entry::from).collect();
                let change = Change::Changes { entries, gone, last_token, more };
                self.events.push_back(Event::Changed { key, change });
            }
            ToClient::Pong { seq } => self.on_pong(now, seq),
            ToClient::Fifo => self.events.push_back(Event::Fifo),
            ToClient::Confirmed => (self.lease.ttl, self.lives_by_fifo) = (None, true),
            ToClient::Goodbye { code, message } => self.on_goodbye(now, code, message),
        }
    }

    /// The connection of that number has ended.
    pub fn disconnected(&mut self, now: Micros, connection: u64) {
        if connection == self.connection && !matches!(self.link, Link::None) {
            self.unlink();
            self.connect_later(now);
        }
        self.check_lease(now);
    }

    /// The descriptor that came with `Fifo` is held.
    pub fn confirm(&mut self) {
        if self.is_ready() {
            send(&mut self.output, &ToServer::Confirm { ack: self.ack });
        }
    }

    /// Makes a request. It is sent as soon as there is a session.
    pub fn request(&mut self, request: Request, data: T) -> Key {
        self.enter(Body::Request(request), data)
    }

    /// Asks for the state of the bucket, or of one name of it.
    pub fn query(&mut self, name: Option<lockkeeper_core::Name>, deadlocks: bool, data: T) -> Key {
        self.enter(Body::Query { name, deadlocks, parts: Snapshot::default() }, data)
    }

    /// Asks for the state of the bucket, and from then on for what changes, also after a connection
    /// or the session was lost. Events tell it; it is over only if the server refuses.
    pub fn subscribe(&mut self, data: T) -> Key {
        self.enter(Body::Subscribe { parts: Snapshot::default(), whole: false }, data)
    }

    /// Breaks every lock on a name.
    pub fn force_release(&mut self, name: lockkeeper_core::Name, data: T) -> Key {
        self.enter(Body::ForceRelease { name }, data)
    }

    /// Ends another session of the bucket.
    pub fn end_session(&mut self, client_id: String, data: T) -> Key {
        self.enter(Body::EndSession { client_id }, data)
    }

    /// Releases a lock or aborts a request. An event reports when that is done. False if it had
    /// ended already.
    pub fn release(&mut self, key: Key, timed_out: bool) -> bool {
        let ready = self.is_ready();
        let Some(record) = self.entries.get_mut(&key) else { return false };
        if matches!(record.stage, Stage::Ending { .. }) {
            return false;
        }
        record.stage = Stage::Ending { timed_out };
        match record.rid {
            None => self.finish(key, Outcome::Released),
            Some(rid) if ready => {
                let flags = EndFlags { quiet: false, timed_out };
                send(&mut self.output, &ToServer::Release { ack: self.ack, rid, flags });
            }
            Some(_) => {}
        }
        true
    }

    /// Releases a lock or aborts a request, without further events. Returns its data; none if it
    /// had ended, or is being released already.
    pub fn detach(&mut self, key: Key, timed_out: bool) -> Option<T> {
        let record = self.entries.get(&key)?;
        if matches!(record.stage, Stage::Ending { .. }) {
            return None;
        }
        let record = self.remove(key)?;
        if let Some(rid) = record.rid
            && self.is_ready()
        {
            let flags = EndFlags { quiet: true, timed_out };
            send(&mut self.output, &ToServer::Release { ack: self.ack, rid, flags });
        }
        Some(record.data)
    }

    /// The number of a request on the wire, by which another session can be [nested
    /// in](Outer::Other) it.
    pub fn rid(&self, key: Key) -> Option<u64> {
        self.entries.get(&key)?.rid
    }

    /// The host's data of a request or question that is not over.
    pub fn data_mut(&mut self, key: Key) -> Option<&mut T> {
        self.entries.get_mut(&key).map(|record| &mut record.data)
    }

    /// Whether a lock is held now: granted, not broken, and the lease valid at this time.
    pub fn is_held(&self, now: Micros, key: Key) -> bool {
        let held = self.entries.get(&key).is_some_and(|record| matches!(record.stage, Stage::Held { .. }));
        held && self.lease_is_valid(now)
    }

    /// The lease in milliseconds; none if there is no session, or it lives by a FIFO.
    pub fn ttl(&self) -> Option<u64> {
        self.lease.ttl
    }

    /// Until when locks are held without another message of the server; none if there is no lease.
    pub fn lease_deadline(&self) -> Option<Micros> {
        let longer = u64::from(!holds(Rule::LeaseIsStrict));
        self.lease.ttl.map(|ttl| self.lease.answered.saturating_add(client_lease(ttl)) + longer)
    }

    /// Whether the session can be considered alive at this time.
    pub fn lease_is_valid(&self, now: Micros) -> bool {
        self.lease_deadline().is_none_or(|deadline| now < deadline)
    }

    /// Ends the session with all it has. The driver sends what there is and closes the connection.
    pub fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        if self.is_ready() {
            send(&mut self.output, &ToServer::Bye { ack: self.ack });
        }
        self.connect_at = None;
        self.lose_all(false);
        self.refuse_rest(&Failure::Closed);
        self.events.push_back(Event::Closed);
    }

    /// Opens another session after a final refusal, whose reason may no longer exist. The refusal
    /// changes nothing else, so request numbers continue.
    pub fn reopen(&mut self, now: Micros) {
        if std::mem::take(&mut self.closed) {
            self.ever_opened = false;
            self.failures = 0;
            self.connect_at = Some(now);
        }
    }

    /// Whether [`close`](Self::close) was called, or the server has refused finally.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The output for the connection: messages, each preceded by its length.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// The same, in exchange for an empty buffer that is used from now on: so none has to be
    /// allocated for each message.
    pub fn swap_output(&mut self, buffer: &mut Vec<u8>) {
        debug_assert!(buffer.is_empty(), "what is in the buffer would be sent again");
        std::mem::swap(&mut self.output, buffer);
    }

    /// Whether there is something to send.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// The next event for the host.
    pub fn next_event(&mut self) -> Option<Event<T>> {
        self.events.pop_front()
    }

    /// Whether the driver is to close the connection, once what there is has been sent. Asked once.
    pub fn wants_drop(&mut self) -> bool {
        std::mem::take(&mut self.drop_connection)
    }

    /// When [`wake`](Self::wake) has something to do.
    pub fn next_wake(&self) -> Option<Micros> {
        let hello = match self.link {
            Link::Hello { sent } | Link::Syncing { sent, .. } => {
                self.hello_timeout().map(|timeout| sent + timeout)
            }
            _ => None,
        };
        let ping = (self.is_ready() && self.lease.ttl.is_some()).then_some(self.next_ping);
        [hello, ping, self.lease_deadline()].into_iter().flatten().min()
    }

    /// Sends a ping, gives up a connection that does not answer, or the session when its lease has
    /// expired.
    pub fn wake(&mut self, now: Micros) {
        if self.check_lease(now) {
            return;
        }
        match self.link {
            Link::Hello { sent } | Link::Syncing { sent, .. }
                if self.hello_timeout().is_some_and(|timeout| now >= sent + timeout) =>
            {
                self.abandon_connection(now);
            }
            Link::Ready if self.lease.ttl.is_some() && now >= self.next_ping => {
                // Two pings without an answer: another connection may do better.
                if self.pings.len() > 1 {
                    return self.abandon_connection(now);
                }
                self.seq += 1;
                self.pings.push_back((self.seq, now));
                send(&mut self.output, &ToServer::Ping { ack: self.ack, seq: self.seq });
                self.next_ping = now + self.beat();
            }
            _ => {}
        }
    }

    fn beat(&self) -> Micros {
        self.lease.ttl.map_or(LONGEST_PAUSE, |ttl| (micros(ttl) / BEATS).max(1))
    }

    /// How long the server may take to answer a Hello. One that has a FIFO is waited for: it may be
    /// stopped.
    fn hello_timeout(&self) -> Option<Micros> {
        match self.lease.ttl {
            Some(ttl) => Some((micros(ttl) / 4).clamp(1, HELLO_TIMEOUT)),
            // Without a session, or between the Welcome of a new one and its end marker, there is
            // no lease yet.
            None if !self.lives_by_fifo => Some(HELLO_TIMEOUT),
            None => None,
        }
    }

    /// Whether the lease has expired. If so, all is lost, and the next session is opened.
    fn check_lease(&mut self, now: Micros) -> bool {
        if self.closed || self.lease_is_valid(now) {
            return false;
        }
        if self.is_ready() {
            // All that it had can be given out again at once.
            send(&mut self.output, &ToServer::Bye { ack: self.ack });
        }
        self.lose_session(now, false);
        true
    }

    /// The session has ended, perhaps by another client's command. Requests that were sent in it
    /// are lost; the others wait for the next session.
    fn lose_session(&mut self, now: Micros, forced: bool) {
        self.lose_all(forced);
        self.drop_connection = !matches!(self.link, Link::None);
        self.unlink();
        self.failures = 0;
        self.connect_at = Some(now);
        self.events.push_back(Event::SessionLost);
    }

    fn lose_all(&mut self, forced: bool) {
        self.identity = None;
        (self.lease.ttl, self.lives_by_fifo) = (None, false);
        (self.ack, self.last_rid) = (0, 0);
        for (_, key) in std::mem::take(&mut self.by_rid) {
            let Some(record) = self.entries.get_mut(&key) else { continue };
            record.rid = None;
            match record.stage {
                // Whether it was done is not known: a force release is not asked again.
                Stage::Ending { .. } => self.finish(key, Outcome::Released),
                _ if matches!(record.body, Body::Query { .. } | Body::Subscribe { .. }) => {}
                _ => self.finish(key, Outcome::Broken { cause: Cause::Lost, by: None, forced }),
            }
        }
    }

    /// There will be no session for what was not sent.
    fn refuse_rest(&mut self, failure: &Failure) {
        let keys: Vec<_> = self.entries.keys().copied().collect();
        keys.into_iter().for_each(|key| self.finish(key, Outcome::Failed(failure.clone())));
    }

    fn fail(&mut self, failure: &Failure) {
        self.drop_connection = !matches!(self.link, Link::None);
        self.unlink();
        self.connect_at = None;
        self.lose_all(false);
        self.refuse_rest(failure);
        self.closed = true;
        self.events.push_back(Event::Failed(failure.clone()));
    }

    fn abandon_connection(&mut self, now: Micros) {
        self.drop_connection = true;
        self.unlink();
        self.connect_later(now);
    }

    fn unlink(&mut self) {
        self.link = Link::None;
        self.pings.clear();
        // Whatever still comes on that connection is not for this session.
        if holds(Rule::NewestConnectionOnly) {
            self.connection += 1;
        }
    }

    fn connect_later(&mut self, now: Micros) {
        if self.closed {
            return;
        }
        let longest =
            self.lease.ttl.map_or(LONGEST_PAUSE, |ttl| (client_lease(ttl) / ATTEMPTS).min(LONGEST_PAUSE));
        let pause = (PAUSE << self.failures.min(10)).min(longest);
        self.failures += 1;
        self.connect_at = Some(now + pause);
    }

    fn on_goodbye(&mut self, now: Micros, code: u32, message: &str) {
        let failure = Failure::Refused { code, message: message.into() };
        match code {
            code::SUPERSEDED => self.abandon_connection(now),
            code::ENDED => self.lose_session(now, true),
            32.. => {
                if !self.ever_opened {
                    self.events.push_back(Event::Unreachable(failure));
                }
                self.abandon_connection(now);
            }
            // A limit may be temporary, and a session that was open is worth another attempt.
            code::LIMIT | code::STORAGE if self.ever_opened => self.abandon_connection(now),
            _ => self.fail(&failure),
        }
    }

    fn on_granted(&mut self, rid: u64, token: u64) {
        let Some((key, record)) = self.record_of(rid) else { return };
        if matches!(record.stage, Stage::Asked | Stage::Waiting) {
            record.stage = Stage::Held { token };
            self.events.push_back(Event::Granted { key, token });
        }
    }

    fn on_pong(&mut self, now: Micros, seq: u64) {
        while let Some((sent_seq, sent)) = self.pings.pop_front_if(|(sent_seq, _)| *sent_seq <= seq) {
            if sent_seq == seq {
                let sent = if holds(Rule::LeaseFromSending) { sent } else { now };
                self.lease.answered = self.lease.answered.max(sent);
            }
        }
    }

    fn enter(&mut self, body: Body, data: T) -> Key {
        let key = self.next_key;
        self.next_key += 1;
        if body.is_too_long() {
            let message = TOO_LONG.into();
            self.events.push_back(Event::Over {
                key,
                outcome: Outcome::Refused { code: code::LIMIT, message },
                data,
            });
            return key;
        }
        self.entries.insert(key, Record { rid: None, stage: Stage::Asked, body, data });
        if self.closed {
            self.finish(key, Outcome::Failed(Failure::Closed));
        } else if self.is_ready() {
            self.send_new(key);
        }
        key
    }

    /// Sends what has no number yet, under a new one.
    fn send_new(&mut self, key: Key) {
        self.last_rid += 1;
        let rid = self.last_rid;
        if let Some(record) = self.entries.get_mut(&key) {
            record.rid = Some(rid);
            self.by_rid.insert(rid, key);
            self.send_record(key, rid);
        }
    }

    fn send_record(&mut self, key: Key, rid: u64) {
        // Parts of an earlier answer do not belong to this one.
        match self.entries.get_mut(&key).map(|record| &mut record.body) {
            Some(Body::Query { parts, .. }) => *parts = Snapshot::default(),
            Some(Body::Subscribe { parts, whole }) => (*parts, *whole) = (Snapshot::default(), false),
            _ => {}
        }
        let Some(record) = self.entries.get(&key) else { return };
        let ack = self.ack;
        let message = match &record.body {
            Body::Request(request) => {
                let nested_in = request.nested_in.as_ref().and_then(|outer| match outer {
                    types::Outer::Own(outer) => Some((None, self.entries.get(outer)?.rid?)),
                    types::Outer::Other(client, rid) => Some((Some(&client[..]), *rid)),
                });
                let scope = request.scope.iter().map(|(name, mode)| (name.as_bytes(), *mode)).collect();
                let info = request.info.as_deref();
                ToServer::Request { ack, rid, scope, flags: request.flags, nested_in, info }
            }
            Body::Query { name, deadlocks, .. } => ToServer::Query {
                ack,
                rid,
                name: name.as_ref().map(|name| name.as_bytes()),
                deadlocks: *deadlocks,
            },
            Body::ForceRelease { name } => ToServer::ForceRelease { ack, rid, name: name.as_bytes() },
            Body::EndSession { client_id } => ToServer::EndSession { ack, rid, client_id },
            Body::Subscribe { .. } => ToServer::Subscribe { ack, rid },
        };
        send(&mut self.output, &message);
    }

    fn record_of(&mut self, rid: u64) -> Option<(Key, &mut Record<T>)> {
        let key = *self.by_rid.get(&rid)?;
        Some((key, self.entries.get_mut(&key)?))
    }

    fn finish_rid(&mut self, rid: u64, outcome: Outcome) {
        if let Some(&key) = self.by_rid.get(&rid) {
            self.finish(key, outcome);
        }
    }

    fn finish(&mut self, key: Key, outcome: Outcome) {
        if let Some(Record { data, .. }) = self.remove(key) {
            self.events.push_back(Event::Over { key, outcome, data });
        }
    }

    fn remove(&mut self, key: Key) -> Option<Record<T>> {
        let record = self.entries.remove(&key)?;
        if let Some(rid) = record.rid {
            self.by_rid.remove(&rid);
        }
        Some(record)
    }
}

const TOO_LONG: &str = "limit reached: a request's names and label exceed 1 MiB";

fn send(out: &mut Vec<u8>, message: &ToServer<'_>) {
    frame::append(out, |out| message.encode(out));
}
