//! Subscriptions: the state of a bucket, and from then on its changes.
//!
//! A subscription stores *which* requests have changed, not the changes. The current state of those
//! requests is sent. So a client that reads slowly costs a bounded set of numbers, and misses steps
//! but never the result. If too much changes at once, the whole state is sent again. Like every
//! answer, a message waits for its round, so only committed state is sent.

use super::{ConnectionId, Server, answers, forbidden, share};
use crate::{
    Micros,
    codec::Damaged,
    state::{SessionId, Touched},
    view::{PART, ROWS, Row, view_rows},
};
use lockkeeper_core::RequestId;
use lockkeeper_wire::v2::{ToClient, code};
use std::collections::BTreeMap;

/// How many clients may be subscribed at a time: each costs something with every change.
const SUBSCRIPTIONS: usize = 32;

/// How many requests of a subscription may have changed before the whole state is sent instead.
const CHANGED: usize = 10_000;

/// The minimum interval of Changes, which merges several changes of one request.
const PAUSE: Micros = 100_000;

pub(super) struct Subscription {
    session: SessionId,
    /// The place of its bucket.
    bucket: usize,
    rid: u64,
    phase: Phase,
    /// The requests that changed since the last message to the client, and whether that request has
    /// never been sent.
    changed: BTreeMap<RequestId, bool>,
    /// There is something to send, and it is time.
    due: bool,
    /// When changes may be sent again.
    next: Micros,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The whole state is to be sent: for the first time, or because too much has changed.
    Stale,
    /// The whole state is being sent. Whether too much has changed since it began.
    Listing { overflowed: bool },
    /// The client has all but what has `changed`.
    Current,
}

impl Subscription {
    fn has_news(&self) -> bool {
        match self.phase {
            Phase::Stale => true,
            Phase::Listing { .. } => false,
            Phase::Current => !self.changed.is_empty(),
        }
    }

    /// When it is to be woken.
    fn wake_at(&self) -> Option<Micros> {
        (!self.due && self.has_news()).then_some(self.next)
    }

    /// A request was made, granted or ended.
    fn mark(&mut self, request: RequestId, is_new: bool, ended: bool) {
        if matches!(self.phase, Phase::Stale | Phase::Listing { overflowed: true }) {
            return;
        }
        match self.changed.get(&request) {
            // The client need not know that it ever was.
            Some(true) if ended => _ = self.changed.remove(&request),
            Some(_) => {}
            None => _ = self.changed.insert(request, is_new),
        }
        if self.changed.len() > CHANGED {
            self.overflow();
        }
    }

    /// So much has changed that the whole state is sent instead.
    fn overflow(&mut self) {
        self.changed = BTreeMap::new();
        self.phase = match self.phase {
            Phase::Listing { .. } => Phase::Listing { overflowed: true },
            _ => Phase::Stale,
        };
    }
}

impl Server {
    /// Begins a subscription, if the client may have one.
    pub(super) fn subscribe(
        &mut self,
        now: Micros,
        id: ConnectionId,
        session: SessionId,
        rid: u64,
    ) -> Result<(), Damaged> {
        if !self.advance(id, session, rid) {
            return Ok(());
        }
        let inspects = self.attached.get(&session).is_some_and(|attached| attached.rights.inspect);
        let most = self.connections.get(&id).map_or(0, |connection| share(connection.origin, SUBSCRIPTIONS));
        let refusal = if !inspects {
            Some(forbidden("inspect"))
        } else if self.subscriptions.contains_key(&id) {
            Some((code::NOT_SUPPORTED, "there is a subscription already".into()))
        } else if self.subscriptions.len() >= most {
            Some((code::LIMIT, format!("limit reached: {most} subscriptions at a time")))
        } else {
            None
        };
        if let Some((code, why)) = refusal {
            return self.refuse(session, rid, code, &why);
        }
        let Some(bucket) = self.state.sessions.get(&session).map(|session| session.bucket) else {
            return Ok(());
        };
        let (phase, changed, next) = (Phase::Stale, BTreeMap::new(), now.saturating_add(PAUSE));
        let subscription = Subscription { session, bucket, rid, phase, changed, due: true, next };
        self.subscriptions.insert(id, subscription);
        self.state.journal.get_or_insert_default();
        self.list(id);
        Ok(())
    }

    /// The connection has ended, or its client has lost the right to inspect.
    pub(super) fn unsubscribe(&mut self, id: ConnectionId) -> Option<u64> {
        let subscription = self.subscriptions.remove(&id)?;
        if self.subscriptions.is_empty() {
            self.state.journal = None;
        }
        Some(subscription.rid)
    }

    /// The description of a session has changed, without a record.
    pub(super) fn touch(&mut self, session: SessionId) {
        let Some(journal) = &mut self.state.journal else { return };
        if let Some(session) = self.state.sessions.get(&session) {
            let touched = |&request| Touched { bucket: session.bucket, request, is_new: false };
            journal.extend(session.requests.values().map(touched));
        }
        self.note_changes();
    }

    /// Takes note of what a record has changed, for those who are subscribed.
    pub(super) fn note_changes(&mut self) {
        let Some(journal) = self.state.journal.as_mut().filter(|journal| !journal.is_empty()) else { return };
        let touched = std::mem::take(journal);
        if touched.len() > CHANGED {
            // All of one bucket. Each would be looked at for each subscription, for nothing.
            let concerned = self.subscriptions.values_mut().filter(|other| other.bucket == touched[0].bucket);
            return concerned.for_each(Subscription::overflow);
        }
        for &Touched { bucket, request, is_new } in &touched {
            let place = self.state.buckets.get(bucket).and_then(Option::as_ref);
            let ended = place.is_none_or(|place| place.manager.get(request).is_none());
            let concerned = self.subscriptions.values_mut().filter(|other| other.bucket == bucket);
            concerned.for_each(|subscription| subscription.mark(request, is_new, ended));
        }
    }

    pub(super) fn next_flush(&self) -> Option<Micros> {
        self.subscriptions.values().filter_map(Subscription::wake_at).min()
    }

    /// Has the connections of subscriptions send what is due.
    pub(super) fn wake_subscriptions(&mut self, now: Micros) {
        for (&id, subscription) in &mut self.subscriptions {
            if subscription.wake_at().is_none_or(|at| at > now) {
                continue;
            }
            (subscription.due, subscription.next) = (true, now.saturating_add(PAUSE));
            if let Some(connection) = self.connections.get_mut(&id)
                && !std::mem::replace(&mut connection.listed, true)
            {
                self.ready.push_back(id);
            }
        }
    }

    /// Whether there is something to send, and the client has read what was sent before.
    pub(super) fn is_flush_due(&self, id: ConnectionId) -> bool {
        self.subscriptions.get(&id).is_some_and(|subscription| subscription.due)
            && self.backlog(id) <= answers::UNREAD
    }

    /// Sends some of what has changed, or begins to send everything.
    pub(super) fn flush(&mut self, id: ConnectionId) {
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return };
        if subscription.phase != Phase::Current {
            return self.list(id);
        }
        let Some(bucket) = self.state.buckets.get(subscription.bucket).and_then(Option::as_ref) else {
            return;
        };
        let time = self.wall.max(self.state.time());
        let (mut rows, mut gone, mut work, mut bytes) = (Vec::new(), Vec::new(), 0, 0);
        while work < ROWS
            && bytes < PART
            && let Some((request, _)) = subscription.changed.pop_first()
        {
            work += 1;
            let live = bucket.manager.get(request);
            match live.and_then(|live| Some((live, self.state.sessions.get(&live.data().session)?))) {
                Some((live, owner)) => {
                    let before = rows.len();
                    work += view_rows(&mut rows, None, time, owner, live, None);
                    bytes += rows[before..].iter().map(Row::size).sum::<usize>();
                }
                None => gone.push(request.arrival()),
            }
        }
        let (session, rid) = (subscription.session, subscription.rid);
        let more = !subscription.changed.is_empty();
        subscription.due = more;
        let last_token = bucket.manager.last_token();
        self.work += work as u64;
        self.mark_unverifiable(&mut rows);
        let entries = rows.iter().map(|row| row.to_wire(session, true)).collect();
        self.send_to(id, &ToClient::Changes { rid, entries, gone, last_token, more });
    }

    /// Queues the whole state as the answer to a question.
    fn list(&mut self, id: ConnectionId) {
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return };
        subscription.due = false;
        subscription.phase = Phase::Listing { overflowed: true };
        let (session, rid) = (subscription.session, subscription.rid);
        self.query_all(id, session, rid);
    }

    /// The whole state is sent as it is now: what changes from now on follows.
    pub(super) fn listing_begins(&mut self, id: ConnectionId) {
        if let Some(subscription) = self.subscriptions.get_mut(&id) {
            subscription.changed = BTreeMap::new();
            subscription.phase = Phase::Listing { overflowed: false };
        }
    }

    /// The whole state is sent, or the sending was given up: then it is sent from its beginning,
    /// later.
    pub(super) fn listing_ends(&mut self, id: ConnectionId, whole: bool) {
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return };
        subscription.phase = match subscription.phase {
            Phase::Listing { overflowed: false } if whole => Phase::Current,
            _ => Phase::Stale,
        };
        if !whole {
            let (rid, last_token, more) = (subscription.rid, 0, true);
            let void = ToClient::Changes { rid, entries: Vec::new(), gone: Vec::new(), last_token, more };
            self.send_to(id, &void);
        }
    }
}
