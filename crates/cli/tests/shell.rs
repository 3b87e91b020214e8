//! A lock for the rest of a script, where a guardian holds it for the shell.

mod common;

use common::{Server, User, running, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{BufRead, BufReader, Read},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdout, Command, Output, Stdio},
    time::{Duration, Instant},
};

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it is text")
}

impl Server {
    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("it starts")
    }

    fn script(&self, shell: &str, script: &str) -> Command {
        let mut command = self.user.script(shell, script);
        command.env("LOCKKEEPER_URL", &self.url);
        command
    }

    /// Starts a script that has the lock, and then a command that says `held` and sleeps until
    /// something ends it.
    fn hold(&self, before: &str, after: &str) -> (Child, BufReader<ChildStdout>) {
        self.hold_with("", before, after)
    }

    fn hold_with(&self, options: &str, before: &str, after: &str) -> (Child, BufReader<ChildStdout>) {
        // What says so is what is to be ended: a shell with a trap starts it in any case.
        let sleeps = "sh -c 'echo held; exec sleep 1000'";
        let script = format!("{before} eval \"$(lockkeeper lock {options} a)\"; {sleeps}; {after}");
        let mut command = self.script("sh", &script);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).expect("it is text");
        assert_eq!(line, "held\n");
        (child, output)
    }
}

#[test]
fn on_a_network_too_the_lock_lives_with_the_shell() {
    let server = Server::start("60s");
    for shell in ["sh", "bash"] {
        let other = "env -u LOCKKEEPER_OUTER -u LOCKKEEPER_NAMES lockkeeper run -q -n a -- true; echo $?";
        let script = format!(
            "eval \"$(lockkeeper lock a)\"; echo $LOCKKEEPER_NAMES; [ $LOCKKEEPER_FENCE -gt 0 ] && {other}; \
             eval \"$(lockkeeper lock 'b c' d)\"; lockkeeper unlock a; {other}; lockkeeper unlock 'b c' d && echo free; \
             lockkeeper unlock a; echo $?"
        );
        let done = server.script(shell, &script).output().expect("it starts");
        assert_eq!(text(&done.stdout), "a\n75\n0\nfree\n1\n", "{shell}: {}", text(&done.stderr));
        // The shell's end is the lock's, however it comes; what the shell has started keeps it.
        for end in ["exit 3", "kill -KILL $$"] {
            let script = format!("eval \"$(lockkeeper lock a)\"; {end}");
            let done = server.script(shell, &script).output().expect("it starts");
            assert!(!done.status.success(), "{}", text(&done.stderr));
            wait_until(|| server.is_free("a"));
        }
    }
    let script = "eval \"$(lockkeeper lock a)\"; sleep 1000 >/dev/null 2>&1 & echo $!; kill -KILL $$";
    let done = server.script("sh", script).stderr(Stdio::null()).output().expect("it starts");
    assert!(!server.is_free("a"));
    let sleep = Pid::from_raw(text(&done.stdout).trim().parse().expect("a number")).expect("a process");
    kill_process(sleep, Signal::KILL).expect("it runs");
    wait_until(|| server.is_free("a"));
}

/// A guardian's pipe, too, is used again.
#[test]
fn locks_can_be_taken_and_released_in_a_loop() {
    let server = Server::start("60s");
    let script = "for turn in 1 2 3 4 5 6 7 8 9 10; do eval \"$(lockkeeper lock a)\"; lockkeeper unlock a; done; \
                  eval \"$(lockkeeper lock a)\"; lockkeeper held a && lockkeeper unlock a; lockkeeper held a; echo $?";
    let done = server.script("sh", script).output().expect("it starts");
    assert_eq!(text(&done.stdout), "1\n", "{}", text(&done.stderr));
}

/// What `lock` prints is for a shell, which has 10 s to run it.
#[test]
fn a_lock_that_no_shell_takes_is_released() {
    let (server, user) = (Server::start("60s"), User::new());
    let print = |mut lock: Command| {
        let done = lock.stderr(Stdio::null()).output().expect("it starts");
        assert!(done.status.success());
        text(&done.stdout).to_string()
    };
    let taken = print(user.command(&["lock", "taken"]));
    print(user.command(&["lock", "a"]));
    print(server.command(&["lock", "a"]));
    // One that a shell has taken needs its helper no more, and lasts.
    let helper = taken.split("/proc/").nth(1).and_then(|path| path.split('/').next()).expect("it is there");
    let helper = Pid::from_raw(helper.parse().expect("a number")).expect("a process");
    assert!(running(helper));
    let mut shell = user.script("sh", &format!("{taken}\necho held; read -r line"));
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(shell.stdout.take().expect("it is a pipe")).read_line(&mut line).expect("it is text");
    assert_eq!(line, "held\n");
    let taken_at = Instant::now();
    wait_until(|| !running(helper));
    assert!(taken_at.elapsed() < Duration::from_secs(8), "the shell has told it");
    let is_free = |name| user.run(&["run", "-q", "-n", name, "--", "true"]).status.success();
    wait_until(|| is_free("a") && server.is_free("a"));
    assert!(!is_free("taken"));
    drop(shell.stdin.take());
    shell.wait().expect("it ends");
    wait_until(|| is_free("taken"));
}

#[test]
fn statuses_are_those_of_run() {
    let server = Server::start("60s");
    let (mut holder, _output) = server.hold("", "");
    let shown = server.run(&["query", "--table", "a"]);
    let who = format!(": sh, pid {}\n", holder.id());
    assert!(text(&shown.stdout).ends_with(&who), "its owner is the shell: {}", text(&shown.stdout));
    for (call, code) in [("lock -n a", 75), ("lock -w 10ms -E 7 a", 7), ("lock ''", 64)] {
        let script = format!("eval \"$(lockkeeper {call})\"; echo never");
        let done = server.script("sh", &script).output().expect("it starts");
        assert_eq!((done.status.code(), text(&done.stdout)), (Some(code), ""), "{call}");
    }
    let mut unreachable = server.script("sh", "eval \"$(lockkeeper lock b)\"; echo never");
    let done = unreachable.env("LOCKKEEPER_URL", "ws://127.0.0.1:1").output().expect("it starts");
    assert_eq!((done.status.code(), text(&done.stdout)), (Some(69), ""));
    holder.kill().expect("it runs");
    holder.wait().expect("it is dead");
}

#[test]
fn a_script_whose_lock_is_stolen_is_ended_and_told() {
    let server = Server::start("60s");
    let (child, _output) = server.hold("", "echo never");
    assert!(server.run(&["run", "--steal", "a", "--", "true"]).status.success());
    let done = child.wait_with_output().expect("it ends");
    assert_eq!(done.status.signal(), Some(15));
    assert!(text(&done.stderr).contains("the lock was stolen by "), "{}", text(&done.stderr));
    let (child, _output) = server.hold("", "echo never");
    assert!(server.run(&["release", "a"]).status.success());
    let done = child.wait_with_output().expect("it ends");
    assert!(text(&done.stderr).contains("the lock was released by force by "), "{}", text(&done.stderr));
    // One that has its own way with SIGTERM learns it from `unlock`.
    let (mut child, mut output) = server.hold("trap : TERM;", "lockkeeper unlock a; echo $?");
    assert!(server.run(&["run", "--steal", "a", "--", "true"]).status.success());
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("it is text");
    assert_eq!(rest, "76\n");
    assert!(child.wait().expect("it ends").success());
}

/// The guardian of the second lock had inherited the shell's end of the first one's pipe, and was
/// ended with the shell.
#[test]
fn a_lock_that_is_stolen_takes_no_other_with_it() {
    let server = Server::start("60s");
    let before = "trap : TERM; eval \"$(lockkeeper lock b)\";";
    let (mut child, mut output) =
        server.hold(before, "lockkeeper unlock b; echo $?; lockkeeper unlock a; echo $?");
    assert!(server.run(&["run", "--steal", "b", "--", "true"]).status.success());
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("it is text");
    assert_eq!(rest, "76\n0\n");
    assert!(child.wait().expect("it ends").success());
}

/// It is the one that was asked for: the guardian took the daemon's own.
#[test]
fn a_script_whose_lease_is_lost_is_ended() {
    let server = Server::start("1h");
    let (child, _output) = server.hold_with("--ttl 4s", "", "echo never");
    let daemon = Pid::from_child(&server.child);
    kill_process(daemon, Signal::STOP).expect("it runs");
    let done = child.wait_with_output().expect("it ends");
    assert_eq!(done.status.signal(), Some(15));
    assert!(text(&done.stderr).contains("out of reach for too long"), "{}", text(&done.stderr));
    kill_process(daemon, Signal::CONT).expect("it is stopped");
    wait_until(|| server.is_free("a"));
}
