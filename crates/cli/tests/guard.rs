//! The guardian of a command whose lock has a lease: whichever process is killed, no command works
//! on without its lock.

mod common;

use common::{Server, running, wait_until};
use lockkeeper_client::{Callbacks, Endpoint, Flags, Options, Request, Session, Update};
use lockkeeper_core::{Mode, Name};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Child, Command, Stdio},
    sync::mpsc,
};

/// Long enough that nothing expires which is not meant to.
const LONG: &str = "60s";
const SHORT: &str = "4s";

impl Server {
    /// Starts `run` with a command that does not heed SIGTERM. Returns it, its guardian and its
    /// command.
    fn hold(&self) -> (Child, Pid, Pid) {
        self.hold_with(&[])
    }

    fn hold_with(&self, options: &[&str]) -> (Child, Pid, Pid) {
        let script = "trap '' TERM; echo $$; while :; do sleep 1; done";
        self.hold_by(&[options, &["a", "--", "sh", "-c", script]].concat())
    }

    /// With these arguments of `run`. The command says its number.
    fn hold_by(&self, args: &[&str]) -> (Child, Pid, Pid) {
        let mut command = self.command(&[&["run"], args].concat());
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

impl Server {
    /// Starts a `run` that waits for the lock. It ends with 0 if that process is dead by then.
    fn next_after(&self, pid: Pid) -> Child {
        let script = r#"! grep -q '^State:.[^ZX]' /proc/$0/status"#;
        let pid = pid.as_raw_nonzero().to_string();
        let mut next = self.command(&["run", "-q", "a", "--", "sh", "-c", script, &pid]);
        next.stderr(Stdio::null()).spawn().expect("it starts")
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
    assert!(!server.is_free("a"));
    // Its number is shown, not that of `run`.
    let shown = server.command(&["query", "--table", "a"]).output().expect("it starts").stdout;
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.trim_end().ends_with(&format!(", pid {}", command.as_raw_nonzero())), "{shown}");
    kill_process(command, Signal::KILL).expect("it runs");
    wait_until(|| server.is_free("a"));
    wait_until(|| !running(guardian));
}

/// As `ssh` does. The guardian took the end of the pipe for that of the command.
#[test]
fn the_lock_lasts_as_long_as_a_command_that_closes_what_it_inherits() {
    let server = Server::start(LONG);
    let script = "for fd in /proc/$$/fd/*; do fd=${fd##*/}; [ $fd -lt 3 ] || eval \"exec $fd>&-\"; done; echo $$; \
                  exec sleep 1000";
    let (mut run, guardian, command) = server.hold_by(&["a", "--", "bash", "-c", script]);
    run.kill().expect("it runs");
    run.wait().expect("it is dead");
    // The guardian has long seen that by then.
    (0..20).for_each(|_| assert!(!server.is_free("a")));
    let next = server.next_after(command);
    assert!(running(command) && running(guardian));
    kill_process(command, Signal::KILL).expect("it runs");
    assert!(next.wait_with_output().expect("it ends").status.success());
    wait_until(|| !running(guardian));
}

/// It was ignored.
#[test]
fn with_o_the_lock_ends_with_run() {
    let server = Server::start(LONG);
    let (mut run, guardian, command) = server.hold_with(&["-o"]);
    assert!(!server.is_free("a"));
    run.kill().expect("it runs");
    run.wait().expect("it is dead");
    wait_until(|| server.is_free("a"));
    wait_until(|| !running(guardian));
    assert!(running(command));
    kill_process(command, Signal::KILL).expect("it runs");
    // Until then, it is ended like any other.
    let (mut run, _, command) = server.hold_with(&["-o", "--grace", "10ms"]);
    assert!(server.command(&["run", "--steal", "a", "--", "true"]).status().expect("it starts").success());
    assert_eq!(run.wait().expect("it ends").code(), Some(76));
    assert!(!running(command));
}

#[test]
fn a_command_whose_guardian_is_killed_is_killed() {
    let server = Server::start(SHORT);
    let (mut run, guardian, command) = server.hold();
    let mut next = server.next_after(command);
    kill_process(guardian, Signal::KILL).expect("it runs");
    assert_eq!(run.wait().expect("it ends").code(), Some(76));
    assert!(!running(command));
    // No process is left to end its session: it lasts as long as its lease.
    assert_eq!(next.wait().expect("it ends").code(), Some(0), "the command was still there");
}

#[test]
fn a_command_whose_guardian_is_stopped_is_killed() {
    let server = Server::start(SHORT);
    let (mut run, guardian, command) = server.hold();
    let mut next = server.next_after(command);
    kill_process(guardian, Signal::STOP).expect("it runs");
    assert_eq!(run.wait().expect("it ends").code(), Some(76));
    assert!(!running(command));
    kill_process(guardian, Signal::KILL).expect("it is stopped");
    assert_eq!(next.wait().expect("it ends").code(), Some(0), "the command was still there");
}

/// The guardian resumed the session without the wish, and got the daemon's own lease.
#[test]
fn a_guardian_keeps_the_lease_that_was_asked_for() {
    let server = Server::start("1h");
    let (mut run, guardian, command) = server.hold_with(&["--ttl", SHORT]);
    // No process is left to end the session.
    for process in [Pid::from_child(&run), guardian, command] {
        kill_process(process, Signal::KILL).expect("it runs");
    }
    run.wait().expect("it is dead");
    wait_until(|| server.is_free("a"));
}

/// What `run` says to a guardian, and a process that waits to become a command.
struct Candidate {
    control: UnixStream,
    allowed: io::PipeReader,
    guardian: Child,
    process: Child,
    /// Closes when the process and `run` have ended.
    life: Option<OwnedFd>,
}

impl Candidate {
    /// Starts a guardian as `run` does, with a session that holds the lock.
    fn new(server: &Server) -> Self {
        let endpoint: Endpoint = server.url.parse().expect("an address");
        let session = Session::open(&endpoint, Options::new("default"), Callbacks).expect("it serves");
        let scope = vec![(Name::from("a"), Mode::Exclusive)];
        let request = Request { scope, flags: Flags::default(), nested_in: None, info: None };
        let (granted, grants) = mpsc::channel();
        session.request(request, Box::new(move |update| _ = granted.send(update)));
        assert!(matches!(grants.recv(), Ok(Update::Granted { .. })));
        let transfer = session.give_away().expect("it has a session");
        let (mut control, its_control) = UnixStream::pair().expect("a socket");
        let ((read, write), (allowed, allows)) = (io::pipe().expect("a pipe"), io::pipe().expect("a pipe"));
        let mut guardian = server.command(&["guard"]);
        guardian.stdin(OwnedFd::from(its_control)).stdout(OwnedFd::from(read)).stderr(OwnedFd::from(allows));
        let guardian = guardian.spawn().expect("it starts");
        writeln!(control, "{}\ngrace 0", transfer.to_line()).expect("it reads");
        let mut sleep = Command::new("sleep");
        let process = sleep.arg("1000").process_group(0).spawn().expect("it starts");
        Self { control, allowed, guardian, process, life: Some(OwnedFd::from(write)) }
    }

    /// Reads what the guardian reports, up to a line that begins so.
    fn hear(&self, report: &str) {
        let mut lines = BufReader::new(&self.control).lines();
        assert!(lines.any(|line| line.expect("it is there").starts_with(report)), "{report}");
    }

    fn apply(&mut self) {
        writeln!(self.control, "command {} true", self.process.id()).expect("it reads");
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.life = None;
        for child in [&mut self.process, &mut self.guardian] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_command_is_executed_if_the_guardian_allows_it() {
    let server = Server::start(LONG);
    let mut candidate = Candidate::new(&server);
    candidate.hear("ready");
    candidate.apply();
    assert_eq!(candidate.allowed.read(&mut [0]).expect("a pipe"), 1);
    assert!(candidate.process.try_wait().expect("a child").is_none());
}

#[test]
fn a_command_whose_lock_was_lost_meanwhile_is_not_executed() {
    let server = Server::start(SHORT);
    let mut candidate = Candidate::new(&server);
    candidate.hear("ready");
    let daemon = Pid::from_raw(server.child.id().try_into().expect("a process")).expect("a process");
    kill_process(daemon, Signal::STOP).expect("it runs");
    // `run` is stopped, say, and does not read it.
    candidate.hear("lost");
    candidate.apply();
    assert!(!candidate.process.wait().expect("a child").success());
    candidate.guardian.kill().expect("it runs");
    assert_eq!(candidate.allowed.read(&mut [0]).expect("a pipe"), 0);
    kill_process(daemon, Signal::CONT).expect("it is stopped");
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
    wait_until(|| server.is_free("a"));
}

/// Its bearer has all rights of its client.
#[test]
fn the_command_inherits_no_connection() {
    let server = Server::start(LONG);
    let list = ["run", "a", "--", "sh", "-c", "ls -l /proc/self/fd"];
    for mut run in [server.command(&list), server.user.command(&list)] {
        let ran = run.stdin(Stdio::null()).output().expect("it starts");
        let open = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && open.contains(" -> /dev/null"), "{ran:?}");
        assert!(!open.contains("socket:"), "{open}");
    }
}

#[test]
fn the_lock_goes_at_once_when_the_command_ends() {
    let server = Server::start(LONG);
    assert!(server.command(&["run", "a", "--", "true"]).status().expect("it starts").success());
    assert!(server.is_free("a"));
    let (mut run, guardian, command) = server.hold();
    kill_process(command, Signal::KILL).expect("it runs");
    assert_eq!(run.wait().expect("it ends").code(), Some(137));
    assert!(server.is_free("a"));
    wait_until(|| !running(guardian));
}
