//! A client in another language, written from `docs/protocol.md` alone, among others.

use crate::{client::Client, daemon::Daemon};
use std::{
    fs,
    io::{BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/lockkeeper.py");
const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol-vectors.txt");

/// A Python process with a session. It executes commands, a line each.
struct Python {
    process: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    id: String,
}

impl Python {
    fn start(daemon: &Daemon) -> Self {
        let mut command = python();
        command.arg(&daemon.setup.socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("these tests need python3, 3.11 or later");
        let orders = process.stdin.take().expect("it is piped");
        let answers = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let mut python = Self { process, orders, answers, id: String::new() };
        let welcome = python.hear();
        python.id = welcome.strip_prefix("welcome ").expect("it says its id first").into();
        python
    }

    fn order(&mut self, line: &str) {
        writeln!(self.orders, "{line}").expect("it reads");
    }

    fn hear(&mut self) -> String {
        self.answers.next().expect("it answers, and does not end").expect("its answers are text")
    }

    fn ask(&mut self, line: &str) -> String {
        self.order(line);
        self.hear()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn python() -> Command {
    let mut command = Command::new("python3");
    // No compiled copy beside the source.
    command.arg("-B").arg(PROGRAM);
    command
}

#[test]
fn a_stranger_says_and_understands_the_vectors() {
    let done = python().arg("vectors").arg(VECTORS).output().expect("these tests need python3");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let count: usize = String::from_utf8_lossy(&done.stdout).trim().parse().expect("it prints how many");
    assert!(count > 40, "only {count} were looked at");
}

#[test]
fn strangers_and_friends_take_turns() {
    let daemon = Daemon::start();
    let mut rust = Client::open(&daemon);
    let (mut one, mut other) = (Python::start(&daemon), Python::start(&daemon));
    let held = rust.hold("a");
    assert!(one.ask("request a").starts_with("queued 1 "));
    assert!(other.ask("request a").starts_with("queued 1 "));
    assert_eq!(other.ask("request a if-available"), "unavailable 2");
    let again = rust.wait_for("a");
    let expected =
        format!("a:{}:held a:{}:waiting a:{}:waiting a:{}:waiting", rust.id, one.id, other.id, rust.id);
    assert_eq!(one.ask("query a"), expected);

    one.order("wait 1");
    other.order("wait 1");
    rust.release(held.rid);
    assert!(one.hear().starts_with("granted 1 "));
    assert_eq!(rust.queue_of("a")[0], (one.id.clone(), true));
    assert_eq!(one.ask("release 1"), "done 1");
    assert!(other.hear().starts_with("granted 1 "));
    assert_eq!(rust.queue_of("a"), [(other.id.clone(), true), (rust.id.clone(), false)]);
    assert_eq!(other.ask("release 1"), "done 1");
    rust.granted(again.rid);

    // A steal, an abort, and the end of a process and of a session.
    assert!(one.ask("request a steal").starts_with("granted 3 "));
    rust.broken(again.rid);
    assert!(other.ask("request a").starts_with("queued 3 "));
    assert_eq!(other.ask("abort 3"), "done 3");
    let last = rust.wait_for("a");
    drop(one);
    rust.granted(last.rid);
    assert_eq!(other.ask("request a").split(' ').next(), Some("queued"));
    assert_eq!(other.ask("close"), "closed");
    assert_eq!(rust.queue_of("a"), [(rust.id.clone(), true)]);
}

#[test]
fn strangers_and_friends_exclude_each_other() {
    const ROUNDS: u32 = 300;
    let daemon = Daemon::start();
    let mut rust = Client::open(&daemon);
    let mut pythons = [Python::start(&daemon), Python::start(&daemon)];
    let counter = daemon.setup.socket.with_file_name("counter");
    fs::write(&counter, "0").expect("the test's directory can be written to");
    for python in &mut pythons {
        python.order(&format!("count counter {} {ROUNDS}", counter.display()));
    }
    for _ in 0..ROUNDS {
        let held = rust.get("counter");
        let number: u32 = fs::read_to_string(&counter).expect("it is there").parse().expect("a number");
        fs::write(&counter, (number + 1).to_string()).expect("it can be written to");
        rust.release(held.rid);
    }
    for python in &mut pythons {
        assert_eq!(python.hear(), format!("done {ROUNDS}"));
    }
    assert_eq!(fs::read_to_string(&counter).expect("it is there"), (3 * ROUNDS).to_string());
}

#[test]
fn a_process_that_died_with_the_daemon_is_not_waited_for() {
    let mut daemon = Daemon::start();
    let mut python = Python::start(&daemon);
    assert!(python.ask("request a").starts_with("granted 1 "));
    daemon.kill();
    drop(python);
    daemon.run();
    let mut newcomer = Client::open(&daemon);
    newcomer.hold("a");
}

#[test]
fn a_stranger_keeps_its_locks_when_the_daemon_is_replaced() {
    let mut daemon = Daemon::start();
    let mut python = Python::start(&daemon);
    let mut rust = Client::open(&daemon);
    assert!(python.ask("request a").starts_with("granted 1 "));
    for stop in [Daemon::kill, Daemon::stop] {
        stop(&mut daemon);
        daemon.run();
        assert!(rust.resume(&daemon).resumed);
        assert_eq!(python.ask("query a"), format!("a:{}:held", python.id));
    }
    let waiting = rust.wait_for("a");
    assert_eq!(python.ask("release 1"), "done 1");
    rust.granted(waiting.rid);
}
