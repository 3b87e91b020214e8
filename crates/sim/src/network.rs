//! Connections: each direction delivers in its order, late or never, and each side may fail to
//! notice the end.

use crate::{
    client::Input,
    clock::{Ticks, ticks},
    relay::Relayed,
    simulation::{Happening, Simulation, note},
};
use lockkeeper_service::{ConnectionId, Origin};
use lockkeeper_wire::{
    frame,
    v2::{ToClient, ToServer},
};
use std::collections::VecDeque;

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    /// To the server.
    Up,
    /// To the client.
    Down,
}

/// What is on its way.
#[derive(Clone, Debug)]
pub(crate) enum Packet {
    /// A message, with the descriptor that comes with it.
    Message(Vec<u8>, Option<u64>),
    /// The sender has closed.
    End,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    flight: VecDeque<(Ticks, Packet)>,
    /// What the receiver can read.
    pub(crate) arrived: VecDeque<Packet>,
    /// Nothing more gets through.
    cut: bool,
    last: Ticks,
}

pub(crate) struct Connection {
    pub(crate) client: usize,
    pub(crate) daemon: usize,
    /// The life of the daemon that it was made in.
    pub(crate) life: u64,
    pub(crate) origin: Origin,
    /// Its number at the client.
    pub(crate) number: u64,
    /// Its id at the server, once that has accepted it.
    pub(crate) id: Option<ConnectionId>,
    /// Whether the client's driver reads from it although the session gave it up.
    leaky: bool,
    /// Whether it is in the list of what its receiver can read.
    pub(crate) listed: [bool; 2],
    pub(crate) up: Pipe,
    pub(crate) down: Pipe,
    /// The descriptor for the next message that carries one.
    pub(crate) descriptor: Option<u64>,
    /// The daemon does not lead, and relays it.
    pub(crate) relayed: Option<Relayed>,
    /// It is between two daemons: the client's connection that it continues.
    pub(crate) downstream: Option<usize>,
}

impl Connection {
    pub(crate) fn pipe(&mut self, direction: Direction) -> &mut Pipe {
        match direction {
            Direction::Up => &mut self.up,
            Direction::Down => &mut self.down,
        }
    }

    /// Whether the daemon has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.up.cut && self.down.cut
    }
}

impl Simulation {
    /// An attempt to connect is over.
    pub(crate) fn connect(&mut self, client: usize, attempt: u64, daemon: usize) {
        if self.clients[client].connecting != Some(attempt) || !self.clients[client].alive {
            return;
        }
        if self.clients[client].away {
            // The driver learns of it when it continues.
            self.clients[client].connected_meanwhile = Some((attempt, daemon));
            return;
        }
        self.clients[client].connecting = None;
        let session = &self.clients[client].session;
        if session.is_closed() || session.connect_at().is_none() {
            return;
        }
        if !self.daemons[daemon].accepts() {
            self.feed(client, Input::ConnectFailed("nobody listens".into()));
            return;
        }
        let leaky = self.random.chance(self.plan.leaky);
        let index = self.new_connection(client, daemon);
        self.connections[index].leaky = leaky;
        note!(self, "client {client} connects to daemon {daemon}: connection {index}");
        self.clients[client].current = Some(index);
        if self.daemons[daemon].server.is_none() {
            self.begin_relay(index);
        } else if self.daemons[daemon].partitioned_until > self.now && self.random.chance(500) {
            // It still leads from its own view, and the store has been silent for a while.
            self.turn_away(index);
        }
        self.feed(client, Input::Connected);
    }

    /// A connection to a daemon.
    pub(crate) fn new_connection(&mut self, client: usize, daemon: usize) -> usize {
        self.connections.push(Connection {
            client,
            daemon,
            life: self.daemons[daemon].life,
            origin: self.clients[client].origin,
            number: 0,
            id: None,
            leaky: false,
            listed: [false; 2],
            up: Pipe::default(),
            down: Pipe::default(),
            descriptor: None,
            relayed: None,
            downstream: None,
        });
        self.connections.len() - 1
    }

    /// Sends messages that are preceded by their lengths.
    pub(crate) fn send(&mut self, index: usize, direction: Direction, mut bytes: &[u8]) {
        while let Ok(Some((message, length))) = frame::first(bytes, frame::MAX_TO_CLIENT) {
            if self.trace.is_some() {
                self.note_message(index, direction, message);
            }
            let descriptor = match direction {
                Direction::Down if ToClient::decode(message) == Ok(ToClient::Fifo) => {
                    self.connections[index].descriptor.take()
                }
                _ => None,
            };
            self.put(index, direction, Packet::Message(message.into(), descriptor));
            bytes = &bytes[length..];
            if !self.calm && !bytes.is_empty() && self.random.chance(self.plan.cut_between) {
                self.cut_between(index, direction);
            }
        }
    }

    /// Nothing more gets through. Local connections break for both sides, a network may say
    /// nothing.
    fn cut_between(&mut self, index: usize, direction: Direction) {
        note!(self, "connection {index} is cut between two messages");
        let all = self.flight(index, direction);
        self.cut(index, direction, all, 0);
        let local = self.connections[index].origin == Origin::Local;
        if local || !self.random.chance(self.plan.unnoticed) {
            let last = self.connections[index].pipe(direction).last;
            self.at(last, Happening::Notice(index, direction));
        }
        if local {
            let other = if direction == Direction::Up { Direction::Down } else { Direction::Up };
            self.at(self.now, Happening::Notice(index, other));
        }
    }

    fn note_message(&mut self, index: usize, direction: Direction, message: &[u8]) {
        let Connection { client, daemon, .. } = self.connections[index];
        let cut = if self.connections[index].pipe(direction).cut { " (lost)" } else { "" };
        match direction {
            Direction::Up => {
                let message = ToServer::decode(message).map(|message| format!("{message:?}"));
                note!(self, "  {client} -> D{daemon} [{index}]{cut} {}", message.unwrap_or_default());
            }
            Direction::Down => {
                let message = ToClient::decode(message).map(|message| format!("{message:?}"));
                note!(self, "  D{daemon} -> {client} [{index}]{cut} {}", message.unwrap_or_default());
            }
        }
    }

    /// Sends something, or the end.
    pub(crate) fn put(&mut self, index: usize, direction: Direction, packet: Packet) {
        let delay = if self.calm {
            self.random.below(1000).min(self.plan.delay.max)
        } else {
            self.plan.delay.choose(&mut self.random)
        };
        let now = self.now;
        let pipe = self.connections[index].pipe(direction);
        if pipe.cut {
            return;
        }
        let at = pipe.last.max(now + ticks(delay));
        pipe.last = at;
        pipe.flight.push_back((at, packet));
        self.at(at, Happening::Deliver(index, direction));
    }

    pub(crate) fn deliver(&mut self, index: usize, direction: Direction) {
        let now = self.now;
        let pipe = self.connections[index].pipe(direction);
        let mut any = false;
        while let Some((_, packet)) = pipe.flight.pop_front_if(|(at, _)| *at <= now) {
            pipe.arrived.push_back(packet);
            any = true;
        }
        if any {
            self.announce(index, direction);
        }
    }

    /// The receiver has something to read.
    pub(crate) fn announce(&mut self, index: usize, direction: Direction) {
        let Connection { client, daemon, life, ref mut listed, relayed, downstream, .. } =
            self.connections[index];
        match direction {
            Direction::Up if relayed.is_some() => self.pass_up(index),
            Direction::Down if downstream.is_some() => self.pass_down(index),
            Direction::Up if self.daemons[daemon].life == life => {
                if !std::mem::replace(&mut listed[0], true) {
                    self.daemons[daemon].readable.push(index);
                }
                self.turn_soon(daemon);
            }
            Direction::Up => {}
            Direction::Down => {
                if !std::mem::replace(&mut listed[1], true) {
                    self.clients[client].readable.push(index);
                }
                self.client_reads(client);
            }
        }
    }

    /// Cuts a direction. Of what is on its way, only the first so many packets arrive; they may be
    /// late.
    pub(crate) fn cut(&mut self, index: usize, direction: Direction, kept: usize, late: Ticks) {
        let now = self.now;
        let pipe = self.connections[index].pipe(direction);
        pipe.cut = true;
        pipe.flight.truncate(kept);
        pipe.flight.iter_mut().for_each(|(at, _)| *at = (*at).max(now + late));
        let times: Vec<_> = pipe.flight.iter().map(|(at, _)| *at).collect();
        times.into_iter().for_each(|at| self.at(at, Happening::Deliver(index, direction)));
    }

    pub(crate) fn flight(&mut self, index: usize, direction: Direction) -> usize {
        self.connections[index].pipe(direction).flight.len()
    }

    /// The receiver of a direction notices that the connection is gone.
    pub(crate) fn notice_end(&mut self, index: usize, direction: Direction) {
        let pipe = self.connections[index].pipe(direction);
        pipe.cut = true;
        pipe.arrived.push_back(Packet::End);
        self.announce(index, direction);
    }

    /// The client's driver closes a connection.
    pub(crate) fn client_closes(&mut self, index: usize) {
        note!(self, "client {} closes connection {index}", self.connections[index].client);
        self.put(index, Direction::Up, Packet::End);
        let connection = &mut self.connections[index];
        connection.up.cut = true;
        if !connection.leaky {
            connection.down.cut = true;
            connection.down.flight.clear();
            connection.down.arrived.clear();
        }
    }

    /// The server's driver, or the kernel after a kill, closes a connection. Unnoticed, if the
    /// network does not say.
    pub(crate) fn server_closes(&mut self, index: usize, unnoticed: bool) {
        if !unnoticed {
            self.put(index, Direction::Down, Packet::End);
        }
        let connection = &mut self.connections[index];
        connection.down.cut = true;
        connection.up.cut = true;
        connection.up.flight.clear();
        connection.up.arrived.clear();
    }

    /// Whether a descriptor is on its way to a client.
    pub(crate) fn descriptor_in_flight(&self, inode: u64) -> bool {
        let has =
            |packet: &Packet| matches!(packet, Packet::Message(_, Some(descriptor)) if *descriptor == inode);
        self.connections.iter().any(|connection| {
            let down = &connection.down;
            connection.descriptor == Some(inode)
                || down.flight.iter().any(|(_, packet)| has(packet))
                || down.arrived.iter().any(has)
        })
    }
}
