//! The check: reads the histories of all workers, and reports broken guarantees.
//!
//! * `holders`: no two holders conflict, except for one that has not been notified yet that its
//!   lock was stolen, or that was cut off.
//! * `promises`: tokens grow, the order is kept, every request is answered, and no lock is lost
//!   without a reason.
//!
//! It errs on the side of the daemon: what may have been right is not reported.

mod holders;
mod promises;
mod seen;
#[cfg(test)]
mod tests;

pub(crate) use seen::read;
pub use seen::{Facts, Fate, Seen};

use crate::{Nanos, ms};
use std::fmt;

/// How long a holder that runs may take to learn that its lock is gone. The machine may be busy.
pub const LATE: Nanos = ms(750);

/// A promise that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// By whom, and how.
    pub what: String,
}

/// The promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The times at which two hold what only one can do not overlap.
    Overlap,
    /// Of two that are in each other's way, the later one at work has the greater token.
    Stale,
    /// A holder that was notified of a lost lock does not continue.
    Told,
    /// Tokens grow with every grant of a name, and none is given twice.
    Tokens,
    /// A waiting request is granted before later ones.
    Order,
    /// The same, where the daemon ended in between.
    OrderAcross,
    /// Every request is answered.
    Answered,
    /// No request is refused.
    Refused,
    /// A lock is lost with its connection, or with a daemon that does not come back in time; not
    /// otherwise.
    Lost,
    /// A lock is stolen by a thief.
    Stolen,
    /// When all clients have ended, nothing is left of them.
    Leftover,
    /// The daemon ends when it is asked to, never on its own, and no part of it does.
    Daemon,
}

impl Rule {
    /// Every one.
    pub const ALL: [Self; 12] = [
        Self::Overlap,
        Self::Stale,
        Self::Told,
        Self::Tokens,
        Self::Order,
        Self::OrderAcross,
        Self::Answered,
        Self::Refused,
        Self::Lost,
        Self::Stolen,
        Self::Leftover,
        Self::Daemon,
    ];
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overlap => "two held what only one can",
            Self::Stale => "a holder was at work after one with a greater token",
            Self::Told => "a holder was at work after it was told that its lock is gone",
            Self::Tokens => "a token did not grow",
            Self::Order => "somebody was overtaken",
            Self::OrderAcross => "somebody was overtaken while the daemon ended and another began",
            Self::Answered => "a request was not answered",
            Self::Refused => "a request was refused",
            Self::Lost => "a lock was lost for no reason",
            Self::Stolen => "a lock was stolen by nobody",
            Self::Leftover => "something was left behind",
            Self::Daemon => "the daemon failed, or did not end as it should",
        })
    }
}

/// Every promise that was broken.
pub fn check(seen: &Seen) -> Vec<Violation> {
    let mut violations = holders::overlaps(seen);
    violations.extend(holders::touches(seen));
    violations.extend(promises::tokens(seen));
    violations.extend(promises::order(seen));
    violations.extend(promises::ends(seen));
    violations
}
