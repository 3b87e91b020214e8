//! `docs/protocol-vectors.txt`: other implementations are checked against what this one encodes and
//! decodes.

use lockkeeper_core::{Cause, Mode};
use lockkeeper_wire::{
    frame,
    v2::{Deadlock, EndFlags, Entry, Flags, Listed, Secret, Step, ToClient, ToServer, VERSION, feature},
};
use std::{collections::HashMap, fmt::Debug};

const FILE: &str = include_str!("../../../docs/protocol-vectors.txt");

#[test]
fn what_a_client_sends_is_as_the_vectors_have_it() {
    compare("client", to_server(), |message, out| message.encode(out), |bytes| ToServer::decode(bytes).ok());
}

#[test]
fn what_a_server_sends_is_as_the_vectors_have_it() {
    compare("server", to_client(), |message, out| message.encode(out), |bytes| ToClient::decode(bytes).ok());
}

/// A later version may add elements to any message: this one ignores them.
#[test]
fn elements_after_those_that_are_known_are_ignored() {
    // A number, text, bytes, nil, a boolean, an array within an array.
    let more = [&[7][..], b"\xa1x", b"\xc4\x01x", &[0xc0], &[0xc3], &[0x91, 0x91, 7]];
    let longer = |bytes: &[u8]| {
        // The longer form of an array's head: ten elements and these do not fit the short one.
        let count = bytes[0] - 0x90 + u8::try_from(more.len()).expect("they are few");
        [&[0xdc, 0, count][..], &bytes[1..], &more.concat()].concat()
    };
    for (title, message) in to_server() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(ToServer::decode(&longer(&bytes)), Ok(message), "{title}");
    }
    for (title, message) in to_client() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(ToClient::decode(&longer(&bytes)), Ok(message), "{title}");
    }
}

#[test]
fn a_broken_of_an_earlier_server_does_not_say_whether_by_force() {
    let earlier = [0x95, 7, 2, 4, 0, 0xc0];
    let broken = ToClient::Broken { number: 2, rid: 4, cause: Cause::Stolen, by: None, forced: false };
    assert_eq!(ToClient::decode(&earlier), Ok(broken));
}

/// The bytes stand left of the words, each frame behind an arrow.
#[test]
fn the_example_in_the_description_is_right() {
    let document = include_str!("../../../docs/protocol.md");
    let example = document.rsplit("```").nth(1).expect("the example is the last block of code");
    let mut frames: Vec<Vec<u8>> = Vec::new();
    for line in example.lines() {
        if line.starts_with(['→', '←']) {
            frames.push(Vec::new());
        }
        let digits: String = line.chars().take(39).filter(char::is_ascii_hexdigit).collect();
        if let Some(frame) = frames.last_mut() {
            frame.extend(from_hex(&digits));
        }
    }
    let (asked, told) = (to_server(), to_client());
    let said = |title| asked.iter().find(|(other, _)| *other == title).map(|(_, message)| message.clone());
    let heard = |title| told.iter().find(|(other, _)| *other == title).map(|(_, message)| message.clone());
    let to_server = |message: Option<ToServer<'_>>| framed(|out| message.expect("a vector").encode(out));
    let to_client = |message: Option<ToClient<'_>>| framed(|out| message.expect("a vector").encode(out));
    let expected = [
        to_server(said("hello: a new session")),
        to_client(heard("welcome: a new session")),
        to_client(heard("synced")),
        to_server(said("request: one name")),
        to_client(heard("granted")),
        to_server(said("release")),
        to_client(heard("released")),
        to_server(said("bye")),
    ];
    assert_eq!(frames, expected);
}

fn framed(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    frame::append(&mut out, write);
    out
}

/// Every message has its line, every line its message, and they agree in both directions.
fn compare<M: Debug + PartialEq>(
    speaker: &str,
    messages: Vec<(&'static str, M)>,
    encode: impl Fn(&M, &mut Vec<u8>),
    decode: impl Fn(&'static [u8]) -> Option<M>,
) {
    let mut file = read(speaker);
    let mut missing = String::new();
    for (title, message) in messages {
        let mut bytes = Vec::new();
        encode(&message, &mut bytes);
        let line = format!("{} | {}", render(&mut &bytes[..]), to_hex(&bytes));
        let Some(found) = file.remove(title) else {
            missing += &format!("{speaker} | {title} | {line}\n");
            continue;
        };
        assert_eq!(found, line, "{title}");
        // Leaked: a message borrows from its bytes, and these are few.
        let bytes = from_hex(found.rsplit_once(" | ").expect("it was compared").1).leak();
        assert_eq!(decode(bytes), Some(message), "{title}");
    }
    assert!(missing.is_empty(), "lines are missing:\n{missing}");
    assert!(file.is_empty(), "lines that no message is known for: {file:#?}");
}

/// The lines of one speaker, by their titles.
fn read(speaker: &str) -> HashMap<&'static str, &'static str> {
    let mut lines = HashMap::new();
    for line in FILE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut fields = line.splitn(3, " | ");
        let (Some(who), Some(title), Some(rest)) = (fields.next(), fields.next(), fields.next()) else {
            panic!("not a vector: {line}");
        };
        assert!(["client", "server"].contains(&who), "{who} is neither side: {line}");
        if who == speaker {
            assert_eq!(lines.insert(title, rest), None, "{title} stands twice");
        }
    }
    lines
}

const SECRET: Secret = *b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\xff";
/// A number that a double cannot hold.
const BIG: u64 = (1 << 53) + 1;
/// U+D83D, half of a character, as WTF-8.
const SURROGATE: &[u8] = b"\xed\xa0\xbd";
const LONG_NAME: &[u8] = &[b'n'; 256];
const LABEL: &str = "a label of more than thirty-one bytes";
const CLIENT: &str = "0123456789abcdef";

fn to_server() -> Vec<(&'static str, ToServer<'static>)> {
    use Mode::{Exclusive, Shared};
    let none = Flags::default();
    let plain =
        |rid, scope| ToServer::Request { ack: 1, rid, scope, flags: none, nested_in: None, info: None };
    let flagged = |rid, flags| ToServer::Request {
        ack: 1,
        rid,
        scope: vec![(b"a", Exclusive)],
        flags,
        nested_in: None,
        info: None,
    };
    let nested = |rid, nested_in, info| ToServer::Request {
        ack: BIG,
        rid,
        scope: vec![(b"inner", Exclusive)],
        flags: none,
        nested_in,
        info,
    };
    let hello = |hello, resume, ack, token| ToServer::Hello {
        version: VERSION,
        features: 0,
        hello,
        bucket: "default",
        resume,
        ack,
        token,
        ttl: None,
        owner: None,
    };
    let release =
        |rid, quiet, timed_out| ToServer::Release { ack: 1, rid, flags: EndFlags { quiet, timed_out } };
    vec![
        ("hello: a new session", hello(1, None, 0, None)),
        ("hello: a session is resumed", hello(2, Some((CLIENT, SECRET)), 7, None)),
        ("hello: with credentials", hello(1, None, 0, Some("e30.e30."))),
        (
            "hello: a descriptor can be received, a lease is wished for, and who it is",
            ToServer::Hello {
                version: VERSION,
                features: feature::FIFO | feature::GOING_AWAY_ENDS,
                hello: BIG,
                bucket: "a bucket of more than thirty-one bytes",
                resume: None,
                ack: BIG,
                token: None,
                ttl: Some(30_000),
                owner: Some("alice@build-7 make"),
            },
        ),
        (
            "hello: a later version",
            ToServer::Hello {
                version: u32::MAX,
                features: u64::MAX,
                hello: 1,
                bucket: "b",
                resume: None,
                ack: 0,
                token: None,
                ttl: None,
                owner: None,
            },
        ),
        ("request: one name", plain(1, vec![(b"a", Exclusive)])),
        ("request: shared", plain(2, vec![(b"a", Shared)])),
        ("request: the empty name", plain(3, vec![(b"", Exclusive)])),
        ("request: a name that is a lone surrogate", plain(4, vec![(SURROGATE, Exclusive)])),
        ("request: a name that is not text", plain(5, vec![(b"\xff\x00", Exclusive)])),
        ("request: a name of 255 bytes", plain(6, vec![(&LONG_NAME[1..], Exclusive)])),
        ("request: a name of 256 bytes", plain(7, vec![(LONG_NAME, Exclusive)])),
        ("request: no name, which is refused", plain(8, vec![])),
        ("request: two names, each in its mode", plain(9, vec![(b"from", Exclusive), (b"to", Shared)])),
        ("request: sixteen names", plain(10, vec![(b"x", Shared); 16])),
        ("request: if available", flagged(127, Flags { if_available: true, ..none })),
        ("request: steal", flagged(128, Flags { steal: true, ..none })),
        ("request: refuse a deadlock", flagged(255, Flags { refuse_deadlock: true, ..none })),
        (
            "request: every flag, which is refused",
            flagged(256, Flags { if_available: true, steal: true, refuse_deadlock: true }),
        ),
        ("request: nested, with a label", nested(65_536, Some((None, 65_535)), Some(LABEL))),
        ("request: nested in one of another session", nested(BIG, Some((Some(CLIENT), BIG)), None)),
        ("request: an empty label is not none", nested(2, Some((None, 0)), Some(""))),
        ("release", release(1, false, false)),
        ("release: no answer is needed", release(7, true, false)),
        ("release: its timeout expired", release(BIG, false, true)),
        ("release: both, and the greatest number", release(u64::MAX, true, true)),
        ("force release", ToServer::ForceRelease { ack: 1, rid: 11, name: b"a" }),
        ("force release: the empty name", ToServer::ForceRelease { ack: 1, rid: 12, name: b"" }),
        ("end session", ToServer::EndSession { ack: 1, rid: 13, client_id: CLIENT }),
        ("query: everything", ToServer::Query { ack: 1, rid: 14, name: None, deadlocks: false }),
        ("query: with deadlocks", ToServer::Query { ack: 1, rid: 15, name: None, deadlocks: true }),
        ("query: one name", ToServer::Query { ack: 1, rid: 16, name: Some(b"a"), deadlocks: false }),
        (
            "query: the empty name is not everything",
            ToServer::Query { ack: 1, rid: 17, name: Some(b""), deadlocks: false },
        ),
        ("ping", ToServer::Ping { ack: 1, seq: 1 }),
        ("ping: big numbers", ToServer::Ping { ack: u64::MAX, seq: BIG }),
        ("confirm", ToServer::Confirm { ack: 1 }),
        ("bye", ToServer::Bye { ack: 1 }),
        ("subscribe", ToServer::Subscribe { ack: 1, rid: 18 }),
        ("subscribe: big numbers", ToServer::Subscribe { ack: BIG, rid: u64::MAX }),
    ]
}

fn to_client() -> Vec<(&'static str, ToClient<'static>)> {
    let held = Entry {
        name: b"a",
        mode: Mode::Exclusive,
        client_id: CLIENT,
        arrival: 0,
        token: Some(BIG),
        info: Some("label"),
        since: 1_500,
        nested_in: Some(BIG),
        stole: true,
        owner: Some("alice@build-7 make"),
    };
    let waiting = Entry {
        name: SURROGATE,
        mode: Mode::Shared,
        client_id: "fedcba9876543210",
        arrival: u64::MAX,
        token: None,
        info: None,
        since: 0,
        nested_in: None,
        stole: false,
        owner: None,
    };
    let changed = held.clone();
    let deadlock = Deadlock {
        words: "a cycle \u{2026}",
        cycle: vec![
            Step { arrival: BIG, client_id: CLIENT, waits_for: Some(b"a") },
            Step { arrival: 0, client_id: "fedcba9876543210", waits_for: None },
        ],
    };
    let welcome = |number, ttl, resumed, last_rid| ToClient::Welcome {
        version: VERSION,
        features: 0,
        number,
        client_id: CLIENT,
        secret: SECRET,
        ttl,
        resumed,
        last_rid,
    };
    let snapshot = |rid, entries, deadlocks, last_token, more| ToClient::Snapshot {
        rid,
        entries,
        deadlocks,
        last_token,
        more,
    };
    let listed = |rid, token| Listed { rid, arrival: 100 + rid, token };
    vec![
        ("welcome: a new session", welcome(1, 10_000, false, 0)),
        ("welcome: a session is resumed, and lives by its descriptor", welcome(9, 0, true, 300)),
        ("welcome: big numbers", welcome(BIG, u64::MAX, true, BIG)),
        (
            "listed: held and waiting",
            ToClient::Listed { requests: vec![listed(1, Some(42)), listed(2, None)] },
        ),
        ("listed: nothing", ToClient::Listed { requests: vec![] }),
        ("synced", ToClient::Synced),
        ("granted", ToClient::Granted { rid: 1, token: 42 }),
        ("granted: big numbers", ToClient::Granted { rid: BIG, token: u64::MAX }),
        ("queued", ToClient::Queued { rid: 2, arrival: 0 }),
        ("queued: a big arrival", ToClient::Queued { rid: 2, arrival: BIG }),
        ("unavailable", ToClient::Unavailable { rid: 3 }),
        ("released", ToClient::Released { rid: 1 }),
        ("released: the greatest number", ToClient::Released { rid: u64::MAX }),
        (
            "broken: stolen",
            ToClient::Broken {
                number: 2,
                rid: 4,
                cause: Cause::Stolen,
                by: Some("bob@build-8"),
                forced: false,
            },
        ),
        (
            "broken: released by force",
            ToClient::Broken {
                number: 2,
                rid: 4,
                cause: Cause::Stolen,
                by: Some("bob@build-8"),
                forced: true,
            },
        ),
        (
            "broken: lost",
            ToClient::Broken { number: BIG, rid: 5, cause: Cause::Lost, by: None, forced: false },
        ),
        ("outcome", ToClient::Outcome { number: 3, rid: 11, count: 2 }),
        ("refused", ToClient::Refused { rid: 6, code: 1, message: "names that start with '-' are reserved" }),
        ("refused: without words", ToClient::Refused { rid: 6, code: u32::MAX, message: "" }),
        ("deadlocked", ToClient::Deadlocked { rid: 8, deadlock: deadlock.clone() }),
        (
            "deadlocked: no more is to be known",
            ToClient::Deadlocked { rid: 9, deadlock: Deadlock { words: "a cycle", cycle: vec![] } },
        ),
        ("snapshot: nothing", snapshot(14, vec![], vec![], 0, false)),
        ("snapshot", snapshot(16, vec![held, waiting.clone()], vec![], BIG, false)),
        ("snapshot: sixteen entries, and more to come", snapshot(14, vec![waiting; 16], vec![], 1, true)),
        ("snapshot: a deadlock", snapshot(15, vec![], vec![deadlock], 1, false)),
        (
            "changes: nothing but the end",
            ToClient::Changes { rid: 18, entries: vec![], gone: vec![], last_token: 0, more: false },
        ),
        (
            "changes",
            ToClient::Changes {
                rid: BIG,
                entries: vec![changed],
                gone: vec![0, 7, BIG],
                last_token: BIG,
                more: true,
            },
        ),
        ("pong", ToClient::Pong { seq: 1 }),
        ("pong: a big number", ToClient::Pong { seq: BIG }),
        ("fifo", ToClient::Fifo),
        ("confirmed", ToClient::Confirmed),
        (
            "goodbye",
            ToClient::Goodbye { code: 17, message: "number 1 does not come after 2 \u{2026} \u{1f512}" },
        ),
    ]
}

/// The value that `bytes` begin with, for people. Written for itself, from MessagePack's own
/// description: it would not share a mistake with the crate.
fn render(bytes: &mut &[u8]) -> String {
    let first = take(bytes, 1)[0];
    match first {
        0x00..=0x7f => first.to_string(),
        0x90..=0x9f => array(bytes, (first & 15).into()),
        0xa0..=0xbf => text(bytes, (first & 31).into()),
        0xc0 => "nil".into(),
        0xc2 => "false".into(),
        0xc3 => "true".into(),
        0xc4 => binary(bytes, 1),
        0xc5 => binary(bytes, 2),
        0xcc..=0xcf => number(bytes, 1 << (first - 0xcc)).to_string(),
        0xd9 => {
            let length = number(bytes, 1);
            text(bytes, length)
        }
        0xdc => {
            let length = number(bytes, 2);
            array(bytes, length)
        }
        _ => panic!("the vectors have no use for {first:#x}"),
    }
}

fn take<'a>(bytes: &mut &'a [u8], length: u64) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(usize::try_from(length).expect("vectors are short"));
    *bytes = rest;
    taken
}

fn number(bytes: &mut &[u8], length: u64) -> u64 {
    take(bytes, length).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn array(bytes: &mut &[u8], length: u64) -> String {
    let elements: Vec<_> = (0..length).map(|_| render(bytes)).collect();
    format!("[{}]", elements.join(", "))
}

fn text(bytes: &mut &[u8], length: u64) -> String {
    format!("{:?}", std::str::from_utf8(take(bytes, length)).expect("text is UTF-8"))
}

fn binary(bytes: &mut &[u8], length: u64) -> String {
    let length = number(bytes, length);
    let value = take(bytes, length);
    match length {
        0..=16 => format!("b\"{}\"", value.escape_ascii()),
        _ => format!("b\"{}\" * {length}", value[..1].escape_ascii()),
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(hex: &str) -> Vec<u8> {
    let digit = |digit: u8| char::from(digit).to_digit(16).expect("a hexadecimal digit");
    let byte =
        |pair: &[u8]| u8::try_from(digit(pair[0]) << 4 | digit(pair[1])).expect("two digits are a byte");
    hex.as_bytes().chunks_exact(2).map(byte).collect()
}
