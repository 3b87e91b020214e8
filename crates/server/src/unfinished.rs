//! How much memory long messages take that have not come as a whole.
//!
//! A message has at most 1 MiB, but a client can have many connections, and leave one unfinished on each. It never looks at
//! what is in them.

use lockkeeper_service::ConnectionId;
use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
};

/// Bytes of all connections.
const LIMIT: usize = 128 << 20;

/// What the client is told whose message had to go.
pub(crate) const LIMIT_REACHED: &str = "limit reached: 134217728 bytes of messages that are not whole";

#[derive(Default)]
pub(crate) struct Unfinished {
    sizes: HashMap<ConnectionId, usize>,
    /// The same by size. Of equals the oldest is the last.
    order: BTreeSet<(usize, Reverse<ConnectionId>)>,
    total: usize,
}

impl Unfinished {
    /// A connection has so many bytes now. Returns the one that has to be closed, if there is too much: that with the most,
    /// which is forgotten here.
    pub(crate) fn set(&mut self, id: ConnectionId, bytes: usize) -> Option<ConnectionId> {
        self.forget(id);
        if bytes == 0 {
            return None;
        }
        self.sizes.insert(id, bytes);
        self.order.insert((bytes, Reverse(id)));
        self.total += bytes;
        if self.total <= LIMIT {
            return None;
        }
        let &(_, Reverse(longest)) = self.order.last()?;
        self.forget(longest);
        Some(longest)
    }

    fn forget(&mut self, id: ConnectionId) {
        if let Some(bytes) = self.sizes.remove(&id) {
            self.order.remove(&(bytes, Reverse(id)));
            self.total -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LIMIT, LIMIT_REACHED, Unfinished};

    #[test]
    fn the_longest_and_of_those_the_oldest_has_to_go() {
        assert!(LIMIT_REACHED.contains(&LIMIT.to_string()));
        let mut unfinished = Unfinished::default();
        let part = LIMIT / 4;
        assert_eq!(unfinished.set(1, part), None);
        assert_eq!(unfinished.set(2, part), None);
        assert_eq!(unfinished.set(3, part), None);
        assert_eq!(unfinished.set(4, part - 1), None);
        assert_eq!(unfinished.set(5, 1), None);
        assert_eq!(unfinished.set(5, 2), Some(1));
        // What came as a whole, or went, makes room.
        assert_eq!(unfinished.set(2, 0), None);
        assert_eq!(unfinished.set(5, 2 * part), None);
        assert_eq!(unfinished.set(5, 2 * part + 2), Some(5));
        assert_eq!(unfinished.total, 2 * part - 1);
    }
}
