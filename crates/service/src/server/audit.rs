//! The audit: what clients did to others, and what was refused to them.

use super::Server;
use crate::state::SessionId;
use std::collections::VecDeque;

/// Something to be put on record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// The session that did it.
    pub session: SessionId,
    /// The action.
    pub what: Audited,
}

/// An action of a client, or a refused one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audited {
    /// It requested locks of these names with *steal*.
    Stole {
        /// The names.
        names: Vec<Box<[u8]>>,
        /// How many lost theirs.
        broken: u64,
    },
    /// It released a lock by force.
    Forced {
        /// The name.
        name: Box<[u8]>,
        /// How many lost theirs.
        broken: u64,
    },
    /// It ended another session.
    Ended {
        /// Which one.
        target: SessionId,
    },
    /// It was refused something: a right that it has not, or a limit.
    Refused {
        /// The code of the protocol.
        code: u32,
        /// Why.
        why: String,
    },
}

/// More than a driver leaves lying.
const KEPT: usize = 1000;

#[derive(Default)]
pub(super) struct Audits(VecDeque<Audit>);

impl Server {
    /// Entries for the audit. They may not be committed yet.
    pub fn next_audit(&mut self) -> Option<Audit> {
        self.audits.0.pop_front()
    }

    /// Why the last Hello was refused, if a limit did that. It has no session: the driver knows who
    /// sent it.
    pub fn take_refused_hello(&mut self) -> Option<String> {
        self.refused_hello.take()
    }

    pub(super) fn audit(&mut self, session: SessionId, what: Audited) {
        if self.audits.0.len() < KEPT {
            self.audits.0.push_back(Audit { session, what });
        }
    }
}
