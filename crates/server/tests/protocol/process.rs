//! A client in a process of its own, which can be killed, stopped, and leave children behind. The
//! process is this test program, started again. It does as it is told, a line at a time.

use crate::{
    client::Client,
    daemon::{Daemon, die_with_parent, say, send_signal},
};
use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::Signal,
};
use std::{
    env,
    io::{BufRead, BufReader, Lines, Write},
    os::unix::net::UnixStream,
    process::{self, Child, ChildStdin, ChildStdout, Command, Stdio},
};

const SOCKET: &str = "LOCKKEEPER_TEST_CLIENT";

/// A process with a session, in which it holds a lock.
pub(crate) struct Process {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    pub(crate) id: String,
}

impl Process {
    /// Starts one that holds a lock of this name.
    pub(crate) fn holding(daemon: &Daemon, name: &str) -> Self {
        Self::start(daemon, name, &[])
    }

    /// The same, with a program that is to start it.
    pub(crate) fn start(daemon: &Daemon, name: &str, starter: &[&str]) -> Self {
        let this = env::current_exe().expect("this program");
        let mut command = match starter {
            [] => Command::new(this),
            [program, args @ ..] => {
                let mut command = Command::new(program);
                command.args(args).arg(this);
                command
            }
        };
        command.args(["--exact", "process::process", "--include-ignored", "--nocapture", "--test-threads=1"]);
        command.env(SOCKET, &daemon.setup.socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let orders = child.stdin.take().expect("it is piped");
        let answers = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut process = Self { child, orders, answers, id: String::new() };
        process.id = process.answer();
        process.order(&format!("hold {name}"));
        process
    }

    /// Has it do something, and waits until that is done. What it says of it.
    pub(crate) fn order(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").expect("it listens");
        self.answer()
    }

    fn answer(&mut self) -> String {
        let answer =
            self.answers.find_map(|line| line.expect("text").strip_prefix("DONE ").map(str::to_owned));
        answer.expect("it answers, and does not end")
    }

    /// Has it leave a child behind that has its descriptor, and not its connection.
    pub(crate) fn leave_child(&mut self) -> Orphan {
        Orphan(self.order("child").parse().expect("a process id"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// A process whose parent has ended.
pub(crate) struct Orphan(u32);

impl Drop for Orphan {
    fn drop(&mut self) {
        send_signal(self.0, Signal::KILL);
    }
}

/// Not a test: the process of a client.
#[test]
#[ignore = "started by other tests"]
fn process() {
    let Some(socket) = env::var_os(SOCKET) else { return };
    die_with_parent();
    let connect = || UnixStream::connect(&socket).expect("it listens");
    let mut client = Client::over(connect()).opened();
    say(&format!("DONE {}", client.id));
    for order in std::io::stdin().lines() {
        let order = order.expect("text");
        let done = match order.split_once(' ').unwrap_or((&order, "")) {
            ("hold", name) => client.hold(name).number.to_string(),
            ("disconnect", _) => {
                client.disconnect();
                String::new()
            }
            ("resume", _) => {
                client.reconnect_as(Client::over(connect()));
                let welcomed = client.resume_here(None).expect("a welcome");
                format!("{} {}", welcomed.resumed, welcomed.listed.len())
            }
            ("child", _) => {
                let fifo = client.fifo.as_ref().expect("it has a descriptor");
                fcntl_setfd(fifo, FdFlags::empty()).expect("it is ours");
                let mut sleep = Command::new("sleep");
                let child = sleep.arg("600").stdin(Stdio::null()).stdout(Stdio::null()).spawn();
                child.expect("sleep starts").id().to_string()
            }
            ("exit", _) => process::exit(0),
            other => panic!("no such order: {other:?}"),
        };
        say(&format!("DONE {done}"));
    }
}
