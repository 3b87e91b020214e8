//! The tail of a shared log: the entries since the newest snapshot, and their bytes in the store.
//!
//! Every replica counts them, not only the leader, so a new leader knows at once whether a snapshot
//! is due.

use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// Positions and bytes, in order.
    entries: VecDeque<(u64, u64)>,
    bytes: u64,
    /// The position of the snapshot before it.
    snapshot: u64,
}

impl Tail {
    /// Another entry. One that the snapshot has does not count: a follower that lags applies it all
    /// the same.
    pub(crate) fn push(&mut self, position: u64, bytes: u64) {
        if position > self.snapshot {
            self.entries.push_back((position, bytes));
            self.bytes += bytes;
        }
    }

    /// There is a snapshot of that position.
    pub(crate) fn begin_after(&mut self, snapshot: u64) {
        self.snapshot = snapshot;
        while let Some(&(position, bytes)) = self.entries.front()
            && position <= snapshot
        {
            self.entries.pop_front();
            self.bytes -= bytes;
        }
    }

    /// Bytes of all its entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Tail;

    #[test]
    fn it_has_what_no_snapshot_has() {
        let mut tail = Tail::default();
        (1..=4).for_each(|position| tail.push(position, 10 * position));
        assert_eq!(tail.bytes(), 100);
        tail.begin_after(3);
        assert_eq!(tail.bytes(), 40);
        // It lags: the snapshot has both.
        tail.begin_after(6);
        (5..=6).for_each(|position| tail.push(position, 10));
        assert_eq!(tail.bytes(), 0);
        tail.push(7, 10);
        assert_eq!(tail.bytes(), 10);
    }
}
