//! Connections and sessions: Hello, resume by comparison, FIFOs, and what happens when a connection
//! ends.

use super::{
    Access, Action, Attached, ConnectionId, Hello, Refusal, Server, client_id, parse_client_id, share,
};
use crate::{
    Micros,
    codec::Damaged,
    record::{EndReason, Fifo, Origin, Record},
    sabotage::{Rule, holds},
    state::{Notice, SessionId, session_bytes},
    view::Row,
};
use lockkeeper_wire::v2::{self, ToClient, VERSION, code, feature};

/// The number of requests in one message of the comparison.
const LISTED: usize = 1000;

/// A session with more requests than this is resumed only so often.
const LONG_LIST: usize = 10_000;

/// Bytes of what a client says of itself.
const OWNER: usize = 512;

impl Server {
    /// A Hello came, whose credentials are good for what `access` says.
    ///
    /// # Errors
    ///
    /// If the state turned out to be wrong. The server must not go on.
    pub fn hello(
        &mut self,
        now: Micros,
        id: ConnectionId,
        hello: Hello<'_>,
        access: Access,
    ) -> Result<(), Damaged> {
        let Some(connection) = self.connections.get(&id).filter(|connection| !connection.closing) else {
            return Ok(());
        };
        if connection.session.is_some() {
            self.close(id, code::OUT_OF_ORDER, "Hello was sent already");
            return Ok(());
        }
        let origin = connection.origin;
        if let Err((code, why)) = self.check_hello(now, &hello) {
            self.close(id, code, &why);
            return Ok(());
        }
        match self.resumable(&hello, origin) {
            Ok(Some(session)) if !self.admits_list(now, session) => {
                let why = "limit reached: a session of many requests was resumed just now; retry";
                self.refuse_hello(id, code::LIMIT, why);
                Ok(())
            }
            Ok(Some(session)) => self.resume(now, id, session, &hello, access),
            Ok(None) => self.open(now, id, &hello, access),
            Err((code, why)) => {
                self.close(id, code, &why);
                Ok(())
            }
        }
    }

    fn check_hello(&self, now: Micros, hello: &Hello<'_>) -> Result<(), Refusal> {
        if hello.version != VERSION {
            let older = if hello.version < VERSION { "client" } else { "server" };
            let why = format!(
                "the client speaks version {} of the protocol, the server {VERSION}: upgrade the {older}",
                hello.version
            );
            return Err((code::VERSION, why));
        }
        if self.stopping {
            return Err((code::STOPPING, STOPPING.into()));
        }
        if let Some(why) = &self.stuck {
            return Err((code::RECOVERING, why.clone()));
        }
        if let Some(until) = self.blind_until
            && now <= until
            && holds(Rule::WaitAfterCrash)
        {
            let seconds = (until - now + 1).div_ceil(1_000_000);
            let why = format!("recovering from a crash: waiting {seconds} s for earlier leases to expire");
            return Err((code::RECOVERING, why));
        }
        if !self.crashed.is_empty() {
            return Err((code::RECOVERING, "recovering from a crash: earlier sessions end".into()));
        }
        Ok(())
    }

    /// The session that a Hello resumes, if it names one of this bucket and has its secret.
    fn resumable(&self, hello: &Hello<'_>, origin: Origin) -> Result<Option<SessionId>, Refusal> {
        let Some((id, secret)) = hello.resume else { return Ok(None) };
        let Some(id) = parse_client_id(id).filter(|&id| !self.is_ending(id)) else { return Ok(None) };
        let Some(session) = self.state.session(id) else { return Ok(None) };
        let hash = (self.config.hash)(&secret);
        let same =
            session.secret.iter().zip(hash).fold(0, |seen, (ours, theirs)| seen | (ours ^ theirs)) == 0;
        if !same || session.bucket != hello.bucket || session.origin != origin {
            return Ok(None);
        }
        if hello.hello <= session.hello && holds(Rule::HelloNumbers) {
            return Err((code::SUPERSEDED, format!("Hello {} arrived after a newer one", hello.hello)));
        }
        Ok(Some(id))
    }

    /// Whether the session's requests may be listed now. A long list is written in one go, some 100
    /// ns for each entry, and others wait for it. A client that does nothing but resume gets a
    /// thirtieth of the time; one that was not here of late is not kept waiting.
    fn admits_list(&mut self, now: Micros, session: SessionId) -> bool {
        let length = self.state.session(session).map_or(0, |view| view.requests + view.notices);
        let Some(attached) = self.attached.get_mut(&session).filter(|_| length > LONG_LIST) else {
            return true;
        };
        let admits = now >= attached.next_list;
        if admits {
            attached.next_list = now.saturating_add(3 * length as u64);
        }
        admits
    }

    fn open(
        &mut self,
        now: Micros,
        id: ConnectionId,
        hello: &Hello<'_>,
        access: Access,
    ) -> Result<(), Damaged> {
        let owner = describe(&access.subject, hello.owner);
        let origin = self.connections.get(&id).map_or(Origin::Network, |connection| connection.origin);
        if let Err((code, why)) = self.check_open(hello, &owner, origin) {
            self.refuse_hello(id, code, &why);
            return Ok(());
        }
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let (fresh, origin) = (connection.fresh, connection.origin);
        let session = fresh.session;
        connection.session = Some(session);
        let ttl = self.config.ttl.choose(hello.ttl);
        let secret = (self.config.hash)(&fresh.secret);
        self.counts.opened += 1;
        self.record(&Record::Open {
            session,
            secret,
            bucket: hello.bucket,
            origin,
            hello: hello.hello,
            ttl,
            owner: &owner,
        })?;
        let attached = Attached {
            connection: Some(id),
            heard: now,
            last_rid: 0,
            rights: access.rights,
            deadline: None,
            next_list: 0,
        };
        self.attached.insert(session, attached);
        self.welcome(id, session, fresh.secret, ttl, false);
        self.watch_lease(session);
        if origin == Origin::Local && hello.features & feature::FIFO != 0 {
            self.actions.push_back(Action::PassFifo { connection: id, session });
        }
        Ok(())
    }

    fn refuse_hello(&mut self, id: ConnectionId, code: u32, why: &str) {
        if code == code::LIMIT {
            self.refused_hello = Some(why.into());
        }
        self.close(id, code, why);
    }

    fn check_open(&self, hello: &Hello<'_>, owner: &str, origin: Origin) -> Result<(), Refusal> {
        check_bucket(hello.bucket).map_err(|why| (code::NOT_SUPPORTED, why))?;
        let limit = |why: String| (code::LIMIT, format!("limit reached: {why}"));
        if let Some(why) = self.crowded {
            return Err(limit(why.into()));
        }
        let sessions = share(origin, self.config.sessions);
        if self.state.session_count() >= sessions {
            return Err(limit(format!("{sessions} sessions (max-clients)")));
        }
        let of_bucket = self.state.bucket_bytes(hello.bucket);
        let buckets = share(origin, self.config.buckets);
        if self.state.bucket_count() >= buckets && of_bucket.is_none() {
            return Err(limit(format!("{buckets} buckets")));
        }
        let more = session_bytes(owner);
        self.check_bytes(origin, 0, of_bucket.unwrap_or_default(), more).map_err(|why| (code::LIMIT, why))?;
        match &self.full {
            Some(why) => Err((code::STORAGE, why.clone())),
            None => Ok(()),
        }
    }

    fn resume(
        &mut self,
        now: Micros,
        id: ConnectionId,
        session: SessionId,
        hello: &Hello<'_>,
        access: Access,
    ) -> Result<(), Damaged> {
        let had_fifo = self.state.fifo_after(session, hello.ack).is_some();
        let Some((_, secret)) = hello.resume else { return Ok(()) };
        let wanted = hello.features & feature::FIFO != 0;
        let keeps_fifo = had_fifo && wanted && !self.is_unverifiable(session);
        // A restarted server may have other settings. A longer lease counts at once, a shorter one
        // once it is known.
        let ttl = self.config.ttl.choose(hello.ttl);
        self.counts.resumed += 1;
        let record = Record::Resume { session, hello: hello.hello, ack: hello.ack, ttl, keeps_fifo };
        self.record(&record)?;
        self.forget_questions(session);
        let last_rid = self.state.session(session).map_or(0, |view| view.last_rid);
        let mut older = None;
        if let Some(attached) = self.attached.get_mut(&session) {
            older = attached.connection.replace(id);
            attached.last_rid = last_rid;
            attached.rights = access.rights;
        }
        if let Some(older) = older
            && holds(Rule::CloseSuperseded)
        {
            // Unread output of an old connection is dropped when the client opens another one,
            // because it could open many.
            if self.backlog(older) > super::answers::UNREAD {
                self.abort(older);
            } else {
                self.close(older, code::SUPERSEDED, "a newer connection resumed the session");
            }
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.session = Some(session);
        }
        if self.is_unverifiable(session) {
            self.touch(session);
        }
        self.heard(session, now);
        let ttl = if keeps_fifo { 0 } else { ttl };
        self.welcome(id, session, secret, ttl, true);
        self.watch_lease(session);
        let local = self.connections.get(&id).is_some_and(|connection| connection.origin == Origin::Local);
        if local && wanted && !keeps_fifo {
            self.actions.push_back(Action::PassFifo { connection: id, session });
        }
        Ok(())
    }

    /// Tells a client all that the server knows of its session, so that it can compare.
    fn welcome(&mut self, id: ConnectionId, session: SessionId, secret: v2::Secret, ttl: u64, resumed: bool) {
        let Some(view) = self.state.session(session) else { return };
        let (mut number, last_rid) = (view.number, view.last_rid);
        if !holds(Rule::WelcomeNumber) {
            number = self.state.notices(session).map(|(number, _)| number).min().unwrap_or(number);
        }
        let client_id = client_id(session);
        self.send_to(
            id,
            &ToClient::Welcome {
                version: VERSION,
                features: feature::FIFO,
                number,
                client_id: &client_id,
                secret,
                ttl,
                resumed,
                last_rid,
            },
        );
        if resumed {
            let listed = |(rid, arrival, token)| v2::Listed { rid, arrival, token };
            let requests: Vec<_> = self.state.requests(session).map(listed).collect();
            for some in requests.chunks(LISTED) {
                self.send_to(id, &ToClient::Listed { requests: some.to_vec() });
            }
            let notices: Vec<_> =
                self.state.notices(session).map(|(number, notice)| (number, notice.clone())).collect();
            for (number, notice) in notices {
                match notice {
                    Notice::Broken { rid, cause, by, forced } => {
                        let by = Some(&*by).filter(|by| !by.is_empty());
                        self.send_to(id, &ToClient::Broken { number, rid, cause, by, forced });
                    }
                    Notice::Outcome { rid, count } => {
                        self.send_to(id, &ToClient::Outcome { number, rid, count });
                    }
                }
            }
        }
        self.send_to(id, &ToClient::Synced);
    }

    /// The write end of this FIFO was sent to the client.
    pub fn fifo_passed(&mut self, id: ConnectionId, fifo: Fifo) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.fifo = Some(fifo);
        if let Some(session) = connection.session
            && !holds(Rule::FifoAfterConfirm)
        {
            let _ = self.record(&Record::Fifo { session, fifo });
        }
        self.send_to(id, &ToClient::Fifo);
    }

    pub(super) fn confirm(&mut self, id: ConnectionId, session: SessionId) -> Result<(), Damaged> {
        let Some(fifo) = self.connections.get_mut(&id).and_then(|connection| connection.fifo.take()) else {
            self.close(id, code::OUT_OF_ORDER, "there is no descriptor to confirm");
            return Ok(());
        };
        self.record(&Record::Fifo { session, fifo })?;
        self.unverifiable.remove(&session);
        self.send(session, &ToClient::Confirmed);
        Ok(())
    }

    /// A FIFO has no writer any more. Ignored if the session has another one by now, or is
    /// connected: then the client closes its connection next.
    ///
    /// # Errors
    ///
    /// If the state turned out to be wrong. The server must not go on.
    pub fn fifo_closed(&mut self, session: SessionId, fifo: Fifo) -> Result<(), Damaged> {
        if self.is_detached(session, fifo) { self.end(session, EndReason::Exited) } else { Ok(()) }
    }

    /// A FIFO can no longer be checked for a writer, because another file is at its path. The
    /// session lasts until its client resumes it, or another client ends it.
    pub fn fifo_unverifiable(&mut self, session: SessionId) {
        self.unverifiable.insert(session);
        self.touch(session);
    }

    /// How many sessions without a connection are unverifiable: they end by hand only.
    pub fn unverifiable_count(&self) -> usize {
        self.unverifiable.iter().filter(|&&session| self.is_beyond_asking(session)).count()
    }

    /// Marks the rows of such sessions.
    pub(super) fn mark_unverifiable(&self, rows: &mut [Row]) {
        if !self.unverifiable.is_empty() {
            let rows = rows.iter_mut().filter(|row| self.is_beyond_asking(row.session()));
            rows.for_each(Row::mark_unverifiable);
        }
    }

    /// Whether a session is unverifiable, and has neither a connection nor a lease.
    fn is_beyond_asking(&self, session: SessionId) -> bool {
        let fifo = self.state.session(session).and_then(|view| view.fifo);
        self.is_unverifiable(session) && fifo.is_some_and(|fifo| self.is_detached(session, fifo))
    }

    /// Whether it is unknown if the session's client is alive.
    pub fn is_unverifiable(&self, session: SessionId) -> bool {
        self.unverifiable.contains(&session)
    }

    /// Whether a session lives by this FIFO and has no connection. One that ends does not.
    pub fn is_detached(&self, session: SessionId, fifo: Fifo) -> bool {
        if self.is_ending(session) {
            return false;
        }
        let same = self.state.session(session).is_some_and(|view| view.fifo == Some(fifo));
        same && self.attached.get(&session).is_none_or(|attached| attached.connection.is_none())
    }

    /// The connection of a session has ended. The session continues.
    pub(super) fn detach(&mut self, id: ConnectionId) {
        self.state.views.remove(&id);
        self.unsubscribe(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.queries.clear();
        let Some(session) = connection.session.take() else { return };
        let Some(attached) = self.attached.get_mut(&session) else { return };
        if attached.connection != Some(id) {
            return;
        }
        attached.connection = None;
        if let Some(fifo) = self.state.session(session).and_then(|view| view.fifo) {
            self.actions.push_back(Action::WatchFifo { session, fifo });
        }
    }

    /// A session has ended.
    pub(super) fn forget(&mut self, session: SessionId, by_other: bool) {
        self.unverifiable.remove(&session);
        let Some(attached) = self.attached.remove(&session) else { return };
        if let Some(deadline) = attached.deadline {
            self.deadlines.remove(&(deadline, session));
        }
        if let Some(connection) = attached.connection {
            if by_other {
                self.close(connection, code::ENDED, ENDED_BY_OTHER);
            } else {
                self.close_quietly(connection);
            }
        }
        self.removals.push_back((self.round, session));
    }

    /// Stops: every connection gets a Goodbye, and no new one is accepted. Recorded changes are
    /// still to be committed.
    pub fn stop(&mut self) {
        self.stopping = true;
        let connections: Vec<_> = self.connections.keys().copied().collect();
        connections.into_iter().for_each(|id| self.close(id, code::STOPPING, STOPPING));
    }

    /// Why it should not be relied on just now.
    pub fn not_ready_reason(&self, now: Micros) -> Option<String> {
        if self.stopping {
            return Some(STOPPING.into());
        }
        if self.is_blind(now) {
            return Some("recovering from a crash: waiting for earlier leases to expire".into());
        }
        self.full.clone().or_else(|| self.stuck.clone())
    }

    /// Whether it refuses all clients, because leases that the log does not know may be valid.
    pub fn is_blind(&self, now: Micros) -> bool {
        self.blind_until.is_some_and(|until| now <= until) || !self.crashed.is_empty()
    }
}

pub(super) const ENDED_BY_OTHER: &str = "another client ended the session";

const STOPPING: &str = "the server is stopping; connect again";

fn check_bucket(name: &str) -> Result<(), String> {
    let allowed = |c: char| !c.is_control();
    match name.len() {
        1..=256 if name.chars().all(allowed) => Ok(()),
        _ => Err("a bucket's name has 1 to 256 bytes and no control characters".into()),
    }
}

/// A client's description: the authenticated part, then its own.
fn describe(subject: &str, owner: Option<&str>) -> String {
    let owner = owner.unwrap_or_default();
    let end = owner.floor_char_boundary(OWNER);
    match (subject.is_empty(), owner.is_empty()) {
        (true, _) => owner[..end].into(),
        (false, true) => subject.into(),
        (false, false) => format!("{subject} {}", &owner[..end]),
    }
}
