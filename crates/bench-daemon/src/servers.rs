//! The servers: each a process of its own, in a temporary directory, on a Unix socket. They end
//! with what stands for them.

use lockkeeper_testing::Postgres;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env, fs,
    os::unix::{fs::DirBuilderExt, net::UnixStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long a server may take to start, on a busy machine.
const START: Duration = Duration::from_secs(60);

/// A directory of the benchmark's own, removed when it is dropped.
pub struct WorkDir(PathBuf);

impl WorkDir {
    pub fn new() -> Self {
        let dir = env::temp_dir().join(format!("lockkeeper-bench-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&dir).expect("a directory for the benchmark");
        Self(dir)
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server, ended when it is dropped.
pub struct Server {
    child: Child,
    pub socket: PathBuf,
    pub version: String,
}

impl Server {
    /// The daemon beside this program, in a directory of this name: what was there before goes on.
    pub fn lockkeeper(work_dir: &WorkDir, name: &str, args: &[&str]) -> Self {
        let dir = work_dir.0.join(name);
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&dir).expect("a directory for the daemon");
        let (socket, state) = (dir.join("daemon.sock"), dir.join("state"));
        let mut command = Command::new(beside("lockkeeper"));
        command.arg("serve").arg("--socket").arg(&socket).arg("--state-dir").arg(state).args(args);
        Self::start(&mut command, socket, "Lockkeeper".into())
    }

    /// The files of the daemon's log, with their lengths.
    pub fn log(&self) -> Vec<(String, u64)> {
        let files = fs::read_dir(self.socket.with_file_name("state")).expect("it has a log").flatten();
        files
            .filter_map(|file| Some((file.file_name().into_string().ok()?, file.metadata().ok()?.len())))
            .collect()
    }

    /// Kills it, as `kill -9` does.
    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
    }

    /// This program, as an `echo` or a `baton`.
    pub fn bare(work_dir: &WorkDir, what: &str) -> Self {
        let socket = work_dir.0.join(format!("{what}.sock"));
        let mut command = Command::new(beside("lockkeeper-bench-daemon"));
        Self::start(command.arg(what).arg(&socket), socket, format!("bare {what}"))
    }

    /// With `sync`, an answer means that what it says is on disk.
    pub fn redis(work_dir: &WorkDir, sync: bool) -> Self {
        let dir = work_dir.0.join(if sync { "redis-sync" } else { "redis" });
        fs::create_dir(&dir).expect("a directory for Redis");
        let socket = dir.join("redis.sock");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", if sync { "yes" } else { "no" }]);
        command.args(["--appendfsync", "always", "--unixsocket"]).arg(&socket).arg("--dir").arg(&dir);
        let version = said(Command::new("redis-server").arg("--version"));
        let version = version.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or("?");
        Self::start(&mut command, socket, format!("Redis {version}"))
    }

    /// For so many clients.
    pub fn postgres(work_dir: &WorkDir, clients: usize) -> Self {
        let postgres = Postgres::new(&work_dir.0.join("postgres")).expect("PostgreSQL is installed");
        let version = said(postgres.command("postgres").arg("--version"));
        let version = version.split_whitespace().nth(2).unwrap_or("?");
        let mut serve = postgres.serve();
        // Some are for superusers, and for what looks whether it serves.
        serve.args(["-c", &format!("max_connections={}", clients + 10)]);
        let server = Self::start(&mut serve, postgres.socket(), format!("PostgreSQL {version}"));
        // It listens before it serves.
        postgres.wait().expect("PostgreSQL serves");
        let (dir, table) = (postgres.socket(), "CREATE TABLE locks (name bigint PRIMARY KEY)");
        let dir = dir.parent().expect("it is in a directory");
        said(postgres.command("psql").arg("-q").arg("-h").arg(dir).args(["-U", "postgres", "-c", table]));
        server
    }

    fn start(command: &mut Command, socket: PathBuf, version: String) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let deadline = Instant::now() + START;
        while UnixStream::connect(&socket).is_err() {
            let ended = child.try_wait().expect("its status");
            assert!(ended.is_none() && Instant::now() < deadline, "{command:?} does not serve: {ended:?}");
            thread::sleep(Duration::from_millis(10));
        }
        Self { child, socket, version }
    }

    /// The processor time of the server so far, its children's included.
    pub fn cpu(&self) -> Duration {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let children = children.split_whitespace().map(|child| child.parse().expect("a pid"));
        [pid].into_iter().chain(children).map(cpu).sum()
    }

    /// Bytes that it has in memory.
    pub fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the kernel counts it");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Their children end with them.
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        let _ = self.child.wait();
    }
}

/// The processor time of all threads of a process, to the nanosecond.
fn cpu(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let spent = tasks.filter_map(|task| {
        let stat = fs::read_to_string(task.path().join("schedstat")).ok()?;
        stat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    });
    spent.sum()
}

/// A program in the directory of this one.
pub fn beside(name: &str) -> PathBuf {
    env::current_exe().expect("this program has a path").with_file_name(name)
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().into()
}
