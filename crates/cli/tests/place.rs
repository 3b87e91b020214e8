//! All processes of a user meet at one daemon, whatever their environment.
//!
//! Users are user ids without an entry in the user database, which only root can take on. Other users skip those tests.

mod common;

use common::wait_until;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::{
    env, fs,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::PathBuf,
    process::{Command, Output, id},
    sync::atomic::{AtomicU32, Ordering},
};

static USERS: AtomicU32 = AtomicU32::new(0);

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it is text").trim_end()
}

/// Where the command says that the daemon is.
fn socket(variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.args(["status", "--socket"]).env_clear().envs(variables.iter().copied());
    let done = command.output().expect("it starts");
    assert!(done.status.success(), "{}", text(&done.stderr));
    text(&done.stdout).into()
}

#[test]
fn the_place_does_not_depend_on_the_environment() {
    let bare = socket(&[]);
    for variables in [
        &[("HOME", "/nowhere"), ("LOGNAME", "somebody"), ("SHELL", "/bin/sh"), ("PATH", "/usr/bin:/bin")][..],
        &[("XDG_RUNTIME_DIR", "/run/user/4711"), ("XDG_STATE_HOME", "/tmp/state")],
        &[("TMPDIR", "/tmp/other"), ("USER", "somebody")],
        &[("LOCKKEEPER_URL", "user")],
    ] {
        assert_eq!(socket(variables), bare, "{variables:?}");
    }
    assert!(bare.len() <= lockkeeper_paths::SOCKET_LIMIT);
    assert_eq!(socket(&[("LOCKKEEPER_DIR", "/tmp/mine")]), "/tmp/mine/daemon.sock");
    assert_eq!(socket(&[("LOCKKEEPER_URL", "machine")]), "/run/lockkeeper/machine.sock");
}

#[test]
fn a_daemon_that_is_started_on_demand_keeps_its_log_beside_its_socket() {
    let user = common::User::new();
    assert!(user.run(&["run", "a", "--", "true"]).status.success());
    assert!(user.state_dir().join("fifo").exists());
    let status = user.run(&["status"]);
    assert!(text(&status.stdout).contains(&format!("state  {}", user.state_dir().display())));
}

/// A user without a home, and a program that this user can execute.
struct Homeless {
    user: u32,
    dir: PathBuf,
}

impl Homeless {
    fn new() -> Option<Self> {
        if !geteuid().is_root() {
            eprintln!("SKIPPED: only root can be another user");
            return None;
        }
        let number = USERS.fetch_add(1, Ordering::Relaxed);
        // Not one that anybody has: ids of a person, a service or a container end below.
        let user = 4_000_000_000 + id() % 1_000_000 * 16 + number;
        let dir = env::temp_dir().join(format!("lockkeeper-place-{}-{number}", id()));
        fs::create_dir(&dir).expect("it is new");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("it is ours");
        common::copy_program(dir.join("lockkeeper"));
        Some(Self { user, dir })
    }

    fn folder(&self) -> PathBuf {
        format!("/var/tmp/lockkeeper-{}", self.user).into()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        let user = self.user.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
        command.arg(self.dir.join("lockkeeper")).args(args).env_clear().env("PATH", "/usr/bin:/bin");
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("it starts")
    }
}

impl Drop for Homeless {
    fn drop(&mut self) {
        if let Ok(stream) = UnixStream::connect(self.folder().join("daemon.sock"))
            && let Ok(daemon) = rustix::net::sockopt::socket_peercred(&stream)
        {
            let _ = kill_process(daemon.pid, Signal::KILL);
        }
        let _ = fs::remove_dir_all(self.folder());
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn a_user_without_a_home_has_a_private_folder_where_all_of_his_processes_meet() {
    let Some(user) = Homeless::new() else { return };
    let script = "echo held > /proc/self/fd/1; sleep 1000";
    let mut holder = user.command(&["run", "a", "--", "sh", "-c", script]);
    let mut holder = holder.env("XDG_RUNTIME_DIR", "/run/user/4711").spawn().expect("it starts");
    wait_until(|| text(&user.run(&["query", "a"]).stdout).contains("\"token\""));
    let folder = fs::metadata(user.folder()).expect("it is there");
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    for variables in [
        &[][..],
        &[("HOME", "/"), ("LOGNAME", "nobody"), ("SHELL", "/bin/sh")],
        &[("TMPDIR", "/nowhere"), ("XDG_RUNTIME_DIR", "/nowhere")],
    ] {
        let mut other = user.command(&["run", "-q", "--if-available", "a", "--", "true"]);
        let other = other.envs(variables.iter().copied()).output().expect("it starts");
        assert_eq!(other.status.code(), Some(75), "{variables:?}: {}", text(&other.stderr));
    }
    kill_process(Pid::from_child(&holder), Signal::TERM).expect("it runs");
    holder.wait().expect("it ends");
}

#[test]
fn a_folder_that_somebody_else_has_made_is_named_at_once() {
    let Some(user) = Homeless::new() else { return };
    fs::create_dir(user.folder()).expect("it is new");
    let refused = user.run(&["run", "a", "--", "true"]);
    let (code, why) = (refused.status.code(), text(&refused.stderr));
    assert_eq!(code, Some(69), "{why}");
    let named = format!("{} belongs to another user (0)", user.folder().display());
    assert!(why.contains(&named) && why.contains("set LOCKKEEPER_DIR"), "{why}");
    // Nor is one that is open to others used, which the user has made.
    let chown = std::os::unix::fs::chown(user.folder(), Some(user.user), Some(user.user));
    chown.expect("root can");
    fs::set_permissions(user.folder(), fs::Permissions::from_mode(0o770)).expect("root can");
    let refused = user.run(&["run", "a", "--", "true"]);
    assert!(text(&refused.stderr).contains("is open to other users (mode 770)"), "{}", text(&refused.stderr));
    fs::set_permissions(user.folder(), fs::Permissions::from_mode(0o700)).expect("root can");
    assert_eq!(user.run(&["run", "a", "--", "echo", "mine"]).stdout, b"mine\n");
}
