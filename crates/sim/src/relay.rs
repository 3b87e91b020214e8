//! Clients of a daemon that follows: it relays their messages to the leader, and the answers back.
//!
//! Each client has its own connection between the two daemons. It ends with the client's
//! connection, with the leader's, and when the follower sees another leader. It is valid for one
//! leadership: a leader refuses another number. Neither is needed for safety, because a leader
//! answers only while the store confirms that it leads; so some runs disable both.
//!
//! A client that waits too long, for a leader or for a silent store, is refused. That refusal comes
//! from no leader, and confirms nothing.

use crate::{
    network::{Direction, Packet},
    simulation::{Happening, Simulation, note},
};
use lockkeeper_service::Micros;
use lockkeeper_wire::v2::{ToClient, code};

/// How soon a leader that cannot be reached is tried again.
const AGAIN: Micros = 200_000;

/// A client's connection that is relayed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relayed {
    /// The daemon that leads, and the number of that leadership, once there is one.
    leader: Option<(usize, u64)>,
    /// The connection to the leader, once there is one.
    upstream: Option<usize>,
}

impl Simulation {
    /// A client has connected to a daemon that follows.
    pub(crate) fn begin_relay(&mut self, connection: usize) {
        let daemon = self.connections[connection].daemon;
        self.connections[connection].relayed = Some(Relayed { leader: None, upstream: None });
        self.daemons[daemon].relayed.push(connection);
        let patience = self.random.between(self.plan.takeover_after, 2 * self.plan.takeover_after);
        self.after(patience, Happening::Impatience(connection));
        if let Some(leader) = self.daemons[daemon].leader() {
            self.relay_to(connection, leader);
        }
    }

    /// A client has waited for long enough.
    pub(crate) fn end_patience(&mut self, connection: usize) {
        let (daemon, life) = (self.connections[connection].daemon, self.connections[connection].life);
        let waits = |relayed: Relayed| relayed.upstream.is_none();
        if !self.is_alive(daemon, life)
            || self.connections[connection].is_closed()
            || !self.connections[connection].relayed.is_some_and(waits)
        {
            return;
        }
        match self.daemons[daemon].stalled {
            true => self.after(10_000, Happening::Impatience(connection)),
            false => self.turn_away(connection),
        }
    }

    /// Refuses a client that no daemon can serve.
    pub(crate) fn turn_away(&mut self, connection: usize) {
        note!(self, "connection {connection} is turned away");
        let mut bytes = Vec::new();
        ToClient::Goodbye { code: code::RECOVERING, message: "no leader" }.encode(&mut bytes);
        self.put(connection, Direction::Down, Packet::Message(bytes, None));
        self.server_closes(connection, false);
        self.stats.turned_away += 1;
    }

    fn relay_to(&mut self, connection: usize, leader: (usize, u64)) {
        self.connections[connection].relayed = Some(Relayed { leader: Some(leader), upstream: None });
        let delay = match self.calm {
            true => 100,
            false => self.plan.delay.choose(&mut self.random),
        };
        self.after(delay, Happening::Relay(connection));
    }

    /// The attempt to reach the leader for a client is over.
    pub(crate) fn reach_leader(&mut self, connection: usize) {
        let (client, daemon) = (self.connections[connection].client, self.connections[connection].daemon);
        if !self.is_alive(daemon, self.connections[connection].life)
            || self.connections[connection].is_closed()
        {
            return;
        }
        if self.daemons[daemon].stalled {
            self.after(10_000, Happening::Relay(connection));
            return;
        }
        let Some(Relayed { leader: Some((target, owner)), upstream: None }) =
            self.connections[connection].relayed
        else {
            return;
        };
        let leads = |number| self.plan.careless_relays || number == owner;
        let lets_in = self.daemons[target].lead.as_ref().is_some_and(|lead| leads(lead.owner));
        if !lets_in || !self.daemons[target].running {
            note!(self, "daemon {target} does not lead as {owner:x}: no relay for connection {connection}");
            return self.after(AGAIN, Happening::Relay(connection));
        }
        let upstream = self.new_connection(client, target);
        self.connections[upstream].downstream = Some(connection);
        note!(self, "connection {connection} is relayed to daemon {target}: connection {upstream}");
        self.connections[connection].relayed =
            Some(Relayed { leader: Some((target, owner)), upstream: Some(upstream) });
        self.stats.relays += 1;
        self.pass_up(connection);
    }

    /// The leadership that a connection is relayed to. None if it waits for a leader.
    fn relayed_to(&self, connection: usize) -> Option<u64> {
        Some(self.connections[connection].relayed?.leader?.1)
    }

    /// The connection that continues a relayed one.
    pub(crate) fn upstream(&self, connection: usize) -> Option<usize> {
        self.connections[connection].relayed?.upstream
    }

    /// Passes on what a client has sent.
    pub(crate) fn pass_up(&mut self, connection: usize) {
        let Some(upstream) = self.upstream(connection).filter(|_| self.relays(connection)) else { return };
        while let Some(packet) = self.connections[connection].up.arrived.pop_front() {
            match packet {
                Packet::Message(..) => self.put(upstream, Direction::Up, packet),
                Packet::End => self.client_closes(upstream),
            }
        }
    }

    /// Passes on what the leader has sent.
    pub(crate) fn pass_down(&mut self, upstream: usize) {
        let Some(connection) = self.connections[upstream].downstream.filter(|at| self.relays(*at)) else {
            return;
        };
        while let Some(packet) = self.connections[upstream].down.arrived.pop_front() {
            match packet {
                Packet::Message(..) => self.put(connection, Direction::Down, packet),
                Packet::End => self.server_closes(connection, false),
            }
        }
    }

    /// Whether the daemon that relays a connection can do so now.
    fn relays(&self, connection: usize) -> bool {
        let daemon = self.connections[connection].daemon;
        self.is_alive(daemon, self.connections[connection].life) && !self.daemons[daemon].stalled
    }

    /// A daemon that was stalled passes on what came meanwhile.
    pub(crate) fn pass_on(&mut self, daemon: usize) {
        for connection in self.daemons[daemon].relayed.clone() {
            self.pass_up(connection);
            if let Some(upstream) = self.upstream(connection) {
                self.pass_down(upstream);
            }
        }
    }

    /// A follower sees another leader, or none: the relays to others end. Clients that wait for a
    /// leader have one.
    pub(crate) fn end_relays(&mut self, daemon: usize, leader: Option<(usize, u64)>) {
        for connection in std::mem::take(&mut self.daemons[daemon].relayed) {
            if self.connections[connection].is_closed() {
                continue;
            }
            let changes = self.relayed_to(connection) != leader.map(|(_, owner)| owner);
            let begun = self.upstream(connection).is_some();
            let careless = self.plan.careless_relays && leader.is_some();
            if changes && begun && !careless {
                self.end_relay(connection);
                continue;
            }
            self.daemons[daemon].relayed.push(connection);
            if changes && !begun {
                match leader {
                    Some(leader) => self.relay_to(connection, leader),
                    None => {
                        self.connections[connection].relayed = Some(Relayed { leader: None, upstream: None });
                    }
                }
            }
        }
    }

    fn end_relay(&mut self, connection: usize) {
        note!(self, "the relay of connection {connection} ends");
        self.server_closes(connection, false);
        if let Some(upstream) = self.upstream(connection) {
            self.client_closes(upstream);
        }
    }

    /// A daemon leads itself: it serves the clients that wait for a leader, and relays nothing.
    pub(crate) fn serve_relayed(&mut self, daemon: usize) {
        for connection in std::mem::take(&mut self.daemons[daemon].relayed) {
            if self.connections[connection].is_closed() {
                continue;
            }
            if self.upstream(connection).is_some() {
                self.end_relay(connection);
                continue;
            }
            self.connections[connection].relayed = None;
            self.announce(connection, Direction::Up);
        }
    }

    /// The process of a daemon has ended, and with it its connections to the leader.
    pub(crate) fn drop_relays(&mut self, daemon: usize) {
        for connection in std::mem::take(&mut self.daemons[daemon].relayed) {
            let Some(upstream) = self.upstream(connection) else { continue };
            match self.random.chance(self.plan.unnoticed) && !self.calm {
                true => self.cut(upstream, Direction::Up, 0, 0),
                false => self.client_closes(upstream),
            }
        }
    }
}
