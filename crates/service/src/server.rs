//! The server: decides what clients may do, records what changes the state, and speaks once that is
//! committed.
//!
//! Methods, in the order in which a driver calls them:
//!
//! * a connection: [`connect`](Server::connect), [`hello`](Server::hello),
//!   [`message`](Server::message), [`disconnect`](Server::disconnect);
//! * time: [`next_wake`](Server::next_wake) says when to call [`wake`](Server::wake), after which
//!   connections may be [ready](Server::next_ready) and [have more](Server::has_more): then
//!   [`go_on`](Server::go_on);
//! * the log: [`take_round`](Server::take_round), [`round_done`](Server::round_done);
//! * output: [`next_ready`](Server::next_ready), [`output`](Server::output),
//!   [`sent`](Server::sent), [`is_closing`](Server::is_closing), and
//!   [`next_action`](Server::next_action) for what only the driver can do.
//!
//! A server leads from its first moment to its last. One that no longer does is dropped, and so is
//! its state, which may be ahead of the log.

mod answers;
mod attach;
mod audit;
mod counts;
mod ending;
mod lease;
mod subscribe;

pub use audit::{Audit, Audited};
pub use counts::{Counts, Histogram};
pub use lease::BATCH;

use crate::{
    Micros,
    codec::Damaged,
    outbox::{Framing, Outbox},
    record::{EndReason, Fifo, Origin, Record, SecretHash},
    state::{Effect, LEVEL, SessionId, State, put_batch_head, request_bytes},
};
use lockkeeper_core::{Cause, Limit, Limits, Mode, Options, validate};
use lockkeeper_wire::v2::{EndFlags, Flags, NestedIn, Secret, ToClient, ToServer, code};
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
};

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The bounds of leases.
    pub ttl: Ttl,
    /// The limits of clients.
    pub limits: Limits,
    /// How many sessions there may be.
    pub sessions: usize,
    /// How many buckets there may be.
    pub buckets: usize,
    /// How much memory clients may take.
    pub bytes: Bytes,
    /// How many bytes of messages may wait for a client before it is disconnected.
    pub backlog: usize,
    /// How many requests of a session that ends leave at a time. A session with more ends in
    /// slices.
    pub slice: usize,
    /// Hashes a secret, so that the log does not have it.
    pub hash: fn(&Secret) -> SecretHash,
}

/// How many bytes of memory clients may take, about: sessions with their requests, and what they
/// have yet to acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// One of them.
    pub session: usize,
    /// Those of a bucket.
    pub bucket: usize,
    /// All.
    pub all: usize,
}

impl Default for Bytes {
    fn default() -> Self {
        Self { session: 256 << 20, bucket: 1 << 30, all: 2 << 30 }
    }
}

/// The leases that a server gives out, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl {
    /// To a client that wishes for none.
    pub default: u64,
    /// The shortest.
    pub min: u64,
    /// The longest.
    pub max: u64,
}

impl Ttl {
    /// Always the same lease.
    pub fn fixed(ttl: u64) -> Self {
        Self { default: ttl, min: ttl, max: ttl }
    }

    /// The lease of a client with that wish.
    pub fn choose(self, wish: Option<u64>) -> u64 {
        wish.map_or(self.default, |wish| wish.clamp(self.min, self.max))
    }
}

/// A connection, by a number that is not reused while the server lives.
pub type ConnectionId = u64;

/// A new id and a new secret, for the session that a connection may open.
#[derive(Clone, Copy, Debug)]
pub struct Fresh {
    /// A random id that no session has.
    pub session: SessionId,
    /// A random secret.
    pub secret: Secret,
}

/// The identity and rights from a connection's credentials.
#[derive(Clone, Debug)]
pub struct Access {
    /// Its rights.
    pub rights: Rights,
    /// The authenticated subject, shown before the client's own description.
    pub subject: String,
}

/// The rights of a client beyond requesting locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Steal.
    pub steal: bool,
    /// Release locks by force, and end sessions.
    pub force_release: bool,
    /// See labels, owners and what others wait for.
    pub inspect: bool,
}

impl Rights {
    /// All of them.
    pub const ALL: Self = Self { steal: true, force_release: true, inspect: true };
}

/// A Hello whose credentials the driver has checked.
#[derive(Clone, Copy, Debug)]
pub struct Hello<'a> {
    /// The protocol's version.
    pub version: u32,
    /// Bits of the protocol's features.
    pub features: u64,
    /// The number of the Hello.
    pub hello: u64,
    /// The bucket.
    pub bucket: &'a str,
    /// The session to resume.
    pub resume: Option<(&'a str, Secret)>,
    /// The acknowledgement.
    pub ack: u64,
    /// The lease that is wished for.
    pub ttl: Option<u64>,
    /// The client's own description.
    pub owner: Option<&'a str>,
}

/// Why a connection is closed: a code of the protocol, and a text.
pub type Refusal = (u32, String);

/// An action that only the driver can execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make a FIFO for the session, send its write end with the message `Fifo`, and call
    /// [`fifo_passed`](Server::fifo_passed).
    PassFifo {
        /// The connection.
        connection: ConnectionId,
        /// Its session.
        session: SessionId,
    },
    /// The session has no connection. Watch its FIFO, and call [`fifo_closed`](Server::fifo_closed)
    /// when it has no writer.
    WatchFifo {
        /// The session.
        session: SessionId,
        /// The FIFO.
        fifo: Fifo,
    },
    /// The session ended, and that is committed: its FIFO can be removed.
    RemoveFifo {
        /// The session.
        session: SessionId,
    },
}

/// A round to be committed.
#[derive(Debug)]
pub struct Round {
    /// For [`Server::round_done`].
    pub number: u64,
    /// A batch for the log, or nothing: then the log only has to confirm that this server leads.
    pub batch: Vec<u8>,
}

/// Leads: it is the one that records and answers.
pub struct Server {
    state: State,
    config: ServerConfig,
    connections: BTreeMap<ConnectionId, Connection>,
    next_connection: ConnectionId,
    /// One for each session.
    attached: BTreeMap<SessionId, Attached>,
    /// When to check leases. A session has at most one entry; it may be early.
    deadlines: BTreeSet<(Micros, SessionId)>,
    /// Sessions whose client cannot be shown to be alive or dead.
    unverifiable: BTreeSet<SessionId>,
    /// The records of this round.
    batch: Vec<u8>,
    /// Whether it has an answer that a client waits for, other than Queued.
    awaited: bool,
    round: u64,
    committed: u64,
    /// Rounds with records that are not committed yet, and their positions.
    recorded: VecDeque<(u64, u64)>,
    /// The position that is committed: the state's may be ahead of it.
    position: u64,
    /// Connections that have messages of a round, in the order of rounds.
    waiting: VecDeque<(u64, ConnectionId)>,
    /// Connections with something to send.
    ready: VecDeque<ConnectionId>,
    /// Bytes in all outboxes.
    unread: Rc<Cell<usize>>,
    actions: VecDeque<Action>,
    /// Sessions that ended, with the round of their end: until that is committed, they may not have
    /// ended.
    removals: VecDeque<(u64, SessionId)>,
    /// Of the input being handled. Empty between inputs.
    effects: Vec<Effect>,
    /// Milliseconds since the epoch, for display.
    wall: u64,
    /// Why the log takes no new requests.
    full: Option<String>,
    /// Why no session can be opened, though one can be resumed.
    crowded: Option<&'static str>,
    /// Why the log takes nothing at all.
    stuck: Option<String>,
    /// Connections that have messages which do not depend on the state, while the log takes
    /// nothing: answers to pings, refusals.
    stateless: BTreeSet<ConnectionId>,
    /// The number of the last of these messages.
    last_stateless: u64,
    /// Until when nothing is granted: earlier leases that the log does not know may be valid.
    blind_until: Option<Micros>,
    /// Sessions from before a crash that have yet to end. New clients are refused until then.
    crashed: Vec<SessionId>,
    /// Sessions of many requests that end in slices. They have no connection, and cannot be
    /// resumed.
    ending: BTreeMap<SessionId, ending::Ending>,
    stopping: bool,
    counts: Counts,
    /// The work done so far, in units of a short message.
    work: u64,
    audits: audit::Audits,
    /// Why the last Hello was refused by a limit.
    refused_hello: Option<String>,
    subscriptions: BTreeMap<ConnectionId, subscribe::Subscription>,
}

struct Connection {
    origin: Origin,
    fresh: Fresh,
    session: Option<SessionId>,
    outbox: Outbox,
    /// It ends once all is sent. Its input is ignored.
    closing: bool,
    /// Whether its messages that may be sent are in the list of those ready.
    listed: bool,
    /// The FIFO that its client was sent.
    fifo: Option<Fifo>,
    /// Questions that are not answered yet.
    queries: VecDeque<answers::Query>,
}

/// The server's data of a session besides the state, since it leads.
struct Attached {
    connection: Option<ConnectionId>,
    /// When a message from it was last received, or could first be.
    heard: Micros,
    /// The greatest number that its client has used.
    last_rid: u64,
    rights: Rights,
    deadline: Option<Micros>,
    /// When its requests may be listed again, if they are many.
    next_list: Micros,
}

impl Server {
    /// Leads from now on, with the state of the whole log. `wall` is the time for display, in
    /// milliseconds since the epoch; `blind_until` is set after the machine crashed: that time is
    /// the last at which all clients are refused.
    pub fn new(
        state: State,
        config: ServerConfig,
        now: Micros,
        wall: u64,
        blind_until: Option<Micros>,
    ) -> Self {
        let mut server = Self {
            config,
            connections: BTreeMap::new(),
            next_connection: 0,
            attached: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            unverifiable: BTreeSet::new(),
            batch: Vec::new(),
            awaited: false,
            round: 1,
            committed: 0,
            recorded: VecDeque::new(),
            position: state.position(),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            unread: Rc::default(),
            actions: VecDeque::new(),
            removals: VecDeque::new(),
            effects: Vec::new(),
            wall,
            full: None,
            crowded: None,
            stuck: None,
            stateless: BTreeSet::new(),
            last_stateless: 0,
            blind_until,
            crashed: Vec::new(),
            ending: BTreeMap::new(),
            stopping: false,
            counts: Counts::default(),
            work: 0,
            audits: audit::Audits::default(),
            refused_hello: None,
            subscriptions: BTreeMap::new(),
            state,
        };
        server.adopt_sessions(now);
        server
    }

    /// The state, which may be ahead of the log.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// How it is set up.
    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    /// The state, for snapshots.
    pub fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    /// Counters of events.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// How much was done so far, in units of a short message. A driver lets every connection have
    /// its turn before one that has had much done for it.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// How many connections there are.
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Says what time it is for display, in milliseconds since the epoch.
    pub fn set_wall(&mut self, wall: u64) {
        self.wall = wall;
    }

    /// Why the log takes nothing but releases and ends, or that it does again.
    pub fn set_full(&mut self, why: Option<String>) {
        self.full = why;
    }

    /// Why no session can be opened, or that one can again. Valid resumes are accepted.
    pub fn set_crowded(&mut self, why: Option<&'static str>) {
        self.crowded = why;
    }

    /// Why a shared log takes nothing at all for now, or that it does again. Until then, what does
    /// not depend on the state is said without a commit, so that leases are kept: see
    /// [`stateless`](Self::stateless).
    pub fn set_stuck(&mut self, why: Option<String>) {
        if why.is_none() {
            // The rest waits for a round, as all output does.
            let round = self.round;
            if !crate::sabotage::holds(crate::Rule::LeftoversWait) {
                self.send_stateless(u64::MAX);
            }
            for id in std::mem::take(&mut self.stateless) {
                let Some(connection) = self.connections.get_mut(&id) else { continue };
                if connection.outbox.send_aside(round) {
                    self.waiting.push_back((round, id));
                }
            }
        }
        self.stuck = why;
    }

    /// The number of the last message that needs no commit, only the log's word that this server
    /// leads, given after now.
    pub fn stateless(&self) -> u64 {
        self.last_stateless
    }

    /// The log has confirmed, after the message of that number was there, that this server leads.
    pub fn send_stateless(&mut self, last: u64) {
        for id in std::mem::take(&mut self.stateless) {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.outbox.overtake(last);
            if connection.outbox.has_aside() {
                self.stateless.insert(id);
            }
            if !std::mem::replace(&mut connection.listed, true) {
                self.ready.push_back(id);
            }
        }
    }

    /// A connection was made.
    pub fn connect(&mut self, origin: Origin, framing: Framing, fresh: Fresh) -> ConnectionId {
        let id = self.next_connection;
        self.next_connection += 1;
        let outbox = Outbox::new(framing, Rc::clone(&self.unread));
        let connection = Connection {
            origin,
            fresh,
            session: None,
            outbox,
            closing: false,
            listed: false,
            fifo: None,
            queries: VecDeque::new(),
        };
        self.connections.insert(id, connection);
        id
    }

    /// A message came. Those of a connection that is being closed are ignored.
    ///
    /// # Errors
    ///
    /// If the state turned out to be wrong. The server must not go on.
    pub fn message(&mut self, now: Micros, id: ConnectionId, message: ToServer<'_>) -> Result<(), Damaged> {
        let Some(connection) = self.connections.get(&id).filter(|connection| !connection.closing) else {
            return Ok(());
        };
        let Some(session) = connection.session else {
            self.close(id, code::OUT_OF_ORDER, "the first message is Hello");
            return Ok(());
        };
        self.heard(session, now);
        self.work += 1;
        let ack = match message {
            ToServer::Hello { .. } => {
                self.close(id, code::OUT_OF_ORDER, "Hello was sent already");
                return Ok(());
            }
            ToServer::Request { ack, .. }
            | ToServer::Release { ack, .. }
            | ToServer::ForceRelease { ack, .. }
            | ToServer::EndSession { ack, .. }
            | ToServer::Query { ack, .. }
            | ToServer::Ping { ack, .. }
            | ToServer::Subscribe { ack, .. }
            | ToServer::Confirm { ack }
            | ToServer::Bye { ack } => ack,
        };
        if self.state.session(session).is_some_and(|view| ack.min(view.number) > view.acked) {
            self.record(&Record::Ack { session, ack })?;
            // It may have a lease from now on, or a shorter one.
            self.watch_lease(session);
        }
        match message {
            ToServer::Hello { .. } => Ok(()),
            ToServer::Request { rid, scope, flags, nested_in, info, .. } => {
                self.request(id, session, rid, scope, flags, nested_in, info)
            }
            ToServer::Release { rid, flags, .. } => self.release(session, rid, flags),
            ToServer::ForceRelease { rid, name, .. } => self.force_release(id, session, rid, name),
            ToServer::EndSession { rid, client_id, .. } => self.end_session(id, session, rid, client_id),
            ToServer::Query { rid, name, deadlocks, .. } => {
                if self.advance(id, session, rid) {
                    match self.attached.get(&session).is_some_and(|attached| attached.rights.inspect) {
                        false if deadlocks => {
                            let (code, why) = forbidden("inspect");
                            return self.refuse(session, rid, code, &why);
                        }
                        inspects => self.query(id, session, rid, name, deadlocks, inspects),
                    }
                }
                Ok(())
            }
            ToServer::Ping { seq, .. } => {
                self.send(session, &ToClient::Pong { seq });
                Ok(())
            }
            ToServer::Subscribe { rid, .. } => self.subscribe(now, id, session, rid),
            ToServer::Confirm { .. } => self.confirm(id, session),
            ToServer::Bye { .. } => {
                self.close_quietly(id);
                self.end(session, EndReason::Bye)
            }
        }
    }

    /// The transport's own answer: a WebSocket pong.
    pub fn append(&mut self, id: ConnectionId, write: impl FnOnce(&mut Vec<u8>)) {
        let round = self.round;
        self.awaited = true;
        if let Some(connection) = self.connections.get_mut(&id)
            && connection.outbox.append(round, |_, bytes| write(bytes))
        {
            self.waiting.push_back((round, id));
        }
    }

    /// Closes a connection because of its client's mistake. Its session continues until its lease
    /// expires, or its FIFO is closed.
    pub fn close(&mut self, id: ConnectionId, code: u32, message: &str) {
        self.send_to(id, &ToClient::Goodbye { code, message });
        self.close_quietly(id);
    }

    /// Closes a connection without a Goodbye, at its client's wish.
    pub fn hang_up(&mut self, id: ConnectionId) {
        self.close_quietly(id);
    }

    fn close_quietly(&mut self, id: ConnectionId) {
        let round = self.round;
        let Some(connection) = self.connections.get_mut(&id).filter(|connection| !connection.closing) else {
            return;
        };
        connection.closing = true;
        self.awaited = true;
        let end = |framing, bytes: &mut Vec<u8>| {
            if framing == Framing::WebSocket {
                lockkeeper_wire::websocket::append_close(bytes, None);
            }
        };
        if connection.outbox.append(round, end) {
            self.waiting.push_back((round, id));
        }
        self.detach(id);
    }

    /// A connection has ended.
    pub fn disconnect(&mut self, id: ConnectionId) {
        self.detach(id);
        self.connections.remove(&id);
        self.stateless.remove(&id);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    fn request(
        &mut self,
        id: ConnectionId,
        session: SessionId,
        rid: u64,
        scope: Vec<(&[u8], Mode)>,
        flags: Flags,
        nested_in: Option<NestedIn<'_>>,
        info: Option<&str>,
    ) -> Result<(), Damaged> {
        if !self.advance(id, session, rid) {
            return Ok(());
        }
        self.counts.requests += 1;
        // Its end is as much work.
        self.work += 2 * scope.len() as u64;
        if let Err((code, why)) = self.check(session, &scope, flags, info) {
            return self.refuse(session, rid, code, &why);
        }
        let nested_in = nested_in.and_then(|(client, rid)| match client {
            None => Some((session, rid)),
            Some(client) => Some((parse_client_id(client)?, rid)),
        });
        if (flags.if_available || flags.refuse_deadlock) && !self.state.is_available(session, &scope) {
            if flags.if_available {
                self.counts.unavailable += 1;
                self.send(session, &ToClient::Unavailable { rid });
                return Ok(());
            }
            if let Some(deadlock) = self.would_deadlock(session, &scope, nested_in) {
                self.counts.refused += 1;
                self.answer_deadlock(session, rid, deadlock);
                return Ok(());
            }
        }
        if !flags.steal {
            return self.record(&Record::Request { session, rid, scope, steal: false, nested_in, info });
        }
        let names = scope.iter().map(|(name, _)| (*name).into()).collect();
        let effects = self.apply(&Record::Request { session, rid, scope, steal: true, nested_in, info })?;
        self.audit(session, Audited::Stole { names, broken: broken(&effects) });
        self.deliver(effects);
        Ok(())
    }

    /// Whether a request may be made, limits and rights considered.
    fn check(
        &self,
        session: SessionId,
        scope: &[(&[u8], Mode)],
        flags: Flags,
        info: Option<&str>,
    ) -> Result<(), Refusal> {
        let Flags { if_available, steal, .. } = flags;
        let options = Options { if_available, steal, ..Options::default() };
        validate(scope, options).map_err(|error| (code::NOT_SUPPORTED, error.to_string()))?;
        if steal && !self.attached.get(&session).is_some_and(|attached| attached.rights.steal) {
            return Err(forbidden("steal"));
        }
        self.check_limits(session, scope, info).map_err(|why| (code::LIMIT, why))?;
        match self.full.as_ref().or(self.stuck.as_ref()) {
            Some(why) => Err((code::STORAGE, why.clone())),
            None => Ok(()),
        }
    }

    fn check_limits(
        &self,
        session: SessionId,
        scope: &[(&[u8], Mode)],
        info: Option<&str>,
    ) -> Result<(), String> {
        let limits = &self.config.limits;
        let limit = |reached: bool, limit: Limit| match reached {
            true => Err(named(limit)),
            false => Ok(()),
        };
        let longest = scope.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        limit(longest > limits.name_bytes, Limit::NameBytes(limits.name_bytes))?;
        limit(
            scope.len() > usize::from(limits.names_per_scope),
            Limit::NamesPerScope(limits.names_per_scope),
        )?;
        if info.is_some_and(|info| info.len() > INFO) {
            return Err(format!("limit reached: a label has at most {INFO} bytes"));
        }
        let Some(view) = self.state.session(session) else { return Ok(()) };
        let most = limits.requests_per_client;
        limit(view.requests + view.notices >= most as usize, Limit::RequestsPerClient(most))?;
        let all = self.state.manager(session).map_or(0, |manager| manager.len());
        limit(all + scope.len() > limits.requests as usize, Limit::Requests(limits.requests))?;
        let more = request_bytes(scope.iter().map(|(name, _)| name.len()), info.map(str::len));
        self.check_bytes(view.origin, view.bytes, view.bucket_bytes, more)
    }

    /// Whether a client, of which so much is taken already, and of its bucket, may take so many
    /// more bytes. What the bucket keeps can be used again, however much is taken in all.
    fn check_bytes(
        &self,
        origin: Origin,
        of_client: usize,
        (of_bucket, kept): (usize, usize),
        more: usize,
    ) -> Result<(), String> {
        let Bytes { session, bucket, all } = self.config.bytes;
        for (taken, more, limit, whose) in [
            (of_client, more, session, "a client (max-bytes-per-client)"),
            (of_bucket, more, bucket, "a bucket (max-bytes-per-bucket)"),
            (self.state.memory(), more.saturating_sub(kept), share(origin, all), "all clients (max-bytes)"),
        ] {
            if more > 0 && taken + more > limit {
                return Err(format!("limit reached: at most {limit} bytes of {whose}"));
            }
        }
        Ok(())
    }

    fn release(&mut self, session: SessionId, rid: u64, flags: EndFlags) -> Result<(), Damaged> {
        let there = self.state.has_request(session, rid);
        let aborted = self.counts.aborted;
        if there {
            let effects = self.apply(&Record::Release { session, rid })?;
            self.counts.timed_out += u64::from(flags.timed_out && self.counts.aborted > aborted);
            // The client gets its answer before the clients whose requests are granted by it.
            if !flags.quiet {
                self.send(session, &ToClient::Released { rid });
            }
            self.deliver(effects);
        } else if !flags.quiet {
            // It was broken in the meantime, or never had an effect.
            self.send(session, &ToClient::Released { rid });
        }
        Ok(())
    }

    fn force_release(
        &mut self,
        id: ConnectionId,
        session: SessionId,
        rid: u64,
        name: &[u8],
    ) -> Result<(), Damaged> {
        match self.may_force(id, session, rid)? {
            true => {
                let effects = self.apply(&Record::ForceRelease { session, rid, name })?;
                self.audit(session, Audited::Forced { name: name.into(), broken: broken(&effects) });
                self.deliver(effects);
                Ok(())
            }
            false => Ok(()),
        }
    }

    fn end_session(
        &mut self,
        id: ConnectionId,
        session: SessionId,
        rid: u64,
        client_id: &str,
    ) -> Result<(), Damaged> {
        if !self.may_force(id, session, rid)? {
            return Ok(());
        }
        match parse_client_id(client_id).filter(|&target| target != session) {
            Some(target) => {
                let bucket = |id| self.state.session(id).map(|view| view.bucket);
                if bucket(session) == bucket(target) {
                    self.audit(session, Audited::Ended { target });
                }
                self.end_for(session, rid, target)
            }
            None => self.refuse(session, rid, code::NOT_SUPPORTED, "that is not the id of another client"),
        }
    }

    fn may_force(&mut self, id: ConnectionId, session: SessionId, rid: u64) -> Result<bool, Damaged> {
        if !self.advance(id, session, rid) {
            return Ok(false);
        }
        let rights = self.attached.get(&session).map(|attached| attached.rights);
        if !rights.is_some_and(|rights| rights.force_release) {
            let (code, why) = forbidden("release by force");
            self.refuse(session, rid, code, &why)?;
            return Ok(false);
        }
        if let Some(why) = self.full.clone().or_else(|| self.stuck.clone()) {
            self.refuse(session, rid, code::STORAGE, &why)?;
            return Ok(false);
        }
        // Its outcome is kept until it is acknowledged. Only the session's own limits count: in a
        // bucket that is full, this is how an operator makes room.
        if let Some(view) = self.state.session(session) {
            let (most, bytes) = (self.config.limits.requests_per_client, self.config.bytes.session);
            let why = if view.requests + view.notices >= most as usize {
                named(Limit::RequestsPerClient(most))
            } else if view.bytes > bytes {
                format!("limit reached: at most {bytes} bytes of a client (max-bytes-per-client)")
            } else {
                return Ok(true);
            };
            self.refuse(session, rid, code::LIMIT, &why)?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Numbers grow: none is used twice.
    fn advance(&mut self, id: ConnectionId, session: SessionId, rid: u64) -> bool {
        let Some(attached) = self.attached.get_mut(&session) else { return false };
        if rid <= attached.last_rid {
            let why = format!("number {rid} does not come after {}", attached.last_rid);
            self.close(id, code::OUT_OF_ORDER, &why);
            return false;
        }
        attached.last_rid = rid;
        true
    }

    fn refuse(&mut self, session: SessionId, rid: u64, code: u32, message: &str) -> Result<(), Damaged> {
        self.send_refusal(session, rid, code, message);
        if matches!(code, code::FORBIDDEN | code::LIMIT) {
            self.audit(session, Audited::Refused { code, why: message.into() });
        }
        Ok(())
    }

    fn send_refusal(&mut self, session: SessionId, rid: u64, code: u32, message: &str) {
        self.counts.refused += 1;
        self.send(session, &ToClient::Refused { rid, code, message });
    }

    /// Ends a session on the server's own account: a revoked key, an operator.
    ///
    /// # Errors
    ///
    /// If the state turned out to be wrong. The server must not go on.
    pub fn revoke(&mut self, session: SessionId, why: &str) -> Result<(), Damaged> {
        if let Some(connection) = self.attached.get(&session).and_then(|attached| attached.connection) {
            self.close(connection, code::ENDED, why);
        }
        self.end(session, EndReason::Revoked)
    }

    /// Has a connection's client have other rights from now on.
    pub fn set_rights(&mut self, id: ConnectionId, rights: Rights) {
        let session = self.connections.get(&id).and_then(|connection| connection.session);
        if let Some(attached) = session.and_then(|session| self.attached.get_mut(&session)) {
            attached.rights = rights;
        }
        if !rights.inspect
            && let Some(rid) = self.unsubscribe(id)
        {
            let (code, message) = &forbidden("inspect");
            self.send_to(id, &ToClient::Refused { rid, code: *code, message });
        }
    }

    /// Ends every session because the machine crashed, and has tokens skip ahead: the log may lack
    /// its tail. What does not fit into a batch of that size is left to [`wake`](Self::wake).
    ///
    /// # Errors
    ///
    /// If the state turned out to be wrong. The server must not go on.
    pub fn recover_from_crash(&mut self, last_token: u64, batch: usize) -> Result<(), Damaged> {
        self.crashed = self.state.sessions().collect();
        if crate::sabotage::holds(crate::Rule::SkipTokensAfterCrash) {
            self.record(&Record::SkipTokens { last: last_token })?;
        }
        self.end_crashed(batch, u64::MAX)
    }

    /// Not in slices: no client is connected at this time.
    fn end_crashed(&mut self, batch: usize, work: u64) -> Result<(), Damaged> {
        while self.batch.len() < batch
            && self.work < work
            && let Some(session) = self.crashed.pop()
        {
            self.end_whole(session, EndReason::Crashed)?;
        }
        Ok(())
    }

    /// Records a change, and notifies the clients concerned.
    fn record(&mut self, record: &Record<'_>) -> Result<(), Damaged> {
        let effects = self.apply(record)?;
        self.deliver(effects);
        Ok(())
    }

    /// Records a change. The caller notifies clients of its effects.
    fn apply(&mut self, record: &Record<'_>) -> Result<Vec<Effect>, Damaged> {
        if self.batch.is_empty() {
            put_batch_head(&mut self.batch, LEVEL, self.wall);
            self.state.begin_batch(self.wall);
        }
        record.encode(&mut self.batch);
        let mut effects = std::mem::take(&mut self.effects);
        self.state.apply(record, &mut effects)?;
        self.work += effects.len() as u64;
        self.limit_saved_rows();
        effects.iter().for_each(|effect| self.counts.add(effect));
        if self.state.journal.is_some() {
            self.note_changes();
        }
        Ok(effects)
    }

    fn deliver(&mut self, mut effects: Vec<Effect>) {
        for effect in effects.drain(..) {
            match effect {
                Effect::Granted { session, rid, token, .. } => {
                    self.send(session, &ToClient::Granted { rid, token });
                }
                Effect::Queued { session, rid, arrival } => {
                    self.send(session, &ToClient::Queued { rid, arrival });
                }
                Effect::Broken { session, number, rid, cause } => {
                    self.send_broken(session, number, rid, cause);
                }
                Effect::Outcome { session, number, rid, count } => {
                    self.send(session, &ToClient::Outcome { number, rid, count });
                }
                Effect::Released { .. } => {}
                Effect::Ended { session, by_other, .. } => self.forget(session, by_other),
            }
        }
        self.effects = effects;
    }

    fn send_broken(&mut self, session: SessionId, number: u64, rid: u64, cause: Cause) {
        let (by, forced) = match self.state.notice(session, number) {
            Some(crate::Notice::Broken { by, forced, .. }) => (by.clone(), *forced),
            _ => Default::default(),
        };
        let by = Some(&*by).filter(|by| !by.is_empty());
        self.send(session, &ToClient::Broken { number, rid, cause, by, forced });
    }

    /// Sends to a session. A client that is not connected compares when it is back.
    fn send(&mut self, session: SessionId, message: &ToClient<'_>) {
        let connection = self.attached.get(&session).and_then(|attached| attached.connection);
        if let Some(connection) = connection {
            self.send_to(connection, message);
        }
    }

    fn send_to(&mut self, id: ConnectionId, message: &ToClient<'_>) {
        let (round, backlog) = (self.round, self.config.backlog);
        let Some(connection) = self.connections.get_mut(&id).filter(|connection| !connection.closing) else {
            return;
        };
        let stateless = matches!(
            message,
            ToClient::Pong { .. }
                | ToClient::Refused { code: code::STORAGE, .. }
                | ToClient::Goodbye { code: code::RECOVERING, .. }
        );
        if self.stuck.is_some() && stateless {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            self.last_stateless += 1;
            connection.outbox.put_aside(self.last_stateless, bytes);
            self.stateless.insert(id);
        } else {
            self.awaited |= !matches!(message, ToClient::Queued { .. });
            if connection.outbox.send(round, message) {
                self.waiting.push_back((round, id));
            }
        }
        if connection.outbox.len() > backlog {
            self.abort(id);
        }
        if self.unread.get() > self.max_unread() {
            let longest = self.connections.iter().max_by_key(|(_, connection)| connection.outbox.len());
            if let Some((&id, _)) = longest {
                self.abort(id);
            }
        }
    }

    /// How many bytes wait to be sent to all clients.
    pub fn unread(&self) -> usize {
        self.unread.get()
    }

    /// The most of that, and of rows that are kept for answers: an eighth of what clients may take
    /// in all, within bounds.
    fn max_unread(&self) -> usize {
        (self.config.bytes.all / 8).clamp(8 << 20, 128 << 20)
    }

    /// Answers in progress keep copies of what has changed since their query. If that is too much,
    /// the one with the most is dropped.
    fn limit_saved_rows(&mut self) {
        let saved = self.state.views.values().map(|view| view.saved_bytes);
        if saved.sum::<usize>() > self.max_unread() {
            let largest = self.state.views.iter().max_by_key(|(_, view)| view.saved_bytes);
            let largest = largest.map(|(&id, _)| id);
            largest.and_then(|id| self.state.views.remove(&id));
        }
    }

    /// Closes the connection of a client that does not read. No message can follow the one that was
    /// sent in part.
    fn abort(&mut self, id: ConnectionId) {
        self.counts.slow += 1;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.outbox.clear();
        self.stateless.remove(&id);
        connection.closing = true;
        if !std::mem::replace(&mut connection.listed, true) {
            self.ready.push_back(id);
        }
        self.detach(id);
    }

    /// The next round to commit, if there is one: records, or answers that wait for the log's
    /// confirmation.
    pub fn take_round(&mut self) -> Option<Round> {
        let answers = self.waiting.back().is_some_and(|(round, _)| *round == self.round);
        if self.batch.is_empty() && !answers {
            return None;
        }
        let number = self.round;
        self.round += 1;
        self.awaited = false;
        let mut batch = std::mem::take(&mut self.batch);
        if !batch.is_empty() {
            batch.extend_from_slice(&self.state.hash().to_le_bytes());
            self.recorded.push_back((number, self.state.position()));
        }
        Some(Round { number, batch })
    }

    /// How many batches are committed. The state may have more.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// How many bytes this round would record so far.
    pub fn batch_len(&self) -> usize {
        self.batch.len()
    }

    /// Whether a client waits for the commit of this round. If not, it can be committed together
    /// with what comes within some milliseconds.
    pub fn is_urgent(&self) -> bool {
        self.waiting.back().is_some_and(|(round, _)| *round == self.round)
    }

    /// The same where a commit takes long: a Queued can be sent some milliseconds later.
    pub fn is_awaited(&self) -> bool {
        self.is_urgent() && self.awaited
    }

    /// A round is committed, and so are those before it.
    pub fn round_done(&mut self, number: u64) {
        self.committed = self.committed.max(number);
        while let Some((_, position)) = self.recorded.pop_front_if(|(round, _)| *round <= number) {
            self.position = position;
        }
        while let Some((_, id)) = self.waiting.pop_front_if(|(round, _)| *round <= number) {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.outbox.release(number);
            if !connection.listed {
                connection.listed = true;
                self.ready.push_back(id);
            }
        }
    }

    /// A connection that has something new to send, or is to be closed.
    pub fn next_ready(&mut self) -> Option<ConnectionId> {
        loop {
            let id = self.ready.pop_front()?;
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.listed = false;
                return Some(id);
            }
        }
    }

    /// The bytes that can be sent to a connection now.
    pub fn output(&self, id: ConnectionId) -> &[u8] {
        self.connections.get(&id).map_or(&[], |connection| connection.outbox.ready())
    }

    /// So much of it was sent.
    pub fn sent(&mut self, id: ConnectionId, count: usize) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.outbox.consume(count);
        }
    }

    /// How many bytes wait to be sent, released or not. A driver that finds many does not read on.
    pub fn backlog(&self, id: ConnectionId) -> usize {
        self.connections.get(&id).map_or(0, |connection| connection.outbox.len())
    }

    /// Whether a connection is to be closed, as soon as its output is sent.
    pub fn is_closing(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_none_or(|connection| connection.closing)
    }

    /// Whether a connection is to be closed, and all its output is sent.
    pub fn is_done(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_none_or(|connection| connection.closing && connection.outbox.is_empty())
    }

    /// An action that only the driver can execute.
    pub fn next_action(&mut self) -> Option<Action> {
        let after_commit = crate::sabotage::holds(crate::Rule::RemoveFifoAfterCommit);
        let committed = if after_commit { self.committed } else { u64::MAX };
        self.actions.pop_front().or_else(|| {
            let (_, session) = self.removals.pop_front_if(|(round, _)| *round <= committed)?;
            Some(Action::RemoveFifo { session })
        })
    }

    /// The session of a connection.
    pub fn session_of(&self, id: ConnectionId) -> Option<SessionId> {
        self.connections.get(&id)?.session
    }
}

/// A limit as text, with the setting that raises it, if there is one.
fn named(limit: Limit) -> String {
    match limit {
        Limit::RequestsPerClient(_) => format!("{limit} (max-requests-per-client)"),
        Limit::Requests(_) => format!("{limit} (max-requests)"),
        limit => limit.to_string(),
    }
}

/// How much of a limit clients of that origin may take in all. An eighth is left to those of the
/// machine: a client of the network is not to keep them out.
fn share(origin: Origin, limit: usize) -> usize {
    match origin {
        Origin::Local => limit,
        Origin::Network => limit - limit / 8,
    }
}

fn broken(effects: &[Effect]) -> u64 {
    effects.iter().filter(|effect| matches!(effect, Effect::Broken { .. })).count() as u64
}

/// Bytes of a label.
const INFO: usize = 4096;

fn forbidden(right: &str) -> Refusal {
    (
        code::FORBIDDEN,
        format!("no right to {right}: neither a token nor the daemon's configuration allows it"),
    )
}

pub(crate) fn parse_client_id(text: &str) -> Option<SessionId> {
    if text.len() != 16 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}

/// A session's id as clients see it: 16 hexadecimal digits.
pub(crate) struct ClientId([u8; 16]);

impl ClientId {
    pub(crate) fn new(session: SessionId) -> Self {
        let half_bytes = session.to_be_bytes().into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let mut digits = half_bytes.map(|value| b"0123456789abcdef"[usize::from(value)]);
        Self(std::array::from_fn(|_| digits.next().expect("two for each of eight bytes")))
    }

    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("digits are ASCII")
    }
}

fn client_id(session: SessionId) -> String {
    ClientId::new(session).as_str().into()
}
