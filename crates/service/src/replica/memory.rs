//! What a replica remembers of the log, also across restarts, to detect a store that lost entries.

use super::{Astray, Head, Recovery, Replica, Revision};
use crate::sabotage::{Rule, holds};

/// Tokens that are given out within a millisecond, at most: so those after a recovery, whose number
/// is a time, are greater than any before it.
const TOKENS: u64 = 1 << 10;

/// Where the clock is of no use, a recovery counts as so many milliseconds later than what the
/// store knows of.
const AHEAD: u64 = 1 << 30;

impl Head {
    /// The greatest token that may have been given out before the last recovery.
    pub fn lost_tokens(&self) -> u64 {
        self.recovery.saturating_mul(TOKENS)
    }
}

/// How far a log has got. Later is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// The number of the last recovery.
    pub recovery: u64,
    /// How many entries there are.
    pub position: u64,
}

impl Extent {
    fn of(head: Option<&Head>) -> Self {
        head.map_or(Self::default(), |head| Self { recovery: head.recovery, position: head.position })
    }
}

/// The furthest that the log was seen to have got, and whether less is accepted.
#[derive(Debug)]
pub struct Memory {
    known: Extent,
    accepts: Accepts,
}

#[derive(Debug)]
enum Accepts {
    Nothing,
    /// The head that is found first.
    First,
    /// That head, until another one is written: its writer has recovered, or has begun to grant
    /// locks.
    Head(Option<(Head, Revision)>),
}

impl Memory {
    /// The remembered extent. With `accept` the store may have less, or an unknown history: an
    /// operator has restored it.
    pub fn new(known: Extent, accept: bool) -> Self {
        let accepts = if accept { Accepts::First } else { Accepts::Nothing };
        Self { known, accepts }
    }

    /// The furthest that the log was seen to have got.
    pub fn known(&self) -> Extent {
        self.known
    }

    /// The head was seen.
    ///
    /// # Errors
    ///
    /// [`Astray::WentBack`] if the store has less than it had.
    pub fn saw(&mut self, seen: Option<&(Head, Revision)>) -> Result<(), Astray> {
        if matches!(self.accepts, Accepts::First) {
            self.accepts = Accepts::Head(seen.cloned());
        }
        if matches!(&self.accepts, Accepts::Head(head) if head.as_ref() != seen) {
            self.accepts = Accepts::Nothing;
        }
        let found = Extent::of(seen.map(|(head, _)| head));
        if found >= self.known {
            self.known = found;
            // Sabotage: a store that has more than is remembered is not recovered.
            if !holds(Rule::AcceptWithoutMemory) {
                self.accepts = Accepts::Nothing;
            }
            return Ok(());
        }
        match self.accepts {
            Accepts::Head(_) => Ok(()),
            _ => Err(Astray::WentBack { known: self.known.position, found: found.position }),
        }
    }

    /// The recovery with which a replica takes over, if it does from the head that is accepted,
    /// after that token. `wall` is the time in milliseconds since the epoch: it makes the number
    /// greater than those of recoveries that are not remembered. `blind` is how long leases may
    /// last, in milliseconds.
    pub fn recovery(&self, replica: &Replica, last_token: u64, wall: u64, blind: u64) -> Option<Recovery> {
        let Accepts::Head(head) = &self.accepts else { return None };
        if *head != replica.seen() {
            return None;
        }
        let before = head.as_ref().map_or(0, |(head, _)| head.recovery);
        let number = wall.max(self.known.recovery.max(before) + 1);
        let late = last_token / TOKENS;
        // The clock was wrong, then or now.
        let number = if number > late { number } else { late + AHEAD };
        Some(Recovery { number, blind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(recovery: u64, position: u64, sequence: u64) -> (Head, Revision) {
        let url = String::new();
        let (owner, snapshot, takeover, vacant, blind) = (1, 0, 1, false, 0);
        let head = Head { owner, sequence, position, snapshot, takeover, vacant, url, recovery, blind };
        (head, 1)
    }

    const WENT_BACK: Result<(), Astray> = Err(Astray::WentBack { known: 9, found: 8 });

    #[test]
    fn less_than_was_known_is_refused() {
        let mut memory = Memory::new(Extent { recovery: 5, position: 9 }, false);
        assert_eq!(memory.saw(Some(&head(5, 8, 0))), WENT_BACK);
        // An earlier recovery has more entries.
        assert!(memory.saw(Some(&head(4, 10, 0))).is_err());
        // Positions before and after a recovery cannot be compared.
        assert_eq!(memory.saw(Some(&head(6, 1, 0))), Ok(()));
        assert_eq!(memory.known(), Extent { recovery: 6, position: 1 });
    }

    #[test]
    fn a_head_is_accepted_until_another_is_written() {
        let mut memory = Memory::new(Extent { recovery: 5, position: 9 }, true);
        assert_eq!(memory.saw(Some(&head(5, 8, 0))), Ok(()));
        assert_eq!(memory.saw(Some(&head(5, 8, 0))), Ok(()));
        // A replica leads that was not configured to accept it.
        assert_eq!(memory.saw(Some(&head(5, 8, 1))), WENT_BACK);
    }
}
