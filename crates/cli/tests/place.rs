//! All processes of a user meet at one daemon, whatever their environment.
//!
//! Users are user ids without an entry in the user database, which only root can take on:
//! elsewhere, set `LOCKKEEPER_SKIP_USERS=1`.

mod common;

use common::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env, fs,
    os::unix::{
        fs::{DirBuilderExt, PermissionsExt},
        net::UnixStream,
    },
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
        if common::is_one_user() {
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

/// `su` keeps the path of root, with directories where the user may not look.
#[test]
fn a_command_that_is_nowhere_on_the_path_is_not_found_whatever_else_is_there() {
    let Some(user) = Homeless::new() else { return };
    let hidden = user.dir.join("hidden");
    fs::DirBuilder::new().mode(0o700).create(&hidden).expect("it is new");
    let path = format!("{}:/usr/bin:/bin", hidden.display());
    let mut run = user.command(&["run", "a", "--", "no-such-command"]);
    let done = run.env("PATH", &path).output().expect("it starts");
    assert_eq!(done.status.code(), Some(127), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("no-such-command: No such file"), "{}", text(&done.stderr));
    let forbidden = hidden.join("command");
    let done = user.run(&["run", "a", "--", forbidden.to_str().expect("it is text")]);
    assert_eq!(done.status.code(), Some(126), "{}", text(&done.stderr));
}

#[test]
fn the_daemon_of_another_user_is_named_as_such() {
    let Some(user) = Homeless::new() else { return };
    let other = common::User::new();
    let _holder = other.hold(&["a"]);
    let mut query = user.command(&["query"]);
    let refused = query.env("LOCKKEEPER_URL", format!("unix:{}", other.socket().display())).output();
    let refused = refused.expect("it starts");
    assert_eq!(refused.status.code(), Some(69));
    assert!(
        text(&refused.stderr).contains("for several, there is `lockkeeper --machine`"),
        "{}",
        text(&refused.stderr)
    );
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

/// A login shell, cron and a service, each inside of what the one before holds.
#[test]
fn the_processes_of_a_user_with_a_home_meet_there() {
    if common::is_skipped("LOCKKEEPER_SKIP_MOUNT") {
        return;
    }
    let user = common::User::new();
    let program = user.file("marker", "").replace("/marker", "/lockkeeper-copy");
    common::copy_program(&program);
    // On a disk: a `tmpfs` over the home would hide it.
    let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("home-{}", id()));
    fs::create_dir(&home).expect("it is new");
    let script = format!(
        "set -e; home=$(getent passwd 0 | cut -d: -f6); mount --bind {} $home\n\
         trap '{program} stop > /dev/null 2>&1' EXIT\n\
         for other in HOME=/nowhere 'XDG_RUNTIME_DIR=/run/user/4711 XDG_STATE_HOME=/nowhere' 'TMPDIR=/nowhere LOGNAME=x'; do\n\
         HOME=$home XDG_RUNTIME_DIR=/run/user/0 {program} run a -- env -i $other {program} run -q -n a -- true || echo $?\n\
         env -i $other {program} run a -- env -i {program} run -q -n a -- true || echo $?\n\
         done; find $home -name daemon.sock | wc -l",
        home.display()
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount", "sh", "-c", &script]).env_clear();
    let done = unshare.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").output().expect("`unshare` is there");
    let _ = fs::remove_dir_all(&home);
    assert_eq!(text(&done.stdout), "75\n75\n75\n75\n75\n75\n1", "{}", text(&done.stderr));
}

/// A service with `PrivateTmp` and `ProtectHome` has no place where its user's other processes
/// look.
#[test]
fn a_process_with_a_private_temporary_folder_is_told_so() {
    if common::is_skipped("LOCKKEEPER_SKIP_MOUNT") {
        return;
    }
    let user = common::User::new();
    let program = user.file("marker", "").replace("/marker", "/lockkeeper-copy");
    common::copy_program(&program);
    let private = program.replace("/lockkeeper-copy", "/systemd-private-0123-job.service-x/tmp");
    fs::create_dir_all(&private).expect("it is new");
    // As with `PrivateTmp=yes`, and with `disconnected`.
    let bound = format!("mount --bind {private} /var/tmp");
    let disconnected = format!(
        "mount -t tmpfs temp {private}; mkdir {private}/var-tmp; mount --bind {private}/var-tmp /var/tmp"
    );
    for mounts in [bound, disconnected] {
        let script = format!(
            "set -e; home=$(getent passwd 0 | cut -d: -f6); {mounts}; mount -t tmpfs -o ro home $home\n\
             {program} run a -- echo never || echo $?"
        );
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--mount", "sh", "-c", &script]).env_clear();
        let done = unshare.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").output().expect("`unshare` is there");
        let why = text(&done.stderr);
        assert_eq!(text(&done.stdout), "69", "{mounts}: {why}");
        assert!(
            why.contains("/var/tmp is this service's own (PrivateTmp)") && why.contains("set LOCKKEEPER_DIR"),
            "{why}"
        );
    }
}

/// A service with `ProtectHome=read-only` met at another daemon than one with `PrivateTmp`, which
/// cannot see it in `/var/tmp`.
#[test]
fn a_process_that_alone_cannot_write_to_the_home_meets_the_others_or_is_told() {
    if common::is_skipped("LOCKKEEPER_SKIP_MOUNT") {
        return;
    }
    let user = common::User::new();
    let program = user.file("marker", "").replace("/marker", "/lockkeeper-copy");
    common::copy_program(&program);
    let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("home-{}-read-only", id()));
    fs::create_dir(&home).expect("it is new");
    let protected =
        "unshare --mount sh -c 'mount --bind $1 $1; mount -o remount,bind,ro $1; shift; \"$@\"' sh $home";
    let script = format!(
        "set -e; home=$(getent passwd 0 | cut -d: -f6); mount --bind {} $home; mount -t tmpfs temp /var/tmp\n\
         trap '{program} stop > /dev/null 2>&1' EXIT; {protected} {program} run a -- echo never || echo $?\n\
         {program} run a -- {protected} env -i {program} run -q -n a -- true || echo $?",
        home.display()
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount", "sh", "-c", &script]).env_clear();
    let done = unshare.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").output().expect("`unshare` is there");
    let _ = fs::remove_dir_all(&home);
    let why = text(&done.stderr);
    assert_eq!(text(&done.stdout), "69\n75", "{why}");
    assert!(
        why.contains("cannot be written to by this process") && why.contains("set LOCKKEEPER_DIR"),
        "{why}"
    );
}

/// One chooses while there is no home, and starts its daemon when there is one, in which another
/// process has started its own.
#[test]
fn two_first_processes_that_choose_different_folders_meet() {
    if common::is_skipped("LOCKKEEPER_SKIP_MOUNT") {
        return;
    }
    let user = common::User::new();
    let program = user.file("marker", "").replace("/marker", "/lockkeeper-copy");
    common::copy_program(&program);
    let script = user.file(
        "script.py",
        "import os, socket, subprocess, sys, time\n\
         program, passwd, folder = sys.argv[1], sys.argv[2], '/var/tmp/lockkeeper-0'\n\
         for call in ['-t tmpfs temp /var/tmp', '-t ramfs home /mnt', f'--bind {passwd} /etc/passwd']:\n    \
             subprocess.run(['mount', *call.split()], check=True)\n\
         os.mkdir(folder, 0o700)\n\
         listener = socket.socket(socket.AF_UNIX)\n\
         listener.bind(folder + '/daemon.sock')\n\
         listener.listen()\n\
         late = subprocess.Popen([program, 'run', '-q', 'a', '--', 'true'])\n\
         connection = listener.accept()[0]\n\
         os.mkdir('/mnt/home')\n\
         first = [program, 'run', 'a', '--', 'sh', '-c', 'echo held; read -r line']\n\
         first = subprocess.Popen(first, stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n\
         print(first.stdout.readline().decode().strip(), flush=True)\n\
         os.remove(folder + '/daemon.sock')\n\
         connection.close()\n\
         listener.close()\n\
         deadline = time.monotonic() + 60\n\
         while late.poll() is None and time.monotonic() < deadline:\n    \
             if b'\"pending\":[{' in subprocess.run([program, 'query', 'a'], stdout=subprocess.PIPE).stdout: break\n\
         print('waits' if late.poll() is None else 'has it, too', flush=True)\n\
         first.communicate(b'done')\n\
         print(late.wait(), flush=True)\n\
         subprocess.run([program, 'stop'], stdout=subprocess.DEVNULL)\n",
    );
    let passwd = user.file("passwd", "root:x:0:0:root:/mnt/home:/bin/sh\n");
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount", "python3", &script, &program, &passwd]).env_clear();
    let done = unshare.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").output().expect("`unshare` is there");
    assert_eq!(text(&done.stdout), "held\nwaits\n0", "{}", text(&done.stderr));
}

/// A service with `ProtectHome`, and without `PrivateTmp`, met at another daemon than the shells of
/// its user.
#[test]
fn a_process_from_which_the_home_is_hidden_is_told_so() {
    if common::is_skipped("LOCKKEEPER_SKIP_MOUNT") {
        return;
    }
    let user = common::User::new();
    let program = user.file("marker", "").replace("/marker", "/lockkeeper-copy");
    common::copy_program(&program);
    let script = format!(
        "set -e; mount -t tmpfs temp /var/tmp; home=$(getent passwd 0 | cut -d: -f6); mount -t tmpfs -o ro home $home\n\
         trap '{program} stop > /dev/null 2>&1' EXIT; {program} run a -- echo never || echo $?\n\
         mkdir -m 700 /var/tmp/own; export LOCKKEEPER_DIR=/var/tmp/own; {program} run a -- echo mine"
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount", "sh", "-c", &script]).env_clear();
    let done = unshare.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").output().expect("`unshare` is there");
    assert_eq!(text(&done.stdout), "69\nmine", "{}", text(&done.stderr));
    let why = text(&done.stderr);
    assert!(why.contains("is hidden from this process") && why.contains("set LOCKKEEPER_DIR"), "{why}");
}
