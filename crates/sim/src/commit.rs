//! Commits to the file log of one daemon, and the sending after a commit.

use crate::{
    network::Direction,
    rules::DriverRule,
    simulation::{Happening, Simulation, note},
};
use lockkeeper_service::Server;

/// A snapshot that is being taken.
#[derive(Default)]
pub(crate) struct TakenSnapshot {
    pub(crate) bytes: Vec<u8>,
    /// Batches that were committed since.
    pub(crate) later: usize,
}

impl Simulation {
    /// Commits to the file, and sends answers.
    pub(crate) fn commit(&mut self, index: usize) {
        while let Some(round) = self.daemons[index].server.as_mut().and_then(Server::take_round) {
            let killed = !self.calm && self.random.chance(self.plan.kill_at_commit);
            let (lost, silent) = (self.random.chance(500), self.random.chance(500));
            if killed && lost && !round.batch.is_empty() {
                self.disk.tear();
                self.flush(index);
                return self.kill_and_restart(index, "killed before it committed");
            }
            if !round.batch.is_empty() {
                self.stats.batches += 1;
                self.disk.append(round.batch.clone(), self.plan.keeps(DriverRule::CutTornTail));
                if let Some(snapshot) = &mut self.daemons[index].snapshot {
                    snapshot.later += 1;
                }
                self.committed(&round.batch, self.disk.crashed);
                // From here on, the log knows that sessions from before the crash are over.
                self.disk.crashed = false;
                if self.random.chance(300) {
                    self.disk.sync();
                }
            }
            if self.plan.keeps(DriverRule::MarkBeforeTelling) {
                self.write_mark(index);
            }
            if let Some(server) = &mut self.daemons[index].server {
                server.round_done(round.number);
            }
            self.daemons[index].rounds += 1;
            if killed {
                let some = if silent { 0 } else { 1 };
                self.speak(index, some);
                return self.kill_and_restart(index, "killed after it committed");
            }
            self.speak(index, usize::MAX);
            self.take_snapshot(index);
            self.compare_with_replica(index);
            self.take_actions(index);
        }
    }

    /// Values that must survive a crash of the machine are synced before clients learn them. The
    /// longest lease falls at once, which the daemon does some time later.
    fn write_mark(&mut self, index: usize) {
        let daemon = &self.daemons[index];
        let Some(server) = &daemon.server else { return };
        let state = server.state();
        let leases = state.sessions().filter_map(|id| state.session(id));
        let ttl = leases.filter(|view| view.fifo.is_none()).map(|view| view.ttl).max().unwrap_or(0);
        let mark = &mut self.disk.mark;
        self.disk.blind = daemon.blind_until.is_some_and(|until| daemon.clock.read(self.now) <= until);
        let blind = self.disk.blind && self.plan.keeps(DriverRule::MarkStaysWhileBlind);
        mark.ttl = if blind { mark.ttl.max(ttl) } else { ttl };
        if state.last_token() > mark.tokens {
            mark.tokens = state.last_token() + 20;
        }
    }

    /// Sends what is committed, to so many connections.
    pub(crate) fn speak(&mut self, index: usize, some: usize) {
        for _ in 0..some {
            let daemon = &mut self.daemons[index];
            let Some(server) = &mut daemon.server else { return };
            let Some(id) = server.next_ready() else { return };
            let output = server.output(id).to_vec();
            server.sent(id, output.len());
            let done = server.is_done(id);
            let Some(&connection) = daemon.connections.get(&id) else { continue };
            if done {
                server.disconnect(id);
                daemon.connections.remove(&id);
            }
            self.send(connection, Direction::Down, &output);
            if done {
                note!(self, "daemon {index} closes connection {connection}");
                self.server_closes(connection, false);
            }
        }
    }

    /// Sends all that may be sent, without a notification: a driver writes whenever it can.
    fn flush(&mut self, index: usize) {
        let connections: Vec<_> = self.daemons[index].connections.iter().map(|(id, at)| (*id, *at)).collect();
        for (id, connection) in connections {
            let Some(server) = &mut self.daemons[index].server else { return };
            let output = server.output(id).to_vec();
            server.sent(id, output.len());
            self.send(connection, Direction::Down, &output);
        }
    }

    /// Takes a snapshot in slices, while batches go on.
    fn take_snapshot(&mut self, index: usize) {
        let bytes = usize::try_from(self.random.below(200)).unwrap_or(0);
        let daemon = &mut self.daemons[index];
        let Some(server) = &mut daemon.server else { return };
        match &mut daemon.snapshot {
            Some(snapshot) => {
                if server.state_mut().snapshot_slice(bytes, &mut snapshot.bytes)
                    && let Some(TakenSnapshot { bytes, later }) = daemon.snapshot.take()
                {
                    self.stats.snapshots += 1;
                    self.disk.put_snapshot(bytes, later);
                    self.check_disk();
                }
            }
            None if self.plan.snapshot_every > 0
                && daemon.rounds.is_multiple_of(self.plan.snapshot_every) =>
            {
                server.state_mut().begin_snapshot();
                daemon.snapshot = Some(TakenSnapshot::default());
            }
            None => {}
        }
    }

    pub(crate) fn kill_and_restart(&mut self, index: usize, why: &str) {
        self.kill(index, why);
        let pause = self.choose_outage();
        self.after(pause, Happening::Start(index));
    }
}
