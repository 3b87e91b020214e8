//! `lockkeeper run` and `query`, as a user of the shell meets them.

mod common;

use common::{User, running, terminal::Terminal, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt, process::ExitStatusExt},
    process::{Child, ChildStdout, Command, Stdio},
};

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

/// A script that a Ctrl-C ends waits for `run`, and goes on if that ends otherwise. The command can
/// have ended before `run` receives its own SIGINT.
#[test]
fn ends_by_sigint_as_the_command_did() {
    let user = User::new();
    let done = user.run(&["run", "hello", "--", "env", "--default-signal=INT", "sh", "-c", "kill -INT $$"]);
    assert_eq!(done.status.signal(), Some(2));
    user.wait_for("hello", 0, 0);
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
    let mut preempted = user.hold(&["a"]);
    let command: i32 = preempted.line().parse().expect("the command says its process id");
    let thief = user.run(&["run", "--steal", "a", "--", "echo", "mine"]);
    assert_eq!(text(&thief.stdout), "mine\n");
    assert_eq!(preempted.code(), 76);
    assert!(!running(Pid::from_raw(command).expect("it is one")));
}

#[test]
fn a_command_that_does_not_heed_sigterm_is_killed_after_the_grace() {
    let user = User::new();
    let mut command = user.command(&["run", "--grace", "1ms", "a", "--", "sh", "-c"]);
    command.arg("trap '' TERM; echo held; while :; do sleep 0.01; done").stdout(std::process::Stdio::piped());
    let mut preempted = command.spawn().expect("it starts");
    let mut held = [0; 5];
    std::io::Read::read_exact(preempted.stdout.as_mut().expect("it is a pipe"), &mut held)
        .expect("it says so");
    assert_eq!(user.run(&["run", "--steal", "a", "--", "true"]).status.code(), Some(0));
    assert_eq!(preempted.wait().expect("it ends").code(), Some(76));
}

#[test]
fn tokens_grow_and_the_command_sees_its_own() {
    let user = User::new();
    let token = || -> u64 {
        let done = user.run(&["run", "a", "--", "sh", "-c", "echo $LOCKKEEPER_FENCE"]);
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
fn nor_does_it_after_the_daemon_was_killed_and_has_started_again() {
    let user = User::new();
    let mut holder = user.hold(&["a"]);
    let command = Pid::from_raw(holder.line().parse().expect("the command says its process id"));
    let command = command.expect("it is one");
    user.end_daemon(Signal::KILL);
    user.wait_for("a", 1, 0);
    kill_process(holder.pid(), Signal::KILL).expect("it runs");
    holder.child.wait().expect("it is dead");
    assert_eq!(user.run(&["run", "--if-available", "a", "--", "true"]).status.code(), Some(75));
    drop(holder);
    wait_until(|| !running(command));
    assert_eq!(user.run(&["run", "a", "--", "true"]).status.code(), Some(0));
}

/// A command that closes what it inherits, as `ssh` and `sudo` do, and says its process id.
const CLOSES: &str = "for fd in /proc/$$/fd/*; do fd=${fd##*/}; [ $fd -lt 3 ] || eval \"exec $fd>&-\"; done; \
                      echo ready; echo $$; exec sleep 1000";

/// The process that waits for the end of a command.
fn watcher(run: u32) -> Pid {
    let list = fs::read_to_string(format!("/proc/{run}/task/{run}/children")).expect("it runs");
    let mut children = list.split_ascii_whitespace();
    let watcher = children.find(|pid| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "lockkeeper-wait\n")
    });
    Pid::from_raw(watcher.expect("there is one").parse().expect("a number")).expect("a process")
}

/// Its lock ended with `run`, under a command that ran.
#[test]
fn the_lock_lasts_as_long_as_a_command_that_closes_what_it_inherits() {
    let user = User::new();
    let (mut run, mut output) = ready(user.command(&["run", "a", "--", "bash", "-c", CLOSES]));
    let command = Pid::from_raw(line(&mut output).parse().expect("a number")).expect("a process");
    let watcher = watcher(run.id());
    run.kill().expect("it runs");
    run.wait().expect("it is dead");
    let is_held = || user.run(&["run", "--if-available", "a", "--", "true"]).status.code() == Some(75);
    assert!(running(watcher) && is_held());
    user.end_daemon(Signal::KILL);
    assert!(is_held());
    // It does not end with what the terminal or a shell ends, and is not what is shown.
    for signal in [Signal::HUP, Signal::INT, Signal::TERM] {
        kill_process(watcher, signal).expect("it runs");
    }
    let shown = user.run(&["query", "--table", "a"]).stdout;
    let pid = format!("  {}  ", command.as_raw_nonzero());
    assert!(text(&shown).contains(&pid), "{}", text(&shown));
    assert!(running(watcher) && is_held());
    kill_process(command, Signal::KILL).expect("it runs");
    assert_eq!(user.run(&["run", "a", "--", "true"]).status.code(), Some(0));
    wait_until(|| !running(watcher));
}

/// It was a zombie until `run` had ended, or longer: not every first process of a container waits
/// for others.
#[test]
fn the_watcher_is_gone_with_the_command() {
    let user = User::new();
    // A daemon that was started on demand is a child of who started it.
    assert_eq!(user.run(&["run", "a", "--", "true"]).status.code(), Some(0));
    let (mut run, _output) = ready(user.command(&["run", "a", "--min-hold", "1h", "--", "echo", "ready"]));
    let children = format!("/proc/{0}/task/{0}/children", run.id());
    wait_until(|| fs::read_to_string(&children).expect("it runs").is_empty());
    run.kill().expect("it runs");
    run.wait().expect("it is dead");
}

/// A pipe would end only after it, a file system could not be unmounted.
#[test]
fn the_watcher_of_a_command_has_nothing_open_but_the_lock_and_the_command() {
    let user = User::new();
    let mut holder = user.hold(&["a"]);
    let watcher = watcher(holder.child.id()).as_raw_nonzero();
    let mut files: Vec<_> = fs::read_dir(format!("/proc/{watcher}/fd"))
        .expect("it runs")
        .map(|file| fs::read_link(file.expect("it is listed").path()).expect("it is open"))
        .map(|path| path.to_str().expect("it is text").rsplit_once(['/', '[']).expect("a path").0.to_string())
        .collect();
    files.sort();
    assert_eq!(files, [user.state_dir().join("fifo").to_str().expect("it is text"), "anon_inode:"]);
    assert_eq!(fs::read_link(format!("/proc/{watcher}/cwd")).expect("it runs").to_str(), Some("/"));
    assert_eq!(holder.let_go(), 0);
}

/// Starts a command and returns it with its output, once it has said that it is ready.
fn ready(mut command: Command) -> (Child, BufReader<ChildStdout>) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut output = BufReader::new(child.stdout.take().expect("it is a pipe"));
    assert_eq!(line(&mut output), "ready");
    (child, output)
}

fn line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("it is text");
    line.trim_end().into()
}

/// `lockkeeper run`, with no terminal. The tests' parent may ignore signals, which would be
/// inherited.
fn run_alone(user: &User, args: &[&str]) -> Command {
    let run = user.command(&["run"]);
    let mut command = Command::new("setsid");
    command.args(["env", "--default-signal"]).arg(run.get_program()).arg("run").args(args).env_clear();
    command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

#[test]
fn signals_are_passed_on() {
    let user = User::new();
    for (signal, name) in
        [(Signal::TERM, "TERM"), (Signal::HUP, "HUP"), (Signal::USR2, "USR2"), (Signal::INT, "INT")]
    {
        let script = format!("trap 'echo told; exit 3' {name}; echo ready; while :; do sleep 0.01; done");
        let (mut run, mut output) = ready(run_alone(&user, &["a", "--", "sh", "-c", &script]));
        kill_process(Pid::from_child(&run), signal).expect("it runs");
        assert_eq!(line(&mut output), "told");
        assert_eq!(run.wait().expect("it ends").code(), Some(3));
    }
}

#[test]
fn a_signal_that_is_ignored_stays_so() {
    let user = User::new();
    let run = user.command(&[]);
    let mut shell = Command::new("sh");
    let script = "trap '' HUP; exec \"$0\" run a -- sh -c 'echo ready; kill -HUP $PPID $$; echo still here'";
    shell.args(["-c", script]).arg(run.get_program()).env_clear();
    shell.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let (mut run, mut output) = ready(shell);
    assert_eq!(line(&mut output), "still here");
    assert_eq!(run.wait().expect("it ends").code(), Some(0));
}

#[test]
fn without_a_terminal_all_of_the_command_is_ended_when_its_lock_is_lost() {
    let user = User::new();
    let script = "sh -c 'echo ready; echo $$; exec sleep 1000'; true";
    let (mut run, mut output) = ready(run_alone(&user, &["a", "--", "sh", "-c", script]));
    let grandchild: i32 = line(&mut output).parse().expect("it is a process id");
    assert_eq!(text(&user.run(&["release", "a"]).stdout), "Broke 1 lock of a.\n");
    assert_eq!(run.wait().expect("it ends").code(), Some(76));
    wait_until(|| !running(Pid::from_raw(grandchild).expect("it is one")));
}

#[test]
fn whoever_comes_after_the_end_of_run_finds_the_lock_free() {
    let user = User::new();
    for _ in 0..100 {
        // What the command leaves behind has the connection, but not the lock.
        let done = user.run(&["run", "--if-available", "a", "--", "sh", "-c", "sleep 1 >/dev/null 2>&1 &"]);
        assert_eq!(done.status.code(), Some(0));
    }
}

#[test]
fn who_waits_is_told_once_for_whom_unless_it_wants_to_be_quiet() {
    let user = User::new();
    let mut holder = user.hold(&["--info", "nightly", "a"]);
    // It is told after a second; on a busy machine its time may be up by then, before it has heard
    // who holds the lock.
    let told = ["3s", "10s", "60s"].map(|time| ["run", "--timeout", time, "a", "--", "true"]);
    let told = told.iter().map(|args| user.run(args)).find(|told| text(&told.stderr).lines().count() > 1);
    let told = told.expect("a minute is enough");
    let words: Vec<&str> = text(&told.stderr).lines().collect();
    assert!(words[0].starts_with("lockkeeper: waiting for a ("), "{words:?}");
    assert!(words[0].contains("place 1 of 1): held for ") && words[0].ends_with(" (nightly)"), "{words:?}");
    assert!(words[1].starts_with("lockkeeper: a: it was not free in time: held for "), "{words:?}");
    assert_eq!((told.status.code(), words.len()), (Some(75), 2));
    let quiet = user.run(&["run", "--quiet", "--timeout", "2s", "a", "--", "true"]);
    assert_eq!((quiet.status.code(), text(&quiet.stderr)), (Some(75), ""));
    let refused = user.run(&["run", "--if-available", "a", "--", "true"]);
    assert_eq!(text(&refused.stderr), "lockkeeper: a: it is not free. `lockkeeper query` shows who has it\n");
    let refused = user.run(&["run", "--timeout", "0", "a", "--", "true"]);
    assert_eq!(refused.status.code(), Some(75));
    assert_eq!(holder.let_go(), 0);
    assert_eq!(user.run(&["run", "--timeout", "0", "a", "--", "true"]).status.code(), Some(0));
}

#[test]
fn a_label_says_who_runs_what_and_nothing_that_may_be_secret() {
    let user = User::new();
    let script = user.file("script.sh", "echo ready; read -r line");
    let mut command = user.command(&["run", "a", "--", "sh", &script, "nightly", "--key", "secret"]);
    command.env("USER", "somebody-else").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = command.spawn().expect("it starts");
    assert_eq!(line(&mut BufReader::new(run.stdout.take().expect("it is a pipe"))), "ready");
    let shown = user.run(&["query"]);
    let me = Command::new("id").arg("-un").output().expect("it starts").stdout;
    let me = format!("\"info\":\"{}@", text(&me).trim());
    let info = text(&shown.stdout).split(&me).nth(1).expect("it has a label, with the user's name");
    assert!(info.contains(&format!(": sh {script} nightly\"")) && !info.contains("secret"), "{info}");
    drop(run.stdin.take());
    run.wait().expect("it ends");
}

/// The process of `run` was shown, which was gone.
#[test]
fn the_owner_of_a_lock_is_the_process_that_holds_it() {
    let user = User::new();
    let mut holder = user.hold(&["a"]);
    let command = holder.line();
    let shown = |pid: &str| text(&user.run(&["query", "a"]).stdout).contains(&format!("\"pid\":{pid},"));
    assert!(shown(&holder.pid().as_raw_nonzero().to_string()), "while it is there");
    kill_process(holder.pid(), Signal::KILL).expect("it runs");
    wait_until(|| shown(&command));
    drop(holder);
    // So is that of `lock`.
    let script = "eval \"$($0 lock b)\"; echo $$; read -r line";
    let mut shell = Command::new("sh");
    let template = user.command(&[]);
    shell.args(["-c", script]).arg(template.get_program());
    shell.envs(template.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let pid = line(&mut BufReader::new(shell.stdout.take().expect("it is a pipe")));
    let query = user.run(&["query", "b"]);
    assert!(text(&query.stdout).contains(&format!("\"pid\":{pid},")), "{}", text(&query.stdout));
    drop(shell.stdin.take());
    shell.wait().expect("it ends");
}

#[test]
fn query_shows_who_holds_and_who_waits() {
    let user = User::new();
    assert_eq!(text(&user.run(&["query", "--table"]).stdout), "Nobody holds a lock, and nobody waits.\n");
    let holder = user.hold(&["--info", "nightly report", "a"]);
    let _waiter = user.start(&["--shared", "a"]);
    user.wait_for("a", 1, 1);
    let shown = user.run(&["query", "--table"]);
    let lines: Vec<&str> = text(&shown.stdout).lines().collect();
    assert!(lines[0].starts_with("STATE    NAME  MODE       FOR"), "{lines:?}");
    let pid = holder.pid().as_raw_nonzero();
    assert!(lines[1].starts_with("held     a     exclusive"), "{lines:?}");
    assert!(lines[1].ends_with(&format!("{pid}  nightly report")), "{lines:?}");
    assert!(lines[2].starts_with("waiting  a     shared"), "{lines:?}");
    // JSON, if it does not go to a terminal.
    assert_eq!(text(&user.run(&["query", "b"]).stdout), "{\"held\":[],\"pending\":[]}\n");
    assert!(
        text(&user.run(&["query"]).stdout).starts_with("{\"held\":[{\"name\":\"a\",\"mode\":\"exclusive\"")
    );
}

#[test]
fn names_of_any_bytes_are_shown_escaped() {
    let user = User::new();
    let name = OsStr::from_bytes(b"\xff\x1b[2J");
    let mut command = user.command(&["run"]);
    command.arg(name).args(["--", "sh", "-c", "echo ready; sleep 1000"]);
    let (mut run, _output) = ready(command);
    let table = user.run(&["query", "--table"]);
    assert!(text(&table.stdout).contains("\"\\xff\\u{1b}[2J\""), "{}", text(&table.stdout));
    let json = user.run(&["inspect"]);
    let expected = "{\"name\":\"\u{FFFD}\\u001b[2J\",\"nameBytes\":\"ff1b5b324a\",\"mode\":\"exclusive\"}";
    assert!(text(&json.stdout).contains(expected), "{}", text(&json.stdout));
    let released = user.command(&["release"]).arg(name).output().expect("it starts");
    assert_eq!(text(&released.stdout), "Broke 1 lock of \"\\xff\\u{1b}[2J\".\n");
    assert_eq!(run.wait().expect("it ends").code(), Some(76));
}

#[test]
fn inspect_shows_requests_with_all_their_names() {
    let user = User::new();
    let both = user.hold(&["--info", "both", "a", "b"]);
    let _other = user.hold(&["--shared", "c"]);
    let json = user.run(&["inspect", "b"]);
    let json = text(&json.stdout);
    let scope = r#""scope":[{"name":"a","mode":"exclusive"},{"name":"b","mode":"exclusive"}]"#;
    assert!(
        json.contains(scope) && json.contains(&format!("\"pid\":{}", both.pid().as_raw_nonzero())),
        "{json}"
    );
    assert!(!json.contains("\"c\"") && json.ends_with("\"pending\":[],\"deadlocks\":[]}\n"), "{json}");
    let table = user.run(&["inspect", "--table"]);
    assert!(text(&table.stdout).contains("c (shared)"), "{}", text(&table.stdout));
}

#[test]
fn release_breaks_every_lock_of_a_name_and_nothing_else() {
    let user = User::new();
    let mut readers = [user.hold(&["--shared", "a"]), user.hold(&["--shared", "a"])];
    let mut other = user.hold(&["b"]);
    let mut next = user.start(&["a"]);
    user.wait_for("a", 2, 1);
    assert_eq!(text(&user.run(&["release", "a"]).stdout), "Broke 2 locks of a.\n");
    readers.iter_mut().for_each(|reader| assert_eq!(reader.code(), 76));
    assert_eq!(next.line(), "held");
    assert_eq!((next.let_go(), other.let_go()), (0, 0));
    let nothing = user.run(&["release", "--yes", "a"]);
    assert_eq!(text(&nothing.stdout), "Nobody holds a: there is nothing to break.\n");
    assert_eq!(nothing.status.code(), Some(0));
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
    let wrong = user.command(&["query"]).env("LOCKKEEPER_URL", "ws://localhost:99999").output();
    let wrong = wrong.expect("it starts");
    assert!(text(&wrong.stderr).contains("has no host and port that could be"), "{}", text(&wrong.stderr));
    // Nothing is reached in its place.
    for variable in ["LOCKKEEPER_URL", "LOCKKEEPER_BUCKET"] {
        for args in [&["run", "a", "--", "true"][..], &["query"], &["lock", "a"]] {
            let wrong = user.command(args).env(variable, OsStr::from_bytes(b"\xff")).output();
            let wrong = wrong.expect("it starts");
            assert_eq!(wrong.status.code(), Some(64), "{variable} {args:?}");
            assert!(
                text(&wrong.stderr).contains(&format!("{variable} is not UTF-8")),
                "{}",
                text(&wrong.stderr)
            );
        }
    }
    assert!(!user.socket().exists());
    let nowhere = "unix:/proc/no/daemon.sock";
    let done = user.command(&["query"]).env("LOCKKEEPER_URL", nowhere).output().expect("it starts");
    assert_eq!(done.status.code(), Some(69));
    assert!(text(&done.stderr).contains("start it with `lockkeeper serve`"), "{}", text(&done.stderr));
}

#[test]
fn a_waiter_that_is_stopped_is_marked_as_such() {
    let user = User::new();
    let _holder = user.hold(&["a"]);
    let waiter = user.start(&["a"]);
    user.wait_for("a", 1, 1);
    assert!(!text(&user.run(&["query"]).stdout).contains("stopped"));
    kill_process(waiter.pid(), Signal::STOP).expect("it runs");
    wait_until(|| text(&user.run(&["query"]).stdout).contains("\"stopped\":true"));
    assert!(text(&user.run(&["query", "--table"]).stdout).contains(" (stopped)\n"));
}

#[test]
fn who_has_stolen_or_released_a_lock_is_told_by_name() {
    let user = User::new();
    let me = Command::new("id").arg("-un").output().expect("it starts").stdout;
    let breaks =
        [(&["run", "--steal", "a", "--", "true"][..], "stolen"), (&["release", "a"], "released by force")];
    for (breaker, how) in breaks {
        let mut command = user.command(&["run", "a", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
        command.stderr(Stdio::piped());
        let (run, _output) = ready(command);
        assert!(user.run(breaker).status.success());
        let preempted = run.wait_with_output().expect("it ends");
        let words = text(&preempted.stderr);
        let start = format!("lockkeeper: the lock was {how} by {}@", text(&me).trim());
        assert!(words.starts_with(&start) && words.contains(", pid "), "{words}");
    }
}

/// It was said that the daemon was out of reach.
#[test]
fn whose_session_is_ended_by_another_is_told_so() {
    let user = User::new();
    let mut command = user.command(&["run", "a", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    command.stderr(Stdio::piped());
    let (run, _output) = ready(command);
    let shown = user.run(&["query", "--json", "a"]);
    let client = text(&shown.stdout).split("\"clientId\":\"").nth(1).and_then(|rest| rest.split('"').next());
    assert!(user.run(&["release", "--client", client.expect("it has one")]).status.success());
    let ended = run.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(76));
    let words = text(&ended.stderr);
    assert!(words.starts_with("lockkeeper: the lock was lost: another client ended its session"), "{words}");
}

#[test]
fn lines_of_many_that_wait_do_not_mix() {
    let user = User::new();
    let mut holder = user.hold(&["a"]);
    let path = user.file("storm", "");
    let log = || fs::File::options().append(true).open(&path).expect("it is ours");
    let mut waiters: Vec<Child> = (0..300)
        .map(|_| user.command(&["run", "a", "--", "true"]).stderr(log()).spawn().expect("it starts"))
        .collect();
    // On a busy machine, some are told first that the daemon takes long to answer.
    let said = |line: &&str| line.starts_with("lockkeeper: waiting for a (");
    let count = || fs::read_to_string(&path).expect("it is text").lines().filter(said).count();
    wait_until(|| count() == waiters.len());
    assert_eq!(holder.let_go(), 0);
    waiters.iter_mut().for_each(|waiter| assert!(waiter.wait().expect("it ends").success()));
    for line in fs::read_to_string(&path).expect("it is text").lines() {
        let late =
            line.starts_with("lockkeeper: ") && line.contains("the daemon at ") && !line.contains(" for a (");
        let whole = said(&line) || late;
        assert!(whole && line.matches("lockkeeper:").count() == 1, "{line}");
    }
}

#[test]
fn a_session_is_ended_by_its_id() {
    let user = User::new();
    let mut holder = user.hold(&["a"]);
    let shown = user.run(&["query", "--json"]);
    let id = text(&shown.stdout);
    let id =
        id.split("\"clientId\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("it has an id");
    assert_eq!(user.run(&["release", "--client", "0000000000000000"]).status.code(), Some(1));
    let ended = user.run(&["release", "--client", id]);
    assert_eq!(
        (ended.status.code(), text(&ended.stdout)),
        (Some(0), &*format!("Ended the session of {id}.\n"))
    );
    assert_eq!(holder.code(), 76);
    user.hold(&["a"]);
}

/// The daemon cannot tell whether the command is alive, and keeps its lock: it has to report that,
/// and how to end it.
#[test]
fn a_lock_whose_process_may_be_alive_or_not_is_shown_as_such_and_can_be_ended() {
    let user = User::new();
    let mut holder = user.hold(&["a"]);
    let command = Pid::from_raw(holder.line().parse().expect("a number")).expect("a process");
    kill_process(holder.pid(), Signal::KILL).expect("it runs");
    holder.child.wait().expect("it is dead");
    user.end_daemon(Signal::KILL);
    fs::remove_dir_all(user.state_dir().join("fifo")).expect("it is ours");
    let text = |args: &[&str]| String::from_utf8(user.run(args).stdout).expect("it is text");
    let json = text(&["query", "--json", "a"]);
    assert!(json.contains("\"unverifiable\":true"), "{json}");
    let id =
        json.split("\"clientId\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("it has one");
    let way_out = format!("lockkeeper release --client {id}");
    for args in [&["query", "--table"][..], &["inspect", "--table"]] {
        let shown = text(args);
        assert!(shown.contains(" (unverifiable)\n") && shown.contains(&way_out), "{shown}");
    }
    let waiter = user.command(&["run", "a", "--", "true"]).stderr(Stdio::piped()).spawn();
    let mut waiter = waiter.expect("it starts");
    let lines = BufReader::new(waiter.stderr.take().expect("it is a pipe")).lines();
    let said = lines.map_while(Result::ok).find(|line| line.contains(&way_out)).expect("it is said");
    assert!(said.starts_with("lockkeeper: waiting for a"), "{said}");
    waiter.kill().expect("it runs");
    waiter.wait().expect("it is dead");
    let top = Terminal::start_with_size(&user.command(&["top"]), 24, 120);
    top.shows(&way_out);
    // A subscriber is notified, too.
    assert!(user.run(&["release", "--client", id]).status.success());
    top.wait("the end of it", |screen| !screen.contains("unverifiable"));
    top.press("q");
    assert_eq!(user.run(&["run", "--if-available", "a", "--", "true"]).status.code(), Some(0));
    kill_process(command, Signal::KILL).expect("it runs");
}
