//! What was answered is in the log: killing the daemon at any moment loses nothing.

use crate::{
    client::{Client, framed},
    daemon::Daemon,
};
use lockkeeper_core::Mode;
use lockkeeper_server::code;
use lockkeeper_wire::v2::{EndFlags, Flags, ToClient, ToServer};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

fn request(rid: u64, name: &str) -> Vec<u8> {
    let scope = vec![(name.as_bytes(), Mode::Exclusive)];
    framed(&ToServer::Request { ack: 0, rid, scope, flags: Flags::default(), nested_in: None, info: None })
}

fn release(rid: u64) -> Vec<u8> {
    framed(&ToServer::Release { ack: 0, rid, flags: EndFlags::default() })
}

/// Each round asks for many locks and releases every other one, and the daemon is killed after some
/// of the answers.
#[test]
fn killing_the_daemon_at_any_moment_loses_nothing_that_was_answered() {
    for sync in [false, true] {
        let mut daemon = Daemon::start_with(|setup| setup.sync = sync);
        let mut client = Client::open(&daemon);
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        let mut last_token = 0;
        for round in 0..12 {
            let from = client.last_rid;
            let mut sent = Vec::new();
            for rid in from + 1..=from + 400 {
                sent.extend(request(rid, &format!("name {rid}")));
                if rid % 2 == 0 {
                    sent.extend(release(rid));
                }
            }
            client.write(&sent);
            let mut released = BTreeSet::new();
            for _ in 0..round * 40 {
                match client.hear() {
                    ToClient::Granted { rid, token } => {
                        assert!(token > last_token, "tokens grow");
                        last_token = token;
                        held.insert(rid, token);
                    }
                    ToClient::Released { rid } => {
                        held.remove(&rid);
                        released.insert(rid);
                    }
                    other => panic!("{other:?}"),
                }
            }
            daemon.kill();
            daemon.run();
            let welcomed = client.resume(&daemon);
            assert!(welcomed.resumed);
            let listed: BTreeMap<u64, u64> = welcomed
                .listed
                .iter()
                .map(|listed| (listed.rid, listed.token.expect("nobody else wants it")))
                .collect();
            for (rid, token) in &held {
                // An even one may have been released unheard.
                let there = listed.get(rid);
                assert!(there == Some(token) || there.is_none() && rid % 2 == 0, "{rid}: {there:?}");
            }
            assert!(released.iter().all(|rid| !listed.contains_key(rid)));
            assert!(welcomed.last_rid >= held.keys().chain(&released).copied().max().unwrap_or(from));
            assert!(listed.keys().all(|rid| *rid <= welcomed.last_rid));
            // Effects are whole up to the last number: what comes after it was not heard.
            let expected: BTreeSet<u64> = (from + 1..=welcomed.last_rid).filter(|rid| rid % 2 == 1).collect();
            assert!(expected.iter().all(|rid| listed.contains_key(rid)));
            held = listed;
            last_token = held.values().copied().max().unwrap_or(0).max(last_token);
            client.last_rid = welcomed.last_rid.max(from);
        }
        for rid in held.keys() {
            client.release(*rid);
        }
        assert_eq!(client.query(None), []);
        assert_eq!(sync, daemon.setup.sync);
    }
}

/// Two clients pass one lock to and fro, and it never has two holders, however often the daemon is
/// killed.
#[test]
fn a_lock_has_one_holder_over_many_kills() {
    let mut daemon = Daemon::start();
    let mut clients = [(); 2].map(|()| Client::open(&daemon));
    let mut held = clients[0].hold("a");
    let mut tokens = vec![held.number];
    for round in 0..10_usize {
        let [one, other] = &mut clients;
        let (holder, next) = if round % 2 == 0 { (one, other) } else { (other, one) };
        let waiting = next.wait_for("a");
        // The release may be recorded or not: the daemon is killed at once.
        holder.say(&ToServer::Release { ack: 0, rid: held.rid, flags: EndFlags::default() });
        daemon.kill();
        daemon.run();
        let (mine, theirs) = (holder.resume(&daemon).listed, next.resume(&daemon).listed);
        assert_eq!(theirs.len(), 1);
        let token = match mine[..] {
            [still] => {
                assert_eq!((still.rid, theirs[0].token), (held.rid, None));
                holder.release(held.rid);
                next.granted(waiting.rid)
            }
            _ => theirs[0].token.expect("it was let in"),
        };
        tokens.push(token);
        held = waiting;
    }
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

#[test]
fn one_daemon_at_a_time_has_a_state_directory() {
    let mut daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    client.hold("a");
    let mut second = Daemon::prepare(crate::temp::Temp::new());
    second.setup.state_dir.clone_from(&daemon.setup.state_dir);
    let why = second.try_run().expect_err("it has a daemon");
    assert!(
        why.contains("another daemon") && why.contains(&*second.setup.state_dir.to_string_lossy()),
        "{why}"
    );
    let mut third = Daemon::prepare(crate::temp::Temp::new());
    third.setup.socket.clone_from(&daemon.setup.socket);
    let why = third.try_run().expect_err("it has a daemon");
    assert!(why.contains("another daemon is running"), "{why}");
    client.ping();
    // Clients of the first one may come back to that socket: another state is not theirs.
    daemon.kill();
    let why = third.try_run().expect_err("it has another state");
    assert!(why.contains(&*daemon.setup.state_dir.to_string_lossy()), "{why}");
    daemon.run();
    assert_eq!(client.resume(&daemon).listed.len(), 1);
}

#[test]
fn a_state_directory_of_an_earlier_version_is_refused_by_name() {
    let mut daemon = Daemon::prepare(crate::temp::Temp::new());
    fs::create_dir(&daemon.setup.state_dir).expect("it is ours");
    let key = daemon.setup.state_dir.join("key");
    fs::write(&key, "secret").expect("it is ours");
    let why = daemon.try_run().expect_err("it is of another time");
    assert!(why.contains(&*key.to_string_lossy()) && why.contains("earlier version"), "{why}");
}

fn files(daemon: &Daemon, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(&daemon.setup.state_dir).expect("it is there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    let named =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
    paths.retain(named);
    paths.sort();
    paths
}

#[test]
fn a_damaged_log_is_refused_with_the_place_and_the_way_out() {
    let mut daemon = Daemon::start();
    let mut client = Client::open(&daemon);
    for number in 0..100 {
        client.hold(&format!("name {number}"));
    }
    daemon.kill();
    let [log] = &files(&daemon, "log-")[..] else { panic!("one segment") };
    let whole = fs::read(log).expect("it is there");
    let mut bytes = whole.clone();
    let at = bytes.windows(7).position(|name| name == b"name 10").expect("it is in the log");
    bytes[at] ^= 1;
    fs::write(log, bytes).expect("it is ours");
    let why = daemon.try_run().expect_err("it is damaged");
    assert!(why.contains(&*log.to_string_lossy()) && why.contains("lockkeeper state"), "{why}");
    fs::write(log, whole).expect("it is ours");
    daemon.run();
    assert_eq!(client.resume(&daemon).listed.len(), 100);
}

/// Requests with long names until the log was replaced by a snapshot, with a state that takes many
/// slices.
#[test]
fn a_long_log_is_replaced_by_a_snapshot_of_the_same_state() {
    let mut daemon = Daemon::on_network();
    let mut clients = [Client::open(&daemon), Client::open_with_lease(&daemon), Client::on_network(&daemon)];
    let mut kept = BTreeMap::new();
    for client in &mut clients {
        client.acks = false;
        for number in 0..300 {
            let name = format!("{} {number} {}", client.id, "k".repeat(1000));
            kept.insert((client.id.clone(), client.last_rid + 1), client.hold(&name).number);
        }
    }
    // Something that each has not acknowledged, and something that waits.
    let [one, two, three] = &mut clients;
    let forced = one.force_release("nobody's");
    assert_eq!(one.outcome(forced), 0);
    let lost = two.hold("lost");
    let stolen = three.request_with("lost", Flags { steal: true, ..Flags::default() });
    three.granted(stolen);
    two.broken(lost.rid);
    let waiting = one.wait_for("lost");

    let name = "n".repeat(60_000);
    let mut rounds = 0;
    while files(&daemon, "snapshot-").iter().all(|path| path.extension().is_some()) {
        rounds += 1;
        // While the snapshot is taken, what it has not come to yet changes.
        let old = kept.keys().find(|(id, _)| *id == two.id).cloned().expect("there are many");
        kept.remove(&old);
        two.release(old.1);
        for _ in 0..10 {
            let rid = three.hold(&name).rid;
            three.release(rid);
        }
        let new = two.hold(&format!("new {rounds}"));
        kept.insert((two.id.clone(), new.rid), new.number);
    }
    // The log before it is removed, in the background. On a slow machine, the one after it is long.
    let number = |path: &PathBuf| path.to_string_lossy().rsplit('-').next().and_then(|it| it.parse().ok());
    let snapshots: Vec<u64> = files(&daemon, "snapshot-").iter().filter_map(number).collect();
    while files(&daemon, "log-").iter().filter_map(number).any(|first| first <= snapshots[0]) {
        one.ping();
    }

    for stop in [Daemon::kill, Daemon::stop] {
        stop(&mut daemon);
        daemon.run();
        let mut found = BTreeMap::new();
        let mut others = Vec::new();
        for client in &mut clients {
            let welcomed = client.resume(&daemon);
            assert!(welcomed.resumed);
            for listed in welcomed.listed {
                let key = (client.id.clone(), listed.rid);
                match listed.token.filter(|token| kept.get(&key) == Some(token)) {
                    Some(token) => _ = found.insert(key, token),
                    None => others.push((listed.rid, listed.token.is_some())),
                }
            }
            match (&welcomed.notices[..], &*client.id) {
                ([ToClient::Outcome { rid, count: 0, .. }], _) => assert_eq!(*rid, forced),
                ([ToClient::Broken { rid, .. }], _) => assert_eq!(*rid, lost.rid),
                ([], _) => assert!(!client.is_local()),
                (notices, _) => panic!("{notices:?}"),
            }
        }
        assert_eq!(found, kept);
        assert_eq!(others, [(waiting.rid, false), (stolen, true)]);
    }
    let [one, _, three] = &mut clients;
    three.release(stolen);
    one.granted(waiting.rid);
}

#[test]
fn refusals_leave_no_trace() {
    let mut daemon = Daemon::start_with(|setup| setup.limits.requests_per_client = 1);
    let mut client = Client::open(&daemon);
    let held = client.hold("a");
    for _ in 0..3 {
        let rid = client.request("b");
        assert_eq!(client.refused(rid).0, code::LIMIT);
    }
    daemon.kill();
    daemon.run();
    let welcomed = client.resume(&daemon);
    assert_eq!((welcomed.last_rid, welcomed.listed.len()), (held.rid, 1));
}
