//! `lockkeeper run` and `query`, as a user of the shell meets them.

mod common;

use common::{User, running, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::{fs, os::unix::fs::PermissionsExt};

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it is text")
}

#[test]
fn runs_a_command_and_exits_as_it_does() {
    let user = User::new();
    let done = user.run(&["run", "hello", "--", "sh", "-c", "echo mine; exit 7"]);
    assert_eq!((done.status.code(), text(&done.stdout)), (Some(7), "mine\n"));
    let done = user.run(&["run", "hello", "--", "sh", "-c", "kill -KILL $$"]);
    assert_eq!(done.status.code(), Some(128 + 9));
}

#[test]
fn says_when_a_command_cannot_be_started() {
    let user = User::new();
    let done = user.run(&["run", "hello", "--", "no-such-command"]);
    assert_eq!(done.status.code(), Some(127));
    assert!(text(&done.stderr).starts_with("lockkeeper: no-such-command: "), "{}", text(&done.stderr));
    let done = user.run(&["run", "hello", "--", "/etc/passwd"]);
    assert_eq!(done.status.code(), Some(126));
}

#[test]
fn a_wrong_call_is_64_and_starts_nothing() {
    let user = User::new();
    for wrong in [
        &["run", "hello"][..],
        &["run", "--", "true"],
        &["run", "--timeout", "soon", "a", "--", "true"],
        &["run", "--if-available", "--timeout", "1s", "a", "--", "true"],
        &["run", "--steal", "--shared", "a", "--", "true"],
        &["walk"],
    ] {
        assert_eq!(user.run(wrong).status.code(), Some(64), "{wrong:?}");
    }
    assert!(!user.socket().exists());
    // Only the daemon knows that the name is reserved.
    assert_eq!(user.run(&["run", "--info", "x", "--", "-a", "--", "true"]).status.code(), Some(64));
}

#[test]
fn help_teaches() {
    let user = User::new();
    let help = user.run(&["run", "--help"]);
    assert_eq!(help.status.code(), Some(0));
    for taught in ["Examples:", "lockkeeper run backup -- ./backup.sh", "75", "LOCKKEEPER_TOKEN"] {
        assert!(text(&help.stdout).contains(taught), "{taught}");
    }
}

#[test]
fn one_at_a_time_in_order() {
    let user = User::new();
    let mut first = user.hold(&["a"]);
    let mut second = user.start(&["a"]);
    user.wait_for("a", 1, 1);
    let mut third = user.start(&["a"]);
    user.wait_for("a", 1, 2);
    assert_eq!(first.let_go(), 0);
    assert_eq!(second.line(), "held");
    user.wait_for("a", 1, 1);
    assert_eq!(second.let_go(), 0);
    assert_eq!(third.line(), "held");
}

#[test]
fn readers_share() {
    let user = User::new();
    let _one = user.hold(&["--shared", "a"]);
    let _other = user.hold(&["--shared", "a"]);
    user.wait_for("a", 2, 0);
    assert_eq!(user.run(&["run", "--if-available", "a", "--", "true"]).status.code(), Some(75));
}

#[test]
fn several_names_are_held_at_once() {
    let user = User::new();
    let mut both = user.hold(&["a", "b"]);
    for name in ["a", "b"] {
        assert_eq!(user.run(&["run", "--if-available", name, "--", "true"]).status.code(), Some(75));
    }
    assert_eq!(both.let_go(), 0);
    assert_eq!(user.run(&["run", "--if-available", "a", "b", "--", "true"]).status.code(), Some(0));
}

#[test]
fn patience_ends_with_75_and_leaves_the_queue() {
    let user = User::new();
    let _holder = user.hold(&["a"]);
    let done = user.run(&["run", "--timeout", "1ms", "a", "--", "echo", "never"]);
    assert_eq!((done.status.code(), text(&done.stdout)), (Some(75), ""));
    user.wait_for("a", 1, 0);
}

#[test]
fn who_is_robbed_is_ended_and_exits_with_76() {
    let user = User::new();
    let mut robbed = user.hold(&["a"]);
    let command: i32 = robbed.line().parse().expect("the command says its process id");
    let thief = user.run(&["run", "--steal", "a", "--", "echo", "mine"]);
    assert_eq!(text(&thief.stdout), "mine\n");
    assert_eq!(robbed.code(), 76);
    assert!(!running(Pid::from_raw(command).expect("it is one")));
}

#[test]
fn a_command_that_does_not_heed_sigterm_is_killed_after_the_grace() {
    let user = User::new();
    let mut command = user.command(&["run", "--grace", "1ms", "a", "--", "sh", "-c"]);
    command.arg("trap '' TERM; echo held; while :; do sleep 0.01; done").stdout(std::process::Stdio::piped());
    let mut robbed = command.spawn().expect("it starts");
    let mut held = [0; 5];
    std::io::Read::read_exact(robbed.stdout.as_mut().expect("it is a pipe"), &mut held).expect("it says so");
    assert_eq!(user.run(&["run", "--steal", "a", "--", "true"]).status.code(), Some(0));
    assert_eq!(robbed.wait().expect("it ends").code(), Some(76));
}

#[test]
fn tokens_grow_and_the_command_sees_its_own() {
    let user = User::new();
    let token = || -> u64 {
        let done = user.run(&["run", "a", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"]);
        text(&done.stdout).trim().parse().expect("it is a number")
    };
    let first = token();
    let second = token();
    assert!(second > first);
    user.end_daemon(Signal::KILL);
    let third = token();
    assert!(third > second, "a daemon that was killed gave out tokens that nobody has seen");
    user.end_daemon(Signal::TERM);
    assert!(token() > third);
}

#[test]
fn killing_run_alone_does_not_free_the_lock_under_the_command() {
    let user = User::new();
    let mut holder = user.hold(&["a"]);
    let command: i32 = holder.line().parse().expect("the command says its process id");
    kill_process(holder.pid(), Signal::KILL).expect("it runs");
    holder.child.wait().expect("it is dead");
    assert_eq!(user.run(&["run", "--if-available", "a", "--", "true"]).status.code(), Some(75));
    assert!(holder.say("still here").parse::<u64>().is_ok(), "the token comes first");
    assert_eq!(holder.line(), "still here");
    drop(holder);
    wait_until(|| !running(Pid::from_raw(command).expect("it is one")));
    assert_eq!(user.run(&["run", "a", "--", "true"]).status.code(), Some(0));
}

#[test]
fn signals_are_passed_on() {
    let user = User::new();
    let script = "trap 'echo told; exit 3' TERM; echo held; while :; do sleep 0.01; done";
    let mut command = user.command(&["run", "a", "--", "sh", "-c", script]);
    let mut run = command.stdout(std::process::Stdio::piped()).spawn().expect("it starts");
    let mut output = run.stdout.take().expect("it is a pipe");
    let mut held = [0; 5];
    std::io::Read::read_exact(&mut output, &mut held).expect("it says so");
    // The handler is there a little after the command is: asked until it answers.
    wait_until(|| {
        let _ = kill_process(Pid::from_child(&run), Signal::TERM);
        run.try_wait().expect("it is ours").is_some()
    });
    let code = run.wait().expect("it ends").code();
    assert!(code == Some(3) || code.is_none(), "{code:?}");
}

#[test]
fn query_shows_who_holds_and_who_waits() {
    let user = User::new();
    assert_eq!(text(&user.run(&["query"]).stdout), "Nobody holds a lock, and nobody waits.\n");
    let _holder = user.hold(&["--info", "nightly report", "a"]);
    let _waiter = user.start(&["--shared", "a"]);
    user.wait_for("a", 1, 1);
    let shown = user.run(&["query"]);
    let lines: Vec<&str> = text(&shown.stdout).lines().collect();
    assert!(lines[0].starts_with("STATE  NAME  MODE       FOR"), "{lines:?}");
    assert!(
        lines[1].starts_with("held   a     exclusive") && lines[1].ends_with("nightly report"),
        "{lines:?}"
    );
    assert!(lines[2].starts_with("waits  a     shared"), "{lines:?}");
    assert_eq!(text(&user.run(&["query", "--json", "b"]).stdout), "{\"held\":[],\"pending\":[]}\n");
}

#[test]
fn only_this_user_can_reach_the_socket() {
    let user = User::new();
    assert_eq!(user.run(&["run", "a", "--", "true"]).status.code(), Some(0));
    let mode = |path: &std::path::Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(user.socket().parent().expect("it is in a directory")), 0o700);
    assert_eq!((mode(&user.socket()), mode(&user.state_dir())), (0o600, 0o700));
}

#[test]
fn a_url_that_is_none_is_a_wrong_call_and_an_unreachable_daemon_is_69() {
    let user = User::new();
    let wrong = user.command(&["query"]).env("LOCKKEEPER_URL", "ftp://x").output().expect("it starts");
    assert_eq!(wrong.status.code(), Some(64));
    assert!(text(&wrong.stderr).contains("unix:/path/to/daemon.sock"), "{}", text(&wrong.stderr));
    let nowhere = "unix:/proc/no/daemon.sock";
    let done = user.command(&["query"]).env("LOCKKEEPER_URL", nowhere).output().expect("it starts");
    assert_eq!(done.status.code(), Some(69));
}
