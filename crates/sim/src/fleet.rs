//! Daemons that share a log: one leads, the others follow and take over.

use crate::{
    daemon::{FEW_SESSIONS, TakenSnapshot},
    rules::DriverRule,
    store::{Reply, Request},
    world::{Happening, World, note},
};
use lockkeeper_service::{Damaged, Micros, Server, State};

/// A daemon that applies what the leader writes.
pub(crate) struct Follower {
    state: State,
    /// Entries that were applied.
    applied: usize,
    /// The revision of the leader's key that was seen last, and when, by its own clock.
    revision: u64,
    since: Micros,
    /// The takeover that it waits for.
    takeover: Option<u64>,
}

/// A daemon that leads.
pub(crate) struct Lead {
    /// The revision of the leader's key, as this daemon has written it.
    guard: u64,
    /// How many entries there are, as far as this daemon knows.
    entries: usize,
    /// The one operation that it waits for.
    inflight: Option<Inflight>,
    /// Says nothing, because it has handed over, or does not know.
    silent: bool,
    wants_hand_over: bool,
    /// A snapshot that is to be made valid.
    snapshot: Option<(usize, Vec<u8>)>,
    /// Entries when the snapshot that is being taken began.
    snapshot_at: usize,
}

struct Inflight {
    operation: u64,
    kind: Kind,
    /// The round that is done with it.
    round: Option<u64>,
    /// The read that tells what became of it.
    settles: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Append,
    Beat,
    Read,
    Snapshot,
    HandOver,
}

impl World {
    /// The state after so many entries.
    pub(crate) fn load_entries(&self, count: usize, hash_seed: u64) -> Result<State, Damaged> {
        let (mut state, from) = match &self.store.snapshot {
            Some((at, bytes)) if *at <= count => (State::restore([bytes], hash_seed)?, *at),
            _ => (State::new(hash_seed), 0),
        };
        let mut effects = Vec::new();
        for entry in self.store.entries[from..count].iter().filter(|entry| !entry.batch.is_empty()) {
            state.apply_batch(&entry.batch, &mut effects)?;
        }
        Ok(state)
    }

    /// A daemon begins to follow.
    pub(crate) fn follow(&mut self, index: usize) {
        let applied = self.store.entries.len();
        let hash_seed = self.random.next();
        let state = match self.load_entries(applied, hash_seed) {
            Ok(state) => state,
            Err(damaged) => return self.fail(format!("the log cannot be read: {damaged}")),
        };
        note!(self, "daemon {index} follows");
        let since = self.daemons[index].clock.read(self.now);
        let follower = Follower { state, applied, revision: self.store.revision, since, takeover: None };
        self.daemons[index].follower = Some(follower);
        self.poll_later(index);
    }

    fn poll_later(&mut self, index: usize) {
        let pause = self.random.between(1, self.plan.takeover_after / 4 + 1);
        let life = self.daemons[index].life;
        self.after(pause, Happening::Poll { daemon: index, life });
    }

    /// A follower looks at the log; a leader shows that it is alive.
    pub(crate) fn poll(&mut self, index: usize, life: u64) {
        let daemon = &self.daemons[index];
        if daemon.life != life || !daemon.running {
            return;
        }
        self.poll_later(index);
        let daemon = &self.daemons[index];
        if daemon.stalled || self.now < daemon.partitioned_until {
            return;
        }
        if daemon.lead.is_some() {
            return self.propose_beat(index);
        }
        let skips = !self.plan.keeps(DriverRule::ApplyEveryEntry) && self.random.chance(100);
        // What it watches lags behind the key.
        let entries = self.store.entries.len();
        let lag = if self.calm || self.random.chance(700) { 0 } else { self.random.index(4) };
        self.apply_entries(index, entries.saturating_sub(lag), skips);
        let now = self.daemons[index].clock.read(self.now);
        let (revision, owner) = (self.store.revision, self.store.owner);
        let Some(follower) = &mut self.daemons[index].follower else { return };
        if follower.takeover.is_some() && owner == Some((index, life)) {
            // The reply is late or lost.
            return self.lead(index, revision);
        }
        if follower.revision != revision {
            (follower.revision, follower.since) = (revision, now);
            follower.takeover = None;
        }
        let overdue = now - follower.since >= self.plan.takeover_after;
        if (overdue || owner.is_none()) && follower.takeover.is_none() {
            let request = Request::TakeOver { guard: follower.revision, at: entries };
            let operation = self.send_to_log(index, request);
            if let Some(follower) = &mut self.daemons[index].follower {
                follower.takeover = Some(operation);
            }
        }
    }

    fn apply_entries(&mut self, index: usize, count: usize, skips: bool) {
        let Some(follower) = &mut self.daemons[index].follower else { return };
        let mut effects = Vec::new();
        let from = follower.applied.min(count);
        for (at, entry) in self.store.entries[from..count].iter().enumerate() {
            let skipped = entry.batch.is_empty() || (skips && at == 0);
            if !skipped && let Err(damaged) = follower.state.apply_batch(&entry.batch, &mut effects) {
                return self.fail(format!("daemon {index} cannot follow: {damaged}"));
            }
        }
        follower.applied = follower.applied.max(count);
    }

    /// The takeover succeeded: serves, once everything before it is applied.
    fn lead(&mut self, index: usize, revision: u64) {
        let me = (index, self.daemons[index].life);
        let takeover = self.daemons[index].follower.as_ref().and_then(|follower| follower.takeover);
        let at = self.store.entries.iter().rposition(|entry| Some(entry.operation) == takeover);
        let Some(at) = at.filter(|_| self.store.owner == Some(me)) else {
            // Another one has taken over since.
            if let Some(follower) = &mut self.daemons[index].follower {
                follower.takeover = None;
            }
            return;
        };
        if self.plan.keeps(DriverRule::ServeAfterApplying) {
            self.apply_entries(index, at + 1, false);
        }
        let config = self.choose_config();
        self.daemons[index].few_sessions = config.sessions == FEW_SESSIONS;
        let Some(Follower { mut state, .. }) = self.daemons[index].follower.take() else { return };
        if self.store.entries.len() == at + 1 {
            self.check_replica(&mut state);
        }
        let now = self.daemons[index].clock.read(self.now);
        note!(self, "daemon {index} leads: ttl {:?}, {state:?}", config.ttl);
        self.stats.takeovers += 1;
        let server = Server::new(state, config, now, self.wall(), None);
        let daemon = &mut self.daemons[index];
        daemon.server = Some(server);
        daemon.lead = Some(Lead {
            guard: revision,
            entries: at + 1,
            inflight: None,
            silent: false,
            wants_hand_over: false,
            snapshot: None,
            snapshot_at: 0,
        });
        self.turn_soon(index);
    }

    /// The daemon no longer leads: it drops its state and its connections, and follows.
    fn depose(&mut self, index: usize) {
        note!(self, "daemon {index} no longer leads");
        self.drop_server(index);
        self.follow(index);
    }

    /// Writes the next round to the log, or has the log confirm that this daemon leads.
    pub(crate) fn propose(&mut self, index: usize) {
        let daemon = &mut self.daemons[index];
        let (Some(server), Some(lead)) = (&mut daemon.server, &mut daemon.lead) else { return };
        let guard = lead.guard;
        if lead.silent && !self.plan.keeps(DriverRule::SilentHandOver) {
            // Sabotage: it goes on answering.
            while let Some(round) = server.take_round() {
                server.round_done(round.number);
            }
            return self.speak(index, usize::MAX);
        }
        if lead.inflight.is_some() || lead.silent {
            return;
        }
        if std::mem::take(&mut lead.wants_hand_over) {
            lead.silent = true;
            return self.propose_operation(index, Kind::HandOver, None, Request::HandOver { guard });
        }
        let at = lead.entries;
        if let Some(round) = server.take_round() {
            let number = Some(round.number);
            if !round.batch.is_empty() {
                if !self.plan.keeps(DriverRule::AnswerAfterAppend) {
                    server.round_done(round.number);
                    self.speak(index, usize::MAX);
                }
                let request = Request::Append { guard, batch: round.batch };
                return self.propose_operation(index, Kind::Append, number, request);
            }
            if !self.plan.keeps(DriverRule::ConfirmEmptyRounds) {
                server.round_done(round.number);
                return self.speak(index, usize::MAX);
            }
            return match self.random.chance(700) {
                true => self.propose_operation(index, Kind::Read, number, Request::Read { at, operation: 0 }),
                false => self.propose_operation(index, Kind::Beat, number, Request::Beat { guard }),
            };
        }
        if let Some((at, bytes)) = lead.snapshot.take() {
            self.propose_operation(index, Kind::Snapshot, None, Request::Snapshot { guard, at, bytes });
        }
    }

    fn propose_operation(&mut self, index: usize, kind: Kind, round: Option<u64>, request: Request) {
        let operation = self.send_to_log(index, request);
        if let Some(lead) = &mut self.daemons[index].lead {
            lead.inflight = Some(Inflight { operation, kind, round, settles: None });
        }
    }

    fn propose_beat(&mut self, index: usize) {
        self.propose(index);
        let Some(lead) = &self.daemons[index].lead else { return };
        if lead.inflight.is_none() && !lead.silent {
            let guard = lead.guard;
            self.propose_operation(index, Kind::Beat, None, Request::Beat { guard });
        }
    }

    /// The leader is asked to hand over.
    pub(crate) fn hand_over(&mut self, index: usize) {
        if let Some(lead) = &mut self.daemons[index].lead {
            lead.wants_hand_over = true;
            note!(self, "daemon {index} is to hand over");
            self.turn_soon(index);
        }
    }

    /// A reply has not come: the operation is sent once more, under the same guard.
    pub(crate) fn log_timeout(&mut self, index: usize, life: u64, operation: u64) {
        if self.daemons[index].life != life || !self.daemons[index].running {
            return;
        }
        if let Some(follower) = &mut self.daemons[index].follower {
            if follower.takeover == Some(operation) {
                self.resend_to_log(index, operation);
            }
            return;
        }
        let retracts = self.random.chance(300);
        let Some(lead) = &mut self.daemons[index].lead else { return };
        let guard = lead.guard;
        let Some(inflight) = &mut lead.inflight else { return };
        if inflight.settles == Some(operation) {
            return self.resend_to_log(index, operation);
        }
        if inflight.operation != operation || inflight.settles.is_some() {
            return;
        }
        if inflight.kind == Kind::HandOver && retracts {
            // A later write with the same guard: if it succeeds, the hand-over never does.
            return self.propose_operation(index, Kind::Beat, None, Request::Beat { guard });
        }
        if !self.plan.keeps(DriverRule::SettleByReading) && inflight.kind == Kind::Append {
            return self.operation_done(index, guard + 1);
        }
        self.resend_to_log(index, operation);
    }

    pub(crate) fn on_log_reply(&mut self, index: usize, id: u64, reply: Reply) {
        if let Some(follower) = &mut self.daemons[index].follower {
            if follower.takeover == Some(id) {
                match reply {
                    Reply::Done(revision) => self.lead(index, revision),
                    // It looks again what the key is, and whether it is its own by now.
                    _ => {
                        follower.takeover =
                            follower.takeover.filter(|_| self.store.owner.is_some_and(|o| o.0 == index))
                    }
                }
            }
            return;
        }
        let me = Some((index, self.daemons[index].life));
        let Some(lead) = &mut self.daemons[index].lead else { return };
        let Some(inflight) = &mut lead.inflight else { return };
        let (kind, guard) = (inflight.kind, lead.guard);
        if inflight.settles == Some(id) {
            let Reply::Seen { owner, revision, written, taken } = reply else { return };
            inflight.settles = None;
            let operation = inflight.operation;
            return match kind {
                _ if owner != me => self.depose(index),
                // Nothing has happened: once more.
                _ if revision == guard && !written => self.resend_to_log(index, operation),
                Kind::Append if taken && !written => self.depose(index),
                _ => self.operation_done(index, revision),
            };
        }
        if inflight.operation != id {
            return;
        }
        match reply {
            Reply::Done(_) if kind == Kind::HandOver => self.depose(index),
            Reply::Done(revision) => self.operation_done(index, revision),
            Reply::Seen { owner, revision, .. } if owner == me && revision == guard => {
                self.operation_done(index, revision);
            }
            Reply::Seen { .. } => self.depose(index),
            // It may have been done the first time, or another one leads.
            Reply::Refused => {
                let (at, operation) = (lead.entries, inflight.operation);
                let settles = self.send_to_log(index, Request::Read { at, operation });
                if let Some(inflight) =
                    self.daemons[index].lead.as_mut().and_then(|lead| lead.inflight.as_mut())
                {
                    inflight.settles = Some(settles);
                }
            }
        }
    }

    /// An operation has succeeded, and the key has that revision.
    fn operation_done(&mut self, index: usize, revision: u64) {
        let daemon = &mut self.daemons[index];
        let (Some(server), Some(lead)) = (&mut daemon.server, &mut daemon.lead) else { return };
        let Some(inflight) = lead.inflight.take() else { return };
        lead.guard = revision;
        lead.silent = false;
        if inflight.kind == Kind::Append {
            lead.entries += 1;
        }
        if let Some(round) = inflight.round {
            server.round_done(round);
            daemon.rounds += 1;
        }
        self.speak(index, usize::MAX);
        self.snapshot_of_lead(index);
        self.compare_with_replica(index);
        self.turn_soon(index);
    }

    /// Takes a snapshot in slices. It begins when nothing is ahead of the log.
    fn snapshot_of_lead(&mut self, index: usize) {
        let bytes = usize::try_from(self.random.below(200)).unwrap_or(0);
        let every = self.plan.snapshot_every;
        let daemon = &mut self.daemons[index];
        let (Some(server), Some(lead)) = (&mut daemon.server, &mut daemon.lead) else { return };
        match &mut daemon.snapshot {
            Some(snapshot) => {
                if server.state_mut().snapshot_slice(bytes, &mut snapshot.bytes)
                    && let Some(snapshot) = daemon.snapshot.take()
                {
                    lead.snapshot = Some((lead.snapshot_at, snapshot.bytes));
                }
            }
            None if every > 0
                && daemon.rounds.is_multiple_of(every)
                && lead.snapshot.is_none()
                && server.state().position() == self.history.replica.position() =>
            {
                server.state_mut().begin_snapshot();
                lead.snapshot_at = lead.entries;
                daemon.snapshot = Some(TakenSnapshot::default());
            }
            None => {}
        }
    }
}
