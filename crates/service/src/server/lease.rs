//! Leases: when a session counts as dead.
//!
//! A session with a lease ends once its ttl has passed since the last message was received from it,
//! or since this server could first receive one. A session with a FIFO has no lease.

use super::{Attached, Rights, Server};
use crate::{
    Micros,
    codec::Damaged,
    micros,
    record::EndReason,
    sabotage::{Rule, holds},
    state::SessionId,
};

/// Bytes that a batch may have before [`Server::wake`] adds to it: etcd takes 1.5 MiB, and a
/// message of 1 MiB may be in it, too.
pub const BATCH: usize = 256 << 10;

/// How much [`Server::wake`] does before it lets others have their turns, in units of a short
/// message: some milliseconds.
const TURN: u64 = 1 << 13;

impl Server {
    /// The sessions that were there before this server led. Each has its whole ttl from now on.
    pub(super) fn adopt_sessions(&mut self, now: Micros) {
        let heard = if holds(Rule::HeardAtStart) { now } else { 0 };
        let sessions: Vec<_> = self.state.sessions().collect();
        for session in sessions {
            let Some(view) = self.state.session(session) else { continue };
            if let Some(fifo) = view.fifo {
                self.actions.push_back(super::Action::WatchFifo { session, fifo });
            }
            let last_rid = view.last_rid;
            let attached = Attached {
                connection: None,
                heard,
                last_rid,
                rights: Rights::ALL,
                deadline: None,
                next_list: 0,
            };
            self.attached.insert(session, attached);
            self.watch_lease(session);
        }
    }

    /// A message from a client was received.
    pub(super) fn heard(&mut self, session: SessionId, now: Micros) {
        if let Some(attached) = self.attached.get_mut(&session) {
            attached.heard = attached.heard.max(now);
        }
    }

    /// Schedules a check of a session's lease. A message from the client does not move the entry:
    /// the check repeats.
    pub(super) fn watch_lease(&mut self, session: SessionId) {
        let Some(expires) = self.expires(session) else { return };
        let Some(attached) = self.attached.get_mut(&session) else { return };
        // A shorter lease may need an earlier look.
        if attached.deadline.is_some_and(|deadline| deadline <= expires) {
            return;
        }
        if let Some(deadline) = attached.deadline.replace(expires) {
            self.deadlines.remove(&(deadline, session));
        }
        self.deadlines.insert((expires, session));
    }

    /// When a session's lease expires, unless a message is received before.
    fn expires(&self, session: SessionId) -> Option<Micros> {
        let view = self.state.session(session)?;
        if view.fifo.is_some() || self.is_ending(session) {
            return None;
        }
        let heard = self.attached.get(&session)?.heard;
        let ttl = if holds(Rule::TtlOfSession) { view.ttl } else { self.config.ttl.default };
        let ttl = micros(ttl);
        let ttl = if holds(Rule::ExpireAfterTtl) { ttl } else { ttl / 4 * 3 };
        // The clock shows whole microseconds: the message may have arrived almost one later than
        // that.
        let rounded = u64::from(holds(Rule::RoundUp));
        Some(heard.saturating_add(ttl).saturating_add(rounded))
    }

    /// When [`wake`](Self::wake) has something to do. That may be in the past: then it has more to
    /// do than one turn allows, or than fits into a batch. It continues after the turns of others,
    /// or after the next [`take_round`](Self::take_round).
    pub fn next_wake(&self) -> Option<Micros> {
        if !self.crashed.is_empty() || !self.ending.is_empty() {
            return Some(0);
        }
        let lease = self.deadlines.first().map(|&(deadline, _)| deadline);
        if self.subscriptions.is_empty() {
            return lease;
        }
        [lease, self.next_flush()].into_iter().flatten().min()
    }

    /// Ends sessions whose lease has expired, or that end in slices, for a little while; and has
    /// subscriptions send what has changed. What a stalled server has not read yet need not be read
    /// before: none of it was answered, and a client's lease counts from what was answered.
    ///
    /// # Errors
    ///
    /// If the state turned out to be wrong. The server must not go on.
    pub fn wake(&mut self, now: Micros) -> Result<(), Damaged> {
        self.wake_within(now, BATCH)
    }

    /// The same, as long as the batch has fewer bytes than `limit`.
    ///
    /// # Errors
    ///
    /// As of [`wake`](Self::wake).
    pub fn wake_within(&mut self, now: Micros, limit: usize) -> Result<(), Damaged> {
        let turn_ends = self.work + TURN;
        self.end_crashed(limit, turn_ends)?;
        while self.work < turn_ends && self.batch.len() < limit && self.end_slice(turn_ends)? {}
        while let Some(&(deadline, session)) = self.deadlines.first() {
            if deadline > now || self.batch.len() >= limit || self.work >= turn_ends {
                break;
            }
            self.work += 1;
            self.deadlines.pop_first();
            if let Some(attached) = self.attached.get_mut(&session) {
                attached.deadline = None;
            }
            match self.expires(session) {
                Some(expires) if expires <= now => {
                    self.counts.expired += 1;
                    self.end(session, EndReason::Expired)?;
                }
                _ => self.watch_lease(session),
            }
        }
        self.wake_subscriptions(now);
        Ok(())
    }
}
