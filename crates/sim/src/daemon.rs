//! A simulated daemon: the real server machine in a simulated driver.

use crate::{
    clock::{Clock, Ticks, ticks},
    commit::TakenSnapshot,
    follow::Follower,
    lead::Lead,
    network::{Connection, Direction, Packet},
    rules::DriverRule,
    simulation::{Happening, Simulation, note},
};
use lockkeeper_core::Limits;
use lockkeeper_service::{
    Access, Bytes, ConnectionId, Damaged, Fifo, Framing, Fresh, Hello, Micros, Origin, Rights, Server,
    ServerConfig, SessionId, Ttl,
    replica::{Extent, Memory},
};
use lockkeeper_wire::v2::{Secret, ToServer};
use std::collections::BTreeMap;

pub(crate) struct Daemon {
    pub(crate) clock: Clock,
    /// Counts its lives: it may be killed and started again.
    pub(crate) life: u64,
    /// The process runs.
    pub(crate) running: bool,
    pub(crate) stalled: bool,
    /// It serves.
    pub(crate) server: Option<Server>,
    pub(crate) connections: BTreeMap<ConnectionId, usize>,
    /// Connections with something to read.
    pub(crate) readable: Vec<usize>,
    turn: Option<Ticks>,
    /// What its clock showed at the last one.
    last_turn: Micros,
    /// FIFOs that are watched.
    pub(crate) watches: Vec<(SessionId, Fifo)>,
    /// The snapshot that is being taken.
    pub(crate) snapshot: Option<TakenSnapshot>,
    pub(crate) rounds: u64,
    pub(crate) blind_until: Option<Micros>,
    /// Whether it refuses clients because of its limit.
    pub(crate) few_sessions: bool,
    /// How it follows the shared log, while it does not lead.
    pub(crate) follower: Option<Follower>,
    /// How it leads, if it shares the log.
    pub(crate) lead: Option<Lead>,
    /// Until when what it sends to the shared log is delayed.
    pub(crate) partitioned_until: Ticks,
    /// Answers of the store that came while it was stalled: their calls, and which execution of
    /// them.
    pub(crate) answers: Vec<(u64, usize)>,
    /// Connections of clients that it relays.
    pub(crate) relayed: Vec<usize>,
    /// How far it knows the shared log to have got.
    pub(crate) memory: Memory,
    /// What a file has of that.
    pub(crate) remembered: Extent,
    /// It is started with the word that the store was restored, while that had this recovery.
    pub(crate) accept: Option<u64>,
}

impl Daemon {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            last_turn: 0,
            life: 0,
            running: false,
            stalled: false,
            server: None,
            connections: BTreeMap::new(),
            readable: Vec::new(),
            turn: None,
            watches: Vec::new(),
            snapshot: None,
            rounds: 0,
            blind_until: None,
            few_sessions: false,
            follower: None,
            lead: None,
            partitioned_until: 0,
            answers: Vec::new(),
            relayed: Vec::new(),
            memory: Memory::new(Extent::default(), false),
            remembered: Extent::default(),
            accept: None,
        }
    }

    /// Whether a client can connect: it leads, or relays.
    pub(crate) fn accepts(&self) -> bool {
        self.running && (self.server.is_some() || self.follower.is_some())
    }

    /// The other daemon that leads, and the number of that leadership, as far as this one knows.
    pub(crate) fn leader(&self) -> Option<(usize, u64)> {
        self.follower.as_ref()?.leader
    }
}

/// A limit that is reached.
pub(crate) const FEW_SESSIONS: usize = 3;

fn hash(secret: &Secret) -> [u8; 32] {
    let mut hash = [7; 32];
    hash[..16].copy_from_slice(secret);
    hash
}

impl Simulation {
    pub(crate) fn choose_config(&mut self) -> ServerConfig {
        let ttl = self.random.pick(&self.plan.ttls);
        let min = self.plan.ttls.iter().min().copied().unwrap_or(ttl);
        let max = self.plan.ttls.iter().max().copied().unwrap_or(ttl);
        let requests_per_client = if self.plan.limits { self.random.pick(&[3, 16]) } else { 1000 };
        ServerConfig {
            ttl: Ttl { default: ttl, min, max },
            limits: Limits { requests_per_client, ..Limits::default() },
            sessions: if self.plan.limits && self.random.chance(150) && !self.calm {
                FEW_SESSIONS
            } else {
                1000
            },
            buckets: 10,
            bytes: Bytes::default(),
            backlog: 1 << 20,
            slice: if self.plan.limits { 1000 } else { 1 },
            hash,
        }
    }

    /// A daemon starts, or starts again, with its own settings.
    pub(crate) fn start(&mut self, index: usize) {
        if self.daemons[index].running {
            return;
        }
        self.daemons[index].running = true;
        self.daemons[index].stalled = false;
        self.daemons[index].life += 1;
        if self.daemons.len() > 1 {
            // The operator starts it like that until a daemon leads, and sometimes forgets to stop
            // doing so.
            let recovered = |before: u64| self.store.recovery() != before;
            let done = self.daemons[index].accept.is_some_and(recovered) && self.random.chance(700);
            let daemon = &mut self.daemons[index];
            daemon.accept = daemon.accept.filter(|_| !done);
            daemon.memory = Memory::new(daemon.remembered, daemon.accept.is_some());
            return self.follow(index);
        }
        let config = self.choose_config();
        self.daemons[index].few_sessions = config.sessions == FEW_SESSIONS;
        let state = match self.disk.load(self.random.next()) {
            Ok(state) => state,
            Err(damaged) => return self.fail(format!("the log cannot be read: {damaged}")),
        };
        let mut state = state;
        self.check_replica(&mut state);
        self.disk.fifos.remove_others(|session| state.session(session).is_some());
        self.tamper_with_fifos();
        let now = self.daemons[index].clock.read(self.now);
        let crashed = self.disk.crashed;
        let blind = crashed || (self.disk.blind && self.plan.keeps(DriverRule::StaysBlind));
        let mark = self.disk.mark;
        let blind_until = (blind && mark.ttl > 0).then(|| now + mark.ttl * 1000);
        note!(self, "daemon {index} starts: ttl {:?}, blind until {blind_until:?}, {state:?}", config.ttl);
        let mut server = Server::new(state, config, now, self.wall(), blind_until);
        let recovered = if crashed { server.recover_from_crash(mark.tokens, usize::MAX) } else { Ok(()) };
        let daemon = &mut self.daemons[index];
        daemon.server = Some(server);
        daemon.blind_until = blind_until;
        self.disk.blind = blind_until.is_some();
        self.unharmed(recovered);
        self.turn_soon(index);
    }

    /// Milliseconds for display.
    pub(crate) fn wall(&self) -> u64 {
        1_700_000_000_000 + self.now / ticks(1000)
    }

    pub(crate) fn unharmed(&mut self, result: Result<(), Damaged>) {
        if let Err(damaged) = result {
            self.fail(format!("a server's state is damaged: {damaged}"));
        }
    }

    /// The process ends at once. What it has not committed is gone, and so are its connections.
    pub(crate) fn kill(&mut self, index: usize, why: &str) {
        if !self.daemons[index].running {
            return;
        }
        note!(self, "daemon {index} ends: {why}");
        self.daemons[index].running = false;
        self.drop_relays(index);
        self.drop_server(index);
        let daemon = &mut self.daemons[index];
        daemon.follower = None;
        daemon.stalled = false;
    }

    /// The server is dropped with its state, and its connections end.
    pub(crate) fn drop_server(&mut self, index: usize) {
        let daemon = &mut self.daemons[index];
        (daemon.server, daemon.lead, daemon.snapshot) = (None, None, None);
        daemon.watches.clear();
        daemon.rounds = 0;
        daemon.answers.clear();
        daemon.turn = None;
        let life = daemon.life;
        daemon.life += 1;
        let mut connections: Vec<usize> = std::mem::take(&mut daemon.connections).into_values().collect();
        connections.append(&mut daemon.readable);
        // Those it has not accepted yet, too.
        let open: Vec<_> = self.clients.iter().filter_map(|client| client.current).collect();
        let upstream = open.iter().filter_map(|&at| self.upstream(at));
        connections.extend(open.iter().copied().chain(upstream).filter(|&at| {
            let Connection { daemon, life: made, .. } = self.connections[at];
            daemon == index && made == life
        }));
        connections.sort_unstable();
        connections.dedup();
        for connection in connections {
            let local = self.connections[connection].origin == Origin::Local;
            let unnoticed = !local && self.random.chance(self.plan.unnoticed) && !self.calm;
            if !local && self.random.chance(self.plan.lose_flight) {
                self.cut(connection, Direction::Down, 0, 0);
                if !unnoticed {
                    self.after(1000, Happening::Notice(connection, Direction::Down));
                }
            } else {
                self.server_closes(connection, unnoticed);
            }
            self.connections[connection].listed[0] = false;
        }
    }

    pub(crate) fn daemon_back(&mut self, index: usize) {
        if std::mem::take(&mut self.daemons[index].stalled) && self.daemons[index].running {
            note!(self, "daemon {index} goes on");
            // It may find that leases are over before it reads what came meanwhile, or after.
            if self.random.chance(500) {
                self.expire(index);
            }
            for (call, which) in std::mem::take(&mut self.daemons[index].answers) {
                self.on_answer(call, which);
            }
            self.turn(index);
            self.pass_on(index);
            self.go_on_following(index);
        }
    }

    /// The daemon has something to do.
    pub(crate) fn turn_soon(&mut self, index: usize) {
        let daemon = &mut self.daemons[index];
        if daemon.server.is_some() && !daemon.stalled && daemon.turn.is_none_or(|at| at > self.now) {
            daemon.turn = Some(self.now);
            self.at(self.now, Happening::Turn(index));
        }
    }

    /// Reads all input, ends what has expired, commits, and sends answers.
    pub(crate) fn turn(&mut self, index: usize) {
        let now = self.now;
        let daemon = &mut self.daemons[index];
        daemon.turn = daemon.turn.filter(|at| *at > now);
        if daemon.stalled || daemon.server.is_none() {
            return;
        }
        let wall = self.wall();
        if let Some(server) = &mut self.daemons[index].server {
            server.set_wall(wall);
        }
        self.read_connections(index);
        self.look_at_fifos(index);
        self.expire(index);
        self.take_actions(index);
        match self.daemons[index].lead.is_some() {
            true => self.propose(index),
            false => self.commit(index),
        }
        self.arm_daemon(index);
        let daemon = &mut self.daemons[index];
        daemon.last_turn = daemon.clock.read(now);
    }

    fn read_connections(&mut self, index: usize) {
        while self.violation.is_none() && !self.daemons[index].readable.is_empty() {
            let at = self.random.index(self.daemons[index].readable.len());
            let connection = self.daemons[index].readable.swap_remove(at);
            self.connections[connection].listed[0] = false;
            while let Some(packet) = self.connections[connection].up.arrived.pop_front() {
                self.read_packet(index, connection, packet);
            }
        }
    }

    fn read_packet(&mut self, index: usize, connection: usize, packet: Packet) {
        let fresh =
            Fresh { session: self.random.next(), secret: secret(self.random.next(), self.random.next()) };
        let daemon = &mut self.daemons[index];
        let Some(server) = &mut daemon.server else { return };
        let fresh_clock = self.plan.keeps(DriverRule::FreshClock);
        let now = if fresh_clock { daemon.clock.read(self.now) } else { daemon.last_turn };
        let Connection { origin, ref mut id, .. } = self.connections[connection];
        let id = *id.get_or_insert_with(|| {
            let id = server.connect(origin, Framing::Lengths, fresh);
            daemon.connections.insert(id, connection);
            id
        });
        let result = match &packet {
            Packet::End => {
                server.disconnect(id);
                daemon.connections.remove(&id);
                Ok(())
            }
            Packet::Message(bytes, _) => match ToServer::decode(bytes) {
                Ok(ToServer::Hello { version, features, hello, bucket, resume, ack, ttl, owner, .. }) => {
                    let hello = Hello { version, features, hello, bucket, resume, ack, ttl, owner };
                    server.hello(now, id, hello, Access { rights: Rights::ALL, subject: String::new() })
                }
                Ok(message) => server.message(now, id, message),
                Err(error) => Err(Damaged::new(format!("a client sent what cannot be read: {error}"))),
            },
        };
        if matches!(packet, Packet::End) {
            note!(self, "daemon {index} sees the end of connection {connection}");
        }
        self.unharmed(result);
    }

    fn expire(&mut self, index: usize) {
        let daemon = &mut self.daemons[index];
        let now = daemon.clock.read(self.now);
        let Some(server) = &mut daemon.server else { return };
        if server.next_wake().is_some_and(|at| at <= now) {
            let expired = server.counts().expired;
            let result = server.wake(now);
            let expired = server.counts().expired - expired;
            self.stats.expired += expired;
            if expired > 0 {
                note!(self, "daemon {index} ends {expired} sessions, whose leases are over");
            }
            self.unharmed(result);
        }
    }

    /// The daemon looks at the clock when the next lease may be over.
    fn arm_daemon(&mut self, index: usize) {
        let daemon = &mut self.daemons[index];
        let Some(at) = daemon.server.as_ref().and_then(Server::next_wake) else { return };
        let at = daemon.clock.when(at).max(self.now);
        if daemon.turn.is_none_or(|turn| at < turn) {
            daemon.turn = Some(at);
            self.at(at, Happening::Turn(index));
        }
    }
}

fn secret(high: u64, low: u64) -> Secret {
    (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
}
