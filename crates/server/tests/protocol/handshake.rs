//! How a session begins, and when it does not.

use crate::{client::Client, daemon::Daemon};
use lockkeeper_core::Limits;
use lockkeeper_server::code;
use lockkeeper_wire::{Claim, Seal, ToClient, ToServer, VERSION};
use std::time::Duration;

#[test]
fn hello_is_answered_with_welcome() {
    let daemon = Daemon::start_with(|config| config.ttl = Duration::from_millis(12_345));
    let mut client = Client::mute(&daemon);
    client.say(&ToServer::Hello { version: VERSION, bucket: "default", resume: None, token: None });
    let ToClient::Welcome { version, client_id, ttl, resumed, .. } = client.hear() else {
        panic!("not a welcome")
    };
    assert_eq!((version, ttl, resumed), (VERSION, 12_345, false));
    assert!(!client_id.is_empty());
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
    for (version, advice) in [(VERSION - 1, "upgrade the client"), (VERSION + 1, "upgrade the daemon")] {
        let mut client = Client::mute(&daemon);
        client.say(&ToServer::Hello { version, bucket: "default", resume: None, token: None });
        let (code, message) = client.goodbye();
        assert_eq!(code, code::VERSION);
        assert!(message.contains(&format!("version {version}")) && message.contains(advice), "{message}");
    }
}

#[test]
fn the_first_message_is_hello() {
    let daemon = Daemon::start();
    let early = [
        ToServer::Request {
            rid: 1,
            scope: vec![],
            flags: lockkeeper_wire::Flags::default(),
            nested_in: None,
            info: None,
        },
        ToServer::Release { rid: 1 },
        ToServer::Abort { rid: 1, timed_out: false },
        ToServer::ForceRelease { rid: 1, name: b"a" },
        ToServer::Query { rid: 1, name: None, deadlocks: false },
        ToServer::Reclaim { rid: 1, scope: vec![], info: None, claim: Claim::Waiting { ticket: None } },
        ToServer::Ready,
        ToServer::Ping,
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
    client.say(&ToServer::Hello { version: VERSION, bucket: "default", resume: None, token: None });
    assert_eq!(client.goodbye().0, code::OUT_OF_ORDER);
}

#[test]
fn a_bucket_has_a_name_that_can_be_written_anywhere() {
    let daemon = Daemon::start();
    let longest = "b".repeat(64);
    for name in ["b", "A-z_0.9", "..", &longest] {
        Client::open_in(&daemon, name).ping();
    }
    let too_long = "b".repeat(65);
    for name in ["", " ", "a b", "a/b", "a\nb", "a\0b", "\u{e4}", &too_long] {
        let mut client = Client::mute(&daemon);
        client.say(&ToServer::Hello { version: VERSION, bucket: name, resume: None, token: None });
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
    there.hold("a");
    let rid = there.next_rid();
    there.say(&ToServer::ForceRelease { rid, name: b"a" });
    let broken = there.hear();
    assert!(matches!(broken, ToClient::Broken { rid: 2, .. }), "its own: {broken:?}");
    assert_eq!(there.hear(), ToClient::Released { rid });
    assert_eq!(here.queue_of("a"), [(here.id.clone(), true)]);
}

#[test]
fn there_are_no_more_sessions_than_the_limit() {
    let limits = Limits { clients: 2, ..Limits::default() };
    let daemon = Daemon::start_with(|config| config.limits = limits);
    let (mut first, mut second) = (Client::open(&daemon), Client::open(&daemon));
    let mut third = Client::mute(&daemon);
    third.say(&ToServer::Hello { version: VERSION, bucket: "default", resume: None, token: None });
    assert_eq!(third.goodbye(), (code::LIMIT, "limit reached: 2 live clients"));
    // When one has gone there is room again. That it has gone is seen by what it held.
    first.hold("a");
    let waiting = second.wait_for("a");
    drop(first);
    second.granted(waiting.rid);
    Client::open(&daemon).ping();
}

#[test]
fn a_session_that_nobody_knows_is_not_resumed() {
    let daemon = Daemon::start();
    let mut client = Client::mute(&daemon);
    assert!(!client.hello("default", Some(("0123456789abcdef", Seal::default()))));
    client.ping();
}

#[test]
fn a_session_that_is_connected_is_not_resumed_by_another() {
    let daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    client.hold("a");
    let mut other = Client::mute(&daemon);
    assert!(!other.hello("default", Some((&client.id, client.secret))), "not even with the secret");
    assert_ne!(other.id, client.id);
    assert_eq!(other.queue_of("a"), [(client.id.clone(), true)]);
    client.ping();
}
