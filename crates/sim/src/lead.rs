//! A daemon that leads: it commits rounds to the shared log, one at a time. The replica is the real
//! one; the code around it mirrors `crates/server/src/fleet/lead.rs`.

use crate::{
    daemon::FEW_SESSIONS,
    rules::DriverRule,
    simulation::{Happening, Simulation, note},
    store::{Answer, Call, Pointer, SnapshotId},
};
use lockkeeper_service::{
    Server, State,
    replica::{Head, Operation, Replica, Reply, Verdict},
};

pub(crate) struct Lead {
    replica: Replica,
    /// The number of this leadership.
    pub(crate) owner: u64,
    /// The one operation that it waits for.
    flight: Option<Flight>,
    snapshot: Option<Taking>,
    /// It is to hand over.
    stops: bool,
}

struct Flight {
    /// The newest call that was made for it.
    call: u64,
    operation: Operation,
    /// The round that is done with it.
    round: Option<u64>,
    hands_over: bool,
    waits: Waits,
}

/// What the leader waits for.
#[derive(Clone, Copy)]
enum Waits {
    Answer,
    /// The store has no room. Soon it is asked whether this daemon leads; messages up to that
    /// number need nothing else.
    Full(u64),
    /// It was asked that.
    Leadership(u64),
}

/// A snapshot that is being written.
struct Taking {
    id: SnapshotId,
    /// How many chunks are made.
    chunks: u64,
    whole: bool,
    /// The chunk that is being written, and the newest call for it.
    written: Option<(u64, Vec<u8>)>,
}

impl Simulation {
    /// The takeover succeeded.
    pub(crate) fn lead(&mut self, index: usize, mut state: State, replica: Replica) {
        let config = self.choose_config();
        self.daemons[index].few_sessions = config.sessions == FEW_SESSIONS;
        let (owner, begins) = replica.head().map_or((0, 0), |head| (head.owner, head.snapshot));
        if self.store.owner() == Some(owner) {
            self.check_replica(&mut state);
            let (bytes, found) = (replica.tail_bytes(), self.store.ring_bytes());
            if bytes != found {
                self.fail(format!("daemon {index} counts {bytes} bytes of entries, and there are {found}"));
            }
        }
        note!(self, "daemon {index} leads: ttl {:?}, {state:?}", config.ttl);
        self.stats.takeovers += 1;
        // The leader before may have left a full ring.
        let long = state.position() >= begins + self.plan.ring / 2
            || self.plan.snapshot_bytes.is_some_and(|enough| replica.tail_bytes() >= enough);
        let snapshot = (long && self.plan.keeps(DriverRule::SnapshotWhenLeading))
            .then(|| Taking::begin(&mut state, owner));
        let now = self.daemons[index].clock.read(self.now);
        let blind = replica.head().map_or(0, |head| head.blind);
        let blind_until = (blind > 0).then(|| now + blind * 1000);
        let tokens = replica.head().map_or(0, Head::lost_tokens);
        let mut server = Server::new(state, config, now, self.wall(), blind_until);
        if blind > 0 {
            note!(self, "daemon {index} waits for leases of {blind} ms");
            self.stats.blind += 1;
            let batch = self.random.pick(&[0, 10, 1000]);
            let recovered = server.recover_from_crash(tokens, batch);
            self.unharmed(recovered);
        }
        let daemon = &mut self.daemons[index];
        daemon.server = Some(server);
        daemon.lead = Some(Lead { replica, owner, flight: None, snapshot, stops: false });
        self.write_chunks(index);
        self.beat_later(index);
        self.turn_soon(index);
    }

    /// The daemon no longer leads: it drops its state and its connections, and follows.
    fn depose(&mut self, index: usize) {
        note!(self, "daemon {index} no longer leads");
        self.drop_server(index);
        self.follow(index);
    }

    fn beat_later(&mut self, index: usize) {
        let pause = self.random.between(1, self.plan.takeover_after / 4 + 1);
        let life = self.daemons[index].life;
        self.after(pause, Happening::Beat { daemon: index, life });
    }

    /// The leader shows that it is alive.
    pub(crate) fn beat(&mut self, index: usize, life: u64) {
        if !self.is_alive(index, life) || self.daemons[index].lead.is_none() {
            return;
        }
        self.beat_later(index);
        if self.daemons[index].stalled {
            return;
        }
        self.propose(index);
        self.settle(index);
        let Some(lead) = &mut self.daemons[index].lead else { return };
        if let Some(operation) = lead.replica.beat() {
            self.start_operation(index, operation, None, false);
        }
    }

    /// Leases that the log does not know have expired.
    fn settle(&mut self, index: usize) {
        let daemon = &mut self.daemons[index];
        let now = daemon.clock.read(self.now);
        let (Some(server), Some(lead)) = (&daemon.server, &mut daemon.lead) else { return };
        if !server.is_blind(now) || !self.plan.keeps(DriverRule::SettleWhenExpired) {
            lead.replica.settle();
        }
    }

    /// Writes the next round to the log, or has the log confirm that this daemon leads.
    pub(crate) fn propose(&mut self, index: usize) {
        self.go_on_with_snapshot(index);
        self.settle(index);
        let daemon = &mut self.daemons[index];
        let (Some(server), Some(lead)) = (&mut daemon.server, &mut daemon.lead) else { return };
        if !self.plan.keeps(DriverRule::ConfirmEmptyRounds)
            && server.batch_len() == 0
            && lead.flight.as_ref().is_none_or(|flight| flight.round.is_none())
            && let Some(round) = server.take_round()
        {
            // Sabotage: its leadership is not confirmed.
            server.round_done(round.number);
            return self.speak(index, usize::MAX);
        }
        if let Some(flight) = &lead.flight {
            if flight.hands_over && !self.plan.keeps(DriverRule::SilentHandOver) {
                // Sabotage: it keeps answering.
                while let Some(round) = server.take_round() {
                    server.round_done(round.number);
                }
                self.speak(index, usize::MAX);
            }
            return;
        }
        // The ring is full: the snapshot goes first.
        if lead.replica.needs_snapshot() {
            return;
        }
        let Some(round) = server.take_round() else {
            if std::mem::take(&mut lead.stops)
                && let Some(operation) = lead.replica.hand_over()
            {
                self.start_operation(index, operation, None, true);
            }
            return;
        };
        let early = !round.batch.is_empty() && !self.plan.keeps(DriverRule::AnswerAfterAppend);
        if early {
            server.round_done(round.number);
        }
        let operation = match round.batch.is_empty() {
            // A write would do as well.
            true if self.random.chance(300) => lead.replica.beat(),
            true => lead.replica.confirm(),
            false => {
                let begins = lead.replica.head().map_or(0, |head| head.snapshot);
                let every = self.plan.snapshot_every;
                let bytes = lead.replica.tail_bytes() + round.batch.len() as u64;
                let long = lead.replica.position() >= begins + self.plan.ring / 2
                    || self.plan.snapshot_bytes.is_some_and(|enough| bytes >= enough)
                    || every > 0 && daemon.rounds.is_multiple_of(every);
                // The round that was just taken is in it; it is pointed at after that is committed.
                if lead.snapshot.is_none() && long {
                    lead.snapshot = Some(Taking::begin(server.state_mut(), lead.owner));
                }
                lead.replica.append(&round.batch)
            }
        };
        if let Some(operation) = operation {
            self.start_operation(index, operation, Some(round.number), false);
        }
        if early {
            self.speak(index, usize::MAX);
        }
        self.go_on_with_snapshot(index);
    }

    fn start_operation(&mut self, index: usize, operation: Operation, round: Option<u64>, hands_over: bool) {
        let call = self.call(index, Call::Operation(operation.clone()));
        if let Some(lead) = &mut self.daemons[index].lead {
            lead.flight = Some(Flight { call, operation, round, hands_over, waits: Waits::Answer });
        }
    }

    /// The leader stops: it closes its connections, commits that, and hands over.
    pub(crate) fn hand_over(&mut self, index: usize) {
        let others_run = self.daemons.iter().filter(|daemon| daemon.running).count() > 1;
        if self.plan.never_alone && !others_run {
            return;
        }
        let daemon = &mut self.daemons[index];
        let (Some(server), Some(lead)) = (&mut daemon.server, &mut daemon.lead) else { return };
        if daemon.stalled || lead.stops || lead.flight.as_ref().is_some_and(|flight| flight.hands_over) {
            return;
        }
        lead.stops = true;
        let life = daemon.life;
        if self.plan.keeps(DriverRule::SilentHandOver) {
            server.stop();
        }
        note!(self, "daemon {index} stops, and hands over");
        self.after(self.plan.takeover_after * 4, Happening::StopBy { daemon: index, life });
        self.turn(index);
    }

    /// It has handed over, or has tried to for long enough.
    pub(crate) fn stop_by(&mut self, index: usize, life: u64) {
        if self.is_alive(index, life) {
            self.kill(index, "handed over");
            let pause = if self.random.chance(300) { 0 } else { self.choose_outage() };
            self.after(pause, Happening::Start(index));
        }
    }

    pub(crate) fn leader_timeout(&mut self, index: usize, call: u64) {
        let Some(lead) = &mut self.daemons[index].lead else { return };
        if lead.snapshot.as_ref().and_then(|snapshot| snapshot.written.as_ref()).is_some_and(|w| w.0 == call)
        {
            return self.write_chunks(index);
        }
        let Some(flight) = lead.flight.as_mut().filter(|flight| flight.call == call) else { return };
        let (next, waits) = match flight.waits {
            Waits::Full(last) => (Call::Head, Waits::Leadership(last)),
            _ => (Call::Operation(flight.operation.clone()), Waits::Answer),
        };
        let appends = matches!(flight.operation, Operation::Write { entry: Some(_), .. });
        if !self.plan.keeps(DriverRule::RetryUntilAnswered)
            && let Operation::Write { guard, .. } = &flight.operation
            && appends
        {
            let guard = guard.as_ref().map_or(0, |(_, revision)| *revision);
            return self.on_reply(index, Reply::Done(guard + 1));
        }
        let call = self.call(index, next);
        if let Some(flight) = self.operation_of(index) {
            (flight.call, flight.waits) = (call, waits);
        }
    }

    fn operation_of(&mut self, index: usize) -> Option<&mut Flight> {
        self.daemons[index].lead.as_mut()?.flight.as_mut()
    }

    pub(crate) fn answer_leader(&mut self, index: usize, call: u64, answer: Answer) {
        let Some(lead) = &mut self.daemons[index].lead else { return };
        if let Some(snapshot) = &mut lead.snapshot
            && snapshot.written.as_ref().is_some_and(|(number, _)| *number == call)
        {
            return match answer {
                Answer::Done => {
                    snapshot.written = None;
                    self.write_chunks(index);
                    self.turn_soon(index);
                }
                _ => {
                    let pause = self.choose_pause();
                    self.time_out_after(index, call, pause);
                }
            };
        }
        let Some(flight) = lead.flight.as_mut().filter(|flight| flight.call == call) else { return };
        match (flight.waits, answer) {
            (Waits::Answer, Answer::Full) => self.on_full(index),
            (Waits::Answer, Answer::Reply(reply)) => self.on_reply(index, reply),
            (Waits::Leadership(last), Answer::Head(seen, _)) => {
                if !lead.replica.is_own(seen.as_ref().map(|(head, _)| head)) {
                    // Another one leads, or the operation was executed after all.
                    return self.on_reply(index, Reply::Seen(seen));
                }
                if let Some(server) = &mut self.daemons[index].server {
                    server.send_stateless(last);
                }
                self.speak(index, usize::MAX);
                self.leader_timeout(index, call);
            }
            _ => {}
        }
    }

    /// The store takes no writes. As long as it can be read, clients get the reason, and keep their
    /// leases.
    fn on_full(&mut self, index: usize) {
        let pause = self.choose_pause();
        let confirms = self.plan.keeps(DriverRule::ConfirmStateless);
        let daemon = &mut self.daemons[index];
        let (Some(server), Some(lead)) = (&mut daemon.server, &mut daemon.lead) else { return };
        let Some(flight) = &mut lead.flight else { return };
        server.set_stuck(Some("the store is full".into()));
        let last = server.stateless();
        flight.waits = if confirms { Waits::Full(last) } else { Waits::Answer };
        if !confirms {
            server.send_stateless(last);
        }
        let call = flight.call;
        self.stats.full += 1;
        self.speak(index, usize::MAX);
        self.time_out_after(index, call, pause);
    }

    /// The operation is answered.
    fn on_reply(&mut self, index: usize, reply: Reply) {
        let daemon = &mut self.daemons[index];
        let now = daemon.clock.read(self.now);
        let (Some(server), Some(lead)) = (&mut daemon.server, &mut daemon.lead) else { return };
        let Some(Flight { operation, round, .. }) = lead.flight.take() else { return };
        server.set_stuck(None);
        let verdict = lead.replica.answered(reply, now);
        let seen = lead.replica.seen();
        if verdict == Ok(Verdict::Done) {
            self.remember(index, seen.as_ref());
        }
        self.speak(index, usize::MAX);
        match verdict {
            Ok(Verdict::Done) => self.operation_done(index, &operation, round),
            Ok(Verdict::Deposed) => self.depose(index),
            Ok(Verdict::HandedOver) => {
                let life = self.daemons[index].life;
                self.stop_by(index, life);
            }
            Err(back) => self.fail(format!("daemon {index} leads, and the log went back: {back:?}")),
        }
    }

    fn operation_done(&mut self, index: usize, operation: &Operation, round: Option<u64>) {
        let daemon = &mut self.daemons[index];
        let (Some(server), Some(lead)) = (&mut daemon.server, &mut daemon.lead) else { return };
        if let Some(round) = round {
            server.round_done(round);
            daemon.rounds += 1;
        }
        if let Operation::Write { snapshot: Some(_), head, .. } = operation {
            let id = (head.snapshot, lead.owner);
            // The answer is not needed.
            let _ = match self.plan.keeps(DriverRule::DeleteEarlierChunks) {
                true => self.call(index, Call::DeleteEarlier(id)),
                false => self.call(index, Call::DeleteOthers(id)),
            };
        }
        self.speak(index, usize::MAX);
        self.compare_with_replica(index);
        self.turn_soon(index);
    }

    /// Makes and writes the next chunk of the snapshot, or once more the one that is not written.
    fn write_chunks(&mut self, index: usize) {
        let bytes = usize::try_from(self.random.below(200)).unwrap_or(0);
        let daemon = &mut self.daemons[index];
        let (Some(server), Some(lead)) = (&mut daemon.server, &mut daemon.lead) else { return };
        let Some(snapshot) = &mut lead.snapshot else { return };
        let chunk = match snapshot.written.take() {
            Some((_, chunk)) => chunk,
            None if snapshot.whole => return,
            None => {
                let mut chunk = Vec::new();
                snapshot.whole = server.state_mut().snapshot_slice(bytes, &mut chunk);
                snapshot.chunks += 1;
                chunk
            }
        };
        let call = Call::PutChunk(snapshot.id, snapshot.chunks - 1, chunk.clone());
        let call = self.call(index, call);
        let snapshot = self.daemons[index].lead.as_mut().and_then(|lead| lead.snapshot.as_mut());
        if let Some(snapshot) = snapshot {
            snapshot.written = Some((call, chunk));
        }
    }

    /// Points at the snapshot once it is whole and its position is committed.
    fn go_on_with_snapshot(&mut self, index: usize) {
        let Some(lead) = &mut self.daemons[index].lead else { return };
        let Some(snapshot) = &lead.snapshot else { return };
        let Taking { id, chunks, whole, ref written } = *snapshot;
        if chunks == 0 {
            self.write_chunks(index);
        } else if whole && written.is_none() && id.0 <= lead.replica.position() && lead.flight.is_none() {
            lead.snapshot = None;
            if let Some(operation) = lead.replica.point(id.0, Pointer { id, chunks }.encode()) {
                self.start_operation(index, operation, None, false);
            }
        }
    }
}

impl Taking {
    /// Begins a snapshot of the state as it is, whose position may not be committed yet.
    fn begin(state: &mut State, owner: u64) -> Self {
        state.begin_snapshot();
        Self { id: (state.position(), owner), chunks: 0, whole: false, written: None }
    }
}
