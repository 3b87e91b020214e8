//! Faults: chosen at random, while others last.

use crate::{
    clock::{FASTEST, SLOWEST, ticks},
    network::Direction,
    simulation::{Happening, Simulation, note},
    store::Full,
};
use lockkeeper_service::{Micros, Origin, State, replica::Extent};

impl Simulation {
    pub(crate) fn next_fault(&mut self) {
        if self.plan.fault_every > 0 && !self.calm {
            let pause = self.around(self.plan.fault_every).max(1);
            self.after(pause, Happening::Fault);
        }
    }

    pub(crate) fn fault(&mut self) {
        if self.calm {
            return;
        }
        self.stats.faults += 1;
        let faults = self.plan.faults;
        let weights = [
            faults.cut,
            faults.delay_old,
            faults.stall,
            faults.suspend,
            faults.kill,
            faults.stop,
            faults.crash,
            faults.full,
            faults.rate,
            faults.revoke,
            faults.hand_over,
            faults.partition,
            faults.process,
            faults.restore,
        ];
        let daemon = self.random.index(self.daemons.len());
        match self.random.weighted(&weights) {
            Some(0) => self.cut_some(false),
            Some(1) => self.cut_some(true),
            Some(2) => self.stall(daemon),
            Some(3) => self.suspend(),
            Some(4) => {
                self.kill(daemon, "killed");
                let chosen = self.choose_outage();
                let pause = self.plan.restart_after.unwrap_or(chosen);
                self.after(pause, Happening::Start(daemon));
            }
            Some(5) => self.stop(daemon),
            Some(6) => self.crash_machine(daemon),
            Some(7) => {
                let who = if self.random.chance(500) { Full::Everybody } else { Full::One(daemon) };
                note!(self, "no room for writes of {who:?}");
                self.set_full(who);
                let pause = self.choose_outage();
                self.after(pause, Happening::NotFull);
            }
            Some(8) => self.change_rates(),
            Some(9) => self.revoke(),
            Some(10) => self.hand_over(daemon),
            Some(11) => {
                let pause = self.choose_outage();
                note!(self, "daemon {daemon} is cut off from the log for {pause}");
                self.daemons[daemon].partitioned_until = self.now + ticks(pause);
            }
            Some(12) => self.disturb_job(),
            Some(13) => self.restore(),
            _ => {}
        }
    }

    /// The store goes back to a backup. All daemons are stopped before, and get the flag for it
    /// when they start again.
    fn restore(&mut self) {
        let Some((store, state)) = self.backup.clone() else { return };
        note!(self, "the store is restored from a backup");
        self.stats.restored += 1;
        (0..self.daemons.len()).for_each(|daemon| self.kill(daemon, "to have its store restored"));
        self.drop_calls();
        let full = std::mem::replace(&mut self.store, store).full;
        self.store.full = full;
        match State::restore([state], self.random.next()) {
            Ok(state) => self.history.reload(state),
            Err(damaged) => self.fail(format!("the backup cannot be read: {damaged}")),
        }
        let recovery = self.store.recovery();
        for daemon in 0..self.daemons.len() {
            self.daemons[daemon].accept = Some(recovery);
            if self.random.chance(300) {
                self.daemons[daemon].remembered = Extent::default();
            }
            let pause = self.choose_outage();
            self.after(pause, Happening::Start(daemon));
        }
    }

    /// For how long something is out of order: around the times at which leases end.
    pub(crate) fn choose_outage(&mut self) -> Micros {
        let lease = self.random.pick(&self.plan.ttls) * 1000;
        let part = self.random.pick(&[0, 1, 10, 25, 50, 74, 75, 76, 99, 100, 101, 134, 200, 300]);
        let exact = lease * part / 100;
        match self.random.below(3) {
            0 => exact,
            1 => exact + self.random.below(3),
            _ => self.random.between(0, exact + 1000),
        }
    }

    /// Cuts a connection, one direction of it or both. Each side may fail to notice.
    fn cut_some(&mut self, late: bool) {
        let open: Vec<_> = self.clients.iter().filter_map(|client| client.current).collect();
        if open.is_empty() {
            return;
        }
        let index = self.random.pick(&open);
        // Behind a daemon that relays, either hop.
        let index = self.upstream(index).filter(|_| self.random.chance(500)).unwrap_or(index);
        let local = self.connections[index].origin == Origin::Local;
        let directions = match self.random.below(4) {
            _ if local => &[Direction::Up, Direction::Down][..],
            0 => &[Direction::Up],
            1 => &[Direction::Down],
            _ => &[Direction::Up, Direction::Down],
        };
        let lateness = if late { ticks(self.choose_outage()) } else { 0 };
        note!(
            self,
            "connection {index} is cut: {directions:?}, what is on its way is late by {}",
            lateness / 12
        );
        for &direction in directions {
            let flight = self.flight(index, direction);
            let kept = match late || !self.random.chance(self.plan.lose_flight) {
                true => flight,
                false => self.random.index(flight + 1),
            };
            self.cut(index, direction, kept, lateness);
            let notices = local || !self.random.chance(self.plan.unnoticed);
            if notices {
                let pause = if local { 0 } else { self.plan.delay.choose(&mut self.random) };
                // The client may notice long before what it sent has arrived.
                let at = self.now + ticks(pause) + if direction == Direction::Up { lateness } else { 0 };
                self.at(at, Happening::Notice(index, direction));
            }
        }
    }

    fn stall(&mut self, daemon: usize) {
        let pause = self.choose_outage();
        if self.daemons[daemon].running && !self.daemons[daemon].stalled {
            note!(self, "daemon {daemon} stalls for {pause}");
            self.daemons[daemon].stalled = true;
            self.after(pause, Happening::DaemonBack(daemon));
        }
    }

    fn suspend(&mut self) {
        if self.clients.is_empty() {
            return;
        }
        let client = self.random.index(self.clients.len());
        let pause = self.choose_outage();
        self.suspend_client(client, pause);
    }

    pub(crate) fn suspend_client(&mut self, client: usize, pause: Micros) {
        if self.clients[client].alive && !self.clients[client].away {
            note!(self, "client {client} is suspended for {pause}");
            self.clients[client].away = true;
            self.after(pause, Happening::ClientBack(client));
        }
    }

    /// The daemon stops gracefully, and starts again later.
    fn stop(&mut self, daemon: usize) {
        if self.daemons[daemon].stalled {
            return;
        }
        if self.daemons[daemon].lead.is_some() {
            return self.hand_over(daemon);
        }
        if let Some(server) = &mut self.daemons[daemon].server {
            server.stop();
            note!(self, "daemon {daemon} stops");
            self.turn(daemon);
            self.disk.sync();
        }
        self.kill(daemon, "stopped");
        let pause = self.choose_outage();
        self.after(pause, Happening::Start(daemon));
    }

    /// The machine crashes, with the daemon and the local clients. What was not synced may be lost.
    fn crash_machine(&mut self, daemon: usize) {
        self.kill(daemon, "its machine crashed");
        let rate = self.random.pick(&self.plan.server_rates);
        let shows = self.random.below(1_000_000_000);
        self.daemons[daemon].clock = crate::clock::Clock::new(self.now, shows, rate);
        if self.daemons.len() == 1 {
            for client in 0..self.clients.len() {
                if self.clients[client].alive && self.clients[client].origin == Origin::Local {
                    self.crash_client(client);
                }
            }
            self.end_local_commands();
            let lost = self.random.index(self.disk.unsynced() + 1);
            note!(self, "the machine crashes, and loses {lost} batches");
            self.disk.crash(lost);
            if lost > 0 {
                match self.disk.load(self.random.next()) {
                    Ok(state) => self.history.reload(state),
                    Err(damaged) => self.fail(format!("the log cannot be read: {damaged}")),
                }
            }
        }
        let pause = self.choose_outage();
        self.after(pause, Happening::Start(daemon));
    }

    /// A store refuses writes, a disk has no space for requests.
    pub(crate) fn set_full(&mut self, who: Full) {
        self.store.full = who;
        let full = who != Full::Nobody && self.daemons.len() == 1;
        for daemon in &mut self.daemons {
            if let Some(server) = &mut daemon.server {
                server.set_full(full.then(|| "the disk is full".into()));
            }
        }
    }

    fn change_rates(&mut self) {
        let now = self.now;
        let rate = self.random.between(SLOWEST, FASTEST);
        let at = self.random.index(self.clients.len() + self.daemons.len());
        match self.clients.get_mut(at) {
            // The processes of a job have one clock.
            Some(client) if client.origin == Origin::Network && client.job.is_none() => {
                client.clock.set_rate(now, rate)
            }
            _ => {}
        }
    }

    /// An operator ends a session.
    fn revoke(&mut self) {
        let daemon = self.random.index(self.daemons.len());
        if self.daemons[daemon].stalled {
            return;
        }
        let Some(server) = &self.daemons[daemon].server else { return };
        let sessions: Vec<_> = server.state().sessions().collect();
        if sessions.is_empty() {
            return;
        }
        let session = self.random.pick(&sessions);
        self.end_by_hand(daemon, session);
    }
}
