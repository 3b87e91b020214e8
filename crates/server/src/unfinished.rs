//! The memory that connections use for incomplete or unprocessed messages, and for long tokens.
//!
//! A message has at most 1 MiB, but a client can have many connections, each with an incomplete
//! one. Their contents are never examined here.

use lockkeeper_service::ConnectionId;
use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
};

/// Bytes of all connections: an eighth of what clients may take in all, within these bounds.
const LEAST: usize = 8 << 20;
const MOST: usize = 128 << 20;

/// Bytes that are not counted: every connection takes more than that for itself, and to count each
/// short message would cost more than to handle it.
const FREE: usize = 1 << 10;

/// How much of so many bytes counts.
pub(crate) fn counted(bytes: usize) -> usize {
    bytes.saturating_sub(FREE)
}

pub(crate) struct Unfinished {
    limit: usize,
    sizes: HashMap<ConnectionId, usize>,
    /// The same by size. Of equals the oldest is the last.
    order: BTreeSet<(usize, Reverse<ConnectionId>)>,
    total: usize,
}

impl Unfinished {
    /// Of clients that may take so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let limit = (bytes / 8).clamp(LEAST, MOST);
        Self { limit, sizes: HashMap::new(), order: BTreeSet::new(), total: 0 }
    }

    /// The reason for the client whose connection is closed.
    pub(crate) fn why(&self) -> String {
        let setting = if self.limit < MOST { " (max-bytes)" } else { "" };
        format!("limit reached: {} bytes of tokens and incomplete messages{setting}", self.limit)
    }

    /// A connection has so many bytes now. Returns the one that has to be closed, if there is too
    /// much: that with the most, which is forgotten here.
    pub(crate) fn set(&mut self, id: ConnectionId, bytes: usize) -> Option<ConnectionId> {
        if self.sizes.get(&id).copied().unwrap_or(0) == bytes {
            return None;
        }
        self.forget(id);
        if bytes == 0 {
            return None;
        }
        self.sizes.insert(id, bytes);
        self.order.insert((bytes, Reverse(id)));
        self.total += bytes;
        if self.total <= self.limit {
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
    use super::{LEAST, MOST, Unfinished};

    #[test]
    fn the_longest_and_of_those_the_oldest_has_to_go() {
        let mut unfinished = Unfinished::new(16 * LEAST);
        assert!(unfinished.why().contains(&(2 * LEAST).to_string()));
        assert!(
            unfinished.why().ends_with("(max-bytes)") && !Unfinished::new(16 * MOST).why().contains("max-")
        );
        assert_eq!((Unfinished::new(0).limit, Unfinished::new(usize::MAX).limit), (LEAST, MOST));
        let part = 2 * LEAST / 4;
        assert_eq!(unfinished.set(1, part), None);
        assert_eq!(unfinished.set(2, part), None);
        assert_eq!(unfinished.set(3, part), None);
        assert_eq!(unfinished.set(4, part - 1), None);
        assert_eq!(unfinished.set(5, 1), None);
        assert_eq!(unfinished.set(5, 2), Some(1));
        // Completed messages and closed connections free memory.
        assert_eq!(unfinished.set(2, 0), None);
        assert_eq!(unfinished.set(5, 2 * part), None);
        assert_eq!(unfinished.set(5, 2 * part + 2), Some(5));
        assert_eq!(unfinished.total, 2 * part - 1);
    }
}
