//! The end of sessions. A session of many requests ends in slices, so that other clients wait for
//! one slice at most.
//!
//! If the server stops between two slices, the next one finds a live session without some of its
//! requests. That is safe: the client has exited, or learns of the missing requests when it
//! resumes.

use super::{Server, attach::ENDED_BY_OTHER};
use crate::{
    codec::Damaged,
    record::{EndReason, Record},
    state::SessionId,
};
use lockkeeper_wire::v2::code;

/// The least bytes that a request counts for. One of many names is as much work as many requests.
const ENTRY: usize = 192;

/// A session that ends in slices.
pub(super) struct Ending {
    reason: EndReason,
    /// The clients that asked for it, and the numbers of their questions.
    asked: Vec<(SessionId, u64)>,
}

impl Server {
    /// Ends a session: at once if its requests are few, otherwise in slices.
    pub(super) fn end(&mut self, session: SessionId, reason: EndReason) -> Result<(), Damaged> {
        match self.is_ending(session) || self.is_long(session) {
            true => _ = self.end_later(session, reason),
            false => self.end_whole(session, reason)?,
        }
        Ok(())
    }

    /// Ends a session in one go.
    pub(super) fn end_whole(&mut self, session: SessionId, reason: EndReason) -> Result<(), Damaged> {
        let Some(view) = self.state.session(session) else { return Ok(()) };
        self.work += view.requests as u64;
        self.record(&Record::End { session, reason })
    }

    /// Ends a session because another one asked for it.
    pub(super) fn end_for(&mut self, session: SessionId, rid: u64, target: SessionId) -> Result<(), Damaged> {
        let bucket = |id| self.state.session(id).map(|view| view.bucket);
        if bucket(session) != bucket(target) || !self.is_ending(target) && !self.is_long(target) {
            self.work += self.state.session(target).map_or(0, |view| view.requests) as u64;
            return self.record(&Record::EndSession { session, rid, target });
        }
        if let Some(connection) = self.attached.get(&target).and_then(|attached| attached.connection) {
            self.close(connection, code::ENDED, ENDED_BY_OTHER);
        }
        self.end_later(target, EndReason::Revoked).asked.push((session, rid));
        Ok(())
    }

    /// A client has resumed. Of endings that are under way it asks again: the state does not have
    /// the numbers of its questions yet.
    pub(super) fn forget_questions(&mut self, session: SessionId) {
        for ending in self.ending.values_mut() {
            ending.asked.retain(|(asking, _)| *asking != session);
        }
    }

    /// Whether a session has begun to end.
    pub(super) fn is_ending(&self, session: SessionId) -> bool {
        self.ending.contains_key(&session)
    }

    /// Whether a session ends in slices. Not on a full disk: a record for each request may be more
    /// than it takes.
    fn is_long(&self, session: SessionId) -> bool {
        let Some(view) = self.state.session(session) else { return false };
        let work = view.requests.max(view.bytes / ENTRY);
        view.requests > 1 && work > self.config.slice && self.full.is_none()
    }

    fn end_later(&mut self, session: SessionId, reason: EndReason) -> &mut Ending {
        if let Some(connection) = self.attached.get(&session).and_then(|attached| attached.connection) {
            self.close_quietly(connection);
        }
        self.ending.entry(session).or_insert(Ending { reason, asked: Vec::new() })
    }

    /// Goes on with a session that ends, until so much work is done. False if there is none.
    pub(super) fn end_slice(&mut self, turn_ends: u64) -> Result<bool, Damaged> {
        let Some((&session, _)) = self.ending.first_key_value() else { return Ok(false) };
        if self.is_long(session) {
            // From the last one on, so that a request that waits behind a lock of the same session
            // is not granted in between.
            for (rid, bytes) in self.state.last_requests(session, self.config.slice) {
                if self.work >= turn_ends {
                    break;
                }
                self.work += (bytes / ENTRY) as u64;
                self.leave(session, rid)?;
            }
            return Ok(true);
        }
        let Some(Ending { reason, asked }) = self.ending.remove(&session) else { return Ok(true) };
        for (asking, rid) in asked {
            if self.state.session(asking).is_some() {
                self.record(&Record::EndSession { session: asking, rid, target: session })?;
            }
        }
        self.end_whole(session, reason)?;
        Ok(true)
    }

    /// Releases a request of a session that ends. Metrics count it as lost with its session.
    fn leave(&mut self, session: SessionId, rid: u64) -> Result<(), Damaged> {
        let aborted = self.counts.aborted;
        let effects = self.apply(&Record::Release { session, rid })?;
        self.counts.lost += u64::from(self.counts.aborted == aborted);
        self.counts.aborted = aborted;
        self.deliver(effects);
        Ok(())
    }
}
