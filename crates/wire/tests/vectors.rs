//! `docs/protocol-vectors.txt`: what other implementations are checked against is what this one says and understands.

use lockkeeper_core::{Cause, Mode};
use lockkeeper_wire::{Claim, Deadlock, Entry, Flags, Seal, Step, ToClient, ToServer, VERSION, frame};
use std::{collections::HashMap, fmt::Debug};

const FILE: &str = include_str!("../../../docs/protocol-vectors.txt");

#[test]
fn what_a_client_says_is_as_the_vectors_have_it() {
    compare("client", to_server(), |message, out| message.encode(out), |bytes| ToServer::decode(bytes).ok());
}

#[test]
fn what_a_daemon_says_is_as_the_vectors_have_it() {
    compare("daemon", to_client(), |message, out| message.encode(out), |bytes| ToClient::decode(bytes).ok());
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
        to_server(said("request: one name, nothing else")),
        to_client(heard("granted")),
        to_server(Some(ToServer::Release { rid: 1 })),
        to_client(Some(ToClient::Released { rid: 1 })),
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
        assert!(["client", "daemon"].contains(&who), "{who} is neither side: {line}");
        if who == speaker {
            assert_eq!(lines.insert(title, rest), None, "{title} stands twice");
        }
    }
    lines
}

const SEAL: Seal = *b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\xff";
/// A number that a double cannot hold.
const BIG: u64 = (1 << 53) + 1;
/// U+D83D, half of a character, as WTF-8.
const SURROGATE: &[u8] = b"\xed\xa0\xbd";
const LONG_NAME: &[u8] = &[b'n'; 256];
const LABEL: &str = "a label of more than thirty-one bytes";

fn to_server() -> Vec<(&'static str, ToServer<'static>)> {
    use Mode::{Exclusive, Shared};
    let plain =
        |rid, scope| ToServer::Request { rid, scope, flags: Flags::default(), nested_in: None, info: None };
    let flagged = |rid, flags| ToServer::Request {
        rid,
        scope: vec![(b"a", Exclusive)],
        flags,
        nested_in: None,
        info: None,
    };
    let none = Flags::default();
    vec![
        (
            "hello: a new session",
            ToServer::Hello { version: VERSION, bucket: "default", resume: None, token: None },
        ),
        (
            "hello: a session goes on",
            ToServer::Hello {
                version: VERSION,
                bucket: "default",
                resume: Some(("0123456789abcdef", SEAL)),
                token: None,
            },
        ),
        (
            "hello: with credentials",
            ToServer::Hello { version: VERSION, bucket: "default", resume: None, token: Some("e30.e30.") },
        ),
        (
            "hello: a version to come",
            ToServer::Hello { version: u32::MAX, bucket: "b", resume: None, token: None },
        ),
        ("request: one name, nothing else", plain(1, vec![(b"a", Exclusive)])),
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
        (
            "request: nested, with a label",
            ToServer::Request {
                rid: 65_536,
                scope: vec![(b"inner", Exclusive)],
                flags: none,
                nested_in: Some(65_535),
                info: Some(LABEL),
            },
        ),
        (
            "request: an empty label is not none",
            ToServer::Request {
                rid: BIG,
                scope: vec![(b"a", Exclusive)],
                flags: none,
                nested_in: Some(0),
                info: Some(""),
            },
        ),
        ("release", ToServer::Release { rid: 7 }),
        ("release: 2^53 + 1", ToServer::Release { rid: BIG }),
        ("release: the greatest number", ToServer::Release { rid: u64::MAX }),
        ("abort", ToServer::Abort { rid: 4_294_967_296, timed_out: false }),
        ("abort: its time was up", ToServer::Abort { rid: 7, timed_out: true }),
        ("force release", ToServer::ForceRelease { rid: 11, name: b"a" }),
        ("force release: the empty name", ToServer::ForceRelease { rid: 12, name: b"" }),
        ("query: everything", ToServer::Query { rid: 13, name: None, deadlocks: false }),
        ("query: with deadlocks", ToServer::Query { rid: 16, name: None, deadlocks: true }),
        ("query: one name", ToServer::Query { rid: 14, name: Some(b"a"), deadlocks: false }),
        (
            "query: the empty name is not everything",
            ToServer::Query { rid: 15, name: Some(b""), deadlocks: false },
        ),
        (
            "reclaim: held",
            ToServer::Reclaim {
                rid: 1,
                scope: vec![(b"a", Exclusive)],
                info: Some("label"),
                claim: Claim::Held { token: BIG, receipt: SEAL },
            },
        ),
        (
            "reclaim: waiting",
            ToServer::Reclaim {
                rid: 2,
                scope: vec![(b"a", Shared), (SURROGATE, Exclusive)],
                info: None,
                claim: Claim::Waiting { ticket: Some(u64::MAX) },
            },
        ),
        (
            "reclaim: waiting, without a ticket",
            ToServer::Reclaim {
                rid: 3,
                scope: vec![(b"a", Exclusive)],
                info: None,
                claim: Claim::Waiting { ticket: None },
            },
        ),
        ("ready", ToServer::Ready),
        ("ping", ToServer::Ping),
        ("bye", ToServer::Bye),
        ("heir", ToServer::Heir { pid: 4_194_304 }),
        ("drop", ToServer::Drop { rid: 8 }),
    ]
}

fn to_client() -> Vec<(&'static str, ToClient<'static>)> {
    let held = Entry {
        name: b"a",
        mode: Mode::Exclusive,
        client_id: "0123456789abcdef",
        ticket: 0,
        token: Some(BIG),
        info: Some("label"),
        since: 1_500,
        nested_in: Some(BIG),
        stole: true,
        pid: Some(4_194_304),
    };
    let waiting = Entry {
        name: SURROGATE,
        mode: Mode::Shared,
        client_id: "fedcba9876543210",
        ticket: u64::MAX,
        token: None,
        info: None,
        since: 0,
        nested_in: None,
        stole: false,
        pid: None,
    };
    let deadlock = Deadlock {
        words: "a circle \u{2026}",
        cycle: vec![
            Step { ticket: BIG, client_id: "0123456789abcdef", waits_for: Some(b"a") },
            Step { ticket: 0, client_id: "fedcba9876543210", waits_for: None },
        ],
    };
    let welcome = |ttl, resumed| ToClient::Welcome {
        version: VERSION,
        client_id: "0123456789abcdef",
        secret: SEAL,
        ttl,
        resumed,
    };
    vec![
        ("welcome: a new session", welcome(10_000, false)),
        ("welcome: the session goes on", welcome(u64::MAX, true)),
        ("granted", ToClient::Granted { rid: 1, token: 42, receipt: SEAL }),
        ("granted: big numbers", ToClient::Granted { rid: BIG, token: u64::MAX, receipt: [0xff; 16] }),
        ("queued", ToClient::Queued { rid: 2, ticket: 0 }),
        ("queued: a big ticket", ToClient::Queued { rid: 2, ticket: BIG }),
        ("unavailable", ToClient::Unavailable { rid: 3 }),
        ("released", ToClient::Released { rid: 7 }),
        ("aborted", ToClient::Aborted { rid: u64::MAX }),
        ("broken: stolen", ToClient::Broken { rid: 4, cause: Cause::Stolen }),
        ("broken: lost", ToClient::Broken { rid: 5, cause: Cause::Lost }),
        ("refused", ToClient::Refused { rid: 6, code: 1, message: "names that start with '-' are reserved" }),
        ("refused: without words", ToClient::Refused { rid: 6, code: u32::MAX, message: "" }),
        (
            "snapshot: nothing",
            ToClient::Snapshot { rid: 13, entries: vec![], deadlocks: vec![], last_token: 0 },
        ),
        (
            "snapshot",
            ToClient::Snapshot {
                rid: 14,
                entries: vec![held, waiting.clone()],
                deadlocks: vec![],
                last_token: BIG,
            },
        ),
        (
            "snapshot: sixteen entries",
            ToClient::Snapshot { rid: 15, entries: vec![waiting; 16], deadlocks: vec![], last_token: 1 },
        ),
        (
            "snapshot: a deadlock",
            ToClient::Snapshot { rid: 16, entries: vec![], deadlocks: vec![deadlock.clone()], last_token: 1 },
        ),
        ("deadlocked", ToClient::Deadlocked { rid: 8, deadlock }),
        (
            "deadlocked: no more is to be known",
            ToClient::Deadlocked { rid: 9, deadlock: Deadlock { words: "a circle", cycle: vec![] } },
        ),
        ("pong", ToClient::Pong),
        (
            "goodbye",
            ToClient::Goodbye { code: 17, message: "number 1 does not come after 2 \u{2026} \u{1f512}" },
        ),
    ]
}

/// The value that `bytes` begin with, for people. Written for itself, from MessagePack's own description: it would not
/// share a mistake with the crate.
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
