//! The replicated state: sessions, their requests, the lock managers by bucket, and unacknowledged
//! notices.
//!
//! [`State::apply`] never refuses and never searches. The server has decided before, with the
//! read-only methods.
//!
//! # Invariants
//!
//! * The state depends on the records alone: no clock, no configuration, no hash seed, no address
//!   in memory.
//! * A session's numbered messages have growing numbers, none of which is used twice.
//! * A lock that was broken is a notice of its session until the client has acknowledged it.

use crate::{
    codec::{Damaged, Reader, put_uint},
    record::{EndReason, Fifo, Origin, Record, SecretHash},
    sabotage::{Rule, holds},
    snapshot::Progress,
    view::View,
};
use lockkeeper_core::{
    Cause, ClientId, Effect as CoreEffect, Limits, Manager, Mode, Options, Outcome, RequestId,
};
use std::{collections::BTreeMap, sync::Arc};

/// The id of a session; its client id as a number.
pub type SessionId = u64;

/// The level of the records that this build writes. It understands lower ones. It rises with every
/// change of the meaning of records, and is part of every batch and every snapshot: a server that
/// finds a higher one stops. So all daemons of a fleet are upgraded to a version that understands a
/// level before one writes it.
pub const LEVEL: u64 = 1;

/// The service's state.
pub struct State {
    /// Batches applied.
    pub(crate) position: u64,
    /// Milliseconds since the epoch, for display: of the newest batch.
    pub(crate) time: u64,
    /// The running hash of all effects.
    pub(crate) hash: u64,
    /// An upper bound of the tokens granted in removed buckets.
    pub(crate) last_token: u64,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    /// Counts the sessions that were opened, for snapshots.
    pub(crate) next_session: u64,
    pub(crate) by_name: BTreeMap<Box<str>, usize>,
    /// Buckets that have a session. Places are reused and never show.
    pub(crate) buckets: Vec<Option<Box<Bucket>>>,
    pub(crate) next_bucket: u64,
    free_buckets: Vec<usize>,
    /// The bytes of all sessions.
    bytes: usize,
    /// The bytes of all buckets, including those allocated by their managers.
    memory: usize,
    /// How many requests hold their locks, and how many wait.
    held: u64,
    pending: u64,
    /// A snapshot that is being taken.
    pub(crate) snapshot: Option<Box<Progress>>,
    /// Answers to long queries, by connection.
    pub(crate) views: BTreeMap<u64, View>,
    /// Requests that have changed since it was last emptied. None without subscribers.
    pub(crate) journal: Option<Vec<Touched>>,
    /// Seeds the hash of names. Has no effect on the state.
    pub(crate) hash_seed: u64,
    /// Of the record being applied. Empty between records.
    effects: Vec<CoreEffect<RequestOwner>>,
}

pub(crate) struct Bucket {
    pub(crate) name: Box<str>,
    /// Never the same for two buckets, also of one name.
    pub(crate) serial: u64,
    pub(crate) sessions: usize,
    /// The bytes of its sessions.
    pub(crate) bytes: usize,
    /// Its bytes, including those allocated by its manager: see [`State::memory`].
    memory: usize,
    pub(crate) manager: Manager<RequestOwner>,
}

/// The memory that a manager without requests may keep for those to come. More is given back.
const KEPT: usize = 256 << 10;

/// The owner of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestOwner {
    pub(crate) session: SessionId,
    pub(crate) rid: u64,
    /// When it began to wait, or was granted, in milliseconds since the epoch.
    pub(crate) since: u64,
    pub(crate) info: Option<Box<str>>,
    /// Its share of [`State::bytes`].
    pub(crate) bytes: u32,
}

/// A request that was made, granted or ended.
#[derive(Clone, Copy)]
pub(crate) struct Touched {
    /// The place of its bucket.
    pub(crate) bucket: usize,
    pub(crate) request: RequestId,
    pub(crate) is_new: bool,
}

/// About what a request takes in memory: no less than what the manager allocates for it, if each of
/// its names is new.
pub(crate) fn request_bytes(names: impl Iterator<Item = usize>, info: Option<usize>) -> usize {
    names.fold(64 + info.unwrap_or(0), |sum, name| sum + 192 + name)
}

/// About what a session takes, without its requests and notices.
pub(crate) fn session_bytes(owner: &str) -> usize {
    1024 + owner.len()
}

impl Notice {
    /// About what it takes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Broken { by, .. } => 96 + by.len(),
            Self::Outcome { .. } => 96,
        }
    }
}

pub(crate) struct Session {
    pub(crate) serial: u64,
    pub(crate) bucket: usize,
    pub(crate) client: ClientId,
    pub(crate) secret: SecretHash,
    pub(crate) origin: Origin,
    pub(crate) owner: Arc<str>,
    /// The number of the newest Hello.
    pub(crate) hello: u64,
    /// Counts the connections that the session had.
    pub(crate) attachment: u64,
    /// The lease in force, in milliseconds.
    pub(crate) ttl: u64,
    /// The lease that is in force once the Welcome of this number is acknowledged.
    pub(crate) lowering: Option<(u64, u64)>,
    /// The FIFO whose writers keep it alive; it has a lease if there is none.
    pub(crate) fifo: Option<Fifo>,
    /// The FIFO no longer counts once the Welcome of this number, which has a lease, is
    /// acknowledged.
    pub(crate) fifo_until: Option<u64>,
    /// The last number of a numbered message.
    pub(crate) number: u64,
    pub(crate) acked: u64,
    /// The greatest request number recorded.
    pub(crate) last_rid: u64,
    pub(crate) requests: BTreeMap<u64, RequestId>,
    /// The unacknowledged notices, by number.
    pub(crate) notices: BTreeMap<u64, Notice>,
    /// Its bytes, with its requests and notices.
    pub(crate) bytes: usize,
}

/// A notice that is repeated until the client acknowledges it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A lock was broken.
    Broken {
        /// The request.
        rid: u64,
        /// Why.
        cause: Cause,
        /// A description of the client that did it.
        by: Box<str>,
        /// Whether by a force release.
        forced: bool,
    },
    /// The outcome of a force release or the ending of a session.
    Outcome {
        /// The question.
        rid: u64,
        /// How many ended.
        count: u64,
    },
}

/// The effects of a record on clients, in the order in which they are notified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A request is held.
    Granted {
        /// The session.
        session: SessionId,
        /// The request.
        rid: u64,
        /// Its token.
        token: u64,
        /// For how many milliseconds it has waited.
        waited: u64,
        /// Whether it was made by this record.
        new: bool,
    },
    /// A request waits.
    Queued {
        /// The session.
        session: SessionId,
        /// The request.
        rid: u64,
        /// Its arrival.
        arrival: u64,
    },
    /// A request ended as wished.
    Released {
        /// The session.
        session: SessionId,
        /// The request.
        rid: u64,
        /// Whether it was held, and for how many milliseconds.
        held: Option<u64>,
    },
    /// A lock was broken while its session lives.
    Broken {
        /// The session.
        session: SessionId,
        /// The number of the notice.
        number: u64,
        /// The request.
        rid: u64,
        /// Why.
        cause: Cause,
    },
    /// A force release or the ending of a session is done.
    Outcome {
        /// The session that asked.
        session: SessionId,
        /// The number of the notice.
        number: u64,
        /// The question.
        rid: u64,
        /// How many ended.
        count: u64,
    },
    /// A session has ended.
    Ended {
        /// The session.
        session: SessionId,
        /// How many locks it held.
        held: u64,
        /// How many of its requests waited.
        waiting: u64,
        /// Whether another session did it, or the server on its own account.
        by_other: bool,
    },
}

/// A view of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionView<'a> {
    /// Its bucket.
    pub bucket: &'a str,
    /// The hash of its secret.
    pub secret: &'a SecretHash,
    /// Where its client is.
    pub origin: Origin,
    /// A description of its client.
    pub owner: &'a str,
    /// The number of its newest Hello.
    pub hello: u64,
    /// Counts its connections.
    pub attachment: u64,
    /// Its lease in milliseconds.
    pub ttl: u64,
    /// Its FIFO.
    pub fifo: Option<Fifo>,
    /// The last number of a numbered message.
    pub number: u64,
    /// The acknowledged number.
    pub acked: u64,
    /// The greatest request number recorded.
    pub last_rid: u64,
    /// How many requests it has.
    pub requests: usize,
    /// How many messages it has not acknowledged.
    pub notices: usize,
    /// About how many bytes of memory it takes, with all it has.
    pub bytes: usize,
    /// The same, of all sessions of its bucket, and how many more bytes fit into its allocated
    /// memory.
    pub bucket_bytes: (usize, usize),
}

/// A view of a bucket.
#[derive(Clone, Copy, Debug)]
pub struct BucketView<'a> {
    /// Its name.
    pub name: &'a str,
    /// How many sessions it has.
    pub sessions: usize,
    /// How many names its requests ask for.
    pub names: usize,
    /// About how many bytes of memory they take.
    pub bytes: usize,
}

/// The state takes on whatever is recorded: the server has checked its own limits before.
fn largest_limits() -> Limits {
    Limits {
        name_bytes: usize::MAX,
        names_per_scope: u16::MAX,
        requests_per_client: u32::MAX,
        requests: u32::MAX,
        clients: u32::MAX,
    }
}

impl State {
    /// Nothing has happened yet. The seed is for the hash of names, and has no effect on the state.
    pub fn new(hash_seed: u64) -> Self {
        Self {
            position: 0,
            time: 0,
            hash: 0,
            last_token: 0,
            sessions: BTreeMap::new(),
            next_session: 0,
            by_name: BTreeMap::new(),
            buckets: Vec::new(),
            next_bucket: 0,
            free_buckets: Vec::new(),
            bytes: 0,
            memory: 0,
            held: 0,
            pending: 0,
            snapshot: None,
            views: BTreeMap::new(),
            journal: None,
            hash_seed,
            effects: Vec::new(),
        }
    }

    /// How many batches were applied.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The time of the newest batch, for display: milliseconds since the epoch.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// The running hash of all effects.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The greatest token that was given out in any bucket.
    pub fn last_token(&self) -> u64 {
        let buckets = self.buckets.iter().flatten().map(|bucket| bucket.manager.last_token());
        buckets.fold(self.last_token, u64::max)
    }

    /// The ids of all sessions, in their order.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.keys().copied()
    }

    /// How many sessions there are.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// About how many bytes of memory all sessions take, with all they have. It depends on the
    /// records alone.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The same, but for a bucket whose manager has allocated more, that: a manager keeps the
    /// memory of requests that have ended, until all have. A state that was restored has less.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// How many requests hold their locks.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// How many requests wait.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    fn count(&mut self, effect: &Effect) {
        match *effect {
            Effect::Granted { new, .. } => {
                self.held += 1;
                self.pending -= u64::from(!new);
            }
            Effect::Queued { .. } => self.pending += 1,
            Effect::Released { held: Some(_), .. } | Effect::Broken { .. } => self.held -= 1,
            Effect::Released { held: None, .. } => self.pending -= 1,
            Effect::Ended { held, waiting, .. } => {
                self.held -= held;
                self.pending -= waiting;
            }
            Effect::Outcome { .. } => {}
        }
    }

    /// A request was restored.
    pub(crate) fn count_restored(&mut self, held: bool) {
        *if held { &mut self.held } else { &mut self.pending } += 1;
    }

    /// A session takes more, or less.
    pub(crate) fn charge(&mut self, id: SessionId, more: usize, less: usize) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let bucket = self.buckets[session.bucket].as_mut().expect(HAS_BUCKET);
        for bytes in [&mut session.bytes, &mut bucket.bytes, &mut self.bytes] {
            *bytes = *bytes + more - less;
        }
        let place = session.bucket;
        self.measure(place);
    }

    /// Sees what a bucket takes that has changed.
    pub(crate) fn measure(&mut self, place: usize) {
        let bucket = self.buckets[place].as_mut().expect(HAS_BUCKET);
        let mut allocated = bucket.manager.bytes();
        if allocated > KEPT && bucket.manager.is_empty() {
            bucket.manager.shrink();
            allocated = bucket.manager.bytes();
        }
        self.memory -= bucket.memory;
        bucket.memory = bucket.bytes.max(allocated);
        self.memory += bucket.memory;
    }

    /// How many buckets there are.
    pub fn bucket_count(&self) -> usize {
        self.by_name.len()
    }

    /// The buckets, in the order of their names.
    pub fn buckets(&self) -> impl Iterator<Item = BucketView<'_>> {
        self.by_name.iter().map(|(name, &place)| {
            let bucket = self.bucket(place);
            BucketView { name, sessions: bucket.sessions, names: bucket.manager.len(), bytes: bucket.bytes }
        })
    }

    /// The bytes of a bucket's sessions, if it has any, and how many more fit into its allocated
    /// memory.
    pub(crate) fn bucket_bytes(&self, name: &str) -> Option<(usize, usize)> {
        self.by_name.get(name).map(|&place| self.bucket(place).taken())
    }

    /// A session.
    pub fn session(&self, id: SessionId) -> Option<SessionView<'_>> {
        let session = self.sessions.get(&id)?;
        Some(SessionView {
            bucket: &self.bucket(session.bucket).name,
            secret: &session.secret,
            origin: session.origin,
            owner: &session.owner,
            hello: session.hello,
            attachment: session.attachment,
            ttl: session.ttl,
            fifo: session.fifo,
            number: session.number,
            acked: session.acked,
            last_rid: session.last_rid,
            requests: session.requests.len(),
            notices: session.notices.len(),
            bytes: session.bytes,
            bucket_bytes: self.bucket(session.bucket).taken(),
        })
    }

    /// The FIFO that a session has once this acknowledgement is recorded.
    pub(crate) fn fifo_after(&self, session: SessionId, ack: u64) -> Option<Fifo> {
        let session = self.sessions.get(&session)?;
        let told = |number: u64| number <= ack.min(session.number);
        session.fifo.filter(|_| !session.fifo_until.is_some_and(told))
    }

    /// Whether a session has this live request.
    pub fn has_request(&self, session: SessionId, rid: u64) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.requests.contains_key(&rid))
    }

    /// The live requests of a session: number, arrival and token, in the order of their numbers.
    pub fn requests(&self, session: SessionId) -> impl Iterator<Item = (u64, u64, Option<u64>)> {
        let session = self.sessions.get(&session);
        session.into_iter().flat_map(|session| {
            let manager = &self.bucket(session.bucket).manager;
            session.requests.iter().filter_map(|(&rid, &id)| {
                let live = manager.get(id)?;
                Some((rid, id.arrival(), live.token().map(|token| token.get())))
            })
        })
    }

    /// A session's last requests, so many of them, the last one first: their numbers, and the bytes
    /// that they count for.
    pub(crate) fn last_requests(&self, session: SessionId, count: usize) -> Vec<(u64, usize)> {
        let Some(session) = self.sessions.get(&session) else { return Vec::new() };
        let manager = &self.bucket(session.bucket).manager;
        let bytes = |id| manager.get(id).map_or(0, |live| live.data().bytes as usize);
        session.requests.iter().rev().take(count).map(|(&rid, &id)| (rid, bytes(id))).collect()
    }

    /// The notice of a session with a number, unless it is acknowledged.
    pub(crate) fn notice(&self, session: SessionId, number: u64) -> Option<&Notice> {
        self.sessions.get(&session)?.notices.get(&number)
    }

    /// The unacknowledged notices of a session, by number.
    pub fn notices(&self, session: SessionId) -> impl Iterator<Item = (u64, &Notice)> {
        let session = self.sessions.get(&session);
        session
            .into_iter()
            .flat_map(|session| session.notices.iter().map(|(&number, notice)| (number, notice)))
    }

    /// Whether a request would be granted at once.
    pub(crate) fn is_available(&self, session: SessionId, scope: &[(&[u8], Mode)]) -> bool {
        let session = self.sessions.get(&session);
        session.is_some_and(|session| self.bucket(session.bucket).manager.is_available(scope))
    }

    /// The manager of a session's bucket.
    pub(crate) fn manager(&self, session: SessionId) -> Option<&Manager<RequestOwner>> {
        let session = self.sessions.get(&session)?;
        Some(&self.bucket(session.bucket).manager)
    }

    /// The manager of a session's bucket, its agent there, and the request of a nested one. For
    /// probes that leave everything as it was.
    pub(crate) fn probe(
        &mut self,
        session: SessionId,
        nested_in: Option<(u64, u64)>,
    ) -> Option<(&mut Manager<RequestOwner>, ClientId, Option<RequestId>)> {
        let outer = nested_in.and_then(|(session, rid)| self.outer(session, rid));
        let Session { bucket, client, .. } = *self.sessions.get(&session)?;
        let outer = outer.filter(|&(place, _)| place == bucket).map(|(_, id)| id);
        Some((&mut self.buckets[bucket].as_mut().expect(HAS_BUCKET).manager, client, outer))
    }

    fn outer(&self, session: SessionId, rid: u64) -> Option<(usize, RequestId)> {
        let session = self.sessions.get(&session)?;
        Some((session.bucket, *session.requests.get(&rid)?))
    }

    /// Applies a batch as a log has it, and checks that it has the effects that it had where it was
    /// made. Returns false for a level that this build does not know: nothing was applied.
    ///
    /// # Errors
    ///
    /// If the bytes are no batch, or the effects differ: this state, or that one, is wrong.
    pub fn apply_batch(&mut self, batch: &[u8], effects: &mut Vec<Effect>) -> Result<bool, Damaged> {
        let Some((records, hash)) = batch.split_last_chunk::<8>() else {
            return Err(Damaged::new("a batch is too short"));
        };
        let mut reader = Reader(records);
        let level = reader.uint()?;
        if level > LEVEL {
            return Ok(false);
        }
        self.begin_batch(reader.uint()?);
        while !reader.is_empty() {
            let record = Record::decode(&mut reader)?;
            self.apply(&record, effects)?;
        }
        let expected = u64::from_le_bytes(*hash);
        match self.hash == expected {
            true => Ok(true),
            false => Err(Damaged::new(format!(
                "batch {} has other effects here ({:016x}) than where it was recorded ({expected:016x})",
                self.position, self.hash
            ))),
        }
    }

    /// A batch begins, at a time for display.
    pub(crate) fn begin_batch(&mut self, time: u64) {
        self.position += 1;
        self.time = time;
    }

    /// Applies a record and appends its effects.
    ///
    /// # Errors
    ///
    /// If it cannot be a record of this history.
    pub fn apply(&mut self, record: &Record<'_>, effects: &mut Vec<Effect>) -> Result<(), Damaged> {
        let before = effects.len();
        match *record {
            Record::Open { session, ref secret, bucket, origin, hello, ttl, owner } => {
                self.open(session, *secret, bucket, origin, hello, ttl, owner)?;
            }
            Record::Resume { session: id, hello, ack, ttl, keeps_fifo } => {
                self.change(id)?;
                self.ack(id, ack);
                let session = self.known(id)?;
                session.hello = hello;
                session.attachment += 1;
                session.number += 1;
                let told =
                    if holds(Rule::WelcomeNumber) { None } else { session.notices.keys().next().copied() };
                session.lower_after(told.unwrap_or(session.number), ttl);
                // Until the client knows that it has a lease, it lives by its descriptor.
                session.fifo_until = (session.fifo.is_some() && !keeps_fifo).then_some(session.number);
                if session.fifo_until.is_some() && !holds(Rule::FifoUntilAck) {
                    (session.fifo, session.fifo_until) = (None, None);
                }
                if !holds(Rule::ResumeKeepsRequests) {
                    let rids: Vec<_> = session.requests.keys().copied().collect();
                    for rid in rids {
                        self.release(id, rid, effects)?;
                    }
                }
            }
            Record::Fifo { session, fifo } => {
                self.change(session)?;
                let session = self.known(session)?;
                (session.fifo, session.fifo_until) = (Some(fifo), None);
            }
            Record::Request { session, rid, ref scope, steal, nested_in, info } => {
                self.request(session, rid, scope, steal, nested_in, info, effects)?;
            }
            Record::Release { session, rid } => self.release(session, rid, effects)?,
            Record::ForceRelease { session, rid, name } => self.force_release(session, rid, name, effects)?,
            Record::EndSession { session, rid, target } => self.end_other(session, rid, target, effects)?,
            Record::Ack { session, ack } => {
                self.change(session)?;
                self.ack(session, ack);
            }
            Record::End { session, reason } => self.end(session, reason == EndReason::Revoked, effects)?,
            Record::SkipTokens { last } => {
                self.last_token = self.last_token.max(last);
                self.buckets.iter_mut().flatten().for_each(|bucket| bucket.manager.skip_tokens(last));
            }
        }
        for effect in &effects[before..] {
            self.hash = effect.mix(self.hash);
            self.count(effect);
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one record")]
    fn open(
        &mut self,
        id: SessionId,
        secret: SecretHash,
        bucket: &str,
        origin: Origin,
        hello: u64,
        ttl: u64,
        owner: &str,
    ) -> Result<(), Damaged> {
        if self.sessions.contains_key(&id) {
            return Err(Damaged::new(format!("session {id:016x} was opened twice")));
        }
        let bucket = self.bucket_named(bucket);
        let place = self.buckets[bucket].as_mut().expect(HAS_BUCKET);
        place.sessions += 1;
        let client = place.manager.client().map_err(|limit| Damaged::new(limit.to_string()))?;
        let serial = self.next_session;
        self.next_session += 1;
        let session = Session {
            serial,
            bucket,
            client,
            secret,
            origin,
            owner: owner.into(),
            hello,
            attachment: 1,
            ttl,
            lowering: None,
            fifo: None,
            fifo_until: None,
            number: 1,
            acked: 0,
            last_rid: 0,
            requests: BTreeMap::new(),
            notices: BTreeMap::new(),
            bytes: 0,
        };
        self.sessions.insert(id, session);
        self.charge(id, session_bytes(owner), 0);
        Ok(())
    }

    pub(crate) fn bucket_named(&mut self, name: &str) -> usize {
        if let Some(&place) = self.by_name.get(name) {
            return place;
        }
        let config = lockkeeper_core::Config {
            limits: largest_limits(),
            last_token: self.last_token,
            hash_seed: self.hash_seed,
        };
        let serial = self.next_bucket;
        self.next_bucket += 1;
        let manager = Manager::new(config);
        let bucket = Bucket { name: name.into(), serial, sessions: 0, bytes: 0, memory: 0, manager };
        let bucket = Some(Box::new(bucket));
        let place = match self.free_buckets.pop() {
            Some(place) => {
                self.buckets[place] = bucket;
                place
            }
            None => {
                self.buckets.push(bucket);
                self.buckets.len() - 1
            }
        };
        self.by_name.insert(name.into(), place);
        place
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one record")]
    fn request(
        &mut self,
        id: SessionId,
        rid: u64,
        scope: &[(&[u8], Mode)],
        steal: bool,
        nested_in: Option<(u64, u64)>,
        info: Option<&str>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Damaged> {
        self.change(id)?;
        if steal && self.is_walked() {
            self.save_holders(id, scope.iter().map(|(name, _)| *name));
        }
        let outer = nested_in.and_then(|(session, rid)| self.outer(session, rid));
        let time = self.time;
        let session = self.sessions.get_mut(&id).ok_or_else(|| unknown(id))?;
        session.last_rid = session.last_rid.max(rid);
        let bucket = self.buckets[session.bucket].as_mut().expect(HAS_BUCKET);
        let nested_in = outer.filter(|&(place, _)| place == session.bucket).map(|(_, id)| id);
        let options = Options { steal, nested_in, ..Options::default() };
        let bytes = request_bytes(scope.iter().map(|(name, _)| name.len()), info.map(str::len));
        let owner = RequestOwner {
            session: id,
            rid,
            since: time,
            info: info.map(Into::into),
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        };
        let bytes = owner.bytes as usize;
        let outcome = bucket.manager.request(session.client, scope, options, owner, &mut self.effects);
        let outcome =
            outcome.map_err(|error| Damaged::new(format!("request {rid} of {id:016x}: {error}")))?;
        let (request, effect) = match outcome {
            Outcome::Granted { request, token } => {
                let token = token.get();
                (request, Effect::Granted { session: id, rid, token, waited: 0, new: true })
            }
            Outcome::Queued { request } => {
                (request, Effect::Queued { session: id, rid, arrival: request.arrival() })
            }
            Outcome::Unavailable => return Err(Damaged::new("a request was not to wait")),
        };
        if session.requests.insert(rid, request).is_some() {
            return Err(Damaged::new(format!("request {rid} of {id:016x} was made twice")));
        }
        if let Some(journal) = &mut self.journal {
            journal.push(Touched { bucket: session.bucket, request, is_new: true });
        }
        if self.effects.is_empty() {
            effects.push(effect);
            self.charge(id, bytes, 0);
            return Ok(());
        }
        let (place, by) = (session.bucket, session.owner.clone());
        self.charge(id, bytes, 0);
        // Holders that a steal broke are notified before its grant; requests granted as a
        // consequence, after it.
        let let_in = self.effects.iter().position(|effect| !matches!(effect, CoreEffect::Broken { .. }));
        let let_in = self.effects.split_off(let_in.unwrap_or(self.effects.len()));
        self.translate(place, &by, false, effects);
        effects.push(effect);
        self.effects = let_in;
        self.translate(place, &by, false, effects);
        Ok(())
    }

    fn release(&mut self, id: SessionId, rid: u64, effects: &mut Vec<Effect>) -> Result<(), Damaged> {
        self.save_request(id, rid);
        let session = self.known(id)?;
        // The lock may have been broken in the meantime.
        let Some(request) = session.requests.remove(&rid) else { return Ok(()) };
        let place = session.bucket;
        let time = self.time;
        let manager = &mut self.buckets[place].as_mut().expect(HAS_BUCKET).manager;
        let bytes = manager.get(request).map_or(0, |live| live.data().bytes as usize);
        let held = match manager.release(request, &mut self.effects) {
            Some(owner) => Some(time.saturating_sub(owner.since)),
            None => {
                manager.abort(request, &mut self.effects);
                None
            }
        };
        effects.push(Effect::Released { session: id, rid, held });
        self.touch(place, request);
        self.charge(id, 0, bytes);
        self.translate(place, "", false, effects);
        Ok(())
    }

    fn force_release(
        &mut self,
        id: SessionId,
        rid: u64,
        name: &[u8],
        effects: &mut Vec<Effect>,
    ) -> Result<(), Damaged> {
        self.change(id)?;
        if self.is_walked() {
            self.save_holders(id, [name].into_iter());
        }
        let session = self.known(id)?;
        let (place, by) = (session.bucket, session.owner.clone());
        let manager = &mut self.buckets[place].as_mut().expect(HAS_BUCKET).manager;
        let count = manager.force_release(name, &mut self.effects) as u64;
        self.translate(place, &by, true, effects);
        self.outcome(id, rid, count, effects)
    }

    fn end_other(
        &mut self,
        id: SessionId,
        rid: u64,
        target: SessionId,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Damaged> {
        self.change(id)?;
        let place = self.known(id)?.bucket;
        let there = self.sessions.get(&target).is_some_and(|other| other.bucket == place && target != id);
        if there {
            self.end(target, true, effects)?;
        }
        self.outcome(id, rid, u64::from(there), effects)
    }

    fn outcome(
        &mut self,
        id: SessionId,
        rid: u64,
        count: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Damaged> {
        let session = self.known(id)?;
        session.last_rid = session.last_rid.max(rid);
        let number = self.notify(id, Notice::Outcome { rid, count }, Rule::OutcomeIsKept);
        effects.push(Effect::Outcome { session: id, number, rid, count });
        Ok(())
    }

    /// Ends a session and all it has (§2.6).
    fn end(&mut self, id: SessionId, by_other: bool, effects: &mut Vec<Effect>) -> Result<(), Damaged> {
        self.save_whole_session(id);
        let session = self.sessions.remove(&id).ok_or_else(|| unknown(id))?;
        let bucket = self.buckets[session.bucket].as_mut().expect(HAS_BUCKET);
        let is_held =
            |request: &&RequestId| bucket.manager.get(**request).is_some_and(|live| live.token().is_some());
        let held = session.requests.values().filter(is_held).count() as u64;
        let waiting = session.requests.len() as u64 - held;
        effects.push(Effect::Ended { session: id, held, waiting, by_other });
        if let Some(journal) = &mut self.journal {
            let touched = |&request| Touched { bucket: session.bucket, request, is_new: false };
            journal.extend(session.requests.values().map(touched));
        }
        bucket.manager.client_gone(session.client, &mut self.effects);
        self.translate(session.bucket, "", false, effects);
        let bucket = self.buckets[session.bucket].as_mut().expect(HAS_BUCKET);
        bucket.sessions -= 1;
        bucket.bytes -= session.bytes;
        self.bytes -= session.bytes;
        if bucket.sessions == 0 {
            self.memory -= bucket.memory;
            self.last_token = self.last_token.max(bucket.manager.last_token());
            self.by_name.remove(&bucket.name);
            self.buckets[session.bucket] = None;
            self.free_buckets.push(session.bucket);
        } else {
            self.measure(session.bucket);
        }
        Ok(())
    }

    fn ack(&mut self, id: SessionId, ack: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        // It cannot have seen what was not sent.
        let ack = ack.min(session.number);
        if ack <= session.acked {
            return;
        }
        session.acked = ack;
        let kept = session.notices.split_off(&(ack + 1));
        let dropped = std::mem::replace(&mut session.notices, kept);
        if let Some((_, ttl)) = session.lowering.take_if(|(number, _)| *number <= ack) {
            session.ttl = ttl;
        }
        if session.fifo_until.take_if(|number| *number <= ack).is_some() {
            session.fifo = None;
        }
        if !dropped.is_empty() {
            self.charge(id, 0, dropped.values().map(Notice::bytes).sum());
        }
    }

    /// Keeps a notice until its session has acknowledged it, as a rule wants it.
    fn notify(&mut self, id: SessionId, notice: Notice, rule: Rule) -> u64 {
        let Some(session) = self.sessions.get_mut(&id) else { return 0 };
        session.number += 1;
        let (number, bytes) = (session.number, notice.bytes());
        if holds(rule) {
            session.notices.insert(number, notice);
            self.charge(id, bytes, 0);
        }
        number
    }

    /// Makes the core's effects those of sessions.
    fn translate(&mut self, place: usize, by: &str, forced: bool, effects: &mut Vec<Effect>) {
        let mut core_effects = std::mem::take(&mut self.effects);
        for effect in core_effects.drain(..) {
            match effect {
                CoreEffect::Granted { request, token } => {
                    let time = self.time;
                    let bucket = self.buckets[place].as_mut().expect(HAS_BUCKET);
                    // A session's end can grant its own request, which then ends with it.
                    let Some(owner) = bucket.manager.data_mut(request) else { continue };
                    let (session, rid, waiting_since) = (owner.session, owner.rid, owner.since);
                    owner.since = time;
                    if self.is_walked() {
                        self.save_as_waiting(session, rid, waiting_since);
                    }
                    let waited = time.saturating_sub(waiting_since);
                    self.touch(place, request);
                    effects.push(Effect::Granted { session, rid, token: token.get(), waited, new: false });
                }
                CoreEffect::Aborted { .. } => {}
                CoreEffect::Broken {
                    request,
                    cause,
                    data: RequestOwner { session: id, rid, bytes, .. },
                    ..
                } => {
                    // Not if it was broken with its session.
                    self.save_session(id);
                    let Some(session) = self.sessions.get_mut(&id) else { continue };
                    session.requests.remove(&rid);
                    self.touch(place, request);
                    self.charge(id, 0, bytes as usize);
                    let notice = Notice::Broken { rid, cause, by: by.into(), forced };
                    let number = self.notify(id, notice, Rule::KeepTombstones);
                    effects.push(Effect::Broken { session: id, number, rid, cause });
                }
            }
        }
        self.effects = core_effects;
    }

    /// A request was granted, or has ended.
    fn touch(&mut self, bucket: usize, request: RequestId) {
        if let Some(journal) = &mut self.journal {
            journal.push(Touched { bucket, request, is_new: false });
        }
    }

    pub(crate) fn bucket(&self, place: usize) -> &Bucket {
        self.buckets[place].as_ref().expect(HAS_BUCKET)
    }

    fn known(&mut self, id: SessionId) -> Result<&mut Session, Damaged> {
        self.sessions.get_mut(&id).ok_or_else(|| unknown(id))
    }

    /// A session is about to change: a snapshot that is being taken has it as it was.
    fn change(&mut self, id: SessionId) -> Result<(), Damaged> {
        self.save_session(id);
        if self.sessions.contains_key(&id) { Ok(()) } else { Err(unknown(id)) }
    }
}

const HAS_BUCKET: &str = "a session's bucket is there as long as the session";

fn unknown(id: SessionId) -> Damaged {
    Damaged::new(format!("there is no session {id:016x}"))
}

impl Bucket {
    /// The bytes of its sessions, and how many more fit into its allocated memory.
    fn taken(&self) -> (usize, usize) {
        (self.bytes, self.memory - self.bytes)
    }
}

impl Session {
    /// The lease in a Welcome: raised at once, lowered when the client has acknowledged that
    /// Welcome.
    fn lower_after(&mut self, number: u64, ttl: u64) {
        let keep_older = self.lowering.is_some() && !holds(Rule::NewerCancelsLowering);
        let raises = ttl >= self.ttl;
        let at_once = if raises { holds(Rule::RaiseBeforeTelling) } else { !holds(Rule::LowerAfterAck) };
        if at_once {
            self.ttl = ttl;
            self.lowering = self.lowering.filter(|_| keep_older);
        } else if !keep_older {
            self.lowering = Some((number, ttl));
        }
    }
}

impl Effect {
    /// Folds the effect into a running hash.
    fn mix(&self, hash: u64) -> u64 {
        let fields = match *self {
            Self::Granted { session, rid, token, .. } => [1, session, rid, token],
            Self::Queued { session, rid, arrival } => [2, session, rid, arrival],
            Self::Released { session, rid, held } => [3, session, rid, u64::from(held.is_some())],
            Self::Broken { session, number, rid, cause } => {
                [4 + u64::from(cause == Cause::Lost), session, rid, number]
            }
            Self::Outcome { session, number, rid, count } => [6, session, rid ^ number << 32, count],
            Self::Ended { session, held, waiting, .. } => [7, session, held, waiting],
        };
        fields.into_iter().fold(hash, |hash, field| {
            let mixed = (hash ^ field).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ mixed >> 29
        })
    }
}

/// Begins the bytes of a batch.
pub(crate) fn put_batch_head(out: &mut Vec<u8>, level: u64, time: u64) {
    put_uint(out, level);
    put_uint(out, time);
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { position, hash, time, .. } = self;
        let sessions: Vec<_> = self.sessions.keys().map(|id| format!("{id:016x}")).collect();
        f.debug_struct("State")
            .field("position", position)
            .field("hash", hash)
            .field("time", time)
            .field("sessions", &sessions)
            .finish_non_exhaustive()
    }
}

/// Why a session ended, as text.
impl std::fmt::Display for EndReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bye => "the client closed it",
            Self::Expired => "its lease expired",
            Self::Exited => "its process exited",
            Self::Crashed => "the machine crashed",
            Self::Revoked => "it was ended by the server",
        })
    }
}
