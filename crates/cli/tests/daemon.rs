//! The daemon's own life: how it is started, killed, stopped and started again.

mod common;

use common::{User, running, wait_until};
use lockkeeper_wire::{
    frame,
    v2::{ToClient, code},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    os::unix::{
        fs::{DirBuilderExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

#[test]
fn several_that_start_it_at_once_end_with_one() {
    let user = User::new();
    let start = |_| user.command(&["run", "a", "--", "sh", "-c", "echo $PPID"]).stdout(Stdio::null()).spawn();
    let mut runs: Vec<Child> = (0..100).map(|number| start(number).expect("it starts")).collect();
    assert!(runs.iter_mut().all(|run| run.wait().expect("it ends").success()));
    let daemon = user.daemon();
    assert_eq!(user.daemon(), daemon);
    let log = user.run(&["serve", "--socket", user.socket().to_str().expect("it is text")]);
    assert_eq!(log.status.code(), Some(69), "another is running, and says so");
    let why = String::from_utf8_lossy(&log.stderr);
    assert!(why.contains("another daemon is running") && why.contains("`lockkeeper stop` ends it"), "{why}");
}

#[test]
fn what_a_killed_daemon_leaves_is_no_obstacle() {
    let user = User::new();
    assert!(user.run(&["run", "a", "--", "true"]).status.success());
    user.end_daemon(Signal::KILL);
    assert!(user.socket().exists());
    assert!(user.run(&["run", "a", "--", "true"]).status.success());
}

#[test]
fn holders_and_waiters_outlive_a_daemon_that_is_killed() {
    for signal in [Signal::KILL, Signal::TERM] {
        let user = User::new();
        let mut holder = user.hold(&["a"]);
        let mut readers = [user.hold(&["--shared", "b"]), user.hold(&["--shared", "b"])];
        let mut first = user.start(&["a"]);
        user.wait_for("a", 1, 1);
        let mut second = user.start(&["a"]);
        user.wait_for("a", 1, 2);
        for _ in 0..3 {
            user.end_daemon(signal);
            user.wait_for("a", 1, 2);
            user.wait_for("b", 2, 0);
        }
        assert_eq!(holder.let_go(), 0);
        assert_eq!(first.line(), "held");
        assert_eq!(first.let_go(), 0);
        assert_eq!(second.line(), "held");
        readers.iter_mut().for_each(|reader| assert_eq!(reader.let_go(), 0));
    }
}

#[test]
fn nobody_is_let_in_while_a_holder_is_stopped_and_the_daemon_killed() {
    let user = User::new();
    let mut holder = user.hold(&["a"]);
    kill_process(holder.pid(), Signal::STOP).expect("it runs");
    user.end_daemon(Signal::KILL);
    let mut waiter = user.start(&["a"]);
    user.wait_for("a", 1, 1);
    // Longer than the ttl: a stopped process must not count as dead.
    let late = user.run(&["run", "--timeout", "12s", "a", "--", "true"]);
    assert_eq!(late.status.code(), Some(75));
    assert_eq!(user.run(&["run", "--if-available", "b", "--", "true"]).status.code(), Some(0));
    kill_process(holder.pid(), Signal::CONT).expect("it runs");
    assert_eq!(holder.let_go(), 0, "it never lost its lock");
    assert_eq!(waiter.line(), "held");
}

#[test]
fn a_holder_that_dies_with_the_daemon_is_not_waited_for_once_its_command_has_ended() {
    let user = User::new();
    let mut holder = user.hold(&["a"]);
    let command = Pid::from_raw(holder.line().parse().expect("the command says its process id"));
    let daemon = user.daemon();
    kill_process(daemon, Signal::KILL).expect("it runs");
    holder.child.kill().expect("it runs");
    holder.child.wait().expect("it is dead");
    wait_until(|| !running(daemon));
    let taken = user.run(&["run", "--if-available", "a", "--", "true"]);
    assert_eq!(taken.status.code(), Some(75), "the command works on");
    // Its input ends, and so does the command.
    drop(holder);
    wait_until(|| !running(command.expect("it is one")));
    assert!(user.run(&["run", "--timeout", "5s", "a", "--", "true"]).status.success());
}

#[test]
fn a_daemon_that_nobody_needs_leaves() {
    let user = User::new();
    let socket = user.socket();
    fs::create_dir(socket.parent().expect("it is in a directory")).expect("it is new");
    fs::set_permissions(socket.parent().expect("as above"), fs::Permissions::from_mode(0o700))
        .expect("it is ours");
    let args = ["serve", "--idle", "10ms", "--socket", socket.to_str().expect("it is text")];
    let left = user.command(&args).stderr(Stdio::null()).status().expect("it starts");
    assert!(left.success());
}

#[test]
fn a_state_directory_that_cannot_be_used_is_refused_in_words() {
    let user = User::new();
    let socket = user.socket();
    let socket = socket.to_str().expect("it is text");
    let refused = user.run(&["serve", "--socket", socket, "--state-dir", "/proc/lockkeeper"]);
    assert_eq!(refused.status.code(), Some(69));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("/proc/lockkeeper"));
    let damaged = user.state_dir();
    fs::create_dir_all(&damaged).expect("it is new");
    fs::write(damaged.join("tokens"), "no number").expect("it is ours");
    let refused = user.run(&["serve", "--socket", socket]);
    assert_eq!(refused.status.code(), Some(69));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("was written by an earlier version"));
}

#[test]
fn a_socket_in_a_directory_that_others_can_write_to_is_refused() {
    let user = User::new();
    let dir = user.state_dir();
    fs::create_dir_all(&dir).expect("it is new");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("it is ours");
    let socket = dir.join("daemon.sock");
    let refused = user.run(&["serve", "--socket", socket.to_str().expect("it is text")]);
    assert_eq!(refused.status.code(), Some(69));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("other users can write to its directory"));
}

#[test]
fn a_daemon_at_a_socket_whose_clients_may_come_back_uses_the_state_they_know() {
    let user = User::new();
    let other = user.state_dir().join("../other");
    let socket = user.socket();
    let socket = socket.to_str().expect("it is text");
    let args = ["serve", "--socket", socket, "--state-dir", other.to_str().expect("it is text")];
    let mut daemon = user.command(&args).stderr(Stdio::null()).spawn().expect("it starts");
    wait_until(|| UnixStream::connect(user.socket()).is_ok());
    let mut holder = user.hold(&["a"]);
    daemon.kill().expect("it runs");
    daemon.wait().expect("it is dead");
    // Started on demand, by the holder or the others, it finds the state of the one that was
    // killed.
    user.wait_for("a", 1, 0);
    assert_eq!(user.run(&["run", "--if-available", "a", "--", "true"]).status.code(), Some(75));
    user.end_daemon(Signal::TERM);
    user.wait_for("a", 1, 0);
    let third = user.run(&["serve", "--socket", socket, "--state-dir", "/tmp/lockkeeper-elsewhere"]);
    assert_eq!(third.status.code(), Some(69));
    assert_eq!(holder.let_go(), 0);
}

#[test]
fn a_daemon_that_cannot_start_says_why_to_who_wanted_it() {
    let user = User::new();
    let state = user.state_dir();
    fs::create_dir_all(&state).expect("it is new");
    fs::write(state.join("tokens"), "").expect("it is ours");
    for command in [&["run", "a", "--", "true"][..], &["query"], &["release", "a"]] {
        let refused = user.run(command);
        let why = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(69), "{why}");
        assert!(
            why.contains("the daemon cannot start: ") && why.contains("was written by an earlier version"),
            "{why}"
        );
    }
    let nowhere = user.command(&["run", "a", "--", "true"]).env("LOCKKEEPER_DIR", "/proc/nowhere").output();
    let nowhere = nowhere.expect("it starts");
    let why = String::from_utf8_lossy(&nowhere.stderr);
    assert!(why.contains("the daemon cannot start: /proc/nowhere: "), "{why}");
    assert!(why.contains("set LOCKKEEPER_DIR to a directory of your own"), "{why}");
}

/// As one in a frozen cgroup, or on a frozen machine: its process is not stopped by a signal, or is
/// not visible.
#[test]
fn a_daemon_that_takes_connections_and_is_silent_is_waited_for_as_long_as_is_said() {
    let user = User::new();
    let path = user.file("silent.sock", "");
    fs::remove_file(&path).expect("it is ours");
    let _here = UnixListener::bind(&path).expect("the path is free");
    let there = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let there = format!("ws://{}", there.local_addr().expect("it listens"));
    for url in [format!("unix:{path}"), there] {
        for args in [&["run", "-w", "50ms", "a", "--", "true"][..], &["lock", "-w", "50ms", "a"]] {
            let done = user.command(args).env("LOCKKEEPER_URL", &url).output().expect("it starts");
            let said = String::from_utf8_lossy(&done.stderr);
            assert_eq!(done.status.code(), Some(75), "{url}: {said}");
            assert!(said.contains("does not answer"), "{said}");
        }
    }
}

#[test]
fn a_daemon_that_is_stopped_hangs_nobody_without_a_word() {
    let user = User::new();
    assert!(user.run(&["run", "a", "--", "true"]).status.success());
    let daemon = user.daemon();
    kill_process(daemon, Signal::STOP).expect("it runs");
    let words = format!("does not answer: its process {} is stopped", daemon.as_raw_nonzero());
    for (command, code) in [
        (&["run", "--timeout", "100ms", "a", "--", "true"][..], 75),
        (&["run", "--if-available", "a", "--", "true"], 69),
        (&["query"], 69),
        (&["status"], 69),
        (&["run", "a", "--", "true"], 69),
    ] {
        let begun = Instant::now();
        let done = user.run(command);
        // Less than what is waited for an answer.
        let in_time = !command.contains(&"--timeout") || begun.elapsed() < Duration::from_secs(5);
        assert!(in_time, "{command:?}: {:?}", begun.elapsed());
        let said = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert_eq!(done.status.code(), Some(code), "{command:?}: {said}");
        assert!(said.contains(&words), "{command:?}: {said}");
    }
    assert!(String::from_utf8_lossy(&user.run(&[]).stdout).contains(&words));
    // One that is stopped can be replaced.
    assert!(user.run(&["restart"]).status.success());
    assert_ne!(user.daemon(), daemon);
}

#[test]
fn a_daemon_is_stopped_restarted_and_its_log_read_and_locks_stay_held() {
    let user = User::new();
    let nothing = user.run(&["stop"]);
    assert!(String::from_utf8_lossy(&nothing.stdout).starts_with("No daemon runs at unix:"));
    assert_eq!(user.run(&["status"]).status.code(), Some(69));
    assert_eq!(user.run(&["logs"]).status.code(), Some(69));
    let mut holder = user.hold(&["a"]);
    let before = user.daemon();
    let status = user.run(&["status"]);
    let (status, code) = (String::from_utf8_lossy(&status.stdout).into_owned(), status.status.code());
    assert!(code == Some(0) && status.contains("1 held, 0 waiting"), "{status}");
    assert!(status.contains(&format!("state  {}\n", user.state_dir().display())), "{status}");
    let restarted = user.run(&["restart"]);
    assert!(restarted.status.success(), "{}", String::from_utf8_lossy(&restarted.stderr));
    assert_ne!(user.daemon(), before);
    user.wait_for("a", 1, 0);
    let log = user.run(&["logs", "-n", "1000"]);
    assert_eq!(String::from_utf8_lossy(&log.stdout).matches("serving").count(), 2);
    assert_eq!(holder.let_go(), 0);
    assert!(user.run(&["stop"]).status.success());
    assert!(!running(before));
}

/// What a package manager does: the file is replaced while a process runs from it.
#[test]
fn an_upgrade_under_a_holder_loses_nothing_and_status_says_what_to_restart() {
    let user = User::new();
    let old = user.file("lockkeeper-old", "");
    common::copy_program(&old);
    let with = |program: &str, args: &[&str]| {
        let template = user.command(args);
        let mut command = std::process::Command::new(program);
        command.args(args).env_clear();
        command.envs(template.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    };
    let mut holder = common::Holder::start(&mut with(&old, &["run", "a"]));
    assert_eq!(holder.line(), "held");
    let status = |program: &str| {
        String::from_utf8(with(program, &["status"]).output().expect("it starts").stdout).expect("it is text")
    };
    assert!(status(env!("CARGO_BIN_EXE_lockkeeper")).contains("`lockkeeper restart` starts this one"));
    let new = format!("{old}.new");
    common::copy_program(&new);
    fs::rename(&new, &old).expect("it is ours");
    assert!(status(&old).contains("`lockkeeper restart` starts this one"), "the file is another one");
    // Where `restart` is not for it, it is not said.
    let mut by_url = with(env!("CARGO_BIN_EXE_lockkeeper"), &["status"]);
    let by_url = by_url.env("LOCKKEEPER_URL", format!("unix:{}", user.socket().display())).output();
    let by_url = String::from_utf8(by_url.expect("it starts").stdout).expect("it is text");
    assert!(by_url.contains("; restart it with what started it"), "{by_url}");
    // The holder, whose own file is gone, starts the new program.
    user.end_daemon(Signal::KILL);
    user.wait_for("a", 1, 0);
    assert_eq!(holder.let_go(), 0);
}

/// An upgrade of the protocol under a running daemon: how to restart it depends on its starter.
#[test]
fn a_daemon_of_another_version_is_to_be_restarted_by_a_command_that_is_named() {
    let user = User::new();
    let socket = user.socket();
    fs::DirBuilder::new().mode(0o700).create(socket.parent().expect("it is in one")).expect("it is new");
    let listener = UnixListener::bind(&socket).expect("it is new");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // Asked for its process alone, it reads nothing.
            if stream.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {
                let mut goodbye = Vec::new();
                let message = "the client speaks version 2 of the protocol, the server 1: upgrade the server";
                let message = ToClient::Goodbye { code: code::VERSION, message };
                frame::append(&mut goodbye, |out| message.encode(out));
                let _ = stream.write_all(&goodbye);
            }
        }
    });
    let url = format!("unix:{}", socket.display());
    for (url, command) in
        [("user", "`lockkeeper restart` starts this one"), (&url, "restart it with what started it")]
    {
        let refused = user.command(&["run", "a", "--", "true"]).env("LOCKKEEPER_URL", url).output();
        let refused = refused.expect("it starts");
        let why = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(69), "{why}");
        assert!(why.contains("upgrade the server") && why.contains(command), "{why}");
    }
}

/// As in a container that has the folder of the daemon mounted: processes have other numbers there.
#[test]
fn a_container_with_the_folder_mounted_meets_the_daemon_outside() {
    if common::is_skipped("LOCKKEEPER_SKIP_MOUNT") {
        return;
    }
    let user = User::new();
    let _holder = user.hold(&["a"]);
    let folder = user.socket().parent().expect("it is in one").display().to_string();
    let mounted = user.file("marker", "").replace("/marker", "/mounted");
    fs::create_dir(&mounted).expect("it is new");
    let script = format!(
        "mount --bind {folder} {mounted}; for reach in LOCKKEEPER_DIR={mounted} LOCKKEEPER_URL=unix:{mounted}/daemon.sock; do\n\
         run=\"env -u LOCKKEEPER_DIR $reach lockkeeper\"; $run run -q -n a -- true; echo $?; $run run b -- echo inside\n\
         $run stop; echo $?; eval \"$($run lock c)\"; $run run -q -n c -- true; echo $?; $run unlock c; echo $?; done"
    );
    let mut unshare = user.script("sh", &script);
    let script = std::mem::replace(&mut unshare, Command::new("unshare"));
    unshare.args(["--map-root-user", "--mount", "--pid", "--fork", "--mount-proc"]).arg(script.get_program());
    unshare.args(script.get_args()).env_clear();
    unshare.envs(script.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    let done = unshare.output().expect("`unshare` is there");
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!(out, "75\ninside\n64\n75\n0\n".repeat(2), "{err}");
    assert_eq!(err.matches("its process is in another PID namespace").count(), 2, "{err}");
    user.wait_for("a", 1, 0);
}
