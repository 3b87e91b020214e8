//! The clients: each asks, waits for its answer, and does nothing else. All are alike, but for the
//! last, which is the crate that programs use.

use crate::baton::{ASK, DONE};
use lockkeeper::{Lock, Locks, Mode};
use lockkeeper_wire::{
    frame,
    v2::{EndFlags, Flags, ToClient, ToServer},
};
use rustix::net::{RecvFlags, recv};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// What is locked.
pub struct Resource {
    pub name: String,
    /// PostgreSQL's names are numbers.
    pub number: i64,
}

impl Resource {
    pub fn new(number: usize) -> Self {
        Self { name: format!("resource/{number}"), number: i64::try_from(number).expect("not so many") }
    }
}

/// One client, with a connection of its own.
pub trait Client: Send {
    /// Waits until it has the lock.
    fn acquire(&mut self, resource: &Resource);
    /// Waits until it is released.
    fn release(&mut self, resource: &Resource);
}

/// A client that sends many messages before it reads the replies.
pub trait Pipeline {
    /// Asks for locks and releases them, without waiting for any.
    fn ask_all(&mut self, resources: &[Resource]);
    /// Waits for all answers to so many pairs.
    fn hear_all(&mut self, pairs: usize);
}

/// A connection: its output and its input.
struct Wire {
    stream: UnixStream,
    output: Vec<u8>,
    input: Vec<u8>,
    /// The range of unread bytes in `input`.
    start: usize,
    end: usize,
    /// Spin budget before blocking on a reply.
    spin: Duration,
}

impl Wire {
    fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("the server listens");
        let (output, input, spin) = (Vec::new(), vec![0; 4 << 10], Duration::ZERO);
        Self { stream, output, input, start: 0, end: 0, spin }
    }

    fn send(&mut self) {
        self.stream.write_all(&self.output).expect("the server reads");
        self.output.clear();
    }

    /// The next message: `whole` says how long it is, if it is all there.
    fn next(&mut self, whole: impl Fn(&[u8]) -> Option<usize>) -> &[u8] {
        loop {
            let heard = &self.input[self.start..self.end];
            if let Some(length) = whole(heard) {
                self.start += length;
                return &self.input[self.start - length..self.start];
            }
            self.input.copy_within(self.start..self.end, 0);
            (self.end, self.start) = (self.end - self.start, 0);
            if self.end == self.input.len() {
                self.input.resize(2 * self.end, 0);
            }
            let count = match self.spin_for_reply() {
                0 => self.stream.read(&mut self.input[self.end..]).expect("the server answers"),
                count => count,
            };
            assert!(count > 0, "the server has gone");
            self.end += count;
        }
    }

    /// As the crate does it.
    fn spin_for_reply(&mut self) -> usize {
        let begun = Instant::now();
        while begun.elapsed() < self.spin {
            match recv(&self.stream, &mut self.input[self.end..], RecvFlags::DONTWAIT) {
                Ok((_, count)) => return count,
                Err(_) => thread::yield_now(),
            }
        }
        0
    }
}

/// As many bytes back as were sent.
pub struct Echo(Wire);

impl Echo {
    /// As long as a request.
    const MESSAGE: [u8; 32] = [7; 32];

    pub fn connect(socket: &Path) -> Self {
        Self(Wire::connect(socket))
    }

    fn echo(&mut self) {
        self.0.output.extend(Self::MESSAGE);
        self.0.send();
        self.0.next(|heard| (heard.len() >= Self::MESSAGE.len()).then_some(Self::MESSAGE.len()));
    }
}

impl Client for Echo {
    fn acquire(&mut self, _: &Resource) {
        self.echo();
    }

    fn release(&mut self, _: &Resource) {
        self.echo();
    }
}

/// One queue and nothing more.
pub struct Baton(Wire);

impl Baton {
    pub fn connect(socket: &Path) -> Self {
        Self(Wire::connect(socket))
    }
}

impl Client for Baton {
    fn acquire(&mut self, _: &Resource) {
        self.0.output.push(ASK);
        self.0.send();
        self.0.next(|heard| (!heard.is_empty()).then_some(1));
    }

    /// Does not wait, as the crate does not.
    fn release(&mut self, _: &Resource) {
        self.0.output.push(DONE);
        self.0.send();
    }
}

/// Lockkeeper's protocol and nothing more.
pub struct Raw {
    wire: Wire,
    rid: u64,
}

impl Raw {
    pub fn connect(socket: &Path) -> Self {
        let mut raw = Self { wire: Wire::connect(socket), rid: 0 };
        // Longer than a benchmark: it sends no pings.
        raw.push(&ToServer::hello("default", Some(600_000)));
        raw.wire.send();
        assert!(matches!(raw.receive(), ToClient::Welcome { .. }));
        assert!(matches!(raw.receive(), ToClient::Synced));
        raw
    }

    pub fn push(&mut self, message: &ToServer<'_>) {
        frame::append(&mut self.wire.output, |out| message.encode(out));
    }

    pub fn send(&mut self) {
        self.wire.send();
    }

    /// Asks for a lock, once it is sent. Returns its number.
    pub fn ask(&mut self, name: &str) -> u64 {
        self.rid += 1;
        let (rid, scope) = (self.rid, vec![(name.as_bytes(), Mode::Exclusive)]);
        self.push(&ToServer::Request {
            ack: 1,
            rid,
            scope,
            flags: Flags::default(),
            nested_in: None,
            info: None,
        });
        rid
    }

    /// Asks who holds and who waits for a name. Returns how many there are, and the bytes of the
    /// answer.
    pub fn query(&mut self, name: &str) -> (usize, usize) {
        self.rid += 1;
        let (rid, name) = (self.rid, Some(name.as_bytes()));
        self.push(&ToServer::Query { ack: 1, rid, name, deadlocks: false });
        self.send();
        let (mut count, mut bytes) = (0, 0);
        loop {
            let message = self.message();
            bytes += message.len();
            match ToClient::decode(message).expect("a message") {
                ToClient::Snapshot { entries, more, .. } => {
                    count += entries.len();
                    if !more {
                        return (count, bytes);
                    }
                }
                other => panic!("not a snapshot: {other:?}"),
            }
        }
    }

    /// Asks so often for everything, in one go, and reads the answers.
    pub fn query_all(&mut self, times: usize) {
        for _ in 0..times {
            self.rid += 1;
            let rid = self.rid;
            self.push(&ToServer::Query { ack: 1, rid, name: None, deadlocks: true });
        }
        self.send();
        let mut answered = 0;
        while answered < times {
            match self.receive() {
                ToClient::Snapshot { more, .. } => answered += usize::from(!more),
                other => panic!("not a snapshot: {other:?}"),
            }
        }
    }

    /// Has each of so many locks wait for the one before, nested in one that holds, and be refused
    /// if that deadlocks.
    pub fn chain(&mut self, length: u64) {
        let flags = Flags { refuse_deadlock: true, ..Flags::default() };
        let mut answers = 0;
        for _ in 0..length {
            let outer = self.ask(&format!("chain/{}", self.rid + 1));
            self.rid += 1;
            let (rid, before) = (self.rid, format!("chain/{}", outer.saturating_sub(2)));
            let scope = vec![(before.as_bytes(), Mode::Exclusive)];
            let nested_in = Some((None, outer));
            self.push(&ToServer::Request { ack: 1, rid, scope, flags, nested_in, info: None });
            answers += 2;
        }
        self.send();
        for _ in 0..answers {
            self.receive();
        }
    }

    /// Has so many requests refused that would close a cycle of 100 locks with long names.
    pub fn close_cycles(&mut self, times: usize) {
        const LOCKS: u64 = 100;
        let name = |number: u64| format!("cycle/{number}/{}", "n".repeat(30_000));
        let nested = |raw: &mut Self, name: &str, outer, flags| {
            raw.rid += 1;
            let (rid, scope, nested_in) =
                (raw.rid, vec![(name.as_bytes(), Mode::Exclusive)], Some((None, outer)));
            raw.push(&ToServer::Request { ack: 1, rid, scope, flags, nested_in, info: None });
        };
        if self.rid == 0 {
            self.ask(&name(0));
            for number in 1..LOCKS {
                let outer = self.ask(&name(number));
                nested(self, &name(number - 1), outer, Flags::default());
            }
            self.send();
            (0..2 * LOCKS - 1).for_each(|_| _ = self.receive());
        }
        let flags = Flags { refuse_deadlock: true, ..Flags::default() };
        (0..times).for_each(|_| nested(self, &name(LOCKS - 1), 1, flags));
        self.send();
        for _ in 0..times {
            assert!(matches!(self.receive(), ToClient::Deadlocked { .. }));
        }
    }

    /// Ends its session, and waits until the server has.
    pub fn end(mut self) {
        self.push(&ToServer::Bye { ack: 1 });
        self.send();
        let _ = self.wire.stream.read_to_end(&mut Vec::new());
    }

    pub fn receive(&mut self) -> ToClient<'_> {
        ToClient::decode(self.message()).expect("a message")
    }

    fn message(&mut self) -> &[u8] {
        let whole = |heard: &[u8]| {
            frame::first(heard, frame::MAX_TO_CLIENT).expect("a frame").map(|(_, length)| length)
        };
        &self.wire.next(whole)[4..]
    }
}

impl Client for Raw {
    fn acquire(&mut self, resource: &Resource) {
        self.ask(&resource.name);
        self.send();
        loop {
            match self.receive() {
                ToClient::Queued { .. } => {}
                ToClient::Granted { .. } => return,
                other => panic!("not granted: {other:?}"),
            }
        }
    }

    fn release(&mut self, _: &Resource) {
        self.push(&ToServer::Release { ack: 1, rid: self.rid, flags: EndFlags::default() });
        self.send();
        assert!(matches!(self.receive(), ToClient::Released { .. }));
    }
}

impl Pipeline for Raw {
    fn ask_all(&mut self, resources: &[Resource]) {
        for resource in resources {
            let rid = self.ask(&resource.name);
            self.push(&ToServer::Release { ack: 1, rid, flags: EndFlags::default() });
        }
        self.send();
    }

    fn hear_all(&mut self, pairs: usize) {
        for _ in 0..pairs {
            assert!(matches!(self.receive(), ToClient::Granted { .. }));
            assert!(matches!(self.receive(), ToClient::Released { .. }));
        }
    }
}

/// `SET NX PX` and a compare-and-delete. Who does not get the lock tries again after a millisecond:
/// Redis has no queue.
pub struct Redis {
    wire: Wire,
    sha: Vec<u8>,
    value: Vec<u8>,
}

impl Redis {
    const DELETE: &[u8] =
        b"if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

    /// A client that spins before it blocks, as ours does.
    pub fn spinning(socket: &Path, number: usize) -> Self {
        let mut redis = Self::connect(socket, number);
        redis.wire.spin = Duration::from_micros(50);
        redis
    }

    pub fn connect(socket: &Path, number: usize) -> Self {
        let mut wire = Wire::connect(socket);
        Self::command(&mut wire.output, &[b"SCRIPT", b"LOAD", Self::DELETE]);
        wire.send();
        let sha = Self::reply(&mut wire);
        let sha = sha.split(|byte| *byte == b'\n').nth(1).expect("a hash").trim_ascii_end().to_vec();
        // Whoever releases must know it: as long as the random values that Redis's documentation
        // advises.
        Self { wire, sha, value: format!("{number:020}").into() }
    }

    fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
        write!(out, "*{}\r\n", words.len()).expect("a vector takes it");
        for word in words {
            write!(out, "${}\r\n", word.len()).expect("a vector takes it");
            out.extend(*word);
            out.extend(b"\r\n");
        }
    }

    /// A reply of one line, or a string of one more.
    fn reply(wire: &mut Wire) -> &[u8] {
        wire.next(|heard| {
            let line = heard.iter().position(|byte| *byte == b'\n')? + 1;
            if heard[0] != b'$' || heard[1] == b'-' {
                return Some(line);
            }
            Some(line + heard[line..].iter().position(|byte| *byte == b'\n')? + 1)
        })
    }

    fn ask(&mut self, resource: &Resource) {
        let words: [&[u8]; 6] = [b"SET", resource.name.as_bytes(), &self.value, b"NX", b"PX", b"30000"];
        Self::command(&mut self.wire.output, &words);
    }

    fn cancel(&mut self, resource: &Resource) {
        let words: [&[u8]; 5] = [b"EVALSHA", &self.sha, b"1", resource.name.as_bytes(), &self.value];
        Self::command(&mut self.wire.output, &words);
    }

    fn held(&mut self) -> bool {
        Self::reply(&mut self.wire) == b"+OK\r\n"
    }

    fn released(&mut self) -> bool {
        Self::reply(&mut self.wire) == b":1\r\n"
    }
}

impl Client for Redis {
    fn acquire(&mut self, resource: &Resource) {
        loop {
            self.ask(resource);
            self.wire.send();
            if self.held() {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn release(&mut self, resource: &Resource) {
        self.cancel(resource);
        self.wire.send();
        assert!(self.released());
    }
}

impl Pipeline for Redis {
    fn ask_all(&mut self, resources: &[Resource]) {
        for resource in resources {
            self.ask(resource);
            self.cancel(resource);
        }
        self.wire.send();
    }

    fn hear_all(&mut self, pairs: usize) {
        for _ in 0..pairs {
            assert!(self.held() && self.released());
        }
    }
}

/// Prepared statements with the number of a resource.
pub struct Postgres(Wire);

impl Postgres {
    /// Advisory locks of a session.
    pub fn advisory(socket: &Path) -> Self {
        Self::connect(socket, "SELECT pg_advisory_lock($1)", "SELECT pg_advisory_unlock($1)")
    }

    /// A row that is committed for each lock.
    pub fn rows(socket: &Path) -> Self {
        Self::connect(socket, "INSERT INTO locks VALUES ($1)", "DELETE FROM locks WHERE name = $1")
    }

    fn connect(socket: &Path, acquire: &str, release: &str) -> Self {
        let mut postgres = Self(Wire::connect(socket));
        let parameters = b"user\0postgres\0database\0postgres\0\0";
        let length = u32::try_from(8 + parameters.len()).expect("short");
        postgres.0.output.extend(length.to_be_bytes());
        postgres.0.output.extend(196_608u32.to_be_bytes());
        postgres.0.output.extend(parameters);
        postgres.round_trip();
        for (statement, sql) in [("l", acquire), ("u", release)] {
            postgres.message(b'P', &[statement.as_bytes(), b"\0", sql.as_bytes(), b"\0\0\0"]);
            postgres.message(b'S', &[]);
            postgres.round_trip();
        }
        postgres
    }

    fn message(&mut self, kind: u8, parts: &[&[u8]]) {
        let length = 4 + parts.iter().map(|part| part.len()).sum::<usize>();
        self.0.output.push(kind);
        self.0.output.extend(u32::try_from(length).expect("short").to_be_bytes());
        parts.iter().for_each(|part| self.0.output.extend(*part));
    }

    fn execute(&mut self, statement: u8, key: i64) {
        // The nameless portal; one parameter, binary, of eight bytes; results, binary too.
        let end = b"\0\0\x01\0\x01\0\x01\0\0\0\x08";
        self.message(b'B', &[b"\0", &[statement], end, &key.to_be_bytes(), b"\0\x01\0\x01"]);
        self.message(b'E', &[b"\0\0\0\0\0"]);
        self.message(b'S', &[]);
        self.round_trip();
    }

    /// Sends, and waits until the server is ready for the next query.
    fn round_trip(&mut self) {
        self.0.send();
        loop {
            let message = self.0.next(|heard| {
                let length =
                    heard.get(1..5)?.try_into().map(u32::from_be_bytes).expect("four bytes") as usize + 1;
                (heard.len() >= length).then_some(length)
            });
            match message[0] {
                b'Z' => return,
                b'E' => panic!("PostgreSQL: {}", String::from_utf8_lossy(&message[5..])),
                _ => {}
            }
        }
    }
}

impl Client for Postgres {
    fn acquire(&mut self, resource: &Resource) {
        self.execute(b'l', resource.number);
    }

    fn release(&mut self, resource: &Resource) {
        self.execute(b'u', resource.number);
    }
}

/// The crate `lockkeeper`, as programs use it: it survives the daemon's death.
pub struct Ours {
    locks: Locks,
    held: Option<Lock<'static>>,
}

impl Ours {
    pub fn connect(socket: &Path) -> Self {
        let locks = Locks::connect(format!("unix:{}", socket.display()));
        Self { locks: locks.blocking().expect("the daemon serves"), held: None }
    }
}

impl Client for Ours {
    fn acquire(&mut self, resource: &Resource) {
        let lock = self.locks.acquire_blocking(resource.name.as_str());
        self.held = Some(lock.expect("the daemon is there").into_owned());
    }

    fn release(&mut self, _: &Resource) {
        self.held.take().expect("it is held").release().expect("nobody steals");
    }
}
