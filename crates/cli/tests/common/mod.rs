//! A user of this machine, with directories and a daemon of his own.
#![allow(dead_code, reason = "each test file uses some of it")]

pub(crate) mod terminal;

use rustix::process::{Pid, Signal, kill_process};
use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::{fs::DirBuilderExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio, id},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};
use terminal::Terminal;

static USERS: AtomicU32 = AtomicU32::new(0);

pub(crate) struct User {
    home: PathBuf,
}

impl User {
    pub(crate) fn new() -> Self {
        let number = USERS.fetch_add(1, Ordering::Relaxed);
        let home = env::temp_dir().join(format!("lockkeeper-test-{}-{number}", id()));
        fs::DirBuilder::new().mode(0o700).create(&home).expect("the directory is new");
        Self { home }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.home.join("lockkeeper/daemon.sock")
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.home.join("lockkeeper/state")
    }

    /// Writes a file, and returns its path.
    pub(crate) fn file(&self, name: &str, content: &str) -> String {
        let path = self.home.join(name);
        fs::write(&path, content).expect("the directory is ours");
        path.to_str().expect("it is text").into()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        command.args(args).env_clear().env("PATH", "/usr/bin:/bin");
        command.env("LOCKKEEPER_DIR", self.home.join("lockkeeper"));
        command
    }

    /// An interactive shell in which `lockkeeper` is a command.
    pub(crate) fn shell(&self) -> Terminal {
        let mut shell = self.with_command("bash");
        shell.args(["--norc", "--noprofile", "-i"]).env("PS1", "ready> ");
        let terminal = Terminal::start(&shell);
        terminal.shows("ready> ");
        terminal
    }

    /// A script in which `lockkeeper` is a command.
    pub(crate) fn script(&self, shell: &str, script: &str) -> Command {
        let mut command = self.with_command(shell);
        command.args(["-c", script]).stdin(Stdio::null());
        command
    }

    /// A program in whose environment `lockkeeper` is a command.
    fn with_command(&self, program: &str) -> Command {
        let template = self.command(&[]);
        let dir =
            Path::new(template.get_program()).parent().expect("it is in a directory").display().to_string();
        let mut command = Command::new(program);
        command.env_clear().envs(template.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("PATH", format!("{dir}:/usr/bin:/bin"));
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().expect("it starts")
    }

    /// Holds a lock until it is released or dropped. Returns once it is held.
    pub(crate) fn hold(&self, args: &[&str]) -> Holder {
        let mut holder = self.start(args);
        assert_eq!(holder.line(), "held", "the command runs once the lock is held");
        holder
    }

    /// The same, without waiting for the lock.
    pub(crate) fn start(&self, args: &[&str]) -> Holder {
        Holder::start(self.command(&["run"]).args(args))
    }

    /// The daemon's process.
    pub(crate) fn daemon(&self) -> Pid {
        let stream = UnixStream::connect(self.socket()).expect("a daemon listens");
        rustix::net::sockopt::socket_peercred(&stream).expect("a socket has a peer").pid
    }

    /// Sends the daemon a signal and waits until it is gone.
    pub(crate) fn end_daemon(&self, signal: Signal) {
        let pid = self.daemon();
        kill_process(pid, signal).expect("it runs");
        wait_until(|| !running(pid));
    }

    /// Waits until so many hold the lock and so many wait.
    #[track_caller]
    pub(crate) fn wait_for(&self, name: &str, held: usize, pending: usize) {
        wait_until(|| shown(&self.run(&["query", "--json", name])) == Some((held, pending)));
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if let Ok(stream) = UnixStream::connect(self.socket())
            && let Ok(daemon) = rustix::net::sockopt::socket_peercred(&stream)
            // A socket that the test made is the test's own, even if another process has it open
            // for a moment.
            && daemon.pid != rustix::process::getpid()
        {
            let _ = kill_process(daemon.pid, Signal::KILL);
        }
        let _ = fs::remove_dir_all(&self.home);
    }
}

/// How many hold and how many wait, as `query --json` prints it.
pub(crate) fn shown(query: &Output) -> Option<(usize, usize)> {
    let json = std::str::from_utf8(&query.stdout).expect("it is text");
    let (holders, waiters) = json.split_once("\"pending\"")?;
    let count = |list: &str| list.matches("\"clientId\"").count();
    Some((count(holders), count(waiters)))
}

pub(crate) struct Holder {
    pub(crate) child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Holder {
    /// Starts what holds a lock while a command runs.
    pub(crate) fn start(run: &mut Command) -> Self {
        // It says its process id, then holds until its input ends.
        let script = "echo held; echo $$; echo $LOCKKEEPER_FENCE; cat";
        let run = run.args(["--", "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = run.spawn().expect("it starts");
        let (input, output) =
            (child.stdin.take(), BufReader::new(child.stdout.take().expect("it is a pipe")));
        Self { child, input, output }
    }

    /// The next line that the command prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it is text");
        line.trim_end().into()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Has the command end, and returns the exit code.
    pub(crate) fn let_go(&mut self) -> i32 {
        drop(self.input.take());
        self.code()
    }

    pub(crate) fn code(&mut self) -> i32 {
        let status = self.child.wait().expect("it ends");
        status.code().expect("no signal ended it")
    }

    /// Writes a line to the command, which prints it.
    pub(crate) fn say(&mut self, line: &str) -> String {
        writeln!(self.input.as_mut().expect("it was not let go"), "{line}").expect("it reads");
        self.line()
    }

    /// All that the command prints from now on.
    pub(crate) fn rest(mut self) -> String {
        let mut text = String::new();
        self.output.read_to_string(&mut text).expect("it is text");
        text
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a test is to be left out here: only if the variable says so, since a test that is left
/// out in silence passes.
pub(crate) fn is_skipped(variable: &str) -> bool {
    let skipped = env::var_os(variable).is_some_and(|value| value == "1");
    if skipped {
        eprintln!("SKIPPED: {variable} is set");
    }
    skipped
}

/// The same, for tests with several users.
pub(crate) fn is_one_user() -> bool {
    let skipped = is_skipped("LOCKKEEPER_SKIP_USERS");
    let root = rustix::process::geteuid().is_root();
    assert!(skipped || root, "only root can be several users: elsewhere, set LOCKKEEPER_SKIP_USERS=1");
    skipped
}

/// Copies the program. Another process does: a thread that forks while this one writes would leave
/// the file open for writing in its child, and it could not be executed during that time.
pub(crate) fn copy_program(to: impl AsRef<std::ffi::OsStr>) {
    let done = Command::new("install").arg(env!("CARGO_BIN_EXE_lockkeeper")).arg(to).status();
    assert!(done.expect("it starts").success(), "there is room");
}

pub(crate) fn running(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Starts a daemon that listens there. Returns it, and its address.
pub(crate) fn listen(user: &User, args: &[&str], address: &str) -> (Child, String) {
    let mut command = user.command(&["serve", "--log-format", "json", "--listen", address]);
    let mut child = command.args(args).stderr(Stdio::piped()).spawn().expect("it starts");
    let log = BufReader::new(child.stderr.take().expect("it is a pipe"));
    let mut lines = log.lines().map(|line| line.expect("it is text"));
    let address = address_in(&lines.find(|line| line.contains("listening")).expect("it listens"));
    // It must not wait for a reader of its log.
    thread::spawn(move || lines.for_each(drop));
    (child, address)
}

/// A daemon with a port, of a separate user.
pub(crate) struct Server {
    pub(crate) user: User,
    pub(crate) child: Child,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start(ttl: &str) -> Self {
        let user = User::new();
        let (child, address) = listen(&user, &["--ttl", ttl], "127.0.0.1:0");
        Self { user, child, url: format!("ws://{address}") }
    }

    /// A command that reaches it by its port.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.user.command(args);
        command.env("LOCKKEEPER_URL", &self.url).stdin(Stdio::null());
        command
    }

    pub(crate) fn is_free(&self, name: &str) -> bool {
        let status = self.command(&["run", "-q", "--if-available", name, "--", "true"]).status();
        match status.expect("it starts").code() {
            Some(0) => true,
            Some(75) => false,
            code => panic!("neither free nor held: {code:?}"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in a line of a log in JSON.
pub(crate) fn address_in(line: &str) -> String {
    line.split("\"address\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("it has one").into()
}

/// What a daemon answers to a request by HTTP.
pub(crate) fn http(mut stream: TcpStream, request: &str) -> String {
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

/// How long something may take before it counts as never. Only a test that fails waits that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something that happens elsewhere.
#[track_caller]
pub(crate) fn wait_until(mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < deadline, "what was waited for does not happen");
        thread::sleep(Duration::from_millis(2));
    }
}
