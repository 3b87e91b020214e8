//! A daemon that was started on demand has nothing of whoever happened to start it.

mod common;

use common::{User, is_one_user};
use std::{
    fs,
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Command, Stdio},
};

/// Starts the daemon from a shell that has done all sorts of things to itself.
fn start(user: &User, before: &str) -> String {
    let script = format!("{before}\nout=$(\"$0\" run a -- echo done)\necho \"$out\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_lockkeeper")]).stdin(Stdio::null());
    for (name, value) in user.command(&[]).get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.output().expect("a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn proc(user: &User, file: &str) -> Vec<u8> {
    fs::read(format!("/proc/{}/{file}", user.daemon().as_raw_nonzero())).expect("it runs")
}

#[test]
fn it_has_no_descriptor_of_a_script() {
    let user = User::new();
    let lock = user.file("lock", "");
    // The command substitution ends although the daemon continues.
    assert_eq!(start(&user, &format!("exec 9>{lock}; flock 9; exec 7>&1")), "done\n");
    let free = Command::new("flock").args(["-n", &lock, "true"]).status().expect("flock is there");
    assert!(free.success(), "the daemon holds the script's lock");
    let fds = format!("/proc/{}/fd", user.daemon().as_raw_nonzero());
    for fd in fs::read_dir(fds).expect("it runs").flatten() {
        assert_ne!(fs::read_link(fd.path()).unwrap_or_default(), Path::new(&lock));
    }
}

#[test]
fn it_has_no_environment_of_a_script() {
    let user = User::new();
    let told = UnixDatagram::bind(user.file("notify", "").replace("notify", "told")).expect("it is new");
    told.set_nonblocking(true).expect("a socket");
    let path = told.local_addr().expect("it has one");
    let path = path.as_pathname().expect("a path").display().to_string();
    let before =
        format!("export NOTIFY_SOCKET={path} LOCKKEEPER_LISTEN=127.0.0.1:0 LOCKKEEPER_TTL=7s SECRET=1");
    assert_eq!(start(&user, &before), "done\n");
    let environment = String::from_utf8_lossy(&proc(&user, "environ")).into_owned();
    assert_eq!(environment, "");
    assert!(told.recv(&mut [0; 10]).is_err(), "it has told somebody else's service manager that it is ready");
}

#[test]
fn it_has_no_limits_of_a_script_if_those_can_be_undone() {
    let user = User::new();
    assert_eq!(start(&user, "umask 000; ulimit -S -n 64; ulimit -S -f 1000"), "done\n");
    let limits = String::from_utf8_lossy(&proc(&user, "limits")).into_owned();
    for name in ["Max open files", "Max file size"] {
        let line = limits.lines().find(|line| line.starts_with(name)).expect("it is a limit");
        let mut values = line[name.len()..].split_whitespace();
        assert_eq!(values.next(), values.next(), "{line}");
    }
    let status = String::from_utf8_lossy(&proc(&user, "status")).into_owned();
    assert!(status.lines().any(|line| line == "Umask:\t0077"), "{status}");
}

/// A nice process yields to other processes; its daemon must not be slow for all locks. Only root
/// may undo it.
#[test]
fn it_has_no_niceness_of_a_script() {
    if is_one_user() {
        return;
    }
    let user = User::new();
    assert_eq!(start(&user, "renice -n 5 -p $$ >/dev/null"), "done\n");
    let stat = String::from_utf8_lossy(&proc(&user, "stat")).into_owned();
    // proc_pid_stat(5): the 19th field, the name in brackets being the second.
    let (_, fields) = stat.rsplit_once(") ").expect("it has a name");
    assert_eq!(fields.split(' ').nth(16), Some("0"), "{stat}");
}
