//! Transcripts of single clients: `transcripts SEED COUNT` prints one JSON object a line, which the TypeScript session
//! replays (`packages/lockkeeper/test/transcripts.test.js`).
//!
//! Clients of a server share locks over connections that are cut at random, in virtual time. Every third client talks to
//! a server that says whatever comes to its mind.

use lockkeeper_core::{Cause, Limits, Mode, Name};
use lockkeeper_service::{
    Access, Action, Answer, ConnectionId, Event, Failure, Fifo, Framing, Fresh, Hello, Origin, Outcome,
    Outer, Request, Rights, Server, ServerConfig, Session, SessionConfig, State, Ttl,
};
use lockkeeper_wire::{
    frame,
    v2::{Entry, Flags, Listed, ToClient, ToServer},
};
use std::{
    collections::VecDeque,
    fmt::Write as _,
    io::{BufWriter, Write as _},
};

const CLIENTS: usize = 6;
const STEPS: usize = 2500;
const NAMES: [&str; 3] = ["a", "b", "c"];

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let (seed, count) = (arguments.next().unwrap_or(1), arguments.next().unwrap_or(60));
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut printed = 0;
    for seed in seed.. {
        for line in World::new(seed).run() {
            if printed == count {
                return;
            }
            printed += 1;
            writeln!(out, "{line}").expect("standard output is open");
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

struct World {
    seed: u64,
    random: Random,
    now: u64,
    server: Server,
    clients: Vec<Client>,
}

struct Client {
    session: Session<()>,
    config: SessionConfig,
    start: u64,
    steps: Vec<String>,
    links: Vec<Link>,
    /// The number of requests and questions so far.
    keys: u64,
    wild: bool,
}

/// A connection, perhaps an old one on which something still comes.
struct Link {
    number: u64,
    server: ConnectionId,
    to_server: VecDeque<Vec<u8>>,
    to_client: VecDeque<Vec<u8>>,
    cut: bool,
}

fn server(seed: u64, now: u64) -> Server {
    let config = ServerConfig {
        ttl: Ttl { default: 4001, min: 1000, max: 60_000 },
        limits: Limits { requests_per_client: 12, ..Limits::default() },
        sessions: 1000,
        buckets: 10,
        backlog: 1 << 20,
        hash: |secret| {
            let mut hash = [0; 32];
            hash[..16].copy_from_slice(secret);
            hash
        },
    };
    Server::new(State::new(seed), config, now, 0, None)
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let now = random.below(1 << 40);
        let clients = (0..CLIENTS).map(|i| {
            let config = SessionConfig {
                bucket: "default".into(),
                owner: random.one_in(2).then(|| format!("client {i}")),
                ttl: random.one_in(3).then(|| 1000 + random.below(5000)),
                fifo: random.one_in(4),
                going_away_ends: random.one_in(4),
            };
            let session = Session::new(config.clone(), now);
            let steps = Vec::new();
            Client { session, config, start: now, steps, links: Vec::new(), keys: 0, wild: i % 3 == 2 }
        });
        let clients = clients.collect();
        Self { seed, random, now, server: server(seed, now), clients }
    }

    fn run(mut self) -> Vec<String> {
        for _ in 0..STEPS {
            self.now += match self.random.below(40) {
                0 => self.random.below(1_000_000),
                1 if self.random.one_in(8) => self.random.below(8_000_000),
                2..10 => 0,
                _ => self.random.below(20_000),
            };
            let i = self.random.below(CLIENTS as u64) as usize;
            // Just in time.
            if let Some(at) = self.clients[i].session.next_wake()
                && at < self.now + 1_000_000
                && self.random.one_in(10)
            {
                self.now = self.now.max(at);
            }
            self.step(i);
            if self.random.one_in(900) {
                // It has forgotten everything.
                self.server = server(self.seed, self.now);
                self.clients.iter_mut().flat_map(|client| &mut client.links).for_each(|link| link.cut = true);
            }
            if self.server.next_wake().is_some_and(|at| at <= self.now) {
                self.server.wake(self.now).expect("the state is whole");
                self.pump();
            }
        }
        let lines = self.clients.iter().enumerate().map(|(i, client)| {
            let SessionConfig { bucket, owner, ttl, fifo, going_away_ends } = &client.config;
            let owner = owner.as_ref().map_or("null".into(), |owner| quote(owner));
            let ttl = number(*ttl);
            format!(
                "{{\"seed\":{},\"client\":{i},\"config\":{{\"bucket\":{},\"owner\":{owner},\"ttl\":{ttl},\"fifo\":{fifo},\
                 \"goingAwayEnds\":{going_away_ends}}},\"start\":{},\"steps\":[{}]}}",
                self.seed,
                quote(bucket),
                client.start,
                client.steps.join(",")
            )
        });
        lines.collect()
    }

    fn step(&mut self, i: usize) {
        let now = self.now;
        let client = &mut self.clients[i];
        let due = client.session.connect_at().is_some_and(|at| at <= now);
        if due && client.links.iter().all(|link| link.cut) {
            return self.connect(i);
        }
        match self.random.below(20) {
            0..6 => self.serve(i),
            6..13 => self.deliver(i),
            13 if self.random.one_in(3) => self.cut(i),
            14 if client.wild && !client.links.is_empty() => self.babble(i),
            15 => {
                if client.session.next_wake().is_some_and(|at| at <= now) || self.random.one_in(4) {
                    client.session.wake(now);
                    self.record(i, "[\"wake\"]");
                }
            }
            16..19 => self.command(i),
            _ => {}
        }
        // Time is kept, mostly.
        let client = &mut self.clients[i];
        if client.session.next_wake().is_some_and(|at| at <= now) && !self.random.one_in(5) {
            client.session.wake(now);
            self.record(i, "[\"wake\"]");
        }
    }

    fn connect(&mut self, i: usize) {
        let now = self.now;
        let client = &mut self.clients[i];
        if self.random.one_in(4) {
            client.session.connect_failed(now, &Failure::Unreachable("nobody".into()));
            return self.record(i, "[\"connectFailed\",\"nobody\"]");
        }
        let (a, b) = (self.random.next(), self.random.next());
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&a.to_le_bytes());
        let origin = if client.config.fifo { Origin::Local } else { Origin::Network };
        let server = self.server.connect(origin, Framing::Lengths, Fresh { session: b, secret });
        let number = client.session.connected(now, None);
        let (to_server, to_client) = (VecDeque::new(), VecDeque::new());
        client.links.retain(|link| !link.to_client.is_empty());
        client.links.push(Link { number, server, to_server, to_client, cut: false });
        self.record(i, "[\"connected\",null]");
    }

    /// The server reads what a client sent.
    fn serve(&mut self, i: usize) {
        let now = self.now;
        let Some(link) = self.clients[i].links.last_mut().filter(|link| !link.cut) else { return };
        let Some(bytes) = link.to_server.pop_front() else { return };
        let id = link.server;
        let message = ToServer::decode(&bytes).expect("a client encodes what can be decoded");
        let access = Access { rights: Rights::ALL, subject: String::new() };
        match message {
            ToServer::Hello { version, features, hello, bucket, resume, ack, ttl, owner, .. } => {
                let hello = Hello { version, features, hello, bucket, resume, ack, ttl, owner };
                self.server.hello(now, id, hello, access).expect("the state is whole");
            }
            message => self.server.message(now, id, message).expect("the state is whole"),
        }
        self.pump();
    }

    fn pump(&mut self) {
        while let Some(round) = self.server.take_round() {
            self.server.round_done(round.number);
        }
        while let Some(id) = self.server.next_ready() {
            let bytes = self.server.output(id).to_vec();
            self.server.sent(id, bytes.len());
            let links = self.clients.iter_mut().flat_map(|client| &mut client.links);
            if let Some(link) = links.into_iter().find(|link| link.server == id && !link.cut) {
                link.to_client.extend(split(&bytes));
            }
        }
        while let Some(action) = self.server.next_action() {
            let Action::PassFifo { connection, session } = action else { continue };
            self.server.fifo_passed(connection, Fifo { device: 1, inode: session, boot: [1; 16] });
            let links = self.clients.iter_mut().flat_map(|client| &mut client.links);
            if let Some(link) = links.into_iter().find(|link| link.server == connection && !link.cut) {
                let mut bytes = Vec::new();
                ToClient::Fifo.encode(&mut bytes);
                link.to_client.push_back(bytes);
            }
        }
    }

    /// A client reads what the server sent, perhaps on an old connection.
    fn deliver(&mut self, i: usize) {
        let client = &mut self.clients[i];
        let Some(which) = client.links.len().checked_sub(1) else { return };
        let which = if self.random.one_in(8) { self.random.below(which as u64 + 1) as usize } else { which };
        let Some(bytes) = client.links[which].to_client.pop_front() else { return };
        self.hear(i, which, &bytes);
    }

    fn hear(&mut self, i: usize, which: usize, bytes: &[u8]) {
        let client = &mut self.clients[i];
        let number = client.links[which].number;
        let message = ToClient::decode(bytes).expect("a server encodes what can be decoded");
        client.session.message(self.now, number, message);
        self.record(i, &format!("[\"message\",{number},\"{}\"]", hex(bytes)));
    }

    fn cut(&mut self, i: usize) {
        let Some(link) = self.clients[i].links.last_mut().filter(|link| !link.cut) else { return };
        link.cut = true;
        let number = link.number;
        self.server.disconnect(link.server);
        self.clients[i].session.disconnected(self.now, number);
        self.record(i, &format!("[\"disconnected\",{number}]"));
    }

    /// Something that a server may say, if not now.
    fn babble(&mut self, i: usize) {
        let rid = self.random.below(self.clients[i].keys + 2);
        let number = self.random.below(60);
        let big = if self.random.one_in(4) { u64::MAX } else { self.random.below(100) };
        let by = self.random.one_in(2).then_some("somebody");
        let cause = if self.random.one_in(2) { Cause::Stolen } else { Cause::Lost };
        let code = [1, 2, 4, 6, 16, 20, 21, 22, 32, 33, 34][self.random.below(11) as usize];
        let listed = |rid| Listed { rid, arrival: 1, token: (big % 2 == 0).then_some(big) };
        let entry = Entry {
            name: b"a",
            mode: Mode::Shared,
            client_id: "somebody",
            arrival: big,
            token: None,
            info: None,
            since: 1,
            nested_in: None,
            stole: false,
            owner: None,
        };
        let message = match self.random.below(16) {
            0 => ToClient::Welcome {
                version: 2,
                features: 0,
                number,
                client_id: "0123456789abcdef",
                secret: [3; 16],
                ttl: [0, 1, 1003, 4001][self.random.below(4) as usize],
                resumed: self.random.one_in(2),
                last_rid: rid,
            },
            1 => ToClient::Listed {
                requests: (0..rid).rev().filter(|_| self.random.one_in(2)).map(listed).collect(),
            },
            2 | 3 => ToClient::Synced,
            4 => ToClient::Granted { rid, token: big },
            5 => ToClient::Queued { rid, arrival: big },
            6 => ToClient::Unavailable { rid },
            7 => ToClient::Released { rid },
            8 => ToClient::Broken { number, rid, cause, by },
            9 => ToClient::Outcome { number, rid, count: big },
            10 => ToClient::Refused { rid, code, message: "no" },
            11 => ToClient::Snapshot {
                rid,
                entries: vec![entry; 2],
                deadlocks: vec![],
                last_token: big,
                more: self.random.one_in(2),
            },
            12 => ToClient::Pong { seq: number },
            13 => ToClient::Confirmed,
            14 => ToClient::Fifo,
            _ if self.random.one_in(3) => ToClient::Goodbye { code, message: "words" },
            _ => ToClient::Pong { seq: big },
        };
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let newest = self.clients[i].links.len() - 1;
        self.hear(i, newest, &bytes);
    }

    fn command(&mut self, i: usize) {
        let random = &mut self.random;
        let client = &mut self.clients[i];
        let session = &mut client.session;
        let key = random.below(client.keys.max(1));
        let key = if random.one_in(2) { client.keys.saturating_sub(1 + random.below(4)) } else { key };
        let name = NAMES[random.below(3) as usize];
        let yes = random.one_in(2);
        let input = match random.below(64) {
            0..28 => {
                client.keys += 1;
                let count = 1 + random.below(2) as usize;
                let steal = random.one_in(10);
                let scope: Vec<(&str, bool)> =
                    (0..count).map(|n| (NAMES[(n + key as usize) % 3], !steal && random.one_in(3))).collect();
                let flags = Flags {
                    if_available: !steal && random.one_in(5),
                    steal,
                    refuse_deadlock: random.one_in(4),
                };
                let nested = random.one_in(3).then_some(key);
                let info = random.one_in(4).then_some("label");
                let text = scope.iter().map(|(name, shared)| format!("[{},{shared}]", quote(name)));
                let text = text.collect::<Vec<_>>().join(",");
                let info_text = info.map_or("null".into(), quote);
                let input = format!(
                    "[\"request\",{{\"scope\":[{text}],\"flags\":{},\"nestedIn\":{},\"info\":{info_text}}}]",
                    flags.bits(),
                    number(nested)
                );
                let mode = |shared| if shared { Mode::Shared } else { Mode::Exclusive };
                let scope =
                    scope.into_iter().map(|(name, shared)| (Name::from(name), mode(shared))).collect();
                let nested_in = nested.map(Outer::Own);
                session.request(Request { scope, flags, nested_in, info: info.map(Into::into) }, ());
                input
            }
            28..46 => {
                session.release(key, yes);
                format!("[\"release\",{key},{yes}]")
            }
            46..52 => {
                session.detach(key, yes);
                format!("[\"detach\",{key},{yes}]")
            }
            52..57 => {
                client.keys += 1;
                let name = random.one_in(2).then_some(name);
                session.query(name.map(Name::from), yes, ());
                format!("[\"query\",{},{yes}]", name.map_or("null".into(), quote))
            }
            57..60 => {
                client.keys += 1;
                session.force_release(Name::from(name), ());
                format!("[\"forceRelease\",{}]", quote(name))
            }
            60 => {
                client.keys += 1;
                let victim = self.clients[self.random.below(CLIENTS as u64) as usize].session.client_id();
                let victim = victim.unwrap_or("nobody").to_owned();
                self.clients[i].session.end_session(victim.clone(), ());
                format!("[\"endSession\",{}]", quote(&victim))
            }
            61 if random.one_in(30) => {
                session.close();
                "[\"close\"]".into()
            }
            62 => {
                session.confirm();
                "[\"confirm\"]".into()
            }
            _ => return,
        };
        self.record(i, &input);
    }

    /// What came of an input.
    fn record(&mut self, i: usize, input: &str) {
        let client = &mut self.clients[i];
        let output = client.session.take_output();
        let events: Vec<_> = std::iter::from_fn(|| client.session.next_event()).collect();
        let confirm = events.iter().any(|event| matches!(event, Event::Fifo));
        let drop = client.session.wants_drop();
        let shown: Vec<_> = events.iter().map(show).collect();
        client.steps.push(format!(
            "{{\"now\":{},\"input\":{input},\"output\":\"{}\",\"events\":[{}],\"drop\":{drop},\"connectAt\":{},\
             \"nextWake\":{}}}",
            self.now,
            hex(&output),
            shown.join(","),
            number(client.session.connect_at()),
            number(client.session.next_wake()),
        ));
        if let Some(link) = client.links.last_mut().filter(|link| !link.cut) {
            link.to_server.extend(split(&output));
            if drop || client.session.is_closed() {
                link.cut = true;
                self.server.disconnect(link.server);
            }
        }
        if confirm && !self.random.one_in(4) {
            self.clients[i].session.confirm();
            self.record(i, "[\"confirm\"]");
        }
    }
}

fn split(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Ok(Some((message, length))) = frame::first(bytes, frame::MAX_TO_CLIENT) {
        messages.push(message.to_vec());
        bytes = &bytes[length..];
    }
    messages
}

fn show(event: &Event<()>) -> String {
    match event {
        Event::Opened { client_id, resumed } => format!("[\"opened\",{},{resumed}]", quote(client_id)),
        Event::Unreachable(why) => format!("[\"unreachable\",{}]", quote(&why.to_string())),
        Event::Failed(why) => format!("[\"failed\",{}]", quote(&why.to_string())),
        Event::SessionLost => "[\"sessionLost\"]".into(),
        Event::Closed => "[\"closed\"]".into(),
        Event::Fifo => "[\"fifo\"]".into(),
        Event::Queued { key, arrival } => format!("[\"queued\",{key},\"{arrival}\"]"),
        Event::Granted { key, token } => format!("[\"granted\",{key},\"{token}\"]"),
        Event::Over { key, outcome, .. } => {
            let how = match outcome {
                Outcome::Unavailable => "\"unavailable\"".into(),
                Outcome::Released => "\"released\"".into(),
                Outcome::Broken { cause: Cause::Stolen, .. } => "\"broken\",\"stolen\"".into(),
                Outcome::Broken { cause: Cause::Lost, .. } => "\"broken\",\"lost\"".into(),
                Outcome::Refused { code, message } => format!("\"refused\",{code},{}", quote(message)),
                Outcome::Deadlocked(deadlock) => format!("\"deadlocked\",{}", quote(&deadlock.words)),
                Outcome::Answer(Answer::Snapshot(shown)) => format!("\"snapshot\",{}", shown.entries.len()),
                Outcome::Answer(Answer::Done { count }) => format!("\"done\",\"{count}\""),
                Outcome::Failed(why) => format!("\"failed\",{}", quote(&why.to_string())),
            };
            format!("[\"over\",{key},{how}]")
        }
    }
}

fn number(number: Option<u64>) -> String {
    number.map_or("null".into(), |number| number.to_string())
}

fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\0'..' ' => _ = write!(out, "\\u{:04x}", character as u32),
            _ => out.push(character),
        }
    }
    out + "\""
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        _ = write!(out, "{byte:02x}");
        out
    })
}
