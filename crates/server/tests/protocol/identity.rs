//! Who may do what on the network, by whose token.

use crate::{
    client::Client,
    daemon::{Daemon, Setup},
    web,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use lockkeeper_core::Mode;
use lockkeeper_server::code;
use lockkeeper_wire::v2::{Flags, ToServer};
use ring::{
    hmac,
    signature::{Ed25519KeyPair, KeyPair},
};
use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

const SECRET: &[u8] = b"32 bytes, which are all it takes";
const SEED: &[u8; 32] = b"another 32 bytes, for a key pair";

/// The keys that the daemon knows.
fn key_set() -> String {
    let public = Ed25519KeyPair::from_seed_unchecked(SEED).expect("a key pair");
    format!(
        r#"{{"keys": [{{"kty": "RSA", "n": "AQAB", "e": "AQAB"}}, {{"kty": "oct", "kid": "shared", "k": "{}"}},
            {{"kty": "OKP", "crv": "Ed25519", "kid": "pair", "alg": "EdDSA", "x": "{}"}}]}}"#,
        encode(SECRET),
        encode(public.public_key().as_ref())
    )
}

fn daemon() -> Daemon {
    daemon_with(|_| {})
}

fn daemon_with(change: impl FnOnce(&mut Setup)) -> Daemon {
    let mut daemon = Daemon::on_network_with(change);
    daemon.kill();
    let keys = daemon.path("keys.json");
    fs::write(&keys, key_set()).expect("it is ours");
    daemon.setup.keys = Some(keys);
    daemon.run();
    daemon
}

fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn in_seconds(seconds: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs();
    i64::try_from(now).expect("it is not that late") + seconds
}

fn signed(header: &str, claims: &str, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let text = format!("{}.{}", encode(header.as_bytes()), encode(claims.as_bytes()));
    let seal = sign(text.as_bytes());
    format!("{text}.{}", encode(&seal))
}

fn hs256(header: &str, claims: &str, secret: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    signed(header, claims, |text| hmac::sign(&key, text).as_ref().to_vec())
}

fn eddsa(header: &str, claims: &str, seed: &[u8; 32]) -> String {
    let pair = Ed25519KeyPair::from_seed_unchecked(seed).expect("a key pair");
    signed(header, claims, |text| pair.sign(text).as_ref().to_vec())
}

/// A token that is good for an hour, with more claims.
fn token(claims: &str) -> String {
    hs256(r#"{"alg":"HS256"}"#, &format!(r#"{{"exp":{},{claims}}}"#, in_seconds(3600)), SECRET)
}

fn open(daemon: &Daemon, bucket: &str, token: Option<&str>) -> Result<Client, (u32, &'static str)> {
    let mut client = Client::mute_on_network(daemon).in_bucket(bucket);
    client.open_session(token).map(|_| client)
}

#[test]
fn tokens_of_the_daemons_keys_are_good_and_no_others() {
    let daemon = daemon();
    let good = format!(r#"{{"exp":{},"buckets":["a"]}}"#, in_seconds(3600));
    for good in [
        hs256(r#"{"alg":"HS256"}"#, &good, SECRET),
        hs256(r#"{"typ":"JWT","kid":"shared","alg":"HS256"}"#, &good, SECRET),
        eddsa(r#"{"alg":"EdDSA"}"#, &good, SEED),
        eddsa(r#"{"alg":"Ed25519","kid":"pair"}"#, &good, SEED),
    ] {
        open(&daemon, "a", Some(&good)).map(drop).unwrap_or_else(|why| panic!("{good}: {why:?}"));
    }
    let public =
        Ed25519KeyPair::from_seed_unchecked(SEED).expect("a key pair").public_key().as_ref().to_vec();
    let claims = |exp: i64, more: &str| format!(r#"{{"exp":{exp}{more},"buckets":["a"]}}"#);
    let header = r#"{"alg":"HS256"}"#;
    let mut tampered = hs256(header, &good, SECRET);
    tampered.pop();
    let bad = [
        ("", "is malformed"),
        ("a.b.c", "is malformed"),
        (&signed(r#"{"alg":"none"}"#, &good, |_| Vec::new()), "is malformed"),
        (&hs256(header, &good, b"32 bytes, which are not the ones"), "is malformed"),
        (&hs256(header, &good, &public), "is malformed"),
        (&hs256(r#"{"alg":"EdDSA"}"#, &good, SECRET), "is malformed"),
        (&hs256(r#"{"alg":"HS512"}"#, &good, SECRET), "is malformed"),
        (&hs256(r#"{"alg":"HS256","kid":"pair"}"#, &good, SECRET), "is malformed"),
        (&hs256(r#"{"alg":"HS256","crit":["exp"]}"#, &good, SECRET), "is malformed"),
        (&eddsa(r#"{"alg":"EdDSA"}"#, &good, b"32 bytes, which are not the ones"), "is malformed"),
        (&tampered, "is malformed"),
        (&hs256(header, r#"{"buckets":["a"]}"#, SECRET), "is malformed"),
        (&hs256(header, &claims(in_seconds(-5), ""), SECRET), "expired"),
        (
            &hs256(header, &claims(in_seconds(9000), &format!(r#","nbf":{}"#, in_seconds(3600))), SECRET),
            "not valid yet",
        ),
        (&token(r#""buckets":["b"]"#), "not for this bucket"),
        (&token(r#""buckets":[]"#), "not for this bucket"),
        (&token(r#""steal":true"#), "not for this bucket"),
    ];
    for (token, why) in bad {
        let (code, words) = open(&daemon, "a", Some(token)).map(drop).expect_err(token);
        assert_eq!(code, code::UNAUTHORIZED);
        assert!(words.contains(why), "{token}: {words}");
    }
    let (code, words) = open(&daemon, "a", None).map(drop).expect_err("it has none");
    assert!(code == code::UNAUTHORIZED && words.contains("is needed"), "{words}");
    // On the Unix socket, the kernel says who it is.
    Client::open_in(&daemon, "a").ping();
}

#[test]
fn a_token_is_for_its_buckets() {
    let daemon = daemon();
    let token = token(r#""buckets":["a","team-*"]"#);
    for bucket in ["a", "team-", "team-x"] {
        assert!(open(&daemon, bucket, Some(&token)).is_ok(), "{bucket}");
    }
    for bucket in ["b", "aa", "team", "default", "A"] {
        assert!(open(&daemon, bucket, Some(&token)).is_err(), "{bucket}");
    }
}

#[test]
fn one_bucket_has_nothing_to_do_with_another() {
    let daemon = daemon();
    let (a, b) =
        (token(r#""buckets":["a"],"inspect":true,"force_release":true"#), token(r#""buckets":["b"]"#));
    let mut one = open(&daemon, "a", Some(&a)).expect("it is its bucket");
    let mut other = open(&daemon, "b", Some(&b)).expect("it is its bucket");
    let theirs = other.hold("x");
    let mine = one.hold("x");
    assert_eq!(one.query(None).len(), 1, "it sees its own only");
    let rid = one.force_release("x");
    assert_eq!(one.broken(mine.rid), lockkeeper_core::Cause::Stolen);
    assert_eq!(one.outcome(rid), 1);
    other.release(theirs.rid);
    // Not even how much is asked for in the other can be seen from the arrivals.
    other.hold("x");
    for _ in 0..20 {
        other.wait_for("x");
    }
    one.hold("y");
    let first = one.wait_for("y");
    for _ in 0..20 {
        other.wait_for("x");
    }
    assert_eq!(one.wait_for("y").number, first.number + 1);
}

#[test]
fn stealing_and_forcing_are_for_those_who_may() {
    let daemon = daemon();
    let (may, may_not) =
        (token(r#""buckets":["*"],"steal":true,"force_release":true"#), token(r#""buckets":["*"]"#));
    let mut one = open(&daemon, "a", Some(&may_not)).expect("it is its bucket");
    let mut other = open(&daemon, "a", Some(&may)).expect("it is its bucket");
    let held = other.hold("x");
    let steal = Flags { steal: true, ..Flags::default() };
    let rid = one.request_with("x", steal);
    let (code, words) = one.refused(rid);
    assert!(code == code::FORBIDDEN && words.contains("steal"), "{words}");
    let rid = one.force_release("x");
    assert_eq!(one.refused(rid).0, code::FORBIDDEN);
    let rid = one.end_session(&other.id);
    assert_eq!(one.refused(rid).0, code::FORBIDDEN);
    other.ping();
    let thief = other.request_with("x", steal);
    other.broken(held.rid);
    other.granted(thief);
    let rid = other.force_release("x");
    other.broken(thief);
    assert_eq!(other.outcome(rid), 1);
}

#[test]
fn who_may_not_inspect_sees_who_has_what_and_no_more() {
    let daemon = daemon();
    let (may, may_not) = (token(r#""buckets":["a"],"inspect":true"#), token(r#""buckets":["a"]"#));
    let mut one = open(&daemon, "a", Some(&may_not)).expect("it is its bucket");
    let mut other = open(&daemon, "a", Some(&may)).expect("it is its bucket");
    let (mine, theirs) = (one.next_rid(), other.next_rid());
    for (client, rid) in [(&mut one, mine), (&mut other, theirs)] {
        let scope = vec![(&b"x"[..], Mode::Shared)];
        client.say(&ToServer::Request {
            ack: 0,
            rid,
            scope,
            flags: Flags::default(),
            nested_in: None,
            info: Some("secret"),
        });
        client.granted(rid);
    }
    let seen = one.query(None);
    assert_eq!((seen[0].info, seen[0].client_id), (Some("secret"), &one.id[..]), "its own it sees whole");
    assert!(seen[0].token.is_some_and(|token| token > 0) && seen[0].owner.is_some());
    assert_eq!((seen[1].name, seen[1].mode, seen[1].client_id), (&b"x"[..], Mode::Shared, &other.id[..]));
    assert_eq!((seen[1].token, seen[1].info, seen[1].since, seen[1].owner), (Some(0), None, 0, None));
    let rid = one.next_rid();
    one.say(&ToServer::Query { ack: 0, rid, name: None, deadlocks: true });
    assert_eq!(one.refused(rid).0, code::FORBIDDEN);
    assert_eq!(one.last_token(), 0);
    let (outer, inner) = (one.hold("y").rid, one.next_rid());
    let scope = vec![(&b"y"[..], Mode::Exclusive)];
    let flags = Flags { refuse_deadlock: true, ..Flags::default() };
    one.say(&ToServer::Request {
        ack: 0,
        rid: inner,
        scope,
        flags,
        nested_in: Some((None, outer)),
        info: None,
    });
    assert!(one.deadlocked(inner).cycle.is_empty());
    one.release(outer);
    let (seen, _) = other.inspect();
    assert_eq!(seen.iter().map(|entry| entry.info).collect::<Vec<_>>(), [Some("secret"); 2]);
}

#[test]
fn a_session_is_resumed_with_a_good_token_only() {
    let daemon = daemon();
    let good = token(r#""buckets":["a","b"],"steal":true"#);
    let mut client = open(&daemon, "a", Some(&good)).expect("it is its bucket");
    let held = client.hold("x");
    for bad in [None, Some(token(r#""buckets":["b"]"#))] {
        let refused = client.resume_with(&daemon, bad.as_deref());
        assert_eq!(refused.expect_err("it has no good token").0, code::UNAUTHORIZED);
    }
    // What it may do is what the new token says.
    let lesser = token(r#""buckets":["a"]"#);
    let welcomed = client.resume_with(&daemon, Some(&lesser)).expect("a welcome");
    assert!(welcomed.resumed && welcomed.listed[0].rid == held.rid);
    let rid = client.request_with("x", Flags { steal: true, ..Flags::default() });
    assert_eq!(client.refused(rid).0, code::FORBIDDEN);
}

/// A restarted daemon has no earlier tokens: the rights are those of the new token.
#[test]
fn a_restart_gives_nobody_other_rights() {
    let mut daemon = daemon();
    let lesser = token(r#""buckets":["a"]"#);
    let mut client = open(&daemon, "a", Some(&lesser)).expect("it is its bucket");
    client.hold("x");
    daemon.kill();
    daemon.run();
    assert_eq!(client.resume_with(&daemon, None).expect_err("it has no token").0, code::UNAUTHORIZED);
    assert!(client.resume_with(&daemon, Some(&lesser)).expect("a welcome").resumed);
    let rid = client.request_with("x", Flags { steal: true, ..Flags::default() });
    assert_eq!(client.refused(rid).0, code::FORBIDDEN);
}

#[test]
fn keys_are_read_anew_and_bad_ones_change_nothing() {
    let daemon = daemon();
    let path = daemon.path("keys.json");
    let other = b"and these 32 bytes are a new key";
    let claims = format!(r#"{{"exp":{},"buckets":["*"]}}"#, in_seconds(3600));
    let (old, new) = (token(r#""buckets":["*"]"#), hs256(r#"{"alg":"HS256"}"#, &claims, other));
    assert!(open(&daemon, "a", Some(&new)).is_err());
    for bad in ["", "{}", r#"{"keys":[]}"#, r#"{"keys":[{"kty":"oct","k":"c2hvcnQ"}]}"#] {
        fs::write(&path, bad).expect("it is ours");
        daemon.reload();
        for _ in 0..3 {
            assert!(open(&daemon, "a", Some(&old)).is_ok(), "{bad}");
        }
    }
    fs::write(&path, format!(r#"{{"keys":[{{"kty":"oct","k":"{}"}}]}}"#, encode(other))).expect("it is ours");
    let mut before = open(&daemon, "a", Some(&old)).expect("it is still good");
    before.hold("held");
    daemon.reload();
    // The session of a key that is gone ends, with all it has.
    assert_eq!(before.goodbye().0, code::ENDED);
    let mut after = open(&daemon, "a", Some(&new)).expect("it is good now");
    assert!(open(&daemon, "a", Some(&old)).is_err());
    after.hold("held");
    // That of a key that stays goes on.
    daemon.reload();
    after.hold("another");
    assert!(web::get(&daemon, "/healthz").contains("200 OK"));
}

/// A token is kept as long as its connection. It was not counted.
#[test]
fn long_tokens_are_limited_in_all() {
    let daemon = daemon_with(|setup| {
        setup.handshake.0 = 256 << 10;
        setup.bytes.2 = 64 << 20;
    });
    let long = token(&format!(r#""buckets":["*"],"padding":"{}""#, "x".repeat(90_000)));
    let mut clients: Vec<Client> =
        (0..80).map(|_| open(&daemon, "a", Some(&long)).expect("it is good")).collect();
    let (code, why) = clients[0].goodbye();
    assert!(code == code::LIMIT && why.contains("tokens") && why.contains("(max-bytes)"), "{why}");
    // That ended the connection, not the session.
    assert!(clients[0].resume_with(&daemon, Some(&long)).expect("a welcome").resumed);
}

#[test]
fn a_token_is_for_its_audience() {
    let of = |audience: &str| token(&format!(r#""buckets":["*"]{audience}"#));
    let (none, one, other) = (of(""), of(r#","aud":"locks""#), of(r#","aud":"elsewhere""#));
    let several = of(r#","aud":["elsewhere","locks"]"#);
    let mut daemon = daemon();
    assert!(open(&daemon, "a", Some(&none)).is_ok());
    for token in [&one, &several, &other] {
        let (code, words) = open(&daemon, "a", Some(token)).map(drop).expect_err("it is for an audience");
        assert!(code == code::UNAUTHORIZED && words.contains("--audience"), "{words}");
    }
    daemon.kill();
    daemon.setup.audience = Some("locks".into());
    daemon.run();
    assert!(open(&daemon, "a", Some(&one)).is_ok() && open(&daemon, "a", Some(&several)).is_ok());
    for token in [&none, &other] {
        let (code, words) =
            open(&daemon, "a", Some(token)).map(drop).expect_err("it is not for that audience");
        assert!(code == code::UNAUTHORIZED && words.contains("locks"), "{words}");
    }
}

#[test]
fn the_subject_of_a_token_is_shown() {
    let daemon = daemon();
    let token = token(r#""buckets":["a"],"inspect":true,"sub":"alice\u0007""#);
    let mut client = open(&daemon, "a", Some(&token)).expect("it is good");
    client.hold("x");
    let entries = client.query(None);
    let owner = entries[0].owner.unwrap_or_default();
    assert!(owner.starts_with("alice 127.0.0.1"), "{owner}");
}
