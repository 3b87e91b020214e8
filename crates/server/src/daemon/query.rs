//! The snapshot (§4.5).

use super::{Daemon, Ticket, code, since};
use lockkeeper_core::{Deadlock, Live, Mode, RequestId, Step, WaitsFor};
use lockkeeper_wire::{self as wire, Entry, ToClient, frame};

impl Daemon {
    pub(super) fn query(&mut self, key: u32, rid: u64, name: Option<&[u8]>, deadlocks: bool) {
        if deadlocks && !self.may_inspect(key) {
            return self.forbid(key, rid, "inspect");
        }
        if self.refuse_in_grace(key, rid) {
            return;
        }
        let bytes = self.snapshot(key, rid, name, deadlocks);
        let session = self.session(key);
        match bytes {
            Some(bytes) => session.send_bytes(|out| out.extend(bytes)),
            None => {
                let message = "the snapshot is too long: ask for one name";
                session.send(&ToClient::Refused { rid, code: code::LIMIT, message });
            }
        }
    }

    /// A message with the state of a bucket, or of one name of it; `None` if it would be too long.
    fn snapshot(&self, key: u32, rid: u64, name: Option<&[u8]>, deadlocks: bool) -> Option<Vec<u8>> {
        let asks = self.sessions[key as usize].as_ref().expect("who asks has a session");
        let bucket = &self.buckets[asks.bucket as usize];
        let manager = &bucket.manager;
        let mut shown: Vec<Shown<'_>> = Vec::new();
        match name {
            Some(name) => shown.extend(manager.queue(name).map(|(live, mode)| (live, name, mode))),
            None => manager.requests().for_each(|live| {
                shown.extend(live.scope().map(|(name, mode)| (live, name.as_bytes(), mode)));
            }),
        }
        // A name is kept once, however many ask for it, and shown for each: what is too long is not even made.
        let length = |&(live, name, _): &Shown<'_>| {
            name.len() + live.data().info.as_ref().map_or(0, |info| info.len())
        };
        if shown.iter().map(length).sum::<usize>() >= frame::MAX_TO_CLIENT {
            return None;
        }
        // Held first; within each, the order of arrival stays.
        shown.sort_by_key(|(live, ..)| live.token().is_none());
        let now = since(self.began);
        let entries = shown.into_iter().map(|shown| self.entry(key, shown, now)).collect();
        let found = if deadlocks { manager.deadlocks() } else { Vec::new() };
        let words: Vec<_> = found.iter().map(|deadlock| self.describe(key, 0, deadlock)).collect();
        let deadlocks =
            found.iter().zip(&words).map(|(deadlock, words)| self.deadlock(key, 0, deadlock, words));
        let deadlocks = deadlocks.collect();
        let last_token = if asks.rights.inspect { bucket.last_token } else { 0 };
        let mut bytes = Vec::new();
        ToClient::Snapshot { rid, entries, deadlocks, last_token }.encode(&mut bytes);
        (bytes.len() <= frame::MAX_TO_CLIENT).then_some(bytes)
    }

    /// What a session sees of a request: all, or, if it is another's and it may not inspect, who has which name.
    fn entry<'a>(&'a self, key: u32, (live, name, mode): Shown<'a>, now: u64) -> Entry<'a> {
        let asks = self.sessions[key as usize].as_ref().expect("who asks has a session");
        let ticket = live.data();
        let session = self.sessions[ticket.session as usize].as_ref();
        let client_id = session.map_or("", |session| &session.id);
        if !asks.rights.inspect && ticket.session != key {
            let token = live.token().map(|_| 0);
            let (ticket, since, info, nested_in, stole, pid) = (0, 0, None, None, false, None);
            return Entry { name, mode, client_id, ticket, token, info, since, nested_in, stole, pid };
        }
        Entry {
            name,
            mode,
            client_id,
            ticket: ticket.place,
            token: live.token().map(|token| ticket.token.unwrap_or(token.get())),
            info: ticket.info.as_deref(),
            since: now.saturating_sub(ticket.since),
            nested_in: live.nested_in().and_then(|outer| Some(self.ticket(asks.bucket, outer)?.place)),
            stole: live.stole(),
            pid: session.and_then(|session| u32::try_from(session.peer.process()?.pid).ok()),
        }
    }

    /// Tells a session that a request of its own was refused, that would have had this place.
    pub(super) fn deadlocked(&mut self, key: u32, rid: u64, place: u64, found: &Deadlock) {
        let mut bytes = Vec::new();
        let words = self.describe(key, place, found);
        let deadlock = self.deadlock(key, place, found, &words);
        ToClient::Deadlocked { rid, deadlock }.encode(&mut bytes);
        self.session(key).send_bytes(|out| out.extend(bytes));
    }

    /// What a session sees of a cycle.
    fn deadlock<'a>(
        &'a self,
        key: u32,
        place: u64,
        found: &'a Deadlock,
        words: &'a str,
    ) -> wire::Deadlock<'a> {
        let step = |step: &'a Step| {
            let (ticket, client_id) = self.who(key, place, step);
            let waits_for = match &step.waits_for {
                WaitsFor::Name(name) => Some(name.as_bytes()),
                WaitsFor::Nested => None,
            };
            wire::Step { ticket, client_id, waits_for }
        };
        let cycle = if self.may_inspect(key) { found.cycle.iter().map(step).collect() } else { Vec::new() };
        wire::Deadlock { words, cycle }
    }

    fn describe(&self, key: u32, place: u64, found: &Deadlock) -> String {
        match self.may_inspect(key) {
            true => found.describe(|step| self.who(key, place, step)),
            false => "the request would have waited in a circle".into(),
        }
    }

    /// The place of a request, and whose it is. One that is not there is the one that was refused.
    fn who(&self, key: u32, place: u64, step: &Step) -> (u64, &str) {
        let asks = self.sessions[key as usize].as_ref().expect("who asks has a session");
        let ticket = self.ticket(asks.bucket, step.request);
        let session = ticket.and_then(|ticket| self.sessions[ticket.session as usize].as_ref());
        (ticket.map_or(place, |ticket| ticket.place), &session.unwrap_or(asks).id)
    }

    fn may_inspect(&self, key: u32) -> bool {
        self.sessions[key as usize].as_ref().is_some_and(|session| session.rights.inspect)
    }

    fn ticket(&self, number: u32, request: RequestId) -> Option<&Ticket> {
        Some(self.buckets[number as usize].manager.get(request)?.data())
    }
}

/// A request, and one of its names with its mode.
type Shown<'a> = (Live<'a, Ticket>, &'a [u8], Mode);
