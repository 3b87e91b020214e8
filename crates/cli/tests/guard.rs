//! The guardian of a command whose lock has a lease: whichever process is killed, no command works on without its lock.

mod common;

use common::{User, running, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
};

/// Long enough that nothing expires which is not meant to.
const LONG: &str = "60s";
const SHORT: &str = "4s";

struct Server {
    user: User,
    child: Child,
    url: String,
}

impl Server {
    fn start(ttl: &str) -> Self {
        let user = User::new();
        let mut command =
            user.command(&["serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--ttl", ttl]);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let log = BufReader::new(child.stderr.take().expect("it is a pipe"));
        let mut lines = log.lines().map(|line| line.expect("it is text"));
        let line = lines.find(|line| line.contains("listening")).expect("it listens");
        let address = line.split("\"address\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let url = format!("ws://{}", address.expect("it has one"));
        thread::spawn(move || lines.for_each(drop));
        Self { user, child, url }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.user.command(args);
        command.env("LOCKKEEPER_URL", &self.url).stdin(Stdio::null());
        command
    }

    fn is_free(&self) -> bool {
        let status = self.command(&["run", "-q", "--if-available", "a", "--", "true"]).status();
        match status.expect("it starts").code() {
            Some(0) => true,
            Some(75) => false,
            code => panic!("neither free nor held: {code:?}"),
        }
    }

    /// Starts `run` with a command that does not heed SIGTERM. Returns it, its guardian and its command.
    fn hold(&self) -> (Child, Pid, Pid) {
        let script = "trap '' TERM; echo $$; while :; do sleep 1; done";
        let mut command = self.command(&["run", "a", "--", "sh", "-c", script]);
        let mut run = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(run.stdout.take().expect("it is a pipe"))
            .read_line(&mut line)
            .expect("it says its number");
        let command = Pid::from_raw(line.trim().parse().expect("a number")).expect("a process");
        let guardian = children(run.id()).into_iter().find(|&pid| pid != command).expect("it has a guardian");
        (run, guardian, command)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn children(parent: u32) -> Vec<Pid> {
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).expect("it runs");
    list.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

#[test]
fn the_lock_lasts_as_long_as_the_command_if_run_is_killed() {
    let server = Server::start(LONG);
    let (mut run, guardian, command) = server.hold();
    run.kill().expect("it runs");
    run.wait().expect("it is dead");
    assert!(running(command) && running(guardian));
    assert!(!server.is_free());
    kill_process(command, Signal::KILL).expect("it runs");
    wait_until(|| server.is_free());
    wait_until(|| !running(guardian));
}

#[test]
fn a_command_whose_guardian_is_killed_is_killed() {
    let server = Server::start(SHORT);
    let (mut run, guardian, command) = server.hold();
    kill_process(guardian, Signal::KILL).expect("it runs");
    assert_eq!(run.wait().expect("it ends").code(), Some(76));
    assert!(!running(command));
    // Its session has nobody left to end it: it lasts as long as its lease.
    wait_until(|| server.is_free());
}

#[test]
fn a_command_is_dead_before_its_lock_is_given_to_another() {
    let server = Server::start(SHORT);
    let (mut run, _, command) = server.hold();
    let daemon = Pid::from_raw(server.child.id().try_into().expect("a process")).expect("a process");
    kill_process(daemon, Signal::STOP).expect("it runs");
    assert_eq!(run.wait().expect("it ends").code(), Some(76));
    assert!(!running(command));
    kill_process(daemon, Signal::CONT).expect("it is stopped");
    wait_until(|| server.is_free());
}

#[test]
fn the_lock_goes_at_once_when_the_command_ends() {
    let server = Server::start(LONG);
    assert!(server.command(&["run", "a", "--", "true"]).status().expect("it starts").success());
    assert!(server.is_free());
    let (mut run, guardian, command) = server.hold();
    kill_process(command, Signal::KILL).expect("it runs");
    assert_eq!(run.wait().expect("it ends").code(), Some(137));
    assert!(server.is_free());
    wait_until(|| !running(guardian));
}
