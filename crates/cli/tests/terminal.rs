//! `lockkeeper` on a terminal: what is shown while it waits, and the keys that the terminal turns
//! into signals.

mod common;

use common::{User, running, terminal::Terminal, wait_until};
use rustix::process::{Pid, Signal, kill_process};

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const CTRL_Z: &str = "\x1a";

fn pid_after(screen: &str, word: &str) -> Pid {
    let rest = screen.rsplit_once(word).expect("it was waited for").1;
    let number = rest.split_whitespace().next().and_then(|number| number.parse().ok());
    number.and_then(Pid::from_raw).expect("it is a process")
}

#[test]
fn the_wait_is_shown_on_one_line_that_goes_when_it_is_over() {
    let user = User::new();
    let mut holder = user.hold(&["--info", "\u{7}", "a"]);
    let mut first = user.start(&["a"]);
    user.wait_for("a", 1, 1);
    let mut waiter = Terminal::start(&user.command(&["run", "a", "b", "--", "echo", "mine"]));
    let holding = format!("by pid {} (\\u{{7}})", holder.pid().as_raw_nonzero());
    waiter.wait("one line on what it waits for", |screen| {
        screen.starts_with("waiting for a, b (")
            && screen.contains("place 2 of 2")
            && screen.contains("a is held for ")
            && screen.ends_with(&holding)
    });
    assert_eq!(holder.let_go(), 0);
    waiter.shows("place 1 of 1");
    assert_eq!(first.let_go(), 0);
    assert!(waiter.ended().success());
    assert_eq!(waiter.wait("the end", |screen| screen.contains("mine")).trim(), "mine");
}

/// As under `su -c`: the terminal is that of another session. Nothing was said.
#[test]
fn the_wait_is_shown_on_a_terminal_of_another_session() {
    let user = User::new();
    let mut holder = user.hold(&["--info", "nightly", "a"]);
    let run = user.command(&[]);
    let mut other = std::process::Command::new("setsid");
    other.arg("--wait").arg(run.get_program()).args(["run", "a", "--", "true"]);
    other.env_clear().envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut waiter = Terminal::start(&other);
    waiter.wait("a line", |screen| {
        screen.contains("lockkeeper: waiting for a (") && screen.contains("(nightly)")
    });
    assert_eq!(holder.let_go(), 0);
    assert!(waiter.ended().success());
}

/// The line stood still.
#[test]
fn who_waits_is_told_that_the_daemon_was_stopped() {
    let user = User::new();
    let mut holder = user.hold(&["--info", "nightly", "a"]);
    let mut waiter = Terminal::start_with_size(&user.command(&["run", "a", "--", "true"]), 24, 200);
    waiter.shows("(nightly)");
    let daemon = user.daemon();
    kill_process(daemon, Signal::STOP).expect("it runs");
    waiter.shows(&format!("does not answer: its process {} is stopped", daemon.as_raw_nonzero()));
    kill_process(daemon, Signal::CONT).expect("it is stopped");
    waiter.shows("(nightly)");
    assert_eq!(holder.let_go(), 0);
    assert!(waiter.ended().success());
}

#[test]
fn a_line_that_is_too_long_is_cut() {
    let user = User::new();
    let _holder = user.hold(&["--info", &"long ".repeat(100), "a"]);
    let mut waiter = Terminal::start_with_size(&user.command(&["run", "a", "--", "true"]), 24, 40);
    let screen = waiter.wait("a cut line", |screen| screen.lines().count() == 1 && screen.contains('…'));
    assert_eq!(screen.chars().count(), 39, "{screen}");
    waiter.press(CTRL_C);
    assert!(!waiter.ended().success());
    user.wait_for("a", 1, 0);
}

#[test]
fn a_job_in_the_background_waits_without_a_word() {
    let user = User::new();
    let mut holder = user.hold(&["a"]);
    let shell = user.shell();
    shell.press("lockkeeper run a -- echo mi''ne &\r");
    user.wait_for("a", 1, 1);
    // Long enough for something to be said, if it were.
    shell.press("lockkeeper run --quiet --timeout 2s a -- true; echo status $?\r");
    let screen = shell.shows("status 75");
    assert!(!screen.contains("place"), "{screen}");
    assert_eq!(holder.let_go(), 0);
    shell.shows("mine");
}

#[test]
fn ctrl_c_reaches_the_command_once_and_what_is_sent_to_run_is_passed_on() {
    let user = User::new();
    // Takes one signal after the other, none in the midst of something. Two that come close
    // together may be one, but not each time.
    let script = "\
import os, signal
names = {signal.SIGINT: 'int', signal.SIGUSR1: 'user'}
signal.pthread_sigmask(signal.SIG_BLOCK, names)
told = dict.fromkeys(names, 0)
print('run', os.getppid(), flush=True)
while True:
    number = signal.sigwait(names)
    told[number] += 1
    print(names[number], told[number], flush=True)
";
    let mut terminal = Terminal::start(&user.command(&["run", "a", "--", "python3", "-c", script]));
    let run = pid_after(&terminal.shows("run "), "run ");
    for count in 1..=8 {
        terminal.press(CTRL_C);
        terminal.shows(&format!("int {count}"));
        kill_process(run, Signal::USR1).expect("it runs");
        let screen = terminal.shows(&format!("user {count}"));
        assert!(!screen.contains(&format!("int {}", count + 1)), "{screen}");
    }
    kill_process(run, Signal::INT).expect("it runs");
    terminal.shows("int 9");
    kill_process(run, Signal::TERM).expect("it runs");
    assert_eq!(terminal.ended().code(), Some(128 + 15));
}

#[test]
fn ctrl_c_ends_the_script_around_it() {
    let user = User::new();
    let shell = user.shell();
    shell
        .press("bash -c 'while :; do lockkeeper run a -- sh -c \"echo st''arted; exec sleep 1000\"; done'\r");
    shell.shows("started");
    shell.press(CTRL_C);
    shell.press("echo status $?\r");
    shell.shows("status 130");
    user.wait_for("a", 0, 0);
}

#[test]
fn ctrl_z_stops_both_and_fg_continues_them() {
    let user = User::new();
    let shell = user.shell();
    // No child of its own: Ctrl-Z between a shell's vfork and exec stops the one and not the other.
    let script = "echo st''arted; while read -r line; do echo \"$line\"; done; exit 5";
    shell.press(&format!("lockkeeper run a -- bash -c '{script}'\r"));
    shell.shows("started");
    for round in 1..=2 {
        shell.press(CTRL_Z);
        shell.wait("the shell", |screen| screen.matches("Stopped").count() == round);
        // It keeps what it has.
        user.wait_for("a", 1, 0);
        shell.press("fg\r");
        shell.wait("the job", |screen| screen.matches("\nlockkeeper run a").count() == round);
        // Echoed by the terminal, and by the command.
        shell.press(&format!("hello {round}\r"));
        shell.wait("an echo", |screen| screen.matches(&format!("hello {round}")).count() == 2);
    }
    shell.press(CTRL_D);
    shell.press("echo status $?\r");
    shell.shows("status 5");
}

#[test]
fn bg_continues_them_too() {
    let user = User::new();
    let shell = user.shell();
    let go = user.file("go", "");
    std::fs::remove_file(&go).expect("it is there");
    shell.press(&format!("mkfifo {go}; cd {}\r", go.trim_end_matches("/go")));
    shell.press("lockkeeper run a -- bash -c 'echo st''arted; read -r line < go; exit 4'\r");
    shell.shows("started");
    shell.press(CTRL_Z);
    shell.shows("Stopped");
    shell.press("bg; echo > go; wait %1; echo status $?\r");
    shell.shows("status 4");
    user.wait_for("a", 0, 0);
}

#[test]
fn run_does_not_stop_if_its_command_does_not() {
    let user = User::new();
    let shell = user.shell();
    shell.press("lockkeeper run a -- sh -c \"trap '' TSTP; echo st''arted; exec cat\"\r");
    shell.shows("started");
    shell.press(CTRL_Z);
    shell.press("hello\r");
    shell.wait("an echo", |screen| screen.matches("hello").count() == 2);
    assert!(!shell.screen().contains("Stopped"));
}

#[test]
fn when_the_lock_is_lost_the_children_of_the_command_are_told_too() {
    let user = User::new();
    let script = "echo shell $$; (trap '' TERM; sh -c 'echo child $$; exec sleep 1000'; sleep 1000); true";
    let mut preempted =
        Terminal::start(&user.command(&["run", "--grace", "1ms", "a", "--", "sh", "-c", script]));
    let child = pid_after(&preempted.shows("child "), "child ");
    assert!(user.run(&["run", "--steal", "a", "--", "true"]).status.success());
    assert_eq!(preempted.ended().code(), Some(76));
    wait_until(|| !running(child));
}

#[test]
fn the_command_learns_the_size_of_the_terminal() {
    let user = User::new();
    let script = "trap 'stty size' WINCH; echo started; while :; do sleep 0.05; done";
    let terminal = Terminal::start(&user.command(&["run", "a", "--", "bash", "-c", script]));
    terminal.shows("started");
    terminal.resize(30, 100);
    terminal.shows("30 100");
}

#[test]
fn a_terminal_that_goes_away_ends_the_command() {
    let user = User::new();
    let script = "echo command $$; exec sleep 1000";
    let mut terminal = Terminal::start(&user.command(&["run", "a", "--", "sh", "-c", script]));
    let command = pid_after(&terminal.shows("command "), "command ");
    terminal.hang_up();
    wait_until(|| !running(command));
    assert_eq!(terminal.ended().code(), Some(128 + 1));
    user.wait_for("a", 0, 0);
}

#[test]
fn a_table_is_coloured_unless_no_color_is_set() {
    let user = User::new();
    let _holder = user.hold(&["--info", "nightly", "a"]);
    let mut coloured = Terminal::start(&user.command(&["query"]));
    assert!(coloured.ended().success());
    coloured.shows("nightly");
    assert!(coloured.colours().contains("\x1b[32"), "{:?}", coloured.colours());
    let mut plain = Terminal::start(user.command(&["inspect"]).env("NO_COLOR", "1"));
    assert!(plain.ended().success());
    plain.shows("nightly");
    assert!(!plain.colours().contains("\x1b[32"), "{:?}", plain.colours());
    let mut json = Terminal::start(&user.command(&["query", "--json", "b"]));
    assert!(json.ended().success());
    json.shows("{\"held\":[],\"pending\":[]}");
}

#[test]
fn release_shows_who_holds_it_and_asks() {
    let user = User::new();
    let mut holder = user.hold(&["--info", "nightly", "a"]);
    let mut no = Terminal::start(&user.command(&["release", "a"]));
    let screen = no.shows("[y/N]");
    assert!(screen.starts_with("a is held for ") && screen.contains(" (nightly)\n"), "{screen}");
    no.press("\r");
    assert_eq!(no.ended().code(), Some(1));
    no.shows("Nothing was broken.");
    user.wait_for("a", 1, 0);
    let mut yes = Terminal::start(&user.command(&["release", "a"]));
    yes.shows("[y/N]");
    yes.press("y\r");
    assert_eq!(yes.ended().code(), Some(0));
    yes.shows("Broke 1 lock of a.");
    assert_eq!(holder.code(), 76);
}

/// It was taken for a signal that ends the wait, and the lock was free.
#[test]
fn a_lock_is_held_on_to_while_run_is_stopped() {
    let user = User::new();
    let shell = user.shell();
    shell.press("lockkeeper run --min-hold 1h a -- sh -c 'echo num\"\"ber $$'\n");
    let command = pid_after(&shell.shows("number "), "number ");
    // A Ctrl-Z before it has ended is meant for it.
    wait_until(|| !std::path::Path::new(&format!("/proc/{}", command.as_raw_nonzero())).exists());
    // The shell says so only if it did stop.
    shell.press("\x1a");
    shell.shows("Stopped");
    assert_eq!(user.run(&["run", "-n", "a", "--", "true"]).status.code(), Some(75));
    shell.press("fg\n");
    shell.wait("the job", |screen| screen.matches("lockkeeper run --min-hold").count() == 3);
    shell.press("\x03");
    user.wait_for("a", 0, 0);
    shell.press("exit\n");
}

/// It took the lock, for a shell that did not run what it printed, and kept it for ten seconds.
#[test]
fn lock_typed_without_eval_says_how_to_type_it() {
    let user = User::new();
    let shell = user.shell();
    shell.press("lockkeeper lock a; echo status $?\r");
    shell.shows("eval \"$(lockkeeper lock NAME)\"");
    shell.shows("status 64");
    shell.press("clear; lockkeeper lock; echo no name $?\r");
    let screen = shell.shows("no name 64");
    assert!(screen.contains("<NAME>...") && !screen.contains("lockkeeper_lock"), "{screen}");
    assert!(user.run(&["run", "-n", "a", "--", "true"]).status.success());
}

/// The shell runs its trap, and then what `lock` has printed, which was nothing.
#[test]
fn ctrl_c_while_it_waits_ends_a_script_that_traps_it() {
    let user = User::new();
    let _holder = user.hold(&["a"]);
    for shell in ["sh", "bash"] {
        let script = "trap 'echo trapped' INT; eval \"$(lockkeeper lock a)\"; echo never";
        let mut script = Terminal::start(&user.script(shell, script));
        script.shows("place 1 of 1");
        script.press(CTRL_C);
        assert_eq!(script.ended().code(), Some(69), "{shell}");
        let screen = script.shows("trapped");
        assert!(!screen.contains("never"), "{screen}");
    }
}

#[test]
fn a_lock_that_is_killed_while_it_waits_leaves_an_interactive_shell_with_its_status() {
    let user = User::new();
    let _holder = user.hold(&["a"]);
    let shell = user.shell();
    shell.press("eval \"$(sh -c 'echo $$ >&2; exec lockkeeper lock -q a')\" || echo status $?\r");
    user.wait_for("a", 1, 1);
    let number = |screen: &str| screen.lines().find_map(|line| line.trim().parse().ok());
    let pid = number(&shell.wait("its pid", |screen| number(screen).is_some())).expect("it was shown");
    kill_process(Pid::from_raw(pid).expect("a process"), Signal::KILL).expect("it runs");
    shell.shows("status 69");
}
