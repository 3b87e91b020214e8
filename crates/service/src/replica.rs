//! Leadership, where several servers share a log: who may append, and who takes over.
//!
//! The log is kept in a store of keys whose changes are numbered, one after the other: its
//! *revisions*. One key is the [`Head`] of the log. It says who leads and how long the log is.
//! Every write of a leader rewrites it, and has an effect only if the head still has the revision
//! at which this replica saw it. So a leader that was deposed can write nothing, whatever it
//! believes. Clocks decide only how soon somebody takes over.
//!
//! A replica follows at first. It applies the log's entries in their order, and takes over when the
//! head has not changed for as long as the head says, or when the leader has handed over. It leads
//! until a write or a read shows a head that is not its own. Then it is dropped with its state,
//! which may be ahead of the log.
//!
//! One operation is under way at a time. A driver that gets no answer sends the same operation again, until it is answered:
//! if the first one was executed after all, the answer shows it.

mod head;

pub use head::{Head, decode_entry, encode_entry};

use crate::{
    Micros, micros,
    sabotage::{Rule, holds},
    tail::Tail,
};
use std::ops::RangeInclusive;

/// The revision of a key in the store. Zero is that of a key that is not there.
pub type Revision = i64;

/// How a replica is set up.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// After how long without a change of the head another replica takes over from this one, in
    /// milliseconds.
    pub takeover: u64,
    /// How many entries the store keeps: each overwrites the one that is so many positions before
    /// it.
    pub ring: u64,
    /// Where this replica can be reached.
    pub url: String,
}

/// What a replica asks of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes, if the head has that revision. All of it is done at once, or nothing.
    Write {
        /// The revision.
        guard: Revision,
        /// The new head.
        head: Head,
        /// An entry: its place in the ring, and its bytes.
        entry: Option<(u64, Vec<u8>)>,
        /// What the key of the newest snapshot says from now on.
        snapshot: Option<Vec<u8>>,
        /// Places in the ring whose entries are deleted.
        deletes: Vec<RangeInclusive<u64>>,
    },
    /// Reads the head. What was written before it is sent is seen.
    Read,
}

/// What the store answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is written, and the head has this revision.
    Done(Revision),
    /// The head as it is: it was read, or a write found another revision than it was guarded by.
    Seen(Option<(Head, Revision)>),
}

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The operation succeeded, and this replica leads. If it followed until now, it leads from now
    /// on.
    Done,
    /// Another replica leads, or none does. A leader that gets this must be dropped with its state.
    Deposed,
    /// The leader has handed over. It must be dropped with its state.
    HandedOver,
}

/// What to do with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Apply it.
    Apply,
    /// It was applied before.
    Skip,
    /// Others before it are missing: they have to be read.
    Missing,
}

/// The store has less than it had: it was restored from a backup, or emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WentBack {
    /// The position that was known.
    pub known: u64,
    /// The position that the store has.
    pub found: u64,
}

/// One of the servers that share a log.
#[derive(Debug)]
pub struct Replica {
    config: ReplicaConfig,
    /// How many entries its state has.
    position: u64,
    /// The head as it was seen last. A leader's is the one that it wrote.
    head: Option<Head>,
    revision: Revision,
    role: Role,
    flight: Option<Flight>,
    /// The entries that no snapshot has, of those that its state has.
    tail: Tail,
}

#[derive(Debug)]
enum Role {
    /// Since when the head has been as it is.
    Follower {
        since: Micros,
    },
    Leader,
}

/// The operation under way.
#[derive(Debug)]
struct Flight {
    kind: Kind,
    /// The head that it writes.
    head: Option<Head>,
    /// Bytes of the entry that it writes.
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    TakeOver,
    Write,
    Read,
    HandOver,
}

impl Replica {
    /// A follower whose state has so many entries, with the head as it was read.
    ///
    /// # Errors
    ///
    /// [`WentBack`] if the head has fewer.
    pub fn follow(
        config: ReplicaConfig,
        position: u64,
        seen: Option<(Head, Revision)>,
        now: Micros,
    ) -> Result<Self, WentBack> {
        let role = Role::Follower { since: now };
        let tail = Tail::default();
        let mut replica = Self { config, position, head: None, revision: 0, role, flight: None, tail };
        replica.saw(seen, now)?;
        Ok(replica)
    }

    /// How many entries its state has. For a leader, how many are committed.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The head as it was seen or written last.
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// Whether it leads.
    pub fn is_leader(&self) -> bool {
        matches!(self.role, Role::Leader)
    }

    /// Whether a head that a leader has read shows that it led until then, also while a write of
    /// its own is under way.
    pub fn is_own(&self, seen: Option<&Head>) -> bool {
        let own = self.head.as_ref().filter(|_| self.is_leader());
        own.zip(seen).is_some_and(|(own, seen)| own.owner == seen.owner && !seen.vacant)
    }

    /// A follower has seen the head: watched, or read.
    ///
    /// # Errors
    ///
    /// [`WentBack`] if it has fewer entries than this replica's state: it must not be followed.
    pub fn saw(&mut self, seen: Option<(Head, Revision)>, now: Micros) -> Result<(), WentBack> {
        let (head, revision) = seen.map_or((None, 0), |(head, revision)| (Some(head), revision));
        // Watched changes can be older than what was read.
        if revision != 0 && revision <= self.revision {
            return Ok(());
        }
        let found = head.as_ref().map_or(0, |head| head.position);
        if found < self.position {
            return Err(WentBack { known: self.position, found });
        }
        if let Role::Follower { since } = &mut self.role {
            *since = now;
        }
        self.tail.begin_after(head.as_ref().map_or(0, |head| head.snapshot));
        (self.head, self.revision) = (head, revision);
        Ok(())
    }

    /// What to do with an entry of that position and so many bytes. It counts as applied if it is
    /// to be.
    pub fn entry(&mut self, position: u64, bytes: usize) -> Next {
        if position <= self.position {
            return Next::Skip;
        }
        if position > self.position + 1 && holds(Rule::ApplyEveryEntry) {
            return Next::Missing;
        }
        self.position = position;
        self.tail.push(position, bytes as u64);
        Next::Apply
    }

    /// How many bytes those entries have that no snapshot has. For a leader, those that are
    /// committed.
    pub fn tail_bytes(&self) -> u64 {
        self.tail.bytes()
    }

    /// How many entries a follower has yet to apply.
    pub fn lag(&self) -> u64 {
        self.head.as_ref().map_or(0, |head| head.position.saturating_sub(self.position))
    }

    /// When a follower takes over, unless the head changes.
    pub fn takes_over_at(&self) -> Micros {
        match (&self.role, &self.head) {
            (Role::Follower { since }, Some(head)) if !head.vacant => {
                since.saturating_add(micros(head.takeover)).saturating_add(1)
            }
            _ => 0,
        }
    }

    /// Takes over, under a number that no other leadership has, if it is time and everything is applied.
    pub fn take_over(&mut self, now: Micros, owner: u64) -> Option<Operation> {
        let whole = self.lag() == 0 || !holds(Rule::ServeAfterApplying);
        if self.is_leader() || self.flight.is_some() || now < self.takes_over_at() || !whole {
            return None;
        }
        let position = self.head.as_ref().map_or(0, |head| head.position);
        let snapshot = self.head.as_ref().map_or(0, |head| head.snapshot);
        let ReplicaConfig { takeover, ref url, .. } = self.config;
        let head = Head { owner, sequence: 0, position, snapshot, takeover, vacant: false, url: url.clone() };
        Some(self.write(Kind::TakeOver, head))
    }

    /// Whether the next entry would overwrite one that no snapshot has.
    pub fn needs_snapshot(&self) -> bool {
        let snapshot = self.head.as_ref().map_or(0, |head| head.snapshot);
        holds(Rule::KeepEntries) && self.position + 1 > snapshot + self.config.ring
    }

    /// Appends a batch. The caller has asked [`needs_snapshot`](Self::needs_snapshot).
    pub fn append(&mut self, batch: &[u8]) -> Option<Operation> {
        let head = self.next_head()?;
        let position = head.position + 1;
        let bytes = encode_entry(position, batch);
        let length = bytes.len() as u64;
        let mut operation = self.write(Kind::Write, Head { position, ..head });
        if let Operation::Write { entry, .. } = &mut operation {
            *entry = Some((position % self.config.ring, bytes));
        }
        if let Some(flight) = &mut self.flight {
            flight.bytes = length;
        }
        Some(operation)
    }

    /// Shows that the leader is alive.
    pub fn beat(&mut self) -> Option<Operation> {
        let head = self.next_head()?;
        Some(self.write(Kind::Write, head))
    }

    /// Makes a snapshot the one that the log begins with, whose position is committed. The entries
    /// that it has are deleted with the same write: so they are there as long as somebody needs
    /// them, and no deposed leader deletes any.
    pub fn point(&mut self, snapshot: u64, pointer: Vec<u8>) -> Option<Operation> {
        let head = self.next_head()?;
        let places = self.places_behind(snapshot, head.position);
        let mut operation = self.write(Kind::Write, Head { snapshot, ..head });
        if let Operation::Write { snapshot, deletes, .. } = &mut operation {
            (*snapshot, *deletes) = (Some(pointer), places);
        }
        Some(operation)
    }

    /// All places of the ring but those of the entries after a snapshot.
    fn places_behind(&self, snapshot: u64, position: u64) -> Vec<RangeInclusive<u64>> {
        let ring = self.config.ring;
        let kept =
            position.saturating_sub(snapshot).saturating_sub(u64::from(!holds(Rule::DeleteBehindSnapshot)));
        let count = ring.saturating_sub(kept);
        if count == 0 || snapshot > position {
            return Vec::new();
        }
        // The place of the next entry is the first that is free.
        let first = (position + 1) % ring;
        let last = first + count - 1;
        match last < ring {
            true => vec![first..=last],
            false => vec![first..=ring - 1, 0..=last - ring],
        }
    }

    /// Leaves the head to anybody. The leader says nothing from now on, whatever becomes of it.
    pub fn hand_over(&mut self) -> Option<Operation> {
        let head = self.next_head()?;
        Some(self.write(Kind::HandOver, Head { vacant: true, ..head }))
    }

    /// Has the store confirm that this replica leads.
    pub fn confirm(&mut self) -> Option<Operation> {
        self.next_head()?;
        self.flight = Some(Flight { kind: Kind::Read, head: None, bytes: 0 });
        Some(Operation::Read)
    }

    /// The head that a leader writes next, if nothing is under way.
    fn next_head(&self) -> Option<Head> {
        let head = self.head.as_ref().filter(|_| self.is_leader() && self.flight.is_none())?;
        Some(Head { sequence: head.sequence + 1, ..head.clone() })
    }

    fn write(&mut self, kind: Kind, head: Head) -> Operation {
        self.flight = Some(Flight { kind, head: Some(head.clone()), bytes: 0 });
        Operation::Write { guard: self.revision, head, entry: None, snapshot: None, deletes: Vec::new() }
    }

    /// The operation under way is answered.
    ///
    /// # Errors
    ///
    /// [`WentBack`] if a follower was shown a head that it must not follow.
    pub fn answered(&mut self, reply: Reply, now: Micros) -> Result<Verdict, WentBack> {
        let Some(Flight { kind, head: wanted, bytes }) = self.flight.take() else {
            return Ok(Verdict::Deposed);
        };
        let revision = match (reply, &wanted) {
            (Reply::Done(revision), Some(_)) => revision,
            // It had been executed before, and its answer was lost.
            (Reply::Seen(Some((seen, revision))), Some(wanted)) if is_same(&seen, wanted) => revision,
            (Reply::Seen(Some((_, revision))), None) if revision == self.revision => {
                return Ok(Verdict::Done);
            }
            (Reply::Seen(seen), _) if !self.is_leader() => {
                // It is what the store has, also if that is older than what was seen before.
                self.revision = 0;
                self.saw(seen, now)?;
                return Ok(Verdict::Deposed);
            }
            _ => return Ok(Verdict::Deposed),
        };
        if kind == Kind::HandOver {
            return Ok(Verdict::HandedOver);
        }
        if let Some(head) = &wanted {
            if head.position > self.position {
                self.tail.push(head.position, bytes);
            }
            self.tail.begin_after(head.snapshot);
            self.position = head.position;
        }
        (self.head, self.revision) = (wanted, revision);
        self.role = Role::Leader;
        Ok(Verdict::Done)
    }
}

/// Whether two heads are of the same write.
fn is_same(one: &Head, other: &Head) -> bool {
    (one.owner, one.sequence) == (other.owner, other.sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: u64 = 8;

    /// A leader of a log with so many entries, of which a snapshot has the first.
    fn leader(position: u64, snapshot: u64) -> Replica {
        let config = ReplicaConfig { takeover: 1, ring: RING, url: String::new() };
        let head =
            Head { owner: 1, sequence: 0, position, snapshot, takeover: 1, vacant: true, url: String::new() };
        let mut replica = Replica::follow(config, position, Some((head, 1)), 0).expect("nothing is missing");
        replica.take_over(0, 2).expect("nobody leads");
        assert_eq!(replica.answered(Reply::Done(2), 0), Ok(Verdict::Done));
        replica
    }

    #[test]
    fn a_snapshot_deletes_every_entry_that_it_has_and_no_other() {
        for position in 0..3 * RING {
            for before in position.saturating_sub(RING)..=position {
                for snapshot in before..=position {
                    let operation = leader(position, before).point(snapshot, Vec::new()).expect("it leads");
                    let Operation::Write { guard: 2, head, deletes, .. } = operation else {
                        panic!("not guarded by the head: {operation:?}")
                    };
                    assert_eq!((head.position, head.snapshot), (position, snapshot));
                    assert!(deletes.iter().all(|places| places.end() < &RING), "{deletes:?}");
                    let is_deleted = |at: u64| deletes.iter().any(|places| places.contains(&(at % RING)));
                    assert!((before + 1..=snapshot).all(is_deleted), "{before} {snapshot}: {deletes:?}");
                    assert!(!(snapshot + 1..=position).any(is_deleted), "{snapshot} {position}: {deletes:?}");
                }
            }
        }
    }

    #[test]
    fn a_leader_knows_how_long_the_tail_is() {
        let mut replica = leader(5, 5);
        assert_eq!(replica.tail_bytes(), 0);
        for (revision, bytes) in [(3, 10), (4, 20)] {
            replica.append(&vec![0; bytes]).expect("it leads");
            let before = replica.tail_bytes();
            assert_eq!(replica.answered(Reply::Done(revision), 0), Ok(Verdict::Done));
            assert_eq!(replica.tail_bytes(), before + encode_entry(6, &vec![0; bytes]).len() as u64);
        }
        replica.point(6, Vec::new()).expect("it leads");
        assert_eq!(replica.answered(Reply::Done(5), 0), Ok(Verdict::Done));
        assert_eq!(replica.tail_bytes(), encode_entry(7, &[0; 20]).len() as u64);
    }
}
