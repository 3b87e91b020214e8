//! Leadership, where several servers share a log: who may append, and who takes over.
//!
//! The log is kept in a store of keys whose changes are numbered, one after the other: its *revisions*. One key is the
//! [`Head`] of the log. It says who leads and how long the log is. Every write of a leader rewrites it, and has an effect
//! only if the head still has the revision at which this replica saw it. So a leader that was deposed can write nothing,
//! whatever it believes. Clocks decide only how soon somebody takes over.
//!
//! A replica follows at first. It applies the log's entries in their order, and takes over when the head has not changed
//! for as long as the head says, or when the leader has handed over. It leads until a write or a read shows a head that is
//! not its own. Then it is dropped with its state, which may be ahead of the log.
//!
//! One operation is under way at a time. A driver that gets no answer sends the same operation again, until it is answered:
//! if the first one was executed after all, the answer shows it.

use crate::{
    Micros,
    codec::{Damaged, Reader, put_bytes, put_uint},
    micros,
    sabotage::{Rule, holds},
};

/// The revision of a key in the store. Zero is that of a key that is not there.
pub type Revision = i64;

/// The head of the log: who leads, and how long the log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// A random number of this leadership. No other has it.
    pub owner: u64,
    /// Counts the writes of this leadership.
    pub sequence: u64,
    /// How many entries there are.
    pub position: u64,
    /// The position of the snapshot that the log begins with.
    pub snapshot: u64,
    /// After how long without a change another replica takes over, in milliseconds.
    pub takeover: u64,
    /// Whether the leader has handed over: anybody may take over at once.
    pub vacant: bool,
    /// Where the leader can be reached.
    pub url: String,
}

/// The version of the bytes of a head and of an entry.
const FORMAT: u64 = 1;

impl Head {
    /// As the store has it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let numbers = [FORMAT, self.owner, self.sequence, self.position, self.snapshot, self.takeover];
        numbers.into_iter().for_each(|number| put_uint(&mut out, number));
        out.push(u8::from(self.vacant));
        put_bytes(&mut out, self.url.as_bytes());
        out
    }

    /// What [`encode`](Self::encode) has written.
    ///
    /// # Errors
    ///
    /// If it is something else, or of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut reader = Reader(bytes);
        format(&mut reader)?;
        let mut number = || reader.uint();
        let (owner, sequence, position) = (number()?, number()?, number()?);
        let (snapshot, takeover) = (number()?, number()?);
        let vacant = reader.bool()?;
        let url = String::from_utf8_lossy(reader.bytes()?).into_owned();
        Ok(Self { owner, sequence, position, snapshot, takeover, vacant, url })
    }
}

fn format(reader: &mut Reader<'_>) -> Result<(), Damaged> {
    match reader.uint()? {
        FORMAT => Ok(()),
        format => Err(Damaged::new(format!("format {format} is of a later version of Lockkeeper: upgrade"))),
    }
}

/// An entry as the store has it: its position and a batch.
pub fn encode_entry(position: u64, batch: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(batch.len() + 11);
    put_uint(&mut out, FORMAT);
    put_uint(&mut out, position);
    out.extend_from_slice(batch);
    out
}

/// The position and the batch of an entry.
///
/// # Errors
///
/// If it is something else, or of a later version.
pub fn decode_entry(bytes: &[u8]) -> Result<(u64, &[u8]), Damaged> {
    let mut reader = Reader(bytes);
    format(&mut reader)?;
    Ok((reader.uint()?, reader.0))
}

/// How a replica is set up.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// After how long without a change of the head another replica takes over from this one, in milliseconds.
    pub takeover: u64,
    /// How many entries the store keeps: each overwrites the one that is so many positions before it.
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
    /// The operation succeeded, and this replica leads. If it followed until now, it leads from now on.
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
        let mut replica = Self { config, position, head: None, revision: 0, role, flight: None };
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

    /// Whether a head that a leader has read shows that it led until then, also while a write of its own is under way.
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
        (self.head, self.revision) = (head, revision);
        Ok(())
    }

    /// What to do with an entry of that position. It counts as applied if it is to be.
    pub fn entry(&mut self, position: u64) -> Next {
        if position <= self.position {
            return Next::Skip;
        }
        if position > self.position + 1 && holds(Rule::ApplyEveryEntry) {
            return Next::Missing;
        }
        self.position = position;
        Next::Apply
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
        Some(self.write(Kind::TakeOver, head, None, None))
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
        let entry = (position % self.config.ring, encode_entry(position, batch));
        Some(self.write(Kind::Write, Head { position, ..head }, Some(entry), None))
    }

    /// Shows that the leader is alive.
    pub fn beat(&mut self) -> Option<Operation> {
        let head = self.next_head()?;
        Some(self.write(Kind::Write, head, None, None))
    }

    /// Makes a snapshot the one that the log begins with, whose position is committed.
    pub fn point(&mut self, snapshot: u64, pointer: Vec<u8>) -> Option<Operation> {
        let head = self.next_head()?;
        Some(self.write(Kind::Write, Head { snapshot, ..head }, None, Some(pointer)))
    }

    /// Leaves the head to anybody. The leader says nothing from now on, whatever becomes of it.
    pub fn hand_over(&mut self) -> Option<Operation> {
        let head = self.next_head()?;
        Some(self.write(Kind::HandOver, Head { vacant: true, ..head }, None, None))
    }

    /// Has the store confirm that this replica leads.
    pub fn confirm(&mut self) -> Option<Operation> {
        self.next_head()?;
        self.flight = Some(Flight { kind: Kind::Read, head: None });
        Some(Operation::Read)
    }

    /// The head that a leader writes next, if nothing is under way.
    fn next_head(&self) -> Option<Head> {
        let head = self.head.as_ref().filter(|_| self.is_leader() && self.flight.is_none())?;
        Some(Head { sequence: head.sequence + 1, ..head.clone() })
    }

    fn write(
        &mut self,
        kind: Kind,
        head: Head,
        entry: Option<(u64, Vec<u8>)>,
        snapshot: Option<Vec<u8>>,
    ) -> Operation {
        self.flight = Some(Flight { kind, head: Some(head.clone()) });
        Operation::Write { guard: self.revision, head, entry, snapshot }
    }

    /// The operation under way is answered.
    ///
    /// # Errors
    ///
    /// [`WentBack`] if a follower was shown a head that it must not follow.
    pub fn answered(&mut self, reply: Reply, now: Micros) -> Result<Verdict, WentBack> {
        let Some(Flight { kind, head: wanted }) = self.flight.take() else { return Ok(Verdict::Deposed) };
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
        self.position = wanted.as_ref().map_or(self.position, |head| head.position);
        (self.head, self.revision) = (wanted, revision);
        self.role = Role::Leader;
        Ok(Verdict::Done)
    }
}

/// Whether two heads are of the same write.
fn is_same(one: &Head, other: &Head) -> bool {
    (one.owner, one.sequence) == (other.owner, other.sequence)
}
