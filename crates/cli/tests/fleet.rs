//! Daemons that share the log of a real etcd.

mod common;

use common::{Holder, PATIENCE, User, http, shown, terminal::Terminal, wait_until};
use lockkeeper_client::{Callbacks, Change, Endpoint, Options, Session};
use lockkeeper_core::Mode;
use lockkeeper_server::etcd::Etcd;
use lockkeeper_testing::{Cluster, Daemons, Setup};
use lockkeeper_wire::{
    frame,
    v2::{EndFlags, Flags, ToClient, ToServer},
    websocket::{self, Frames, Incoming},
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustix::process::Signal;
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    process::{Command, Output, Stdio},
    sync::{LazyLock, mpsc},
    thread,
    time::{Duration, Instant},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// A fleet whose leaders are replaced quickly. Leases last long enough for a busy machine.
fn fleet(cluster: &Cluster, count: usize, more: &[&str]) -> Daemons {
    fleet_with(cluster, count, "20s", more)
}

fn fleet_with(cluster: &Cluster, count: usize, ttl: &str, more: &[&str]) -> Daemons {
    let more = ["--takeover", "500ms", "--ttl", ttl].iter().chain(more).map(ToString::to_string).collect();
    let setup = Setup { program: PROGRAM.into(), store: cluster.url("test"), more };
    Daemons::start(count, setup).expect("the daemons start")
}

fn client(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args).env_clear().env("PATH", "/usr/bin:/bin").env("LOCKKEEPER_URL", url);
    command
}

fn socket(daemons: &Daemons, at: usize) -> String {
    format!("unix:{}", daemons.socket(at).display())
}

fn run(url: &str, args: &[&str]) -> Output {
    client(url, args).stdin(Stdio::null()).output().expect("it starts")
}

/// Holds a lock. Returns its fencing number, too.
fn hold(url: &str, name: &str) -> (Holder, u64) {
    held(Holder::start(client(url, &["run"]).arg(name)))
}

fn held(mut holder: Holder) -> (Holder, u64) {
    assert_eq!(holder.line(), "held");
    let _pid = holder.line();
    let fence = holder.line().parse().expect("it is a number");
    (holder, fence)
}

/// Waits until so many hold the lock and so many wait, as a daemon shows it.
#[track_caller]
fn wait_for(url: &str, name: &str, held: usize, pending: usize) {
    wait_until(|| shown(&run(url, &["query", "--json", name])) == Some((held, pending)));
}

fn get(url: &str, path: &str) -> String {
    let address = url.strip_prefix("ws://").expect("it is a WebSocket");
    let stream = TcpStream::connect(address).expect("it listens");
    http(stream, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n"))
}

/// How many entries a daemon has applied.
fn position(daemons: &Daemons, at: usize) -> Option<String> {
    counted(daemons, at, "fleet_position")
}

/// What a daemon counts.
fn counted(daemons: &Daemons, at: usize, name: &str) -> Option<String> {
    let (metrics, name) = (get(&daemons.url(at), "/metrics"), format!("lockkeeper_{name} "));
    metrics.lines().find_map(|line| line.strip_prefix(&name).map(str::to_owned))
}

/// A holder and waiters, through daemons that do not lead, live through every way in which a leader
/// can go.
#[test]
fn locks_and_places_outlive_leaders() {
    let cluster = Cluster::start(3).expect("etcd starts");
    let mut daemons = fleet(&cluster, 3, &["--share-buckets"]);
    let first = daemons.wait_for_leader();
    let others = [(first + 1) % 3, (first + 2) % 3];
    let all = daemons.urls(others[0]);
    let (mut holder, mut fence) = hold(&all, "hot");
    // A client of the leader's machine, which goes to the others' when that is gone.
    let (mut beside_leader, _) = hold(&format!("{},{all}", socket(&daemons, first)), "local");
    let mut waiters: Vec<Holder> = Vec::new();
    for count in 0..2 {
        let urls = daemons.urls(others[1]);
        waiters.push(Holder::start(client(&urls, &["run"]).arg("hot")));
        wait_for(&daemons.url(others[0]), "hot", 1, count + 1);
    }

    type Fault = fn(&mut Daemons, usize);
    let faults: [Fault; 3] = [
        |daemons, leader| daemons.kill(leader),
        |daemons, leader| daemons.stop(leader),
        |daemons, leader| daemons.signal(leader, Signal::STOP),
    ];
    for fault in faults {
        let before = daemons.wait_for_leader();
        fault(&mut daemons, before);
        let beside = (before + 1) % 3;
        // The stopped one does not know yet that it leads no longer.
        wait_until(|| {
            let led = |at: usize| daemons.log(at).contains("leading position");
            led(beside) || led((before + 2) % 3)
        });
        wait_for(&daemons.url(beside), "hot", 1, 2);
        wait_for(&daemons.url(beside), "local", 1, 0);
        daemons.signal(before, Signal::CONT);
        daemons.kill(before);
        daemons.run(before).expect("it starts");
        daemons.wait(before).expect("it serves");
    }
    assert_eq!(beside_leader.let_go(), 0);
    assert_eq!(holder.let_go(), 0);
    for waiter in waiters {
        let (mut waiter, later) = held(waiter);
        assert!(later > fence);
        fence = later;
        assert_eq!(waiter.let_go(), 0);
    }
}

#[test]
fn every_daemon_shows_the_whole() {
    let cluster = Cluster::start(1).expect("etcd starts");
    let daemons = fleet(&cluster, 2, &[]);
    let (first, other) = (daemons.wait_for_leader(), 1 - daemons.wait_for_leader());
    let _holder = hold(&socket(&daemons, other), "a");
    let _another = hold(&socket(&daemons, first), "b");
    let _waiter = Holder::start(client(&daemons.url(first), &["run"]).arg("b"));
    wait_for(&daemons.url(other), "b", 1, 1);
    for at in [first, other] {
        let counts = [("held", "2"), ("pending", "1"), ("sessions", "3"), ("buckets", "1")];
        // A question has a session, too, which may have yet to end.
        wait_until(|| {
            counts.iter().all(|(name, count)| counted(&daemons, at, name).as_deref() == Some(count))
        });
        assert!(counted(&daemons, at, "request_bytes").is_some_and(|bytes| bytes != "0"));
        let inspected = run(&socket(&daemons, at), &["inspect", "--table"]);
        let inspected = String::from_utf8(inspected.stdout).expect("it is text");
        assert!(inspected.contains(" a") && inspected.contains(" b"), "{inspected}");
        let mut top = Terminal::start(&client(&socket(&daemons, at), &["top"]));
        top.shows("2 held, 1 waiting");
        top.press("q");
        assert!(top.ended().success());
        for url in [daemons.url(at), socket(&daemons, at)] {
            let shown = String::from_utf8(run(&url, &["query", "--json"]).stdout).expect("it is text");
            assert!(shown.contains("\"name\":\"a\"") && shown.contains("\"name\":\"b\""), "{url}: {shown}");
            assert!(run(&url, &["run", "-n", "a", "--", "true"]).status.code() == Some(75), "{url}");
        }
        assert!(get(&daemons.url(at), "/healthz").contains("200 OK"));
        wait_until(|| {
            let position = position(&daemons, first);
            position.is_some() && position == self::position(&daemons, other)
        });
        let metrics = get(&daemons.url(at), "/metrics");
        assert!(metrics.contains(&format!("lockkeeper_fleet_leads {}", u8::from(at == first))), "{metrics}");
    }
    let fleet =
        Command::new(PROGRAM).args(["fleet", "--store", &cluster.url("test")]).output().expect("it starts");
    let shown = String::from_utf8(fleet.stdout).expect("it is text");
    assert!(fleet.status.success(), "{shown}");
    assert!(shown.contains("leads") && shown.contains("follows"), "{shown}");
}

/// What a follower has read for its clients is limited as a leader's is.
#[test]
fn messages_that_are_not_whole_are_limited_at_a_follower() {
    let cluster = Cluster::start(1).expect("etcd starts");
    let daemons = fleet(&cluster, 2, &["--max-bytes", "64MiB"]);
    let follower = daemons.socket(1 - daemons.wait_for_leader());
    let mut clients: Vec<_> = (0..12)
        .map(|_| {
            let mut stream = UnixStream::connect(&follower).expect("a daemon listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
            say(&mut stream, [ToServer::hello("default", Some(600_000))]);
            hear_until(&mut stream, |message| matches!(message, ToClient::Synced));
            let length = u32::try_from(frame::MAX).expect("it fits");
            // The last byte never comes. Who had to go does not read any more.
            let _ = stream.write_all(&[&length.to_be_bytes()[..], &vec![0; frame::MAX - 1]].concat());
            stream
        })
        .collect();
    hear_until(&mut clients[0], |message| match message {
        ToClient::Goodbye { message, .. } => message.contains("incomplete messages"),
        _ => false,
    });
}

/// A follower takes the messages out of the frames of a WebSocket, and puts those of the leader
/// into frames.
#[test]
fn frames_of_several_messages_go_through_a_follower() {
    const MANY: u64 = 1_000;
    let cluster = Cluster::start(1).expect("etcd starts");
    let daemons = fleet(&cluster, 2, &[]);
    let url = daemons.url(1 - daemons.wait_for_leader());
    let address = url.strip_prefix("ws://").expect("it is a WebSocket").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
    let upgrade = format!(
        "GET / HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: lockkeeper.v2\r\n\r\n"
    );
    stream.write_all(upgrade.as_bytes()).expect("it is read");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("it answers");
        head.extend(byte);
    }
    let say = |stream: &mut TcpStream, messages: &mut dyn Iterator<Item = ToServer<'static>>| {
        let mut frame = Vec::new();
        websocket::append(&mut frame, Some([1, 2, 3, 4]), |out| {
            messages.for_each(|message| message.encode(out))
        });
        stream.write_all(&frame).expect("it is read");
    };
    let (mut frames, mut input) = (Frames::new(false, frame::MAX_TO_CLIENT), Vec::new());
    // The messages of one frame.
    let mut hear = |stream: &mut TcpStream| loop {
        if let Some((said, length)) = frames.first(&mut input).expect("a frame") {
            let Incoming::Messages(frame) = said else { panic!("{said:?}") };
            let frame = frame.to_vec();
            input.drain(..length);
            let (mut left, mut messages) = (&frame[..], Vec::new());
            while !left.is_empty() {
                let (message, rest) = websocket::first_message(left).expect("a whole message");
                messages.push(message.to_vec());
                left = rest;
            }
            return messages;
        }
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).expect("it answers");
        input.extend_from_slice(&bytes[..count]);
    };
    say(&mut stream, &mut [ToServer::hello("default", Some(600_000))].into_iter());
    let synced = |messages: &[Vec<u8>]| {
        messages.iter().any(|message| ToClient::decode(message) == Ok(ToClient::Synced))
    };
    while !synced(&hear(&mut stream)) {}
    let request = |rid: u64| ToServer::Request {
        ack: 1,
        rid,
        scope: vec![(format!("name {rid}").leak().as_bytes(), Mode::Exclusive)],
        flags: Flags::default(),
        nested_in: None,
        info: None,
    };
    say(&mut stream, &mut (1..=MANY).map(request));
    let (mut next, mut most) = (1, 0);
    while next <= MANY {
        let messages = hear(&mut stream);
        most = most.max(messages.len());
        for message in messages {
            let granted = ToClient::decode(&message);
            assert!(matches!(granted, Ok(ToClient::Granted { rid, .. }) if rid == next), "{granted:?}");
            next += 1;
        }
    }
    assert!(most > 1, "the answers of one round come in few frames");
}

/// The health check of a load balancer is right while etcd is silent.
#[test]
fn nobody_is_healthy_while_etcd_does_not_answer() {
    let cluster = Cluster::start(1).expect("etcd starts");
    let daemons = fleet(&cluster, 2, &[]);
    daemons.wait_for_leader();
    let healthy = |at: usize| get(&daemons.url(at), "/healthz").contains("200 OK");
    wait_until(|| healthy(0) && healthy(1));
    cluster.signal(0, Signal::STOP);
    wait_until(|| !healthy(0) && !healthy(1));
    cluster.signal(0, Signal::CONT);
    wait_until(|| healthy(0) && healthy(1));
}

/// Those that have a lock keep it if etcd is back in time.
#[test]
fn new_clients_are_told_that_etcd_does_not_answer() {
    let cluster = Cluster::start(1).expect("etcd starts");
    let daemons = fleet_with(&cluster, 2, "5m", &[]);
    let leader = daemons.wait_for_leader();
    let (mut holder, _) = hold(&daemons.url(leader), "held");
    cluster.signal(0, Signal::STOP);
    let url = cluster.url("");
    let member = url.trim_start_matches("etcd://").trim_end_matches('/');
    let why = format!("cannot serve now: etcd cannot be reached: tried {member} (no answer within");
    for at in [leader, 1 - leader] {
        for url in [daemons.url(at), socket(&daemons, at)] {
            wait_until(|| {
                let refused = run(&url, &["run", "--timeout", "2s", "another", "--", "true"]);
                let said = String::from_utf8_lossy(&refused.stderr).into_owned();
                assert!(!refused.status.success(), "{said}");
                said.contains(&why)
            });
        }
    }
    cluster.signal(0, Signal::CONT);
    wait_until(|| {
        run(&daemons.urls(0), &["run", "--timeout", "5s", "another", "--", "true"]).status.success()
    });
    assert_eq!(holder.let_go(), 0);
}

/// A network to a server, on which everything takes so long. Returns its address.
fn slow(server: &str, delay: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address").to_string();
    let server = server.to_owned();
    let pass_on = move |mut from: TcpStream, mut to: TcpStream| {
        let (sender, arrives) = mpsc::channel::<(Instant, Vec<u8>)>();
        thread::spawn(move || {
            for (at, bytes) in arrives {
                thread::sleep(at.saturating_duration_since(Instant::now()));
                if to.write_all(&bytes).is_err() {
                    return;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
        thread::spawn(move || {
            let mut bytes = [0; 65536];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                if sender.send((Instant::now() + delay, bytes[..count].to_vec())).is_err() {
                    return;
                }
            }
        });
    };
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(&server) else { continue };
            let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
            pass_on(copy(&near), copy(&far));
            pass_on(far, near);
        }
    });
    address
}

/// Nothing is committed sooner than etcd commits it. What arrives meanwhile is one entry, and leases
/// are kept.
#[test]
fn an_etcd_that_is_slow_loses_no_lock_and_commits_many_requests_at_a_time() {
    const MANY: u64 = 1_000;
    let cluster = Cluster::start(1).expect("etcd starts");
    let url = cluster.url("");
    let member = url.trim_start_matches("etcd://").trim_end_matches('/');
    let store = format!("etcd://{}/test", slow(member, Duration::from_millis(100)));
    let more = ["--takeover", "1500ms", "--ttl", "6s"].map(Into::into).into();
    let setup = Setup { program: PROGRAM.into(), store, more };
    let daemons = Daemons::start(2, setup).expect("the daemons start");
    let leader = daemons.wait_for_leader();
    let other = daemons.url(1 - leader);
    let (mut holder, fence) = hold(&other, "held");
    let begun = Instant::now();
    let waiter = Holder::start(client(&other, &["run"]).arg("held"));
    wait_for(&other, "held", 1, 1);

    let mut stream = open(&daemons, leader);
    let entries = || position(&daemons, leader).and_then(|position| position.parse::<u64>().ok());
    let before = entries().expect("it is a number");
    let name = |rid: u64| -> &'static [u8] { format!("lock {rid}").leak().as_bytes() };
    let request = |rid| request(rid, vec![(name(rid), Mode::Exclusive)], Flags::default());
    say(&mut stream, (1..=MANY).map(request));
    hear_until(&mut stream, |message| matches!(message, ToClient::Granted { rid: MANY, .. }));
    let count = entries().expect("it is a number") - before;
    assert!(count < MANY / 10, "{count} entries for {MANY} requests");

    // Longer than the lease.
    while begun.elapsed() < Duration::from_secs(7) {
        assert_eq!(holder.say("still"), "still", "the command was not ended");
        thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(holder.let_go(), 0);
    let (mut waiter, later) = held(waiter);
    assert!(later > fence);
    assert_eq!(waiter.let_go(), 0);
}

/// A batch that no leader of this version writes.
fn a_batch_stops_a_follower(batch: &[u8], words: &str) {
    let cluster = Cluster::start(1).expect("etcd starts");
    let daemons = fleet(&cluster, 2, &[]);
    let leader = daemons.wait_for_leader();
    assert!(run(&daemons.url(leader), &["run", "a", "--", "true"]).status.success());
    wait_until(|| {
        position(&daemons, leader).is_some() && position(&daemons, leader) == position(&daemons, 1 - leader)
    });
    let last: u8 = position(&daemons, leader).and_then(|last| last.parse().ok()).expect("a short log");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let etcd =
            Etcd::new(&cluster.url("test").parse().expect("it is a store")).expect("it can be reached");
        let key = |position: u8| format!("test/0/log/{position:08x}").into_bytes();
        let (entry, _) = etcd.get(&key(last)).await.expect("etcd answers");
        let format = entry.expect("the newest entry is there").value[0];
        etcd.put(key(last + 1), [&[format, last + 1], batch].concat()).await.expect("etcd answers");
    });
    wait_until(|| daemons.log(1 - leader).contains(words));
    wait_until(|| TcpStream::connect(daemons.url(1 - leader).trim_start_matches("ws://")).is_err());
}

/// Its level, a time, and the hash.
#[test]
fn a_follower_stops_when_its_state_differs() {
    a_batch_stops_a_follower(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0], "has other effects here");
}

#[test]
fn a_follower_stops_at_records_of_a_later_version() {
    a_batch_stops_a_follower(&[99, 0, 0, 0, 0, 0, 0, 0, 0, 0], "upgrade this daemon");
}

/// A stop reports that no daemon could take over.
#[test]
fn a_leader_that_stops_while_etcd_is_silent_says_so() {
    let cluster = Cluster::start(1).expect("etcd starts");
    let mut daemons = fleet(&cluster, 1, &[]);
    let leader = daemons.wait_for_leader();
    // There is something to commit, too.
    let _holder = hold(&daemons.url(leader), "a");
    cluster.signal(0, Signal::STOP);
    daemons.stop(leader);
    let log = daemons.log(leader);
    assert!(log.contains("stopping without a hand-over") && log.contains("no answer within"), "{log}");
    assert!(log.contains("stopped"), "{log}");
}

/// It takes connections, and answers none. The client goes to another daemon before `run` would
/// have to end its command.
#[test]
fn a_lock_outlives_a_daemon_that_is_silent() {
    let cluster = Cluster::start(1).expect("etcd starts");
    let daemons = fleet(&cluster, 2, &[]);
    let leader = daemons.wait_for_leader();
    let other = 1 - leader;
    let (mut holder, _) = hold(&daemons.urls(other), "a");
    let resumes = || {
        let metrics = get(&daemons.url(leader), "/metrics");
        metrics.lines().find_map(|line| line.strip_prefix("lockkeeper_resumes_total ").map(str::to_owned))
    };
    let before = resumes();
    assert!(before.is_some());
    daemons.signal(other, Signal::STOP);
    wait_until(|| resumes() != before);
    assert_eq!(holder.let_go(), 0);
    daemons.signal(other, Signal::CONT);
}

/// A session with many notices that it has not acknowledged is one item of a snapshot, and longer
/// than etcd lets a request be.
#[test]
fn a_snapshot_has_items_that_are_longer_than_a_request_to_etcd() {
    const LOCKS: u64 = 40_000;
    let cluster = Cluster::start(1).expect("etcd starts");
    let mut daemons = fleet(&cluster, 2, &[]);
    let leader = daemons.wait_for_leader();
    let open = || open(&daemons, leader);
    let name = |number: u64| -> &'static [u8] { format!("lock {number}").leak().as_bytes() };
    let mut victim = open();
    let mut thief = open();
    for (stream, steal) in [(&mut victim, false), (&mut thief, true)] {
        for first in (1..=LOCKS).step_by(1000) {
            let flags = Flags { steal, ..Flags::default() };
            let all = first..first + 1000;
            say(stream, all.map(|rid| request(rid, vec![(name(rid), Mode::Exclusive)], flags)));
            hear_until(
                stream,
                |message| matches!(message, ToClient::Granted { rid, .. } if *rid == first + 999),
            );
        }
    }
    // More than the log may have before a snapshot is taken.
    let mut other = open();
    (1..=20).for_each(|rid| have_megabyte(&mut other, rid));
    wait_until(|| has_snapshot(&cluster));
    daemons.kill(leader);
    let next = daemons.wait_for_leader();
    wait_until(|| run(&socket(&daemons, next), &["run", "-n", "free", "--", "true"]).status.success());
}

/// One client writes several times what etcd may have. Snapshots make room for it, and no other
/// client notices.
#[test]
fn scopes_of_a_megabyte_do_not_fill_etcd() {
    const QUOTA: u64 = 96_000_000;
    let quota = QUOTA.to_string();
    let cluster = Cluster::start_with(1, &["--quota-backend-bytes", &quota]).expect("etcd starts");
    let mut daemons = fleet(&cluster, 2, &["--store-own"]);
    let leader = daemons.wait_for_leader();
    let all = daemons.urls(1 - leader);
    let (mut holder, fence) = hold(&all, "held");
    let mut greedy = open(&daemons, leader);
    for rid in 1..=3 * QUOTA / MEGABYTE {
        have_megabyte(&mut greedy, rid);
        if rid.is_multiple_of(20) {
            assert_eq!(holder.say("still"), "still", "the command was not ended");
        }
    }
    assert!(!etcd(&cluster, "/v3/maintenance/alarm", "{\"action\":\"GET\"}").contains("NOSPACE"));
    // The keys from "test/0/log/" to "test/0/log0": those of entries that the snapshot has are
    // gone.
    let counted = r#"{"key":"dGVzdC8wL2xvZy8=","range_end":"dGVzdC8wL2xvZzA=","count_only":true}"#;
    wait_until(|| {
        let counted = etcd(&cluster, "/v3/kv/range", counted);
        counted.split("\"count\":\"").nth(1).is_none_or(|rest| {
            rest.split('"').next().and_then(|count| count.parse::<u64>().ok()).is_some_and(|count| count < 60)
        })
    });
    // What is left is the whole log: for the daemon that takes over, and for one that starts.
    daemons.kill(leader);
    wait_until(|| daemons.leader() == Some(1 - leader));
    daemons.run(leader).expect("it starts");
    daemons.wait(leader).expect("it serves");
    for at in [0, 1] {
        wait_for(&daemons.url(at), "held", 1, 0);
    }
    assert_eq!(holder.say("still"), "still", "the command was not ended");
    assert_eq!(holder.let_go(), 0);
    daemons.stop(1 - leader);
    assert!(hold(&daemons.url(leader), "held").1 > fence);
}

/// A session at a daemon's socket.
fn open(daemons: &Daemons, at: usize) -> UnixStream {
    let mut stream = UnixStream::connect(daemons.socket(at)).expect("a daemon listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
    say(&mut stream, [ToServer::hello("default", Some(600_000))]);
    hear_until(&mut stream, |message| matches!(message, ToClient::Synced));
    stream
}

fn request(rid: u64, scope: Vec<(&'static [u8], Mode)>, flags: Flags) -> ToServer<'static> {
    ToServer::Request { ack: 1, rid, scope, flags, nested_in: None, info: None }
}

/// Bytes of an entry that [`have_megabyte`] makes, at least.
const MEGABYTE: u64 = 960_000;

/// Has a lock with a scope of about a megabyte, and releases it.
fn have_megabyte(stream: &mut UnixStream, rid: u64) {
    static NAMES: LazyLock<Vec<Vec<u8>>> =
        LazyLock::new(|| (0..16).map(|number| vec![number; 60_000]).collect());
    let scope = NAMES.iter().map(|name| (name.as_slice(), Mode::Exclusive)).collect();
    let release = ToServer::Release { ack: 1, rid, flags: EndFlags::default() };
    say(stream, [request(rid, scope, Flags::default()), release]);
    hear_until(
        stream,
        |message| matches!(message, ToClient::Granted { rid: granted, .. } if *granted == rid),
    );
}

/// Whether etcd has the key `test/0/snapshot`, by its JSON gateway.
fn has_snapshot(cluster: &Cluster) -> bool {
    let url = cluster.url("");
    let address = url.trim_start_matches("etcd://").trim_end_matches('/');
    let body = r#"{"key":"dGVzdC8wL3NuYXBzaG90"}"#;
    let head = format!("POST /v3/kv/range HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}", body.len());
    let stream = TcpStream::connect(address).expect("etcd listens");
    http(stream, &format!("{head}\r\nConnection: close\r\n\r\n{body}")).contains("\"kvs\"")
}

fn say<'a>(stream: &mut UnixStream, messages: impl IntoIterator<Item = ToServer<'a>>) {
    let mut said = Vec::new();
    messages.into_iter().for_each(|message| frame::append(&mut said, |out| message.encode(out)));
    stream.write_all(&said).expect("it reads");
}

fn hear_until(stream: &mut UnixStream, wanted: impl Fn(&ToClient<'_>) -> bool) {
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length).expect("it answers");
        let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut bytes).expect("it answers");
        if wanted(&ToClient::decode(&bytes).expect("a message")) {
            return;
        }
    }
}

/// The follower has nothing to do with it but to pass messages on; and when another daemon leads,
/// the client subscribes there.
#[test]
fn a_subscription_goes_through_a_follower_and_outlives_a_leader() {
    let cluster = Cluster::start(1).expect("etcd starts");
    let mut daemons = fleet(&cluster, 3, &[]);
    let first = daemons.wait_for_leader();
    let other = (first + 1) % 3;
    let endpoint: Endpoint = socket(&daemons, other).parse().expect("it is one");
    let session: Session =
        Session::open(&endpoint, Options::new("default"), Callbacks).expect("the daemon runs");
    let (sender, told) = mpsc::channel();
    session.subscribe(move |change| _ = sender.send(change));
    let mut known: BTreeMap<u64, (String, bool)> = BTreeMap::new();
    let mut states = 0;
    let mut await_names = |expected: &[(&str, bool)]| {
        let shown = |known: &BTreeMap<u64, (String, bool)>| known.values().cloned().collect::<Vec<_>>();
        let expected: Vec<_> = expected.iter().map(|(name, held)| ((*name).to_string(), *held)).collect();
        while states == 0 || shown(&known) != expected {
            let change = told.recv_timeout(PATIENCE).expect("something is told").expect("it is not refused");
            let (entries, gone) = match change {
                Change::State(state) => {
                    known.clear();
                    states += 1;
                    (state.entries, Vec::new())
                }
                Change::Changes { entries, gone, .. } => (entries, gone),
            };
            gone.iter().for_each(|arrival| _ = known.remove(arrival));
            for entry in entries {
                known.insert(entry.arrival, (entry.name.to_string_lossy().into(), entry.token.is_some()));
            }
        }
        states
    };
    let all = daemons.urls(other);
    let _holder = hold(&all, "a");
    await_names(&[("a", true)]);
    let _waiter = Holder::start(client(&all, &["run"]).arg("a"));
    assert_eq!(await_names(&[("a", true), ("a", false)]), 1, "the state came once");
    daemons.kill(first);
    daemons.wait_for_leader();
    let _another = hold(&all, "b");
    assert!(await_names(&[("a", true), ("a", false), ("b", true)]) > 1, "the new leader sent its state");
}

/// The dashboard asks any daemon of it.
#[test]
fn every_daemon_tells_how_the_fleet_is_to_who_may_inspect() {
    let user = User::new();
    let keys = user.file("beside", "").replace("beside", "keys.json");
    assert!(user.run(&["token", "--new-key", &keys]).status.success());
    let cluster = Cluster::start(1).expect("etcd starts");
    let daemons = fleet(&cluster, 2, &["--keys", &keys]);
    let leader = daemons.wait_for_leader();
    let ask = |at: usize, args: Option<&[&str]>| {
        let token = args.map(|args| {
            let made = user.run(&[&["token", "--keys", &keys, "--bucket", "default"], args].concat());
            format!("Authorization: Bearer {}\r\n", String::from_utf8_lossy(&made.stdout).trim())
        });
        let url = daemons.url(at);
        let address = url.strip_prefix("ws://").expect("it is a WebSocket");
        let stream = TcpStream::connect(address).expect("it listens");
        let token = token.unwrap_or_default();
        http(stream, &format!("GET /fleet HTTP/1.1\r\nHost: {address}\r\n{token}\r\n"))
    };
    for at in [leader, 1 - leader] {
        assert!(ask(at, None).contains("403 Forbidden"), "a token is needed");
        assert!(ask(at, Some(&["--steal"])).contains("no right to inspect"));
        // The daemons say every few seconds that they are there.
        wait_until(|| {
            let told = ask(at, Some(&["--inspect"]));
            told.contains("200 OK")
                && told.contains(&format!("\"leader\":{{\"url\":\"{}\"", daemons.url(leader)))
                && [0, 1]
                    .iter()
                    .all(|at| told.contains(&format!("{{\"url\":\"{}\",\"version\"", daemons.url(*at))))
        });
    }
}

/// The daemon that has the connection decides the rights of its client.
#[test]
fn a_follower_checks_tokens() {
    let user = User::new();
    let keys = user.file("beside", "").replace("beside", "keys.json");
    assert!(user.run(&["token", "--new-key", &keys]).status.success());
    let token = |args: &[&str]| {
        let made = user.run(&[&["token", "--keys", &keys], args].concat());
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        user.file("token", String::from_utf8(made.stdout).expect("it is text").trim())
    };
    let cluster = Cluster::start(1).expect("etcd starts");
    let daemons = fleet(&cluster, 2, &["--keys", &keys]);
    let other = 1 - daemons.wait_for_leader();
    let with = |token: Option<&str>, args: &[&str]| {
        let mut command = client(&daemons.url(other), args);
        if let Some(token) = token {
            command.env("LOCKKEEPER_TOKEN_FILE", token);
        }
        command.output().expect("it starts")
    };
    let refused = with(None, &["run", "a", "--", "true"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("a token is needed"), "{refused:?}");
    let good = token(&["--bucket", "default", "--subject", "alice"]);
    assert!(with(Some(&good), &["run", "a", "--", "true"]).status.success());
    let stolen = with(Some(&good), &["run", "--steal", "a", "--", "true"]);
    assert!(String::from_utf8_lossy(&stolen.stderr).contains("no right to steal"), "{stolen:?}");
    // A relay has to show that it is of the fleet.
    let leader = daemons.url(1 - other);
    assert!(get(&leader, "/relay").contains("403"));
}

/// etcd answers requests of its own HTTP gateway.
fn etcd(cluster: &Cluster, path: &str, body: &str) -> String {
    etcd_with(cluster, &format!("{path} HTTP/1.1"), body)
}

/// The same, with headers after the path.
fn etcd_with(cluster: &Cluster, path: &str, body: &str) -> String {
    let url = cluster.url("");
    let address = url.trim_start_matches("etcd://").trim_end_matches('/');
    let stream = TcpStream::connect(address).expect("it listens");
    let length = body.len();
    let head =
        format!("POST {path}\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    http(stream, &format!("{head}{body}"))
}

/// While nothing can be written, leases are kept by reading: no lock is lost, and requests are
/// refused with the reason.
#[test]
fn a_full_etcd_refuses_and_loses_nothing() {
    let cluster = Cluster::start_with(1, &["--quota-backend-bytes", "4000000"]).expect("etcd starts");
    let mut daemons = fleet_with(&cluster, 3, "8s", &[]);
    let leader = daemons.wait_for_leader();
    let (follower, spare) = ((leader + 1) % 3, (leader + 2) % 3);
    let other = daemons.url(follower);
    let (mut holder, _) = hold(&other, "held");
    let (mut waiter, _) = hold(&other, "asks");
    let value = "A".repeat(1 << 20);
    let full = |answer: &str| answer.contains("database space exceeded");
    wait_until(|| {
        full(&etcd(&cluster, "/v3/kv/put", &format!("{{\"key\":\"YQ==\",\"value\":\"{value}\"}}")))
    });
    wait_until(|| {
        let refused = run(&other, &["run", "--timeout", "5s", "another", "--", "true"]);
        String::from_utf8_lossy(&refused.stderr).contains("etcd is full")
    });
    let leader = daemons.url(leader);
    let health = || get(&leader, "/healthz");
    wait_until(|| health().contains("503 ") && health().contains("etcd is full"));
    // Clients of a follower are refused, too.
    let health_of_follower = || get(&other, "/healthz");
    wait_until(|| health_of_follower().contains("503 ") && health_of_follower().contains("etcd is full"));
    // A daemon can start. It has nothing to write.
    daemons.kill(spare);
    daemons.run(spare).expect("it starts");
    daemons.wait(spare).expect("it serves");
    wait_until(|| matches!(report(&cluster), (shown, Some(1)) if shown.contains("NOSPACE")));
    // Longer than the lease.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(11) {
        assert_eq!(holder.say("still"), "still", "the command was not ended");
        thread::sleep(Duration::from_millis(200));
    }
    let text = |answer: &str, name: &str| {
        let value = answer.split(&format!("\"{name}\":\"")).nth(1).and_then(|rest| rest.split('"').next());
        value.unwrap_or_else(|| panic!("no {name} in {answer}")).to_owned()
    };
    let revision = text(&etcd(&cluster, "/v3/kv/deleterange", "{\"key\":\"YQ==\"}"), "revision");
    etcd(&cluster, "/v3/kv/compaction", &format!("{{\"revision\":\"{revision}\",\"physical\":true}}"));
    etcd(&cluster, "/v3/maintenance/defragment", "{}");
    let raised = etcd(&cluster, "/v3/maintenance/alarm", "{\"action\":\"GET\"}");
    let member = text(&raised, "memberID");
    let disarm = format!("{{\"action\":\"DEACTIVATE\",\"memberID\":\"{member}\",\"alarm\":\"NOSPACE\"}}");
    etcd(&cluster, "/v3/maintenance/alarm", &disarm);
    assert_eq!(waiter.let_go(), 0);
    wait_until(|| run(&other, &["run", "--timeout", "5s", "asks", "--", "true"]).status.success());
    wait_until(|| health().contains("200 OK") && health_of_follower().contains("200 OK"));
    assert_eq!(holder.let_go(), 0);
}

/// etcd refuses writes also when it finds that its members differ.
#[test]
fn a_corrupt_etcd_is_named() {
    let cluster = Cluster::start(1).expect("etcd starts");
    let daemons = fleet(&cluster, 2, &[]);
    let leader = daemons.url(daemons.wait_for_leader());
    let (mut holder, _) = hold(&leader, "held");
    let alarm = |action: &str| {
        let status = etcd(&cluster, "/v3/maintenance/status", "{}");
        let member = status.split("\"member_id\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let member = member.expect("it has an id");
        let alarm = format!("{{\"action\":\"{action}\",\"memberID\":\"{member}\",\"alarm\":\"CORRUPT\"}}");
        etcd(&cluster, "/v3/maintenance/alarm", &alarm);
    };
    alarm("ACTIVATE");
    let health = || get(&leader, "/healthz");
    wait_until(|| health().contains("503 ") && health().contains("alarm CORRUPT"));
    let refused = run(&leader, &["run", "--timeout", "5s", "another", "--", "true"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("alarm CORRUPT"), "{refused:?}");
    alarm("DEACTIVATE");
    wait_until(|| health().contains("200 OK"));
    assert_eq!(holder.let_go(), 0);
}

#[test]
fn a_store_that_has_less_than_before_is_refused() {
    let cluster = Cluster::start(1).expect("etcd starts");
    let mut daemons = fleet(&cluster, 1, &[]);
    assert!(run(&daemons.url(0), &["run", "a", "--", "true"]).status.success());
    daemons.stop(0);
    // "test/" to "test0".
    etcd(&cluster, "/v3/kv/deleterange", "{\"key\":\"dGVzdC8=\",\"range_end\":\"dGVzdDA=\"}");
    daemons.run(0).expect("it starts");
    wait_until(|| daemons.log(0).contains("restored from a backup"));
    assert!(daemons.log(0).contains("--accept-restored-store"));
    let setup = Setup {
        program: PROGRAM.into(),
        store: cluster.url("test"),
        more: ["--takeover", "500ms", "--ttl", "2s"].map(Into::into).into(),
    };
    // A daemon without a memory continues: only one with a memory can detect it.
    let other = Daemons::start(1, setup).expect("it starts");
    assert!(run(&other.url(0), &["run", "a", "--", "true"]).status.success());
}

/// Every leader waits for leases that the backup does not know: a daemon that remembers nothing,
/// and the one that takes over from it without the flag.
#[test]
fn a_restored_store_is_recovered_by_every_leader() {
    let mut cluster = Cluster::start(1).expect("etcd starts");
    let usual = ["--takeover", "500ms", "--ttl", "20s"];
    let mut daemons = fleet(&cluster, 2, &[]);
    daemons.wait_for_leader();
    assert!(run(&daemons.urls(0), &["run", "before", "--", "true"]).status.success());
    cluster.back_up().expect("it is copied");
    let (_holder, _) = hold(&daemons.urls(0), "a");
    // Both have seen it.
    wait_until(|| position(&daemons, 0).is_some() && position(&daemons, 0) == position(&daemons, 1));
    (0..2).for_each(|at| daemons.stop(at));
    cluster.restore().expect("it is copied");
    let is_refused = |daemons: &Daemons| {
        let ran = run(&daemons.urls(0), &["run", "--timeout", "1s", "a", "--", "true"]);
        assert!(!ran.status.success(), "{ran:?}");
    };

    // A follower says so of its leader.
    let recovers = |daemons: &Daemons, at| {
        let health = get(&daemons.url(at), "/healthz");
        health.contains("the leader, ws:") && health.contains("waiting for earlier leases")
    };

    // One that remembers more does not start.
    daemons.run(1).expect("it starts");
    wait_until(|| daemons.log(1).contains("it was restored from a backup"));
    daemons.forget(0).expect("it has a state directory");
    daemons.set_more(&[&usual[..], &["--accept-restored-store"]].concat());
    daemons.run(0).expect("it starts");
    wait_until(|| daemons.log(0).contains("the store was restored: waiting"));
    assert!(get(&daemons.url(0), "/healthz").contains("waiting for earlier leases"));
    is_refused(&daemons);

    // Accepted by one, the store is accepted by all, and remains blind.
    daemons.set_more(&usual);
    daemons.run(1).expect("it starts");
    daemons.wait(1).expect("it follows");
    wait_until(|| recovers(&daemons, 1));
    daemons.kill(0);
    wait_until(|| daemons.log(1).contains("the store was restored: waiting"));
    is_refused(&daemons);
    // A flag that was left has no effect once a daemon leads.
    daemons.set_more(&[&usual[..], &["--accept-restored-store"]].concat());
    daemons.run(0).expect("it starts");
    daemons.wait(0).expect("it follows");
    wait_until(|| recovers(&daemons, 0));
}

/// `lockkeeper fleet` about this etcd: what it prints, and its status.
fn report(cluster: &Cluster) -> (String, Option<i32>) {
    let shown = Command::new(PROGRAM).args(["fleet", "--store", &cluster.url("test")]).output();
    let shown = shown.expect("it starts");
    (String::from_utf8(shown.stdout).expect("it is text"), shown.status.code())
}

#[test]
fn a_member_of_etcd_that_is_gone_is_shown() {
    let mut cluster = Cluster::start(3).expect("etcd starts");
    let _daemons = fleet(&cluster, 1, &[]);
    wait_until(|| report(&cluster).1 == Some(0));
    let (shown, _) = report(&cluster);
    let version = Command::new("etcd").arg("--version").output().expect("etcd is installed").stdout;
    let version = String::from_utf8_lossy(&version).lines().next().map(str::to_owned).unwrap_or_default();
    let version = version.trim_start_matches("etcd Version: ");
    assert_eq!(shown.matches(version).count(), 3, "{shown}");
    let store = cluster.url("test");
    let json =
        Command::new(PROGRAM).args(["fleet", "--json", "--store", &store]).output().expect("it starts");
    assert!(String::from_utf8_lossy(&json.stdout).contains("\"lag\":0"), "{json:?}");
    cluster.kill(2);
    let member = store.trim_end_matches("/test").rsplit(',').next().expect("it has members").to_owned();
    wait_until(|| {
        let (shown, status) = report(&cluster);
        let gone = shown.lines().any(|line| line.contains(&member) && line.contains("silent"));
        gone && status == Some(1)
    });
}

/// A daemon says so, and so does `lockkeeper fleet`: clients of the others would only wait.
#[test]
fn a_url_that_is_not_of_the_daemon_is_named() {
    let cluster = Cluster::start(1).expect("etcd starts");
    let mut daemons = fleet(&cluster, 2, &[]);
    let leader = daemons.wait_for_leader();
    let other = 1 - leader;
    wait_until(|| report(&cluster).1 == Some(0));
    // Started again, it has left a record of itself: that is not another daemon.
    daemons.kill(other);
    daemons.run(other).expect("it starts");
    daemons.wait(other).expect("it serves");
    wait_until(|| report(&cluster).1 == Some(0));

    // Two with the URL of the one that leads.
    let url = daemons.url(leader);
    let user = User::new();
    let advertises = |name: &str, url: &str| {
        let dir = user.file(name, "").replace(name, &format!("dir-{name}"));
        let (socket, state) = (format!("{dir}/socket"), format!("{dir}/state"));
        let args = ["serve", "--listen", "127.0.0.1:0", "--socket", &socket, "--state-dir", &state];
        let mut command = Command::new(PROGRAM);
        command.args(args).args(["--takeover", "500ms", "--ttl", "20s", "--store", &cluster.url("test")]);
        let log = user.file(&format!("log-{name}"), "");
        let file = std::fs::File::create(&log).expect("a file");
        let child = command.args(["--advertise", url]).stderr(file).spawn().expect("it starts");
        (Ended(child), log)
    };
    let (double, log) = advertises("double", &url);
    let doubled = format!("two daemons advertise {url}");
    wait_until(|| matches!(report(&cluster), (shown, Some(1)) if shown.contains(&doubled)));
    let said = |log: &str, words: &str| std::fs::read_to_string(log).is_ok_and(|log| log.contains(words));
    wait_until(|| said(&log, &doubled) && daemons.log(leader).contains(&doubled));
    drop(double);

    // An unreachable daemon leads.
    let (alone, log) = advertises("alone", "ws://127.0.0.1:1");
    wait_until(|| said(&log, "serving"));
    daemons.kill(leader);
    daemons.kill(other);
    wait_until(|| said(&log, "leading"));
    daemons.run(other).expect("it starts");
    let unreachable = "the leader, ws://127.0.0.1:1, cannot be reached";
    wait_until(|| daemons.log(other).contains(unreachable) && daemons.log(other).contains("--advertise"));
    wait_until(|| matches!(report(&cluster), (shown, Some(1)) if shown.contains(unreachable)));
    drop(alone);
}

/// A process that ends with its test.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn keys_that_are_deleted_from_etcd_are_named() {
    let cluster = Cluster::start(1).expect("etcd starts");
    let daemons = fleet(&cluster, 2, &[]);
    let leader = daemons.wait_for_leader();
    assert!(run(&daemons.url(leader), &["run", "a", "--", "true"]).status.success());
    // "test/key": the daemons that run write it again, as it was.
    let key = || {
        let answer = etcd(&cluster, "/v3/kv/range", "{\"key\":\"dGVzdC9rZXk=\"}");
        answer.split("\"value\":\"").nth(1).map(|rest| rest.split('"').next().map(str::to_owned))
    };
    let before = key();
    assert!(before.is_some());
    etcd(&cluster, "/v3/kv/deleterange", "{\"key\":\"dGVzdC9rZXk=\"}");
    wait_until(|| key().is_some());
    assert_eq!(key(), before);
    wait_until(|| [0, 1].iter().any(|at| daemons.log(*at).contains("was deleted from etcd: wrote it again")));
    // "test/0/log": the locks are unknown.
    etcd(&cluster, "/v3/kv/deleterange", "{\"key\":\"dGVzdC8wL2xvZw==\"}");
    for at in [0, 1] {
        wait_until(|| daemons.log(at).contains("the head of the log, test/0/log, was deleted from etcd"));
        assert!(daemons.log(at).contains("etcdctl del --prefix test/0/"), "{}", daemons.log(at));
    }
    let (shown, status) = report(&cluster);
    assert_eq!(status, Some(1));
    assert!(shown.contains("the head of the log, test/0/log, was deleted from etcd"), "{shown}");
}

#[test]
fn what_is_wrong_with_the_store_is_said() {
    let user = User::new();
    let refused = |args: &[&str]| {
        let listen = ["serve", "--listen", "127.0.0.1:0"];
        let output = user.run(&[&listen, args].concat());
        assert!(!output.status.success());
        String::from_utf8(output.stderr).expect("it is text")
    };
    let advertised = ["--advertise", "ws://127.0.0.1:1", "--store"];
    let says = |args: &[&str], words: &str| {
        let said = refused(args);
        assert!(said.contains(words), "{args:?}: {said}");
    };
    says(&["--store", "etcd://127.0.0.1:1"], "--advertise");
    says(&["--advertise", "ws://127.0.0.1:1"], "--store");
    says(&["--store-own"], "are for --store");
    says(&["--accept-restored-store"], "are for --store");
    says(&[&advertised[..], &["http://127.0.0.1:1"]].concat(), "etcd://host:port");
    says(&[&advertised[..], &["etcd://127.0.0.1:1", "--store-ca", "x"]].concat(), "etcds://");
    says(&[&advertised[..], &["etcd://127.0.0.1:1", "--ttl", "1s"]].concat(), "four times");
    for elsewhere in ["ws://example.com:1", "ws://localhost.example.com:1", "ws://127.example.com:1"] {
        says(&["--advertise", elsewhere, "--store", "etcd://127.0.0.1:1"], "could read what is relayed");
    }
    let begun = Instant::now();
    let said = refused(&[&advertised[..], &["etcd://127.0.0.1:1,127.0.0.1:2"]].concat());
    assert!(said.contains("127.0.0.1:1") && said.contains("127.0.0.1:2"), "{said}");
    assert!(said.contains("Connection refused"), "{said}");
    assert!(begun.elapsed() < PATIENCE);
}

/// A daemon that runs a command with such an etcd.
fn serves(cluster: &Cluster, more: &[&str]) {
    let daemons = fleet(cluster, 1, more);
    let ran = run(&daemons.url(0), &["run", "a", "--", "true"]);
    assert!(ran.status.success(), "{ran:?}: {}", daemons.log(0));
}

#[test]
fn etcd_can_want_tls_and_a_certificate() {
    let user = User::new();
    let authority_key = KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::new(Vec::new()).expect("no names");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "authority");
    let authority_cert = authority.self_signed(&authority_key).expect("a certificate");
    let issuer = Issuer::from_params(&authority, &authority_key);
    let certified = |name: &str| {
        let key = KeyPair::generate().expect("a key");
        let cert = CertificateParams::new(vec!["127.0.0.1".into()]).expect("an address");
        let cert = cert.signed_by(&key, &issuer).expect("a certificate");
        (
            user.file(&format!("{name}.pem"), &cert.pem()),
            user.file(&format!("{name}.key"), &key.serialize_pem()),
        )
    };
    let ca = user.file("ca.pem", &authority_cert.pem());
    let ((cert, key), (client_cert, client_key)) = (certified("server"), certified("client"));
    let wants = ["--cert-file", &cert, "--key-file", &key, "--client-cert-auth", "--trusted-ca-file", &ca];
    let cluster = Cluster::start_with_tls(1, &wants).expect("etcd starts");
    let without = user.run(&["fleet", "--store", &cluster.url("test"), "--store-ca", &ca]);
    assert_eq!(without.status.code(), Some(69), "{without:?}");
    serves(&cluster, &["--store-ca", &ca, "--store-cert", &client_cert, "--store-key", &client_key]);
}

#[test]
fn etcd_can_want_a_password() {
    let user = User::new();
    let mut cluster = Cluster::start(1).expect("etcd starts");
    let password = user.file("password", "secret\n");
    for (path, body) in [
        ("user/add", "{\"name\":\"root\",\"password\":\"secret\"}"),
        ("user/grant", "{\"user\":\"root\",\"role\":\"root\"}"),
        ("enable", "{}"),
    ] {
        let answer = etcd(&cluster, &format!("/v3/auth/{path}"), body);
        assert!(answer.contains("200 OK"), "{path}: {answer}");
    }
    let without = user.run(&["fleet", "--store", &cluster.url("test")]);
    assert!(!without.status.success());
    let as_root = |path: &str, body: &str| {
        let answer = etcd(&cluster, "/v3/auth/authenticate", "{\"name\":\"root\",\"password\":\"secret\"}");
        let token = answer.split("\"token\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let path = format!("/v3/auth/{path} HTTP/1.1\r\nAuthorization: {}", token.expect("a token"));
        let answer = etcd_with(&cluster, &path, body);
        assert!(answer.contains("200 OK"), "{path}: {answer}");
    };
    // A user that may do nothing but read and write the keys with the prefix: "test/" to "test0".
    let range = "\"key\":\"dGVzdC8=\",\"range_end\":\"dGVzdDA=\"";
    let grant = |what: &str| {
        let perm = format!("{{\"permType\":\"{what}\",{range}}}");
        as_root("role/grant", &format!("{{\"name\":\"locks\",\"perm\":{perm}}}"));
    };
    as_root("role/add", "{\"name\":\"locks\"}");
    grant("READWRITE");
    as_root("user/add", "{\"name\":\"locks\",\"password\":\"secret\"}");
    as_root("user/grant", "{\"user\":\"locks\",\"role\":\"locks\"}");
    let more = ["--store-user", "locks", "--store-password-file", &password];
    let daemons = fleet_with(&cluster, 2, "5m", &more);
    let url = daemons.url(1 - daemons.wait_for_leader());
    let (mut holder, _) = hold(&url, "held");
    let asks = || run(&url, &["run", "--timeout", "5s", "asks", "--", "true"]);

    // It may not write any more. Leases are kept by reading.
    as_root("role/revoke", &format!("{{\"role\":\"locks\",{range}}}"));
    grant("READ");
    wait_until(|| String::from_utf8_lossy(&asks().stderr).contains("permission denied"));
    grant("READWRITE");
    wait_until(|| asks().status.success());
    assert_eq!(holder.say("still"), "still", "the command was not ended");

    // etcd forgets the tokens that it gave out.
    cluster.kill(0);
    cluster.run(0).expect("it starts");
    cluster.wait(0).expect("it listens");
    wait_until(|| asks().status.success());
    assert_eq!(holder.let_go(), 0);
    drop(daemons);
    let wrong = user.file("wrong", "wrong");
    let advertise =
        ["--listen", "127.0.0.1:0", "--advertise", "ws://127.0.0.1:1", "--store", &cluster.url("test")];
    let refused = user.run(
        &[&["serve"], &advertise[..], &["--store-user", "root", "--store-password-file", &wrong]].concat(),
    );
    assert!(String::from_utf8_lossy(&refused.stderr).contains("authentication failed"), "{refused:?}");
}
