//! Clients that do not keep to the protocol lose their connection, and nobody else anything.

use crate::{
    client::{Client, framed, hello},
    daemon::Daemon,
};
use lockkeeper_core::Mode;
use lockkeeper_server::code;
use lockkeeper_wire::{
    frame,
    v2::{Flags, ToClient, ToServer},
};

/// Two who have to do with a lock, and one who looks on.
struct Witnesses {
    holder: Client,
    waiter: Client,
    observer: Client,
}

impl Witnesses {
    fn new(daemon: &Daemon) -> Self {
        let [mut holder, mut waiter, observer] = [(); 3].map(|()| Client::open(daemon));
        holder.hold("treasure");
        waiter.wait_for("treasure");
        Self { holder, waiter, observer }
    }

    /// Nothing has happened to the lock.
    fn saw_nothing(&mut self) {
        let untouched = [(self.holder.id.clone(), true), (self.waiter.id.clone(), false)];
        assert_eq!(self.observer.queue_of("treasure"), untouched);
    }

    /// Nothing was said to either, and both are served.
    fn live_on(mut self) {
        self.saw_nothing();
        self.holder.release(1);
        self.waiter.granted(1);
        self.waiter.release(1);
        assert_eq!(self.observer.queue_of("treasure"), []);
    }
}

#[test]
fn bytes_that_are_no_message_end_their_connection_only() {
    let daemon = Daemon::start();
    let mut witnesses = Witnesses::new(&daemon);
    let nonsense: [(&str, &[u8]); 15] = [
        ("nothing", b""),
        ("no array", b"\x07"),
        ("an empty array", b"\x90"),
        ("a map", b"\x81\x00\x01"),
        ("an array that says it is longer", b"\x94\x02\x00"),
        ("an array that says it is huge", b"\xdd\xff\xff\xff\xff"),
        ("no such message", b"\x92\x09\x00"),
        ("a kind below zero", b"\x91\xff"),
        ("a kind that is text", b"\x91\xa1a"),
        ("an element too few", b"\x93\x02\x00\x07"),
        ("bytes after the end", b"\x93\x06\x00\x07\x00"),
        ("a number below zero", b"\x93\x06\x00\xff"),
        ("a number that is nil", b"\x93\x06\x00\xc0"),
        ("a name that is text", b"\x94\x03\x00\x63\xa1a"),
        ("no such flag", b"\x97\x01\x00\x63\x91\x92\xc4\x01a\xc2\x08\xc0\xc0"),
    ];
    for (what, message) in nonsense {
        for greeted in [false, true] {
            let mut intruder = if greeted { Client::open(&daemon) } else { Client::mute(&daemon) };
            let mut bytes = Vec::new();
            frame::append(&mut bytes, |out| out.extend(message));
            intruder.write(&bytes);
            let (code, words) = intruder.goodbye();
            assert_eq!(code, code::MALFORMED, "{what}: {words}");
            assert!(words.starts_with("malformed message: "), "{what}: {words}");
        }
        witnesses.saw_nothing();
    }
    witnesses.live_on();
}

#[test]
fn a_message_that_is_too_long_is_refused_by_its_length_alone() {
    let daemon = Daemon::start();
    let mut witnesses = Witnesses::new(&daemon);
    let one_too_many = u32::try_from(frame::MAX + 1).expect("a length is a u32");
    for length in [one_too_many, u32::MAX] {
        let mut intruder = Client::open(&daemon);
        intruder.write(&length.to_be_bytes());
        let (code, words) = intruder.goodbye();
        assert_eq!(code, code::MALFORMED);
        assert!(words.contains("too long") && words.contains(&frame::MAX.to_string()), "{words}");
    }
    // A client that keeps writing is not read any more, and still receives the reason.
    let mut intruder = Client::open(&daemon);
    intruder.write_in_vain(&[&one_too_many.to_be_bytes()[..], &vec![0; frame::MAX + 1]].concat());
    assert_eq!(intruder.goodbye().0, code::MALFORMED);
    witnesses.saw_nothing();
    witnesses.live_on();
}

#[test]
fn the_longest_message_is_taken() {
    let daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    // A query for a name that makes the message as long as can be: [5, 0, 1, bin32, false].
    let name = vec![b'n'; frame::MAX - 10];
    client.say(&ToServer::Query { ack: 0, rid: 1, name: Some(&name), deadlocks: false });
    assert!(matches!(client.hear(), ToClient::Snapshot { rid: 1, .. }));
}

#[test]
fn numbers_that_do_not_grow_end_their_connection_only() {
    let daemon = Daemon::start();
    let mut witnesses = Witnesses::new(&daemon);
    let again = |rid| {
        let scope = vec![(&b"mine"[..], Mode::Exclusive)];
        let request =
            ToServer::Request { ack: 0, rid, scope, flags: Flags::default(), nested_in: None, info: None };
        [
            request,
            ToServer::Query { ack: 0, rid, name: None, deadlocks: false },
            ToServer::ForceRelease { ack: 0, rid, name: b"treasure" },
        ]
    };
    for (rid, number) in [(0, "number 0"), (4, "number 4"), (5, "number 5")] {
        for message in again(rid) {
            let mut intruder = Client::open(&daemon);
            intruder.last_rid = 4;
            intruder.hold("mine");
            intruder.say(&message);
            let (code, words) = intruder.goodbye();
            assert_eq!(code, code::OUT_OF_ORDER, "{message:?}");
            assert!(words.contains(number) && words.contains("after 5"), "{words}");
            // Its session goes on as long as it has its descriptor, and its connection can be
            // replaced.
            assert_eq!(witnesses.observer.queue_of("mine"), [(intruder.id.clone(), true)]);
            assert!(intruder.resume(&daemon).resumed);
            intruder.bye();
        }
    }
    witnesses.live_on();
}

#[test]
fn what_follows_the_mistake_is_not_looked_at() {
    let daemon = Daemon::start();
    let witnesses = Witnesses::new(&daemon);
    let mut intruder = Client::open(&daemon);
    let force = framed(&ToServer::ForceRelease { ack: 0, rid: 1, name: b"treasure" });
    intruder.write(&[&b"\0\0\0\x01\xc0"[..], &force].concat());
    assert_eq!(intruder.goodbye().0, code::MALFORMED);
    witnesses.live_on();
}

#[test]
fn what_precedes_the_mistake_is_answered() {
    let daemon = Daemon::start();
    let mut intruder = Client::open(&daemon);
    let ping = framed(&ToServer::Ping { ack: 0, seq: 1 });
    intruder.write(&[&ping[..], &ping, b"\0\0\0\x01\xc0"].concat());
    assert_eq!(intruder.hear(), ToClient::Pong { seq: 1 });
    assert_eq!(intruder.hear(), ToClient::Pong { seq: 1 });
    assert_eq!(intruder.goodbye().0, code::MALFORMED);
}

#[test]
fn a_connection_that_ends_within_a_message_has_said_nothing() {
    let daemon = Daemon::start();
    let mut witnesses = Witnesses::new(&daemon);
    let hello = framed(&hello("default"));
    let force = framed(&ToServer::ForceRelease { ack: 0, rid: 1, name: b"treasure" });
    for length in 0..hello.len() {
        let mut intruder = Client::mute(&daemon);
        intruder.write(&hello[..length]);
        intruder.fall_silent();
        assert_eq!(intruder.hear_or_end(), None);
    }
    for length in 0..force.len() {
        let mut intruder = Client::open(&daemon);
        intruder.write(&force[..length]);
        intruder.fall_silent();
        assert_eq!(intruder.hear_or_end(), None);
        witnesses.saw_nothing();
    }
    witnesses.live_on();
}

#[test]
fn a_message_may_come_in_as_many_pieces_as_it_likes() {
    let daemon = Daemon::start();
    let mut client = Client::mute(&daemon);
    for byte in framed(&hello("default")) {
        client.write(&[byte]);
    }
    assert!(matches!(client.hear(), ToClient::Welcome { .. }));
    assert_eq!(client.hear(), ToClient::Synced);
    // And several in one.
    let ping = framed(&ToServer::Ping { ack: 0, seq: 1 });
    client.write(&ping.repeat(1_000));
    for _ in 0..1_000 {
        assert_eq!(client.hear(), ToClient::Pong { seq: 1 });
    }
}

#[test]
fn noise_on_thousands_of_connections_is_survived() {
    let daemon = Daemon::start();
    let mut witnesses = Witnesses::new(&daemon);
    let hello = framed(&hello("default"));
    let mut random = Random(7);
    for round in 0..3_000_u32 {
        let mut intruder = Client::mute(&daemon);
        let length = random.below(200);
        let mut noise: Vec<u8> = (0..length).map(|_| random.byte()).collect();
        // A length of four random bytes is almost always too great: let two of three come further
        // than that.
        if round % 3 > 0 {
            let claimed = u32::try_from(random.below(64)).expect("it is small").to_be_bytes();
            noise.splice(..0, claimed);
        }
        if round % 2 > 0 {
            noise.splice(..0, hello.iter().copied());
        }
        intruder.write_in_vain(&noise);
        intruder.fall_silent();
        while intruder.hear_or_end().is_some() {}
        if round % 100 == 0 {
            witnesses.saw_nothing();
        }
    }
    witnesses.live_on();
}

#[test]
fn messages_in_any_order_and_with_any_damage_are_survived() {
    let daemon = Daemon::start();
    let mut witnesses = Witnesses::new(&daemon);
    let vectors = include_str!("../../../../docs/protocol-vectors.txt");
    let said: Vec<Vec<u8>> =
        vectors.lines().filter(|line| line.starts_with("client | ")).map(bytes_of).collect();
    assert!(said.len() > 10);
    let hello = framed(&hello("default"));
    let mut random = Random(8);
    for round in 0..3_000_u32 {
        let mut intruder = Client::mute(&daemon);
        let mut stream = hello.clone();
        for _ in 0..random.below(12) {
            let message = &said[random.below(said.len())];
            frame::append(&mut stream, |out| out.extend(message));
        }
        if round % 2 > 0 {
            let at = random.below(stream.len());
            stream[at] = random.byte();
        }
        intruder.write_in_vain(&stream);
        intruder.fall_silent();
        while intruder.hear_or_end().is_some() {}
        if round % 100 == 0 {
            witnesses.saw_nothing();
        }
    }
    witnesses.live_on();
}

/// The bytes of a line of the vectors.
fn bytes_of(line: &str) -> Vec<u8> {
    let (_, hex) = line.rsplit_once(" | ").expect("the last field is the bytes");
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// SplitMix64: the same numbers every time, so that what failed fails again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("it is below a usize")
    }
}
