//! How a session begins, and when it does not.

use crate::{
    client::{Client, hello},
    daemon::Daemon,
};
use lockkeeper_server::code;
use lockkeeper_wire::v2::{EndFlags, Flags, Secret, ToClient, ToServer, VERSION, feature};
use std::time::Duration;

#[test]
fn hello_is_answered_with_welcome_and_the_end_marker() {
    let daemon = Daemon::start_with(|setup| setup.ttl = Duration::from_millis(12_345));
    let mut client = Client::mute(&daemon);
    client.say(&hello("default"));
    let welcome = client.hear();
    let ToClient::Welcome { version, features, number, client_id, ttl, resumed, last_rid, .. } = welcome
    else {
        panic!("not a welcome: {welcome:?}")
    };
    assert_eq!((version, ttl, resumed, last_rid), (VERSION, 12_345, false, 0));
    assert_eq!(features & feature::FIFO, feature::FIFO);
    assert!(client_id.len() == 16 && number > 0);
    assert_eq!(client.hear(), ToClient::Synced);
    // It did not say that it takes a descriptor, and is sent none.
    client.ping();
}

#[test]
fn each_session_has_its_own_id_and_secret() {
    let daemon = Daemon::start();
    let (one, other) = (Client::open(&daemon), Client::open(&daemon));
    assert_ne!(one.id, other.id);
    assert_ne!(one.secret, other.secret);
}

#[test]
fn a_client_of_another_version_is_told_which_side_to_upgrade() {
    let daemon = Daemon::start();
    for (spoken, advice) in [(VERSION - 1, "upgrade the client"), (VERSION + 1, "upgrade the server")] {
        let mut client = Client::mute(&daemon);
        let mut message = hello("default");
        if let ToServer::Hello { version, .. } = &mut message {
            *version = spoken;
        }
        client.say(&message);
        let (code, message) = client.goodbye();
        assert_eq!(code, code::VERSION);
        assert!(message.contains(&format!("version {spoken}")) && message.contains(advice), "{message}");
    }
}

#[test]
fn the_first_message_is_hello() {
    let daemon = Daemon::start();
    let (ack, rid) = (0, 1);
    let early = [
        ToServer::Request { ack, rid, scope: vec![], flags: Flags::default(), nested_in: None, info: None },
        ToServer::Release { ack, rid, flags: EndFlags::default() },
        ToServer::ForceRelease { ack, rid, name: b"a" },
        ToServer::EndSession { ack, rid, client_id: "0123456789abcdef" },
        ToServer::Query { ack, rid, name: None, deadlocks: false },
        ToServer::Ping { ack, seq: 1 },
        ToServer::Confirm { ack },
        ToServer::Bye { ack },
    ];
    for message in early {
        let mut client = Client::mute(&daemon);
        client.say(&message);
        assert_eq!(client.goodbye().0, code::OUT_OF_ORDER, "{message:?}");
    }
}

#[test]
fn hello_is_said_once() {
    let daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    client.say(&hello("default"));
    assert_eq!(client.goodbye().0, code::OUT_OF_ORDER);
}

#[test]
fn what_later_versions_append_is_ignored() {
    let daemon = Daemon::start();
    let mut client = Client::mute(&daemon);
    let mut bytes = Vec::new();
    hello("default").encode(&mut bytes);
    // Two more elements: an array, and text.
    bytes[0] += 2;
    bytes.extend(b"\x92\x01\xc0\xa1a");
    client.write(&u32::try_from(bytes.len()).expect("it is short").to_be_bytes());
    client.write(&bytes);
    assert!(matches!(client.hear(), ToClient::Welcome { .. }));
}

#[test]
fn a_bucket_has_a_name_of_up_to_256_bytes() {
    let daemon = Daemon::start();
    let longest = "b".repeat(256);
    for name in ["b", "A-z_0.9", "..", "a b", "a/b", "\u{e4}", &longest] {
        Client::open_in(&daemon, name).ping();
    }
    let too_long = "b".repeat(257);
    for name in ["", "a\nb", "a\0b", "\u{85}", &too_long] {
        let mut client = Client::mute(&daemon);
        client.say(&hello(name));
        let (code, message) = client.goodbye();
        assert_eq!(code, code::NOT_SUPPORTED, "{name:?}");
        assert!(message.contains("bucket"), "{message}");
    }
}

#[test]
fn another_bucket_sees_nothing_and_is_in_nobodys_way() {
    let daemon = Daemon::start();
    let (mut here, mut there) = (Client::open_in(&daemon, "here"), Client::open_in(&daemon, "there"));
    here.hold("a");
    assert_eq!(there.query(None), []);
    let own = there.hold("a");
    let rid = there.force_release("a");
    there.broken(own.rid);
    assert_eq!(there.outcome(rid), 1);
    let rid = there.end_session(&here.id.clone());
    assert_eq!(there.outcome(rid), 0, "it is of another bucket");
    assert_eq!(here.queue_of("a"), [(here.id.clone(), true)]);
}

#[test]
fn a_session_that_nobody_knows_is_not_resumed() {
    let daemon = Daemon::start();
    for id in ["0123456789abcdef", "", "0123456789abcde", "0123456789abcdeg", "+123456789abcdef"] {
        let mut client = Client::mute(&daemon).without_features();
        let welcomed = client.greet(Some((id.into(), Secret::default())), None, None).expect("a welcome");
        assert!(!welcomed.resumed && client.id != id);
        client.ping();
    }
}

#[test]
fn a_client_may_wish_for_a_lease_within_bounds() {
    let bounds = (Duration::from_secs(5), Duration::from_secs(50));
    let daemon = Daemon::on_network_with(|setup| {
        (setup.ttl, setup.ttl_bounds) = (Duration::from_secs(10), bounds);
    });
    for (wish, told) in [
        (None, 10_000),
        (Some(7_000), 7_000),
        (Some(0), 5_000),
        (Some(4_999), 5_000),
        (Some(50_001), 50_000),
        (Some(u64::MAX), 50_000),
    ] {
        let mut client = Client::mute_on_network(&daemon);
        assert_eq!(client.greet(None, None, wish).expect("a welcome").ttl, told, "{wish:?}");
    }
}
