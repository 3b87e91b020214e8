//! The state of the daemon: buckets, sessions, and what each message does to them.

pub(crate) mod absent;
mod query;
mod reclaim;

use crate::{
    Config, Error,
    attention::Attention,
    auth::{Keys, Rights},
    grace::Grace,
    journal::{Found, Journal, Recorded, random, to_hex},
    metrics::Metrics,
    process::{Life, Process},
    session::{Outbox, Peer, Session},
};
use lockkeeper_core::{Cause, Effect, Limit, Limits, Live, Manager, Mode, Options, Outcome, RequestError};
use lockkeeper_wire::{Claim, Flags, Seal, ToClient, ToServer, VERSION, code};
use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    rc::Rc,
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// Bytes of a label.
const INFO: usize = 4096;

/// Buckets that a daemon keeps apart.
const BUCKETS: usize = 10_000;

/// What clients of a daemon that leaves are told.
const STOPPING: &str = "the daemon stops; come back";

/// Why a connection ends: a code, and words.
pub(crate) type Parting = (u32, String);

pub(crate) struct Daemon {
    journal: Journal,
    /// One that nobody has a session in is there until its place is taken.
    buckets: Vec<Bucket>,
    free_buckets: Vec<u32>,
    by_name: HashMap<String, u32>,
    /// No token up to this one was given out in a bucket that is gone, or in a former life.
    last_token: u64,
    sessions: Vec<Option<Session>>,
    /// Places among the sessions that are free.
    free: Vec<u32>,
    by_id: HashMap<String, u32>,
    /// What was asked while it waits for the sessions of its former life.
    grace: Option<Grace>,
    /// The sessions of its former life that have not come back with all they had, and until when each is waited for.
    awaited: HashMap<u32, Instant>,
    /// Until when there may be others, of before the machine crashed, who believe in their locks.
    blind_until: Option<Instant>,
    /// When to look whether a session on the network is still heard of.
    looks: BTreeSet<(Instant, u32)>,
    /// Told when there is a first one to look at.
    first_look: Rc<Notify>,
    /// Who may do what on the network. Everybody everything, if there are none.
    pub(crate) keys: Option<Keys>,
    /// Shared with every connection, so that they can be counted.
    pub(crate) connections: Rc<()>,
    pub(crate) attention: Rc<Attention>,
    limits: Limits,
    ttl: Duration,
    /// The greatest ttl of those of its former lives whose sessions it may have to wait for.
    former_ttl: Duration,
    began: Instant,
    /// When it last had a session.
    busy: Instant,
    stopping: bool,
    pub(crate) metrics: Metrics,
}

/// The locks of one bucket.
struct Bucket {
    name: String,
    sessions: usize,
    manager: Manager<Ticket>,
    /// Of the current message. Empty between messages.
    effects: Vec<Effect<Ticket>>,
    /// The greatest token it has given out.
    last_token: u64,
    /// The last place in the order of arrivals that was taken, in this life or in those whose requests it took over.
    last_place: u64,
}

impl Bucket {
    /// Takes the next place in the order of arrivals. What a client claims may be anything, the last number too.
    fn next_place(&mut self) -> u64 {
        self.last_place = self.last_place.saturating_add(1);
        self.last_place
    }
}

/// Whose a request is.
struct Ticket {
    session: u32,
    /// Its place in the order of arrivals, which it keeps from one daemon to the next.
    place: u64,
    rid: u64,
    info: Option<Box<str>>,
    /// Milliseconds from the daemon's start to when it began to wait, or was granted.
    since: u64,
    /// The token it had in the daemon's former life.
    token: Option<u64>,
}

impl Daemon {
    pub(crate) fn start(config: &Config) -> Result<Self, Error> {
        let network = config.listen.is_some();
        let found = Journal::open(&config.state_dir, config.ttl, network)?;
        let Found { journal, sessions, state, ttl, blind } = found;
        let now = Instant::now();
        let last_token = journal.last_token();
        let mut daemon = Self {
            journal,
            buckets: Vec::new(),
            free_buckets: Vec::new(),
            by_name: HashMap::new(),
            last_token,
            sessions: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            grace: None,
            awaited: HashMap::new(),
            blind_until: None,
            looks: BTreeSet::new(),
            first_look: Rc::default(),
            keys: None,
            connections: Rc::default(),
            attention: Rc::new(Attention::new()),
            limits: config.limits,
            ttl: config.ttl,
            former_ttl: ttl,
            began: now,
            busy: now,
            stopping: false,
            metrics: Metrics::default(),
        };
        for session in sessions {
            let key = daemon.add(session).map_err(|why| Error::Damaged(config.state_dir.clone(), why))?;
            daemon.awaited.insert(key, now + ttl);
        }
        match state {
            // It left in good order: all is known.
            Some(state) => daemon.restore(state),
            None if daemon.by_id.is_empty() && !blind => {}
            None => {
                let sessions = daemon.by_id.len();
                tracing::warn!(sessions, blind, "killed, and started again: waiting for clients");
                daemon.grace = Some(Grace::default());
                daemon.blind_until = blind.then_some(now + ttl);
            }
        }
        Ok(daemon)
    }

    /// Leaves in good order: what the sessions have is there for whoever starts next.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
        if self.grace.is_none() {
            let kept: Vec<_> = self
                .sessions
                .iter()
                .flatten()
                .map(|session| (self.record(session), self.kept(session)))
                .collect();
            if let Err(error) = self.journal.leave(&kept) {
                tracing::error!(%error, "cannot leave the state: the next daemon will wait for the clients");
            }
        }
        for session in self.sessions.iter_mut().flatten() {
            session.dismiss(code::STOPPING, STOPPING);
        }
    }

    /// Why it should not be relied on just now.
    pub(crate) fn unwell(&self) -> Option<String> {
        if self.stopping {
            return Some(STOPPING.into());
        }
        self.grace.as_ref()?;
        Some(match (self.awaited.len(), self.blind_until) {
            (0, Some(_)) => {
                "the machine has crashed: clients of before may still believe in their locks".into()
            }
            (absent, _) => {
                format!("the daemon was killed and has started again: it waits for {absent} sessions")
            }
        })
    }

    /// The counts, as text.
    pub(crate) fn count(&self) -> String {
        self.metrics.render(self.by_id.len(), self.connected())
    }

    /// Whether nobody has a session.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(crate) fn connected(&self) -> usize {
        Rc::strong_count(&self.connections) - 1
    }

    pub(crate) fn idle_for(&self) -> Duration {
        if self.by_id.is_empty() { self.busy.elapsed() } else { Duration::ZERO }
    }

    /// Opens a session, or goes on with one.
    pub(crate) fn hello(
        &mut self,
        version: u32,
        bucket: &str,
        resume: Option<(&str, Seal)>,
        token: Option<&str>,
        peer: Peer,
        outbox: &Rc<RefCell<Outbox>>,
    ) -> Result<u32, Parting> {
        if version != VERSION {
            let older = if version < VERSION { "client" } else { "daemon" };
            let why = format!(
                "the client speaks version {version} of the protocol, the daemon {VERSION}: upgrade the {older}"
            );
            return Err((code::VERSION, why));
        }
        if self.stopping {
            return Err((code::STOPPING, STOPPING.into()));
        }
        let rights = match (&self.keys, peer) {
            (Some(keys), Peer::Network) => {
                keys.rights(token, bucket).map_err(|why| (code::UNAUTHORIZED, why))?
            }
            _ => Rights::ALL,
        };
        let known = resume.and_then(|(id, secret)| self.resumable(id, secret, bucket, peer));
        let key = match known {
            Some(key) => key,
            None => {
                let id = to_hex(&random()[..8]);
                let session = Recorded { id, secret: random(), bucket: bucket.into(), peer };
                check_bucket(bucket).map_err(|why| (code::NOT_SUPPORTED, why))?;
                if self.by_name.len() >= BUCKETS && !self.by_name.contains_key(bucket) {
                    return Err((code::LIMIT, format!("limit reached: {BUCKETS} buckets")));
                }
                let storage = |error| (code::STORAGE, format!("the session cannot be recorded: {error}"));
                // First what has a limit: a session that is written down is waited for after a kill.
                let key = self.add(session.clone()).map_err(|why| (code::LIMIT, why))?;
                if let Err(error) = self.journal.opened(&session) {
                    self.end(key);
                    return Err(storage(error));
                }
                key
            }
        };
        let ttl = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        let now = Instant::now();
        if known.is_some() {
            self.metrics.resumes += 1;
            self.came_back(key, now);
        }
        if peer == Peer::Network {
            self.look_later(key, now);
        }
        let session = self.session(key);
        (session.rights, session.reclaiming) = (rights, known.is_some());
        session.unclaimed = session.requests.keys().copied().collect();
        let before = session.outbox.replace(Rc::clone(outbox));
        if let Some(before) = before {
            // Its client has given that connection up; whatever it said there and was not heard, it says again.
            before.borrow_mut().cut();
        }
        let (client_id, secret) = (session.id.clone(), session.secret);
        session.send(&ToClient::Welcome {
            version: VERSION,
            client_id: &client_id,
            secret,
            ttl,
            resumed: known.is_some(),
        });
        tracing::debug!(session = client_id, bucket, resumed = known.is_some(), "hello");
        Ok(key)
    }

    /// The session that a client may go on with: one whose secret it knows, in the same bucket and reached in the same way,
    /// that no process of this machine has.
    fn resumable(&self, id: &str, secret: Seal, bucket: &str, peer: Peer) -> Option<u32> {
        let key = *self.by_id.get(id)?;
        let session = self.sessions[key as usize].as_ref()?;
        let same =
            session.secret.iter().zip(secret).fold(0, |seen, (ours, theirs)| seen | (ours ^ theirs)) == 0;
        let bucket = self.buckets[session.bucket as usize].name == bucket;
        let free = match (session.peer, peer) {
            (Peer::Local(_), Peer::Local(_)) => session.outbox.is_none(),
            (before, now) => before == now,
        };
        (same && bucket && free).then_some(key)
    }

    /// A session is to last at least as long as a child of its client's process.
    fn heir(&mut self, key: u32, pid: u32) -> Result<(), Parting> {
        let session = self.session(key);
        let Peer::Local(client) = session.peer else {
            return Err((code::OUT_OF_ORDER, "only a process of the daemon's machine has an heir".into()));
        };
        let heir = i32::try_from(pid).ok().and_then(Process::of);
        // Another's process is none, nor is one that has ended meanwhile.
        session.heir = heir.filter(|heir| client.is_some_and(|client| heir.parent() == Some(client.pid)));
        Ok(())
    }

    /// The connection of a session has ended. Who has it from now on, if anybody does.
    pub(crate) fn inherit(&mut self, key: u32, outbox: &Rc<RefCell<Outbox>>) -> Option<Process> {
        let session = self.sessions[key as usize].as_mut().filter(|session| session.has(outbox))?;
        let heir = session.heir.filter(|heir| !self.stopping && heir.life() != Life::Dead)?;
        tracing::info!(session = session.id, pid = heir.pid, "its client has ended: it goes on with a child");
        session.peer = Peer::Local(Some(heir));
        Some(heir)
    }

    /// The connection of a session has ended. On this machine that means the client has, or wants no more.
    pub(crate) fn disconnected(&mut self, key: u32, outbox: &Rc<RefCell<Outbox>>) {
        // Unless it has ended, or goes on with another connection.
        let session = self.sessions[key as usize].as_mut().filter(|session| session.has(outbox));
        let Some(session) = session else { return };
        if self.stopping || session.peer == Peer::Network {
            session.heard = outbox.borrow().heard;
            session.outbox = None;
        } else {
            self.end(key);
        }
    }

    /// Ends a session, and all it has with it (§2.6).
    pub(crate) fn end(&mut self, key: u32) {
        let Some(session) = self.sessions[key as usize].take() else { return };
        self.by_id.remove(&session.id);
        self.free.push(key);
        self.busy = Instant::now();
        let awaited = self.forget(key, &session);
        let bucket = &mut self.buckets[session.bucket as usize];
        bucket.manager.client_gone(session.client, &mut bucket.effects);
        self.deliver(session.bucket);
        let bucket = &mut self.buckets[session.bucket as usize];
        bucket.sessions -= 1;
        if bucket.sessions == 0 {
            self.last_token = self.last_token.max(bucket.last_token);
            self.by_name.remove(&bucket.name);
            self.free_buckets.push(session.bucket);
        }
        if let Err(error) = self.journal.closed(&session.id) {
            // It will be waited for in vain, until its process is seen to be dead.
            tracing::warn!(%error, "the end of a session cannot be recorded");
        }
        if self.journal.is_long() {
            let sessions: Vec<_> =
                self.sessions.iter().flatten().map(|session| self.record(session)).collect();
            if let Err(error) = self.journal.rewrite(sessions.iter()) {
                tracing::warn!(%error, "the list of sessions cannot be shortened");
            }
        }
        tracing::debug!(session = session.id, "ended");
        if awaited {
            self.settle_if_all_are_back();
        }
    }

    pub(crate) fn handle(&mut self, key: u32, message: ToServer<'_>) -> Result<(), Parting> {
        if self.stopping {
            // What its state says is written: nothing may change any more.
            return Err((code::STOPPING, STOPPING.into()));
        }
        match message {
            // A bye is the connection's, and does not come here.
            ToServer::Hello { .. } | ToServer::Bye => {
                return Err((code::OUT_OF_ORDER, "hello was said already".into()));
            }
            ToServer::Request { rid, scope, flags, nested_in, info } => {
                self.ask(&Ask { key, rid, scope: &scope, flags, nested_in, info })?;
            }
            ToServer::Release { rid } => {
                self.give_up(key, rid, Some(&ToClient::Released { rid }));
            }
            ToServer::Drop { rid } => _ = self.give_up(key, rid, None),
            ToServer::Abort { rid, timed_out } => {
                let waited = self.give_up(key, rid, Some(&ToClient::Aborted { rid }));
                self.metrics.timeouts += u64::from(timed_out && waited);
            }
            ToServer::ForceRelease { rid, name } => {
                self.advance(key, rid)?;
                self.force_release(key, rid, name);
            }
            ToServer::Query { rid, name, deadlocks } => {
                self.advance(key, rid)?;
                self.query(key, rid, name, deadlocks);
            }
            ToServer::Reclaim { rid, scope, info, claim } => self.reclaim(key, rid, &scope, info, claim)?,
            ToServer::Ready => self.ready(key),
            ToServer::Ping => self.session(key).send(&ToClient::Pong),
            ToServer::Heir { pid } => self.heir(key, pid)?,
        }
        Ok(())
    }

    /// Makes a new request, or, while it waits for others, keeps it for later.
    fn ask(&mut self, ask: &Ask<'_>) -> Result<(), Parting> {
        let Ask { key, rid, .. } = *ask;
        let session = self.session(key);
        session.unclaimed.remove(&rid);
        match session.requests.get(&rid) {
            // It was not answered, and is said again.
            Some(&request) if session.reclaiming => {
                self.tell(key, rid, request, Claim::Waiting { ticket: None });
                return Ok(());
            }
            _ if session.reclaiming => session.last_rid = session.last_rid.max(rid),
            _ => self.advance(key, rid)?,
        }
        if ask.flags.steal && !self.session(key).rights.steal {
            self.forbid(key, rid, "steal");
            return Ok(());
        }
        let most = self.limits.requests_per_client;
        match &mut self.grace {
            Some(grace) if grace.count_of(key) >= most as usize => {
                let message = Limit::RequestsPerClient(most).to_string();
                self.session(key).send(&ToClient::Refused { rid, code: code::LIMIT, message: &message });
            }
            Some(grace) => grace.later(ask),
            None => self.request(ask),
        }
        Ok(())
    }

    /// Numbers grow: none is used twice.
    fn advance(&mut self, key: u32, rid: u64) -> Result<(), Parting> {
        let session = self.session(key);
        if rid <= session.last_rid {
            let why = format!("number {rid} does not come after {}", session.last_rid);
            return Err((code::OUT_OF_ORDER, why));
        }
        session.last_rid = rid;
        Ok(())
    }

    pub(crate) fn request(&mut self, ask: &Ask<'_>) {
        self.request_at(ask, None);
    }

    /// Makes a request that has a place in the order of arrivals already, or takes the next one.
    fn request_at(&mut self, ask: &Ask<'_>, place: Option<u64>) {
        let Ask { key, rid, scope, flags, nested_in, info } = *ask;
        let session = self.sessions[key as usize].as_mut().expect("who asks has a session");
        if info.is_some_and(|info| info.len() > INFO) {
            let message = format!("limit reached: a label has at most {INFO} bytes");
            return session.send(&ToClient::Refused { rid, code: code::LIMIT, message: &message });
        }
        let bucket = &mut self.buckets[session.bucket as usize];
        let place = place.unwrap_or_else(|| bucket.next_place());
        // As many as can wait, so that a release never needs one that is not reserved.
        let most = u64::from(self.limits.requests) + 1;
        if let Err(error) = self.journal.reserve(bucket.last_token, most) {
            let message = format!("the state directory cannot be written to: {error}");
            return session.send(&ToClient::Refused { rid, code: code::STORAGE, message: &message });
        }
        let options = Options {
            if_available: flags.if_available,
            steal: flags.steal,
            refuse_deadlock: flags.refuse_deadlock,
            nested_in: nested_in.and_then(|outer| session.requests.get(&outer).copied()),
        };
        let since = since(self.began);
        let ticket = Ticket { session: key, place, rid, info: info.map(Into::into), since, token: None };
        let outcome = bucket.manager.request(session.client, scope, options, ticket, &mut bucket.effects);
        let number = session.bucket;
        // Whom a steal broke hears of it before the thief has the lock; who is let in, after that.
        let broken = |effect: &Effect<Ticket>| matches!(effect, Effect::Broken { .. });
        let mut let_in: Vec<_> = bucket.effects.extract_if(.., |effect| !broken(effect)).collect();
        self.deliver(number);
        self.answer(ask, place, outcome);
        self.buckets[number as usize].effects.append(&mut let_in);
        self.deliver(number);
    }

    fn answer(&mut self, ask: &Ask<'_>, place: u64, outcome: Result<Outcome, RequestError>) {
        let Ask { key, rid, .. } = *ask;
        let session = self.sessions[key as usize].as_mut().expect("who asks has a session");
        let bucket = &mut self.buckets[session.bucket as usize];
        match outcome {
            Ok(Outcome::Granted { request, token }) => {
                session.requests.insert(rid, request);
                bucket.last_token = token.get();
                self.metrics.granted(0);
                let live = bucket.manager.get(request).expect("it was just granted");
                let receipt = receipt(&self.journal, session, rid, token.get(), live);
                session.send(&ToClient::Granted { rid, token: token.get(), receipt });
            }
            Ok(Outcome::Queued { request }) => {
                session.requests.insert(rid, request);
                self.metrics.pending += 1;
                session.send(&ToClient::Queued { rid, ticket: place });
            }
            Ok(Outcome::Unavailable) => session.send(&ToClient::Unavailable { rid }),
            Err(RequestError::Deadlock(found)) => self.deadlocked(key, rid, place, &found),
            Err(error) => {
                let limit = matches!(error, RequestError::Limit(_));
                let code = if limit { code::LIMIT } else { code::NOT_SUPPORTED };
                session.send(&ToClient::Refused { rid, code, message: &error.to_string() });
            }
        }
    }

    /// Ends a request, however it stands. One that has ended already is no matter: the two messages have crossed. The
    /// client has its answer before it hears what that lets in. Whether it waited.
    fn give_up(&mut self, key: u32, rid: u64, answer: Option<&ToClient<'_>>) -> bool {
        if let Some(grace) = &mut self.grace {
            grace.give_up(key, rid);
        }
        let session = self.session(key);
        if let Some(answer) = answer {
            session.send(answer);
        }
        session.unclaimed.remove(&rid);
        let Some(request) = session.requests.remove(&rid) else { return false };
        let number = session.bucket;
        let bucket = &mut self.buckets[number as usize];
        let released = bucket.manager.release(request, &mut bucket.effects);
        let waited = released.is_none() && bucket.manager.abort(request, &mut bucket.effects);
        if let Some(ticket) = released {
            self.metrics.ended(since(self.began).saturating_sub(ticket.since));
        }
        self.metrics.aborts += u64::from(waited);
        self.deliver(number);
        waited
    }

    /// Refuses what the client's token does not allow.
    fn forbid(&mut self, key: u32, rid: u64, right: &str) {
        let message = format!("the token does not allow it: it has no {right}");
        self.session(key).send(&ToClient::Refused { rid, code: code::FORBIDDEN, message: &message });
    }

    fn force_release(&mut self, key: u32, rid: u64, name: &[u8]) {
        if !self.session(key).rights.force_release {
            return self.forbid(key, rid, "force_release");
        }
        if self.refuse_in_grace(key, rid) {
            return;
        }
        let number = self.session(key).bucket;
        let bucket = &mut self.buckets[number as usize];
        bucket.manager.force_release(name, &mut bucket.effects);
        self.deliver(number);
        self.session(key).send(&ToClient::Released { rid });
    }

    fn refuse_in_grace(&mut self, key: u32, rid: u64) -> bool {
        if self.grace.is_none() {
            return false;
        }
        let message = self.unwell().unwrap_or_default();
        self.session(key).send(&ToClient::Refused { rid, code: code::GRACE, message: &message });
        true
    }

    /// Sends the effects of a message to those whom they concern.
    fn deliver(&mut self, number: u32) {
        let bucket = &mut self.buckets[number as usize];
        let mut effects = std::mem::take(&mut bucket.effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Granted { request, token } => {
                    bucket.last_token = token.get();
                    let now = since(self.began);
                    let ticket = bucket.manager.data_mut(request);
                    let began = ticket.map(|ticket| std::mem::replace(&mut ticket.since, now));
                    self.metrics.pending -= 1;
                    self.metrics.granted(now.saturating_sub(began.unwrap_or(now)));
                    // A client's end lets in what it waited for itself, which then ends with it: nobody's grant.
                    let Some(live) = bucket.manager.get(request) else { continue };
                    let &Ticket { session, rid, .. } = live.data();
                    let session = self.sessions[session as usize].as_mut().expect("its session lives");
                    let receipt = receipt(&self.journal, session, rid, token.get(), live);
                    session.send(&ToClient::Granted { rid, token: token.get(), receipt });
                    self.attention.hand_over();
                }
                // Of its own accord, or with its session.
                Effect::Aborted { .. } => self.metrics.pending -= 1,
                Effect::Broken { cause, data, .. } => {
                    self.metrics.ended(since(self.began).saturating_sub(data.since));
                    match cause {
                        Cause::Stolen => self.metrics.steals += 1,
                        Cause::Lost => self.metrics.ended += 1,
                    }
                    // Not if it was broken with its session.
                    if let Some(session) = &mut self.sessions[data.session as usize] {
                        session.requests.remove(&data.rid);
                        session.send(&ToClient::Broken { rid: data.rid, cause });
                    }
                }
            }
        }
        bucket.effects = effects;
    }

    fn add(&mut self, session: Recorded) -> Result<u32, String> {
        let Recorded { id, secret, bucket, peer } = session;
        let bucket = self.bucket(&bucket);
        let manager = &mut self.buckets[bucket as usize].manager;
        let client = manager.client().map_err(|limit| limit.to_string())?;
        self.buckets[bucket as usize].sessions += 1;
        let session = Session {
            id: id.clone(),
            secret,
            bucket,
            client,
            peer,
            rights: Rights::ALL,
            requests: HashMap::new(),
            unclaimed: BTreeSet::new(),
            last_rid: 0,
            outbox: None,
            reclaiming: false,
            heard: Instant::now(),
            look_at: None,
            heir: None,
        };
        let key = match self.free.pop() {
            Some(key) => key,
            None => {
                self.sessions.push(None);
                u32::try_from(self.sessions.len() - 1).expect("there are fewer sessions than that")
            }
        };
        self.sessions[key as usize] = Some(session);
        self.by_id.insert(id, key);
        Ok(key)
    }

    fn bucket(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.by_name.get(name) {
            return number;
        }
        let last_token = self.last_token;
        let seed = u64::from_le_bytes(random()[..8].try_into().expect("eight of sixteen bytes"));
        let config = lockkeeper_core::Config { limits: self.limits, last_token, hash_seed: seed };
        let (manager, effects) = (Manager::new(config), Vec::new());
        let bucket = Bucket { name: name.into(), sessions: 0, manager, effects, last_token, last_place: 0 };
        let number = match self.free_buckets.pop() {
            Some(number) => {
                self.buckets[number as usize] = bucket;
                number
            }
            None => {
                self.buckets.push(bucket);
                u32::try_from(self.buckets.len() - 1).expect("there are fewer buckets than that")
            }
        };
        self.by_name.insert(name.into(), number);
        number
    }

    fn session(&mut self, key: u32) -> &mut Session {
        self.sessions[key as usize].as_mut().expect("a connection's session lives as long as it does")
    }

    fn record(&self, session: &Session) -> Recorded {
        let bucket = self.buckets[session.bucket as usize].name.clone();
        Recorded { id: session.id.clone(), secret: session.secret, bucket, peer: session.peer }
    }
}

/// A request as it was asked.
pub(crate) struct Ask<'a> {
    pub(crate) key: u32,
    pub(crate) rid: u64,
    pub(crate) scope: &'a [(&'a [u8], Mode)],
    pub(crate) flags: Flags,
    pub(crate) nested_in: Option<u64>,
    pub(crate) info: Option<&'a str>,
}

fn receipt(journal: &Journal, session: &Session, rid: u64, token: u64, live: Live<'_, Ticket>) -> Seal {
    let scope = live.scope().map(|(name, mode)| (name.as_bytes(), mode));
    journal.receipt(&session.id, rid, token, scope)
}

fn since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The name of a bucket goes into files and messages.
fn check_bucket(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match name.len() {
        1..=64 if name.chars().all(allowed) => Ok(()),
        _ => Err("a bucket is named with 1 to 64 letters, digits, '.', '_' and '-'".into()),
    }
}
