//! What people know from flock, timeout and their shell.

mod common;

use common::{User, is_skipped, running, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{BufRead, BufReader},
    process::{Output, Stdio},
};

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it is text")
}

fn script(user: &User, shell: &str, script: &str) -> Output {
    user.script(shell, script).output().expect("it starts")
}

#[test]
fn short_flags_are_those_of_flock() {
    let user = User::new();
    let _holder = user.hold(&["a"]);
    for (args, code) in [
        (&["run", "-n", "a", "--", "true"][..], 75),
        (&["run", "--nonblock", "a", "--", "true"], 75),
        (&["run", "-w", "0.01", "a", "--", "true"], 75),
        (&["run", "--wait", "10ms", "a", "--", "true"], 75),
        (&["run", "-n", "-E", "9", "a", "--", "true"], 9),
        (&["run", "-w", "10ms", "--conflict-exit-code", "0", "a", "--", "false"], 0),
        (&["run", "-x", "-n", "b", "--", "true"], 0),
        (&["run", "-e", "-n", "b", "--", "true"], 0),
    ] {
        assert_eq!(user.run(args).status.code(), Some(code), "{args:?}");
    }
    let _reader = user.hold(&["-s", "c"]);
    assert_eq!(user.run(&["run", "-s", "-n", "c", "--", "true"]).status.code(), Some(0));
    assert_eq!(user.run(&["run", "-n", "c", "--", "true"]).status.code(), Some(75));
}

#[test]
fn a_line_of_shell_is_the_shells() {
    let user = User::new();
    let done = user.run(&["run", "a", "-c", "echo one | tr a-z A-Z; exit 3"]);
    assert_eq!((done.status.code(), text(&done.stdout)), (Some(3), "ONE\n"));
    let mut mine = user.command(&["run", "a", "-c", "x"]);
    let mine = mine.env("SHELL", "/bin/echo").output().expect("it starts");
    assert_eq!(text(&mine.stdout), "-c x\n", "the user's own shell");
    assert_eq!(user.run(&["run", "a", "-c", "x", "--", "true"]).status.code(), Some(64));
}

#[test]
fn a_wrong_name_is_a_wrong_call_and_starts_nothing() {
    let user = User::new();
    let long = "x".repeat((64 << 10) + 1);
    for name in ["", &long] {
        for args in [&["run", name, "--", "true"][..], &["query", name], &["release", name], &["lock", name]]
        {
            assert_eq!(user.run(args).status.code(), Some(64), "{}", args[0]);
        }
    }
    let (many, label) = (vec!["a"; 1_025], "x".repeat(4_097));
    for wrong in [&many[..], &["--info", &label, "a"]] {
        for args in [[&["run"], wrong, &["--", "true"]].concat(), [&["lock"], wrong].concat()] {
            let done = user.run(&args);
            assert_eq!(done.status.code(), Some(64), "{}", args[0]);
            assert!(done.stderr.len() < 1_000, "{}", text(&done.stderr));
        }
    }
    assert!(!user.socket().exists());
}

#[test]
fn a_command_that_runs_too_long_is_ended_with_124() {
    let user = User::new();
    let done = user.run(&["run", "--for", "50ms", "a", "--", "sleep", "1000"]);
    assert_eq!(done.status.code(), Some(124), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("ran for longer than 50ms, and was ended"), "{}", text(&done.stderr));
    let stubborn = "trap '' TERM; while :; do sleep 0.01; done";
    let done = user.run(&["run", "--for", "50ms", "--grace", "10ms", "a", "--", "sh", "-c", stubborn]);
    assert_eq!(done.status.code(), Some(124));
    assert!(text(&done.stderr).contains("was killed"), "{}", text(&done.stderr));
    assert_eq!(user.run(&["run", "--for", "1h", "a", "--", "sh", "-c", "exit 5"]).status.code(), Some(5));
}

/// The lock is still held after the command has ended: it says so by a file.
#[test]
fn a_short_command_keeps_the_lock_for_as_long_as_it_is_told() {
    let user = User::new();
    let done = user.file("done", "");
    let mut command = user.command(&["run", "--min-hold", "1h", "a", "-c", &format!("rm {done}; exit 4")]);
    let mut run = command.spawn().expect("it starts");
    wait_until(|| !std::path::Path::new(&done).exists());
    assert_eq!(user.run(&["run", "-n", "a", "--", "true"]).status.code(), Some(75));
    // A signal ends the wait: the job is done. It may come before the command has quite ended,
    // which passes it on.
    let pid = Pid::from_child(&run);
    wait_until(|| {
        let _ = kill_process(pid, Signal::TERM);
        std::thread::sleep(std::time::Duration::from_millis(20));
        !running(pid)
    });
    let code = run.wait().expect("it ends").code();
    assert!(matches!(code, Some(4 | 143)), "{code:?}");
    assert_eq!(user.run(&["run", "-n", "a", "--", "true"]).status.code(), Some(0));
}

#[test]
fn exec_becomes_the_command_which_holds_the_lock() {
    let user = User::new();
    let mut holder = common::Holder::start(user.command(&["run", "--exec"]).arg("a"));
    assert_eq!(holder.line(), "held");
    assert_eq!(holder.line(), holder.pid().as_raw_nonzero().to_string(), "there is no second process");
    assert!(holder.line().parse::<u64>().is_ok(), "it has a fencing number");
    assert_eq!(user.run(&["run", "-n", "a", "--", "true"]).status.code(), Some(75));
    // A daemon that is killed finds it alive.
    user.end_daemon(Signal::KILL);
    assert_eq!(user.run(&["run", "-n", "a", "--", "true"]).status.code(), Some(75));
    assert_eq!(holder.let_go(), 0);
    assert_eq!(user.run(&["run", "-w", "60", "a", "--", "true"]).status.code(), Some(0));
    assert_eq!(user.run(&["run", "--exec", "a", "--", "no-such-command"]).status.code(), Some(127));
}

#[test]
fn with_o_the_command_does_not_inherit_the_lock() {
    let user = User::new();
    for (flag, code) in [(Some("-o"), 0), (None, 75)] {
        let mut command = user.command(&["run", "a"]);
        command.args(flag).args(["--", "sh", "-c", "echo $$; exec sleep 1000"]).stdout(Stdio::piped());
        let mut run = command.spawn().expect("it starts");
        let mut line = String::new();
        let mut output = BufReader::new(run.stdout.take().expect("it is a pipe"));
        output.read_line(&mut line).expect("it is text");
        run.kill().expect("it runs");
        run.wait().expect("it is dead");
        let wait = if code == 0 { "60" } else { "0" };
        assert_eq!(user.run(&["run", "-w", wait, "a", "--", "true"]).status.code(), Some(code), "{flag:?}");
        let command = Pid::from_raw(line.trim().parse().expect("it is a process id")).expect("it is one");
        kill_process(command, Signal::KILL).expect("it runs");
        wait_until(|| !running(command));
    }
}

#[test]
fn a_command_knows_which_names_are_held_around_it() {
    let user = User::new();
    let inner = "lockkeeper run 'b c' -- sh -c 'echo $LOCKKEEPER_NAMES'";
    let done = script(&user, "sh", &format!("lockkeeper run a d -- {inner}"));
    assert_eq!(text(&done.stdout), "a d b%20c\n", "{}", text(&done.stderr));
}

#[test]
fn a_run_inside_a_run_of_the_same_name_is_refused_with_the_reason() {
    let user = User::new();
    let done = script(&user, "sh", "lockkeeper run a -- lockkeeper run a -- echo never");
    assert_eq!((done.status.code(), text(&done.stdout)), (Some(64), ""));
    assert!(
        text(&done.stderr).contains("a: the command around this one holds it already"),
        "{}",
        text(&done.stderr)
    );
    let done = script(&user, "sh", "lockkeeper run a -- lockkeeper run -n a -- echo never");
    assert_eq!(done.status.code(), Some(75));
    assert!(text(&done.stderr).contains("holds it already"), "{}", text(&done.stderr));
    // However deep, and whoever else waits.
    let deep = "lockkeeper run a -- lockkeeper run b -- lockkeeper run a -- echo never";
    let done = script(&user, "sh", deep);
    assert_eq!((done.status.code(), text(&done.stdout)), (Some(64), ""), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("a: the command around this one holds it"), "{}", text(&done.stderr));
    let crowded = user.file(
        "crowded.sh",
        "env -u LOCKKEEPER_OUTER lockkeeper run -q a -- true & until lockkeeper query --json a | grep -q 'pending..\\[{'; \
         do sleep 0.01; done; lockkeeper run a -- echo never; echo $?",
    );
    let done = script(&user, "sh", &format!("lockkeeper run a -- sh {crowded}"));
    assert_eq!(text(&done.stdout), "64\n", "{}", text(&done.stderr));
    // Readers can share, and a lock that is no more held is no reason.
    let done = script(&user, "sh", "lockkeeper run -s a -- lockkeeper run -s a -- echo both");
    assert_eq!(text(&done.stdout), "both\n", "{}", text(&done.stderr));
    let over = "export LOCKKEEPER_OUTER=$(lockkeeper run a -- printenv LOCKKEEPER_OUTER); echo $LOCKKEEPER_OUTER; \
                lockkeeper run a -- printenv LOCKKEEPER_OUTER";
    let done = script(&user, "sh", over);
    let (outer, both) = text(&done.stdout).split_once('\n').expect("two lines");
    assert!(outer.ends_with("=a") && both.starts_with(&format!("{outer} ")), "{}", text(&done.stderr));
}

#[test]
fn opposite_orders_are_reported_as_the_deadlock_they_are() {
    let user = User::new();
    let (one, two) = (user.file("one", ""), user.file("two", ""));
    // Each removes its file when it has its first lock, and asks for the second when both are gone.
    let wait = format!("while [ -e {one} ] || [ -e {two} ]; do sleep 0.01; done");
    let line = |mine: &str, first: &str, second: &str| {
        format!("lockkeeper run {first} -c 'rm {mine}; {wait}; lockkeeper run {second} -- echo done'")
    };
    let both =
        format!("{} & a=$!; {}; b=$?; wait $a; echo $? $b", line(&one, "x", "y"), line(&two, "y", "x"));
    let done = script(&user, "sh", &both);
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    assert!(
        out.ends_with("0 75\n") || out.ends_with("75 0\n"),
        "one is refused, the other served: {out} {err}"
    );
    assert!(err.contains("a deadlock"), "{err}");
}

#[test]
fn a_script_can_lock_itself() {
    let user = User::new();
    let file = user.file(
        "nightly.sh",
        "case \" $LOCKKEEPER_NAMES \" in *\" nightly \"*) ;; *) exec lockkeeper run -n nightly -- sh \"$0\" ;; esac\necho mine\n",
    );
    assert_eq!(text(&script(&user, "sh", &format!("sh {file}")).stdout), "mine\n");
    // Under another lock, too.
    assert_eq!(text(&script(&user, "sh", &format!("lockkeeper run other -- sh {file}")).stdout), "mine\n");
    let taken = script(&user, "sh", &format!("lockkeeper run nightly -- env -u LOCKKEEPER_NAMES sh {file}"));
    assert_eq!(taken.status.code(), Some(75), "{}", text(&taken.stderr));
}

/// After `unlock`, the environment of the shell still names the lock.
#[test]
fn a_script_that_asks_whether_it_is_locked_is_told_what_is_so() {
    let user = User::new();
    let file = user.file(
        "nightly.sh",
        "lockkeeper held nightly || exec lockkeeper run -n nightly -- sh \"$0\"\n\
         env -u LOCKKEEPER_OUTER lockkeeper run -q -n nightly -- true; echo mine $?\n",
    );
    let run = |before: &str| script(&user, "sh", &format!("{before} sh {file}"));
    for before in [
        "",
        "lockkeeper run other --",
        "lockkeeper run nightly --",
        "lockkeeper run a nightly -- lockkeeper run other --",
        "eval \"$(lockkeeper lock nightly)\";",
        "eval \"$(lockkeeper lock nightly)\"; lockkeeper unlock nightly;",
        "eval \"$(lockkeeper lock nightly)\"; eval \"$(lockkeeper lock b)\"; lockkeeper unlock nightly;",
    ] {
        let done = run(before);
        assert_eq!(text(&done.stdout), "mine 75\n", "{before}: {}", text(&done.stderr));
    }
    let _holder = user.hold(&["nightly"]);
    for before in ["", "LOCKKEEPER_NAMES=nightly LOCKKEEPER_OUTER=0123456789abcdef/0=nightly"] {
        let done = run(before);
        assert_eq!((done.status.code(), text(&done.stdout)), (Some(75), ""));
        assert!(!text(&done.stderr).contains("holds it already"), "{}", text(&done.stderr));
    }
    assert_eq!(user.run(&["held", "nightly"]).status.code(), Some(1));
}

/// The environment had the last lock alone, which is no more: `run` waited for its own shell.
#[test]
fn a_run_is_nested_in_what_its_shell_still_holds() {
    let user = User::new();
    let locks = "eval \"$(lockkeeper lock 'a b')\"; eval \"$(lockkeeper lock c)\"";
    for (then, code) in [
        ("lockkeeper unlock c; lockkeeper run 'a b' -- echo never", 64),
        ("lockkeeper unlock c; lockkeeper run -n 'a b' -- echo never", 75),
        ("lockkeeper unlock 'a b'; lockkeeper run c -- echo never", 64),
        ("lockkeeper unlock 'a b'; lockkeeper run 'a b' -- exit 5", 127),
        ("lockkeeper unlock c; lockkeeper run -w 60 c -- sh -c 'exit 5'", 5),
    ] {
        let done = script(&user, "sh", &format!("{locks}; {then}"));
        assert_eq!(
            (done.status.code(), text(&done.stdout)),
            (Some(code), ""),
            "{then}: {}",
            text(&done.stderr)
        );
        assert_eq!(text(&done.stderr).contains("holds it already"), [64, 75].contains(&code), "{then}");
    }
}

/// A shell has seven descriptors for locks. Those of locks that were released were never used
/// again.
#[test]
fn a_script_can_lock_and_unlock_in_a_loop() {
    let user = User::new();
    let turn = "eval \"$(lockkeeper lock a 'b c')\"; lockkeeper unlock a 'b c'";
    let script = format!(
        "eval \"$(lockkeeper lock kept)\"; for turn in 1 2 3 4 5 6 7 8 9 10; do {turn}; done; eval \"$(lockkeeper lock d)\"; \
         echo $LOCKKEEPER_NAMES; lockkeeper unlock kept && lockkeeper held d && echo well"
    );
    let done = user.script("sh", &script).output().expect("it starts");
    let out = text(&done.stdout);
    assert!(out.starts_with("kept ") && out.ends_with(" d\nwell\n"), "{out} {}", text(&done.stderr));
    // One that was released a moment ago may still be there.
    assert!(out.len() < 40, "{out}");
}

#[test]
fn a_lock_for_the_rest_of_a_script_lives_with_the_shell() {
    let user = User::new();
    for shell in ["sh", "bash"] {
        let held = "lockkeeper run -q -n a -- true; echo $?";
        let other = "env -u LOCKKEEPER_OUTER -u LOCKKEEPER_NAMES lockkeeper run -q -n a -- true; echo $?";
        let both = format!(
            "eval \"$(lockkeeper lock a)\"; echo $LOCKKEEPER_NAMES; [ $LOCKKEEPER_FENCE -gt 0 ] && {held}; {other}; \
             eval \"$(lockkeeper lock 'b c' d)\"; lockkeeper unlock a; {other}; lockkeeper unlock 'b c' d && echo free"
        );
        let done = script(&user, shell, &both);
        assert_eq!(text(&done.stdout), "a\n75\n75\n0\nfree\n", "{shell}: {}", text(&done.stderr));
        // The shell's end is the lock's.
        let done = script(&user, shell, "eval \"$(lockkeeper lock a)\"; kill -KILL $$");
        assert_eq!(done.status.code(), None, "{}", text(&done.stderr));
        assert_eq!(user.run(&["run", "-w", "60", "a", "--", "true"]).status.code(), Some(0));
    }
}

/// The shell waited until somebody started another one.
#[test]
fn a_script_takes_its_lock_though_the_daemon_was_killed() {
    let user = User::new();
    let script = "lock=$(lockkeeper lock a); echo asked; read -r line; eval \"$lock\"; lockkeeper held a";
    for shell in ["sh", "bash"] {
        let mut script = user.script(shell, script);
        let mut script =
            script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the shell starts");
        let mut line = String::new();
        let mut said = BufReader::new(script.stdout.take().expect("it is a pipe"));
        said.read_line(&mut line).expect("it is text");
        user.end_daemon(Signal::KILL);
        drop(script.stdin.take());
        let mut status = None;
        wait_until(|| {
            status = script.try_wait().expect("it is a child");
            status.is_some()
        });
        assert_eq!(status.and_then(|status| status.code()), Some(0), "{shell}");
    }
}

#[test]
fn a_script_does_not_go_on_without_its_lock() {
    let user = User::new();
    let _holder = user.hold(&["a"]);
    for (call, code) in [
        ("lock -n a", 75),
        ("lock -w 10ms -E 7 a", 7),
        ("lock ''", 64),
        ("lock --bogus a", 64),
        ("lock b -- ls", 64),
    ] {
        let done = script(&user, "sh", &format!("eval \"$(lockkeeper {call})\"; echo never"));
        assert_eq!((done.status.code(), text(&done.stdout)), (Some(code), ""), "{call}");
    }
    let asked = script(&user, "sh", "l=$(lockkeeper lock -q -n a) || { echo busy $?; exit 0; }; eval \"$l\"");
    assert_eq!(text(&asked.stdout), "busy 75\n");
    let unlocked = user.run(&["unlock", "a"]);
    assert_eq!(unlocked.status.code(), Some(1));
    assert!(text(&unlocked.stderr).contains("this shell does not hold it"));
}

/// What was printed was nothing, and `eval` of nothing succeeds.
#[test]
fn a_script_whose_lock_is_killed_while_it_waits_does_not_go_on() {
    let user = User::new();
    let _holder = user.hold(&["a"]);
    let lock = "sh -c 'echo $$ >&2; exec lockkeeper lock -q a'";
    for (shell, before, after, code) in [
        ("sh", "", "", 69),
        ("bash", "", "", 69),
        ("sh", "set -eu;", "", 69),
        ("bash", "set -eu;", "", 69),
        // As the help has it.
        ("sh", "", "|| echo exit 75", 75),
    ] {
        for signal in [Signal::TERM, Signal::KILL] {
            let script = format!("{before} eval \"$({lock} {after})\"; echo never");
            let mut script = user.script(shell, &script);
            let mut script = script.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
            let mut pid = String::new();
            let mut said = BufReader::new(script.stderr.take().expect("it is a pipe"));
            said.read_line(&mut pid).expect("it is text");
            user.wait_for("a", 1, 1);
            let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("a process");
            kill_process(pid, signal).expect("it runs");
            let done = script.wait_with_output().expect("it ends");
            assert_eq!((done.status.code(), text(&done.stdout)), (Some(code), ""), "{shell}: {before}");
            user.wait_for("a", 1, 0);
        }
    }
    for shell in ["sh", "bash"] {
        let done = script(
            &user,
            shell,
            "set -eu; eval \"$(lockkeeper lock b)\"; command -v lockkeeper_lock || echo well",
        );
        assert_eq!(text(&done.stdout), "well\n", "{shell}: {}", text(&done.stderr));
    }
}

/// It went on without its lock: what is printed is no script of fish.
#[test]
fn a_script_of_fish_is_ended_and_told_what_to_do() {
    if is_skipped("LOCKKEEPER_SKIP_SHELLS") {
        return;
    }
    let user = User::new();
    for call in ["lock a", "lock --bogus a"] {
        let done = script(&user, "fish", &format!("eval (lockkeeper {call}); echo never"));
        assert_eq!((done.status.code(), text(&done.stdout)), (Some(64), ""), "{}", text(&done.stderr));
        assert!(
            call != "lock a" || text(&done.stderr).contains("lockkeeper run NAME -- fish"),
            "{}",
            text(&done.stderr)
        );
    }
    assert!(!user.socket().exists());
}
