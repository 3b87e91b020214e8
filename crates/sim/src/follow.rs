//! A daemon that follows: it reads the shared log, watches it, and takes over. The replica is the
//! real one; the code around it mirrors `crates/server/src/fleet/follow.rs`.

use crate::{
    calls::Watch,
    daemon::Daemon,
    rules::DriverRule,
    simulation::{Happening, Simulation, note},
    store::{Answer, Call, Change, Pointer},
};
use lockkeeper_service::{
    State,
    replica::{
        Astray, Head, Next, Operation, Replica, ReplicaConfig, Reply, Revision, Verdict, decode_entry,
    },
};

/// A daemon that applies what the leader writes.
pub(crate) struct Follower {
    /// Its state and its replica, once it has read a snapshot.
    following: Option<(State, Replica)>,
    stage: FollowStage,
    /// The call that it waits for.
    call: u64,
    pub(crate) watch: Option<Watch>,
    /// The entry that it has found to be gone, and how often in a row.
    gone: Option<(u64, u32)>,
    /// The leader that its clients are relayed to, and the number of that leadership.
    pub(crate) leader: Option<(usize, u64)>,
}

enum FollowStage {
    /// It asks for the newest snapshot. The head was read before it: only without a rule.
    Pointer(Option<Seen>),
    Chunks(Pointer, Option<Seen>),
    /// It asks for the head, with the state of a snapshot unless it has followed before.
    Head(Option<State>),
    /// It asks for entries. It will watch from that revision on.
    Entries(Revision),
    Opening,
    Watching,
    TakingOver(Operation),
    /// The store has no room for that: it asks whether another one leads.
    Stuck(Operation),
    /// It waits before it begins anew.
    Pausing,
}

/// The head as it was read, and the revision of the store.
type Seen = (Option<(Head, Revision)>, Revision);

/// Entries that are read at a time.
const PAGE: u64 = 3;

/// How often in a row the log may be found without the same entry: a running leader deletes entries
/// while they are read, but then the next snapshot has them.
const ATTEMPTS: u32 = 10;

impl Simulation {
    pub(crate) fn replica_config(&self, index: usize) -> ReplicaConfig {
        let takeover = self.plan.takeover_after / 1000;
        ReplicaConfig { takeover, ring: self.plan.ring, url: index.to_string() }
    }

    /// A daemon begins to follow.
    pub(crate) fn follow(&mut self, index: usize) {
        note!(self, "daemon {index} follows");
        let stage = FollowStage::Pausing;
        let follower = Follower { following: None, stage, call: 0, watch: None, gone: None, leader: None };
        self.daemons[index].follower = Some(follower);
        self.begin_to_read(index);
    }

    /// Reads what is missing.
    fn begin_to_read(&mut self, index: usize) {
        let Some(follower) = &mut self.daemons[index].follower else { return };
        follower.watch = None;
        let (stage, call) = match follower.following.is_some() || !self.plan.keeps(DriverRule::SnapshotFirst)
        {
            true => (FollowStage::Head(None), Call::Head),
            false => (FollowStage::Pointer(None), Call::Pointer),
        };
        self.ask(index, stage, call);
    }

    fn ask(&mut self, index: usize, stage: FollowStage, call: Call) {
        let call = self.call(index, call);
        if let Some(follower) = &mut self.daemons[index].follower {
            (follower.stage, follower.call) = (stage, call);
        }
    }

    /// An entry is gone: the newest snapshot, which has it, has to be read.
    fn read_again(&mut self, index: usize, position: u64) {
        note!(self, "daemon {index} lacks entry {position}, and reads the newest snapshot again");
        self.stats.reads += 1;
        let Some(follower) = &mut self.daemons[index].follower else { return };
        follower.following = None;
        let (before, times) = follower.gone.unwrap_or((position, 0));
        let times = if before == position { times + 1 } else { 1 };
        follower.gone = Some((position, times));
        if times > ATTEMPTS {
            return self.fail(format!("the log lacks entry {position}, and there is no snapshot of it"));
        }
        self.begin_to_read(index);
    }

    /// The store does not answer, or the watch has ended.
    fn pause(&mut self, index: usize) {
        let pause = self.choose_pause();
        let Some(follower) = &mut self.daemons[index].follower else { return };
        follower.stage = FollowStage::Pausing;
        follower.watch = None;
        let call = follower.call;
        self.time_out_after(index, call, pause);
    }

    pub(crate) fn follower_timeout(&mut self, index: usize, call: u64) {
        let Some(follower) = &self.daemons[index].follower else { return };
        if follower.call != call {
            return;
        }
        match &follower.stage {
            FollowStage::Pausing => self.begin_to_read(index),
            FollowStage::Watching => {}
            FollowStage::TakingOver(operation) | FollowStage::Stuck(operation) => {
                let operation = operation.clone();
                let call = Call::Operation(operation.clone());
                self.ask(index, FollowStage::TakingOver(operation), call);
            }
            _ => self.pause(index),
        }
    }

    pub(crate) fn answer_follower(&mut self, index: usize, call: u64, answer: Answer) {
        let Some(follower) = &mut self.daemons[index].follower else { return };
        if follower.call != call {
            return;
        }
        match (std::mem::replace(&mut follower.stage, FollowStage::Pausing), answer) {
            (FollowStage::Pointer(seen), Answer::Pointer(None)) => {
                let state = State::new(self.random.next());
                self.loaded(index, state, seen);
            }
            (FollowStage::Pointer(seen), Answer::Pointer(Some(pointer))) => {
                self.ask(index, FollowStage::Chunks(pointer, seen), Call::Chunks(pointer.id));
            }
            (FollowStage::Chunks(pointer, seen), Answer::Values(chunks)) => {
                // A newer one has taken its place meanwhile.
                if chunks.len() as u64 != pointer.chunks {
                    return self.read_again(index, pointer.id.0);
                }
                match State::restore(chunks, self.random.next()) {
                    Ok(state) => self.loaded(index, state, seen),
                    Err(damaged) => self.fail(format!("a snapshot cannot be read: {damaged}")),
                }
            }
            (FollowStage::Head(None), Answer::Head(seen, revision)) if follower.following.is_none() => {
                self.ask(index, FollowStage::Pointer(Some((seen, revision))), Call::Pointer);
            }
            (FollowStage::Head(state), Answer::Head(seen, revision)) => {
                self.on_head(index, state, seen, revision)
            }
            (FollowStage::Entries(revision), Answer::Values(entries)) => {
                self.on_entries(index, &entries, revision);
            }
            (FollowStage::Opening, Answer::Watching(next)) => {
                let watch = self.open_watch(index, next);
                let Some(follower) = &mut self.daemons[index].follower else { return };
                (follower.stage, follower.watch) = (FollowStage::Watching, Some(watch));
                follower.gone = None;
                self.notify_relays(index);
                self.arm_takeover(index);
            }
            (FollowStage::TakingOver(operation), Answer::Full) => {
                self.ask(index, FollowStage::Stuck(operation), Call::Head);
            }
            (FollowStage::Stuck(operation), Answer::Head(seen, _)) => {
                let guarded = matches!(&operation, Operation::Write { guard, .. } if *guard == seen);
                match guarded {
                    true => {
                        follower.stage = FollowStage::Stuck(operation);
                        let pause = self.choose_pause();
                        self.time_out_after(index, call, pause);
                    }
                    false => self.on_taken_over(index, Reply::Seen(seen)),
                }
            }
            (FollowStage::TakingOver(_), Answer::Reply(reply)) => self.on_taken_over(index, reply),
            (_, Answer::Compacted) => self.pause(index),
            (stage, _) => follower.stage = stage,
        }
    }

    /// The newest snapshot is read.
    fn loaded(&mut self, index: usize, state: State, seen: Option<Seen>) {
        match seen {
            Some((head, revision)) => self.on_head(index, Some(state), head, revision),
            None => self.ask(index, FollowStage::Head(Some(state)), Call::Head),
        }
    }

    fn on_head(
        &mut self,
        index: usize,
        state: Option<State>,
        seen: Option<(Head, Revision)>,
        revision: Revision,
    ) {
        let (now, config) = (self.daemons[index].clock.read(self.now), self.replica_config(index));
        if !self.remember(index, seen.as_ref()) {
            return;
        }
        let Some(follower) = &mut self.daemons[index].follower else { return };
        let followed = match (&mut follower.following, state) {
            (Some((_, replica)), _) => replica.saw(seen, now),
            (following, Some(state)) => {
                let replica = Replica::follow(config, state.position(), seen, now);
                replica.map(|replica| *following = Some((state, replica)))
            }
            (None, None) => return,
        };
        match followed {
            Ok(()) => self.catch_up(index, revision),
            Err(astray) => self.went_astray(index, astray),
        }
    }

    /// A head was seen. False if it must not be followed.
    pub(crate) fn remember(&mut self, index: usize, seen: Option<&(Head, Revision)>) -> bool {
        let daemon = &mut self.daemons[index];
        if let Err(astray) = daemon.memory.saw(seen) {
            self.went_astray(index, astray);
            return false;
        }
        if self.plan.faults.restore > 0 && self.random.chance(300) {
            daemon.remembered = daemon.memory.known();
        }
        true
    }

    fn went_astray(&mut self, index: usize, astray: Astray) {
        match astray {
            Astray::WentBack { known, found } => {
                self.fail(format!(
                    "daemon {index} had {known} entries, and finds {found}: the log went back"
                ));
            }
            Astray::Recovered => {
                note!(self, "daemon {index} reads the store again, which was recovered");
                if let Some(follower) = &mut self.daemons[index].follower {
                    follower.following = None;
                }
                self.begin_to_read(index);
            }
        }
    }

    /// Reads the entries that are missing, then watches.
    fn catch_up(&mut self, index: usize, revision: Revision) {
        let ring = self.plan.ring;
        let Some((_, replica)) = self.following(index) else { return };
        if replica.lag() == 0 {
            return self.ask(index, FollowStage::Opening, Call::Watch(revision + 1));
        }
        let slot = (replica.position() + 1) % ring;
        let last = (slot + PAGE.min(replica.lag()) - 1).min(ring - 1);
        self.ask(index, FollowStage::Entries(revision), Call::Entries(slot, last));
    }

    fn following(&mut self, index: usize) -> Option<&mut (State, Replica)> {
        self.daemons[index].follower.as_mut()?.following.as_mut()
    }

    fn on_entries(&mut self, index: usize, entries: &[Vec<u8>], revision: Revision) {
        let Some(next) = self.following(index).map(|(_, replica)| replica.position() + 1) else { return };
        for entry in entries {
            if let Err(gone) = self.apply_entry(index, entry) {
                return self.read_again(index, gone);
            }
        }
        match self.following(index).is_some_and(|(_, replica)| replica.position() < next) {
            true => self.read_again(index, next),
            false => self.catch_up(index, revision),
        }
    }

    /// Fails if others before it are missing: with the first of them.
    fn apply_entry(&mut self, index: usize, bytes: &[u8]) -> Result<(), u64> {
        let Some((state, replica)) = self.following(index) else { return Ok(()) };
        let applied = match decode_entry(bytes) {
            Ok((position, batch)) => match replica.entry(position, bytes.len()) {
                Next::Skip => return Ok(()),
                Next::Missing => return Err(replica.position() + 1),
                Next::Apply => state.apply_batch(batch, &mut Vec::new()),
            },
            Err(damaged) => Err(damaged),
        };
        match applied {
            Ok(true) => {}
            Ok(false) => self.fail("an entry has an unknown level"),
            Err(damaged) => self.fail(format!("daemon {index} cannot follow: {damaged}")),
        }
        Ok(())
    }

    /// Reads what was watched, unless it is stalled or waits for something else.
    pub(crate) fn read_watch(&mut self, index: usize) {
        loop {
            let daemon = &mut self.daemons[index];
            let Some(follower) = daemon.follower.as_mut().filter(|_| !daemon.stalled) else { return };
            if !matches!(follower.stage, FollowStage::Watching) || self.violation.is_some() {
                return;
            }
            let Some(watch) = &mut follower.watch else { return };
            if watch.next >= watch.arrived {
                if watch.ended {
                    self.pause(index);
                }
                return;
            }
            let change = self.store.changes[watch.next].clone();
            watch.next += 1;
            self.on_change(index, change);
        }
    }

    fn on_change(&mut self, index: usize, change: Change) {
        let Change { revision, head, entry } = change;
        if let Some(Err(gone)) = entry.map(|entry| self.apply_entry(index, &entry)) {
            return self.read_again(index, gone);
        }
        let now = self.daemons[index].clock.read(self.now);
        let Some((_, replica)) = self.following(index) else { return };
        if let Err(astray) = replica.watched(head, revision, now) {
            return self.went_astray(index, astray);
        }
        let seen = replica.seen();
        if !self.remember(index, seen.as_ref()) {
            return;
        }
        self.notify_relays(index);
        self.arm_takeover(index);
    }

    /// Says to the relays who leads.
    fn notify_relays(&mut self, index: usize) {
        let Some((_, replica)) = self.following(index) else { return };
        let leader = replica.head().filter(|head| !head.vacant);
        let leader = leader.and_then(|head| Some((head.url.parse().ok()?, head.owner)));
        let Some(follower) = &mut self.daemons[index].follower else { return };
        if std::mem::replace(&mut follower.leader, leader) != leader {
            self.end_relays(index, leader);
        }
    }

    /// It was stalled: it reads what was watched meanwhile, and looks at the clock.
    pub(crate) fn go_on_following(&mut self, index: usize) {
        self.read_watch(index);
        self.arm_takeover(index);
    }

    fn arm_takeover(&mut self, index: usize) {
        let life = self.daemons[index].life;
        let Some((_, replica)) = self.following(index) else { return };
        let at = replica.takes_over_at();
        let at = self.daemons[index].clock.when(at).max(self.now);
        self.at(at, Happening::TakeOver { daemon: index, life });
    }

    /// Takes over if it is time.
    pub(crate) fn take_over(&mut self, index: usize, life: u64) {
        if !self.is_alive(index, life) || self.daemons[index].stalled {
            return;
        }
        let (now, owner) = (self.daemons[index].clock.read(self.now), self.random.next());
        let (wall, longest) = (self.wall(), self.plan.longest_lease() / 1000);
        let Daemon { follower, memory, .. } = &mut self.daemons[index];
        let Some(follower) = follower else { return };
        let (FollowStage::Watching, Some((state, replica))) = (&follower.stage, &mut follower.following)
        else {
            return;
        };
        if now < replica.takes_over_at() {
            return;
        }
        let recovery = memory.recovery(replica, state.last_token(), wall, longest);
        match replica.take_over(now, owner, recovery) {
            Some(operation) => {
                let call = Call::Operation(operation.clone());
                self.ask(index, FollowStage::TakingOver(operation), call);
            }
            None => self.pause(index),
        }
    }

    fn on_taken_over(&mut self, index: usize, reply: Reply) {
        let now = self.daemons[index].clock.read(self.now);
        let Some((_, replica)) = self.following(index) else { return };
        let verdict = replica.answered(reply, now);
        let (lags, seen) = (replica.lag() > 0, replica.seen());
        if verdict.is_ok() && !self.remember(index, seen.as_ref()) {
            return;
        }
        match verdict {
            Ok(Verdict::Done) => {
                let following = self.daemons[index].follower.take().and_then(|follower| follower.following);
                if let Some((state, replica)) = following {
                    self.lead(index, state, replica);
                    self.serve_relayed(index);
                }
            }
            Ok(_) => {
                self.notify_relays(index);
                if lags && self.plan.keeps(DriverRule::CatchUpWhenRefused) {
                    return self.pause(index);
                }
                if let Some(follower) = &mut self.daemons[index].follower {
                    follower.stage = FollowStage::Watching;
                }
                self.arm_takeover(index);
                self.read_watch(index);
            }
            Err(astray) => self.went_astray(index, astray),
        }
    }
}
