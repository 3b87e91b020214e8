//! Many clients with many requests: what the daemon keeps for them, and what it does not.

mod common;

use common::{User, wait_until};
use lockkeeper_core::Mode;
use lockkeeper_wire::{
    frame,
    v2::{Flags, ToClient, ToServer},
};
use rustix::process::Pid;
use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::Stdio,
    time::Duration,
};

const CLIENTS: u64 = 500;
/// Of each client.
const REQUESTS: u64 = 200;

/// What the daemon may keep, in bytes: half as much again as it does.
const CONNECTION: u64 = 8 << 10;
const REQUEST: u64 = 320;

#[test]
fn a_connection_and_a_request_cost_what_they_are() {
    let user = User::new();
    assert!(user.run(&["run", "a", "--", "true"]).status.success());
    let daemon = user.daemon();
    let mut holder = Client::open(&user.socket());
    for number in 0..REQUESTS {
        holder.ask(&crowded(number));
    }
    holder.ask("quiet");
    holder.hear_each(REQUESTS + 1, |message| matches!(message, ToClient::Granted { .. }));
    let before = memory(daemon, "VmRSS");
    let mut crowd: Vec<_> = (0..CLIENTS).map(|_| Client::open(&user.socket())).collect();
    for client in &mut crowd {
        (0..REQUESTS).for_each(|number| client.ask(&crowded(number)));
        client.hear_each(REQUESTS, |message| matches!(message, ToClient::Queued { .. }));
    }
    let grown = memory(daemon, "VmRSS") - before;
    let most = CLIENTS * CONNECTION + CLIENTS * REQUESTS * REQUEST;
    assert!(grown < most, "{grown} bytes for {CLIENTS} clients and their requests, not {most}");

    // Who asks for one name is answered from it alone: for the others there is no space, not even
    // for a moment.
    let peak = memory(daemon, "VmHWM");
    assert_eq!(holder.query(Some("quiet")), 1);
    assert_eq!(holder.query(Some(&crowded(0))), usize::try_from(CLIENTS).expect("a few") + 1);
    let one = memory(daemon, "VmHWM") - peak;
    assert!(one < 1 << 20, "{one} bytes for one name");
    let all = usize::try_from((CLIENTS + 1) * REQUESTS + 1).expect("not so many");
    assert_eq!(holder.query(None), all);
    let whole = memory(daemon, "VmHWM") - peak;
    // Some 15 MB, if it were not sent in parts.
    assert!(whole < 8 << 20, "{whole} bytes for all names");

    // Nor is there any space left of answers that were long.
    let before = memory(daemon, "VmRSS");
    for client in &mut crowd[..40] {
        assert_eq!(client.query(None), all);
    }
    let kept = memory(daemon, "VmRSS").saturating_sub(before);
    assert!(kept < 64 << 20, "{kept} bytes after 40 long answers");

    drop(crowd);
    wait_until(|| holder.query(Some(&crowded(0))) == 1);
}

/// Few files may be open, as long as nobody asks for more.
#[test]
fn a_daemon_has_as_many_connections_as_the_system_allows() {
    let user = User::new();
    let socket = user.socket();
    let command = user.command(&[]);
    let script = format!("ulimit -S -n 64 && exec \"$0\" serve --socket '{}'", socket.display());
    let mut shell = std::process::Command::new("sh");
    shell.arg("-c").arg(script).arg(command.get_program());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut daemon = shell.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    wait_until(|| UnixStream::connect(&socket).is_ok());
    let crowd: Vec<_> = (0..200).map(|_| Client::open(&socket)).collect();
    drop(crowd);
    daemon.kill().expect("it runs");
    daemon.wait().expect("it ends");
}

fn crowded(number: u64) -> String {
    format!("crowded/{number}")
}

/// One of the kernel's counts of a process's memory, in bytes.
fn memory(pid: Pid, count: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(count)).expect("the kernel counts it");
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().expect("a number") << 10
}

/// A client of the bare protocol.
struct Client {
    stream: UnixStream,
    output: Vec<u8>,
    rid: u64,
}

impl Client {
    fn open(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("a daemon listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket takes a timeout");
        let mut client = Self { stream, output: Vec::new(), rid: 0 };
        // It has a lease, and sends no pings.
        client.say(&ToServer::hello("default", Some(600_000)));
        client.hear_each(2, |message| matches!(message, ToClient::Welcome { .. } | ToClient::Synced));
        client
    }

    fn say(&mut self, message: &ToServer<'_>) {
        frame::append(&mut self.output, |out| message.encode(out));
    }

    fn ask(&mut self, name: &str) {
        self.rid += 1;
        let (rid, scope, flags) = (self.rid, vec![(name.as_bytes(), Mode::Exclusive)], Flags::default());
        self.say(&ToServer::Request { ack: 1, rid, scope, flags, nested_in: None, info: None });
    }

    /// Sends what was said, and hears so many messages of one kind.
    fn hear_each(&mut self, count: u64, kind: impl Fn(&ToClient<'_>) -> bool) {
        self.stream.write_all(&self.output).expect("the daemon reads");
        self.output = Vec::new();
        for _ in 0..count {
            let bytes = self.hear();
            let message = ToClient::decode(&bytes).expect("a message");
            assert!(kind(&message), "{message:?}");
        }
    }

    fn hear(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).expect("the daemon answers");
        let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut bytes).expect("the daemon answers");
        bytes
    }

    /// How many hold or wait, for a name or for any.
    fn query(&mut self, name: Option<&str>) -> usize {
        self.rid += 1;
        let (rid, name) = (self.rid, name.map(str::as_bytes));
        self.say(&ToServer::Query { ack: 1, rid, name, deadlocks: false });
        self.hear_each(0, |_| true);
        let mut count = 0;
        loop {
            match ToClient::decode(&self.hear()).expect("a message") {
                ToClient::Snapshot { entries, more, .. } => {
                    count += entries.len();
                    if !more {
                        return count;
                    }
                }
                other => panic!("not a snapshot: {other:?}"),
            }
        }
    }
}

impl Drop for Client {
    /// Its session would otherwise last as long as its lease.
    fn drop(&mut self) {
        self.say(&ToServer::Bye { ack: 1 });
        let _ = self.stream.write_all(&self.output);
    }
}
