//! How long the longest turns of a server are: one record that concerns very many requests.
//!
//! `cargo run --release --package lockkeeper-service --example long_turns -- [REQUESTS]`

use lockkeeper_core::{Limits, Mode};
use lockkeeper_service::{
    Access, Bytes, ConnectionId, Framing, Fresh, Hello, Origin, Rights, Server, ServerConfig, State, Ttl,
};
use lockkeeper_wire::v2::{EndFlags, Flags, ToServer, VERSION};
use std::{env, time::Instant};

const SOUND: &str = "the state is sound";

/// Clients that share the requests.
const CLIENTS: u64 = 10;

struct World {
    server: Server,
    rid: u64,
}

impl World {
    fn new() -> Self {
        let limits = Limits::default();
        let config = ServerConfig {
            ttl: Ttl::fixed(60_000),
            limits,
            sessions: 100,
            buckets: 10,
            bytes: Bytes { session: usize::MAX, bucket: usize::MAX, all: usize::MAX },
            backlog: usize::MAX,
            slice: 8_000,
            hash: |_| [0; 32],
        };
        let mut world = Self { server: Server::new(State::new(1), config, 0, 0, None), rid: 0 };
        for session in 1..=CLIENTS + 1 {
            world.connect(session, None);
        }
        world
    }

    fn connect(&mut self, session: u64, resume: Option<&str>) -> ConnectionId {
        let id = self.server.connect(Origin::Local, Framing::Lengths, Fresh { session, secret: [1; 16] });
        let hello = Hello {
            version: VERSION,
            features: 0,
            hello: id + 1,
            bucket: "default",
            resume: resume.map(|id| (id, [1; 16])),
            ack: 0,
            ttl: None,
            owner: Some("ann@build7 lockkeeper run"),
        };
        let access = Access { rights: Rights::ALL, subject: "pid 4711".into() };
        self.server.hello(0, id, hello, access).expect(SOUND);
        self.commit();
        id
    }

    fn say(&mut self, id: ConnectionId, message: ToServer<'_>) {
        self.server.message(0, id, message).expect(SOUND);
    }

    fn request(&mut self, id: ConnectionId, mode: Mode, steal: bool) -> u64 {
        self.rid += 1;
        let (rid, scope) = (self.rid, vec![(&b"name"[..], mode)]);
        let flags = Flags { steal, ..Flags::default() };
        self.say(id, ToServer::Request { ack: 1, rid, scope, flags, nested_in: None, info: None });
        rid
    }

    /// Asks for everything, if that is wished for. It takes more than one turn to answer.
    fn query(&mut self, asked: bool) {
        if asked {
            self.rid += 1;
            self.say(CLIENTS, ToServer::Query { ack: 1, rid: self.rid, name: None, deadlocks: false });
            self.commit();
        }
    }

    /// Commits, and has clients read.
    fn commit(&mut self) {
        while let Some(round) = self.server.take_round() {
            self.server.round_done(round.number);
        }
        while let Some(id) = self.server.next_ready() {
            let count = self.server.output(id).len();
            self.server.sent(id, count);
        }
    }
}

/// Has something done, and prints how long that takes.
fn measure(what: &str, act: impl FnOnce()) {
    let start = Instant::now();
    act();
    println!("{:6.1} ms: {what}", start.elapsed().as_secs_f64() * 1e3);
}

fn main() {
    let count: u64 = env::args().nth(1).map_or(1_000_000, |count| count.parse().expect("a number"));
    let mut world = World::new();
    let last = CLIENTS;
    for asked in [false, true] {
        let while_asked = if asked { ", while everything is queried" } else { "" };
        let held = world.request(last, Mode::Exclusive, false);
        for number in 0..count {
            world.request(number % CLIENTS, Mode::Shared, false);
            if number % 1_000 == 0 {
                world.commit();
            }
        }
        world.commit();
        world.query(asked);
        measure(&format!("a release lets in {count}{while_asked}"), || {
            world.say(last, ToServer::Release { ack: 1, rid: held, flags: EndFlags::default() });
        });
        world.commit();
        world.query(asked);
        let mut thief = 0;
        measure(&format!("a steal breaks {count}{while_asked}"), || {
            thief = world.request(last, Mode::Exclusive, true);
        });
        world.commit();
        world.say(last, ToServer::Release { ack: 1, rid: thief, flags: EndFlags::default() });
        world.commit();
    }
    measure(&format!("a client resumes that has {} unread messages", count / CLIENTS * 2), || {
        world.connect(100, Some("0000000000000001"));
    });
}
