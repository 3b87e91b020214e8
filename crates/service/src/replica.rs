//! Leadership, where several servers share a log: who may append, and who takes over.
//!
//! The log is kept in a store of keys whose changes are numbered, one after the other: its
//! *revisions*. One key is the [`Head`] of the log. It names the leader and the length of the log.
//! Every write of a leader rewrites it, and has an effect only if the head still has the revision
//! at which this replica saw it. So a deposed leader cannot write. Clocks decide only how soon a
//! takeover happens.
//!
//! A replica follows at first. It applies the log's entries in their order. It takes over when the
//! head has not changed for as long as the head says, or when the leader has handed over. It leads
//! until a write or a read shows a head that is not its own. Then it is dropped with its state,
//! which may be ahead of the log.
//!
//! A store that was restored from a backup lacks the end of the log: unknown locks may be held. A
//! replica takes over from such a head only at an operator's request, and records a [`Recovery`] in
//! it. Until earlier leases have expired, every leader begins by waiting for them. [`Memory`]
//! detects that the store went back.
//!
//! One operation is under way at a time. A driver that gets no answer sends the same operation
//! again until it is answered. If the first one was executed after all, the answer shows it.

mod head;
mod memory;

pub use head::{Head, RING, decode_entry, encode_entry};
pub use memory::{Extent, Memory};

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

/// An operation on the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum Operation {
    /// Writes, if the head is that one. All of it is done at once, or nothing.
    Write {
        /// The head, and its revision. A store that was restored can have another head with the
        /// same revision.
        guard: Option<(Head, Revision)>,
        /// The new head.
        head: Head,
        /// An entry: its place in the ring, and its bytes.
        entry: Option<(u64, Vec<u8>)>,
        /// The new value of the key that points at the newest snapshot.
        snapshot: Option<Vec<u8>>,
        /// Places in the ring whose entries are deleted.
        deletes: Vec<RangeInclusive<u64>>,
    },
    /// Reads the head. What was written before it is sent is seen.
    Read,
}

/// An answer of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is written, and the head has this revision.
    Done(Revision),
    /// The head as it is: it was read, or a write found another revision than it was guarded by.
    Seen(Option<(Head, Revision)>),
}

/// The meaning of an answer.
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

/// Why a follower must not go on with its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Astray {
    /// The store has less than it had: it was restored from a backup, or emptied.
    WentBack {
        /// The position that was known.
        known: u64,
        /// The position that the store has.
        found: u64,
    },
    /// The store was recovered in the meantime: the entries may differ, and have to be read again.
    Recovered,
}

/// A store that has less than it had is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// A number that is greater than that of any recovery before.
    pub number: u64,
    /// How long leases last that the store may not know of, in milliseconds.
    pub blind: u64,
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
    /// The leases that the log does not know have expired.
    settled: bool,
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
    /// [`Astray::WentBack`] if the head has fewer.
    pub fn follow(
        config: ReplicaConfig,
        position: u64,
        seen: Option<(Head, Revision)>,
        now: Micros,
    ) -> Result<Self, Astray> {
        let role = Role::Follower { since: now };
        let tail = Tail::default();
        let mut replica =
            Self { config, position, head: None, revision: 0, role, flight: None, settled: false, tail };
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

    /// The head as it was seen or written last, and its revision.
    pub fn seen(&self) -> Option<(Head, Revision)> {
        self.head.clone().map(|head| (head, self.revision))
    }

    /// Whether it leads.
    pub fn is_leader(&self) -> bool {
        matches!(self.role, Role::Leader)
    }

    /// Whether a head that a leader has read shows that it led until then, also while a write of
    /// its own is under way.
    pub fn is_own(&self, seen: Option<&Head>) -> bool {
        let own = self.head.as_ref().filter(|_| self.is_leader());
        // An earlier one of this leadership is that of a store that was restored.
        let is_later = |own: &Head, seen: &Head| own.owner == seen.owner && own.sequence <= seen.sequence;
        own.zip(seen).is_some_and(|(own, seen)| is_later(own, seen) && !seen.vacant)
    }

    /// A follower has watched a change of the head, which can be older than what was read before.
    ///
    /// # Errors
    ///
    /// [`Astray`] if it must not be followed with this replica's state.
    pub fn watched(&mut self, head: Head, revision: Revision, now: Micros) -> Result<(), Astray> {
        if revision <= self.revision {
            return Ok(());
        }
        self.saw(Some((head, revision)), now)
    }

    /// A follower has read the head.
    ///
    /// # Errors
    ///
    /// [`Astray`] if it must not be followed with this replica's state.
    pub fn saw(&mut self, seen: Option<(Head, Revision)>, now: Micros) -> Result<(), Astray> {
        let (head, revision) = seen.map_or((None, 0), |(head, revision)| (Some(head), revision));
        if revision != 0 && revision == self.revision && head == self.head {
            return Ok(());
        }
        let recovered = |before: &Head| head.as_ref().is_some_and(|head| head.recovery > before.recovery);
        if self.head.as_ref().is_some_and(recovered) {
            return Err(Astray::Recovered);
        }
        let found = head.as_ref().map_or(0, |head| head.position);
        // A later read shows a later state, except in a restored store.
        if found < self.position || revision <= self.revision && self.revision != 0 {
            return Err(Astray::WentBack { known: self.position, found });
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

    /// Takes over, under a number that no other leadership has, if it is time and everything is
    /// applied. With a recovery, the store is taken as it is.
    pub fn take_over(&mut self, now: Micros, owner: u64, recovery: Option<Recovery>) -> Option<Operation> {
        let whole = self.lag() == 0 || !holds(Rule::ServeAfterApplying);
        if self.is_leader() || self.flight.is_some() || now < self.takes_over_at() || !whole {
            return None;
        }
        let position = self.head.as_ref().map_or(0, |head| head.position);
        let snapshot = self.head.as_ref().map_or(0, |head| head.snapshot);
        let ReplicaConfig { takeover, ref url, .. } = self.config;
        let before = self.head.as_ref().map_or((0, 0), |head| (head.recovery, head.blind));
        let (number, mut blind) =
            recovery.map_or(before, |recovery| (recovery.number, recovery.blind.max(before.1)));
        if recovery.is_none() && !holds(Rule::StaysBlind) {
            blind = 0;
        }
        let url = url.clone();
        let head = Head {
            owner,
            sequence: 0,
            position,
            snapshot,
            takeover,
            vacant: false,
            url,
            recovery: number,
            blind,
        };
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

    /// Makes a snapshot, whose position is committed, the beginning of the log. The same write
    /// deletes the entries that it contains, so no follower misses one, and a deposed leader
    /// deletes none.
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

    /// Gives the head up, for any replica. The leader sends nothing from now on, whether or not
    /// this succeeds.
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

    /// The unknown leases have expired: the next write records this. A leader calls it before it
    /// writes what it has done since then.
    pub fn settle(&mut self) {
        self.settled = true;
    }

    /// The head that a leader writes next, if nothing is under way.
    fn next_head(&self) -> Option<Head> {
        let head = self.head.as_ref().filter(|_| self.is_leader() && self.flight.is_none())?;
        let blind = if self.settled { 0 } else { head.blind };
        Some(Head { sequence: head.sequence + 1, blind, ..head.clone() })
    }

    fn write(&mut self, kind: Kind, head: Head) -> Operation {
        self.flight = Some(Flight { kind, head: Some(head.clone()), bytes: 0 });
        let guard = self.seen();
        Operation::Write { guard, head, entry: None, snapshot: None, deletes: Vec::new() }
    }

    /// The operation under way is answered.
    ///
    /// # Errors
    ///
    /// [`Astray`] if a follower was shown a head that it must not follow with its state.
    pub fn answered(&mut self, reply: Reply, now: Micros) -> Result<Verdict, Astray> {
        let Some(Flight { kind, head: wanted, bytes }) = self.flight.take() else {
            return Ok(Verdict::Deposed);
        };
        let revision = match (reply, &wanted) {
            (Reply::Done(revision), Some(_)) => revision,
            // It had been executed before, and its answer was lost.
            (Reply::Seen(Some((seen, revision))), Some(wanted)) if is_same(&seen, wanted) => revision,
            (Reply::Seen(seen), None) if seen.is_some() && seen == self.seen() => {
                return Ok(Verdict::Done);
            }
            (Reply::Seen(seen), _) if !self.is_leader() => {
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

    /// A ring that is soon full.
    const RING: u64 = 8;

    /// A leader of a log with so many entries, of which a snapshot has the first.
    fn leader(position: u64, snapshot: u64) -> Replica {
        let config = ReplicaConfig { takeover: 1, ring: RING, url: String::new() };
        let head = Head {
            owner: 1,
            sequence: 0,
            position,
            snapshot,
            takeover: 1,
            vacant: true,
            url: String::new(),
            recovery: 0,
            blind: 0,
        };
        let mut replica = Replica::follow(config, position, Some((head, 1)), 0).expect("nothing is missing");
        replica.take_over(0, 2, None).expect("nobody leads");
        assert_eq!(replica.answered(Reply::Done(2), 0), Ok(Verdict::Done));
        replica
    }

    #[test]
    fn a_snapshot_deletes_every_entry_that_it_has_and_no_other() {
        for position in 0..3 * RING {
            for before in position.saturating_sub(RING)..=position {
                for snapshot in before..=position {
                    let operation = leader(position, before).point(snapshot, Vec::new()).expect("it leads");
                    let Operation::Write { guard: Some((_, 2)), head, deletes, .. } = operation else {
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

    /// The store was restored, and has another head with the same revision.
    #[test]
    fn a_head_is_known_by_more_than_its_revision() {
        let mut replica = leader(5, 5);
        let own = replica.seen();
        replica.confirm().expect("it leads");
        assert_eq!(replica.answered(Reply::Seen(own.clone()), 0), Ok(Verdict::Done));
        let operation = replica.beat().expect("it leads");
        assert!(matches!(operation, Operation::Write { guard, .. } if guard == own));
        let mut replica = leader(5, 5);
        replica.confirm().expect("it leads");
        let other = own.map(|(head, revision)| (Head { owner: 7, ..head }, revision));
        assert_eq!(replica.answered(Reply::Seen(other), 0), Ok(Verdict::Deposed));
    }

    #[test]
    fn an_earlier_head_of_its_own_is_not_that_of_a_leader() {
        let mut replica = leader(5, 5);
        let before = replica.head().cloned();
        assert!(replica.is_own(before.as_ref()));
        replica.beat().expect("it leads");
        assert_eq!(replica.answered(Reply::Done(3), 0), Ok(Verdict::Done));
        assert!(!replica.is_own(before.as_ref()));
    }

    /// Until the leases from before a recovery have expired, every leader waits for them anew.
    #[test]
    fn a_recovery_outlives_its_leader() {
        let follow = |seen| {
            let config = ReplicaConfig { takeover: 1, ring: RING, url: String::new() };
            Replica::follow(config, 0, seen, 0).expect("nothing is missing")
        };
        let blind = |replica: &Replica| replica.head().map(|head| (head.recovery, head.blind));
        let mut first = follow(None);
        first.take_over(0, 2, Some(Recovery { number: 3, blind: 40 })).expect("nobody leads");
        assert_eq!(first.answered(Reply::Done(1), 0), Ok(Verdict::Done));
        assert_eq!(blind(&first), Some((3, 40)));
        let seen = first.seen();
        assert_eq!(seen.as_ref().map(|(head, _)| Head::decode(&head.encode())), seen.map(|seen| Ok(seen.0)));
        let mut second = follow(first.seen());
        second.take_over(2000, 4, None).expect("it is time");
        assert_eq!(second.answered(Reply::Done(2), 0), Ok(Verdict::Done));
        assert_eq!(blind(&second), Some((3, 40)));
        second.beat().expect("it leads");
        assert_eq!(second.answered(Reply::Done(3), 0), Ok(Verdict::Done));
        assert_eq!(blind(&second), Some((3, 40)));
        second.settle();
        second.append(&[]).expect("it leads");
        assert_eq!(second.answered(Reply::Done(4), 0), Ok(Verdict::Done));
        assert_eq!(blind(&second), Some((3, 0)));
        // A follower of an earlier history begins anew.
        let mut other = follow(None);
        assert_eq!(other.saw(second.seen(), 0), Ok(()), "it has seen nothing");
        let mut other = leader(0, 0);
        other.role = Role::Follower { since: 0 };
        assert_eq!(other.saw(second.seen(), 0), Err(Astray::Recovered));
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
