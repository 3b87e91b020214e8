//! Leases: when a session is taken for dead.
//!
//! A session with a lease ends once its ttl has passed since it was last heard of, or since this
//! server could hear at all. A session with a FIFO has no lease.

use super::{Attached, Rights, Server};
use crate::{
    Micros,
    codec::Damaged,
    micros,
    record::EndReason,
    sabotage::{Rule, holds},
    state::SessionId,
};

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

    /// A client was heard.
    pub(super) fn heard(&mut self, session: SessionId, now: Micros) {
        if let Some(attached) = self.attached.get_mut(&session) {
            attached.heard = attached.heard.max(now);
        }
    }

    /// When to look at a session's lease. The entry stays where it is when the client is heard: it
    /// is looked at again.
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

    /// When a session's lease expires, unless it is heard of before.
    fn expires(&self, session: SessionId) -> Option<Micros> {
        let view = self.state.session(session)?;
        if view.fifo.is_some() {
            return None;
        }
        let heard = self.attached.get(&session)?.heard;
        let ttl = if holds(Rule::TtlOfSession) { view.ttl } else { self.config.ttl.default };
        let ttl = micros(ttl);
        let ttl = if holds(Rule::ExpireAfterTtl) { ttl } else { ttl / 4 * 3 };
        // The clock shows whole microseconds: it may have been heard almost one later than that.
        let rounded = u64::from(holds(Rule::RoundUp));
        Some(heard.saturating_add(ttl).saturating_add(rounded))
    }

    /// When [`wake`](Self::wake) has something to do.
    pub fn next_wake(&self) -> Option<Micros> {
        let lease = self.deadlines.first().map(|&(deadline, _)| deadline);
        if self.subscriptions.is_empty() {
            return lease;
        }
        [lease, self.next_flush()].into_iter().flatten().min()
    }

    /// Ends sessions whose lease has expired, and has subscriptions send what has changed. What a stalled server has not
    /// read yet need not be read before: none of it was answered, and a client's lease counts from what was answered.
    ///
    /// # Errors
    ///
    /// If the state turned out to be wrong. The server must not go on.
    pub fn wake(&mut self, now: Micros) -> Result<(), Damaged> {
        while let Some(&(deadline, session)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
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
