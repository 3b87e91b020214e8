//! Clients that come back, to a daemon that has started again: what they had, and how it is entered.

use super::{Ask, Daemon, Parting, Ticket, code, receipt, since};
use crate::{journal::Kept, session::Session};
use lockkeeper_core::{Cause, Mode, Name, Options, Outcome, RequestId};
use lockkeeper_wire::{Claim, Flags, ToClient};
use std::collections::{HashMap, hash_map};

impl Daemon {
    /// The client has said all it had. What it has not said again, it wants no more: it gave that up while there was
    /// no daemon to hear it.
    pub(super) fn ready(&mut self, key: u32) {
        let session = self.session(key);
        session.reclaiming = false;
        let unclaimed = std::mem::take(&mut session.unclaimed);
        self.awaited.remove(&key);
        // The last first, so that none lets in another of them.
        for rid in unclaimed.into_iter().rev() {
            self.give_up(key, rid, None);
        }
        self.settle_if_all_are_back();
    }

    /// A client that has come back says what it had.
    pub(super) fn reclaim(
        &mut self,
        key: u32,
        rid: u64,
        scope: &[(&[u8], Mode)],
        info: Option<&str>,
        claim: Claim,
    ) -> Result<(), Parting> {
        let session = self.sessions[key as usize].as_mut().expect("who claims has a session");
        if !session.reclaiming {
            return Err((code::OUT_OF_ORDER, "there is nothing to reclaim".into()));
        }
        let scope = each_once(scope);
        if let Claim::Held { token, receipt } = claim
            && self.journal.receipt(&session.id, rid, token, scope.iter().copied()) != receipt
        {
            return Err((code::FORGED, format!("the claim to number {rid} has a wrong receipt")));
        }
        session.last_rid = session.last_rid.max(rid);
        session.unclaimed.remove(&rid);
        let scope = scope.iter().map(|(name, mode)| (Name::from(*name), *mode)).collect();
        let kept = Kept { rid, scope, info: info.map(Into::into), claim };
        match (&mut self.grace, session.requests.get(&rid)) {
            (Some(grace), _) => grace.claim(key, kept),
            (None, Some(&request)) => self.tell(key, rid, request, claim),
            // All it had was known when this daemon began: this was broken while the client was away.
            (None, None) => session.send(&ToClient::Broken { rid, cause: Cause::Stolen }),
        }
        Ok(())
    }

    /// Tells how a live request stands.
    pub(super) fn tell(&mut self, key: u32, rid: u64, request: RequestId, claim: Claim) {
        let session = self.sessions[key as usize].as_mut().expect("who claims has a session");
        let manager = &self.buckets[session.bucket as usize].manager;
        let Some(live) = manager.get(request) else { return };
        let answer = match (live.token(), claim) {
            (Some(_), Claim::Held { token, receipt }) => ToClient::Granted { rid, token, receipt },
            (Some(token), Claim::Waiting { .. }) => {
                let token = live.data().token.unwrap_or(token.get());
                let receipt = receipt(&self.journal, session, rid, token, live);
                ToClient::Granted { rid, token, receipt }
            }
            (None, _) => ToClient::Queued { rid, ticket: live.data().place },
        };
        session.send(&answer);
    }

    /// Enters a request of the daemon's former life. A lock that cannot be had any more was stolen.
    fn enter(&mut self, key: u32, kept: &Kept) {
        let (token, receipt) = match kept.claim {
            Claim::Held { token, receipt } => (token, receipt),
            Claim::Waiting { ticket } => {
                let scope: Vec<_> = kept.scope.iter().map(|(name, mode)| (name.as_bytes(), *mode)).collect();
                let (rid, info) = (kept.rid, kept.info.as_deref());
                let ask = Ask { key, rid, scope: &scope, flags: Flags::default(), nested_in: None, info };
                return self.request_at(&ask, ticket);
            }
        };
        let session = self.sessions[key as usize].as_mut().expect("who claims has a session");
        let bucket = &mut self.buckets[session.bucket as usize];
        let place = bucket.next_place();
        let options = Options { if_available: true, ..Options::default() };
        let (rid, info) = (kept.rid, kept.info.clone());
        let ticket = Ticket { session: key, place, rid, info, since: since(self.began), token: Some(token) };
        let outcome =
            bucket.manager.request(session.client, &kept.scope, options, ticket, &mut bucket.effects);
        let answer = match outcome {
            Ok(Outcome::Granted { request, token: inner }) => {
                bucket.last_token = inner.get();
                session.requests.insert(rid, request);
                self.metrics.held += 1;
                ToClient::Granted { rid, token, receipt }
            }
            _ => ToClient::Broken { rid, cause: Cause::Stolen },
        };
        session.send(&answer);
    }

    /// Enters what a former life's sessions had: locks first, the greatest token first, since of two that are in each
    /// other's way it is the thief's; then who waited, in the order of their tickets.
    fn enter_all(&mut self, mut claims: Vec<(u32, Kept)>) {
        claims.sort_by_key(|(_, kept)| match kept.claim {
            Claim::Held { token, .. } => (0, u64::MAX - token),
            Claim::Waiting { ticket } => (1, ticket.unwrap_or(u64::MAX)),
        });
        // Whoever had no ticket yet comes after all who had.
        for (key, kept) in &claims {
            if let Claim::Waiting { ticket: Some(ticket) } = kept.claim {
                let bucket = self.session(*key).bucket;
                let last = &mut self.buckets[bucket as usize].last_place;
                *last = ticket.max(*last);
            }
        }
        for (key, kept) in &claims {
            self.enter(*key, kept);
        }
    }

    pub(super) fn restore(&mut self, state: Vec<(String, Vec<Kept>)>) {
        let mut claims = Vec::new();
        for (id, requests) in state {
            let Some(&key) = self.by_id.get(&id) else { continue };
            let last = requests.iter().map(|kept| kept.rid).max().unwrap_or(0);
            self.session(key).last_rid = last;
            claims.extend(requests.into_iter().map(|kept| (key, kept)));
        }
        self.enter_all(claims);
    }

    /// Ends the grace once nobody is waited for any more.
    pub(crate) fn settle_if_all_are_back(&mut self) {
        if self.grace.is_none() || !self.awaited.is_empty() || self.blind_until.is_some() {
            return;
        }
        if let Err(error) = self.journal.note() {
            tracing::warn!(%error, "cannot note that all are back: after a crash, all are waited for again");
        }
        let (claims, later) = self.grace.take().unwrap_or_default().end();
        tracing::info!(reclaimed = claims.len(), "all clients are back, or gone");
        self.enter_all(claims);
        for ask in &later {
            ask.with(|ask| self.request(&ask));
        }
    }

    /// What a session has, in its own words.
    pub(super) fn kept(&self, session: &Session) -> Vec<Kept> {
        let manager = &self.buckets[session.bucket as usize].manager;
        let kept = |(&rid, &request): (&u64, &RequestId)| {
            let live = manager.get(request)?;
            let claim = match live.token() {
                Some(token) => {
                    let token = live.data().token.unwrap_or(token.get());
                    Claim::Held { token, receipt: receipt(&self.journal, session, rid, token, live) }
                }
                None => Claim::Waiting { ticket: Some(live.data().place) },
            };
            let scope = live.scope().map(|(name, mode)| (name.clone(), mode)).collect();
            Some(Kept { rid, scope, info: live.data().info.clone(), claim })
        };
        session.requests.iter().filter_map(kept).collect()
    }
}

/// A scope as the engine has it, which is what receipts are for: a name that stands twice counts once, exclusive if
/// either asks for that.
fn each_once<'a>(scope: &[(&'a [u8], Mode)]) -> Vec<(&'a [u8], Mode)> {
    let mut places = HashMap::new();
    let mut once: Vec<(&[u8], Mode)> = Vec::new();
    for &(name, mode) in scope {
        match places.entry(name) {
            hash_map::Entry::Vacant(place) => {
                place.insert(once.len());
                once.push((name, mode));
            }
            hash_map::Entry::Occupied(place) if mode == Mode::Exclusive => once[*place.get()].1 = mode,
            hash_map::Entry::Occupied(_) => {}
        }
    }
    once
}
