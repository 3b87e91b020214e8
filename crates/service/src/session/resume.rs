//! Resume by comparison: the client's requests beside the server's list.

use super::{Identity, Lease, Link, Outcome, Session, Stage, send};
use crate::{
    Micros,
    sabotage::{Rule, holds},
    session::types::{Event, Key},
};
use lockkeeper_core::Cause;
use lockkeeper_wire::v2::{EndFlags, Listed, Secret, ToServer};
use std::collections::BTreeMap;

/// The server's list, until the end marker.
pub(super) struct Sync {
    number: u64,
    ttl: u64,
    resumed: bool,
    last_rid: u64,
    listed: BTreeMap<u64, Option<u64>>,
}

impl Sync {
    pub(super) fn list(&mut self, requests: &[Listed]) {
        self.listed.extend(requests.iter().map(|listed| (listed.rid, listed.token)));
    }
}

/// The server does not have it any more.
const LOST: Outcome = Outcome::Broken { cause: Cause::Lost, by: None, forced: false };

impl<T> Session<T> {
    pub(super) fn on_welcome(
        &mut self,
        number: u64,
        client_id: &str,
        secret: Secret,
        ttl: u64,
        resumed: bool,
        last_rid: u64,
    ) {
        let Link::Hello { sent } = self.link else { return };
        if !resumed && self.identity.is_some() {
            // The server does not know the session any more.
            self.lose_all(false);
            self.events.push_back(Event::SessionLost);
        }
        self.identity = Some(Identity { client_id: client_id.into(), secret });
        if !holds(Rule::AckAfterMarker) {
            self.ack = number;
        }
        let listed = BTreeMap::new();
        self.link = Link::Syncing { sent, sync: Sync { number, ttl, resumed, last_rid, listed } };
    }

    pub(super) fn on_synced(&mut self, now: Micros) {
        if !matches!(self.link, Link::Syncing { .. }) {
            return;
        }
        let Link::Syncing { sent, sync } = std::mem::replace(&mut self.link, Link::Ready) else { return };
        let Sync { number, ttl, resumed, last_rid, listed } = sync;
        let answered = if holds(Rule::LeaseFromSending) { sent } else { now };
        self.lease = Lease { ttl: (ttl > 0).then_some(ttl), answered };
        self.lives_by_fifo = ttl == 0;
        // The answer may have lain unread, while the session had no lease to expire.
        if holds(Rule::ClockBeforeMessage) && self.check_lease(now) {
            return;
        }
        self.ack = self.ack.max(number);
        self.failures = 0;
        self.next_ping = now + self.beat();
        self.ever_opened = true;
        let again = self.compare(last_rid, &listed);
        self.last_rid = self.last_rid.max(last_rid);
        let client_id = self.identity.as_ref().map(|identity| identity.client_id.clone()).unwrap_or_default();
        self.events.push_back(Event::Opened { client_id, resumed });
        if holds(Rule::ReleaseUnwanted) {
            let unwanted = listed.keys().filter(|rid| !self.by_rid.contains_key(rid));
            for &rid in unwanted {
                let flags = EndFlags { quiet: true, timed_out: false };
                send(&mut self.output, &ToServer::Release { ack: self.ack, rid, flags });
            }
        }
        // First the old numbers that the server has not recorded, in their order; then what has
        // none.
        let old: Vec<(u64, Key)> = self.by_rid.range(last_rid + 1..).map(|(&rid, &key)| (rid, key)).collect();
        if holds(Rule::ResendInOrder) {
            old.iter().for_each(|&(rid, key)| self.send_record(key, rid));
        } else {
            old.iter().rev().for_each(|&(rid, key)| self.send_record(key, rid));
        }
        for key in again {
            self.send_new(key);
        }
        let unsent: Vec<Key> =
            self.entries.iter().filter(|(_, record)| record.rid.is_none()).map(|(&key, _)| key).collect();
        unsent.into_iter().for_each(|key| self.send_new(key));
    }

    /// Settles what the server knows, or says by its silence. Returns what had no effect and is
    /// still wanted.
    fn compare(&mut self, last_rid: u64, listed: &BTreeMap<u64, Option<u64>>) -> Vec<Key> {
        let mut again = Vec::new();
        let sent: Vec<(u64, Key)> = self.by_rid.iter().map(|(&rid, &key)| (rid, key)).collect();
        for (rid, key) in sent {
            let Some(record) = self.entries.get(&key) else { continue };
            let stage = record.stage;
            match (listed.get(&rid), stage) {
                (Some(_), Stage::Ending { timed_out }) => {
                    let flags = EndFlags { quiet: false, timed_out };
                    send(&mut self.output, &ToServer::Release { ack: self.ack, rid, flags });
                }
                (Some(Some(token)), Stage::Asked | Stage::Waiting) => self.on_granted(rid, *token),
                (Some(None), Stage::Asked) => self.set_stage(key, Stage::Waiting),
                // No server sends this. In any case, the lock is not held.
                (Some(None), Stage::Held { .. }) => self.finish(key, LOST),
                (Some(_), _) => {}
                // It was ended as wished, or was never made.
                (None, Stage::Ending { .. }) => self.finish(key, Outcome::Released),
                (None, Stage::Held { .. } | Stage::Waiting) => self.finish(key, LOST),
                // The server never had it: it is sent again under its old number.
                (None, Stage::Asked) if rid > last_rid => {}
                // It had no effect: it was refused, or had *if available*. The outcome of a force
                // release is repeated until it is acknowledged, so a missing one was refused, too.
                (None, Stage::Asked) => {
                    self.by_rid.remove(&rid);
                    if let Some(record) = self.entries.get_mut(&key) {
                        record.rid = None;
                    }
                    again.push(key);
                }
            }
        }
        again
    }

    fn set_stage(&mut self, key: Key, stage: Stage) {
        if let Some(record) = self.entries.get_mut(&key) {
            record.stage = stage;
        }
    }

    /// The behaviour of a client that does not wait for the end marker.
    pub(super) fn resend_unanswered(&mut self) {
        let sent: Vec<(u64, Key)> = self.by_rid.iter().map(|(&rid, &key)| (rid, key)).collect();
        for (rid, key) in sent {
            if self.entries.get(&key).is_some_and(|record| record.stage == Stage::Asked) {
                self.send_record(key, rid);
            }
        }
    }
}
