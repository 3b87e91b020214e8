//! A local session lives as long as some process has its descriptor open.

use crate::{
    client::{Client, hello},
    daemon::{Daemon, send_signal},
    process::Process,
    web::await_count,
};
use lockkeeper_core::{Limits, Mode};
use lockkeeper_server::code;
use lockkeeper_wire::v2::{Flags, ToClient, ToServer};
use rustix::process::Signal;
use std::{
    fs,
    io::{ErrorKind, Write},
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

/// The ways in which a daemon is replaced.
const REPLACEMENTS: [fn(&mut Daemon); 2] = [Daemon::replace_killed, Daemon::replace_stopped];

/// The FIFO of a session.
fn path_of(daemon: &Daemon, id: &str) -> PathBuf {
    daemon.setup.state_dir.join("fifo").join(id)
}

/// The daemon has noticed that so many connections are left.
fn await_connections(daemon: &Daemon, count: u32) {
    // The question has one of its own, which is none yet when it is counted.
    await_count(daemon, "lockkeeper_connections", count.into());
}

#[test]
fn a_closed_connection_ends_nothing_while_the_descriptor_is_open() {
    let daemon = Daemon::on_network();
    let (mut holder, mut waiter) = (Client::open(&daemon), Client::open(&daemon));
    let held = holder.hold("a");
    let waiting = waiter.wait_for("a");
    holder.disconnect();
    await_connections(&daemon, 1);
    assert_eq!(waiter.queue_of("a")[0], (holder.id.clone(), true));
    let welcomed = holder.resume(&daemon);
    assert_eq!((welcomed.resumed, welcomed.ttl), (true, 0), "it has no lease");
    assert_eq!(welcomed.listed[0].rid, held.rid);
    holder.ping();
    holder.disconnect();
    await_connections(&daemon, 1);
    assert_eq!(waiter.queue_of("a")[0], (holder.id.clone(), true));
    holder.fifo = None;
    waiter.granted(waiting.rid);
}

#[test]
fn a_closed_descriptor_ends_nothing_while_the_connection_is_open() {
    let daemon = Daemon::start();
    let (mut holder, mut waiter) = (Client::open(&daemon), Client::open(&daemon));
    let held = holder.hold("a");
    let waiting = waiter.wait_for("a");
    holder.fifo = None;
    for _ in 0..20 {
        holder.ping();
    }
    assert_eq!(waiter.queue_of("a")[0], (holder.id.clone(), true));
    drop(holder);
    waiter.granted(waiting.rid);
    assert_eq!(held.rid, 1);
}

#[test]
fn who_is_alive_keeps_its_locks_when_the_daemon_is_replaced_and_who_is_not_loses_them() {
    for replace in REPLACEMENTS {
        let mut daemon = Daemon::start();
        let [mut alive, mut dead] = [(); 2].map(|()| Client::open(&daemon));
        alive.hold("alive");
        dead.hold("dead");
        alive.disconnect();
        replace(&mut daemon);
        let mut other = Client::open(&daemon);
        assert_eq!(other.queue_of("alive"), [(alive.id.clone(), true)]);
        assert_eq!(other.queue_of("dead"), [(dead.id.clone(), true)]);
        daemon.kill();
        drop(dead);
        daemon.run();
        assert!(other.resume(&daemon).resumed);
        // The first request finds it free.
        other.hold("dead");
        let waiting = other.wait_for("alive");
        drop(alive);
        other.granted(waiting.rid);
    }
}

#[test]
fn a_process_that_is_killed_loses_its_locks_at_once() {
    let daemon = Daemon::start();
    let mut other = Client::open(&daemon);
    let process = Process::holding(&daemon, "a");
    let waiting = other.wait_for("a");
    process.kill();
    other.granted(waiting.rid);
}

#[test]
fn a_process_that_died_with_the_daemon_has_lost_its_locks() {
    for replace in REPLACEMENTS {
        let mut daemon = Daemon::start();
        let mut other = Client::open(&daemon);
        let process = Process::holding(&daemon, "a");
        daemon.kill();
        process.kill();
        daemon.run();
        replace(&mut daemon);
        assert!(other.resume(&daemon).resumed);
        other.hold("a");
    }
}

#[test]
fn a_child_that_inherits_the_descriptor_keeps_the_session_alive() {
    for replace in REPLACEMENTS {
        let mut daemon = Daemon::on_network();
        let mut other = Client::open(&daemon);
        let mut process = Process::holding(&daemon, "a");
        let (orphan, id) = (process.leave_child(), process.id.clone());
        process.kill();
        await_connections(&daemon, 1);
        assert_eq!(other.queue_of("a"), [(id.clone(), true)]);
        replace(&mut daemon);
        assert!(other.resume(&daemon).resumed);
        let waiting = other.wait_for("a");
        assert_eq!(other.queue_of("a")[0], (id, true));
        drop(orphan);
        other.granted(waiting.rid);
    }
}

#[test]
fn a_process_that_is_stopped_keeps_its_locks() {
    let mut daemon = Daemon::start();
    let mut other = Client::open(&daemon);
    let mut process = Process::holding(&daemon, "a");
    send_signal(process.pid(), Signal::STOP);
    for replace in REPLACEMENTS {
        replace(&mut daemon);
        assert!(other.resume(&daemon).resumed);
        assert_eq!(other.queue_of("a"), [(process.id.clone(), true)]);
    }
    send_signal(process.pid(), Signal::CONT);
    assert_eq!(process.order("resume"), "true 1");
    let waiting = other.wait_for("a");
    process.kill();
    other.granted(waiting.rid);
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_of_another_pid_namespace_is_as_alive_as_any() {
    if crate::namespace::is_skipped("a_process_of_another_pid_namespace_is_as_alive_as_any") {
        return;
    }
    let mut daemon = Daemon::start();
    let mut other = Client::open(&daemon);
    let starter = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child"];
    let mut process = Process::start(&daemon, "a", &starter);
    process.order("disconnect");
    for replace in REPLACEMENTS {
        replace(&mut daemon);
        assert!(other.resume(&daemon).resumed);
        assert_eq!(other.queue_of("a"), [(process.id.clone(), true)]);
    }
    assert_eq!(process.order("resume"), "true 1");
    let waiting = other.wait_for("a");
    process.kill();
    other.granted(waiting.rid);
}

/// What stands in the place of a FIFO says nothing of the process that has it open.
#[test]
fn a_fifo_that_was_removed_or_replaced_is_unverifiable_and_repaired_by_a_resume() {
    let replaced: [fn(&PathBuf); 4] = [
        |path| fs::remove_file(path).expect("it is ours"),
        |path| {
            fs::remove_file(path).expect("it is ours");
            assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo is there").success());
        },
        |path| {
            let copy = path.with_extension("copy");
            let copied = Command::new("cp").arg("-a").args([path, &copy]).status();
            assert!(copied.expect("cp is there").success());
            fs::rename(copy, path).expect("it is ours");
        },
        |path| {
            fs::remove_file(path).expect("it is ours");
            fs::write(path, "").expect("it is ours");
        },
    ];
    for replace in replaced {
        let mut daemon = Daemon::start();
        let (mut holder, mut other) = (Client::open(&daemon), Client::open(&daemon));
        let held = holder.hold("a");
        daemon.kill();
        replace(&path_of(&daemon, &holder.id));
        daemon.run();
        assert!(other.resume(&daemon).resumed);
        assert_eq!(other.queue_of("a"), [(holder.id.clone(), true)], "it may be alive");
        // A resume of which nothing is confirmed or acknowledged repairs nothing.
        holder.acks = false;
        holder.reconnect(&daemon);
        let resume = Some((holder.id.clone(), holder.secret));
        assert!(holder.greet(resume, None, None).expect("a welcome").ttl > 0);
        holder.acks = true;
        let before = holder.fifo.take();
        let welcomed = holder.resume(&daemon);
        assert!(welcomed.resumed && welcomed.ttl > 0, "it has a lease until it has confirmed another one");
        assert_eq!(welcomed.listed[0].rid, held.rid);
        assert!(holder.fifo.is_some());
        drop(before);
        // It is as good as any.
        assert_eq!(holder.resume(&daemon).ttl, 0);
        daemon.kill();
        daemon.run();
        assert_eq!(holder.resume(&daemon).ttl, 0);
        assert!(other.resume(&daemon).resumed);
        let waiting = other.wait_for("a");
        drop(holder);
        other.granted(waiting.rid);
    }
}

#[test]
fn an_unverifiable_session_can_be_ended_by_hand() {
    let mut daemon = Daemon::start();
    let (mut holder, mut other) = (Client::open(&daemon), Client::open(&daemon));
    holder.hold("a");
    daemon.kill();
    fs::remove_file(path_of(&daemon, &holder.id)).expect("it is ours");
    daemon.run();
    assert!(other.resume(&daemon).resumed);
    let waiting = other.wait_for("a");
    let rid = other.end_session(&holder.id);
    loop {
        match other.hear() {
            ToClient::Outcome { rid: done, count, .. } => {
                assert_eq!((done, count), (rid, 1));
                break;
            }
            ToClient::Granted { rid, .. } => assert_eq!(rid, waiting.rid),
            message => panic!("{message:?}"),
        }
    }
    assert_eq!(other.queue_of("a"), [(other.id.clone(), true)]);
    assert!(!holder.resume(&daemon).resumed);
}

/// The daemon looks at a FIFO again when its connection is closed.
#[test]
fn a_fifo_that_is_removed_under_the_daemon_is_unverifiable_too() {
    let daemon = Daemon::on_network();
    let (mut holder, mut other) = (Client::open(&daemon), Client::open(&daemon));
    holder.hold("a");
    fs::remove_dir_all(daemon.setup.state_dir.join("fifo")).expect("it is ours");
    holder.disconnect();
    await_count(&daemon, "lockkeeper_unverifiable_sessions", 1.into());
    assert_eq!(other.queue_of("a"), [(holder.id.clone(), true)]);
    // New sessions have theirs, and so has this one again.
    assert!(holder.resume(&daemon).ttl > 0);
    await_count(&daemon, "lockkeeper_unverifiable_sessions", 0.into());
    let mut third = Client::open(&daemon);
    third.hold("b");
    let (first, second) = (other.wait_for("a"), other.wait_for("b"));
    drop(holder);
    other.granted(first.rid);
    drop(third);
    other.granted(second.rid);
}

/// Any process of this user can write to a FIFO.
#[test]
fn bytes_in_a_fifo_say_nothing() {
    let mut daemon = Daemon::on_network();
    let (mut holder, mut other) = (Client::open(&daemon), Client::open(&daemon));
    holder.hold("a");
    let waiting = other.wait_for("a");
    let mut writer = fs::File::from(holder.fifo.take().expect("it has one"));
    holder.disconnect();
    await_connections(&daemon, 1);
    // The daemon does not read on: it closes the FIFO, and asks again later.
    while writer.write(&[7; 4096]).map_err(|error| error.kind()) != Err(ErrorKind::BrokenPipe) {}
    assert_eq!(other.queue_of("a")[0], (holder.id.clone(), true));
    daemon.kill();
    // A FIFO without a reader takes nothing.
    assert_eq!(writer.write(b"more").map_err(|error| error.kind()), Err(ErrorKind::BrokenPipe));
    daemon.run();
    assert!(other.resume(&daemon).resumed);
    assert_eq!(other.queue_of("a")[0], (holder.id.clone(), true));
    drop(writer);
    other.granted(waiting.rid);
}

#[test]
fn a_fifo_is_for_this_user_alone_and_goes_with_its_session() {
    let daemon = Daemon::start();
    let (mut client, mut other) = (Client::open(&daemon), Client::open(&daemon));
    let path = path_of(&daemon, &client.id);
    let metadata = fs::metadata(&path).expect("it is there");
    assert!(metadata.file_type().is_fifo() && metadata.permissions().mode() & 0o777 == 0o600);
    client.bye();
    other.ping();
    assert!(!path.exists());
}

#[test]
fn a_client_that_never_confirms_has_a_lease() {
    for connected in [true, false] {
        let ttl = Duration::from_secs(1);
        let daemon = Daemon::start_with(|setup| setup.ttl = ttl);
        let mut other = Client::open(&daemon);
        let mut client = Client::mute(&daemon);
        assert_eq!(client.open_session(None).expect("a welcome").ttl, 1000);
        // It has the descriptor and keeps it: that alone does not count.
        client.take_fifo();
        let before = Instant::now();
        let rid = client.request("a");
        client.granted(rid);
        if !connected {
            client.disconnect();
        }
        other.get("a");
        assert!(before.elapsed() >= ttl, "not before its ttl is over");
        assert!(!client.resume(&daemon).resumed);
    }
}

#[test]
fn what_was_not_sent_cannot_be_confirmed() {
    let daemon = Daemon::on_network();
    let mut confirmed = Client::open(&daemon);
    confirmed.say(&ToServer::Confirm { ack: 0 });
    assert_eq!(confirmed.goodbye().0, code::OUT_OF_ORDER);
    for mut client in [Client::open_with_lease(&daemon), Client::on_network(&daemon)] {
        client.say(&ToServer::Confirm { ack: 0 });
        assert_eq!(client.goodbye().0, code::OUT_OF_ORDER);
    }
}

/// Its lease counts once it knows of it: until then it may believe that its descriptor does.
#[test]
fn a_client_that_resumes_without_its_descriptor_has_a_lease() {
    let mut daemon = Daemon::start_with(|setup| setup.ttl = Duration::from_secs(1));
    let (mut client, mut other) = (Client::open(&daemon), Client::open(&daemon));
    client.hold("a");
    daemon.kill();
    daemon.run();
    let fifo = client.fifo.take();
    client = client.without_features();
    assert_eq!(client.resume(&daemon).ttl, 1000);
    assert!(other.resume(&daemon).resumed);
    let waiting = other.wait_for("a");
    let before = Instant::now();
    // It acknowledges the Welcome.
    client.ping();
    // Its lease ends, although a process has the descriptor.
    other.granted(waiting.rid);
    assert!(before.elapsed() >= Duration::from_secs(1));
    drop(fifo);
}

/// No client counts as dead because the daemon has no descriptor left for the check; clients that
/// return find room.
#[test]
fn a_daemon_without_descriptors_takes_nobody_for_dead() {
    const CLIENTS: usize = 120;
    let mut daemon = Daemon::start();
    let mut clients: Vec<Client> = (0..CLIENTS)
        .map(|number| {
            let mut client = Client::open(&daemon);
            client.hold(&format!("name {number}"));
            client
        })
        .collect();
    daemon.kill();
    daemon.setup.files = Some(64);
    daemon.run();
    for client in &mut clients {
        let welcomed = client.resume(&daemon);
        assert!(welcomed.resumed && welcomed.listed.len() == 1);
        client.disconnect();
    }
    let mut other = Client::open(&daemon);
    assert_eq!(other.query(None).len(), CLIENTS);
    // The death of a client is noticed, also if it is not watched all the time.
    for number in (CLIENTS - 4..CLIENTS).rev() {
        let waiting = other.wait_for(&format!("name {number}"));
        clients.pop();
        other.granted(waiting.rid);
    }
}

/// A client that cannot be served gets the reason. No other client is affected.
#[test]
fn clients_of_a_daemon_without_descriptors_are_told_so() {
    let daemon = Daemon::start_with(|setup| setup.files = Some(64));
    let mut first = Client::open(&daemon);
    first.hold("a");
    let mut others = Vec::new();
    let (code, why) = loop {
        let mut other = Client::mute(&daemon).without_features();
        match other.open_session(None) {
            Ok(_) => others.push(other),
            Err(refusal) => break refusal,
        }
    };
    assert!(code == code::LIMIT && why.contains("descriptor"), "{why}");
    assert!(others.len() > 20, "{}", others.len());
    first.ping();
    // Some are kept for those who come back.
    assert!(first.resume(&daemon).resumed);
    for other in others.iter_mut().rev().take(5) {
        assert!(other.resume(&daemon).resumed);
    }
    assert_eq!(first.query(None).len(), 1);
}

/// A session that is connected again needs nothing but its connection.
#[cfg(target_os = "linux")]
#[test]
fn a_session_takes_one_descriptor_of_the_daemon_connected_or_not() {
    const CLIENTS: usize = 100;
    let mut daemon = Daemon::start();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::open(&daemon)).collect();
    let descriptors =
        |daemon: &Daemon| fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("it runs").count();
    daemon.kill();
    daemon.run();
    for client in &mut clients {
        assert!(client.resume(&daemon).resumed);
    }
    let connected = descriptors(&daemon);
    assert!(connected < CLIENTS + CLIENTS / 2, "{connected} descriptors for {CLIENTS} clients");
}

#[test]
fn the_end_of_a_connection_releases_its_locks_and_gives_up_its_requests() {
    let daemon = Daemon::start();
    let [mut holder, mut other, mut waiter] = [(); 3].map(|()| Client::open(&daemon));
    holder.hold("a");
    other.hold("b");
    holder.wait_for("b");
    let waiting = waiter.wait_for("a");
    drop(holder);
    waiter.granted(waiting.rid);
    assert_eq!(waiter.queue_of("b"), [(other.id.clone(), true)]);
}

#[test]
fn a_client_that_says_no_more_and_has_no_descriptor_has_ended_even_if_it_still_hears() {
    let daemon = Daemon::start();
    let (mut holder, mut waiter) = (Client::open(&daemon), Client::open(&daemon));
    holder.hold("a");
    let waiting = waiter.wait_for("a");
    holder.fifo = None;
    holder.fall_silent();
    waiter.granted(waiting.rid);
    assert_eq!(holder.hear_or_end(), None);
}

/// Its own end grants its own waiting request, which ends too, and is reported to no client.
#[test]
fn a_session_that_stood_in_its_own_way_passes_its_locks_on() {
    let daemon = Daemon::start();
    let (mut leaver, mut waiter) = (Client::open(&daemon), Client::open(&daemon));
    let shared = [("a", Mode::Shared)];
    let reader = leaver.request_scope(&shared, Flags::default(), None);
    leaver.granted(reader);
    leaver.wait_for("a");
    let second = leaver.request_scope(&shared, Flags::default(), None);
    leaver.queued(second);
    let waiting = waiter.wait_for("a");
    drop(leaver);
    waiter.granted(waiting.rid);
    assert_eq!(waiter.query(None).len(), 1);
}

#[test]
fn there_are_no_more_sessions_than_the_limit() {
    let limits = Limits { clients: 2, ..Limits::default() };
    let daemon = Daemon::start_with(|setup| setup.limits = limits);
    let (mut first, mut second) = (Client::open(&daemon), Client::open(&daemon));
    let mut third = Client::mute(&daemon);
    third.say(&hello("default"));
    assert_eq!(third.goodbye(), (code::LIMIT, "limit reached: 2 sessions (max-clients)"));
    // When one has ended there is room again. That it has is seen by what it held.
    first.hold("a");
    let waiting = second.wait_for("a");
    drop(first);
    second.granted(waiting.rid);
    Client::open(&daemon).ping();
}
