//! Walks over the state as it was at one moment, while records are being applied.
//!
//! A walk visits sessions and their requests in the order of their numbers. An item that existed
//! when the walk began and is about to change is claimed first: it is visited in its old state, and
//! the walk skips it later.

use crate::state::{Bucket, RequestOwner, Session, SessionId, State};
use lockkeeper_core::Live;
use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    ops::Bound::{Excluded, Unbounded},
};

/// A session, or one of its requests.
pub(crate) type Item = (SessionId, Option<u64>);

pub(crate) struct Walk {
    /// The last item that was passed.
    done: Option<Item>,
    /// Sessions with a serial from this one on came later.
    sessions: u64,
    /// By the serial of the bucket: requests with an arrival from this one on came later. Other
    /// buckets are not walked over.
    arrivals: BTreeMap<u64, u64>,
    /// Items after the last that were visited early.
    early: BTreeSet<Item>,
    /// How many items were passed over, in one go, and how many may be.
    pub(crate) passed: usize,
    pub(crate) most: usize,
}

/// A live request, and whose it is.
pub(crate) struct RequestRef<'a> {
    pub(crate) session_id: SessionId,
    pub(crate) session: &'a Session,
    pub(crate) bucket_serial: u64,
    pub(crate) rid: u64,
    pub(crate) live: Live<'a, RequestOwner>,
}

impl Walk {
    /// Over these buckets.
    pub(crate) fn new<'a>(state: &State, buckets: impl Iterator<Item = &'a Bucket>) -> Self {
        let arrivals = buckets.map(|bucket| (bucket.serial, bucket.manager.next_arrival())).collect();
        let (sessions, early) = (state.next_session, BTreeSet::new());
        Self { done: None, sessions, arrivals, early, passed: 0, most: usize::MAX }
    }

    /// Passes over an item. Returns whether it may go on.
    fn pass(&mut self, item: Item) -> bool {
        self.done = Some(item);
        self.passed += 1;
        self.passed < self.most
    }

    /// Whether an item is ahead. From now on it counts as passed.
    pub(crate) fn claim(&mut self, session: &Session, item: Item) -> bool {
        self.done.is_none_or(|done| item > done) && session.serial < self.sessions && self.early.insert(item)
    }

    pub(crate) fn claim_request(&mut self, place: &RequestRef<'_>) -> bool {
        self.was_there(place.bucket_serial, place.live)
            && self.claim(place.session, (place.session_id, Some(place.rid)))
    }

    fn was_there(&self, bucket: u64, live: Live<'_, RequestOwner>) -> bool {
        self.arrivals.get(&bucket).is_some_and(|&later| live.id().arrival() < later)
    }
}

impl State {
    /// Continues until `visit` wants no more, too many were skipped, or all is visited: then it
    /// returns true.
    pub(crate) fn advance<'a>(
        &'a self,
        walk: &mut Walk,
        mut visit: impl FnMut(SessionId, &'a Session, Option<(u64, Live<'a, RequestOwner>)>) -> bool,
    ) -> bool {
        let begin = walk.done.map_or(0, |(id, _)| id);
        for (&id, session) in self.sessions.range(begin..) {
            let bucket = self.bucket(session.bucket);
            if session.serial >= walk.sessions || !walk.arrivals.contains_key(&bucket.serial) {
                if !walk.pass((id, None)) {
                    return false;
                }
                continue;
            }
            let mut step = |walk: &mut Walk, item: Item, request| {
                if walk.early.remove(&item) {
                    return walk.pass(item);
                }
                walk.done = Some(item);
                visit(id, session, request)
            };
            let from = walk.done.filter(|(done, _)| *done == id);
            if from.is_none() && !step(walk, (id, None), None) {
                return false;
            }
            let from = from.and_then(|(_, rid)| rid).map_or(Unbounded, Excluded);
            for (&rid, &request) in session.requests.range((from, Unbounded)) {
                let live = bucket.manager.get(request).filter(|live| walk.was_there(bucket.serial, *live));
                let goes_on = match live {
                    Some(live) => step(walk, (id, Some(rid)), Some((rid, live))),
                    None => walk.pass((id, Some(rid))),
                };
                if !goes_on {
                    return false;
                }
            }
        }
        true
    }

    /// Whether there is a walk.
    pub(crate) fn is_walked(&self) -> bool {
        self.snapshot.is_some() || !self.views.is_empty()
    }

    /// A request is about to end: walks visit it now, and the requests nested in it, which will be
    /// nested in none.
    pub(crate) fn save_request(&mut self, id: SessionId, rid: u64) {
        self.save_request_as(id, rid, None);
    }

    /// A request was granted just now: walks visit it in its earlier state.
    pub(crate) fn save_as_waiting(&mut self, id: SessionId, rid: u64, since: u64) {
        self.save_request_as(id, rid, Some(since));
    }

    fn save_request_as(&mut self, session: SessionId, rid: u64, waiting_since: Option<u64>) {
        if !self.is_walked() {
            return;
        }
        let (mut snapshot, mut views) = (self.snapshot.take(), std::mem::take(&mut self.views));
        if let Some(session) = self.sessions.get(&session)
            && let Some(&request) = session.requests.get(&rid)
            && let bucket = self.bucket(session.bucket)
            && let Some(live) = bucket.manager.get(request)
        {
            let ends = waiting_since.is_none();
            for live in iter::once(live).chain(live.inner().filter(|_| ends)) {
                let &RequestOwner { session: session_id, rid, .. } = live.data();
                let Some(session) = self.sessions.get(&session_id) else { continue };
                let place = RequestRef { session_id, session, bucket_serial: bucket.serial, rid, live };
                if let Some(snapshot) = &mut snapshot {
                    snapshot.save(&place, waiting_since);
                }
                views.values_mut().for_each(|view| view.save(&place, waiting_since));
            }
        }
        (self.snapshot, self.views) = (snapshot, views);
    }

    /// A session is about to end, with all it has.
    pub(crate) fn save_whole_session(&mut self, id: SessionId) {
        if !self.is_walked() {
            return;
        }
        self.save_session(id);
        let requests: Vec<u64> =
            self.sessions.get(&id).into_iter().flat_map(|session| session.requests.keys().copied()).collect();
        requests.into_iter().for_each(|rid| self.save_request(id, rid));
    }

    /// Requests are about to be broken.
    pub(crate) fn save_holders<'a>(&mut self, id: SessionId, names: impl Iterator<Item = &'a [u8]>) {
        let Some(manager) = self.manager(id) else { return };
        let tickets = manager.holders(names).into_iter().filter_map(|request| manager.get(request));
        let tickets: Vec<_> = tickets.map(|live| (live.data().session, live.data().rid)).collect();
        tickets.into_iter().for_each(|(session, rid)| self.save_request(session, rid));
    }
}
