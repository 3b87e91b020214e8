//! What nobody means well with, on the network: it harms nobody else.

use crate::{
    client::Client,
    daemon::{Daemon, in_a_fleet},
    web,
};
use lockkeeper_server::code;
use lockkeeper_wire::{
    frame,
    v2::{EndFlags, Flags, ToClient, ToServer},
    websocket::first_message,
};
use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};
use tungstenite::{
    Message,
    protocol::frame::{
        Frame,
        coding::{Data, OpCode},
    },
};

/// Random enough, and the same each time.
struct Noise(u64);

impl Noise {
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut next = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0.to_le_bytes()[3]
        };
        (0..length).map(|_| next()).collect()
    }
}

/// A lock is had and released: the daemon is well.
fn well(daemon: &Daemon) {
    let mut client = Client::on_network(daemon);
    let held = client.hold("well");
    client.release(held.rid);
}

#[test]
fn noise_instead_of_http_is_answered_or_cut_off() {
    let daemon = Daemon::on_network();
    let mut noise = Noise(1);
    for length in [1, 10, 100, 1_000, 10_000, 100_000] {
        let mut stream = web::dial(&daemon);
        let _ = stream.write_all(&noise.bytes(length));
        let _ = stream.write_all(b"\r\n\r\n");
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{length}");
    }
    well(&daemon);
}

#[test]
fn noise_instead_of_frames_ends_that_connection_only() {
    let daemon = Daemon::on_network();
    let mut noise = Noise(2);
    for round in 0..200 {
        let mut client =
            if round % 2 == 0 { Client::on_network(&daemon) } else { Client::mute_on_network(&daemon) };
        let bytes = noise.bytes(1 + round * 7);
        let _ = client.web().get_mut().write_all(&bytes);
        let _ = client.web().get_mut().flush();
    }
    well(&daemon);
}

#[test]
fn noise_instead_of_messages_is_malformed() {
    let daemon = Daemon::on_network();
    let mut noise = Noise(3);
    for round in 0..100 {
        let mut client = Client::on_network(&daemon);
        let mut bytes = noise.bytes(1 + round);
        bytes[0] |= 0xe0;
        web::say(client.web(), bytes);
        assert_eq!(client.goodbye().0, code::MALFORMED);
    }
    well(&daemon);
}

#[test]
fn a_mistake_ends_the_connection_and_leaves_the_session() {
    let daemon = Daemon::on_network();
    let (mut client, mut next) = (Client::on_network(&daemon), Client::on_network(&daemon));
    let held = client.hold("a");
    let waiting = next.wait_for("a");
    web::say(client.web(), vec![0xc1]);
    assert_eq!(client.goodbye().0, code::MALFORMED);
    assert_eq!(client.resume(&daemon).listed[0].rid, held.rid);
    client.release(held.rid);
    next.granted(waiting.rid);
}

#[test]
fn text_is_no_message() {
    let daemon = Daemon::on_network();
    let mut client = Client::on_network(&daemon);
    client.web().send(Message::text("hello")).expect("the daemon listens");
    let (code, words) = client.goodbye();
    assert!(code == code::MALFORMED && words.contains("binary"), "{words}");
}

#[test]
fn frames_against_the_rules_are_refused() {
    let daemon = Daemon::on_network();
    // Unmasked; reserved bits; no such frame; the rest of nothing; a ping in parts; a ping that is
    // too long; a message within a message.
    let broken: [&[u8]; 7] = [
        b"\x82\x01a",
        b"\xc2\x81mask\0",
        b"\x83\x81mask\0",
        b"\x80\x81mask\0",
        b"\x09\x81mask\0",
        b"\x89\xfe\0\x7emask",
        b"\x02\x81mask\0\x82\x81mask\0",
    ];
    for frame in broken {
        let mut client = Client::on_network(&daemon);
        client.web().get_mut().write_all(frame).expect("the daemon listens");
        client.web().get_mut().flush().expect("the daemon listens");
        assert_eq!(client.goodbye().0, code::MALFORMED, "{frame:?}");
    }
    well(&daemon);
}

#[test]
fn what_is_too_long_is_refused_before_it_has_come() {
    let daemon = Daemon::on_network();
    let mut client = Client::on_network(&daemon);
    // Only its beginning is sent: a message of so many bytes.
    let header = [&[0x82, 0xff][..], &(frame::MAX as u64 + 1).to_be_bytes(), b"mask"].concat();
    client.web().get_mut().write_all(&header).expect("the daemon listens");
    client.web().get_mut().flush().expect("the daemon listens");
    let (code, words) = client.goodbye();
    assert!(code == code::MALFORMED && words.contains("1048577") && words.contains("1048576"), "{words}");
    // The same in parts.
    let mut client = Client::on_network(&daemon);
    let part = vec![0; frame::MAX / 2];
    for (opcode, last) in [(Data::Binary, false), (Data::Continue, false), (Data::Continue, true)] {
        let frame = Frame::message(part.clone(), OpCode::Data(opcode), last);
        let _ = client.web().send(Message::Frame(frame));
        let _ = client.web().send(Message::Ping(vec![1].into()));
    }
    let _ = client.web().send(Message::Frame(Frame::message(vec![0], OpCode::Data(Data::Binary), false)));
    assert_eq!(client.goodbye().0, code::MALFORMED);
    well(&daemon);
}

#[test]
fn a_message_may_come_in_parts_with_pings_in_between() {
    let daemon = Daemon::on_network();
    let mut client = Client::on_network(&daemon);
    let mut bytes = Vec::new();
    let name = "n".repeat(1_000);
    let scope = vec![(name.as_bytes(), lockkeeper_core::Mode::Exclusive)];
    let flags = Flags::default();
    ToServer::Request { ack: 0, rid: 1, scope, flags, nested_in: None, info: None }.encode(&mut bytes);
    let count = bytes.len();
    for (number, byte) in bytes.into_iter().enumerate() {
        let opcode = if number == 0 { Data::Binary } else { Data::Continue };
        let frame = Frame::message(vec![byte], OpCode::Data(opcode), number == count - 1);
        client.web().send(Message::Frame(frame)).expect("the daemon listens");
        if number % 100 == 0 {
            client.web().send(Message::Ping(vec![7; 125].into())).expect("the daemon listens");
        }
    }
    client.granted(1);
}

/// The messages of one frame.
fn frame_of(messages: impl IntoIterator<Item = ToServer<'static>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    messages.into_iter().for_each(|message| message.encode(&mut bytes));
    bytes
}

fn request(rid: u64) -> ToServer<'static> {
    let scope = vec![(format!("name {rid}").leak().as_bytes(), lockkeeper_core::Mode::Exclusive)];
    ToServer::Request { ack: 0, rid, scope, flags: Flags::default(), nested_in: None, info: None }
}

#[test]
fn a_frame_may_have_several_messages_and_so_may_the_answer() {
    const MANY: u64 = 100;
    let daemon = Daemon::on_network();
    let mut client = Client::on_network(&daemon);
    let release = |rid| ToServer::Release { ack: 0, rid, flags: EndFlags::default() };
    web::say(client.web(), frame_of((1..=MANY).map(request).chain((1..=MANY).map(release))));
    // What is handled in one turn is one round, and its answers are one frame.
    let (mut frames, mut granted, mut released) = (0, Vec::new(), Vec::new());
    while released.len() < (1..=MANY).count() {
        let frame = web::hear(client.web()).expect("an answer");
        frames += 1;
        let mut left = &frame[..];
        while !left.is_empty() {
            let (message, rest) = first_message(left).expect("a whole message");
            match ToClient::decode(message).expect("the daemon speaks the protocol") {
                ToClient::Granted { rid, .. } => granted.push(rid),
                ToClient::Released { rid } => released.push(rid),
                other => panic!("{other:?}"),
            }
            left = rest;
        }
    }
    let all: Vec<u64> = (1..=MANY).collect();
    assert_eq!((&granted, &released), (&all, &all));
    assert!(frames < 20, "{frames} frames for 200 messages");
}

#[test]
fn a_frame_that_does_not_end_with_a_message_is_malformed() {
    let daemon = Daemon::on_network();
    for (rid, end) in (1..).zip([&b"\xc1"[..], b"\x94\x02", b"\x00", b"\x91\x63"]) {
        let mut client = Client::on_network(&daemon);
        web::say(client.web(), [&frame_of([request(rid)]), end].concat());
        client.granted(rid);
        assert_eq!(client.goodbye().0, code::MALFORMED, "{end:?}");
    }
    let mut client = Client::on_network(&daemon);
    web::say(client.web(), Vec::new());
    assert_eq!(client.goodbye().0, code::MALFORMED, "a frame has a message at least");
    well(&daemon);
}

#[test]
fn before_hello_is_done_a_frame_is_short() {
    let daemon = Daemon::on_network();
    let mut client = Client::mute_on_network(&daemon);
    let pings = (0..5_000).map(|seq| ToServer::Ping { ack: 0, seq });
    web::say(client.web(), frame_of([ToServer::hello("default", None)].into_iter().chain(pings)));
    let (code, words) = client.goodbye();
    assert!(
        code == code::MALFORMED && words.contains("8192") && words.contains("(max-hello-bytes)"),
        "{words}"
    );
    well(&daemon);
}

/// Its messages have their turns among those of others, and wait while their answers are not read.
#[test]
fn a_frame_full_of_messages_keeps_nobody_waiting_and_loses_nothing() {
    const MANY: u64 = 100_000;
    let daemon = Daemon::on_network();
    let (mut greedy, mut other) = (Client::on_network(&daemon), Client::on_network(&daemon));
    let bytes = frame_of((1..=MANY).map(|seq| ToServer::Ping { ack: 0, seq }));
    assert!(bytes.len() > frame::MAX / 2 && bytes.len() <= frame::MAX, "{}", bytes.len());
    web::say(greedy.web(), bytes);
    for _ in 0..50 {
        other.ping();
    }
    for seq in 1..=MANY {
        assert_eq!(greedy.hear(), ToClient::Pong { seq });
    }
}

#[test]
fn a_flood_of_pings_that_nobody_reads_the_pongs_of_is_not_listened_to() {
    let daemon = Daemon::on_network();
    let mut flood = web::dial(&daemon);
    let upgrade = "GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: lockkeeper.v2\r\n\r\n";
    flood.write_all(upgrade.as_bytes()).expect("it is read");
    flood.set_nonblocking(true).expect("a socket takes that");
    let pings = [&b"\x89\xfdmask"[..], &[0; 125]].concat().repeat(500);
    let (mut one, mut other) = (Client::on_network(&daemon), Client::on_network(&daemon));
    // It writes until it is disconnected, and other clients are served in the meantime.
    let mut refused = 0;
    while refused < 100 {
        match flood.write(&pings) {
            Ok(_) => refused = 0,
            Err(_) => refused += 1,
        }
        let held = one.hold("a");
        let waiting = other.wait_for("a");
        one.release(held.rid);
        other.granted(waiting.rid);
        other.release(waiting.rid);
    }
}

#[test]
fn handshakes_that_are_never_finished_keep_nobody_out() {
    let daemon = Daemon::on_network();
    let beginnings = ["", "GET / HTTP/1.1\r\nHost: ", "\u{1}"];
    // More than are let stand at a time: those that have stood longest go.
    let mut half: Vec<TcpStream> = Vec::new();
    for number in 0..1_200 {
        let mut stream = web::dial(&daemon);
        let _ = stream.write_all(beginnings[number % beginnings.len()].as_bytes());
        half.push(stream);
        if number % 100 == 0 {
            well(&daemon);
        }
    }
    well(&daemon);
    let mut first = half.swap_remove(0);
    assert!(matches!(first.read(&mut [0]), Ok(0) | Err(_)), "the oldest had to go");
    drop(half);
    well(&daemon);
}

#[test]
fn a_websocket_that_is_closed_is_closed() {
    let daemon = Daemon::on_network();
    let mut client = Client::on_network(&daemon);
    let held = client.hold("a");
    client.web().close(None).expect("the daemon listens");
    assert_eq!(client.hear_or_end(), None);
    // That is the end of the connection, not of the session.
    assert_eq!(client.resume(&daemon).listed[0].rid, held.rid);
    client.ping();
}

#[test]
fn strangers_without_end_do_not_keep_clients_out() {
    let daemon = Daemon::on_network();
    // More than are let wait; they say nothing, or half of what is needed.
    let mut crowd = Vec::new();
    for number in 0..1_500 {
        let mut stream = web::dial(&daemon);
        if number % 2 == 0 {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\n");
        }
        crowd.push(stream);
        if number % 100 == 0 {
            well(&daemon);
        }
    }
    // One that was upgraded before most of them came is not sent away for them.
    let mut early = Client::mute_on_network(&daemon);
    for _ in 0..600 {
        crowd.push(web::dial(&daemon));
    }
    early.open_session(None).expect("a welcome");
    well(&daemon);
}

/// As many upgraded sockets as an address may have kept out all other clients at that address,
/// resuming ones included.
#[test]
fn strangers_who_stop_before_hello_do_not_keep_clients_out() {
    let daemon = Daemon::on_network();
    let mut clients: Vec<Client> = (0..15).map(|_| Client::on_network(&daemon)).collect();
    let mut crowd = VecDeque::new();
    // They go on coming between any two steps of a client.
    let mut flood = |count| {
        for _ in 0..count {
            crowd.push_back(web::connect(&daemon));
            // The daemon has closed the oldest.
            if crowd.len() > 600 {
                crowd.pop_front();
            }
        }
    };
    flood(510);
    for client in &mut clients {
        let stream = web::dial(&daemon);
        flood(5);
        let web = web::connect_with(Box::new(stream), |request| request).expect("a WebSocket");
        flood(5);
        client.reconnect_as(Client::on_web(web));
        assert!(client.resume_here(None).expect("a welcome").resumed);
    }
}

#[test]
fn a_stranger_has_room_for_a_hello_only() {
    let daemon = Daemon::on_network();
    let mut client = Client::mute_on_network(&daemon);
    client.say_in_vain(&ToServer::Request {
        ack: 0,
        rid: 1,
        scope: vec![(&[b'n'; 10_000], lockkeeper_core::Mode::Exclusive)],
        flags: lockkeeper_wire::v2::Flags::default(),
        nested_in: None,
        info: None,
    });
    let (code, why) = client.goodbye();
    assert!(code == code::MALFORMED && why.contains("8192") && why.contains("(max-hello-bytes)"), "{why}");
    let mut local = Client::mute(&daemon);
    local.write_in_vain(&(1u32 << 20).to_be_bytes());
    local.write_in_vain(&[0; 100]);
    let (code, why) = local.goodbye();
    assert!(code == code::MALFORMED && why.contains("(max-hello-bytes)"), "{why}");
    // Once it has a session, it may say more.
    let mut client = Client::on_network(&daemon);
    client.hold(&"n".repeat(60_000));
    well(&daemon);
}

#[test]
fn what_clients_take_is_counted_and_limited() {
    // In a fleet, all clients leave an eighth to those of the machine, which are among them.
    let all = if in_a_fleet() { 230_000 } else { 200_000 };
    let daemon = Daemon::start_with(|setup| setup.bytes = (100_000, 150_000, all));
    let name = "n".repeat(10_000);
    let fill = |client: &mut Client, limit: &str| {
        let mut held = Vec::new();
        loop {
            let rid = client.request(&format!("{name}{} {}", client.id, held.len()));
            match client.hear() {
                ToClient::Granted { .. } | ToClient::Queued { .. } => held.push(rid),
                ToClient::Refused { code: code::LIMIT, message, .. } => {
                    assert!(message.contains(limit), "{message}");
                    return held;
                }
                other => panic!("{other:?}"),
            }
        }
    };
    let mut first = Client::open(&daemon);
    let mut held = fill(&mut first, "max-bytes-per-client");
    assert_eq!(held.len(), 9);
    let mut second = Client::open(&daemon);
    assert_eq!(fill(&mut second, "max-bytes-per-bucket").len(), 5);
    let mut third = Client::open_in(&daemon, "another");
    assert_eq!(fill(&mut third, "(max-bytes)").len(), 5);
    // A release makes room, and so does the end of a session.
    first.release(held.remove(0));
    assert_eq!(fill(&mut second, "max-bytes-per-bucket").len(), 1);
    third.say(&ToServer::Bye { ack: third.ack });
    drop(third);
    let mut fourth = Client::open_in(&daemon, "another");
    assert_eq!(fill(&mut fourth, "(max-bytes)").len(), 5);
}

#[test]
fn what_clients_take_is_counted_alike_after_a_restart() {
    let mut daemon = Daemon::start_with(|setup| setup.bytes = (100_000, 150_000, 200_000));
    let mut client = Client::open(&daemon);
    for number in 0..9 {
        client.hold(&format!("{number}{}", "n".repeat(10_000)));
    }
    daemon.kill();
    daemon.run();
    assert!(client.resume(&daemon).resumed);
    let rid = client.request(&"n".repeat(10_000));
    assert_eq!(client.refused(rid).0, code::LIMIT);
    client.hold("short");
}

/// The oldest client had to give way to those that came after it with as much, and its session has
/// not.
fn oldest_gives_way(daemon: &Daemon, oldest: &mut Client, limit: &str) {
    let (code, why) = oldest.goodbye();
    assert!(code == code::LIMIT && why.contains("incomplete messages") && why.contains(limit), "{why}");
    assert!(oldest.resume(daemon).resumed);
    oldest.hold("a");
}

/// 300 messages of which the last byte never came took 300 MB.
#[test]
fn messages_that_are_not_whole_are_limited_in_all() {
    let daemon = Daemon::start();
    let part = vec![0; frame::MAX - 1];
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..140 {
        let mut client = Client::open(&daemon);
        client.write_in_vain(&u32::try_from(frame::MAX).expect("it fits").to_be_bytes());
        client.write_in_vain(&part);
        clients.push(client);
    }
    oldest_gives_way(&daemon, &mut clients[0], "134217728 bytes");
    // Long messages are heard all the same.
    Client::open(&daemon).hold(&"n".repeat(60_000));
}

/// A daemon that relays did not count fragments.
#[test]
fn messages_in_fragments_are_limited_in_all() {
    let daemon = Daemon::on_network();
    let part = vec![0; frame::MAX - 1];
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..140 {
        let mut client = Client::on_network(&daemon);
        let frame = Frame::message(part.clone(), OpCode::Data(Data::Binary), false);
        let _ = client.web().send(Message::Frame(frame));
        clients.push(client);
    }
    oldest_gives_way(&daemon, &mut clients[0], "134217728 bytes");
    // Long messages are heard all the same.
    Client::open(&daemon).hold(&"n".repeat(60_000));
}

/// The first 16 KiB of each connection were not counted.
#[test]
fn short_messages_that_are_not_whole_are_limited_in_all() {
    let daemon = Daemon::start_with(|setup| setup.bytes.2 = 64 << 20);
    let part = vec![0; 15 << 10];
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..600 {
        let mut client = Client::open(&daemon);
        client.write_in_vain(&u32::try_from(frame::MAX).expect("it fits").to_be_bytes());
        client.write_in_vain(&part);
        clients.push(client);
    }
    oldest_gives_way(&daemon, &mut clients[0], "8388608 bytes");
}

#[test]
fn limits_are_shown_beside_what_is_taken() {
    let daemon = Daemon::on_network_with(|setup| setup.bytes = (100_000, 150_000, 200_000));
    let _client = Client::open(&daemon);
    let counts = web::counts(&daemon);
    for (name, count) in [
        ("lockkeeper_sessions", 1.0),
        ("lockkeeper_max_sessions", 16e6),
        ("lockkeeper_max_session_bytes", 100e3),
        ("lockkeeper_max_bucket_bytes", 150e3),
        ("lockkeeper_max_request_bytes", 200e3),
    ] {
        assert_eq!(counts[name], count, "{name}");
    }
}

/// An open session counts, too: those without a request were not limited.
#[test]
fn sessions_are_counted_as_they_are_opened() {
    let daemon = Daemon::start_with(|setup| setup.bytes = (100_000, 6_000, 20_000));
    let mut clients: Vec<Client> = (0..5).map(|_| Client::open(&daemon)).collect();
    let (code, why) = Client::mute(&daemon).open_session(None).expect_err("it is refused");
    assert!(code == code::LIMIT && why.contains("max-bytes-per-bucket"), "{why}");
    // An empty bucket takes more than its sessions.
    let open = |number: usize| {
        let mut client = Client::mute(&daemon).in_bucket(&number.to_string());
        client.open_session(None).map(|_| client)
    };
    let (mut others, mut refusal) = (Vec::new(), None);
    while refusal.is_none() && others.len() < 10 {
        match open(others.len()) {
            Ok(client) => others.push(client),
            Err((_, why)) => refusal = Some(why),
        }
    }
    assert!(refusal.is_some_and(|why| why.contains("(max-bytes)")));
    // Those who are there come back.
    assert!(clients[0].resume(&daemon).resumed);
}

/// 900 strangers took 833 MB.
#[cfg(target_os = "linux")]
#[test]
fn what_strangers_take_is_little() {
    let daemon = Daemon::on_network();
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
        line.trim_end_matches("kB").trim().parse::<usize>().expect("a number") << 10
    };
    let before = resident();
    // Each has sent as much as may be without a Hello, and not said what it is.
    let part = vec![0; 8_000];
    let (mut strangers, mut streams) = (Vec::new(), Vec::new());
    for number in 0..300 {
        let mut local = Client::mute(&daemon);
        local.write(&[&8_100_u32.to_be_bytes()[..], &part].concat());
        let mut web = Client::mute_on_network(&daemon);
        let frame = [&b"\x82\xfe\x1f\xa4mask"[..], &part].concat();
        web.web().get_mut().write_all(&frame).expect("it is read");
        web.web().get_mut().flush().expect("it is read");
        strangers.extend([local, web]);
        let mut stream = web::dial(&daemon);
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nX: ").and_then(|()| stream.write_all(&[b'x'; 7_000]));
        streams.push(stream);
        if number % 100 == 99 {
            well(&daemon);
        }
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 40 << 20, "{} MiB", grown >> 20);
}

/// As many as the daemon may have descriptors kept all clients out until they timed out.
#[test]
fn strangers_do_not_use_up_the_descriptors() {
    for files in [64, 300] {
        let daemon = Daemon::on_network_with(|setup| setup.files = Some(files));
        let mut client = Client::on_network(&daemon);
        let held = client.hold("a");
        let strangers: Vec<TcpStream> = (0..400).map(|_| web::dial(&daemon)).collect();
        client.ping();
        assert_eq!(client.resume(&daemon).listed[0].rid, held.rid);
        Client::open(&daemon).ping();
        let connected = |stranger: &&TcpStream| {
            stranger.set_nonblocking(true).expect("a socket");
            stranger.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        let connected = strangers.iter().filter(connected).count();
        assert!((1..=75).contains(&connected), "{connected} strangers");
    }
}

/// A process of this machine could have all descriptors, also of another user whom the daemon
/// serves.
#[test]
fn local_strangers_do_not_use_up_the_descriptors() {
    let daemon = Daemon::start_with(|setup| setup.handshake.2 = 20);
    let mut client = Client::open(&daemon);
    let held = client.hold("a");
    let mut strangers: Vec<_> = (0..40).map(|_| Client::mute(&daemon)).collect();
    // Half of the places are this user's. The others were closed, the oldest first.
    for stranger in &mut strangers[..30] {
        assert!(stranger.hear_or_end().is_none());
    }
    assert_eq!(client.resume(&daemon).listed[0].rid, held.rid);
    strangers.last_mut().expect("there are some").open_session(None).expect("it is not closed");
}

/// One that was upgraded and said no Hello was counted as connected for ever. As many as there were
/// descriptors, one after the other, and no session could be opened any more.
#[test]
fn strangers_who_were_closed_leave_nothing_behind() {
    let daemon = Daemon::on_network_with(|setup| setup.handshake.2 = 20);
    let mut strangers: Vec<_> =
        (0..30).map(|_| (Client::mute_on_network(&daemon), Client::mute(&daemon))).collect();
    for (network, local) in &mut strangers[..20] {
        assert!(network.hear_or_end().is_none() && local.hear_or_end().is_none());
    }
    drop(strangers);
    web::await_count(daemon.leader(), "lockkeeper_connections", 0.into());
}

#[test]
fn a_handshake_has_little_time_and_room() {
    // A fleet is waited for with a Hello.
    if !in_a_fleet() {
        let daemon = Daemon::on_network_with(|setup| setup.handshake.1 = Duration::from_millis(1));
        assert!(Client::mute(&daemon).hear_or_end().is_none());
        assert_eq!(web::dial(&daemon).read(&mut [0]).expect("it is closed"), 0);
    }
    let daemon = Daemon::on_network_with(|setup| setup.handshake.0 = 1 << 10);
    for mut client in [Client::mute(&daemon), Client::mute_on_network(&daemon)] {
        let (code, why) = client.open_session(Some(&"t".repeat(1 << 10))).expect_err("it is too long");
        assert!(
            code == code::MALFORMED && why.contains("1024") && why.contains("(max-hello-bytes)"),
            "{why}"
        );
    }
    let head = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 10));
    let answer = web::http(&daemon, &head);
    assert!(answer.starts_with("HTTP/1.1 431 ") && answer.contains("(max-hello-bytes)"), "{answer}");
}

/// A client that does not read had its connection, and what it was to be sent, for ever.
#[test]
fn a_connection_that_is_closed_does_not_wait_for_who_does_not_read() {
    let daemon = Daemon::on_network();
    let (mut deaf, mut other) = (Client::open(&daemon), Client::open(&daemon));
    for number in 0..1_000 {
        other.hold(&format!("{number}{}", "n".repeat(1_000)));
    }
    // The answer is more than a socket takes.
    deaf.last_rid += 1;
    deaf.say(&ToServer::Query { ack: deaf.ack, rid: deaf.last_rid, name: None, deadlocks: false });
    web::await_count(&daemon, "lockkeeper_connections", 2.into());
    let rid = other.end_session(&deaf.id);
    assert_eq!(other.outcome(rid), 1);
    web::await_count(&daemon, "lockkeeper_connections", 1.into());
}
